"""Facades over the native core, and the plain twins that are the truth for each operator.

One folder for each family of operators, as in csrc/. `table.OPERATORS` lists every operator with its twin.
Families that work on tensors import torch; `text` needs only numpy, so that preparing data never pays for it.
"""
