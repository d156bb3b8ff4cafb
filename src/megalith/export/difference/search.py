"""The search: both sides get one request, and every table and layer of the second gets the first's inputs.

A layer that only hands on what differs before it is not blamed: it is run alone, on what the first side gave
to its own. The first place that is farther apart than its precisions explain is where to look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.export.backends.base import Outputs
from megalith.export.backends.conformance.findings import unit_of
from megalith.export.backends.inputs import ScoreRequest
from megalith.export.backends.tolerance import FLOAT32
from megalith.export.difference.records import DifferenceReport, FarthestValue, PlaceDifference
from megalith.export.difference.sides import ComparedSide
from megalith.export.program import DENSE, EMBEDDED, Linear, Operation

TABLES = {"float32": FLOAT32, "float16": 1e-3, "bfloat16": 8e-3, "int8": 2e-2, "int4": 0.3}
LAYERS = {"float32": FLOAT32, "bfloat16": 1e-2, "int8": 5e-2}
"""What a precision explains, as a share of the largest value: half a step of the coarsest row or weight, and
room for sums in which they do not cancel and values do."""
_IDS = 8


def find_difference(
    first: ComparedSide, second: ComparedSide, request: ScoreRequest, tolerance: float | None = None
) -> DifferenceReport:
    """Compares two sides on one request, of which every feature is sent for every sample. `tolerance` takes
    the place of what precisions explain."""
    _refuse_other_features(first, second)
    pooled = first.pooled(request), second.pooled(request)
    places = list(_tables(first, second, request, *pooled))
    places += _layers(first, second, request, *pooled)
    places += _outputs(first, second, first.outputs(request), second.outputs(request))
    if tolerance is not None:
        places = [replace(place, expected=tolerance) for place in places]
    return DifferenceReport(first.label, second.label, len(pooled[0]), tuple(places))


def _refuse_other_features(first: ComparedSide, second: ComparedSide) -> None:
    named = [
        {(each.table, each.feature): each.last - each.first for each in side.columns}
        for side in (first, second)
    ]
    if named[0] == named[1]:
        return
    both = named[0].keys() & named[1].keys()
    wrong = next((key for key in both if named[0][key] != named[1][key]), None)
    table, feature = wrong or sorted(named[0].keys() ^ named[1].keys())[0]
    raise ConfigError(
        f"Table '{table}' with feature '{feature}' is not alike in {first.label} and {second.label}; compare "
        "models of the same tables and features."
    )


def _tables(
    first: ComparedSide, second: ComparedSide, request: ScoreRequest, ours: Tensor, theirs: Tensor
) -> Iterator[PlaceDifference]:
    places = {(each.table, each.feature): each for each in second.columns}
    shared = len({each.table for each in first.columns}) != len(first.columns)
    for own in first.columns:
        other = places[own.table, own.feature]
        forms = first.table_form(own.table), second.table_form(own.table)
        values = ours[:, own.first : own.last], theirs[:, other.first : other.last]
        apart, farthest = _farthest(*values)
        yield PlaceDifference(
            kind="table",
            name=f"{own.table} ({own.feature})" if shared else own.table,
            form=_form(*forms),
            own=apart,
            arriving=apart,
            expected=_explained(TABLES, *forms) if forms[0] != forms[1] else FLOAT32,
            equal=torch.equal(*values),
            farthest=farthest,
            ids=() if farthest is None else _bag(first.features, own.feature, request, farthest.sample),
        )


def _bag(features: Sequence[str], feature: str, request: ScoreRequest, sample: int) -> tuple[int, ...]:
    """Some ids of a sample's bag."""
    if request.values is None or request.lengths is None:
        return ()
    flat = request.lengths.reshape(-1).long()
    bag = features.index(feature) * request.lengths.shape[1] + sample
    begin = int(flat[:bag].sum())
    return tuple(request.values[begin : begin + min(_IDS, int(flat[bag]))].tolist())


