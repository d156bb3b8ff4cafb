"""What `megalith bench` prints for people."""

from __future__ import annotations

from typing import Any

from megalith.cli.output import print_table, say


def show_data(results: dict[str, Any]) -> None:
    """Rows prepared and samples loaded a second."""
    import statistics

    from megalith.core.units import format_bytes, format_count

    if "generate" in results:
        text = results["generate"]
        how = "reused" if text["reused"] else f"generated in {text['seconds']:.0f} s"
        say(f"{text['rows']:,} rows of text, {format_bytes(text['bytes'])}, {how}")
    if "prepare" in results:
        prepare = results["prepare"]
        rows = []
        for name, measured in prepare.items():
            if not isinstance(measured, dict):
                continue
            if "failed" in measured:
                rows.append([name, "failed", "", "", ""])
            else:
                rate, memory = measured["rows_per_second"], measured["max_resident_bytes"]
                times = [f"{measured['seconds']:.1f}", f"{measured['cpu_seconds']:.1f}"]
                rows.append([name, format_count(rate), *times, format_bytes(memory)])
        print_table("Prepare", ["", "rows/s", "seconds", "cpu seconds", "peak memory"], rows)
        if "speed_ratio" in prepare:
            say(
                f"{prepare['speed_ratio']:.2f} times the rows/s of polars ({prepare['cpu_ratio']:.2f} by "
                f"processor time) in {prepare['memory_ratio']:.2f} times its memory"
            )
    if "loader" in results:
        loader = results["loader"]
        ratios = loader["speed_ratio_to_pyarrow"]
        rows = [
            [
                name,
                format_count(measured["samples_per_second"]),
                f"{measured['spread']:.0%}",
                f"{1e6 * statistics.median(measured['cpu_seconds']) / loader['samples_a_round']:.2f}",
                f"{ratios[name]:.2f}" if name in ratios else "",
            ]
            for name, measured in loader["candidates"].items()
        ]
        print_table(
            "Load (cpu us: processor time of one sample)",
            ["", "samples/s", "spread", "cpu us", "x pyarrow"],
            rows,
        )


def show_predict(results: dict[str, Any]) -> None:
    """Rows scored a second."""
    from megalith.core.units import format_count

    shares = results["share_of_forward"]
    rows = [
        [
            name,
            format_count(measured["rows_per_second"]),
            f"{measured['spread']:.0%}",
            f"{shares[name]:.2f}" if name in shares else "",
        ]
        for name, measured in results["candidates"].items()
    ]
    print_table("Predict", ["", "rows/s", "spread", "x forward"], rows)


def _milliseconds(timing: dict[str, Any]) -> str:
    return f"{1e3 * timing['median_seconds']:.2f}"


def show_embedding(results: dict[str, Any]) -> None:
    """Milliseconds of a lookup and its backward pass, by shape and candidate."""
    rows = []
    for measured in results["measured"]:
        shown = _shape_name(measured)
        for name, timing in measured["candidates"].items():
            if "skipped" in timing:
                rows.append([shown, name, *[""] * 4, timing["skipped"]])
                continue
            ratio = measured["speed_ratio"].get(name, {}).get("total")
            # Where a peer is faster one should not have to look for it.
            compared = "" if ratio is None else f"{ratio:.2f}" + (" < 1" if ratio < 1 else "")
            passes = [_milliseconds(timing[step]) for step in ("forward", "backward", "total")]
            rows.append([shown, name, *passes, f"{timing['total']['spread']:.0%}", compared])
            shown = ""
    columns = ["dim, ids", "", "forward", "backward", "total", "spread", "x"]
    print_table("Embedding tables, ms a step (x: the peer's total over ours)", columns, rows)
    roofs = [
        (_shape_name(measured), measured["roofline"])
        for measured in results["measured"]
        if "roofline" in measured
    ]
    if roofs:
        rows = [
            [
                name,
                f"{roof['roof']['read'] / 1e9:.1f}",
                f"{roof['share']['forward']:.0%}",
                f"{roof['roof']['update'] / 1e9:.1f}",
                f"{roof['share']['backward']:.0%}",
            ]
            for name, roof in roofs
        ]
        columns = ["dim, ids", "read GB/s", "forward", "read and write GB/s", "backward"]
        print_table("Share of what the memory can do for random rows", columns, rows)


