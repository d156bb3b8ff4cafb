"""Facades over the native core, and the plain twins that are the truth for each operator.

`table.OPERATORS` lists every operator with its twin. Modules that torch must know (`indices`) import torch;
those that prepare data (`text`) need only numpy, so that preparing data never pays for torch.
"""
