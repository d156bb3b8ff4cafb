"""Blocks as text: Criteo TSV and Avazu CSV, in the data sets' own formats.

Rows are laid out in a byte matrix of fixed width whose unused bytes are 0; without the zeros it is the text.
Hex digits and decimal digits come four at a time from tables.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from megalith.data.dataset import FIRST_ID, MISSING_ID
from megalith.data.synth.stream import SynthBlock, SynthStream

AVAZU_START = datetime(2014, 10, 21)

_HEX = np.frombuffer("".join(f"{value:04x}" for value in range(1 << 16)).encode(), dtype=np.uint32)
_PADDED = np.frombuffer("".join(f"{value:04d}" for value in range(10_000)).encode(), dtype=np.uint32)
_PLAIN = np.frombuffer(
    b"".join(str(value).rjust(4, "\0").encode() for value in range(10_000)), dtype=np.uint32
)
_INTEGER_WIDTH = 9
_HEX_WIDTH = 8


class LineFormatter:
    """Turns blocks of one stream into lines of text."""

    def __init__(self, stream: SynthStream) -> None:
        self.stream = stream
        self.criteo = stream.options.source == "criteo"
        self.separator = ord("\t" if self.criteo else ",")
        cardinalities = [field.cardinality for field in stream.fields]
        # Every id of every field has a number of its own, so that one scramble makes all of them distinct.
        self.first_numbers = np.concatenate([[0], np.cumsum(cardinalities)])[:-1]
        self.hours = _hour_words()

    @property
    def extension(self) -> str:
        """The ending of the file's name."""
        return "tsv" if self.criteo else "csv"

    def header(self) -> bytes:
        """The first line of the file; empty for Criteo, which has none."""
        if self.criteo:
            return b""
        names = ["id", "click", *(field.shape.name for field in self.stream.fields)]
        return (",".join(names) + "\n").encode()

    def lines(self, block: SynthBlock, first_row: int) -> bytes:
        """The rows of a block; `first_row` counts from the start of the stream."""
        rows = len(block.labels)
        columns: list[NDArray[np.uint8]] = []
        label = (block.labels.astype(np.uint8) + np.uint8(ord("0"))).reshape(rows, 1)
        if not self.criteo:
            columns.append(_row_names(np.arange(first_row, first_row + rows, dtype=np.uint64)))
        columns.append(label)
        for values, missing in zip(block.numbers, block.numbers_missing, strict=True):
            columns.append(_blank(_integers(values), missing))
        for position, ids in enumerate(block.ids):
            columns.append(self.id_column(position, ids))
        width = sum(column.shape[1] for column in columns) + len(columns)
        matrix = np.empty((rows, width), dtype=np.uint8)
        at = 0
        for column in columns:
            matrix[:, at : at + column.shape[1]] = column
            at += column.shape[1] + 1
            matrix[:, at - 1] = self.separator
        matrix[:, -1] = ord("\n")
        return matrix.tobytes().translate(None, b"\0")

    def id_column(self, position: int, ids: NDArray[np.int32]) -> NDArray[np.uint8]:
        """The text of one field's ids, as rows of bytes; a missing value is blank."""
        shape = self.stream.fields[position].shape
        ranks = np.maximum(ids - FIRST_ID, 0)
        if shape.text == "hour":
            return self.hours[ranks]
        if shape.text == "integer":
            return _integers(ranks + np.int32(shape.text_base))
        text = _hexadecimal(scramble(ranks.astype(np.uint32) + np.uint32(self.first_numbers[position])))
        return _blank(text, ids == MISSING_ID if shape.missing > 0 else None)


def scramble(numbers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A one-to-one mix of 32-bit numbers: odd multipliers and shifted xors can both be undone."""
    mixed = (numbers ^ np.uint32(0x2545F491)) * np.uint32(0x9E3779B1)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0x85EBCA77)
    mixed ^= mixed >> np.uint32(13)
    return mixed


def _hexadecimal(words: NDArray[np.uint32]) -> NDArray[np.uint8]:
    text = np.empty((len(words), 2), dtype=np.uint32)
    text[:, 0] = _HEX[words >> np.uint32(16)]
    text[:, 1] = _HEX[words & np.uint32(0xFFFF)]
    return text.view(np.uint8)


def _integers(values: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Decimal text of numbers of up to 8 digits, right-aligned behind zeros, with a byte for the sign."""
    magnitude = np.abs(values)
    short = int(magnitude.max(initial=0)) < 10_000
    text = np.zeros((len(values), 5 if short else _INTEGER_WIDTH), dtype=np.uint8)
    text[:, 0] = np.where(values < 0, np.uint8(ord("-")), np.uint8(0))
    if short:
        text[:, 1:] = _PLAIN[magnitude].view(np.uint8).reshape(-1, 4)
        return text
    high, low = np.divmod(magnitude, np.int32(10_000))
    big = high > 0
    # A leading group shows no zeros; the group after it shows them all.
    text[:, 1:5] = np.where(big, _PLAIN[high], np.uint32(0)).view(np.uint8).reshape(-1, 4)
    text[:, 5:] = np.where(big, _PADDED[low], _PLAIN[low]).view(np.uint8).reshape(-1, 4)
    return text


def _blank(text: NDArray[np.uint8], missing: NDArray[np.bool_] | None) -> NDArray[np.uint8]:
    if missing is not None:
        text[missing] = 0
    return text


def _row_names(rows: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Avazu's ad identifiers: 20 digits, one for each row."""
    text = np.empty((len(rows), 5), dtype=np.uint32)
    text[:, 0] = _PADDED[1000]
    for group in range(4):
        text[:, 4 - group] = _PADDED[(rows // np.uint64(10_000**group)) % np.uint64(10_000)]
    return text.view(np.uint8)


def _hour_words() -> NDArray[np.uint8]:
    """YYMMDDHH of each hour of the stream."""
    hours = [(AVAZU_START + timedelta(hours=hour)).strftime("%y%m%d%H") for hour in range(240)]
    return np.frombuffer("".join(hours).encode(), dtype=np.uint8).reshape(240, _HEX_WIDTH)
