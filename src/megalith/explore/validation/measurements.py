"""Published measurements of training steps: rows of llm_training.csv, and the jobs that they ran."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megalith.core.errors import DataError
from megalith.core.files import read_text
from megalith.explore.job import ClusterSpec, Job, LevelSpec, Network, Parallel, Training, TransformerModel

FOLDER = Path(__file__).parent
MeasurementRow = dict[str, str]
"""Column -> text, as in the CSV file."""


def read_rows(path: Path | None = None) -> list[MeasurementRow]:
    """The rows of a file of measurements; one of the user's must have the columns of ours."""
    shipped = FOLDER / "llm_training.csv"
    text = read_text(path or shipped, fix=f"write a table like {shipped}", missing="check the path")
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""))
        rows = list(reader)
    except csv.Error as error:
        raise DataError(f"{path} is not CSV ({error}); write a table like {shipped}.") from error
    if path is not None and path.parent != FOLDER:
        wanted = list(read_rows()[0])
        lacking = next((name for name in wanted if name not in (reader.fieldnames or ())), None)
        if lacking is not None:
            raise DataError(f"{path} has no column '{lacking}'; write a table like {shipped}.")
        if not rows:
            raise DataError(f"{path} holds no measurements; add a row for each.")
    return rows


def job_of(row: MeasurementRow) -> Job:
    """A row of llm_training.csv as a job; what the source does not say stays blank."""
    hopper = row["gpu"].startswith(("h100", "h200"))
    per_node = int(row["gpus_per_node"])
    # vTrain's machines have 800 Gb/s a node; Selene and Eos one adapter of 200 or 400 Gb/s per GPU.
    outer = (
        "ib-ndr400x8" if hopper else "ib-hdr200x4" if row["source"].startswith("vTrain") else "ib-hdr200x8"
    )
    nodes = max(1, -(-int(row["gpus"]) // per_node))
    levels = [LevelSpec(name="node", count=per_node, link="nvlink4" if hopper else "nvlink3")]
    levels.append(LevelSpec(name="zone", count=nodes, link=outer))
    pp, vpp = int(row["pp"]), row["vpp"]
    parallel: dict[str, Any] = {
        "tp": int(row["tp"]),
        "pp": pp,
        "dp": int(row["dp"]),
        "global_batch": int(row["global_batch"]),
        "sequence_parallel": row["sequence_parallel"] == "yes",
    }
    if vpp:
        parallel["vpp"] = int(vpp)
    if row["micro_batch"]:
        parallel["micro_batch"] = int(row["micro_batch"])
    training: dict[str, Any] = {"precision": row["precision"]}
    if row["recompute"]:
        training["recompute"] = row["recompute"]
    if vpp:
        training["schedule"] = "interleaved" if int(vpp) > 1 else "1f1b"
    return Job(
        name=row["id"],
        model=TransformerModel(
            hidden=int(row["hidden"]),
            layers=int(row["layers"]),
            heads=int(row["heads"]),
            vocab=int(row["vocab"]),
            seq=int(row["seq"]),
        ),
        cluster=ClusterSpec(device=row["gpu"], levels=tuple(levels)),
        parallel=Parallel(**parallel),
        training=Training(**training),
        network=Network(),
    )


def fitted_rows(rows: Sequence[MeasurementRow]) -> set[str]:
    """Ids of the rows that constants were fitted on: every second row of the table, beginning with the
    first."""
    return {row["id"] for row in rows[::2]}


def group_of(row: MeasurementRow) -> str:
    """The group of rows whose errors are summed up together."""
    if int(row["tp"]) > 8:
        return "TP=16"
    if int(row["tp"]) == 2 and row["params_b"] == "39.1":
        return "TP=2 of 39.1B"
    return "TP at most 8"
