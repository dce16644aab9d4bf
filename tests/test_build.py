"""The Makefile, continuous integration, pinned dependencies and the list of tracked files."""

import os
import re
import subprocess

import pytest

from tests.source_tree import ROOT


def list_tracked_files():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.decode().split("\0") if (path := ROOT / name).is_file()]


def test_no_file_names_the_address_of_a_package_registry():
    hosts = [rb"py" + rb"pi\.org", rb"python" + rb"hosted\.org", rb"npm" + rb"js\.(?:org|com)"]
    hosts += [rb"deb\.deb" + rb"ian\.org", rb"download\.py" + rb"torch\.org", rb"anaconda\.org"]
    pattern = re.compile(rb"|".join(hosts))
    assert [path for path in list_tracked_files() if pattern.search(path.read_bytes())] == []


def test_make_rejects_an_old_or_missing_python(tmp_path):
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.1\nexit 1\n')
    old.chmod(0o755)
    for python, problem in ((old, "got Python 3.9.1"), ("no-such-python", "no-such-python")):
        done = subprocess.run(
            ["make", "setup", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0
        assert problem in done.stderr
        assert "expected Python 3.11 or newer" in done.stderr
        assert "try make PYTHON=" in done.stderr


def test_make_help_names_every_target():
    help_text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    for target in [
        "setup",
        "demo",
        "test",
        "check",
        "fix",
        "bench",
        "docs",
        "dist",
        "sanitize",
        "clean",
    ]:
        assert f"make {target} " in help_text


def test_ci_runs_check_and_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.search(r"^make dist\nmake check\nmake test$", script.read_text(), flags=re.MULTILINE)


def test_every_pin_is_exact_and_every_dependency_is_pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert "torch==2.13.0" in pins
    pinned = {normalize_name(pin.split("==")[0]) for pin in pins}
    project = (ROOT / "pyproject.toml").read_text()
    lists = re.findall(
        r"^(?:dependencies|tabular|cluster|interop|dev) = \[(.*?)\]", project, re.M | re.S
    )
    required = {normalize_name(name) for each in lists for name in re.findall(r'"([\w.-]+)', each)}
    assert len(lists) == 5
    assert required <= pinned


def normalize_name(name):
    return re.sub(r"[-_.]+", "-", name).lower()
