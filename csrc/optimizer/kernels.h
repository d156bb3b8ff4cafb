// The update kernels that each build offers.
#pragma once

#include <cstdint>

#include "optimizer/step.h"

namespace megalith {

// A bit for each row, and how many bits are set before each word.
struct RowBitmap {
  const uint64_t* words;
  const uint32_t* before;
};

struct UpdateKernels {
  // Takes one optimizer step on each of `touched`, whose rows occur nowhere else.
  void (*update)(const TableUpdate& table, const RowSource* touched, int64_t count);
  // The first half of such a step on a column shard: finds row norms over its columns.
  void (*row_norms)(const TableUpdate& table, const RowSource* touched, int64_t count, const ColumnShard& shard);
  // The second half, with norms of whole rows.
  void (*finish)(const TableUpdate& table, const RowSource* touched, int64_t count, const ColumnShard& shard);
  // Adds the gradient of each touched row to the sum of its number, all of which start at zero.
  void (*add_gradients)(const TableUpdate& table, const RowSource* touched, int64_t count, float* sums);
  // Counts how many bits are set before each word; the number of all.
  int64_t (*rank)(const uint64_t* words, int64_t num_words, uint32_t* before);
  // Lists the rows whose bits are set.
  void (*list)(const uint64_t* words, int64_t num_words, uint32_t* rows);
  // Writes how many bits are set before each touched row's.
  void (*number)(const RowBitmap& bitmap, const RowSource* touched, int64_t count, uint32_t* numbers);
  // Splits the touched rows into `once`, and `again` with the rank of the row instead of the row where its bit is set;
  // moves the two past what was written. Each has room for one more than all.
  void (*split)(const RowBitmap& bitmap, const RowSource* touched, int64_t count, RowSource*& once, RowSource*& again);
};

}  // namespace megalith
