"""What `explore search --out` writes: a folder for each plan with everything that runs it, and one report."""

from __future__ import annotations

from pathlib import Path

from megalith.core.config import to_yaml
from megalith.core.errors import StorageError, storage_errors
from megalith.core.files import new_folder, write_atomic
from megalith.explore.flags import trainer_files
from megalith.explore.job import Job
from megalith.explore.pipeline.chrome_trace import write_chrome
from megalith.explore.predict import predict
from megalith.explore.prediction import Prediction
from megalith.explore.search.result import SearchResult
from megalith.hardware.cluster import Cluster
from megalith.report import write_search_report


def write_trace(prediction: Prediction, path: Path) -> None:
    """The simulated step as a Chrome trace, which Perfetto opens."""
    if prediction.timeline is None:
        raise StorageError(f"{path} is not written: this kind of model has no simulated pipeline to trace.")
    write_chrome(prediction.timeline, path)


def check_folder(folder: Path, overwrite: bool) -> None:
    """Refuses a folder that cannot be written, before the search and not after it."""
    if folder.exists() and not overwrite:
        raise StorageError(f"{folder} exists already; choose another folder or pass --overwrite.")
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)


def write_plans(asked: Job, cluster: Cluster, result: SearchResult, folder: Path, overwrite: bool) -> None:
    """DIR/report.html and DIR/plan-N/{job.yaml, megatron.sh, torchtitan.toml, trace.json}, all or nothing."""
    with new_folder(folder, overwrite) as fresh:
        best: Prediction | None = None
        for rank, plan in enumerate(result.top, start=1):
            recorded = predict(plan.job, record=True)
            best = best or recorded
            target = fresh / f"plan-{rank}"
            write_atomic(target / "job.yaml", f"# {plan.provenance}\n{to_yaml(plan.job)}")
            for file in trainer_files(plan.job, recorded):
                write_atomic(target / file.name, file.text)
            if recorded.timeline is not None:
                write_trace(recorded, target / "trace.json")
        assert best is not None
        write_search_report(asked, cluster, result, best, fresh / "report.html")
