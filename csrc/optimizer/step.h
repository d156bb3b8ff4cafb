// One step of a table's optimizer on the rows that a batch touches: settings, gradients, rows.
#pragma once

#include <cstdint>

namespace megalith {

enum OptimizerKind : int64_t {
  kSgd = 0,
  kAdaGrad = 1,
  kRowWiseAdaGrad = 2,
  kAdam = 3,
  kRowWiseAdam = 4,
  kLamb = 5,
  kLars = 6,
};

// Settings of one table's optimizer for one step (ops/optimizer/steps.py has the same).
struct OptimizerStep {
  float kind;
  float lr;
  float eps;
  float beta1;
  float beta2;
  float weight_decay;
  float max_gradient;        // every element of a row's gradient is clamped to this; 0 is off
  float first_correction;    // 1 - beta1^step
  float second_correction;   // 1 - beta2^step
  float stochastic_rounding; // 1: round half-precision weights at random, unbiased
  float rest1;               // 1 - beta1, which float32 would get wrong by far more than an ulp
  float rest2;               // 1 - beta2
};

// Where gradients are: of source s at dense + s * stride, or at rows[s].
struct Gradients {
  const float* dense;
  int64_t stride;
  const float* const* rows;
  const float* scales;  // a factor for each source, or null
};

// A row, or the number of one, in the upper 32 bits and the source of a gradient in the lower.
using RowSource = uint64_t;

// These keep a row, or the number of a value, in 32 bits: tables and batches stay below this (core/schema.py).
constexpr int64_t kMostRows = int64_t{1} << 32;

// What rounding at random depends on (ops/optimizer/stochastic_rounding.py fills an array of these): the seed of a
// table in this step, and which row and column of the whole table the first ones here are.
struct RowRounding {
  uint64_t seed;
  int64_t first_row;
  int64_t first_column;
};

// A table with the settings of its step.
struct TableUpdate {
  int64_t dim;
  int64_t dtype;
  void* weight;
  float* first_state;
  float* second_state;
  const OptimizerStep* step;
  RowRounding rounding;
  const int64_t* slot_ids;  // the id of each physical row, of chunked ones by number, or null where it is the row
  Gradients gradients;
  float* scaled;  // room for one row's gradient, where `scales` multiply it
};

// Rows of a column-sharded table, under an optimizer that looks at whole rows.
struct ColumnShard {
  const uint32_t* numbers;  // of each touched row among all that the batch touches
  float* norms;             // by number: squared norms over the columns of this shard, then over the whole row
  int64_t columns;          // of the whole row
};

// Squared norms that an optimizer takes of a row: of its update and, if two, of its weights.
constexpr int num_row_norms(int kind) {
  return kind == kLamb || kind == kLars ? 2 : kind == kRowWiseAdaGrad || kind == kRowWiseAdam ? 1 : 0;
}

}  // namespace megalith
