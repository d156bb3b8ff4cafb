"""A directory that grows as a source: new files are taken as they come, in order, each row once.

settings.py    the keys of a recipe
ledger.py      the order in which files were taken, kept by the run
files.py       which file is next: of the ledger, or one that has come
rows.py        the rows of these files, for the readers of a loader
loader.py      `GrowingLoader`: batches without an end, resumable at each
"""

from megalith.data.growing.loader import GrowingLoader
from megalith.data.growing.settings import GrowingConfig

__all__ = ["GrowingConfig", "GrowingLoader"]
