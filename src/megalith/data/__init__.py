"""Click data: readers, bounded-memory preparation to Parquet, generated streams, statistics, the loader."""
