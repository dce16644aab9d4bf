"""Several hosts on one machine: network namespaces that are joined by a bridge.

Each host has its own interfaces, routes and ports, and reaches the others only through `eth0`. All
hosts share the file system, as the nodes of a cluster do. Making them requires root.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NETWORK = "10.77.0"
"""Addresses inside the namespaces; they are not visible outside."""
PORT = 29500


@dataclass(frozen=True)
class Host:
    """One network namespace."""

    name: str
    address: str

    def torchrun(self, *arguments: str, options: tuple[str, ...], log: Path) -> subprocess.Popen:
        """Start torchrun on the host; its output goes to a file."""
        command = [
            *("ip", "netns", "exec", self.name),
            *(sys.executable, "-m", "torch.distributed.run", *options),
            *("--local-addr", self.address),
            *arguments,
        ]
        environment = {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
            # Otherwise a host that returns waits for an address that rank 0 does not send again
            # (pytorch/pytorch issue 135712).
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        with log.open("ab") as file:
            return subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | environment)

    def list_processes(self) -> list[int]:
        """Return the ids of the processes on the host."""
        return [int(line) for line in _run("ip", "netns", "pids", self.name).split()]

    def kill_processes(self) -> None:
        """Kill all processes of the host; the kernel closes their connections."""
        for process in self.list_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def power_off(self) -> None:
        """Take the host off the network, then kill its processes: nobody is told."""
        _run("ip", "-n", self.name, "link", "set", "eth0", "down")
        self.kill_processes()

    def power_on(self) -> None:
        """Connect the host to the network again."""
        _run("ip", "-n", self.name, "link", "set", "eth0", "up")

    def limit_rate(self, rate: str) -> None:
        """Limit what the host can send, such as to `2mbit`."""
        shape = f"qdisc replace dev eth0 root tbf rate {rate} burst 16kbit latency 200ms"
        _run("tc", "-n", self.name, *shape.split())


@contextmanager
def make_hosts(count: int) -> Iterator[list[Host]]:
    """Create hosts that reach each other; remove them and their processes at the end."""
    prefix = f"addnorm-{os.getpid()}"
    switch = f"{prefix}-switch"
    hosts = [Host(f"{prefix}-{n}", f"{NETWORK}.{n}") for n in range(1, count + 1)]
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for number, host in enumerate(hosts):
            port = f"port{number}"
            _run("ip", "netns", "add", host.name)
            pair = f"link add {port} netns {switch} type veth peer name eth0 netns {host.name}"
            _run("ip", *pair.split())
            _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            for interface in ("lo", "eth0"):
                _run("ip", "-n", host.name, "link", "set", interface, "up")
        yield hosts
    finally:
        for name in [host.name for host in hosts] + [switch]:
            pids = subprocess.run(
                ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
            )
            for process in map(int, pids.stdout.split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@cache
def why_no_hosts() -> str:
    """Return why this machine cannot make hosts; an empty string if it can."""
    if not shutil.which("ip"):
        return "requires the command ip (iproute2)"
    try:
        with make_hosts(1) as (host,):
            _run("ip", "netns", "exec", host.name, "true")
    except subprocess.CalledProcessError as error:
        return f"cannot make network namespaces: {error.stderr.strip()}"
    return ""


@cache
def why_no_rate_limits() -> str:
    """Return why the network of a host cannot be slowed down; an empty string if it can."""
    if not shutil.which("tc"):
        return "requires the command tc (iproute2)"
    try:
        with make_hosts(1) as (host,):
            host.limit_rate("1mbit")
    except subprocess.CalledProcessError as error:
        return f"the kernel has no token bucket filter: {error.stderr.strip()}"
    return ""


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
