"""A part of the search space, such as what a baseline may choose from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from megalith.explore.search.space.decisions import NetworkChoice, PipelineChoice, StateSharding
from megalith.explore.search.space.layouts import DeviceLayout


@dataclass(frozen=True, slots=True)
class Restriction:
    """A part of the search space: a test for each decision, and the networks to choose from."""

    layout: Callable[[DeviceLayout], bool] = lambda _: True
    sharding: Callable[[StateSharding], bool] = lambda _: True
    pipeline: Callable[[PipelineChoice], bool] = lambda _: True
    networks: tuple[NetworkChoice, ...] = ()
    """In place of all network options; empty: all."""
