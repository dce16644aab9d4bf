"""`addnorm draw`."""

import os

import pytest
import typer
from addnorm.cli.reproduce_commands.draw import draw
from typer.testing import CliRunner

from addnorm.cli.main import main
from addnorm.core.errors import UserError

app = typer.Typer()
app.command()(draw)
run = CliRunner().invoke


def test_draws_and_says_where(tmp_path):
    target = tmp_path / "two.svg"
    result = run(app, ["post_ln", "b2t", "-o", str(target), "--theme", "dark", "--decoder"])
    assert result.exit_code == 0
    assert result.stdout == ""
    assert f"drew post_ln, b2t into {target}" in result.stderr
    assert "Cross-attention" in target.read_text(encoding="utf-8")


def test_without_a_file_it_is_blocks_svg_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(app, ["pre_ln"]).exit_code == 0
    assert (tmp_path / "blocks.svg").exists()


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["postln"], "did you mean 'post_ln'"),
        (["post_ln", "-o", "x.jpg"], "wanted a file ending in .svg or .png"),
        (["post_ln", "-o", "no/x.svg"], "there is no folder 'no'"),
        (["post_ln", "--theme", "pink"], "unknown theme 'pink'"),
        (["post_ln(alpha=2)"], "has no option 'alpha'"),
    ],
)
def test_mistakes_are_user_errors_and_leave_nothing(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problem = run(app, arguments).exception
    assert isinstance(problem, UserError)
    assert said in str(problem)
    assert not list(tmp_path.iterdir())


def test_the_command_line_says_a_mistake_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["draw", "postln"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("addnorm: unknown wiring or preset 'postln'")
    assert said.count("\n") == 1


def test_no_names_and_impossible_numbers_are_refused():
    assert run(app, []).exit_code == 2
    assert run(app, ["post_ln", "--depth", "0"]).exit_code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_told(tmp_path):
    tmp_path.chmod(0o500)
    problem = run(app, ["post_ln", "-o", str(tmp_path / "x.svg")]).exception
    assert isinstance(problem, UserError)
    assert "cannot be written to" in str(problem)


def test_presets_are_drawn_at_their_depth_with_their_norms_by_name(tmp_path):
    out = tmp_path / "models.svg"
    assert run(app, ["gpt2", "t5", "-o", str(out)]).exit_code == 0
    text = out.read_text()
    for words in ("GPT-2 small", "T5 small, encoder", "T5 small, decoder", "12 \u00d7", "RMSNorm"):
        assert words in text
    assert "Cross-attention" in text and ">Norm<" not in text
