"""The options of `megalith data prepare`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class SourceName(StrEnum):
    """Formats of click logs."""

    criteo = "criteo"
    avazu = "avazu"
    libfm = "libfm"
    parquet = "parquet"
    arrow = "arrow"
    csv = "csv"


class NumericName(StrEnum):
    """What becomes of numbers."""

    log = "log"
    bucket = "bucket"
    none = "none"


class ValidFrom(StrEnum):
    """Which training rows are held out for validation."""

    random = "random"
    tail = "tail"


class KeepName(StrEnum):
    """Which ids of a list that is too long stay."""

    last = "last"
    first = "first"


class FieldsName(StrEnum):
    """What the entries of a libfm row are."""

    auto = "auto"
    positional = "positional"
    bag = "bag"
    named = "named"


SourceArgument = Annotated[SourceName, typer.Argument(help="The format of the files.")]
FilesArgument = Annotated[list[Path], typer.Argument(help="Training files; text may be .gz or .zst.")]
OutOption = Annotated[
    Path | None,
    typer.Option(help="Folder to write; it appears when it is complete.  [required without --dry-run]"),
]
TestOption = Annotated[
    list[Path] | None, typer.Option(help="A file of the split `test`; repeat for several.")
]
ValidOption = Annotated[
    list[Path] | None,
    typer.Option(help="A file of the split `valid`, instead of --valid-fraction; repeat for several."),
]
ValidFractionOption = Annotated[float, typer.Option(help="Share of the training rows for split `valid`.")]
ValidFromOption = Annotated[
    ValidFrom, typer.Option(help="Hold out rows at random by number, or the last ones.")
]
SeedOption = Annotated[int, typer.Option(help="Decides which rows random takes.")]
MinCountOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<n|name=n>",
        help="Values that occur less often share id 1; NAME=N for one feature, repeat. [default: 10]",
    ),
]
HashBucketsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<n|name=n>",
        help="No vocabulary: id is 2 + hash of the value modulo this; NAME=N for one feature, repeat.",
    ),
]
RawOption = Annotated[
    str | None,
    typer.Option(
        metavar="<name,...|all>",
        help="Features without a vocabulary: ids are 64-bit values, for dynamic tables.",
    ),
]
MaxVocabularyOption = Annotated[
    list[str] | None,
    typer.Option(metavar="<n|name=n>", help="Most values a feature keeps; NAME=N for one feature, repeat."),
]
VocabularyFromOption = Annotated[
    Path | None, typer.Option(help="Apply the vocabulary and transforms of this data set.")
]
NumericOption = Annotated[
    NumericName | None,
    typer.Option(
        help="log: sign(x) log(1+|x|); bucket: a category, floor(log(x)^2); none: as is. [default: log]"
    ),
]
MissingNumberOption = Annotated[
    float | None, typer.Option(help="Written where a number is missing. [default: 0]")
]
MaxBadRowsOption = Annotated[int, typer.Option(help="Rows that cannot be read and are left out.")]
LimitRowsOption = Annotated[int | None, typer.Option(help="Stop after so many rows (of test too).")]
MemoryOption = Annotated[str, typer.Option(help="Budget of the tables of values.")]
ThreadsOption = Annotated[int | None, typer.Option(help="Threads that parse. [default: all cores]")]
FieldsOption = Annotated[FieldsName, typer.Option(help="libfm: what the entries of a row are.")]
_TABLES = "parquet, arrow, csv"
LabelOption = Annotated[str, typer.Option(help=f"{_TABLES}: the column of labels, 0 or 1.")]
NumberOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<name,...>",
        help=f"{_TABLES}: columns to take as numbers, as floats are; lists of floats are several numbers.",
    ),
]
CategoryOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<name,...>",
        help=f"{_TABLES}: columns to take as categories, as integers and text are; lists are several ids.",
    ),
]
DropOption = Annotated[
    list[str] | None, typer.Option(metavar="<name,...>", help=f"{_TABLES}: columns to leave out.")
]
WeightOption = Annotated[
    str | None, typer.Option(help=f"{_TABLES}: the column of sample weights in loss and metrics.")
]
ShareOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="<name,name,...>",
        help=f"{_TABLES}: features with one vocabulary and one table, named after the first; repeat.",
    ),
]
MaxLengthOption = Annotated[
    list[str] | None,
    typer.Option(metavar="<n|name=n>", help=f"{_TABLES}: most ids of a list; NAME=N for one column, repeat."),
]
KeepOption = Annotated[KeepName, typer.Option(help="Which ids of a longer list stay.")]
ListOption = Annotated[
    list[str] | None,
    typer.Option(
        "--list",
        metavar="<name=separator>",
        help=f"{_TABLES}: a column of text with several ids and what stands between them, such as "
        "'genres=|'; repeat.",
    ),
]
DelimiterOption = Annotated[
    str, typer.Option(help="csv: the character between fields; \\t is a tab.", show_default=True)
]
EventTimeOption = Annotated[
    str | None,
    typer.Option(
        help=f"{_TABLES}, avazu: the column that says when a sample happened; timestamps, or integers of "
        "seconds or milliseconds since 1970."
    ),
]
DryRunFlag = Annotated[
    bool,
    typer.Option("--dry-run", help="List what each column would be taken for, and why; write nothing."),
]
OverwriteFlag = Annotated[bool, typer.Option("--overwrite", help="Replace the folder if it exists.")]
