"""The summary of a comparison in the terminal."""

from addnorm.cli.summary_table import summary_table
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.parse import parse_comparison
from addnorm.report.comparison.summary import build_summary_section
from addnorm.report.html.page import Note, Table
from addnorm.report.theme import make_arm_styles
from addnorm.tasks import Score, Translate
from tests.comparison.synthetic_study import write_synthetic_study


def test_terminal_and_page_show_the_score_as_the_task_defines_it(tmp_path, monkeypatch):
    score = Score("chrf", "overlap", "Overlap: more is better.", digits=5)
    monkeypatch.setattr(Translate, "primary_score", score)
    spec = parse_comparison({"wiring": "pre_ln", "depth": 2, "lr": 1e-3, "seeds": 1, "steps": 100})
    study = Study.open(write_synthetic_study(tmp_path / "study", spec))
    (arm,) = study.summary
    expected = f"{arm.score.mean:.5f}"

    terminal = summary_table(study)
    (column,) = [column for column in terminal.columns if column.header == "overlap"]
    assert list(column.cells) == [expected]

    parts = build_summary_section(study, make_arm_styles([arm.arm.name]))
    (table,) = [part for part in parts if isinstance(part, Table)]
    (note,) = [part for part in parts if isinstance(part, Note)]
    assert table.rows[0][table.head.index("overlap")] == expected
    assert score.note in note.text
