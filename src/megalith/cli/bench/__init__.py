"""`megalith bench`: this machine measured, beside the tools one would use instead."""

from megalith.cli.bench.commands import bench

__all__ = ["bench"]
