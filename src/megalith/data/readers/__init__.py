"""Readers of click logs: a `LogSource` yields raw items and parses an item into a `LogBlock` of columns.

A new delimited format is a `DelimitedFormat` of a few lines in `formats`. Reading is streaming throughout:
memory holds a few chunks, never a file.
"""

from megalith.data.readers.block import BadRow, Bag, Feature, LogBlock, LogSource
from megalith.data.readers.delimited import DelimitedSource
from megalith.data.readers.entries import EntryShape, EntrySource, scan_shape
from megalith.data.readers.event_time import EventTimeColumn
from megalith.data.readers.formats import AVAZU, CRITEO, DelimitedFormat, TextColumn
from megalith.data.readers.parquet import ColumnChoice, ParquetSource, choose_columns, choose_event_time
from megalith.data.readers.streams import TextChunk, open_text, read_chunks

__all__ = [
    "AVAZU",
    "BadRow",
    "Bag",
    "CRITEO",
    "ColumnChoice",
    "DelimitedFormat",
    "DelimitedSource",
    "EntryShape",
    "EntrySource",
    "EventTimeColumn",
    "Feature",
    "LogBlock",
    "LogSource",
    "ParquetSource",
    "TextChunk",
    "TextColumn",
    "choose_columns",
    "choose_event_time",
    "open_text",
    "read_chunks",
    "scan_shape",
]
