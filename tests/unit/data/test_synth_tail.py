"""Rare ids that affect clicks (`--tail`), and the default stream, which stays as it is."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from megalith.data.synth.calibration import SynthSource
from megalith.data.synth.generate import generate
from megalith.data.synth.options import SynthOptions
from megalith.data.synth.stream import BLOCK_ROWS, SynthBlock, SynthStream
from megalith.data.synth.tail import TAIL_DEVIATION, TailEffects
from megalith.data.synth.truth import log_loss_sum

BLOCKS = 20
TAIL = SynthOptions("criteo", train_rows=BLOCKS * BLOCK_ROWS, test_rows=BLOCK_ROWS, seed=2, tail=True)
LARGE = ("C3", "C4", "C12", "C16", "C21")


@cache
def stream(tail: bool = True) -> SynthStream:
    return SynthStream(replace(TAIL, tail=tail))


@cache
def train_blocks(tail: bool = True) -> tuple[SynthBlock, ...]:
    return tuple(stream(tail).block("train", number) for number in range(BLOCKS))


@pytest.mark.parametrize(
    ("source", "digest", "clicks"),
    [
        ("criteo", "51eba402378ab7a25ec98b5a9956541d1b3c5121c7ed11cb7679910758e16d8f", 7984.890796),
        ("avazu", "f729e24fd161ff3577332afbc4345b29f29359775b0135d495852beed043856b", 5226.429881),
    ],
)
def test_the_default_stream_is_that_of_earlier_versions(
    source: SynthSource, digest: str, clicks: float
) -> None:
    options = SynthOptions(source, train_rows=30_000, test_rows=1000, seed=7, multi_hot=1, scale=0.01)
    default = SynthStream(options)
    content, expected = hashlib.sha256(), 0.0
    for split, number in (("train", 0), ("train", 1), ("test", 0)):
        block = default.block(split, number)
        bags = [part for bag in block.bags for part in (bag.ids, bag.offsets)]
        for column in (block.labels, *block.numbers, *block.ids, *bags):
            content.update(column.tobytes())
        expected += float(block.probabilities.sum(dtype=np.float64))
    assert content.hexdigest() == digest
    assert expected == pytest.approx(clicks, rel=1e-6)


def test_a_default_data_set_does_not_mention_the_tail(tmp_path: Path) -> None:
    generate(SynthOptions("avazu", train_rows=10), tmp_path / "default")
    generate(SynthOptions("avazu", train_rows=10, tail=True), tmp_path / "tail")
    stated = [
        json.loads((tmp_path / name / "schema.json").read_text())["preparation"]["synth"]
        for name in ("default", "tail")
    ]
    assert "tail" not in stated[0]
    assert stated[1] == {**stated[0], "tail": True}


def test_rows_have_the_ids_and_numbers_of_the_default_stream() -> None:
    for block, default in zip(train_blocks()[:3], train_blocks(False)[:3], strict=True):
        for ours, theirs in zip((*block.ids, *block.logs), (*default.ids, *default.logs), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert (block.labels != default.labels).any()


def test_the_bytes_do_not_depend_on_threads_or_on_when_they_are_made(tmp_path: Path) -> None:
    options = SynthOptions("criteo", train_rows=140_000, test_rows=500, seed=3, tail=True)
    for name, threads in (("one", 1), ("three", 3)):
        generate(options, tmp_path / name, threads=threads)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    assert len(files) == 3
    for path in files:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "three" / path).read_bytes()
    later = SynthStream(TAIL).block("train", 2)
    np.testing.assert_array_equal(later.probabilities, train_blocks()[2].probabilities)


def test_large_features_have_effects_and_others_have_none() -> None:
    named = {stream().fields[position].shape.name for position in stream().tail}
    assert named == set(LARGE)
    avazu = SynthStream(SynthOptions("avazu", train_rows=100, tail=True))
    assert {avazu.fields[position].shape.name for position in avazu.tail} == {"device_id", "device_ip"}


def test_effects_are_as_large_for_the_rarest_ids_as_for_others() -> None:
    for position, tail in stream().tail.items():
        ids = np.array(stream().fields[position].rare_ids, dtype=np.int32)
        for part in (ids[:20_000], ids[-20_000:]):
            effects = tail.of_ids(part)
            assert effects.mean() == pytest.approx(0.0, abs=0.03)
            assert effects.std() == pytest.approx(TAIL_DEVIATION, rel=0.03)


def test_effects_of_fields_and_seeds_are_independent() -> None:
    ids = np.arange(2, 50_000, dtype=np.int32)
    other = SynthStream(replace(TAIL, train_rows=1000, seed=5))
    effects = [tail.of_ids(ids) for one in (stream(), other) for tail in one.tail.values()]
    correlations = np.corrcoef(effects) - np.eye(len(effects))
    assert np.abs(correlations).max() < 0.03


def test_the_logit_moves_by_the_effects_of_the_rare_ids_of_a_row() -> None:
    block, default = train_blocks()[4], train_blocks(False)[4]
    effects = np.zeros(BLOCK_ROWS)
    for position, tail in stream().tail.items():
        ids, rare = block.ids[position], stream().fields[position].rare_ids
        effects += np.where((ids >= rare.start) & (ids < rare.stop), tail.of_ids(ids), 0.0)
    moved = _logits(block) - _logits(default)
    bias = moved - effects
    assert effects.std() > 0.5
    np.testing.assert_allclose(bias, np.median(bias), atol=1e-3)


def test_a_large_share_of_later_rows_holds_ids_seen_two_to_nine_times() -> None:
    later = stream().block("test", 0)
    for position in stream().tail:
        cardinality = stream().fields[position].cardinality
        seen = np.bincount(np.concatenate([block.ids[position] for block in train_blocks()]), minlength=2)
        seen = np.pad(seen, (0, cardinality + 2 - len(seen)))
        times = seen[later.ids[position]]
        assert (times < 10).mean() > 0.15
        assert ((times > 1) & (times < 10)).mean() > 0.06


def test_ids_seen_fewer_than_ten_times_carry_loss_that_labels_can_teach() -> None:
    """Ids with two to nine labels, all else known: the mean of their residuals predicts later rows."""
    later = stream().block("test", 0)
    gained, accesses = 0.0, 0
    for position, tail in stream().tail.items():
        field = stream().fields[position]
        ids = np.concatenate([block.ids[position] for block in train_blocks()])
        chances = np.concatenate(
            [_without(tail, field.rare_ids, block, position) for block in train_blocks()]
        )
        labels = np.concatenate([block.labels for block in train_blocks()])
        size = field.cardinality + 2
        slope = np.bincount(ids, labels - chances, size)
        precision = np.bincount(ids, chances * (1 - chances), size) + TAIL_DEVIATION**-2
        seen = np.bincount(ids, minlength=size)
        estimate = np.where((seen > 1) & (seen < 10), slope / precision, 0.0)
        column = later.ids[position]
        rows = (column >= field.rare_ids.start) & (seen[column] > 1) & (seen[column] < 10)
        base = _without(tail, field.rare_ids, later, position)[rows]
        logits = np.log(base / (1 - base)) + estimate[column[rows]]
        with_estimates = (1.0 / (1.0 + np.exp(-logits))).astype(np.float32)
        gained += log_loss_sum(later.labels[rows], base.astype(np.float32))
        gained -= log_loss_sum(later.labels[rows], with_estimates)
        accesses += int(rows.sum())
    assert gained / accesses > 0.004


def _logits(block: SynthBlock) -> np.ndarray:
    chances = block.probabilities.astype(np.float64)
    return np.log(chances / (1.0 - chances))


def _without(tail: TailEffects, rare: range, block: SynthBlock, position: int) -> np.ndarray:
    """Click probabilities of a block without the effects of one field's rare ids."""
    ids = block.ids[position]
    effects = np.where((ids >= rare.start) & (ids < rare.stop), tail.of_ids(ids), 0.0)
    return 1.0 / (1.0 + np.exp(effects - _logits(block)))