def _shape_name(measured: dict[str, Any]) -> str:
    """Columns, ids of a bag, and how the ids are spread; batch or rows where they are what changes."""
    shape = measured["shape"]
    ids = "uniform" if shape["zipf"] is None else "zipf"
    half = " fp16" if shape["dtype"] == "float16" else ""
    batch = f" x {shape['batch']}" if measured["axis"] == "batch" else ""
    size = f", {shape['tables']} x {shape['rows']:,} rows" if measured["axis"] == "rows" else ""
    return f"{shape['dim']}{half}, {shape['lookups']}{batch}, {ids}{size}"


def show_train(results: dict[str, Any]) -> None:
    """Milliseconds of a training step, by candidate."""
    from megalith.core.units import format_bytes, format_count

    ratios = results["speed_ratio"]
    rows = [
        [
            name,
            _milliseconds(measured),
            f"{measured['spread']:.0%}",
            format_count(measured["samples_per_second"]),
            f"{measured['losses'][0] if 'losses' in measured else measured['loss']:.4f}",
            f"{ratios[name]:.2f}" if name in ratios else "",
        ]
        for name, measured in results["candidates"].items()
    ]
    columns = ["", "ms", "spread", "samples/s", "loss", "x"]
    print_table("A training step of DLRM (x: the peer's ms over ours)", columns, rows)
    if "parallel_efficiency" in results:
        say(f"Parallel efficiency: {results['parallel_efficiency']:.0%} of one process for each")
        sent = results["sent_bytes_a_step"]
        rows = [[name, format_bytes(count)] for name, count in sent.items()]
        print_table("Sent by all ranks for the tables, a step", ["", "bytes"], rows)
    if "parts" in results:
        print_table(
            "Where the time of ours goes",
            ["", "ms", "spread"],
            [[name, _milliseconds(part), f"{part['spread']:.0%}"] for name, part in results["parts"].items()],
        )


def show_explore(results: dict[str, Any]) -> None:
    """Start, prediction and search of the Explorer beside their limits."""
    from megalith.core.units import format_bytes

    limits = results["limits"]
    say(f"Start: {results['start']['median_seconds']:.2f} s (asked: at most {limits['start_seconds']:g} s)")
    rows = [
        [
            name,
            f"{1000 * results['predict'][name]['median_seconds']:.1f}",
            f"{1000 * results['predict'][name]['slowest_seconds']:.1f}",
            f"{search['seconds']:.1f}",
            format_bytes(search["max_resident_bytes"]),
            f"{search['gap']:.1%}",
        ]
        for name, search in results["search"].items()
    ]
    asked = (
        f"Asked: a prediction in {1000 * limits['predict_seconds']:g} ms, a search in "
        f"{limits['search_seconds']:g} s and {format_bytes(limits['search_bytes'])}"
    )
    columns = ["", "predict ms", "slowest ms", "search s", "peak memory", "gap to the bound"]
    print_table(asked, columns, rows)


def show_plan(results: dict[str, Any]) -> None:
    """Step time, gap and imbalance of plans, by set of tables."""
    limits = results["limits"]
    rows = []
    for drawn in results["measured"]:
        shown = (
            f"{drawn['set']}, {drawn['tables']} on {drawn['workers']}, {drawn['optimizer']}, "
            f"seed {drawn['seed']}"
        )
        for name, plan in drawn["plans"].items():
            rows.append(
                [
                    shown,
                    name,
                    f"{1e3 * plan['step_seconds']:.3f}",
                    f"{plan['gap']:.2%}",
                    f"{plan['imbalance']:.1%}",
                    f"{plan['seconds']:.1f}",
                    f"{plan['cpu_seconds']:.1f}",
                ]
            )
            shown = ""
    asked = (
        f"Asked of 1000 on 128: a gap of {limits['gap']:.0%} in {limits['seconds']:g} s, imbalance "
        f"{limits['imbalance_reduction']:.0%} below greedy's"
    )
    print_table(asked, ["tables on workers", "", "step ms", "gap", "imbalance", "seconds", "cpu s"], rows)


