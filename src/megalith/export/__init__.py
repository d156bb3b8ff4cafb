"""Frozen models: tables and dense part of a trained run in few bits, checked, cut for a host and its cards.

`program` is the dense part as data, `manifest` what a model's folder says of itself. What opens a run is
`megalith.train`; a server needs this package and those below it.
"""
