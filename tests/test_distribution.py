"""The wheel and the source distribution: their contents, and what they do once installed.

The packages are built from a copy of the tracked files and installed into empty environments, which
see the dependencies of the test environment but not its editable installation.
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest

from tests.source_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="needs a shell")]
pytest.importorskip("build", reason="builds need the package `build`")


def run(*command, **variables):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(each) for each in command],
        capture_output=True,
        text=True,
        env=environment | variables,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_distributions(source, folder, *options, **variables):
    arguments = ("--no-isolation", *options, "--outdir", folder, source)
    run(sys.executable, "-m", "build", *arguments, **variables)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the tracked files, as a release is built from."""
    copy = tmp_path_factory.mktemp("source")
    archive = copy / "source.tar"
    # The index, not HEAD: a file that is about to be committed belongs to the release.
    tree = run("git", "-C", ROOT, "write-tree").strip()
    run("git", "-C", ROOT, "archive", "--output", archive, tree)
    run("tar", "-xf", archive, "-C", copy)
    archive.unlink()
    return copy


@pytest.fixture(scope="module")
def distributions(source, tmp_path_factory):
    return build_distributions(source, tmp_path_factory.mktemp("dist"))


def install(package, folder, **variables):
    """Install a package into an empty environment; return the path of its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)  # it would bring an old setuptools
    python = folder / "bin" / "python"
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # A path in a .pth file comes after the environment's own packages, and .pth files that lie in
    # it, such as the one of an editable installation, are not read.
    with open(f"{own}/dependencies.pth", "w") as file:
        file.write(sysconfig.get_path("purelib") + "\n")
    options = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, package, **variables)
    return python


def find_package_folder(python):
    return run(python, "-I", "-c", "import addnorm; print(addnorm.__path__[0])").strip()


def test_wheel_contains_the_package_and_nothing_else(distributions):
    (wheel,) = distributions.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"addnorm"}
    for expected in ("py.typed", "cli/index.json", "doctor/signatures.json"):
        assert f"addnorm/{expected}" in names
    templates = {path.name for path in ROOT.glob("src/addnorm/report/templates/*")}
    assert templates == {name.split("/")[-1] for name in names if "/templates/" in name}
    modules = {str(path.relative_to(ROOT / "src")) for path in ROOT.glob("src/**/*.py")}
    assert modules <= set(names)


def test_source_distribution_builds_the_native_library(distributions):
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    native = {str(path.relative_to(ROOT)) for path in ROOT.glob("native/*/*.[ch]")}
    assert native <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs", "tools"))]


def test_wheel_works_in_a_clean_environment(distributions, tmp_path):
    (wheel,) = distributions.glob("*.whl")
    python = install(wheel, tmp_path / "env")
    assert find_package_folder(python).startswith(str(tmp_path))
    output = run(tmp_path / "env" / "bin" / "addnorm", "selftest")
    assert "failed" not in output.replace("0 failed", "")


def test_source_distribution_installs_without_a_compiler(distributions, tmp_path):
    (archive,) = distributions.glob("*.tar.gz")
    python = install(archive, tmp_path / "env", CC="false", CXX="false")
    script = (
        "from addnorm.kernels.library import get_availability as a; print(bool(a()), a().reason)"
    )
    assert run(python, "-I", "-c", script).startswith("False")
    run(tmp_path / "env" / "bin" / "addnorm", "list", "norms")


def test_wheel_without_native_code_serves_every_platform(source, tmp_path):
    variables = {"ADDNORM_BUILD_NATIVE": "off"}
    folder = build_distributions(source, tmp_path / "dist", "--wheel", **variables)
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_package_imports_without_optional_packages(distributions, tmp_path):
    """What the extras bring is imported late, so that the base installation is enough."""
    (wheel,) = distributions.glob("*.whl")
    python = install(wheel, tmp_path / "env")
    optional = (
        "sklearn pandas pyarrow polars transformers ray onnx onnxruntime onnxscript ctranslate2"
        " lightning accelerate peft wandb mlflow tensorboard optuna liger_kernel lightgbm shap"
    )
    script = f"""
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {optional.split()!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
import addnorm, torch
addnorm.Stack([torch.nn.Linear(8, 8) for _ in range(4)], dim=8, wiring="b2t")
model = addnorm.build("gpt2", vocab=16, dim=16, depth=2, heads=2)
print(addnorm.doctor(model, torch.zeros(1, 4, dtype=torch.long)).blocks)
"""
    assert run(python, "-I", "-c", script)
