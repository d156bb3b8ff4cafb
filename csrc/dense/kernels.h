// Linear layers and what stands between them, as each processor variant offers it.
//
// Weights lie in panels of sixteen outputs, the last one padded with zeros, in the same order for every variant:
// floats and bfloat16 as [inputs][16], bytes as [inputs / 4][16][4].
#pragma once

#include <cstdint>

namespace megalith {

constexpr int64_t kPanel = 16;   // outputs
constexpr int64_t kQuartet = 4;  // inputs whose bytes lie side by side

// The same numbers as in src/megalith/ops/dense/functions_twin.py.
enum DenseFunction : int32_t { kIdentity = 0, kRelu = 1, kGelu = 2, kSilu = 3, kSigmoid = 4 };

// Samples times the weights of panels [first_panel, last_panel), plus bias, then the function.
struct FloatProduct {
  const float* x;
  int64_t x_stride, rows, inputs;
  const void* weights;  // float or bfloat16
  const float* bias;    // whole panels
  int64_t first_panel, last_panel, outputs;
  int32_t function;
  float* out;
  int64_t out_stride;
};

// The same with bytes: unsigned ones of each sample times signed ones of the weights.
struct ByteProduct {
  const uint8_t* codes;  // [rows, inputs], inputs padded to quartets
  int64_t codes_stride, rows, inputs;
  const float* scales;   // of each sample
  const int32_t* zeros;
  const int8_t* weights;
  const float* weight_scales;  // of each output, whole panels; so are sums of codes and bias
  const int32_t* weight_sums;
  const float* bias;
  int64_t first_panel, last_panel, outputs;
  int32_t function;
  float* out;
  int64_t out_stride;
};

struct ByteKernels {
  void (*multiply_narrow)(const ByteProduct& product);  // codes of weights up to 63
  void (*multiply)(const ByteProduct& product);         // up to 127
};

struct DenseKernels {
  void (*multiply_floats)(const FloatProduct& product);
  void (*multiply_bfloats)(const FloatProduct& product);  // of samples that were rounded to bfloat16
  ByteKernels bytes;
  // One sample each.
  void (*quantise)(const float* x, int64_t columns, uint8_t* codes, float* scale, int32_t* zero);
  void (*round_to_bfloat)(const float* x, int64_t columns, float* out);
  void (*apply)(int32_t function, const float* x, int64_t columns, float* out);
  // Inputs of as many columns, or of one for all.
  void (*add)(const float* a, int64_t a_columns, const float* b, int64_t b_columns, int64_t columns, float* out);
  void (*multiply)(const float* a, int64_t a_columns, const float* b, int64_t b_columns, int64_t columns, float* out);
  void (*multiply_add)(const float* a, int64_t a_columns, const float* b, int64_t b_columns, const float* c,
                       int64_t c_columns, int64_t columns, float* out);
  void (*layer_norm)(const float* x, int64_t columns, const float* weight, const float* bias, float eps, float* out);
  float (*sum_columns)(const float* x, int64_t columns);
  float (*pair_sum)(const float* x, int64_t count, int64_t dim);
};

}  // namespace megalith
