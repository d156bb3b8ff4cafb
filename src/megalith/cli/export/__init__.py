"""`megalith export`: freeze a run, measure backends on what was frozen, cut it over a host's cards."""

from megalith.cli.export.command import export

__all__ = ["export"]
