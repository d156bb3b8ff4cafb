// What the backward passes share: which values each table has, where their gradients lie, which thread takes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "embedding.h"

namespace megalith {

// Memory that lives from call to call, so that no step pays for fresh pages.
template <class T>
T* scratch(std::vector<T>& buffer, size_t count) {
  if (buffer.size() < count) buffer.resize(count + count / 4);
  return buffer.data();
}

inline Entry* resized(std::vector<Entry>& entries, int64_t count) {
  entries.resize(static_cast<size_t>(count));
  return entries.data();
}

// One table's share of a backward pass.
struct TableWork {
  std::vector<const Slot*> slots;
  int64_t num_values = 0;
  bool direct = false;  // one pooled slot without sample weights: a value's source is its bag
  Gradients gradients{};
};

// A table, or those of its rows whose low bits are `piece`.
struct Task {
  int64_t table;
  uint64_t piece, pieces;
};

// Where gradients of single values lie, if not in the bags' own; valid as long as these are.
struct GradientBuffers {
  std::vector<float> spread, scales;
  std::vector<const float*> rows;
};

// Sums of repeated rows that a thread works on at a time, so that they stay in its second-level cache.
constexpr int64_t kSumBytes = 512 << 10;
inline int64_t sums_at_a_time(int64_t dim) { return std::max<int64_t>(16, kSumBytes / (dim * 4)); }

// Entries in parts of neighbouring numbers.
struct Parts {
  std::vector<int64_t> bounds;  // where each part begins and the last one ends
  std::vector<int64_t> places;
  std::vector<Entry> parted;

  // For so many entries and rows: cutting them will then take no further memory.
  void reserve(int64_t num_entries, int64_t num_rows, int64_t at_a_time);
  // Brings the entries of each `at_a_time` numbers together, numbers counted from the first of them. `entries` must
  // have the room that was reserved here: the two change places.
  void cut(std::vector<Entry>& entries, int64_t num_rows, int64_t at_a_time);
};

class BackwardBatch {
 public:
  BackwardBatch(const Slot* slots, int64_t num_slots, int64_t num_tables, void* const* weights, const Lookups& lookups,
                int64_t batch, const float* gradient, int64_t stride, const float* const* sequence_gradients,
                GradientBuffers& buffers);

  const TableWork& table(int64_t number) const { return tables_[static_cast<size_t>(number)]; }
  int32_t index_bytes() const { return lookups_.index_bytes; }

  // Tables, largest first. Each piece of a table reads all of its values, so one is cut only while whole tables would
  // leave threads waiting at the end.
  std::vector<Task> cut() const;

  // Calls body(row, source, whether the row is of this piece, whether it counts at all) for every value of a table.
  template <class Index, class Body>
  void for_values(const Task& task, Body body) const {
    const uint64_t mask = task.pieces - 1;
    const Index* values = static_cast<const Index*>(lookups_.values);
    const TableWork& work = table(task.table);
    uint64_t source = 0;
    for (const Slot* slot : work.slots) {
      const int64_t* offsets = offsets_of(*slot);
      const uint64_t padding = static_cast<uint64_t>(slot->padding);
      for (int64_t bag = 0; bag < batch_; ++bag) {
        for (int64_t i = offsets[bag]; i < offsets[bag + 1]; ++i, ++source) {
          const uint64_t row = static_cast<uint64_t>(values[i]);
          const bool counts = row != padding;
          body(row, work.direct ? static_cast<uint64_t>(bag) : source, ((row & mask) == task.piece) & counts, counts);
        }
      }
    }
  }

 private:
  const float* gradient_of(const Slot& slot) const;
  const int64_t* offsets_of(const Slot& slot) const { return lookups_.offsets + slot.feature * batch_; }
  float share_of(const Slot& slot, int64_t begin, int64_t end) const;
  float* place(const Slot& slot, void* weight, const float**& rows, float*& scales, float* spread) const;
  void spread_gradients(const Slot& slot, const void* weight, float* out) const;

  Lookups lookups_;
  int64_t batch_;
  const float* gradient_;
  int64_t stride_;
  const float* const* sequence_gradients_;
  std::vector<TableWork> tables_;
};

}  // namespace megalith
