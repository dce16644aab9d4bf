"""Scripts and options of jobs of SLURM."""

import re
import subprocess
from pathlib import Path

import pytest

from addnorm.comparison.engines.cell_options import CellOption
from addnorm.comparison.engines.slurm import SlurmEngine
from addnorm.comparison.engines.slurm_script import SlurmOptions
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import preview_jobs
from addnorm.core.errors import UserError
from tests.comparison.engines.test_engines import tiny


def scripts_of(jobs, **options):
    engine = SlurmEngine(options=SlurmOptions(**options), workers=3)
    return list(engine.preview_scripts(jobs, Path("/study")).values())


def test_cells_with_the_same_resources_are_one_array():
    jobs = preview_jobs(tiny(wiring="pre_ln,b2t", depth=[1, 2, 4]), Path("/study"))
    scripts = scripts_of(
        jobs,
        gpus_per_cell="0,depth=4:2,depth=2:1",
        time="1:00:00,depth=4:12:00:00",
        memory="8G,wiring=b2t:9G",
        partition="gpu",
        sbatch=("--account=lab", "-C a100"),
        setup=("module load cuda",),
    )
    assert len(scripts) == 6  # three depths by two memories
    assert all("#SBATCH --array=0-0%3" in script for script in scripts)
    by_gpus = {re.search(r"gpus-per-node=(\d)", s)[1] if "gpus-per" in s else "0" for s in scripts}
    assert by_gpus == {"0", "1", "2"}
    for script in scripts:
        assert ("torch.distributed.run" in script) == ("--gpus-per-node=2" in script)
        assert ("--time=12:00:00" in script) == ("--gpus-per-node=2" in script)
        assert "\nmodule load cuda\n" in script
        lines = [line for line in script.splitlines() if line.startswith("#SBATCH")]
        assert {"#SBATCH --account=lab", "#SBATCH -C a100", "#SBATCH --partition=gpu"} <= {*lines}
        # Directives after the first command are ignored by sbatch.
        assert script.startswith("#!/bin/bash\n" + "\n".join(lines) + "\n\n")


def test_script_is_valid_bash_and_quotes_paths():
    jobs = preview_jobs(tiny(), Path("/my study/100%"))
    engine = SlurmEngine()
    (script,) = engine.preview_scripts(jobs, Path("/my study/it's 100%")).values()
    assert '#SBATCH --output="/my study/it\'s 100%%/slurm/001/%a.log"' in script
    check = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert (check.returncode, check.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sbatch": ("account=lab",)}, "sbatch: expected an option of sbatch"),
        ({"sbatch": ("--array=0-3",)}, "which is set already"),
        ({"sbatch": ("-J name",)}, "which is set already"),
        ({"sbatch": ("--account=lab\nrm -r x",)}, "sbatch: expected an option of sbatch"),
        ({"setup": ("a\nb",)}, "setup: expected one line"),
        ({"partition": "a b"}, "partition: expected a value without spaces"),
        ({"time": "1:00:00\n"}, "time: expected a value without spaces"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        SlurmOptions(**options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("depth=4:2", "expected one value"),
        ("1,2", "expected one value"),
        ("", "expected one value"),
        ("1,width=4:2", "expected an axis of the comparison, such as depth, got 'width'"),
        ("two", "expected an integer of 0 or more, got 'two'"),
        ("-1", "expected an integer of 0 or more, got '-1'"),
    ],
)
def test_invalid_gpus_per_cell_is_rejected(text, message):
    with pytest.raises(UserError, match=message):
        scripts_of(preview_jobs(tiny(), Path("/study")), gpus_per_cell=text)


@pytest.mark.parametrize("text", ["4:59", "4", "0:04:59", "0-0:1", "00:00:30"])
def test_time_limit_in_which_no_cell_gets_anywhere_is_rejected(text):
    with pytest.raises(UserError, match="time: expected 5 minutes or more"):
        scripts_of(preview_jobs(tiny(), Path("/study")), time=f"1:00:00,depth=1:{text}")


@pytest.mark.parametrize("text", ["5", "5:00", "1:00:00", "1-0", "1-2:03", "0", "UNLIMITED"])
def test_time_limits_of_slurm_are_accepted(text):
    (script,) = scripts_of(preview_jobs(tiny(), Path("/study")), time=text)
    assert f"#SBATCH --time={text}\n" in script


@pytest.mark.parametrize("text", ["2h", "1:2:3:4", "noon", "-5"])
def test_text_that_is_no_time_limit_is_rejected(text):
    with pytest.raises(UserError, match="time: expected a time limit such as 4:00:00"):
        scripts_of(preview_jobs(tiny(), Path("/study")), time=text)


def test_threads_are_divided_between_the_processes_of_a_cell():
    (script,) = scripts_of(preview_jobs(tiny(), Path("/study")), gpus_per_cell=2)
    (line,) = [line for line in script.splitlines() if "OMP_NUM_THREADS" in line]
    for cpus, threads in (("SLURM_CPUS_PER_TASK=8", "4"), ("unset SLURM_CPUS_PER_TASK", "1")):
        command = f"{cpus}; {line}; echo $OMP_NUM_THREADS"
        assert subprocess.check_output(["bash", "-c", command], text=True).strip() == threads


def test_first_exception_that_fits_counts():
    option = CellOption.parse("memory", "1G, lr=1e-3:2G, depth=4:3G, wiring=pre_ln:4G")
    assert option.value_for({"depth": 4, "lr": 0.001, "wiring": "b2t"}) == "2G"
    assert option.value_for({"depth": 4, "lr": 0.002, "wiring": "pre_ln"}) == "3G"
    assert option.value_for({"depth": 2, "lr": 0.002, "wiring": "pre_ln"}) == "4G"
    assert option.value_for({"depth": 2, "lr": 0.002, "wiring": "b2t"}) == "1G"


def test_tables_train_in_one_process(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    spec = parse_comparison({"task": "table", "data": str(tmp_path / "t.csv"), "target": "b"})
    job = preview_jobs(spec, tmp_path)[0]
    with pytest.raises(UserError, match="expected 1 for task table"):
        SlurmOptions(gpus_per_cell=2).find_resources(job)
