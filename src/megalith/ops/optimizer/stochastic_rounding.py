"""Stochastic rounding in plain torch: up or down at random, in proportion to the distance, and so right on
average.

The random numbers depend on the seed, the step, the table, the id of a row and the column alone, wherever the
row lies, as in csrc/simd/stochastic_rounding.h. They must never change, or runs would not resume.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import torch
from torch import Tensor

_MASK32, _GOLDEN = 0xFFFFFFFF, 0x9E3779B97F4A7C15


class RowRounding(NamedTuple):
    """What the rounding of a table depends on in one step; the order is that of csrc/optimizer/step.h."""

    seed: int
    """Of the seed, the step and the table's name: 64 bits with a sign."""
    first_row: int = 0
    """Of the whole table, where rows and columns of a part of it are counted from 0."""
    first_column: int = 0


def table_rounding_seed(table: str) -> int:
    """What a table's name adds to the seed of a step, 64 bits with a sign."""
    digest = hashlib.sha256(f"rounding:{table}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def round_at_random(values: Tensor, dtype: torch.dtype, ids: Tensor, rounding: RowRounding) -> Tensor:
    """float32 [rows, dim] to float16 or bfloat16; values beyond the type's range round to the nearest."""
    random = random_words(ids, values.shape[1], rounding)
    bits = values.view(torch.int32).long() & _MASK32
    sign, rest = bits & 0x80000000, bits & 0x7FFFFFFF
    if dtype == torch.bfloat16:
        rounded = _floats((bits + (random & 0xFFFF)) & 0xFFFF0000)
        return torch.where(rest >= 0x7F7F0000, values, rounded).to(dtype)
    normal = _floats((rest + (random & 0x1FFF)) & ~0x1FFF)
    multiple = _floats(rest) * 2.0**24 + (random >> 8).float() * 2.0**-24
    tiny = multiple.to(torch.int32).float() * 2.0**-24
    rounded = torch.where(rest < 0x38800000, tiny, normal)
    kept = torch.where(rest >= 0x477FE000, _floats(rest), rounded)
    return torch.where(sign != 0, -kept, kept).to(dtype)


def random_words(ids: Tensor, dim: int, rounding: RowRounding) -> Tensor:
    """32 random bits for each id and column, as int64 [ids, dim]."""
    row_seeds = [_mix(rounding.seed + (rounding.first_row + row) * _GOLDEN) for row in ids.tolist()]
    low = torch.tensor([word & _MASK32 for word in row_seeds], device=ids.device).unsqueeze(1)
    high = torch.tensor([word >> 32 for word in row_seeds], device=ids.device).unsqueeze(1)
    columns = torch.arange(rounding.first_column, rounding.first_column + dim, device=ids.device)
    word = (columns * 0x9E3779B1 + low) & _MASK32
    word = _times(word ^ (word >> 16), 0x85EBCA6B)
    word = _times(word ^ high ^ (word >> 13), 0xC2B2AE35)
    return word ^ (word >> 16)


def _mix(word: int) -> int:
    word &= 2**64 - 1
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
    return word ^ (word >> 31)


def _times(words: Tensor, factor: int) -> Tensor:
    """The low 32 bits of a product, without overflow of 63 bits."""
    low, high = words & 0xFFFF, words >> 16
    return (low * factor + ((high * (factor & 0xFFFF) & 0xFFFF) << 16)) & _MASK32


def _floats(bits: Tensor) -> Tensor:
    signed = torch.where(bits >= 2**31, bits - 2**32, bits)
    return signed.to(torch.int32).view(torch.float32)
