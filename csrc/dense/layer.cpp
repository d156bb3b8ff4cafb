#include "dense/layer.h"

#include <cstring>

#include "simd/kernels.h"

namespace megalith {
namespace {

int64_t rounded_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

uint16_t to_bfloat(float value) {  // to the nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

int64_t stored_bytes(DensePrecision precision) {
  return precision == DensePrecision::kFloat32 ? 4 : precision == DensePrecision::kBFloat16 ? 2 : 1;
}

}  // namespace

DenseLayer::DenseLayer(DensePrecision precision, int64_t inputs, int64_t outputs, const void* weight,
                       const float* scales, const float* bias, int32_t function)
    : precision_(precision),
      inputs_(inputs),
      outputs_(outputs),
      panels_(rounded_up(outputs, kPanel) / kPanel),
      padded_inputs_(takes_bytes() ? rounded_up(inputs, kQuartet) : inputs),
      function_(function),
      weights_(panels_ * kPanel * padded_inputs_ * stored_bytes(precision)),
      bias_(static_cast<size_t>(panels_ * kPanel)) {
  if (bias) std::memcpy(bias_.data(), bias, static_cast<size_t>(outputs) * sizeof(float));
  const int64_t apart = padded_inputs_ * kPanel;
  if (takes_bytes()) {
    scales_.resize(bias_.size());
    sums_.resize(bias_.size());
    std::memcpy(scales_.data(), scales, static_cast<size_t>(outputs) * sizeof(float));
  }
  for (int64_t output = 0; output < outputs; ++output) {
    const int64_t first = output / kPanel * apart, lane = output % kPanel;
    for (int64_t input = 0; input < inputs; ++input) {
      const int64_t from = output * inputs + input, to = first + input * kPanel + lane;
      if (precision == DensePrecision::kFloat32) {
        weights_.as<float>()[to] = static_cast<const float*>(weight)[from];
      } else if (precision == DensePrecision::kBFloat16) {
        weights_.as<uint16_t>()[to] = to_bfloat(static_cast<const float*>(weight)[from]);
      } else {
        const int8_t code = static_cast<const int8_t*>(weight)[from];
        const int64_t quartet = input / kQuartet * kPanel + lane;
        weights_.as<int8_t>()[first + quartet * kQuartet + input % kQuartet] = code;
        sums_[static_cast<size_t>(output)] += code;
      }
    }
  }
}

void DenseLayer::prepare(const LayerCall& call, const PreparedSamples& prepared) const {
  const DenseKernels& use = kernels().dense;
  for (int64_t row = 0; row < call.rows; ++row) {
    const float* x = call.x + row * call.x_stride;
    if (takes_bytes()) {
      use.quantise(x, inputs_, prepared.codes + row * prepared.codes_stride, prepared.scales + row, prepared.zeros + row);
    } else if (takes_rounded()) {
      use.round_to_bfloat(x, inputs_, prepared.rounded + row * prepared.rounded_stride);
    }
  }
}

void DenseLayer::multiply(const LayerCall& call, const PreparedSamples& prepared, int64_t first, int64_t last) const {
  const DenseKernels& use = kernels().dense;
  if (takes_bytes()) {
    const ByteProduct product{prepared.codes, prepared.codes_stride, call.rows,    padded_inputs_,
                              prepared.scales, prepared.zeros,        weights_.as<int8_t>(), scales_.data(),
                              sums_.data(),    bias_.data(),          first,        last,
                              outputs_,        function_,             call.out,     call.out_stride};
    return precision_ == DensePrecision::kBytes ? use.bytes.multiply(product) : use.bytes.multiply_narrow(product);
  }
  const bool rounded = takes_rounded();
  const FloatProduct product{rounded ? prepared.rounded : call.x,
                             rounded ? prepared.rounded_stride : call.x_stride,
                             call.rows,
                             inputs_,
                             weights_.as<void>(),
                             bias_.data(),
                             first,
                             last,
                             outputs_,
                             function_,
                             call.out,
                             call.out_stride};
  return rounded ? use.multiply_bfloats(product) : use.multiply_floats(product);
}

}  // namespace megalith
