"""Ray nodes in network namespaces of this machine: their traffic crosses a virtual Ethernet link.

A host has its own addresses, /tmp and shared memory, but the cores and clock of this machine.
Making one needs root and the programs `ip`, `tc` and `unshare` of Linux.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import ray

from benchmarks.measure import REPOSITORY_ROOT

BRIDGE = "lookbridge"
NETWORK = "10.77.0"  # /24; this process has .1
OBJECT_STORE_BYTES = 200_000_000


def run_ip(command: str) -> None:
    """Run `ip`, and show its message if it fails."""
    subprocess.run(["ip", *command.split()], check=True)


class NetworkHost:
    """A network namespace with a Ray node, connected to the bridge of this process."""

    def __init__(self, number: int, cores: int, delay: float) -> None:
        self.name, self.link = f"lookhost{number}", f"looklink{number}"
        self.address, self.cores = f"{NETWORK}.{10 + number}", cores
        self.cable: subprocess.Popen[bytes] | None = None  # the process of a delayed link
        run_ip(f"netns add {self.name}")
        self._connect(delay)
        run_ip(f"link set {self.link} master {BRIDGE} up")
        run_ip(f"-n {self.name} addr add {self.address}/24 dev eth0")
        run_ip(f"-n {self.name} link set eth0 up")
        run_ip(f"-n {self.name} link set lo up")

    def _connect(self, delay: float) -> None:
        """Make the two ends of the link: `self.link` here, eth0 in the namespace."""
        if not delay:
            run_ip(f"link add {self.link} type veth peer name eth0 netns {self.name}")
            return
        ends = [self.link, f"{self.link}far"]
        command = [sys.executable, "-m", "benchmarks.delayed_link", *ends, str(delay)]
        self.cable = subprocess.Popen(command, cwd=REPOSITORY_ROOT)
        while not all(Path(f"/sys/class/net/{end}").exists() for end in ends):
            if self.cable.poll() is not None:
                sys.exit("a delayed link needs TAP devices")
            time.sleep(0.1)
        run_ip(f"link set {ends[1]} netns {self.name} name eth0")

    def start_ray(self, head: str) -> None:
        """Join the cluster of a head; the node starts again when it ends, as a service does."""
        program = str(Path(sys.executable).parent / "ray")
        join = (
            f"{program} start --address {head} --node-ip-address {self.address} --block"
            f" --num-cpus {self.cores} --object-store-memory {OBJECT_STORE_BYTES}"
        )
        mounts = "mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /dev/shm"
        script = f"{mounts} && while true; do {join}; sleep 1; done"
        subprocess.Popen(
            ["ip", "netns", "exec", self.name, "unshare", "--mount", "sh", "-c", script],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY_ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def list_processes(self) -> list[int]:
        """The processes in the namespace."""
        command = ["ip", "netns", "pids", self.name]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [int(pid) for pid in output.split()]

    def kill_processes(self) -> None:
        """End everything in the namespace at once, as a power failure does."""
        while pids := self.list_processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def limit_rate(self, megabits: int) -> None:
        """Limit both directions of the link."""
        limit = f"root tbf rate {megabits}mbit burst 256kb latency 50ms".split()
        for prefix, device in (([], self.link), (["-n", self.name], "eth0")):
            subprocess.run(["tc", *prefix, "qdisc", "replace", "dev", device, *limit], check=True)

    def set_link(self, is_up: bool) -> None:
        """Cut the link, or restore it."""
        run_ip(f"link set {self.link} {'up' if is_up else 'down'}")

    def count_bytes(self) -> tuple[int, int]:
        """Bytes that this host has sent and received."""
        folder = Path(f"/sys/class/net/{self.link}/statistics")
        sent, received = (int((folder / f"{way}_bytes").read_text()) for way in ("rx", "tx"))
        return sent, received

    def close(self) -> None:
        """End the processes and remove the namespace with its link."""
        self.kill_processes()
        if self.cable:
            self.cable.kill()
            self.cable.wait()
        run_ip(f"netns del {self.name}")


@contextlib.contextmanager
def open_hosts(cores: list[int], delay: float) -> Iterator[list[NetworkHost]]:
    """A Ray head without cores in this process, and a host for each number of cores.

    `delay` is in seconds, in each direction of each link.
    """
    check_permissions()
    run_ip(f"link add {BRIDGE} type bridge")
    with contextlib.ExitStack() as stack:
        stack.callback(run_ip, f"link del {BRIDGE}")
        run_ip(f"addr add {NETWORK}.1/24 dev {BRIDGE}")
        run_ip(f"link set {BRIDGE} up")
        ray.init(
            address="local",
            num_cpus=0,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address=f"{NETWORK}.1",
        )
        stack.callback(ray.shutdown)
        head = ray.get_runtime_context().gcs_address
        hosts = []
        for number, count in enumerate(cores):
            hosts.append(NetworkHost(number, count, delay))
            stack.callback(hosts[-1].close)
            hosts[-1].start_ray(head)
        yield hosts


def restart_with_token(module: str) -> None:
    """Start this program again if it has no token: Ray reads its settings when it is imported."""
    if os.environ.get("RAY_AUTH_MODE") == "token":
        return
    added = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
    }
    os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | added)


def check_permissions() -> None:
    """Stop with a reason if namespaces cannot be made here."""
    missing = [name for name in ("ip", "tc", "unshare") if not shutil.which(name)]
    if os.geteuid() or missing:
        sys.exit(f"network namespaces need root and ip, tc, unshare; missing: {missing or 'root'}")
