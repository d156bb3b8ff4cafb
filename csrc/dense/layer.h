// The weights of a linear layer, packed for the kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "dense/kernels.h"
#include "zeroed_memory.h"

namespace megalith {

// The same numbers as in src/megalith/ops/dense/operations.py.
enum class DensePrecision : int64_t { kFloat32 = 0, kBFloat16 = 1, kNarrowBytes = 2, kBytes = 3 };

// Where samples and results of a layer lie.
struct LayerCall {
  const float* x;
  int64_t x_stride, rows;
  float* out;
  int64_t out_stride;
};

// Samples as a layer's precision wants them.
struct PreparedSamples {
  uint8_t* codes = nullptr;
  float* rounded = nullptr;
  float* scales = nullptr;
  int32_t* zeros = nullptr;
  int64_t codes_stride = 0, rounded_stride = 0;
};

class DenseLayer {
 public:
  // `weight` is [outputs, inputs]: floats, or codes with a scale for each output. `bias` may be null.
  DenseLayer(DensePrecision precision, int64_t inputs, int64_t outputs, const void* weight, const float* scales,
             const float* bias, int32_t function);

  // Rounds samples, where the precision asks for it; `multiply` reads what this left.
  void prepare(const LayerCall& call, const PreparedSamples& prepared) const;
  // The outputs of panels [first, last).
  void multiply(const LayerCall& call, const PreparedSamples& prepared, int64_t first, int64_t last) const;

  int64_t inputs() const { return inputs_; }
  int64_t outputs() const { return outputs_; }
  int64_t panels() const { return panels_; }
  bool takes_bytes() const { return precision_ >= DensePrecision::kNarrowBytes; }
  bool prepares() const { return takes_bytes() || takes_rounded(); }
  bool takes_rounded() const { return precision_ == DensePrecision::kBFloat16; }
  int64_t weight_bytes() const { return weights_.bytes(); }

 private:
  DensePrecision precision_;
  int64_t inputs_, outputs_, panels_, padded_inputs_;
  int32_t function_;
  ZeroedMemory weights_;
  std::vector<float> bias_, scales_;
  std::vector<int32_t> sums_;
};

}  // namespace megalith
