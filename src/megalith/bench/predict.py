"""`megalith bench predict`: rows scored a second, from prepared data and from raw Parquet, beside the bare
forward pass of the same model over batches that lie in memory.

The raw file has the shape of Criteo: 26 columns of hexadecimal text and 13 of integers with gaps. All three
take turns in one process; model and vocabulary are loaded before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megalith.bench.runner import interleave, result, run_process

Say = Callable[[str], None]
FORWARD, PREPARED, RAW = "forward alone", "from prepared data", "from raw Parquet"
RECIPE = "criteo-dlrm"
_MEGALITH = (sys.executable, "-m", "megalith")
_TRAINING_STEPS = 20
_NUMBERS = [f"I{number}" for number in range(1, 14)]
_TEXTS = [f"C{number}" for number in range(1, 27)]


def bench_predict(
    rows: int,
    workdir: Path,
    repeats: int = 5,
    threads: int | None = None,
    batch: int | None = None,
    say: Say = lambda _: None,
) -> dict[str, Any]:
    """Measures in `workdir`, and reuses the data and the run that an earlier one left there."""
    import torch

    from megalith.core.files import new_file
    from megalith.train.scoring.predict import PredictRequest, open_input, write_scores
    from megalith.train.scoring.scorer import Scorer

    workdir.mkdir(parents=True, exist_ok=True)
    raw, data, run = (workdir / f"{name}-{rows}" for name in ("raw", "prepared-raw", "scored"))
    raw = raw.with_suffix(".parquet")
    if not raw.exists():
        with new_file(raw) as partial:
            _write_raw(rows, workdir, partial, say)
    if not data.exists():
        say(f"preparing {rows:,} rows of Parquet")
        numbers = [word for name in _NUMBERS for word in ("--number", name)]
        run_process(
            [*_MEGALITH, "data", "prepare", "parquet", str(raw), *numbers, "--out", str(data), "--json"]
        )
    if not (run / "summary.json").exists():
        say("training the model that scores")
        changes = (f"data.path={data}", f"train.steps={_TRAINING_STEPS}", "train.tensorboard=no")
        run_process([*_MEGALITH, "train", RECIPE, *changes, "--out", str(run), "--overwrite", "--json"])
    if threads is not None:
        torch.set_num_threads(threads)
    scorer = Scorer(run)
    out = workdir / "scores.parquet"

    def request(path: Path, split: str | None = None) -> PredictRequest:
        return PredictRequest(run, (path,), out, split, batch=batch, threads=threads)

    say("reading the batches of the forward pass")
    batches = list(open_input(scorer, request(data, "train")).stream())
    learner = scorer.learner

    def forward() -> None:
        with torch.inference_mode():
            for each in batches:
                learner.predict(each)

    def predict(path: Path, split: str | None = None) -> None:
        write_scores(scorer, open_input(scorer, request(path, split)), out)

    say(f"scoring {rows:,} rows, {1 + repeats} rounds of three")
    candidates = {
        FORWARD: forward,
        PREPARED: lambda: predict(data, "train"),
        RAW: lambda: predict(raw),
    }
    timings = interleave(candidates, repeats)
    out.unlink()
    measured: dict[str, Any] = {
        name: {"rows_per_second": timing.rate(rows), **timing.to_dict()} for name, timing in timings.items()
    }
    settings = {
        "rows": rows,
        "repeats": repeats,
        "recipe": RECIPE,
        "batch": batch or scorer.batch_size,
        "threads": torch.get_num_threads(),
        "raw_bytes": raw.stat().st_size,
    }
    ratios = {name: timings[FORWARD].median / timings[name].median for name in (PREPARED, RAW)}
    results = {"candidates": measured, "share_of_forward": ratios}
    return result("predict", settings, results, workdir)


def _write_raw(rows: int, workdir: Path, target: Path, say: Say) -> None:
    """Generated clicks as a log has them: text and integers, with gaps."""
    import pyarrow as pa
    import pyarrow.csv as pc_csv
    import pyarrow.parquet as pq

    text = workdir / f"text-{rows}" / "train.tsv"
    if not text.exists():
        say(f"generating {rows:,} rows")
        only_train = ("--valid-rows", "0", "--test-rows", "0")
        options = ("--rows", str(rows), *only_train, "--format", "text", "--out", str(text.parent), "--json")
        run_process([*_MEGALITH, "data", "synth", "criteo", *options])
    types = {"label": pa.int8()} | dict.fromkeys(_NUMBERS, pa.int32()) | dict.fromkeys(_TEXTS, pa.string())
    reader = pc_csv.open_csv(
        text,
        read_options=pc_csv.ReadOptions(column_names=list(types)),
        parse_options=pc_csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=pc_csv.ConvertOptions(column_types=types, strings_can_be_null=True, null_values=[""]),
    )
    with reader, pq.ParquetWriter(target, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
