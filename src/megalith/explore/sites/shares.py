"""Which stages, layers and samples each of several sites takes.

A site gets as many replicas, or stages, as its devices hold. Layers and samples then follow its speed: no
site should wait for another longer than one layer or one micro-batch takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from megalith.core.errors import PlanError
from megalith.explore.job import Parallel, TransformerModel
from megalith.hardware.sites import SiteCluster

_AROUND = 3
"""Rounds of micro-batches more or fewer than its share that a site is tried with."""
_MOST_TRIED = 200_000


def crossing_axis(parallel: Parallel) -> str:
    """The axis whose members lie on different sites: the outermost of more than one member."""
    if any(":" in entry for entry in parallel.placement):
        raise PlanError(
            f"parallel.placement {' '.join(parallel.placement)} cuts an axis, which sites that differ do not "
            "take; name each axis once, the one across sites last."
        )
    named = [
        *parallel.placement,
        *(axis for axis in ("tp", "cp", "dp", "pp") if axis not in parallel.placement),
    ]
    axis = next((axis for axis in reversed(named) if getattr(parallel, axis) > 1), "dp")
    if axis not in ("dp", "pp"):
        raise PlanError(
            f"parallel.placement puts {axis} across sites that differ; put dp or pp last, with more than one "
            "member."
        )
    return axis


def members_per_site(parallel: Parallel, sites: SiteCluster, axis: str) -> tuple[int, ...]:
    """Replicas, or stages, on each site: as many as its devices hold."""
    inner = prod(getattr(parallel, name) for name in ("tp", "cp", "dp", "pp") if name != axis)
    held = tuple(site.devices // inner for site in sites.sites)
    none = next((site.name for site, count in zip(sites.sites, held, strict=True) if not count), None)
    if none:
        raise PlanError(
            f"Site '{none}' has fewer than the {inner} devices of one {axis} member; lower tp or cp."
        )
    wanted = getattr(parallel, axis)
    if sum(held) != wanted:
        raise PlanError(
            f"parallel.{axis}={wanted} is not what the sites hold, {' + '.join(map(str, held))}; take "
            f"parallel.{axis}={sum(held)}."
        )
    return held


def layers_by_speed(
    model: TransformerModel, parallel: Parallel, layer_seconds: Sequence[float], head_seconds: Sequence[float]
) -> tuple[int, ...]:
    """Layers of each virtual stage, so that the slowest pipeline rank has as little to do as it can.

    `layer_seconds` is what a layer takes on each pipeline rank, `head_seconds` what the output head would.
    """
    if parallel.layers_per_stage is not None:
        return parallel.layers_per_stage
    pp, vpp = parallel.pp, parallel.vpp
    if len(set(layer_seconds)) == 1 and model.layers % (pp * vpp) == 0:
        return (model.layers // (pp * vpp),) * (pp * vpp)
    load = [0.0] * pp
    load[-1] += head_seconds[-1]
    counts = [0] * (pp * vpp)
    for _ in range(model.layers):
        rank = min(range(pp), key=lambda one: (load[one] + layer_seconds[one], one))
        load[rank] += layer_seconds[rank]
        chunk = min(range(vpp), key=lambda one: counts[one * pp + rank])
        counts[chunk * pp + rank] += 1
    return tuple(counts)


def samples_by_speed(
    parallel: Parallel, units: Sequence[int], unit_seconds: Sequence[float]
) -> tuple[int, ...]:
    """Samples of each site that add up to the batch, for the shortest step.

    `units` is what a site takes in one round (replicas x micro-batch), `unit_seconds` how long that lasts.
    """
    batch = parallel.global_batch
    if parallel.batch_per_site is not None:
        given = parallel.batch_per_site
        if len(given) != len(units) or sum(given) != batch:
            raise PlanError(
                f"parallel.batch_per_site has {len(given)} entries that sum to {sum(given)}; give "
                f"{len(units)} that sum to global_batch={batch}."
            )
        short = next((at for at, count in enumerate(given) if count % units[at] or not count), None)
        if short is not None:
            raise PlanError(
                f"parallel.batch_per_site: {given[short]} is not a multiple of the replicas of site "
                f"{short + 1} x micro_batch = {units[short]}; take "
                f"{max(1, round(given[short] / units[short])) * units[short]} there."
            )
        return given
    rates = [unit / seconds for unit, seconds in zip(units, unit_seconds, strict=True)]
    shares = [max(1, int(batch * rate / sum(rates) / unit)) for rate, unit in zip(rates, units, strict=True)]
    options = [list(range(max(1, share - _AROUND), share + _AROUND + 1)) for share in shares[:-1]]
    if prod(len(option) for option in options) > _MOST_TRIED:
        options = [option[_AROUND : _AROUND + 2] for option in options]
    best: tuple[float, tuple[int, ...]] | None = None
    for rounds in product(*options):
        left = batch - sum(count * unit for count, unit in zip(rounds, units, strict=False))
        if left <= 0 or left % units[-1]:
            continue
        every = (*rounds, left // units[-1])
        longest = max(count * seconds for count, seconds in zip(every, unit_seconds, strict=True))
        if best is None or longest < best[0]:
            best = longest, every
    if best is None:
        fix = sum(share * unit for share, unit in zip(shares, units, strict=True))
        raise PlanError(
            f"parallel.global_batch={batch} cannot be split into rounds of {', '.join(map(str, units))} "
            f"samples on the sites; take parallel.global_batch={fix}."
        )
    return tuple(count * unit for count, unit in zip(best[1], units, strict=True))
