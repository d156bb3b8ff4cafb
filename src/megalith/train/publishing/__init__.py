"""Publishing a run while it trains: versions of a stream that servers follow."""
