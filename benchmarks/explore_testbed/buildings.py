"""Two buildings out of network namespaces, and one long link between them.

    rank 0 ─ eth0 ┐                                                    ┌ eth0 ─ rank 2
                  ├ bridge (building 0) ─ wan0 ══ long link ══ wan1 ─ bridge (building 1) ┤
    rank 1 ─ eth0 ┘                                                    └ eth0 ─ rank 3

Each rank and each building is a namespace. Inside a building a rank has a veth pair to the bridge. The long
link is a veth pair with `netem` (delay) over `tbf` (rate), or, where the kernel has no netem, two taps with
`tbf` joined by relay.py, which adds the delay. Nothing leaves the machine: no namespace has a way out.
Everything is named with one prefix; what a killed run left behind is removed at the start of the next.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from megalith.core.errors import ConfigError

PREFIX = "mltb"
# Jumbo frames, as between machines of one operator: few packets, so that links cost little processor time.
MTU = 9000
# No loss in the queue of the link: it takes whatever the windows of all flows together allow.
_QUEUE_BYTES = 256 << 20
# Two frames: a bucket that holds more lets short messages through faster than the rate.
_BURST_BYTES = 2 * (MTU + 100)
_QUEUE_FRAMES = 100_000
# Hosts as they are tuned for long fat links: windows that hold the link's bandwidth times its delay, and no
# new slow start after a pause. Reno, because it lets a window grow as long as nothing is lost.
_SYSCTL = {
    "net/ipv4/tcp_congestion_control": "reno",
    "net/ipv4/tcp_slow_start_after_idle": "0",
    "net/ipv4/tcp_rmem": "4096 8388608 67108864",
    "net/ipv4/tcp_wmem": "4096 4194304 67108864",
    "net/ipv4/tcp_no_metrics_save": "1",
    "net/ipv6/conf/all/disable_ipv6": "1",
}


def missing() -> str | None:
    """Why the buildings cannot be built here, with the fix; None when they can."""
    if os.geteuid() != 0:
        return "The testbed needs root to make network namespaces; run it as root (sudo make testbed)."
    absent = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if absent:
        return f"The testbed needs {' and '.join(absent)}; install iproute2 (apt-get install -y iproute2)."
    probe = f"{PREFIX}-probe"
    made = _try("ip", "netns", "add", probe)
    _try("ip", "netns", "del", probe)
    if not made:
        return "This system refuses new network namespaces; run the testbed outside a confined container."
    if not has_netem() and not Path("/dev/net/tun").exists():
        return "This kernel has neither netem nor /dev/net/tun; load one of them (modprobe sch_netem)."
    return None


def has_netem() -> bool:
    """Whether the kernel knows `netem`, tried on the loopback of a namespace of its own."""
    probe = f"{PREFIX}-netem"
    _try("ip", "netns", "add", probe)
    known = _try("tc", "-n", probe, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    _try("ip", "netns", "del", probe)
    return known


@dataclass(slots=True)
class Buildings:
    """The built network; `set_link` changes the long link under running ranks."""

    ranks_per_building: int
    netem: bool
    relay: subprocess.Popen[str] | None = field(default=None)

    @property
    def ranks(self) -> int:
        """Ranks of both buildings."""
        return 2 * self.ranks_per_building

    @property
    def kind(self) -> str:
        """How the long link is emulated, in words."""
        return (
            "netem delay, tbf rate" if self.netem else "user-space delay (no netem in this kernel), tbf rate"
        )

    def command_in_rank(self, rank: int, command: Sequence[str]) -> list[str]:
        """`command` so that it runs where that rank lives."""
        return ["ip", "netns", "exec", _rank_name(rank), *command]

    def set_link(self, *, delay_seconds: float, bits_per_second: float) -> None:
        """Delay each way and rate each way."""
        for building in (0, 1):
            name, device = _building_name(building), f"wan{building}"
            parent = ["root"]
            if self.netem:
                delay = ["netem", "delay", f"{delay_seconds * 1e6:.0f}us", "limit", str(_QUEUE_FRAMES)]
                _run("tc", "-n", name, "qdisc", "replace", "dev", device, "root", "handle", "1:", *delay)
                parent = ["parent", "1:"]
            rate = ["tbf", "rate", f"{bits_per_second:.0f}bit", "burst", str(_BURST_BYTES)]
            rate += ["limit", str(_QUEUE_BYTES)]
            _run("tc", "-n", name, "qdisc", "replace", "dev", device, *parent, "handle", "2:", *rate)
        if self.relay is not None:
            _tell(self.relay, f"{delay_seconds:.9f}")


@contextmanager
def two_buildings(ranks_per_building: int) -> Iterator[Buildings]:
    """Builds the network, and takes it down whatever happens inside."""
    if (reason := missing()) is not None:
        raise ConfigError(reason)
    remove_leftovers()
    buildings = Buildings(ranks_per_building, netem=has_netem())
    try:
        _build(buildings)
        yield buildings
    finally:
        if buildings.relay is not None:
            buildings.relay.kill()
            buildings.relay.wait()
        remove_leftovers()


def remove_leftovers() -> None:
    """Every namespace with our prefix, with all that is inside; devices go with their namespace."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        if line.startswith(f"{PREFIX}-"):
            _try("ip", "netns", "del", line.split()[0])


