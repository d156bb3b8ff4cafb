"""Reads the numbers of `criteo.yaml` and `avazu.yaml` off the head of the real file.

    python -m megalith.data.synth.calibrate criteo head_8000.tsv > criteo.yaml

The shares that a sample of n rows shows are not those of the source: chance lifts the top hundred of a flat
field, and most of a long tail is not seen. So the shares and the tail exponent are moved until samples of the
generator, of the same n, show what the head shows.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from megalith.data.synth.calibration import (
    KNOT_QUANTILES,
    KNOT_RANKS,
    CalibratedSource,
    CategoricalShape,
    DatasetShape,
    NumericShape,
    Observed,
)
from megalith.data.synth.sampler import STEPS, id_table

CRITEO_CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10,
    5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
CRITEO_MISSING_GROUPS = {
    **dict.fromkeys(("C19", "C20", "C25", "C26"), "profile"),
    **dict.fromkeys(("C3", "C4", "C12", "C16", "C21", "C24"), "item"),
    **dict.fromkeys(("I1", "I10"), "history"),
    **dict.fromkeys(("I7", "I9", "I11"), "activity"),
    **dict.fromkeys(("I4", "I13"), "session"),
}
AVAZU_CARDINALITIES = {
    "hour": 240, "C1": 7, "banner_pos": 7, "site_id": 4737, "site_domain": 7745, "site_category": 26,
    "app_id": 8552, "app_domain": 559, "app_category": 36, "device_id": 2686408, "device_ip": 6729486,
    "device_model": 8251, "device_type": 5, "device_conn_type": 4, "C14": 2626, "C15": 8, "C16": 9,
    "C17": 435, "C18": 4, "C19": 68, "C20": 172, "C21": 60,
}  # fmt: skip
AVAZU_TEXT_BASES = {
    "C1": 1001, "banner_pos": 0, "device_type": 0, "device_conn_type": 0, "C14": 15701, "C15": 216, "C16": 36,
    "C17": 1722, "C18": 0, "C19": 35, "C20": 100000, "C21": 13,
}  # fmt: skip

_SAMPLES = 12
_ROUNDS = 6


def calibrate_criteo(path: Path) -> DatasetShape:
    """The shape of Criteo Kaggle, from the first rows of its `train.txt`."""
    rows = [line.rstrip("\n").split("\t") for line in path.open(encoding="utf-8")]
    columns = list(zip(*rows, strict=True))
    numeric = [_numeric(f"I{position}", columns[position]) for position in range(1, 14)]
    categorical = [
        _categorical(f"C{position + 1}", cardinality, columns[14 + position])
        for position, cardinality in enumerate(CRITEO_CARDINALITIES)
    ]
    return DatasetShape(
        source="criteo",
        rows=45_840_617,
        click_rate=0.256,
        observed_rows=len(rows),
        numeric=tuple(numeric),
        categorical=tuple(categorical),
    )


def calibrate_avazu(path: Path) -> DatasetShape:
    """The shape of Avazu, from the first rows of its `train` file."""
    header, *rows = [line.rstrip("\n").split(",") for line in path.open(encoding="utf-8")]
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    categorical = [CategoricalShape(name="hour", cardinality=AVAZU_CARDINALITIES["hour"], text="hour")]
    for name, cardinality in list(AVAZU_CARDINALITIES.items())[1:]:
        fitted = _categorical(name, cardinality, columns[name])
        if name in AVAZU_TEXT_BASES:
            fitted = fitted.model_copy(update={"text": "integer", "text_base": AVAZU_TEXT_BASES[name]})
        categorical.append(fitted)
    return DatasetShape(
        source="avazu",
        rows=40_428_967,
        click_rate=0.17,
        observed_rows=len(rows),
        categorical=tuple(categorical),
    )


def observe(ids: Sequence[object] | NDArray[np.int32], rows: int) -> Observed:
    """Shares of the most frequent ids, and of rows whose id is seen once."""
    counts = np.sort(np.fromiter(Counter(list(ids)).values(), dtype=np.int64))[::-1]
    top = [float(counts[:most].sum()) / rows for most in (1, 10, 100)]
    return Observed(top1=top[0], top10=top[1], top100=top[2], once=float((counts == 1).sum()) / rows)


def _numeric(name: str, column: Sequence[str]) -> NumericShape:
    present = np.array([int(value) for value in column if value])
    return NumericShape(
        name=name,
        missing=round(1.0 - len(present) / len(column), 4),
        missing_group=CRITEO_MISSING_GROUPS.get(name),
        quantiles=tuple(float(round(value)) for value in np.quantile(present, KNOT_QUANTILES)),
    )


def _categorical(name: str, cardinality: int, column: Sequence[str]) -> CategoricalShape:
    present = [value for value in column if value]
    counts = np.array(sorted(Counter(present).values(), reverse=True))
    ranks = [rank for rank in KNOT_RANKS if rank <= len(counts)]
    target = np.array([counts[:rank].sum() for rank in ranks]) / len(present)
    once = float((counts == 1).sum()) / len(present)
    shares, exponent = target.copy(), 0.5
    for _ in range(_ROUNDS):
        low, high = 0.0, 2.0
        for _ in range(12):
            exponent = (low + high) / 2
            _, seen_once = _simulate(cardinality, shares, exponent, len(present), ranks)
            # A steeper tail repeats its ids.
            low, high = (exponent, high) if seen_once > once else (low, exponent)
        shown, _ = _simulate(cardinality, shares, exponent, len(present), ranks)
        shares = np.minimum(np.maximum.accumulate(shares * target / shown), 1.0)
    missing = round(1.0 - len(present) / len(column), 4)
    observed = observe(present, len(column))
    return CategoricalShape(
        name=name,
        cardinality=cardinality,
        missing=missing,
        missing_group=CRITEO_MISSING_GROUPS.get(name) if missing else None,
        shares=tuple(round(float(share), 5) for share in shares),
        tail_exponent=round(exponent, 3),
        observed=Observed(**{key: round(value, 4) for key, value in observed.model_dump().items()}),
    )


def _simulate(
    cardinality: int, shares: NDArray[np.float64], exponent: float, rows: int, ranks: Sequence[int]
) -> tuple[NDArray[np.float64], float]:
    shape = CategoricalShape(
        name="trial", cardinality=cardinality, shares=tuple(shares), tail_exponent=exponent
    )
    table = id_table(shape, cardinality)
    generator = np.random.default_rng(0)
    tops, once = np.zeros(len(ranks)), 0.0
    for _ in range(_SAMPLES):
        ids = table.draw(generator.integers(0, STEPS * STEPS, rows, dtype=np.uint32))
        counts = np.sort(np.unique(ids, return_counts=True)[1])[::-1]
        tops += np.array([counts[:rank].sum() for rank in ranks]) / rows
        once += float((counts == 1).sum()) / rows
    return tops / _SAMPLES, once / _SAMPLES


def main(source: CalibratedSource, path: Path) -> None:
    """Prints the YAML of a data set."""
    shape = calibrate_criteo(path) if source == "criteo" else calibrate_avazu(path)
    content = shape.model_dump(mode="json", exclude_defaults=True)
    yaml.safe_dump(content, sys.stdout, sort_keys=False, width=110, default_flow_style=None)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))  # type: ignore[arg-type]
