"""`addnorm draw`."""

import os

import pytest
import typer
from typer.testing import CliRunner

from addnorm.cli.commands.draw import draw
from addnorm.cli.main import main
from addnorm.core.errors import UserError

app = typer.Typer()
app.command()(draw)
run = CliRunner().invoke


def test_draw_writes_file_and_reports_path(tmp_path):
    target = tmp_path / "two.svg"
    result = run(app, ["post_ln", "b2t", "-o", str(target), "--theme", "dark", "--decoder"])
    assert result.exit_code == 0
    assert result.stdout == ""
    assert f"drew post_ln, b2t into {target}" in result.stderr
    assert "Cross-attention" in target.read_text(encoding="utf-8")


def test_default_output_is_blocks_svg(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(app, ["pre_ln"]).exit_code == 0
    assert (tmp_path / "blocks.svg").exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["postln"], "did you mean 'post_ln'"),
        (["post_ln", "-o", "x.jpg"], "expected a file ending in .svg or .png"),
        (["post_ln", "-o", "no/x.svg"], "there is no folder 'no'"),
        (["post_ln", "--theme", "pink"], "unknown theme 'pink'"),
        (["post_ln(alpha=2)"], "has no option 'alpha'"),
    ],
)
def test_invalid_arguments_are_user_errors_and_write_nothing(
    arguments, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    error = run(app, arguments).exception
    assert isinstance(error, UserError)
    assert message in str(error)
    assert not list(tmp_path.iterdir())


def test_error_message_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["draw", "postln"]) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("addnorm: unknown wiring or preset 'postln'")
    assert stderr.count("\n") == 1


def test_missing_names_and_invalid_depth_are_usage_errors():
    assert run(app, []).exit_code == 2
    assert run(app, ["post_ln", "--depth", "0"]).exit_code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder_is_user_error(tmp_path):
    tmp_path.chmod(0o500)
    error = run(app, ["post_ln", "-o", str(tmp_path / "x.svg")]).exception
    assert isinstance(error, UserError)
    assert "is not writable" in str(error)


def test_presets_are_drawn_with_their_depth_and_norms(tmp_path):
    out = tmp_path / "models.svg"
    assert run(app, ["gpt2", "t5", "-o", str(out)]).exit_code == 0
    text = out.read_text()
    for label in ("GPT-2 small", "T5 small, encoder", "T5 small, decoder", "12 \u00d7", "RMSNorm"):
        assert label in text
    assert "Cross-attention" in text and ">Norm<" not in text
