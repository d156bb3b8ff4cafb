"""The dense part of a served model: linear layers of reduced precision, and whole programs in one call.

`csrc/dense` is the native side.
"""
