"""What a cache of embedding rows in memory does over rows on disk, predicted before a run starts."""
