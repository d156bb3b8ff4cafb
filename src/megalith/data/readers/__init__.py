"""Readers of click logs: a `LogSource` yields raw items and parses an item into a `LogBlock` of columns.

A new delimited format is a `DelimitedFormat` of a few lines in `formats`. Reading is streaming throughout:
memory holds a few chunks, never a file.
"""

from megalith.data.readers.block import BadRow, Bag, Feature, LogBlock, LogSource
from megalith.data.readers.delimited import DelimitedSource
from megalith.data.readers.entries import EntryShape, EntrySource, scan_shape
from megalith.data.readers.event_time import EventTimeColumn
from megalith.data.readers.formats import AVAZU, CRITEO, DelimitedFormat, TextColumn
from megalith.data.readers.frames.columns import ColumnChoice
from megalith.data.readers.frames.listing import ColumnEntry, ColumnListing
from megalith.data.readers.frames.source import FrameSource
from megalith.data.readers.streams import TextChunk, open_text, read_chunks

__all__ = [
    "AVAZU",
    "BadRow",
    "Bag",
    "CRITEO",
    "ColumnChoice",
    "ColumnEntry",
    "ColumnListing",
    "DelimitedFormat",
    "DelimitedSource",
    "EntryShape",
    "EntrySource",
    "EventTimeColumn",
    "Feature",
    "FrameSource",
    "LogBlock",
    "LogSource",
    "TextChunk",
    "TextColumn",
    "open_text",
    "read_chunks",
    "scan_shape",
]
