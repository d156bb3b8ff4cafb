// What the backward passes share: which values each table has, where their gradients are, which thread takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "embedding/lookup.h"
#include "optimizer/step.h"

namespace megalith {

// Slots of records are multiples of their length: their bits spread evenly.
inline uint32_t mixed_slot(uint64_t slot) {
  const uint32_t mixed = static_cast<uint32_t>(slot) * 0x9e3779b1u;
  return mixed ^ mixed >> 15;
}

// Rows that a table's values are below.
inline int64_t num_physical_rows(const LookupDescriptor& lookup) {
  return lookup.layout == kChunkedRows ? kMostRows - 1 : lookup.rows;
}

// One table's share of a backward pass.
struct TableWork {
  std::vector<const LookupDescriptor*> lookups;
  int64_t num_values = 0;
  bool direct = false;  // one pooled lookup without sample weights: a value's source is its bag
  Gradients gradients{};
};

// A table, or those of its rows whose low bits are `piece`.
struct TableTask {
  int64_t table;
  uint64_t piece, pieces;
};

// The gradients of a lookup's outputs. Null where nothing depended on an output.
struct OutputGradients {
  const float* pooled;  // [batch, stride]
  int64_t stride;
  const float* const* sequences;
};

// Where gradients of single values are, if not in the bags' own; valid as long as these are.
struct GradientBuffers {
  std::vector<float> spread, scales;
  std::vector<const float*> rows;
};

// The backward pass of one batch, as the threads share it.
class BackwardBatch {
 public:
  BackwardBatch(const LookupDescriptor* lookups, int64_t num_lookups, int64_t num_tables, void* const* weights,
                const LookupBatch& batch, const OutputGradients& gradients, GradientBuffers& buffers);

  int32_t index_bytes() const { return batch_.index_bytes; }
  const TableWork& table(int64_t number) const { return tables_[static_cast<size_t>(number)]; }

  // Tables, largest first. Each piece of a table reads all of its values, so one is cut only while whole tables would
  // leave threads waiting at the end.
  std::vector<TableTask> cut() const;

  // Calls body(row, source, whether the row is of this piece, whether it counts at all) for every value of a table; its
  // rows are slots of records if `Slots`.
  template <class Index, bool Slots = false, class Body>
  void for_values(const TableTask& task, Body body) const {
    const uint64_t mask = task.pieces - 1;
    const Index* values = static_cast<const Index*>(batch_.values);
    const TableWork& work = table(task.table);
    uint64_t source = 0;
    for (const LookupDescriptor* lookup : work.lookups) {
      const int64_t* offsets = offsets_of(*lookup);
      const uint64_t padding = static_cast<uint64_t>(lookup->padding);
      for (int64_t bag = 0; bag < batch_.size; ++bag) {
        for (int64_t i = offsets[bag]; i < offsets[bag + 1]; ++i, ++source) {
          const uint64_t row = Slots ? static_cast<uint32_t>(values[i]) : static_cast<uint64_t>(values[i]);
          const bool counts = row != padding;
          const uint64_t piece = (Slots ? mixed_slot(row) : row) & mask;
          body(row, work.direct ? static_cast<uint64_t>(bag) : source, (piece == task.piece) & counts, counts);
        }
      }
    }
  }

 private:
  const float* gradient_of(const LookupDescriptor& lookup) const;
  const int64_t* offsets_of(const LookupDescriptor& lookup) const {
    return batch_.offsets + lookup.feature * batch_.size;
  }
  float share_of(const LookupDescriptor& lookup, int64_t begin, int64_t end) const;
  float* locate_gradients(const LookupDescriptor& lookup, void* weight, const float**& rows, float*& scales,
                          float* spread) const;
  void spread_gradients(const LookupDescriptor& lookup, const void* weight, float* out) const;

  LookupBatch batch_;
  OutputGradients gradients_;
  std::vector<TableWork> tables_;
};

}  // namespace megalith
