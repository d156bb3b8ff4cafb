"""Raw rows to batches, as `data prepare` turned others of their kind into the columns of a data set.

    files or a frame -> RowSource (columns, text, ids) -> RowTransform -> RawBatches

A folder with `schema.json` and the vocabulary is all that it takes: the data set's own, or what a run keeps
of it. Labels are not read. Transforms are those of `data.readers` and `data.prepare`; there are no others
here.
"""

from megalith.data.raw.batches import RawBatches
from megalith.data.raw.frames import as_table
from megalith.data.raw.sources import file_rows, frame_rows
from megalith.data.raw.transform import RowTransform

__all__ = ["RawBatches", "RowTransform", "as_table", "file_rows", "frame_rows"]
