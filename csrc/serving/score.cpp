#include "serving/score.h"

#include <algorithm>
#include <cstring>

#include "abi.h"

namespace megalith {
namespace {

constexpr int64_t kMaxInputs = 8;
// Scratch that is larger is given back to the system after its request.
constexpr int64_t kKeptBytes = 16 << 20;

bool all_finite(const float* numbers, int64_t count) {
  constexpr uint32_t kExponent = 0x7f800000u;
  uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, numbers + i, sizeof bits);
    found |= (bits & kExponent) == kExponent ? 1u : 0u;
  }
  return found == 0;
}

// Where each bag begins, and the end of the last one; false where a length is negative.
bool add_up(const int32_t* lengths, int64_t count, int64_t* offsets) {
  int64_t total = 0;
  int32_t signs = 0;
  for (int64_t bag = 0; bag < count; ++bag) {
    offsets[bag] = total;
    total += lengths[bag];
    signs |= lengths[bag];
  }
  offsets[count] = total;
  return signs >= 0;
}

}  // namespace

ServedModel::ServedModel(const FrozenTables& tables, DenseProgram& program, int64_t num_features, int64_t num_numbers,
                         int64_t num_columns, const int64_t* input_kinds, int64_t num_inputs)
    : tables_(tables),
      program_(program),
      num_features_(num_features),
      num_numbers_(num_numbers),
      num_columns_(num_columns),
      input_kinds_(input_kinds, input_kinds + num_inputs) {
  if (num_inputs > kMaxInputs) throw std::runtime_error("a program has more inputs than a request");
}

bool ServedModel::score(const ScoreCall& call) {
  if (call.numbers && !all_finite(call.numbers, call.batch * num_numbers_)) return false;
  const int64_t num_bags = num_features_ * call.batch;
  struct Borrowed {
    ServedModel& model;
    std::unique_ptr<Scratch> scratch;
    ~Borrowed() { model.give_back(std::move(scratch)); }
  } held{*this, borrow((num_bags + 1) * int64_t{sizeof(int64_t)}, call.batch * num_columns_ * int64_t{sizeof(float)})};
  int64_t* offsets = held.scratch->offsets.as<int64_t>();
  float* pooled = held.scratch->pooled.as<float>();
  if (!add_up(call.lengths, num_bags, offsets) || offsets[num_bags] != call.num_values) return false;
  const FrozenBatch batch{call.values, call.index_bytes, offsets, 8, nullptr, call.batch, pooled, num_columns_};
  if (num_columns_ > 0 && pool_tables(tables_, batch, call.workers).lookup >= 0) return false;
  const float* inputs[kMaxInputs];
  int64_t strides[kMaxInputs];
  for (size_t i = 0; i < input_kinds_.size(); ++i) {
    const bool is_pooled = input_kinds_[i] == 1;
    inputs[i] = is_pooled ? pooled : call.numbers;
    strides[i] = is_pooled ? num_columns_ : num_numbers_;
  }
  program_.run({inputs, strides, call.batch, call.workers, call.out});
  return true;
}

std::unique_ptr<ServedModel::Scratch> ServedModel::borrow(int64_t offset_bytes, int64_t pooled_bytes) {
  std::unique_ptr<Scratch> scratch;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      scratch = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  const bool is_new = scratch == nullptr;
  try {
    if (is_new) scratch = std::make_unique<Scratch>();
    if (scratch->offsets.bytes() < offset_bytes) scratch->offsets = ZeroedMemory(offset_bytes);
    if (scratch->pooled.bytes() < pooled_bytes) scratch->pooled = ZeroedMemory(pooled_bytes);
  } catch (...) {
    if (!is_new) give_back(std::move(scratch));
    throw;
  }
  if (is_new) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Room for all of them, so that giving one back cannot fail.
    idle_.reserve(static_cast<size_t>(++num_scratches_));
  }
  return scratch;
}

void ServedModel::give_back(std::unique_ptr<Scratch> scratch) noexcept {
  if (scratch->bytes() > kKeptBytes) *scratch = Scratch();
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(scratch));
}

int64_t ServedModel::scratch_bytes() {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t total = 0;
  for (const auto& scratch : idle_) total += scratch->bytes();
  return total;
}

}  // namespace megalith
