"""Attention maps of outputs: axes match the tokens and rows sum to one."""

import pytest

from addnorm.decode import DecodingOptions
from addnorm.report.attention_page import write_attention_page
from addnorm.tasks import classify_texts, fill_mask, generate_texts, translate_texts
from addnorm.tasks.attention_maps import attention_examples
from tests.tasks.sample_runs import make_run


@pytest.mark.parametrize(
    ("task", "kinds"),
    [
        ("translate", {"encoder": ("s", "s"), "decoder": ("t", "t"), "cross": ("t", "s")}),
        ("lm", {"decoder": ("t", "t")}),
        ("classify", {"encoder": ("s", "s")}),
        ("mlm", {"encoder": ("s", "s")}),
    ],
)
def test_map_axes_match_tokens(tmp_path, task, kinds):
    run, lines = make_run(task, tmp_path / "corpus"), ["ab cab", "", "dad"]
    if task == "classify":
        outputs = list(classify_texts(run, lines))
    elif task == "mlm":
        outputs = list(fill_mask(run, ["ab c<mask>b", "", "d<mask>d"]))
    elif task == "lm":
        outputs = [each[0] for each in generate_texts(run, lines, DecodingOptions(max_new=4))]
    else:
        prefixes = ["ba", "", "d"]
        outputs = [
            each[0]
            for each in translate_texts(run, lines, DecodingOptions(beam=2), prefixes=prefixes)
        ]
    examples = attention_examples(run, outputs)
    assert len(examples) == 2
    for example, line in zip(examples, ("ab cab", "dad"), strict=True):
        sizes = {"s": len(example["source"] or ()), "t": len(example["target"])}
        if task == "translate":
            assert example["source"] == [*line, "</s>"]
        if task == "classify":
            assert example["source"] == ["<s>", *line]
        elif task == "mlm":
            masked = [*line]
            masked[-2] = "<mask>"
            assert example["source"] == ["<s>", *masked, "</s>"]
        else:
            assert example["target"][0] == "<s>"
        assert set(example["maps"]) == set(kinds)
        for kind, (rows, columns) in kinds.items():
            assert len(example["maps"][kind]) == 2
            for layer in example["maps"][kind]:
                assert layer.shape == (2, sizes[rows], sizes[columns])
                assert layer.sum(-1) == pytest.approx(1, abs=1e-5)
    page = tmp_path / "attention.html"
    write_attention_page(page, examples)
    assert "Attention maps" in page.read_text(encoding="utf-8")
