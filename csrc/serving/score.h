// A whole request in one call: its checks, the lookups, the dense program.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "dense/program.h"
#include "frozen/tables.h"
#include "zeroed_memory.h"

namespace megalith {

// Samples to score. Ids lie feature by feature and within one sample by sample, as `lengths` [features, batch] cuts them.
struct ScoreCall {
  const float* numbers;  // [batch, numbers], or null
  const void* values;
  int32_t index_bytes;
  int64_t num_values;
  const int32_t* lengths;
  int64_t batch, workers;
  float* out;  // [batch, columns of all results]
};

class ServedModel {
 public:
  // Both must outlive it. `input_kinds` says of each input of the program whether it is the numbers (0) or the pooled
  // vectors (1).
  ServedModel(const FrozenTables& tables, DenseProgram& program, int64_t num_features, int64_t num_numbers,
              int64_t num_columns, const int64_t* input_kinds, int64_t num_inputs);

  // False, with nothing to be read in `out`, where a number is not finite, a length is negative, lengths do not add up to
  // the number of values, or a table does not have an id. Any number of threads may call it at once.
  bool score(const ScoreCall& call);

  // Room for requests under way.
  int64_t scratch_bytes();

 private:
  // Offsets and pooled vectors of a request.
  struct Scratch {
    ZeroedMemory offsets, pooled;
    int64_t bytes() const { return offsets.bytes() + pooled.bytes(); }
  };

  std::unique_ptr<Scratch> borrow(int64_t offset_bytes, int64_t pooled_bytes);
  void give_back(std::unique_ptr<Scratch> scratch) noexcept;

  const FrozenTables& tables_;
  DenseProgram& program_;
  int64_t num_features_, num_numbers_, num_columns_;
  std::vector<int64_t> input_kinds_;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_;
  int64_t num_scratches_ = 0;
};

}  // namespace megalith