def _build(buildings: Buildings) -> None:
    for building in (0, 1):
        name = _building_name(building)
        _run("ip", "netns", "add", name)
        _set_system(name)
        _run("ip", "-n", name, "link", "add", "bridge", "mtu", str(MTU), "type", "bridge")
        _run("ip", "-n", name, "link", "set", "bridge", "up")
    _lay_long_link(buildings)
    for rank in range(buildings.ranks):
        name, home = _rank_name(rank), _building_name(rank // buildings.ranks_per_building)
        _run("ip", "netns", "add", name)
        _set_system(name)
        pair = ["eth0", "netns", name, "mtu", str(MTU), "type", "veth", "peer", "name", f"rank{rank}"]
        _run("ip", "link", "add", *pair, "netns", home, "mtu", str(MTU))
        _run("ip", "-n", home, "link", "set", f"rank{rank}", "master", "bridge", "up")
        _run("ip", "-n", name, "address", "add", f"10.213.0.{rank + 1}/24", "dev", "eth0")
        _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", name, "link", "set", "eth0", "up")


def _lay_long_link(buildings: Buildings) -> None:
    first, second = _building_name(0), _building_name(1)
    if buildings.netem:
        pair = ["wan0", "netns", first, "type", "veth", "peer", "name", "wan1", "netns", second]
        _run("ip", "link", "add", *pair)
    else:
        taps = [f"{PREFIX}-wan{building}" for building in (0, 1)]
        command = [sys.executable, str(Path(__file__).with_name("relay.py")), *taps]
        buildings.relay = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        _await_ready(buildings.relay)
        for building, tap in enumerate(taps):
            _run("ip", "link", "set", tap, "netns", _building_name(building))
            _run("ip", "-n", _building_name(building), "link", "set", tap, "name", f"wan{building}")
    for building in (0, 1):
        queue = ["mtu", str(MTU), "txqueuelen", str(_QUEUE_FRAMES)]
        device = ["dev", f"wan{building}", *queue, "master", "bridge", "up"]
        _run("ip", "-n", _building_name(building), "link", "set", *device)


def _set_system(namespace: str) -> None:
    script = "; ".join(f"echo '{value}' > /proc/sys/{key}" for key, value in _SYSCTL.items())
    _run("ip", "netns", "exec", namespace, "sh", "-c", script)


def _tell(relay: subprocess.Popen[str], line: str) -> None:
    assert relay.stdin is not None
    with suppress(BrokenPipeError):
        relay.stdin.write(line + "\n")
        relay.stdin.flush()
    _await_ready(relay)


def _await_ready(relay: subprocess.Popen[str]) -> None:
    assert relay.stdout is not None
    if relay.stdout.readline().strip() != "ready":
        raise ConfigError("The long link did not come up; see the lines above and run the testbed again.")


def _rank_name(rank: int) -> str:
    return f"{PREFIX}-rank{rank}"


def _building_name(building: int) -> str:
    return f"{PREFIX}-building{building}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"`{' '.join(command)}` failed with: {done.stderr.strip()}; run the testbed as root."
        )


def _try(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
