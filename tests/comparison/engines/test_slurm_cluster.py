"""The SLURM engine on a real cluster of one node: Debian's slurm-wlm and munge, started here."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from addnorm.comparison.engines import slurm_queue as queue
from addnorm.comparison.engines.local import LocalEngine
from addnorm.comparison.run import run_comparison
from tests.comparison.engines.test_engines import Hook, rows_of, tiny
from tests.comparison.engines.test_slurm import SignalOnce, make_engine

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or any(shutil.which(name) is None for name in COMMANDS),
        reason="requires slurm-wlm and munge, and root to start them",
    ),
]
START_TIMEOUT_SECONDS = 120
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=60
MpiDefault=none
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=2000 Gres=gpu:2 State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def free_port():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


@pytest.fixture(scope="module")
def cluster():
    """Start munged, slurmctld and slurmd; the commands find them by `SLURM_CONF`."""
    folder = Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))  # socket paths must be short
    for name in ("state", "spool"):
        (folder / name).mkdir()
    folder.chmod(0o755)  # as munged demands
    host = socket.gethostname().partition(".")[0]
    ports = {"controller_port": free_port(), "node_port": free_port()}
    (folder / "slurm.conf").write_text(CONFIG.format(host=host, folder=folder, **ports))
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    files = {"key": "munge.key", "pid": "munged.pid", "log": "munged.log", "seed": "munge.seed"}
    options = [f"--{name}-file={folder / file}" for name, file in files.items()]
    previous = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    try:
        run("munged", "--force", f"--socket={folder / 'munge.socket'}", *options)
        run("slurmctld", "-i")
        run("slurmd")
        wait_for(lambda: "idle" in run("sinfo", "--noheader", "--format=%T"))
        yield folder
    finally:
        for name in ("slurmd", "slurmctld", "munged"):
            if (folder / f"{name}.pid").exists():
                os.kill(int((folder / f"{name}.pid").read_text()), signal.SIGTERM)
        os.environ.pop("SLURM_CONF")
        if previous is not None:
            os.environ["SLURM_CONF"] = previous


def run(*command):
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return result.stdout


def wait_for(condition):
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "SLURM did not start"
        time.sleep(0.5)


def test_cluster_reproduces_local_rows(cluster, tmp_path):
    spec = tiny(wiring="pre_ln,b2t", steps=6)
    run_comparison(spec, tmp_path / "local", engine=LocalEngine(workers=1))
    options = {"time": "10:00,depth=1:20:00", "memory": "500M", "partition": "debug"}
    engine = make_engine(workers=1, options=options | {"sbatch": ("--comment=test",)})
    study = run_comparison(spec, tmp_path / "a study", engine=engine)
    assert [each.end.ending for each in study.cells] == ["done", "done"], study.cells
    assert rows_of(tmp_path / "a study") == rows_of(tmp_path / "local")


class RequeueAtOnce(SignalOnce):
    """Callback that requeues a cell; SLURM would let it wait for two minutes."""

    def on_cell_event(self, event):
        before = len(self.tasks)
        super().on_cell_event(event)
        if len(self.tasks) > before:
            (task,) = queue.read_queue()
            wait_for(lambda: queue.read_queue().get(task, ("", ""))[1] == "PENDING")
            run("scontrol", "update", f"JobId={task}", "StartTime=now")


def test_requeued_cell_resumes_and_interruption_cancels(cluster, tmp_path):
    spec = tiny(steps=3000, save_every=10_000)  # still running when it is stopped
    run_comparison(spec, tmp_path / "local", engine=LocalEngine(workers=1))
    stop = Hook(lambda event: os.kill(os.getpid(), signal.SIGTERM))
    study = run_comparison(spec, tmp_path / "slurm", engine=make_engine(), callback=stop)
    assert study.interrupted and study.cells[0].end is None
    assert not queue.read_queue()
    requeue = RequeueAtOnce("scontrol", "requeue", step=30)
    requeue.find_task = lambda event: str(next(iter(queue.read_queue())))
    study = run_comparison(spec, tmp_path / "slurm", engine=make_engine(), callback=requeue)
    assert [each.end.ending for each in study.cells] == ["done"]
    (rows,) = rows_of(tmp_path / "slurm").values()
    (expected,) = rows_of(tmp_path / "local").values()
    pauses = [row for row in rows if row.get("ending") == "interrupted"]
    assert len(pauses) == 2 and all(row["step"] > 0 for row in pauses)
    assert [row for row in rows if row not in pauses] == expected


def test_cell_with_two_gpus(cluster, tmp_path):
    engine = make_engine(options={"gpus_per_cell": "0,depth=1:2"})
    study = run_comparison(tiny(steps=6, task="lm", device="cpu"), tmp_path, engine=engine)
    assert [each.end.ending for each in study.cells] == ["done"], study.cells
    assert "--gpus-per-node=2" in (tmp_path / "slurm" / "001" / "job.sh").read_text()


def test_canceled_job_is_a_crash(cluster, tmp_path):
    cancel = SignalOnce("scancel", step=1)
    cancel.find_task = lambda event: str(next(iter(queue.read_queue())))
    study = run_comparison(tiny(steps=2000), tmp_path, engine=make_engine(), callback=cancel)
    assert study.cells[0].state == "crashed"
    assert "CANCELLED" in study.cells[0].end.why
