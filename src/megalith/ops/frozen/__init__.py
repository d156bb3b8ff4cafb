"""Frozen embedding rows: encoded in few bits, and pooled without being decoded first.

`formats` says how a row lies in memory, `encode` and `decode` go there and back, `prefix` is for rows that
keep only the first of their columns, `table` and `lookup` read bags of ids. The twins beside them are the
truth.
"""
