"""Bits that a backend promises: products of bytes and of bfloat16 as the twins have them, at extremes."""

from __future__ import annotations

import torch
from torch import Tensor

from megalith.export.backends.base import LoadSettings
from megalith.export.backends.conformance.findings import Verdict, compared, skipped
from megalith.export.backends.conformance.models import one_layer
from megalith.export.backends.conformance.probe import PartProbe
from megalith.export.backends.inputs import ScoreRequest
from megalith.export.backends.kernels.twins import TorchBackend
from megalith.export.program import Linear

_COLUMNS = (1, 3, 31, 64, 200)


def promised_bits(probe: PartProbe) -> Verdict:
    """One layer of the narrowest precision of the model, at its extremes, gives the twins' bits."""
    if probe.part == "lookups":
        return skipped("the other checks compare vectors bit for bit where that is promised")
    layers = [each for each in probe.model.manifest.program.operations if isinstance(each, Linear)]
    precisions = {each.precision for each in layers} & probe.backend.exact
    if probe.part == "whole" or not precisions:
        return skipped("no precision of this part has promised bits")
    verdict = skipped("")
    for precision in sorted(precisions):
        for columns in _COLUMNS:
            verdict = _layer(probe, precision, columns)
            if not verdict.passed:
                return verdict
    return Verdict(
        f"layers of {', '.join(sorted(precisions))} at extremes", verdict.wanted, verdict.got, True
    )


def _layer(probe: PartProbe, precision: str, columns: int) -> Verdict:
    products = probe.model.manifest.contract.products
    model = one_layer(precision, columns, products if products in ("u8s7", "u8s8") else "u8s7")
    request = ScoreRequest(dense=extreme_numbers(columns))
    twins = TorchBackend().load(model, "dense", LoadSettings())
    loaded = probe.backend.load(model, "dense", probe.settings)
    try:
        asked = f"a layer of {precision} over {columns} columns at extremes"
        return compared(asked, twins.run(request), loaded.run(request), 0.0, model.manifest.program)
    finally:
        loaded.close()


def extreme_numbers(columns: int) -> Tensor:
    """Samples at the ends of ranges: all alike, one-sided, tiny, huge, ties between codes, zeros."""
    draw = torch.Generator().manual_seed(columns)
    usual = torch.randn(6, columns, generator=draw)
    ends = torch.where(torch.arange(columns) % 2 == 0, 1.0, -1.0)
    ties = torch.arange(columns).float() % 256 - 0.5
    ties[0] = 255.0
    samples = [
        *usual,
        usual[0].abs(),
        -usual[1].abs(),
        usual[2] * 1e-30,
        usual[3] * 1e-42,
        usual[4] * 1e6,
        ends,
        -ends,
        ends * 1e-3 + 5,
        ties,
        torch.zeros(columns),
        torch.ones(columns),
    ]
    return torch.stack(samples)
