"""Where two models, or two backends of one, first give other numbers: table by table, layer by layer."""

from megalith.export.difference.records import DifferenceReport, PlaceDifference
from megalith.export.difference.search import find_difference
from megalith.export.difference.sides import ComparedSide, FrozenSide

__all__ = ["ComparedSide", "DifferenceReport", "FrozenSide", "PlaceDifference", "find_difference"]
