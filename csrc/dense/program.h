// A dense part as steps over values of [samples, columns], run from its inputs to its outputs in one call.
//
// Python lays it out (src/megalith/ops/dense/layout.py): where each value lies in an arena, so that the parts of a
// concatenation are made in their place, and values that are no longer read make room for others.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "dense/layer.h"
#include "dense/workspace.h"

namespace megalith {

// The same numbers as in src/megalith/ops/dense/program.py.
enum class StepKind : int64_t {
  kLinear = 0,
  kActivation = 1,
  kConcat = 2,
  kAdd = 3,
  kMultiply = 4,
  kMultiplyAdd = 5,
  kAffine = 6,
  kLayerNorm = 7,
  kSumColumns = 8,
  kDotInteraction = 9,
  kPairSum = 10,
};

struct DenseStep {
  StepKind kind;
  int64_t function, groups;
  DensePrecision precision;
  int64_t first_operand, num_operands;  // of the list of operands: numbers of values
  int64_t output;                       // a value
  int64_t dim;
  int64_t weight, scales, bias, eps;  // tensors, or -1
};

struct DenseValue {
  int64_t buffer;  // below 0: input -1 - buffer
  int64_t column, columns;
};

struct DenseBuffer {
  int64_t offset, stride;  // floats of a sample
};

struct DenseResult {
  int64_t value, is_probability;
};

struct ProgramParts {
  const DenseStep* steps;
  int64_t num_steps;
  const int64_t* operands;
  int64_t num_operands;
  const DenseValue* values;
  int64_t num_values;
  const DenseBuffer* buffers;
  int64_t num_buffers;
  const void* const* tensors;
  const int64_t* sizes;  // elements of each
  int64_t num_tensors;
  const DenseResult* results;
  int64_t num_results;
};

// Pointers of one call.
struct ProgramCall {
  const float* const* inputs;
  const int64_t* strides;  // of inputs
  int64_t batch, workers;
  float* out;  // [batch, columns of all results]
};

// Samples [first, first + rows) of a call, which run through the whole program on one thread before the next ones: what
// is between two layers stays in its caches, and no layer waits for another thread. `workers` above 1 share each large
// layer instead.
struct SampleBlock {
  const ProgramCall& call;
  Workspace& space;
  int64_t first, rows, workers;
};

// A value of a block: the columns of its first sample, and floats between samples.
struct ValueSpan {
  float* at;
  int64_t stride, columns;

  float* row(int64_t number) const { return at + number * stride; }
};

class DenseProgram {
 public:
  explicit DenseProgram(const ProgramParts& parts);

  // Any number of threads may call it at once.
  void run(const ProgramCall& call);

  int64_t weight_bytes() const;
  int64_t workspace_bytes();

 private:
  std::unique_ptr<Workspace> borrow();
  void give_back(std::vector<std::unique_ptr<Workspace>>& spaces) noexcept;

  // steps.cpp
  void run_block(const SampleBlock& block) const;
  void run_linear(const SampleBlock& block, const DenseStep& step, const DenseLayer& layer) const;
  void concatenate(const SampleBlock& block, const DenseStep& step) const;
  void combine(const SampleBlock& block, const DenseStep& step) const;
  void transform(const SampleBlock& block, const DenseStep& step) const;
  void interact(const SampleBlock& block, const DenseStep& step) const;
  void write_results(const SampleBlock& block) const;
  int64_t operand(const DenseStep& step, int64_t position) const;
  ValueSpan span(const SampleBlock& block, int64_t value) const;

  std::vector<DenseStep> steps_;
  std::vector<int64_t> operands_;
  std::vector<DenseValue> values_;
  std::vector<DenseBuffer> buffers_;
  std::vector<DenseResult> results_;
  std::vector<std::vector<float>> tensors_;          // those of steps that are not linear
  std::vector<std::unique_ptr<DenseLayer>> layers_;  // by step
  int64_t arena_ = 0, widest_ = 0, most_vectors_ = 0, largest_transposed_ = 0, output_columns_ = 0;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
  int64_t num_workspaces_ = 0;
};

}  // namespace megalith
