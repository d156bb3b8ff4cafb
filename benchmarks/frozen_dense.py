"""Dense parts of the models to serve: ours against torch, onnxruntime, OpenVINO and torchao, taking turns.

    pip install onnxruntime onnx openvino nncf torchao
    python benchmarks/frozen_dense.py --out benchmarks/results/frozen-dense.json
    python benchmarks/frozen_dense.py --models rm1 dlrm-v2 --batches 1 270 --only ours torch

Shapes are those of the recipes rm1, rm2, rm3, dlrm-v2 and dlrm-v2-half, weights and inputs are random. All
candidates run the same operations on the same inputs with as many threads; a round calls each as often as
fills a few milliseconds. What is printed are microseconds of a call and how many times quicker the best of
ours is of the same kind: float32 against float32, bytes against bytes. A peer that is not installed, or that
refuses a model, is left out and named; torchao runs only where `--only` names it, as it compiles for minutes
and took 0.2 s a call where others take a tenth of a millisecond.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from frozen_dense_peers import PEERS, SLOW_PEERS, Runner
from torch import Tensor

from megalith.bench.runner import interleave, result, save_result
from megalith.ops import native
from megalith.ops.dense.operations import DenseDescription, DenseOperation, DenseOutput, DensePrecision
from megalith.ops.dense.program import DenseProgram

BATCHES = (1, 16, 64, 270, 700)
OURS: dict[str, DensePrecision] = {
    "ours float32": "float32",
    "ours bfloat16": "bfloat16",
    "ours u8s7": "u8s7",
    "ours u8s8": "u8s8",
}


class Builder:
    """Operations of a model in the making, with random weights."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.operations: list[DenseOperation] = []

    def linear(self, source: str, output: str, inputs: int, outputs: int, function: Any = "relu") -> str:
        weight = torch.randn(outputs, inputs, generator=self.generator) * (2.0 / inputs) ** 0.5
        bias = torch.randn(outputs, generator=self.generator) * 0.1
        self.operations.append(DenseOperation("linear", (source,), output, weight, bias, function))
        return output

    def layers(self, source: str, name: str, widths: list[int]) -> str:
        for number, (inputs, outputs) in enumerate(pairwise(widths)):
            source = self.linear(source, f"{name}{number}", inputs, outputs)
        return source


def dense_part(
    bottom: list[int], tables: int, top: list[int], crosses: int = 0, rank: int = 0
) -> DenseDescription:
    """Bottom layers, vectors side by side, low-rank crosses where there are any, top layers, one score."""
    made, columns = Builder(), (tables + 1) * bottom[-1]
    made.operations.append(
        DenseOperation("concat", (made.layers("dense", "bottom", bottom), "embedded"), "x0")
    )
    last = "x0"
    for number in range(crosses):
        narrow = made.linear(last, f"narrow{number}", columns, rank, "none")
        wide = made.linear(narrow, f"wide{number}", rank, columns, "none")
        made.operations.append(DenseOperation("multiply_add", ("x0", wide, last), f"x{number + 1}"))
        last = f"x{number + 1}"
    made.linear(made.layers(last, "top", [columns, *top]), "logit", top[-1], 1, "none")
    inputs = {"dense": bottom[0], "embedded": tables * bottom[-1]}
    return DenseDescription(inputs, tuple(made.operations), (DenseOutput("logit"),))


MODELS: dict[str, Callable[[], DenseDescription]] = {
    "rm1": lambda: dense_part([128, 64, 32], 8, [256, 64]),
    "rm2": lambda: dense_part([256, 128, 64], 32, [128, 64]),
    "rm3": lambda: dense_part([2560, 1024, 256, 32], 10, [512, 256]),
    "dlrm-v2": lambda: dense_part([13, 512, 256, 128], 26, [1024, 1024, 512, 256], 3, 512),
    "dlrm-v2-half": lambda: dense_part([13, 256, 128, 64], 26, [512, 512, 256, 128], 3, 256),
}


def flops(description: DenseDescription) -> int:
    """Of the linear layers, for one sample."""
    return sum(2 * one.weight.numel() for one in description.operations if isinstance(one.weight, Tensor))


