"""`megalith loadtest`: latency and rate of a server, from outside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from megalith.cli.output import JsonFlag, note, print_json, print_table, say

if TYPE_CHECKING:
    from megalith.serve.loadtest.loads import LoadResult


def loadtest(
    url: Annotated[str, typer.Argument(help="http://HOST:PORT or grpc://HOST:PORT of a server.")],
    model: Annotated[str | None, typer.Option(help="Model to ask [default: the only one].")] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.01, help="Requests a second, arriving as they like.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Instead of a rate: so many requests at a time.")
    ] = None,
    p99_ms: Annotated[
        float | None, typer.Option(min=0.01, help="Find the highest rate with 99% of answers within this.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long a rate is held.")] = 10.0,
    samples: Annotated[int, typer.Option(min=1, help="Samples of a drawn request.")] = 64,
    user_once: Annotated[bool, typer.Option("--user-once", help="Send the user's features once.")] = False,
    wide_ids: Annotated[bool, typer.Option("--int64", help="Send ids in 64 bits instead of 32.")] = False,
    replay: Annotated[
        Path | None, typer.Option(help="Send the requests of this file, which `serve --record` wrote.")
    ] = None,
    http: Annotated[
        str | None, typer.Option(help="With grpc://: http://HOST:PORT of the server, to draw requests.")
    ] = None,
    connections: Annotated[int, typer.Option(min=1, help="Most HTTP connections.")] = 256,
    seed: Annotated[int, typer.Option(help="Of arrivals and drawn requests.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Percentiles of latency at a rate (open loop, Poisson arrivals), or the highest rate under a p99 bound.

    Latency counts from when a request was due, not from when it was sent. The client's own CPU is printed: it
    runs on the same cores where client and server share a machine.
    """
    import asyncio

    from megalith.core.errors import ConfigError
    from megalith.serve.loadtest.target import LoadTarget

    if sum(each is not None for each in (rate, concurrency, p99_ms)) != 1:
        raise ConfigError("Say what to do: --rate, --concurrency or --p99-ms, one of them.")
    target = LoadTarget.of(url, http)
    payloads = target.payloads(
        model, samples=samples, once=user_once, wide=wide_ids, replay=replay, seed=seed
    )
    content = asyncio.run(_run(target, payloads, rate, concurrency, p99_ms, seconds, connections, seed))
    content = {"url": url, "payload_bytes": sum(map(len, payloads)) / len(payloads), **content}
    if as_json:
        print_json(content)
    else:
        _show(content)


async def _run(
    target: Any,
    payloads: list[bytes],
    rate: float | None,
    concurrency: int | None,
    p99_ms: float | None,
    seconds: float,
    connections: int,
    seed: int,
) -> dict[str, Any]:
    from megalith.core.errors import ServeError
    from megalith.serve.loadtest.loads import closed_loop, open_loop
    from megalith.serve.loadtest.search import highest_rate

    client = target.client(connections)
    try:
        # Connections are opened, and code is warm, before anything counts.
        warm = await closed_loop(client, payloads, 2, min(1.0, seconds))
        if not warm.latencies:
            raise ServeError(
                f"{target.url} answers no request ({dict(warm.failures)}); check model and inputs."
            )
        if concurrency is not None:
            return (await closed_loop(client, payloads, concurrency, seconds)).to_dict()
        if rate is not None:
            return (await open_loop(client, payloads, rate, seconds, seed)).to_dict()
        assert p99_ms is not None
        most = (await closed_loop(client, payloads, 16, min(5.0, seconds))).rate
        tried: list[LoadResult] = []

        async def trial(wanted: float) -> LoadResult:
            result = await open_loop(client, payloads, wanted, seconds, seed + len(tried))
            tried.append(result)
            failed = sum(result.failures.values())
            note((f"{wanted:,.1f}/s: p99 {1e3 * result.percentile(99):.2f} ms, {failed} failed", "dim"))
            return result

        best = await highest_rate(trial, 1.05 * most, p99_ms / 1e3)
        found = {} if best is None else best.to_dict()
        return {
            **found,
            "p99_bound_seconds": p99_ms / 1e3,
            "highest_rate": None if best is None else best.offered_rate,
            "closed_loop_rate": most,
            "tried": [each.to_dict() for each in tried],
        }
    finally:
        await client.close()


def _show(content: dict[str, Any]) -> None:
    from megalith.core.units import format_bytes

    if "highest_rate" in content:
        bound = 1e3 * content["p99_bound_seconds"]
        if content["highest_rate"] is None:
            most = content["closed_loop_rate"]
            say(f"No rate held p99 within {bound:g} ms; as quick as answers come it is {most:,.1f}/s.")
            return
        say(f"Highest rate with p99 within {bound:g} ms: {content['highest_rate']:,.1f} requests/s")
    latency = content["latency_seconds"]
    rows = [[name, "" if value is None else f"{1e3 * value:.3f}"] for name, value in latency.items()]
    print_table("Latency, ms", ["", "ms"], rows)
    failed = ", ".join(f"{count} with {status}" for status, count in content["failures"].items()) or "none"
    took = f"{content['answers']} in {content['seconds']:.1f} s"
    say(f"{content['rate']:,.1f} answers/s, {took}; failed: {failed}")
    sent = format_bytes(content["payload_bytes"])
    say(f"a request is {sent}; the client took {content['client_cpu_share']:.0%} of a core")
