// Programs: their weights packed once, their batches cut into blocks.
#include "dense/program.h"

#include <algorithm>

#include "parallel.h"

namespace megalith {
namespace {

// Samples of a block, and the most that are run layer by layer on all threads instead.
constexpr int64_t kBlockSamples = 72, kFewSamples = 16;

}  // namespace

DenseProgram::DenseProgram(const ProgramParts& parts)
    : steps_(parts.steps, parts.steps + parts.num_steps),
      operands_(parts.operands, parts.operands + parts.num_operands),
      values_(parts.values, parts.values + parts.num_values),
      buffers_(parts.buffers, parts.buffers + parts.num_buffers),
      results_(parts.results, parts.results + parts.num_results),
      tensors_(static_cast<size_t>(parts.num_tensors)),
      layers_(steps_.size()) {
  const auto columns_of = [&](int64_t value) { return values_[static_cast<size_t>(value)].columns; };
  const auto tensor = [&](int64_t number) { return number < 0 ? nullptr : parts.tensors[number]; };
  for (size_t number = 0; number < steps_.size(); ++number) {
    const DenseStep& step = steps_[number];
    if (step.kind == StepKind::kLinear) {
      const int64_t inputs = columns_of(operand(step, 0)) / step.groups;
      layers_[number] = std::make_unique<DenseLayer>(
          step.precision, inputs, columns_of(step.output) / step.groups, tensor(step.weight),
          static_cast<const float*>(tensor(step.scales)), static_cast<const float*>(tensor(step.bias)),
          static_cast<int32_t>(step.function));
      widest_ = std::max(widest_, inputs);
      continue;
    }
    for (const int64_t index : {step.weight, step.bias, step.eps}) {
      if (index < 0) continue;
      const float* from = static_cast<const float*>(parts.tensors[index]);
      tensors_[static_cast<size_t>(index)].assign(from, from + parts.sizes[index]);
    }
    if (step.kind == StepKind::kDotInteraction) {
      int64_t vectors = 0;
      for (int64_t i = 0; i < step.num_operands; ++i) vectors += columns_of(operand(step, i)) / step.dim;
      most_vectors_ = std::max(most_vectors_, vectors);
      largest_transposed_ = std::max(largest_transposed_, step.dim * ((vectors + kPanel - 1) / kPanel * kPanel));
    }
  }
  for (const DenseResult& result : results_) output_columns_ += columns_of(result.value);
  for (const DenseBuffer& buffer : buffers_) arena_ = std::max(arena_, buffer.offset + buffer.stride);
}

std::unique_ptr<Workspace> DenseProgram::borrow() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Workspace> space = std::move(idle_.back());
      idle_.pop_back();
      return space;
    }
  }
  auto space = std::make_unique<Workspace>(kBlockSamples, arena_, widest_, most_vectors_, largest_transposed_);
  const std::lock_guard<std::mutex> lock(mutex_);
  // Room for all of them, so that giving one back cannot fail.
  idle_.reserve(static_cast<size_t>(num_workspaces_ + 1));
  ++num_workspaces_;
  return space;
}

void DenseProgram::give_back(std::vector<std::unique_ptr<Workspace>>& spaces) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (std::unique_ptr<Workspace>& space : spaces) idle_.push_back(std::move(space));
}

void DenseProgram::run(const ProgramCall& call) {
  if (call.batch == 0) return;
  const int64_t workers = std::max<int64_t>(1, std::min<int64_t>(call.workers, num_threads()));
  const bool few = call.batch <= kFewSamples;
  // Blocks of nearly equal size, as many for each worker.
  const int64_t rounds = (call.batch + workers * kBlockSamples - 1) / (workers * kBlockSamples);
  const int64_t count = few ? 1 : std::min(call.batch, workers * rounds);
  const int64_t used = std::min(workers, count);
  std::vector<std::unique_ptr<Workspace>> spaces;
  spaces.reserve(static_cast<size_t>(used));
  struct Return {
    DenseProgram& program;
    std::vector<std::unique_ptr<Workspace>>& spaces;
    ~Return() { program.give_back(spaces); }
  } give_back_at_end{*this, spaces};
  for (int64_t i = 0; i < used; ++i) spaces.push_back(borrow());
  for_each_task(count, used, [&](int64_t task, int64_t worker) {
    const int64_t first = call.batch * task / count, last = call.batch * (task + 1) / count;
    run_block({call, *spaces[static_cast<size_t>(worker)], first, last - first, few ? workers : 1});
  });
}

int64_t DenseProgram::weight_bytes() const {
  int64_t total = 0;
  for (const auto& layer : layers_) total += layer ? layer->weight_bytes() : 0;
  for (const auto& tensor : tensors_) total += static_cast<int64_t>(tensor.size()) * 4;
  return total;
}

int64_t DenseProgram::workspace_bytes() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_workspaces_ * Workspace::bytes(kBlockSamples, arena_, widest_);
}

}  // namespace megalith
