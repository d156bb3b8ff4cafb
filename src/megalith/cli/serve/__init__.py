"""Commands around serving: the server itself, load tests against it, and what differs between two models."""

from megalith.cli.serve.command import serve
from megalith.cli.serve.loadtest import loadtest

__all__ = ["loadtest", "serve"]
