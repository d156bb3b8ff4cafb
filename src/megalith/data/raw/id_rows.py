"""Rows of tables whose columns are numbers and ids as a model reads them: of data that was not prepared from
raw files, such as generated data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from megalith.core.errors import DataError
from megalith.core.schema import FeatureSpec
from megalith.data.dataset import DatasetSchema
from megalith.data.loader.checks import not_finite, outside
from megalith.data.loader.columns import Array, BagColumn, WindowColumns
from megalith.data.raw.column_types import Column, as_categories, as_numbers
from megalith.data.raw.record_files import ColumnNames, Records
from megalith.data.raw.row_source import RawBlock

_LARGEST_INT32 = 2**31


class PlainIdRows:
    """Takes numbers and ids as they are, and checks their range."""

    def __init__(
        self,
        schema: DatasetSchema,
        read: Callable[[ColumnNames], Iterator[Records]],
        keep: Sequence[str] = (),
    ) -> None:
        self._schema, self._read = schema, read
        self._columns = ColumnNames((*schema.numeric, *schema.feature_names), tuple(keep))
        small = all(
            each.num_ids is not None and each.num_ids <= _LARGEST_INT32 for each in schema.categorical
        )
        self._id_type = np.int32 if small else np.int64

    def items(self) -> Iterator[Records]:
        """Record batches of all columns that are needed."""
        return self._read(self._columns)

    def parse(self, item: Records) -> RawBlock:
        """The rows of a record batch."""
        rows = item.batch.num_rows
        dense = np.empty((len(self._schema.numeric), rows), np.float32)
        for position, name in enumerate(self._schema.numeric):
            dense[position] = self._numbers(item, name)
        one_hot = [each for each in self._schema.categorical if not each.multi_hot]
        ids = np.empty((len(one_hot), rows), self._id_type)
        for position, feature in enumerate(one_hot):
            ids[position] = self._ids(item, feature, _column(item, feature.name))
        bags = tuple(self._bag(item, each) for each in self._schema.categorical if each.multi_hot)
        kept = item.batch.select(list(self._columns.kept)) if self._columns.kept else None
        return RawBlock(WindowColumns(dense, np.zeros(rows, np.float32), None, ids, bags), kept)

    def _numbers(self, item: Records, name: str) -> Array:
        numbers = as_numbers(_column(item, name)).cast(pa.float64()).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            values = numbers.astype(np.float32)
        bad = not_finite(values)
        if len(bad):
            raise _refused(item, name, int(bad[0]), "holds no finite number")
        return values

    def _ids(self, item: Records, feature: FeatureSpec, column: Column) -> Array:
        values = as_categories(column, multi_hot=False, integers=True)
        if values.null_count:
            row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
            raise _refused(item, feature.name, row, "holds no id")
        ids: Array = values.to_numpy(zero_copy_only=False)
        bad = outside(feature.num_ids)(ids)
        if len(bad):
            row = int(bad[0])
            said = f"holds id {ids[row]}, which is outside [0, {feature.num_ids:,})"
            raise _refused(item, feature.name, row, said)
        return ids

    def _bag(self, item: Records, feature: FeatureSpec) -> BagColumn:
        column = _column(item, feature.name)
        lists = as_categories(column, multi_hot=True, integers=True)
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        # Rows are those of lists only where each holds one id; the first row of the batch is right enough.
        flat = self._ids(item, feature, column._replace(values=pc.list_flatten(lists)))
        if feature.max_length is not None and len(lengths) and lengths.max() > feature.max_length:
            row = int(np.argmax(lengths > feature.max_length))
            said = f"holds {lengths[row]} ids and the schema allows {feature.max_length}"
            raise _refused(item, feature.name, row, said)
        return BagColumn(flat, lengths)


def _column(item: Records, name: str) -> Column:
    return Column(item.where, item.first_row, name, item.batch.column(name))


def _refused(item: Records, name: str, row: int, said: str) -> DataError:
    return DataError(f"{item.where}, row {item.first_row + row}: column '{name}' {said}; correct it.")
