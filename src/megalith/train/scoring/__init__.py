"""What a trained run is for: scores of rows, raw or prepared, and the vectors of its tables."""
