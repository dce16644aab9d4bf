"""A real Ray on this machine gives the rows that local processes give."""

import pytest

from addnorm.comparison.engines.local import LocalEngine
from addnorm.comparison.run import run_comparison
from addnorm.core.errors import UserError
from tests.comparison.engines.test_engines import rows_of, tiny

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray", reason="the package ray is not installed")


@pytest.fixture(scope="module")
def cluster():
    """A cluster of this machine, started as a user would, and stopped."""
    import subprocess
    import sys
    from pathlib import Path

    command = str(Path(sys.executable).parent / "ray")
    head = "start --head --num-cpus=2 --port=6399 --include-dashboard=false --disable-usage-stats"
    subprocess.run([command, *head.split()], check=True, capture_output=True)
    yield "127.0.0.1:6399"
    ray.shutdown()
    subprocess.run([command, "stop", "--force"], check=True, capture_output=True)


@pytest.mark.filterwarnings("ignore")
def test_rows_are_equal_bit_by_bit_also_where_no_folder_is_shared(cluster, tmp_path, monkeypatch):
    from addnorm.comparison.engines.ray import RayEngine

    spec = tiny(wiring="pre_ln,b2t", steps=6)
    local = run_comparison(spec, tmp_path / "local", engine=LocalEngine(workers=1))
    engine = RayEngine(workers=2, address=cluster)
    shared = run_comparison(spec, tmp_path / "shared", engine=engine)
    # A mark that no node sees: as if the folder were on another machine.
    monkeypatch.setattr("pathlib.Path.touch", lambda self, *args, **kwargs: None)
    apart = run_comparison(spec, tmp_path / "apart", engine=engine)
    wanted = rows_of(tmp_path / "local")
    assert len(wanted) == 2
    assert rows_of(tmp_path / "shared") == rows_of(tmp_path / "apart") == wanted
    for study in (shared, apart):
        assert [each.end.loss for each in study.cells] == [each.end.loss for each in local.cells]
        assert [each.end.samples for each in study.cells] == [e.end.samples for e in local.cells]


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_does_not_answer_is_told_in_words():
    from addnorm.comparison.engines.ray import RayEngine

    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(UserError, match=r"no Ray cluster answers at 127\.0\.0\.1:1"):
        RayEngine(address="127.0.0.1:1")
