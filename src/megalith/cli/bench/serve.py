"""`megalith bench serve`: whole frozen models, ours beside what one would serve them with instead."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from megalith.cli.output import JsonFlag, note, print_json, print_table, say

if TYPE_CHECKING:
    from megalith.bench.serve.shapes import ShapeName

_NAMES = "rm1, rm2, rm3, dlrm-v2, dlrm-v2-half"
_BATCHES = "1,16,64,270,700"


def serve(
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Call models in this process, without a server.")
    ] = False,
    shape: Annotated[
        list[str] | None,
        typer.Option(help=f"Measure this model, or several as a,b: {_NAMES} [default: all]."),
    ] = None,
    batch: Annotated[
        str, typer.Option(help="Samples of a request, or several as a,b; over the network 270.")
    ] = _BATCHES,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="Run beside this, or several as a,b: fbgemm, onnxruntime, openvino, torchao, torch; over "
            "the network fastapi, litserve, fastapi-json, litserve-json; `none` for nobody [default: all "
            "installed]."
        ),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=3, help="Most rows of a table [default: 2 million, as the models].")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed turns of each candidate.")] = 7,
    threads: Annotated[int, typer.Option(min=1, help="Threads of all sides, cards of a server.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.2, help="Of a turn over the network.")] = 5.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time over the network.")] = 8,
    loadgen: Annotated[bool, typer.Option(help="Also run MLPerf LoadGen's Server scenario.")] = True,
    out: Annotated[Path | None, typer.Option(help="Also write the result to this JSON file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Requests of whole models a second: in process beside FBGEMM, onnxruntime, OpenVINO and torchao, or over
    the network beside FastAPI and LitServe with onnxruntime.

    Without --in-process servers are started, each model behind our HTTP and gRPC, and behind FastAPI and
    LitServe, plain (JSON) and tuned (binary bodies), and asked in turns with requests of `--batch` samples.
    """
    from megalith.bench.peers.candidates import choose_peers, skipped_peers
    from megalith.bench.runner import save_result
    from megalith.bench.serve.suite import PEERS, ServeSettings, bench_serve
    from megalith.core.errors import ConfigError
    from megalith.core.files import check_target

    if out is not None:
        check_target(out)
    if not in_process:
        from megalith.bench.serve.network.suite import PEERS as SERVERS
        from megalith.bench.serve.network.suite import NetworkSettings, bench_network

        sizes = _batch_sizes("270" if batch == _BATCHES else batch)
        if len(sizes) != 1:
            raise ConfigError(f"Over the network --batch is one number, not '{batch}'.")
        network = NetworkSettings(
            shapes=chosen_shapes(shape or []),
            peers=tuple(choose_peers(peer or [], SERVERS)),
            samples=sizes[0],
            rows=rows,
            repeats=repeats,
            seconds=seconds,
            cards=threads,
            concurrency=concurrency,
            loadgen=loadgen,
        )
        # SIGTERM ends the servers as Ctrl-C does.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        for sentence in skipped_peers(peer or [], SERVERS):
            note((sentence, "dim"))
        content = bench_network(network, lambda message: note((message, "dim")))
        if out is not None:
            save_result(out, content)
        if as_json:
            print_json(content)
        else:
            show_network(content["results"])
        return
    settings = ServeSettings(
        shapes=chosen_shapes(shape or []),
        batches=_batch_sizes(batch),
        peers=tuple(choose_peers(peer or [], PEERS)),
        rows=rows,
        repeats=repeats,
        threads=threads,
    )
    content = bench_serve(settings, lambda message: note((message, "dim")))
    if out is not None:
        save_result(out, content)
    if as_json:
        print_json(content)
    else:
        show_serve(content["results"])


def chosen_shapes(wanted: list[str]) -> tuple[ShapeName, ...]:
    """The models that are named, in `a,b` or one by one; all where none is."""
    from megalith.bench.serve.shapes import SHAPES
    from megalith.core.errors import ConfigError, nearest

    names = [name.strip() for argument in wanted for name in argument.split(",") if name.strip()]
    for name in names:
        if name not in SHAPES:
            raise ConfigError(f"--shape {name} is no model here; {nearest(name, SHAPES)}")
    return tuple(name for name in SHAPES if name in names or not names)


def _batch_sizes(text: str) -> tuple[int, ...]:
    from megalith.core.errors import ConfigError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part[:8]) <= 100_000 for part in parts):
        raise ConfigError(f"--batch must be numbers from 1 to 100000, such as 1,64,700, not '{text}'.")
    return tuple(int(part) for part in parts)


