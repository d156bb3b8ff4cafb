"""What every backend must do, as checks that its author runs.

    megalith export DIR --check BACKEND          on a model of one's own
    conforms("mine")                             in a test, on small models that hold every operation

`docs/guides/backends.md` lists the checks. Each says what was asked, wanted and got.
"""

from megalith.export.backends.conformance.findings import Finding
from megalith.export.backends.conformance.suite import check_backend, conforms

__all__ = ["Finding", "check_backend", "conforms"]
