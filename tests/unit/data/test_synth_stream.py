"""Generated rows have the shape of the real data, and their labels follow the planted truth."""

from __future__ import annotations

import csv
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from megalith.core.errors import ConfigError
from megalith.data.dataset import MISSING_ID
from megalith.data.synth.calibrate import observe
from megalith.data.synth.calibration import SynthSource, load_shape
from megalith.data.synth.options import SynthOptions
from megalith.data.synth.stream import BLOCK_ROWS, SynthStream
from megalith.data.synth.truth import entropy, log_loss_sum

SOURCES: tuple[SynthSource, ...] = ("criteo", "avazu")
REAL_DATA = Path(__file__).parents[4] / "shared" / "data"


@cache
def full_stream(source: SynthSource) -> SynthStream:
    return SynthStream(SynthOptions(source, train_rows=load_shape(source).rows, drift=0.0, scale=1.0))


@cache
def drifting_stream(drift: float) -> SynthStream:
    return SynthStream(SynthOptions("criteo", train_rows=40 * BLOCK_ROWS, drift=drift))


@pytest.mark.parametrize("source", SOURCES)
def test_ids_are_as_skewed_as_those_of_the_real_head(source: SynthSource) -> None:
    stream = full_stream(source)
    rows = stream.shape.observed_rows
    blocks = [stream.block("train", number) for number in range(3)]
    for place, field in enumerate(stream.fields):
        real = field.shape.observed
        if real is None:
            continue
        shown = []
        for block in blocks:
            ids = block.ids[place][:rows]
            present = observe(ids[ids != MISSING_ID], rows)
            missing = float((ids == MISSING_ID).mean())
            shown.append([present.top1, present.top10, present.top100, present.once, missing])
        wanted = [real.top1, real.top10, real.top100, real.once, field.shape.missing]
        np.testing.assert_allclose(np.mean(shown, axis=0), wanted, atol=0.025, err_msg=field.shape.name)


@pytest.mark.parametrize("source", SOURCES)
def test_click_rate_and_predictability_are_those_of_the_real_data(source: SynthSource) -> None:
    blocks = [full_stream(source).block("train", number) for number in range(0, 400, 50)]
    labels = np.concatenate([block.labels for block in blocks])
    probabilities = np.concatenate([block.probabilities for block in blocks])
    assert labels.mean() == pytest.approx(load_shape(source).click_rate, abs=0.01)
    best_ne = log_loss_sum(labels, probabilities) / len(labels) / entropy(float(labels.mean()))
    assert 0.75 < best_ne < 0.86


def test_fields_of_a_group_are_missing_together() -> None:
    block = full_stream("criteo").block("train", 0)
    names = [field.shape.name for field in full_stream("criteo").fields]
    absent = {name: block.ids[names.index(name)] == MISSING_ID for name in names}
    assert absent["C19"].mean() == pytest.approx(0.453, abs=0.02)
    for name in ("C20", "C25", "C26"):
        np.testing.assert_array_equal(absent[name], absent["C19"])
    assert absent["C22"].mean() == pytest.approx(0.817, abs=0.02)


def test_numbers_have_the_real_quantiles_and_are_missing_as_often() -> None:
    stream = full_stream("criteo")
    block = stream.block("train", 0)
    for place, shape in enumerate(stream.shape.numeric):
        gone = block.numbers_missing[place]
        missing = np.zeros(BLOCK_ROWS, dtype=bool) if gone is None else gone
        assert missing.mean() == pytest.approx(shape.missing, abs=0.02)
        shown = np.quantile(block.numbers[place][~missing], (0.5, 0.9))
        for value, wanted in zip(shown, (shape.quantiles[6], shape.quantiles[10]), strict=True):
            assert np.log1p(value) == pytest.approx(np.log1p(wanted), abs=0.2), shape.name
        np.testing.assert_array_equal(block.logs[place][missing], 0.0)


def test_labels_follow_the_probabilities() -> None:
    blocks = [drifting_stream(0.1).block("train", number) for number in range(20)]
    labels = np.concatenate([block.labels for block in blocks])
    probabilities = np.concatenate([block.probabilities for block in blocks])
    for group in np.array_split(np.argsort(probabilities), 20):
        deviation = float(np.sqrt(probabilities[group].mean() / len(group)))
        assert labels[group].mean() == pytest.approx(probabilities[group].mean(), abs=5 * deviation)


