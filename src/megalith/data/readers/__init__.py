"""Readers of click logs: a `Source` yields raw items and parses an item into a `Block` of columns.

A new delimited format is a `TextFormat` of a few lines in `formats`. Reading is streaming throughout: memory
holds a few chunks, never a file.
"""

from megalith.data.readers.block import BadRow, Bag, Block, Feature, Source
from megalith.data.readers.delimited import DelimitedSource
from megalith.data.readers.entries import EntryShape, EntrySource, scan_shape
from megalith.data.readers.formats import AVAZU, CRITEO, Column, TextFormat
from megalith.data.readers.parquet import ColumnChoice, ParquetSource, choose_columns
from megalith.data.readers.streams import TextChunk, open_text, read_chunks

__all__ = [
    "AVAZU",
    "BadRow",
    "Bag",
    "Block",
    "CRITEO",
    "Column",
    "ColumnChoice",
    "DelimitedSource",
    "EntryShape",
    "EntrySource",
    "Feature",
    "ParquetSource",
    "Source",
    "TextChunk",
    "TextFormat",
    "choose_columns",
    "open_text",
    "read_chunks",
    "scan_shape",
]
