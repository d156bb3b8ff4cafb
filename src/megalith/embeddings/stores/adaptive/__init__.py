"""Adaptive tables: rows cut into chunks, of which those live that one budget has room for."""