def _layers(
    first: ComparedSide, second: ComparedSide, request: ScoreRequest, ours: Tensor, theirs: Tensor
) -> Iterator[PlaceDifference]:
    own = dict(first.values(request._replace(embedded=ours)))
    given = request.dense if request.dense is not None else torch.empty(len(ours), 0)
    known = {DENSE: given, EMBEDDED: ours, **own}
    other = second.values(request._replace(embedded=theirs))
    counterparts = {operation.output: operation for operation in second.program.operations}
    for operation in first.program.operations:
        name = operation.output
        match = counterparts.pop(name, None)
        problem = _unlike(operation, match)
        if match is None or problem:
            form = operation.kind
            yield PlaceDifference("layer", name, form, None, None, None, False, problem=problem)
            continue
        inputs = [known[each] for each in operation.inputs]
        alone = second.alone(match, inputs)
        # Sums of numbers that cancel are as exact as these numbers are large.
        unit = _largest(own[name], *(() if isinstance(operation, Linear) else inputs))
        apart, farthest = _farthest(own[name], alone, unit)
        precisions = _precision(operation), _precision(match)
        yield PlaceDifference(
            kind="layer",
            name=name,
            form=f"{operation.kind} {_form(*precisions)}"
            if isinstance(operation, Linear)
            else operation.kind,
            own=apart,
            arriving=_farthest(own[name], other[name], unit)[0],
            expected=_explained(LAYERS, *precisions),
            equal=torch.equal(own[name], alone),
            farthest=farthest,
        )
    for operation in counterparts.values():
        problem = f"only {second.label} has it"
        yield PlaceDifference(
            "layer", operation.output, operation.kind, None, None, None, False, problem=problem
        )


def _outputs(
    first: ComparedSide, second: ComparedSide, ours: Outputs, theirs: Outputs
) -> Iterator[PlaceDifference]:
    limits = _output_limits(first, second)
    for task in first.program.outputs:
        if task.name not in theirs:
            yield PlaceDifference(
                "output",
                task.name,
                task.kind,
                None,
                None,
                None,
                False,
                problem=f"{second.label} has no such output",
            )
            continue
        truth, found = ours[task.name], theirs[task.name]
        unit = unit_of(task.name, truth, first.program) if truth.numel() else 1.0
        apart, farthest = _farthest(truth[:, None], found[:, None], unit)
        yield PlaceDifference(
            kind="output",
            name=task.name,
            form=task.kind,
            own=None,
            arriving=apart,
            expected=limits.get(task.name),
            equal=torch.equal(truth, found),
            farthest=farthest,
        )


def _output_limits(first: ComparedSide, second: ComparedSide) -> Mapping[str, float]:
    """Outputs are judged where both sides run one program in one precision: others are apart for a reason."""
    if first.program != second.program:
        return {}
    both = first.output_limits(), second.output_limits()
    if any(first.table_form(each.table) != second.table_form(each.table) for each in first.columns):
        return {}
    return {name: both[0][name] + both[1][name] for name in both[0].keys() & both[1].keys()}


def _unlike(operation: Operation, other: Operation | None) -> str:
    if other is None:
        return "the second side has it not"
    left = {"weight", "bias", "precision", "output"}
    fields = operation.model_dump(exclude=left), other.model_dump(exclude=left)
    return "" if fields[0] == fields[1] else "the second side has another operation in its place"


def _precision(operation: Operation) -> str:
    return operation.precision if isinstance(operation, Linear) else "float32"


def _form(first: str, second: str) -> str:
    return first if first == second else f"{first} | {second}"


def _explained(shares: Mapping[str, float], first: str, second: str) -> float:
    return max(shares.get(first, FLOAT32), shares.get(second, FLOAT32))


def _farthest(ours: Tensor, theirs: Tensor, unit: float | None = None) -> tuple[float, FarthestValue | None]:
    """The largest difference as a share of the largest value, and where it is; infinite where one side alone
    is not finite."""
    if ours.shape != theirs.shape:
        return float("inf"), None
    if not ours.numel():
        return 0.0, None
    truth, found = ours.double(), theirs.double()
    both = truth.isfinite() & found.isfinite()
    same = (truth == found) | (truth.isnan() & found.isnan())
    apart = torch.where(same, 0.0, torch.where(both, (truth - found).abs(), float("inf")))
    sample, column = divmod(int(apart.argmax()), apart.shape[1])
    if unit is None:
        unit = _largest(ours)
    largest = float(apart[sample, column])
    if not largest:
        return 0.0, None
    where = FarthestValue(sample, column, float(ours[sample, column]), float(theirs[sample, column]))
    return largest / unit, where


def _largest(*tensors: Tensor) -> float:
    """The largest finite value; 1 where there is none but zeros."""
    found = [tensor[tensor.isfinite()].abs() for tensor in tensors]
    return max((float(each.max()) for each in found if len(each)), default=0.0) or 1.0
