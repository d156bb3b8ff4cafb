"""Sites out of network namespaces, and a link of its own between each pair.

    site 0 ══ pair 0-1 ══ site 1
       ╚═════ pair 0-2 ═══ site 2 ═══ pair 1-2 ═══ site 1

A link is a veth pair with `netem` (delay) over `tbf` (rate), or, where the kernel has no netem, two taps with
`tbf` joined by the relay of ../explore_testbed, which adds the delay. Every pair has addresses of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "explore_testbed"))

import buildings as emulation

PREFIX = emulation.PREFIX
MS_LINKS = ((0, 1), (0, 2), (1, 2))
"""Pairs in the order in which settings give their links."""
PairFigures = dict[tuple[int, int], tuple[float, float]]
"""Pair -> delay in seconds, bits a second."""


@dataclass(slots=True)
class Sites:
    """The built network; `set_links` changes every pair under running ranks."""

    count: int
    netem: bool
    relays: dict[tuple[int, int], subprocess.Popen[str]] = field(default_factory=dict)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Every pair once."""
        return list(combinations(range(self.count), 2))

    def address(self, site: int, other: int) -> str:
        """The address of a site on its link to another."""
        pair = (min(site, other), max(site, other))
        return f"10.214.{self.pairs.index(pair)}.{1 if site < other else 2}"

    def set_links(self, figures: PairFigures) -> None:
        """Delay and rate of every pair, each way."""
        for pair, (delay_seconds, bits_per_second) in figures.items():
            for site in pair:
                parent = ["root"]
                device = _device(pair)
                name = site_name(site)
                if self.netem:
                    delay = ["netem", "delay", f"{delay_seconds * 1e6:.0f}us", "limit", "100000"]
                    emulation._run(
                        *("tc", "-n", name, "qdisc", "replace", "dev", device, "root", "handle", "1:"), *delay
                    )
                    parent = ["parent", "1:"]
                rate = ["tbf", "rate", f"{bits_per_second:.0f}bit", "burst", str(emulation._BURST_BYTES)]
                rate += ["limit", str(emulation._QUEUE_BYTES)]
                emulation._run(
                    *("tc", "-n", name, "qdisc", "replace", "dev", device, *parent, "handle", "2:"), *rate
                )
            if pair in self.relays:
                emulation._tell(self.relays[pair], f"{delay_seconds:.9f}")


def site_name(site: int) -> str:
    """The namespace of a site."""
    return f"{PREFIX}-site{site}"


def _device(pair: tuple[int, int]) -> str:
    return f"wan{pair[0]}{pair[1]}"


@contextmanager
def built_sites(count: int) -> Iterator[Sites]:
    """Builds the network, and takes it down whatever happens inside."""
    emulation.remove_leftovers()
    sites = Sites(count, netem=emulation.has_netem())
    try:
        for site in range(count):
            emulation._run("ip", "netns", "add", site_name(site))
            emulation._set_system(site_name(site))
            emulation._run("ip", "-n", site_name(site), "link", "set", "lo", "up")
        for pair in sites.pairs:
            _lay(sites, pair)
        yield sites
    finally:
        for relay in sites.relays.values():
            relay.kill()
            relay.wait()
        emulation.remove_leftovers()


def _lay(sites: Sites, pair: tuple[int, int]) -> None:
    device = _device(pair)
    names = [site_name(site) for site in pair]
    if sites.netem:
        link = [device, "netns", names[0], "type", "veth", "peer", "name", device, "netns", names[1]]
        emulation._run("ip", "link", "add", *link)
    else:
        taps = [f"{PREFIX}-{pair[0]}{pair[1]}-{end}" for end in (0, 1)]
        command = [sys.executable, str(Path(emulation.__file__).with_name("relay.py")), *taps]
        sites.relays[pair] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        emulation._await_ready(sites.relays[pair])
        for name, tap in zip(names, taps, strict=True):
            emulation._run("ip", "link", "set", tap, "netns", name)
            emulation._run("ip", "-n", name, "link", "set", tap, "name", device)
    for site, other in (pair, pair[::-1]):
        name = site_name(site)
        queue = ["mtu", str(emulation.MTU), "txqueuelen", str(emulation._QUEUE_FRAMES)]
        emulation._run("ip", "-n", name, "link", "set", "dev", device, *queue, "up")
        emulation._run("ip", "-n", name, "address", "add", f"{sites.address(site, other)}/24", "dev", device)
