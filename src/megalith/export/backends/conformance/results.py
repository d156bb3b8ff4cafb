"""Checks of what a backend computes."""

from __future__ import annotations

import torch

from megalith.export.backends.base import Outputs
from megalith.export.backends.checks import recorded_checks
from megalith.export.backends.conformance.findings import Verdict, skipped
from megalith.export.backends.conformance.probe import PartProbe
from megalith.export.backends.conformance.requests import rows_of_request
from megalith.export.backends.inputs import ScoreRequest


def recorded_outputs(probe: PartProbe) -> Verdict:
    """The samples that the model came with give the outputs it came with."""
    if probe.part == "lookups":
        return skipped("a lookups part gives vectors, and the model has outputs of the whole")
    found = recorded_checks(probe.model)
    if found is None:
        return skipped("the model came without samples to check")
    request, wanted = found
    if probe.part == "dense":
        request = probe.dense_request(request)
    got = probe.loaded.run(request)
    return probe.against(f"{len(next(iter(wanted.values())))} samples of checks.safetensors", wanted, got)


def empty_batch(probe: PartProbe) -> Verdict:
    """No samples give outputs of no samples."""
    return _like_the_twins(probe, "a batch of 0", probe.make.request(0))


def one_sample(probe: PartProbe) -> Verdict:
    """One sample alone."""
    return _like_the_twins(probe, "a batch of 1", probe.make.request(1, seed=1))


def odd_batches(probe: PartProbe) -> Verdict:
    """Batches that fill no vector and no block."""
    worst = None
    for batch in (2, 3, 7, 17, 33):
        verdict = _like_the_twins(probe, f"a batch of {batch}", probe.make.request(batch, seed=batch))
        if not verdict.passed:
            return verdict
        worst = verdict
    assert worst is not None
    return Verdict("batches of 2, 3, 7, 17 and 33", worst.wanted, worst.got, worst.passed)


def largest_batch(probe: PartProbe) -> Verdict:
    """As many samples as the model will be asked for at once."""
    batch = probe.largest_batch
    return _like_the_twins(probe, f"a batch of {batch}", probe.make.request(batch, seed=2))


def empty_bags(probe: PartProbe) -> Verdict:
    """Samples without ids read zeros."""
    if not probe.make.inputs.reads_ids:
        return skipped("a dense part reads no ids")
    return _like_the_twins(probe, "samples without ids", probe.make.request(9, seed=3, bags="empty"))


def repeated_ids(probe: PartProbe) -> Verdict:
    """An id counts as often as it occurs."""
    if not probe.make.inputs.reads_ids:
        return skipped("a dense part reads no ids")
    return _like_the_twins(probe, "bags of one id many times", probe.make.request(9, seed=4, bags="repeated"))


def narrow_ids(probe: PartProbe) -> Verdict:
    """Ids in 32 bits are those in 64."""
    if not probe.make.inputs.reads_ids:
        return skipped("a dense part reads no ids")
    request = probe.make.request(8, seed=5)
    assert request.values is not None
    if request.values.numel() and int(request.values.abs().max()) >= 1 << 31:
        return skipped("the ids of this model do not fit 32 bits")
    got = probe.loaded.run(request._replace(values=request.values.int()))
    return _same_bits("ids as int32", probe.loaded.run(request), got)


def user_once(probe: PartProbe) -> Verdict:
    """The user's features sent once are those sent with every sample."""
    if not probe.make.inputs.reads_ids:
        return skipped("a dense part reads no ids")
    if not probe.make.inputs.user_features:
        return skipped("no feature of this part is the user's")
    request = probe.make.request(11, seed=6)
    got = probe.loaded.run(probe.make.with_user_apart(request))
    return probe.against("the user's ids once a request", probe.wanted(request), got)


def half_vectors(probe: PartProbe) -> Verdict:
    """Pooled vectors in half precision are those of float32, rounded."""
    request = probe.make.request(8, seed=7)
    if probe.part == "whole":
        return skipped("a whole model gives no vectors")
    if probe.part == "lookups":
        wanted = {name: out.half() for name, out in probe.wanted(request).items()}
        with probe.another(pooled="float16") as loaded:
            return probe.against("vectors as float16", wanted, loaded.run(request), half=True)
    if request.embedded is None:
        return skipped("the model has no tables")
    half = request.embedded.half()
    wanted = probe.wanted(request._replace(embedded=half.float()))
    return probe.against("vectors as float16", wanted, probe.loaded.run(request._replace(embedded=half)))


def batch_mates(probe: PartProbe) -> Verdict:
    """A sample gives the same alone, among others, and in another order."""
    request = probe.make.request(33, seed=8)
    whole = probe.loaded.run(request)
    backwards = list(range(32, -1, -1))
    turned = probe.loaded.run(rows_of_request(request, backwards))
    order = torch.tensor(backwards)
    verdict = probe.against(
        "33 samples in the opposite order", {name: out[order] for name, out in whole.items()}, turned
    )
    if not verdict.passed:
        return verdict
    for row in (0, 16, 32):
        alone = probe.loaded.run(rows_of_request(request, [row]))
        wanted = {name: out[row : row + 1] for name, out in whole.items()}
        verdict = probe.against(f"sample {row} of 33 alone", wanted, alone)
        if not verdict.passed:
            return verdict
    return Verdict("samples of 33 alone and in the opposite order", verdict.wanted, verdict.got, True)


def same_every_time(probe: PartProbe) -> Verdict:
    """The same request gives the same bits."""
    request = probe.make.request(21, seed=9)
    return _same_bits("the same request twice", probe.loaded.run(request), probe.loaded.run(request))


def _like_the_twins(probe: PartProbe, asked: str, request: ScoreRequest) -> Verdict:
    return probe.against(asked, probe.wanted(request), probe.loaded.run(request))


def _same_bits(asked: str, wanted: Outputs, got: Outputs) -> Verdict:
    same = all(torch.equal(wanted[name], got[name]) for name in wanted)
    return Verdict(asked, "the same bits", "the same bits" if same else "other bits", same)
