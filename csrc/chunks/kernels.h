// The kernels over chunked rows that each build offers; slots stand where those of whole rows take rows.
#pragma once

#include <cstdint>

#include "chunks/record.h"
#include "embedding/lookup.h"
#include "optimizer/step.h"

namespace megalith {

// What an update of chunked rows needs beside that of whole rows (ops/chunks/steps.py fills an array of these).
struct ChunkStep {
  float* absent_norms;      // by number: accesses or 1 times the norms of all chunks of a row that is not there
  float utility_weight;     // of this step's gradients; 0: utilities stay
  int32_t counts_accesses;  // whether norms are multiplied with how often the batch has the row
  // Two sums over touched rows, or null: norms of all chunks, and these times the utilities of the row before the step,
  // each times its scale and rounded to a whole number, so that their order does not matter. Added to.
  int64_t* sums;
  float norm_scale, product_scale;
  const float* rates;  // by live chunks, 0 to all: what the learning rate is multiplied with; null: 1
  int64_t unscored;    // the slot of a row whose utilities stay, and that no sum counts; 0: none
};

// Room for one row of `dim` columns and sixteen more.
struct ChunkBuffers {
  float* gradient;
  uint32_t* columns;
};

// As in LookupKernels; `dim` and `dtype` of a lookup are those of the pool.
struct ChunkedKernels {
  void (*pool)(const LookupDescriptor& lookup, const ChunkedPool& rows, const LookupBatch& batch, const Range& bags,
               const Range& columns, void* out, int64_t out_dtype, int64_t out_stride);
  void (*copy)(const LookupDescriptor& lookup, const ChunkedPool& rows, const LookupBatch& batch, const Range& values,
               void* out, int64_t out_dtype);
  void (*weight_gradient)(const LookupDescriptor& lookup, const ChunkedPool& rows, const LookupBatch& batch,
                          const Range& bags, const float* gradient, int64_t stride, float* out);
  // One optimizer step on the live columns of each touched row, and on the utilities of its chunks. `accesses` say how
  // often the batch has each row; null: once.
  void (*update)(const TableUpdate& table, const ChunkedPool& rows, const ChunkStep& step, const ChunkBuffers& buffers,
                 const RowSource* touched, int64_t count, const uint32_t* accesses);
};

}  // namespace megalith
