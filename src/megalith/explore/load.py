"""Jobs from files, names and mappings: catalog names are replaced by their descriptions, then validated.

load_job("job.yaml", ["parallel.tp=4"])      a file
load_job("llama3-405b-two-buildings")        an example or a scenario of the package
load_job({"model": "llama3-70b", "cluster": "dgx-h100", "global_batch": 512})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from megalith.core.config import apply_overrides, load_yaml, parse_config
from megalith.core.errors import ConfigError, nearest
from megalith.explore.job import ClusterSpec, Job
from megalith.explore.models import describe_model
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster
from megalith.hardware.sites import SiteCluster

_SCENARIOS = Path(__file__).parent / "scenarios"
_JOBS = Path(__file__).parent / "jobs"


def load_job(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    hardware: Sequence[str | Path] = (),
) -> Job:
    """The job that `source` describes; `hardware` names YAML files whose entries join the catalog."""
    content, origin = _content(source)
    files = (*_hardware(content, origin), *(str(path) for path in hardware))
    content = {**content, "hardware": tuple(files)}
    # Names first, so that an override can reach into what a name stands for; and once more for names in
    # overrides.
    content = _names_replaced(apply_overrides(_names_replaced(content, origin), overrides), origin)
    job = parse_config(Job, content, origin, overrides=overrides)
    if resolve_sites(job) is None:
        resolve_cluster(job.cluster, job.hardware)
    return job


def resolve_cluster(spec: ClusterSpec, hardware: tuple[str, ...] = ()) -> Cluster:
    """The cluster behind a description, with the catalog's figures."""
    return _resolved(spec, hardware)


def resolve_sites(job: Job) -> SiteCluster | None:
    """The job's sites where they differ; None for a cluster whose members are all alike."""
    if not job.cluster.sites:
        return None
    return _resolved_sites(job.cluster, job.hardware)


@lru_cache(maxsize=64)
def _resolved_sites(spec: ClusterSpec, hardware: tuple[str, ...]) -> SiteCluster | None:
    sites = catalog(*(Path(path) for path in hardware)).build_sites(spec)
    return None if sites.plain() is not None else sites


@lru_cache(maxsize=256)
def _resolved(spec: ClusterSpec, hardware: tuple[str, ...]) -> Cluster:
    return catalog(*(Path(path) for path in hardware)).build(spec)


def job_names() -> list[str]:
    """The examples that ship with the package."""
    return sorted(path.stem for path in _JOBS.glob("*.yaml"))


def scenario_names() -> list[str]:
    """The scenarios of the suite that ship with the package."""
    return sorted(path.stem for path in _SCENARIOS.glob("*.yaml"))


def _content(source: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    if isinstance(source, Mapping):
        return dict(source), "job"
    path = Path(source)
    if path.suffix in (".yaml", ".yml", ".json") or path.exists():
        return load_yaml(path), str(path)
    for folder in (_JOBS, _SCENARIOS):
        named = folder / f"{source}.yaml"
        if named.exists():
            return load_yaml(named), str(source)
    close = nearest(str(source), [*job_names(), *scenario_names()])
    offer = close if close.startswith("did") else f"try {job_names()[0]}, or see `megalith explore catalog`."
    raise ConfigError(f"'{source}' is neither a file nor a job of the package; {offer}")


def _hardware(content: Mapping[str, Any], origin: str) -> tuple[str, ...]:
    listed = content.get("hardware") or ()
    if not isinstance(listed, (list, tuple)) or not all(isinstance(path, str) for path in listed):
        raise ConfigError(f"{origin}: key 'hardware' must be a list of YAML files.")
    return tuple(listed)


def _names_replaced(content: dict[str, Any], origin: str) -> dict[str, Any]:
    content = dict(content)
    model, cluster = content.get("model"), content.get("cluster")
    if isinstance(model, str):
        content["model"] = describe_model(model)
    elif isinstance(model, dict) and "base" in model:
        content["model"] = {
            **describe_model(str(model["base"])),
            **{k: v for k, v in model.items() if k != "base"},
        }
    elif isinstance(model, dict):
        content["model"] = {"kind": "transformer", **model}
    known = catalog(*(Path(path) for path in _hardware(content, origin)))
    if isinstance(cluster, str):
        content["cluster"] = known.cluster_spec(cluster).model_dump(mode="json", exclude_unset=True)
    elif isinstance(cluster, dict) and "base" in cluster:
        base = known.cluster_spec(str(cluster["base"])).model_dump(mode="json", exclude_unset=True)
        content["cluster"] = {**base, **{k: v for k, v in cluster.items() if k != "base"}}
    if content.get("model") is None or content.get("cluster") is None:
        missing = "model" if content.get("model") is None else "cluster"
        raise ConfigError(f"{origin}: key '{missing}' is missing; add it (a name of the catalog will do).")
    return content