def show_network(results: dict[str, Any]) -> None:
    """Rates over the network, by model and server."""
    rows = []
    for measured in results["measured"]:
        shown = measured["shape"]
        for name, each in measured["rates"].items():
            rows.append(
                [
                    shown,
                    name,
                    f"{each['rate']:,.1f}",
                    f"{each['rate_without_client']:,.1f}",
                    f"{each['client_cores']:.2f}",
                    f"{each['server_cores']:.2f}",
                    f"{1e3 * each['p50_seconds']:.1f}",
                    f"{1e3 * each['p99_seconds']:.1f}",
                ]
            )
            shown = ""
    columns = [
        "model",
        "",
        "requests/s",
        "without client",
        "client cores",
        "server cores",
        "p50 ms",
        "p99 ms",
    ]
    print_table("Requests a second over the network", columns, rows)
    for measured in results["measured"]:
        name = measured["shape"]
        for goal in measured["goals"]:
            say(f"{name}: {_goal_line(goal)}")
        loadgen = measured.get("loadgen")
        if loadgen is not None:
            valid, bound = loadgen["valid"], 1e3 * loadgen["p99_bound_seconds"]
            found = "none was valid" if valid is None else _loadgen_line(valid)
            say(f"{name}: LoadGen, Server scenario, p99 within {bound:g} ms: {found}")
        once = measured.get("user_once")
        if once is not None:
            say(
                f"{name}: user features once: {once['bytes_ratio']:.1f} times fewer bytes, "
                f"{once['rate_ratio']:.2f} times the rate of tiled input"
            )


def _goal_line(goal: dict[str, Any]) -> str:
    bound = f"at most {goal['asked']:g}" if goal["at_most"] else f"{goal['asked']:g}"
    figure = "unknown" if goal["figure"] is None else f"{goal['figure']:.3g}"
    return f"{goal['goal']} {figure} (asked: {bound}{'' if goal['met'] else ', which it is not'})"


def _loadgen_line(run: dict[str, Any]) -> str:
    p99 = 1e3 * run["p99_seconds"]
    share = f"{run['client_cpu_share']:.0%}"
    return f"{run['rate']:.1f} queries/s, p99 {p99:.1f} ms, LoadGen and client {share} of a core"


def show_serve(results: dict[str, Any]) -> None:
    """Milliseconds of a request, by model, size and candidate, and what was asked of ours."""
    from megalith.core.units import format_count

    rows = []
    for measured in results["measured"]:
        shown = f"{measured['shape']['name']}, {measured['batch']}"
        quickest = min(
            each["request_seconds"] for name, each in measured["whole"].items() if name.startswith("megalith")
        )
        for part in ("whole", "dense"):
            for name, each in measured[part].items():
                ratio = each["request_seconds"] / quickest
                rows.append(
                    [
                        shown,
                        name if part == "whole" else f"  dense alone, {name}",
                        f"{1e3 * each['request_seconds']:.3f}",
                        f"{each['spread']:.0%}",
                        f"{1e3 * each['request_cpu_seconds']:.3f}",
                        format_count(each["samples_per_second"]),
                        f"{each['differs_by']:.1e}",
                        f"{ratio:.2f}" if part == "whole" else "",
                    ]
                )
                shown = ""
        for name, why in measured["skipped"].items():
            rows.append(["", name, *[""] * 5, why])
    columns = ["model, batch", "", "ms", "spread", "cpu ms", "samples/s", "differs by", "x"]
    print_table("Whole models, ms a request (x: its time over that of our quickest)", columns, rows)
    for measured in results["measured"]:
        asked = results["asked"].get(measured["shape"]["name"], {})
        for peer, times in asked.items():
            if peer in measured["ratios"]:
                _say_ratio(measured, peer, times)


_PEER_NAMES = {
    "fbgemm": "FBGEMM's lookups with the quickest dense part",
    "int8": "FBGEMM's lookups with the quickest dense part of int8",
    "onnxruntime": "onnxruntime from end to end",
    "onnxruntime-float32": "onnxruntime in float32",
}


def _say_ratio(measured: dict[str, Any], peer: str, asked: float) -> None:
    ratio = measured["ratios"][peer]
    short = "" if ratio >= asked else ", which it is not"
    say(
        f"{measured['shape']['name']}, {measured['batch']}: {ratio:.2f} times as quick as "
        f"{_PEER_NAMES[peer]} (asked: {asked:g}{short})"
    )