def show_ranking(results: dict[str, Any]) -> None:
    """Predicted beside measured step times of plans."""
    rows = [
        [
            f"{1e3 * plan['predicted']['step_seconds']:.2f}",
            f"{1e3 * plan['seconds']:.2f}",
            plan["name"],
            ", ".join(plan["kinds"]),
        ]
        for plan in sorted(results["plans"], key=lambda plan: plan["predicted"]["step_seconds"])
    ]
    title = (
        f"Spearman's correlation {results['spearman']:.3f} (asked: {results['asked']:g}; of two halves of "
        f"the turns {results['spearman_of_halves']:.3f}), the planner's plan {results['regret']:.1%} slower "
        "than the quickest"
    )
    print_table(title, ["predicted ms", "measured ms", "plan", "tables"], rows)


def show_tiers(results: dict[str, Any]) -> None:
    """Samples a second of tables beyond memory and of what they are compared with; reads by policy."""
    from megalith.core.units import format_bytes, format_count

    for part in ("rate", "peers", "training", "capability", "engines"):
        if part not in results:
            continue
        rows = []
        for name, measured in results[part]["candidates"].items():
            ratio = results[part]["speed_ratio"].get(name)
            hits, reads = measured.get("hit_rate"), measured.get("reads_per_sample")
            rows.append(
                [
                    name,
                    format_count(measured["samples_per_second"]),
                    f"{measured['spread']:.0%}",
                    "" if hits is None else f"{hits:.2%}",
                    "" if reads is None else f"{reads:.2f}",
                    format_bytes(measured["resident"]["VmRSS"]),
                    "" if ratio is None else f"{ratio:.2f}",
                ]
            )
        columns = ["", "samples/s", "spread", "hits", "reads a sample", "resident", "x"]
        print_table(f"Tiers, {part} (x: its time over that of the first)", columns, rows)
        first = next(iter(results[part]["candidates"].values()))
        if first["limit"]["bytes"]:
            say(f"limit on memory: {format_bytes(first['limit']['bytes'])} ({first['limit']['method']})")
        if first.get("write_amplification") is not None:
            cores = sum(first["cpu_seconds"]) / sum(first["seconds"])
            say(
                f"writes {first['write_amplification']:.2f} times the rows that left, files take "
                f"{first['space_amplification']:.2f} times the rows, the index "
                f"{first['index_bytes_per_row']:.1f} B a row and the directory "
                f"{first['bookkeeping_bytes_per_cached_row']:.1f} B a cached one; "
                f"{first['reads_per_second']:,.0f} reads/s, {cores:.1f} cores busy; "
                f"resident {format_bytes(first['other_resident_bytes'])} beside cache and index"
            )
        if results[part].get("predicted"):
            say(f"predicted: {results[part]['predicted']['sentence']}")
    if "policies" in results:
        shown = [
            [
                f"{skew} ({found['top_share']:.0%})",
                *(f"{found[policy]['reads']:,}" for policy in ("lru", "lfu", "lookahead")),
                "" if found["lookahead_reads_to_lru"] is None else f"{found['lookahead_reads_to_lru']:.2f}",
            ]
            for skew, found in results["policies"].items()
        ]
        columns = ["skew (top 1% take)", "lru", "lfu", "lookahead", "of lru"]
        print_table("Rows read by policy", columns, shown)
    if "billion" in results:
        found = results["billion"]
        taken = f"{found['steps']} steps in {found['seconds']:.1f} s"
        say(f"{found['rows']:,} rows declared and trained on: {taken}")
