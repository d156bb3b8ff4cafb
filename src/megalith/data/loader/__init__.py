"""The loader: prepared Parquet to batches; sharded by rank, shuffled, prefetched, resumable at any batch.

plan.py says which rows come when, decode.py reads and checks them, pieces.py cuts them into batches, and
loader.py runs the three on threads.
"""

from megalith.data.loader.loader import Loader, Share
from megalith.data.loader.plan import even_slice

__all__ = ["Loader", "Share", "even_slice"]
