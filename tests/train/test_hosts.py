"""Training on several hosts, which are network namespaces of this machine."""

import time
from contextlib import ExitStack

import pytest

from addnorm.train.trainer import train
from tests.train.cases import digest, make_recipe, write_number_corpus
from tests.train.hosts import PORT, make_hosts, why_no_hosts, why_no_rate_limits
from tests.train.test_distributed import build_command, read_losses

RENDEZVOUS = "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=3"
"""Hosts that are gone are forgotten after 3 seconds; the default is 15."""
LIMIT_SECONDS = 1200
"""For a loaded machine; a run takes half a minute on a free one, most of it imports."""
LONG = {"steps": 80, "save_every": 8, "valid_every": 40, "monitor_every": 0}
"""A run that is not yet over when a host dies after the second checkpoint."""

needs_hosts = [
    pytest.mark.slow,
    pytest.mark.timeout(4 * LIMIT_SECONDS),  # a test waits for up to four runs
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts()),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_number_corpus(tmp_path_factory.mktemp("corpus"), count=200).folder


class Cluster:
    """Hosts on which the same run is started, and their logs."""

    def __init__(self, hosts, folder, *, nodes):
        self.hosts, self.folder = hosts, folder
        self.nodes = nodes
        self.agents = []

    def log(self, index):
        return self.folder / f"host-{index}.log"

    def start(self, recipe, out, index, *, changes=()):
        """Start torchrun on a host; the first host keeps the rendezvous."""
        options = (
            *("--nnodes", self.nodes, "--nproc_per_node", "1", "--max-restarts", "3"),
            *("--rdzv_backend", "c10d", "--rdzv_id", out.name),
            *("--rdzv_endpoint", f"{self.hosts[0].address}:{PORT}"),
            *("--rdzv_conf", f"is_host={int(index == 0)},{RENDEZVOUS}"),
        )
        arguments = build_command(recipe, out)[1:] + list(changes)
        agent = self.hosts[index].torchrun(*arguments, options=options, log=self.log(index))
        self.agents.append(agent)
        return agent

    def wait_for(self, path, agent):
        limit = time.monotonic() + LIMIT_SECONDS
        while not path.exists():
            assert time.monotonic() < limit, f"{path} was not written"
            assert agent.poll() is None, self.read_logs()
            time.sleep(0.01)

    def finish(self, *agents):
        for agent in agents:
            assert agent.wait(LIMIT_SECONDS) == 0, self.read_logs()

    def read_logs(self):
        paths = [self.log(index) for index in range(len(self.hosts))]
        return "\n".join(path.read_text() for path in paths if path.exists())


@pytest.fixture
def start_cluster(tmp_path):
    """Return a function that makes hosts; they are removed after the test."""
    with ExitStack() as stack:
        yield lambda count, nodes: Cluster(
            stack.enter_context(make_hosts(count)), tmp_path, nodes=nodes
        )


def run_on_hosts(cluster, recipe, out):
    cluster.finish(*(cluster.start(recipe, out, index) for index in range(len(cluster.hosts))))


def assert_equal_losses(run, expected):
    for split in ("train", "valid"):
        assert read_losses(run, split) == pytest.approx(read_losses(expected, split), rel=1e-5)


class TestHosts:
    pytestmark = needs_hosts

    @pytest.mark.parametrize(("parallel", "count"), [("ddp", 2), ("fsdp", 2), ("ddp", 3)])
    def test_hosts_reproduce_losses_of_one_process(
        self, data, tmp_path, start_cluster, parallel, count
    ):
        recipe = make_recipe(
            data, steps=6, dropout=0.0, batch_tokens=200, monitor_every=0, parallel=parallel
        )
        train(recipe, tmp_path / "one")
        cluster = start_cluster(count, str(count))
        run_on_hosts(cluster, recipe, tmp_path / "many")
        assert f"{count} processes ({parallel})" in cluster.read_logs()
        assert_equal_losses(tmp_path / "many", tmp_path / "one")

    @pytest.mark.skipif(bool(why_no_rate_limits()), reason=why_no_rate_limits())
    def test_slow_network_does_not_change_a_bit(self, data, tmp_path, start_cluster):
        recipe = make_recipe(data, steps=4, dropout=0.1, monitor_every=0, parallel="fsdp")
        cluster = start_cluster(2, "2")
        run_on_hosts(cluster, recipe, tmp_path / "fast")
        for host in cluster.hosts:
            host.limit_rate("2mbit")
        run_on_hosts(cluster, recipe, tmp_path / "slow")
        assert digest(tmp_path / "slow") == digest(tmp_path / "fast")

    @pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
    def test_host_that_dies_and_returns_leaves_the_same_bits(
        self, data, tmp_path, start_cluster, parallel
    ):
        recipe = make_recipe(data, dropout=0.1, parallel=parallel, **LONG)
        cluster = start_cluster(2, "2")
        run_on_hosts(cluster, recipe, tmp_path / "whole")
        out = tmp_path / "run"
        first, second = (cluster.start(recipe, out, index) for index in range(2))
        cluster.wait_for(out / "checkpoints" / "step-16", first)
        cluster.hosts[1].power_off()
        second.wait()
        assert not (out / "report.html").exists()
        cluster.hosts[1].power_on()
        cluster.finish(first, cluster.start(recipe, out, 1))
        assert digest(out) == digest(tmp_path / "whole")
        assert read_losses(out) == read_losses(tmp_path / "whole")

    def test_remaining_host_ends_the_run(self, data, tmp_path, start_cluster):
        recipe = make_recipe(data, dropout=0.0, **LONG)
        train(recipe, tmp_path / "one")
        cluster = start_cluster(2, "1:2")
        out = tmp_path / "run"
        first, second = (cluster.start(recipe, out, index) for index in range(2))
        cluster.wait_for(out / "checkpoints" / "step-16", first)
        assert "2 processes (ddp)" in cluster.read_logs()
        cluster.hosts[1].kill_processes()
        second.wait()
        assert not (out / "report.html").exists()
        cluster.finish(first)
        logs = cluster.read_logs()
        assert "process 0 of 2 lost the connection to another one" in logs
        assert_equal_losses(out, tmp_path / "one")

    def test_other_recipe_on_another_host_is_refused(self, data, tmp_path, start_cluster):
        recipe = make_recipe(data)
        cluster = start_cluster(2, "2")
        agents = [
            cluster.start(recipe, tmp_path / "run", index, changes=["dim=32"] * index)
            for index in range(2)
        ]
        assert [agent.wait(LIMIT_SECONDS) for agent in agents] == [1, 1]
        expected = "addnorm: dim: expected 16, as in process 0, got 32 in process 1"
        assert expected in cluster.log(1).read_text()
        assert "addnorm: another process has other settings" in cluster.log(0).read_text()
