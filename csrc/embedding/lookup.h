// How a lookup is described to the embedding operators, and the batch that it reads.
#pragma once

#include <cstdint>

namespace megalith {

enum Pooling : int64_t { kSum = 0, kMean = 1, kMax = 2, kNone = 3 };
enum RowLayout : int64_t { kWholeRows = 0, kChunkedRows = 1 };
enum DType : int64_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// One feature looked up in one table. Python fills an array of these as int64 rows (ops/embedding/descriptors.py).
struct LookupDescriptor {
  int64_t table;
  int64_t rows;
  int64_t dim;
  int64_t pooling;
  int64_t dtype;
  int64_t feature;
  int64_t column;    // first column of the pooled output, for tables that pool
  int64_t sequence;  // which sequence output, for tables that do not
  int64_t padding;   // an id that reads as zeros and is never updated, or -1
  int64_t layout;    // kChunkedRows: ids are slots of a ChunkedPool (chunks/record.h), which is the table's weight
};

// The ids of a batch: bag b of feature f covers values[offsets[f * size + b], offsets[f * size + b + 1]).
// Kernels get it with `offsets` moved to the first bag of their lookup's feature.
struct LookupBatch {
  const void* values;
  int32_t index_bytes;
  const int64_t* offsets;
  const float* sample_weights;  // one for each value, or null
  int64_t size;                 // samples
};

struct Range {
  int64_t first;
  int64_t last;
};

}  // namespace megalith