def inputs_of(description: DenseDescription, batch: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(batch)
    return tuple(torch.randn(batch, columns, generator=generator) for columns in description.inputs.values())


def ours(description: DenseDescription, precision: DensePrecision, threads: int) -> Runner:
    operations = tuple(
        replace(one, precision=precision) if one.kind == "linear" else one for one in description.operations
    )
    return DenseProgram(DenseDescription(description.inputs, operations, description.outputs), threads).run


def candidates_of(
    description: DenseDescription, threads: int, only: list[str]
) -> Iterator[tuple[str, Runner | str]]:
    """Names with what runs them, or why nothing does."""
    for name, precision in OURS.items():
        if not only or any(name.startswith(one) for one in only):
            yield name, ours(description, precision, threads)
    calibration = [inputs_of(description, 60 + number) for number in range(4)]
    for name, make in PEERS.items():
        if not any(name.startswith(one) for one in only) and (only or name in SLOW_PEERS):
            continue
        try:
            yield name, make(description, threads, calibration)
        except ImportError as error:
            yield name, f"not installed ({error})"
        except Exception as error:  # A peer may fail in any way; the others go on.
            yield name, f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"


def measure(
    runners: dict[str, Runner], inputs: tuple[Tensor, ...], repeats: int, milliseconds: float
) -> dict[str, Any]:
    """Seconds of a call of each, and how far scores are from those of torch's float32."""
    lines: dict[str, Any] = {}
    rounds: dict[str, Callable[[], None]] = {}
    expected = torch.as_tensor(runners["torch float32"](*inputs)) if "torch float32" in runners else None
    for name, run in runners.items():
        scores = torch.as_tensor(run(*inputs))
        begin = time.perf_counter()
        run(*inputs)
        calls = max(1, min(1000, int(milliseconds / 1000 / max(1e-7, time.perf_counter() - begin))))
        rounds[name] = lambda run=run, calls=calls: [run(*inputs) for _ in range(calls)] and None
        difference = None if expected is None else float((scores.view(-1) - expected.view(-1)).abs().max())
        lines[name] = {"calls": calls, "max_score_difference": difference}
    for name, timing in interleave(rounds, repeats).items():
        calls = lines[name]["calls"]
        lines[name] |= {
            "microseconds": timing.median / calls * 1e6,
            "best_microseconds": min(timing.seconds) / calls * 1e6,
            "spread": timing.spread,
        }
    return lines


def ratios(lines: dict[str, Any], by: str) -> dict[str, float]:
    """How many times quicker ours are than each peer of the same kind, by the median or the best round."""
    found = {}
    for peer, line in lines.items():
        if peer.startswith("ours"):
            continue
        own = "ours u8s7" if "int8" in peer else "ours float32"
        if own in lines:
            found[f"{own} / {peer}"] = line[by] / lines[own][by]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--milliseconds", type=float, default=20.0, help="of a round of one candidate")
    parser.add_argument("--only", nargs="+", default=[], help="candidates whose names begin so")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    results: dict[str, Any] = {}
    for model in options.models:
        description = MODELS[model]()
        found = dict(candidates_of(description, options.threads, options.only))
        runners: dict[str, Runner] = {name: run for name, run in found.items() if not isinstance(run, str)}
        for name, why in found.items():
            if isinstance(why, str):
                print(f"{model}: without {name}: {why}")
        results[model] = {"mflop_per_sample": flops(description) / 1e6, "batches": {}}
        for batch in options.batches:
            lines = measure(runners, inputs_of(description, batch), options.repeats, options.milliseconds)
            compared, best = (ratios(lines, by) for by in ("microseconds", "best_microseconds"))
            results[model]["batches"][batch] = {
                "candidates": lines,
                "times_quicker": compared,
                "times_quicker_at_best": best,
            }
            print(f"{model}, batch {batch}, {options.threads} threads")
            for name, line in lines.items():
                rate = flops(description) * batch / line["microseconds"] / 1e3
                times = [one[pair] for one in (compared, best) for pair in one if pair.endswith(f"/ {name}")]
                beside = "  ours {:5.2f} times as quick, {:5.2f} at best".format(*times) if times else ""
                print(
                    f"  {name:28} {line['microseconds']:10.1f} us {rate:7.1f} GFLOP/s "
                    f"+-{line['spread']:4.0%}{beside}",
                    flush=True,
                )
    settings = {
        "threads": options.threads,
        "repeats": options.repeats,
        "milliseconds": options.milliseconds,
        "simd": native.simd_level(),
    }
    if options.out:
        save_result(options.out, result("frozen-dense", settings, results, None))


if __name__ == "__main__":
    main()