def test_a_block_is_the_same_whenever_it_is_made() -> None:
    options = SynthOptions("avazu", train_rows=3 * BLOCK_ROWS, valid_rows=100, seed=5)
    first, second = SynthStream(options), SynthStream(options)
    later = second.block("train", 2)
    assert len(first.block("valid", 0).labels) == 100
    for one, other in zip(first.block("train", 2).ids, later.ids, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(first.block("train", 2).probabilities, later.probabilities)


def test_drift_changes_the_top_ids_over_time() -> None:
    assert _shared_top_ids(drifting_stream(1.0)) < 0.6
    assert _shared_top_ids(drifting_stream(0.1)) < 0.99


def test_without_drift_the_top_ids_stay() -> None:
    stream = drifting_stream(0.0)
    assert all((field.effects.slope == 0).all() for field in stream.fields)
    assert _shared_top_ids(stream) > 0.9


def test_ids_enter_that_were_never_seen_before() -> None:
    stream = drifting_stream(1.0)
    place = [field.shape.name for field in stream.fields].index("C3")
    early = set(stream.block("train", 0).ids[place].tolist())
    frequent_late = [
        one for one, count in Counter(stream.block("train", 39).ids[place].tolist()).items() if count > 20
    ]
    assert any(one not in early for one in frequent_late)


def test_hours_rise_from_the_first_to_the_last() -> None:
    stream = SynthStream(SynthOptions("avazu", train_rows=20_000, test_rows=1000))
    hours = np.concatenate([stream.block("train", 0).ids[0], stream.block("train", 1).ids[0]])
    assert (np.diff(hours) >= 0).all()
    assert hours[0] == 2
    assert stream.block("test", 0).ids[0][-1] == 2 + 239


def test_bags_move_the_probability() -> None:
    stream = SynthStream(SynthOptions("criteo", train_rows=BLOCK_ROWS, multi_hot=2))
    block = stream.block("train", 0)
    bag, field = block.bags[0], stream.bag_fields[0]
    lengths = np.diff(bag.offsets)
    assert lengths.min() == 0
    assert 3 < lengths.mean() < 7
    best = int(np.argmax(field.effects.start[:20])) + 2
    holding = np.zeros(BLOCK_ROWS, dtype=bool)
    holding[np.repeat(np.arange(BLOCK_ROWS), lengths)[bag.ids == best]] = True
    assert block.probabilities[holding].mean() > block.probabilities[~holding].mean()


@pytest.mark.parametrize("source", SOURCES)
def test_ids_stay_inside_the_declared_range(source: SynthSource) -> None:
    for scale in (0.001, 1.0, "auto"):
        stream = SynthStream(SynthOptions(source, train_rows=50_000, drift=1.0, scale=scale))
        block = stream.block("train", 3)
        for field, ids in zip(stream.fields, block.ids, strict=True):
            assert ids.min() >= 0
            assert ids.max() < field.cardinality + 2, field.shape.name


def test_the_full_scale_has_the_published_number_of_ids() -> None:
    assert sum(field.cardinality for field in full_stream("criteo").fields) == 33_762_577
    assert sum(field.cardinality for field in full_stream("avazu").fields) == 9_449_445


@pytest.mark.parametrize(
    "wrong",
    [
        {"train_rows": 0},
        {"test_rows": -1},
        {"drift": 1.5},
        {"scale": 0.0},
        {"scale": 2.0},
        {"multi_hot": -1},
        {"seed": -1},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        SynthOptions(**{"source": "criteo", "train_rows": 10, **wrong}).check()  # type: ignore[arg-type]


@pytest.mark.skipif(not REAL_DATA.exists(), reason=f"real data is not at {REAL_DATA}")
@pytest.mark.parametrize("source", SOURCES)
def test_the_calibration_is_that_of_the_real_head(source: SynthSource) -> None:
    if source == "criteo":
        lines = (REAL_DATA / "criteo" / "head_8000.tsv").read_text().splitlines()
        columns = list(zip(*(line.split("\t") for line in lines), strict=True))
        named = {f"C{place}": columns[13 + place] for place in range(1, 27)}
    else:
        with (REAL_DATA / "avazu" / "head_9000.csv").open() as file:
            header, *rows = csv.reader(file)
        named = dict(zip(header, zip(*rows, strict=True), strict=True))
    for shape in load_shape(source).categorical:
        if shape.observed is None:
            continue
        present = [value for value in named[shape.name] if value]
        real = observe(present, len(named[shape.name]))
        assert real.top1 == pytest.approx(shape.observed.top1, abs=1e-3)
        assert real.top10 == pytest.approx(shape.observed.top10, abs=1e-3)
        assert real.top100 == pytest.approx(shape.observed.top100, abs=1e-3)
        assert real.once == pytest.approx(shape.observed.once, abs=1e-3)
        assert 1 - len(present) / len(named[shape.name]) == pytest.approx(shape.missing, abs=1e-3)


def _shared_top_ids(stream: SynthStream) -> float:
    """Of the 60 top ids of some fields at the start, the share still among the top 90 at the end."""
    kept = []
    for place, field in enumerate(stream.fields):
        if field.shape.name in ("C2", "C3", "C18", "C24"):
            early, late = (
                np.concatenate([stream.block("train", number).ids[place] for number in numbers])
                for numbers in (range(4), range(36, 40))
            )
            top = [one for one, _ in Counter(early.tolist()).most_common(60)]
            still = {one for one, _ in Counter(late.tolist()).most_common(90)}
            kept.append(np.mean([one in still for one in top]))
    return float(np.mean(kept))
