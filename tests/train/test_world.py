"""What a process finds in its environment: group sizes, lost processes, hidden folders."""

import pytest
from torch import distributed

from addnorm.core.errors import UserError
from addnorm.train import distributed as training
from addnorm.train.distributed import World, init_distributed

GROUP = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.fixture
def environment(monkeypatch):
    """Return a function that sets the variables of torchrun; None removes one."""

    def set_variables(**changes):
        for name, value in (GROUP | changes).items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    return set_variables


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE: expected a whole number, got 'two'"),
        ({"RANK": "-1"}, "RANK: expected a whole number, got '-1'"),
        ({"RANK": "2"}, "RANK: expected less than WORLD_SIZE=2, got 2"),
        ({"RANK": None}, "WORLD_SIZE=2, but RANK is not set"),
        ({"MASTER_ADDR": None}, "WORLD_SIZE=2, but MASTER_ADDR is not set"),
    ],
)
def test_incomplete_group_is_refused(environment, changes, message):
    environment(**changes)
    expected = f"{message}.*; start the processes with torchrun"
    with pytest.raises(UserError, match=expected), init_distributed("cpu"):
        pass


@pytest.mark.parametrize("size", ["1", "3"])
def test_tensor_parallel_must_divide_the_number_of_processes(environment, size):
    environment(WORLD_SIZE=size, RANK="0")
    message = f"tensor_parallel: expected a divisor of the number of processes, {size}, got 2"
    with pytest.raises(UserError, match=message), init_distributed("cpu", 2):
        pass


@pytest.mark.parametrize(
    "error",
    [
        distributed.DistNetworkError("The client socket has timed out"),
        RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:81"),
    ],
)
def test_lost_process_is_reported_in_one_line(environment, monkeypatch, error):
    def fail(*arguments):
        raise error

    environment()
    monkeypatch.setattr(distributed, "init_process_group", fail)
    message = "process 1 of 2 lost the connection to another one .*rerun the same command"
    with pytest.raises(UserError, match=message), init_distributed("cpu"):
        pass


def test_other_errors_keep_their_traceback(environment, monkeypatch):
    environment()
    monkeypatch.setattr(distributed, "init_process_group", lambda *arguments: None)
    with pytest.raises(RuntimeError, match="shapes differ"), init_distributed("cpu"):
        raise RuntimeError("shapes differ")


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert training._local_rank(3) == 2
    with pytest.raises(UserError, match="--nproc_per_node: expected at most 2"):
        training._local_rank(2)


def test_folder_of_another_host_must_be_visible(monkeypatch, tmp_path):
    monkeypatch.setattr(training, "VISIBLE_SECONDS", 0.2)
    World().check_visible(tmp_path)
    with pytest.raises(UserError, match=r"process 0 does not see .*choose an -o that all hosts"):
        World().check_visible(tmp_path / "hidden" / ".lock")


def test_replicas_are_groups_of_neighboring_processes():
    worlds = [World(rank=rank, size=6, tensor_parallel=2) for rank in range(6)]
    assert [world.replica for world in worlds] == [0, 0, 1, 1, 2, 2]
    assert {world.replicas for world in worlds} == {3}
