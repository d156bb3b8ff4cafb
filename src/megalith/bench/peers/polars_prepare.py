"""The peer of `megalith data prepare criteo`: the same work as a user of polars would write it.

    python -m megalith.bench.peers.polars_prepare INPUT.tsv OUT.parquet [MIN_COUNT]

Numbers become sign(x) log(1 + |x|); each categorical column becomes ids by falling count, 0 for a missing
value and 1 for a value seen fewer than MIN_COUNT times. Runs as its own process, so that its peak memory is
its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

NUMERIC = tuple(f"I{number}" for number in range(1, 14))
CATEGORICAL = tuple(f"C{number}" for number in range(1, 27))


def prepare(source: Path, target: Path, min_count: int) -> None:
    """Reads Criteo text, turns it into ids and numbers, and writes one Parquet file."""
    import polars as pl

    schema = {"label": pl.Int8, **dict.fromkeys(NUMERIC, pl.Int32), **dict.fromkeys(CATEGORICAL, pl.String)}
    frame = pl.read_csv(source, separator="\t", has_header=False, schema=schema)
    frame = frame.with_columns(
        pl.col("label").cast(pl.Float32),
        pl.col(*NUMERIC).sign().fill_null(0).cast(pl.Float32)
        * pl.col(*NUMERIC).abs().fill_null(0).cast(pl.Float32).log1p(),
    )
    for name in CATEGORICAL:
        column = frame.get_column(name)
        counts = (
            column.drop_nulls().value_counts(sort=True, name="count").filter(pl.col("count") >= min_count)
        )
        vocabulary = counts.select(pl.col(name), pl.int_range(2, len(counts) + 2, dtype=pl.Int32).alias("id"))
        ids = frame.select(name).join(vocabulary, on=name, how="left", maintain_order="left").get_column("id")
        missing = pl.when(column.is_null()).then(0).otherwise(1)
        filled = pl.select(pl.when(ids.is_null()).then(missing).otherwise(ids).cast(pl.Int32).alias(name))
        # One column at a time, so that a column's text is freed when its ids take its place.
        frame = frame.with_columns(filled.get_column(name))
    frame.write_parquet(target)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1)
