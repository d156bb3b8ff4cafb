"""Checks of requests that are wrong: each is refused with one sentence, and the next one is answered."""

from __future__ import annotations

from collections.abc import Callable

import torch

from megalith.core.errors import MegalithError
from megalith.export.backends.conformance.findings import Verdict, skipped
from megalith.export.backends.conformance.probe import PartProbe
from megalith.export.backends.inputs import ScoreRequest


def ids_out_of_range(probe: PartProbe) -> Verdict:
    """An id that its table does not have is refused by the name of its feature."""
    if not probe.make.inputs.reads_ids:
        return skipped("a dense part reads no ids")
    found = probe.make.bounded_feature()
    if found is None:
        return skipped("the tables of this part take any id")
    feature, rows = found
    request = probe.make.request(4, seed=10)
    for value in (rows, -1, 1 << 31, (1 << 31) + 1, -(1 << 63), (1 << 63) - 1):
        asked = f"id {value} of feature '{feature}', whose table has {rows} rows"
        verdict = _refused(probe, asked, probe.make.with_id(request, feature, value), feature)
        if not verdict.passed:
            return verdict
    return verdict


def numbers_not_finite(probe: PartProbe) -> Verdict:
    """NaN and infinity among the numbers are refused."""
    if not probe.make.inputs.reads_dense:
        return skipped("the part reads no numbers")
    for number in (float("nan"), float("inf"), -float("inf")):
        request = probe.make.request(4, seed=11)
        assert request.dense is not None
        dense = request.dense.clone()
        dense[2, -1] = number
        verdict = _refused(probe, f"{number} among the numbers", request._replace(dense=dense), "dense")
        if not verdict.passed:
            return verdict
    return verdict


def large_numbers(probe: PartProbe) -> Verdict:
    """Numbers whose sum overflows are taken as long as each is finite."""
    if not probe.make.inputs.reads_dense:
        return skipped("the part reads no numbers")
    request = probe.make.request(3, seed=12)
    assert request.dense is not None
    request = request._replace(dense=torch.full_like(request.dense, 3e38))
    try:
        outputs = probe.loaded.run(request)
    except MegalithError as error:
        return Verdict("numbers of 3e38", "outputs", f"refused: {error}", False)
    shapes = {name: tuple(out.shape) for name, out in outputs.items()}
    return Verdict("numbers of 3e38", "outputs of 3 samples", f"{shapes}", set(shapes.values()) == {(3,)})


def malformed(probe: PartProbe) -> Verdict:
    """Inputs that are missing, of another type or shape, or whose lengths do not add up, are refused."""
    request = probe.make.request(4, seed=13)
    wrong: dict[str, Callable[[], ScoreRequest]] = {}
    if probe.make.inputs.reads_dense:
        assert request.dense is not None
        numbers = request.dense
        wrong["no numbers"] = lambda: request._replace(dense=None)
        wrong["numbers of float64"] = lambda: request._replace(dense=numbers.double())
        wrong["a column too many"] = lambda: request._replace(dense=torch.cat([numbers, numbers[:, :1]], 1))
    if probe.make.inputs.reads_ids:
        assert request.values is not None
        assert request.lengths is not None
        values, lengths = request.values, request.lengths
        wrong["no ids"] = lambda: request._replace(values=None)
        wrong["ids of float32"] = lambda: request._replace(values=values.float())
        wrong["lengths of int64"] = lambda: request._replace(lengths=lengths.long())
        wrong["lengths of a feature too few"] = lambda: request._replace(lengths=lengths[:-1])
        wrong["an id too many"] = lambda: request._replace(values=torch.cat([values, values.new_zeros(1)]))
        negative = lengths.clone()
        negative[0, 0] -= 1 + int(lengths[0, 0])
        wrong["a negative length"] = lambda: request._replace(lengths=negative)
    if request.embedded is not None:
        vectors = request.embedded
        wrong["vectors of a sample too few"] = lambda: request._replace(embedded=vectors[:-1])
        wrong["vectors of a column too few"] = lambda: request._replace(embedded=vectors[:, :-1])
    verdict = skipped("the part reads nothing")
    for asked, make in wrong.items():
        verdict = _refused(probe, asked, make(), "")
        if not verdict.passed:
            return verdict
    return Verdict(", ".join(wrong), verdict.wanted, "a sentence for each", True)


def unknown_options(probe: PartProbe) -> Verdict:
    """An option that a backend does not have is refused when it is loaded."""
    asked, wanted = "an option 'no_such_option'", "a sentence that names it"
    try:
        with probe.another(options={**probe.settings.options, "no_such_option": "1"}):
            return Verdict(asked, wanted, "a loaded part", False)
    except MegalithError as error:
        return Verdict(asked, wanted, str(error), "no_such_option" in str(error))


def health_after_errors(probe: PartProbe) -> Verdict:
    """After a wrong request the part is healthy, and answers the next one as before."""
    request = probe.make.request(5, seed=14)
    before = probe.loaded.run(request)
    for wrong in (
        ScoreRequest(),
        request._replace(dense=torch.zeros(5, 1, dtype=torch.float64), values=None),
    ):
        try:
            probe.loaded.run(wrong)
        except MegalithError:
            continue
        if probe.make.inputs.reads_ids or probe.make.inputs.reads_dense:
            return Verdict("a request without inputs", "a refusal", "outputs", False)
    health = probe.loaded.health()
    after = probe.loaded.run(request)
    same = all(torch.equal(before[name], after[name]) for name in before)
    got = f"{'healthy' if health.ready else health.sentence}, {'the same' if same else 'other'} outputs"
    return Verdict("a request after two wrong ones", "healthy, the same outputs", got, health.ready and same)


def _refused(probe: PartProbe, asked: str, request: ScoreRequest, named: str) -> Verdict:
    wanted = f"a refusal that names '{named}'" if named else "a refusal"
    try:
        probe.loaded.run(request)
    except MegalithError as error:
        return Verdict(asked, wanted, str(error), named in str(error) and "\n" not in str(error))
    except Exception as error:
        return Verdict(asked, wanted, f"{type(error).__name__}: {error}", False)
    return Verdict(asked, wanted, "outputs", False)
