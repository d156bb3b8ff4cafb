// How frozen rows lie in memory, and a batch of ids that is looked up in them.
#pragma once

#include <cstdint>

namespace megalith {

// The order of PRECISIONS in ops/frozen/formats.py.
enum FrozenPrecision : int64_t { kRowsFloat32 = 0, kRowsFloat16 = 1, kRowsInt8 = 2, kRowsInt4 = 3 };

// Bytes of scale and bias, float16 or float32 each; plain rows have none.
constexpr int64_t kShortHeader = 4, kLongHeader = 8;

// The ids that have a row, a cache line of them: five ids, their rows, and how many of the five are used. `passed` is
// set where an id went on to the next bucket because this one was full.
struct alignas(64) IdBucket {
  static constexpr int kRoom = 5;
  int64_t ids[kRoom];
  uint32_t rows[kRoom];
  uint16_t used;
  uint16_t passed;
};

// Of 64 rows, those whose content is elsewhere, and how many such rows there are before them.
struct ChangedRows {
  uint64_t bits;
  int64_t before;
};

// One feature looked up in one frozen table.
struct FrozenSource {
  const uint8_t* rows;
  const uint32_t* starts;   // of rows of unequal length, in units; null where all are of row_bytes
  const IdBucket* buckets;  // of listed ids; null where an id is its row
  int64_t num_buckets;
  int64_t num_rows;
  int64_t row_bytes;
  int64_t dim;
  int64_t precision;     // FrozenPrecision
  int64_t header_bytes;  // of scale and bias
  int64_t chunk;         // columns
  int64_t chunk_bytes;
  int64_t unit;  // bytes that starts count in
  int64_t pooling;
  int64_t feature;
  int64_t column;       // first column of the output
  int64_t has_padding;  // any id may be one
  int64_t padding;
  int64_t unknown;  // the row of ids that are not listed, or -1
  const ChangedRows* changed;   // of every 64 rows; null where none changed
  const uint8_t* changed_rows;  // their content, in the order of rows
};

// Bag b of feature f covers values[offsets[f * size + b], offsets[f * size + b + 1]).
struct FrozenBatch {
  const void* values;
  int32_t index_bytes;
  const void* offsets;
  int32_t offset_bytes;
  const float* sample_weights;  // one for each value, or null
  int64_t size;                 // samples
  float* out;
  int64_t out_stride;
};

// A place in a batch: bags are counted lookup by lookup.
struct FrozenPlace {
  int64_t lookup;
  int64_t bag;
};

// The first id that its table does not have; -1 where there is none.
struct FrozenFault {
  int64_t lookup;
  int64_t value;  // its position
};

}  // namespace megalith
