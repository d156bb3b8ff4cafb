// The steps of a program, each on a block of samples.
#include <algorithm>
#include <cstring>

#include "dense/program.h"
#include "parallel.h"
#include "simd/kernels.h"

namespace megalith {
namespace {

// Bytes of weights from which a layer of few samples is worth waking another thread.
constexpr int64_t kSharedWeights = 512 << 10;
// Panels that a thread takes at a time, as kernels do.
constexpr int64_t kPanelsTogether = 4;

}  // namespace

int64_t DenseProgram::operand(const DenseStep& step, int64_t position) const {
  return operands_[static_cast<size_t>(step.first_operand + position)];
}

// Of inputs, which are only read, too.
ValueSpan DenseProgram::span(const SampleBlock& block, int64_t value) const {
  const DenseValue& held = values_[static_cast<size_t>(value)];
  if (held.buffer < 0) {
    const int64_t input = -1 - held.buffer, stride = block.call.strides[input];
    return {const_cast<float*>(block.call.inputs[input]) + block.first * stride + held.column, stride, held.columns};
  }
  const DenseBuffer& buffer = buffers_[static_cast<size_t>(held.buffer)];
  float* begin = block.space.values.as<float>() + buffer.offset * block.space.capacity;
  return {begin + held.column, buffer.stride, held.columns};
}

void DenseProgram::run_block(const SampleBlock& block) const {
  block.space.prepared = -1;
  for (size_t number = 0; number < steps_.size(); ++number) {
    const DenseStep& step = steps_[number];
    switch (step.kind) {
      case StepKind::kLinear:
        run_linear(block, step, *layers_[number]);
        break;
      case StepKind::kConcat:
        concatenate(block, step);
        break;
      case StepKind::kAdd:
      case StepKind::kMultiply:
      case StepKind::kMultiplyAdd:
        combine(block, step);
        break;
      case StepKind::kDotInteraction:
        interact(block, step);
        break;
      default:
        transform(block, step);
    }
  }
  write_results(block);
}

void DenseProgram::run_linear(const SampleBlock& block, const DenseStep& step, const DenseLayer& layer) const {
  const int64_t value = operand(step, 0);
  const ValueSpan x = span(block, value), out = span(block, step.output);
  Workspace& space = block.space;
  for (int64_t group = 0; group < step.groups; ++group) {
    const LayerCall call{x.at + group * layer.inputs(), x.stride, block.rows, out.at + group * layer.outputs(),
                         out.stride};
    // Layers that read one value share what was made of it.
    const bool is_there = space.prepared == value && step.groups == 1 && space.holds_bytes == layer.takes_bytes();
    if (layer.prepares() && !is_there) {
      layer.prepare(call, space.samples);
      space.prepared = step.groups == 1 ? value : -1;
      space.holds_bytes = layer.takes_bytes();
    }
    if (block.workers == 1 || layer.weight_bytes() < kSharedWeights) {
      layer.multiply(call, space.samples, 0, layer.panels());
      continue;
    }
    const int64_t pieces = (layer.panels() + kPanelsTogether - 1) / kPanelsTogether;
    const int64_t grain = (pieces + block.workers - 1) / block.workers;
    parallel_for(0, pieces, grain, [&](int64_t begin, int64_t end) {
      layer.multiply(call, space.samples, begin * kPanelsTogether, std::min(layer.panels(), end * kPanelsTogether));
    });
  }
}

void DenseProgram::concatenate(const SampleBlock& block, const DenseStep& step) const {
  const ValueSpan out = span(block, step.output);
  float* to = out.at;
  for (int64_t i = 0; i < step.num_operands; ++i) {
    const ValueSpan from = span(block, operand(step, i));
    // What was made in its place is there already.
    for (int64_t row = 0; row < block.rows && from.columns > 0 && from.at != to; ++row) {
      std::memcpy(to + row * out.stride, from.row(row), static_cast<size_t>(from.columns) * sizeof(float));
    }
    to += from.columns;
  }
}

void DenseProgram::combine(const SampleBlock& block, const DenseStep& step) const {
  const DenseKernels& use = kernels().dense;
  const ValueSpan out = span(block, step.output), first = span(block, operand(step, 0));
  if (step.kind == StepKind::kMultiplyAdd) {
    const ValueSpan second = span(block, operand(step, 1)), third = span(block, operand(step, 2));
    for (int64_t row = 0; row < block.rows; ++row) {
      use.multiply_add(first.row(row), first.columns, second.row(row), second.columns, third.row(row), third.columns,
                       out.columns, out.row(row));
    }
    return;
  }
  const auto join = step.kind == StepKind::kAdd ? use.add : use.multiply;
  // From left to right: the first two, then their sum and the next.
  ValueSpan left = first;
  for (int64_t i = 1; i < step.num_operands; ++i) {
    const ValueSpan right = span(block, operand(step, i));
    for (int64_t row = 0; row < block.rows; ++row) {
      join(left.row(row), left.columns, right.row(row), right.columns, out.columns, out.row(row));
    }
    left = out;
  }
}

// Operations of one value.
void DenseProgram::transform(const SampleBlock& block, const DenseStep& step) const {
  const DenseKernels& use = kernels().dense;
  const ValueSpan x = span(block, operand(step, 0)), out = span(block, step.output);
  const auto numbers = [&](int64_t tensor) { return tensor < 0 ? nullptr : tensors_[static_cast<size_t>(tensor)].data(); };
  const auto count = [&](int64_t tensor) { return static_cast<int64_t>(tensors_[static_cast<size_t>(tensor)].size()); };
  for (int64_t row = 0; row < block.rows; ++row) {
    const float* from = x.row(row);
    float* to = out.row(row);
    switch (step.kind) {
      case StepKind::kActivation:
        use.apply(static_cast<int32_t>(step.function), from, x.columns, to);
        break;
      case StepKind::kAffine:
        use.multiply_add(from, x.columns, numbers(step.weight), count(step.weight), numbers(step.bias),
                         count(step.bias), x.columns, to);
        break;
      case StepKind::kLayerNorm:
        use.layer_norm(from, x.columns, numbers(step.weight), numbers(step.bias), *numbers(step.eps), to);
        break;
      case StepKind::kSumColumns:
        *to = use.sum_columns(from, x.columns);
        break;
      default:
        *to = use.pair_sum(from, x.columns / step.dim, step.dim);
    }
  }
}

void DenseProgram::interact(const SampleBlock& block, const DenseStep& step) const {
  const ValueSpan out = span(block, step.output), first = span(block, operand(step, 0));
  const bool leads = step.num_operands > 1;
  const ValueSpan rest = leads ? span(block, operand(step, 1)) : first;
  const int64_t lead = leads ? step.dim : 0, count = (lead + rest.columns) / step.dim;
  const float** vectors = block.space.vectors.data();
  for (int64_t row = 0; row < block.rows; ++row) {
    float* to = out.row(row);
    if (leads) {
      vectors[0] = first.row(row);
      std::memcpy(to, first.row(row), static_cast<size_t>(lead) * sizeof(float));
    }
    for (int64_t i = leads ? 1 : 0; i < count; ++i) vectors[i] = rest.row(row) + i * step.dim - lead;
    kernels().interaction.interact(vectors, count, step.dim, block.space.transposed.data(), to + lead);
  }
}

void DenseProgram::write_results(const SampleBlock& block) const {
  float* out = block.call.out + block.first * output_columns_;
  for (const DenseResult& result : results_) {
    const ValueSpan from = span(block, result.value);
    for (int64_t row = 0; row < block.rows; ++row) {
      kernels().dense.apply(result.is_probability ? kSigmoid : kIdentity, from.row(row), from.columns,
                            out + row * output_columns_);
    }
    out += from.columns;
  }
}

}  // namespace megalith
