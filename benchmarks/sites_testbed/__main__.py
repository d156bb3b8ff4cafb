"""Real steps over three emulated sites whose links all differ, and what the Explorer predicts for them.

    sudo .venv/bin/python benchmarks/sites_testbed --out benchmarks/results/sites-testbed.json

Settings that the file already has are not run again; --fresh runs all of them. README.md says what it shows.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from links import MS_LINKS, Sites, built_sites, emulation, site_name
from predictions import SITES, Measured, pipeline_schedule, predicted_seconds, ring_of, stage_seconds
from settings import MBIT, MS, SETTINGS, SiteSetting

from megalith.bench.runner import result, save_result
from megalith.cli.output import print_json, print_table
from megalith.core.errors import ConfigError, MegalithError
from megalith.hardware.cluster import Link

LIMIT = 0.15
LARGE_BYTES = 1 << 20
WARMUP, STEPS = 1, 5


class Ranks:
    """One process in each site, asked all at once."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def ask(self, **command: Any) -> list[Any]:
        """Sends a command to every site; the answers by site."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise ConfigError("A site's process ended early; see the lines above and run again.")
            answers.append(json.loads(line))
        return answers


@contextmanager
def started_ranks(sites: Sites) -> Iterator[Ranks]:
    """A process in each site, ended whatever happens inside."""
    processes = []
    try:
        for site in range(sites.count):
            others = [other for other in range(sites.count) if other != site]
            addresses = {other: (sites.address(site, other), sites.address(other, site)) for other in others}
            worker = [sys.executable, str(Path(__file__).with_name("worker.py")), str(site)]
            command = ["ip", "netns", "exec", site_name(site), *worker, json.dumps(addresses)]
            processes.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
                )
            )
        yield Ranks(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(sites: Sites, ranks: Ranks) -> Measured:
    """Latency and bandwidth of every pair, one after the other."""
    found = {}
    for first, second in sites.pairs:
        answer = ranks.ask(do="link", first=first, second=second, size=LARGE_BYTES, repeats=4)[first]
        found[first, second] = Link(
            f"{first}-{second}", answer["bytes_per_second"], answer["latency_seconds"]
        )
    return found


def arguments_of(setting: SiteSetting, measured: Measured) -> list[dict[str, Any]]:
    """What each site is told to do in a step."""
    if setting.kind == "pipeline":
        schedule, seconds = pipeline_schedule(setting, measured), stage_seconds(setting)
        return [
            {
                "order": [(op.kind, op.micro_batch) for op in schedule.order[site]],
                "seconds": seconds[site],
                "size": setting.message_bytes,
            }
            for site in range(SITES)
        ]
    common = {"size": setting.message_bytes, "ring": ring_of(measured)}
    if setting.kind == "replicas":
        return [
            {"seconds": 3 * setting.layer_seconds * speed * share, **common}
            for speed, share in zip(setting.speeds, setting.shares, strict=True)
        ]
    return [
        {
            "layers": setting.layers,
            "forward": setting.layer_seconds * speed,
            "backward": 2 * setting.layer_seconds * speed,
            **common,
        }
        for speed in setting.speeds
    ]


def compare(setting: SiteSetting, sites: Sites, ranks: Ranks) -> dict[str, Any]:
    """One row: links set and measured, the step predicted, then run."""
    figures = {
        pair: (delay * MS, rate * MBIT) for pair, (delay, rate) in zip(MS_LINKS, setting.links, strict=True)
    }
    sites.set_links(figures)
    measured = measure(sites, ranks)
    predicted = predicted_seconds(setting, measured)
    arguments = arguments_of(setting, measured)
    answers = ranks.ask(do="steps", kind=setting.kind, arguments=arguments, count=WARMUP + STEPS)
    taken = [max(end for _, end in moments) - moments[0][0] for moments in zip(*answers, strict=True)][
        WARMUP:
    ]
    middle = median(taken)
    return {
        "setting": setting.to_dict(),
        "links": {
            f"{one}-{other}": [link.latency_seconds, link.bytes_per_second]
            for (one, other), link in measured.items()
        },
        "predicted_seconds": predicted,
        "measured_seconds": middle,
        "steps_seconds": taken,
        "spread": (max(taken) - min(taken)) / middle,
        "error": predicted / middle - 1,
    }


def benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the settings that are not there yet, and keeps each row as soon as it is."""
    if (reason := emulation.missing()) is not None:
        raise ConfigError(reason)
    rows: dict[str, Any] = {}
    if options.out and options.out.exists() and not options.fresh:
        earlier = json.loads(options.out.read_text())["results"]
        rows = {
            one.name: earlier[one.name]
            for one in SETTINGS
            if earlier.get(one.name, {}).get("setting") == json.loads(json.dumps(one.to_dict()))
        }
    left = [
        one for one in SETTINGS if one.name not in rows and (not options.only or options.only in one.name)
    ]
    if left:
        with built_sites(SITES) as sites, started_ranks(sites) as ranks:
            for setting in left:
                rows[setting.name] = row = compare(setting, sites, ranks)
                print(
                    f"{setting.name}: predicted {row['predicted_seconds']:.3f} s, measured "
                    f"{row['measured_seconds']:.3f} s, error {row['error']:+.1%}",
                    file=sys.stderr,
                )
                if options.out:
                    save_result(options.out, _content(rows))
    return _content(rows)


def _content(rows: dict[str, Any]) -> dict[str, Any]:
    rows = {setting.name: rows[setting.name] for setting in SETTINGS if setting.name in rows}
    content = result("sites-testbed", {"sites": SITES, "steps": STEPS}, rows, None)
    errors = [abs(row["error"]) for row in rows.values()]
    content["summary"] = {
        "settings": len(rows),
        "within_15_percent": sum(error <= LIMIT for error in errors),
        "mean_absolute_error": sum(errors) / len(errors),
        "worst_absolute_error": max(errors),
    }
    return content


def show(content: dict[str, Any]) -> None:
    """Prints the settings as a table."""
    print_table(
        "Three sites, a link for each pair",
        ["setting", "0-1", "0-2", "1-2", "predicted", "measured", "spread", "error"],
        [
            [
                name,
                *(f"{delay:g} ms, {rate:g} Mb/s" for delay, rate in row["setting"]["links"]),
                f"{row['predicted_seconds']:.3f} s",
                f"{row['measured_seconds']:.3f} s",
                f"{row['spread']:.1%}",
                f"{row['error']:+.1%}",
            ]
            for name, row in content["results"].items()
        ],
    )
    summary = content["summary"]
    print(
        f"{summary['within_15_percent']} of {summary['settings']} settings within {LIMIT:.0%}; mean error "
        f"{summary['mean_absolute_error']:.1%}, worst {summary['worst_absolute_error']:.1%}."
    )


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Steps over three emulated sites, predicted and measured.")
    parser.add_argument("--only", help="settings whose name holds this text")
    parser.add_argument(
        "--out", type=Path, help="keep rows in this JSON file; those it has are not run again"
    )
    parser.add_argument("--fresh", action="store_true", help="run every setting again")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        content = benchmark(options)
    except MegalithError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if options.json:
        print_json(content)
    else:
        show(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
