"""`megalith export`: freeze a run, measure backends on what was frozen, cut it over a host's cards; and
`megalith diff`."""

from megalith.cli.export.command import export
from megalith.cli.export.diff import diff

__all__ = ["diff", "export"]
