"""What `megalith explore catalog` prints: models, devices, links, clusters, jobs and scenarios by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megalith.cli.output import print_table, say
from megalith.core.units import format_bandwidth, format_bytes, format_duration
from megalith.explore.load import job_names, scenario_names
from megalith.explore.models import model_catalog
from megalith.hardware.catalog import catalog


def catalog_content(hardware: Sequence[Path]) -> dict[str, Any]:
    """Everything with a name, as one object."""
    known = catalog(*hardware)
    return {
        "models": model_catalog(),
        "devices": {
            name: {
                "flops": dict(device.flops),
                "memory_bytes": device.memory[0].bytes,
                "memory_bytes_per_second": device.memory[0].bytes_per_second,
            }
            for name, device in known.devices.items()
        },
        "links": {
            name: {"bytes_per_second": link.bytes_per_second, "latency_seconds": link.latency_seconds}
            for name, link in known.links.items()
        },
        "clusters": {
            name: {
                "device": spec.device,
                "devices": known.build(spec).devices,
                "levels": [f"{level.count} {level.name} over {level.link}" for level in spec.levels],
            }
            for name, spec in known.clusters.items()
        },
        "jobs": job_names(),
        "scenarios": scenario_names(),
    }


def show_catalog(content: dict[str, Any]) -> None:
    """Tables of hardware, and the names of models and jobs."""
    print_table(
        "Devices",
        ["", "TFLOP/s", "memory", "bandwidth"],
        [
            [
                name,
                ", ".join(f"{kind} {flops / 1e12:.3g}" for kind, flops in device["flops"].items()),
                format_bytes(device["memory_bytes"]),
                f"{device['memory_bytes_per_second'] / 1e9:.4g} GB/s",
            ]
            for name, device in content["devices"].items()
        ],
    )
    print_table(
        "Links",
        ["", "each way", "latency"],
        [
            [name, format_bandwidth(link["bytes_per_second"]), format_duration(link["latency_seconds"])]
            for name, link in content["links"].items()
        ],
    )
    print_table(
        "Clusters, from the inside out",
        ["", "devices", "levels"],
        [
            [name, f"{cluster['devices']:,}", f"{cluster['device']}: {'; '.join(cluster['levels'])}"]
            for name, cluster in content["clusters"].items()
        ],
    )
    for title in ("models", "jobs", "scenarios"):
        say((title.capitalize(), "bold"), f": {', '.join(content[title])}")
