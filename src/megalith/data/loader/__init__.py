"""The loader: prepared Parquet to batches; sharded by rank, shuffled, prefetched, resumable at any batch.

plan.py      which rows come when: row groups, windows, shuffling
steps.py     which of those rows each step of a rank reads
decode.py    reads the rows of a window from Parquet
checks.py    checks columns, types and values
columns.py   the rows of a window as arrays
pieces.py    cuts windows into batches
packed.py    the batches of a window in one buffer, for readers in other processes
readers.py   who reads windows: threads of this process, or others
loader.py    runs all of it
"""

from megalith.data.loader.loader import Loader
from megalith.data.loader.plan import even_slice
from megalith.data.loader.steps import Share

__all__ = ["Loader", "Share", "even_slice"]
