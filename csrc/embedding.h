// What the embedding operators share: how a lookup is described, and the kernels a processor variant offers.
#pragma once

#include <cstdint>
#include <vector>

namespace megalith {

enum Pooling : int64_t { kSum = 0, kMean = 1, kMax = 2, kNone = 3 };
enum DType : int64_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };
enum OptimizerKind : int64_t {
  kSgd = 0,
  kAdaGrad = 1,
  kRowWiseAdaGrad = 2,
  kAdam = 3,
  kRowWiseAdam = 4,
  kLamb = 5,
  kLars = 6,
};

// One feature looked up in one table. Python fills an array of these as int64 rows (embeddings/layout.py).
struct Slot {
  int64_t table;
  int64_t rows;
  int64_t dim;
  int64_t pooling;
  int64_t dtype;
  int64_t feature;
  int64_t column;    // first column of the pooled output, for tables that pool
  int64_t sequence;  // which sequence output, for tables that do not
  int64_t padding;   // an id that reads as zeros and is never updated, or -1
};

// Settings of one table's optimizer for one step.
struct Step {
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

// The lookups of a batch: bag b of feature f covers values[offsets[f * batch + b], offsets[f * batch + b + 1]).
// Kernels get it with `offsets` moved to the first bag of their slot's feature.
struct Lookups {
  const void* values;
  int32_t index_bytes;
  const int64_t* offsets;
  const float* sample_weights;  // one for each value, or null
};

// Where gradients lie: of source s at dense + s * stride, or at rows[s].
struct Gradients {
  const float* dense;
  int64_t stride;
  const float* const* rows;
  const float* scales;  // a factor for each source, or null
};

// A row, or the number of one, in the upper 32 bits and the source of a gradient in the lower.
using Entry = uint64_t;

// A table with the settings of its step.
struct TableUpdate {
  int64_t dim;
  int64_t dtype;
  void* weight;
  float* first_state;
  float* second_state;
  const Step* step;
  uint64_t seed;
  Gradients gradients;
  float* scaled;  // room for one row's gradient, where `scales` multiply it
};

// Rows of a table some of whose columns lie elsewhere, under an optimizer that looks at all of them.
struct Apart {
  const uint32_t* numbers;  // of each entry's row among all that the batch touches
  float* sums;              // by number: sums of squares over the columns here, then over the whole row
  int64_t columns;          // of the whole row
};

// Sums that an optimizer takes over a row: of the squares of its update and, if two, of its weights.
constexpr int num_sums(int kind) {
  return kind == kLamb || kind == kLars ? 2 : kind == kRowWiseAdaGrad || kind == kRowWiseAdam ? 1 : 0;
}

// The seed of what is rounded at random in a table.
inline uint64_t table_seed(uint64_t seed, int64_t table) {
  return seed + static_cast<uint64_t>(table) * 0xd1342543de82ef95ull;
}

// Entries keep a row, or the number of a value, in 32 bits: tables and batches stay below this (core/schema.py).
constexpr int64_t kMostRows = int64_t{1} << 32;

struct Range {
  int64_t first;
  int64_t last;
};

// What one processor variant offers. Ranges are bags of the slot's feature.
struct Kernels {
  // Pools some columns of some bags into out[bag * out_stride].
  void (*pool)(const Slot& slot, const void* weight, const Lookups& lookups, const Range& bags, const Range& columns,
               void* out, int64_t out_dtype, int64_t out_stride);
  // Copies the rows of values [first, last), counted from the slot's first, one after the other.
  void (*copy)(const Slot& slot, const void* weight, const Lookups& lookups, int64_t first, int64_t last, void* out,
               int64_t out_dtype);
  // Takes one optimizer step on each of `entries`, whose rows occur nowhere else.
  void (*update)(const TableUpdate& table, const Entry* entries, int64_t count);
  // The first half of such a step, where columns lie apart: finds sums over the columns here.
  void (*add_squares)(const TableUpdate& table, const Entry* entries, int64_t count, const Apart& apart);
  // The second half, with sums over whole rows.
  void (*finish)(const TableUpdate& table, const Entry* entries, int64_t count, const Apart& apart);
  // Counts how many rows are marked before each word and, if asked, lists the rows.
  void (*rank)(const std::vector<uint64_t>& marked, std::vector<uint32_t>& before, std::vector<uint32_t>* rows);
  // Writes how many rows are marked before each entry's.
  void (*number)(const std::vector<uint64_t>& marked, const std::vector<uint32_t>& before, const Entry* entries,
                 int64_t count, uint32_t* numbers);
  // Deals the entries out to `once`, or to `again` with the rank of their row instead of the row, and moves the two
  // past what was written. Each has room for one more than all entries.
  void (*deal)(const std::vector<uint64_t>& marked, const std::vector<uint32_t>& before, const Entry* entries,
               int64_t count, Entry*& once, Entry*& again);
  // Adds the gradient of each entry to the sum of its number, all of which start at zero.
  void (*add_up)(const TableUpdate& table, const Entry* entries, int64_t count, float* sums);
  // The gradient of each sample weight: its row times its bag's gradient.
  void (*weight_gradient)(const Slot& slot, const void* weight, const Lookups& lookups, int64_t first, int64_t last,
                          const float* gradient, int64_t stride, float* out);
};

// The variant of a level of vector instructions (cpu.cpp).
const Kernels& kernels(int32_t simd_level);
const Kernels& portable_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();

}  // namespace megalith
