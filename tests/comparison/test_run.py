"""Real small comparisons, from the spec to the study."""

import json
import random

import pytest

import addnorm
from addnorm.comparison.analysis.export import study_to_dict
from addnorm.comparison.cell_result import CellResult, sidecar_path
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import run_comparison
from addnorm.core.errors import UserError
from addnorm.data.corpus import write_corpus
from tests.comparison.same_process_engine import SameProcessEngine

SYLLABLES = ("ba", "ce", "di", "fo", "gu", "la", "me", "ni")
TINY = {"wiring": "pre_ln", "depth": 1, "lr": 1e-3, "seeds": 1, "dim": 8, "heads": 2, "steps": 3}


def overfitting_study(tmp_path):
    """Return a study of a language model on four texts; the high learning rate overfits."""
    rng = random.Random(0)

    def texts(count):
        return [{"text": " ".join(rng.choices(SYLLABLES, k=12))} for _ in range(count)]

    write_corpus(tmp_path / "corpus", "lm", splits={"train": texts(4), "valid": texts(20)})
    spec = parse_comparison(
        TINY
        | {"task": "lm", "data": str(tmp_path / "corpus"), "tokenizer": "char", "dropout": 0.0}
        | {"lr": [1e-3, 1e-2], "dim": 32, "batch_tokens": 256, "max_length": 64, "score": 0}
        | {"steps": 100, "valid_every": 20, "monitor_every": 0}
    )
    return run_comparison(spec, tmp_path / "study", engine=SameProcessEngine())


def test_overfitted_cell_is_stuck_as_the_printed_rules_say(tmp_path):
    study = overfitting_study(tmp_path)
    best, overfitted = study.cells
    assert best.state == "trained"
    assert overfitted.loss > study.shared_data.baseline > 2 * overfitted.end.lowest
    assert overfitted.end.recent < best.end.recent  # still learning the training texts
    assert overfitted.state == "stuck"
    assert "All other cells are stuck" in study_to_dict(study)["rules"]
    assert json.loads((study.folder / "result.json").read_text())["cells"][1]["state"] == "stuck"


@pytest.mark.parametrize("as_mapping", [True, False])
def test_public_compare_writes_result_and_report(as_mapping, tmp_path):
    keys = TINY | {"task": "lm", "score": 0, "batch_tokens": 256}
    spec = keys if as_mapping else parse_comparison(keys)
    study = addnorm.compare(spec, tmp_path / "study", engine=SameProcessEngine())
    assert study.complete
    assert json.loads((tmp_path / "study" / "result.json").read_text())["complete"]
    assert "<html" in (tmp_path / "study" / "report.html").read_text()


def test_recent_loss_round_trip(tmp_path):
    CellResult("done", loss=1.0, recent=0.5).save(tmp_path / "cell")
    assert CellResult.read(tmp_path / "cell").recent == 0.5


@pytest.mark.parametrize("name", ["recent", "loss", "samples"])
def test_result_without_a_field_of_the_rules_is_rejected(tmp_path, name):
    CellResult("done", loss=1.0, recent=0.5).save(tmp_path / "cell")
    path = sidecar_path(tmp_path / "cell", "json")
    data = json.loads(path.read_text())
    del data[name]
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match="not the result of a cell; remove it and rerun the same"):
        CellResult.read(tmp_path / "cell")
