// The embedding operators over many tables: how the work is cut, and which kernels do it.
//
// Forward cuts the batch into pieces of about equal bytes, whatever the tables and bags are like. Backward sorts
// every table's (row, bag) entries, so that each touched row is one run of entries; runs are cut into pieces that
// threads take in turn. A row belongs to one piece and its gradients are added in the order of the batch, so the
// result does not depend on the number of threads.
#include "embedding.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "abi.h"
#include "parallel.h"
#include "radix_sort.h"

MG_EXPORT int32_t mg_simd_level();

namespace megalith {
namespace {

const Kernels& kernels(int32_t level) {
#if defined(__x86_64__)
  if (level >= 2) return avx512_kernels();
  if (level == 1) return avx2_kernels();
#endif
  (void)level;
  return portable_kernels();
}

// Runs tasks [0, count) on all threads; each takes the next one when it is done with its last.
template <class Body>
void for_each_task(int64_t count, Body body) {
  std::atomic<int64_t> next{0};
  parallel_for(0, std::min<int64_t>(num_threads(), count), 1, [&](int64_t, int64_t) {
    for (int64_t task; (task = next.fetch_add(1)) < count;) body(task);
  });
}

struct Piece {
  int64_t slot;
  Range bags;
  Range columns;
};

// Memory that lives from call to call, so that no step pays for fresh pages.
template <class T>
T* scratch(std::vector<T>& buffer, size_t count) {
  if (buffer.size() < count) buffer.resize(count + count / 4);
  return buffer.data();
}

Lookups of_slot(const Lookups& lookups, const Slot& slot, int64_t batch) {
  Lookups own = lookups;
  own.offsets += slot.feature * batch;
  return own;
}

std::vector<Piece> cut_forward(const Slot* slots, int64_t num_slots, const Lookups& lookups, int64_t batch) {
  const int64_t threads = num_threads();
  double total = 0;
  const auto cost = [](int64_t values, int64_t bags, int64_t width) {
    return static_cast<double>(values + bags) * static_cast<double>(width + 16);
  };
  for (int64_t s = 0; s < num_slots; ++s) {
    const int64_t* offsets = lookups.offsets + slots[s].feature * batch;
    total += cost(offsets[batch] - offsets[0], batch, slots[s].dim);
  }
  const double target = std::max(total / static_cast<double>(threads * 6), 65536.0);
  std::vector<Piece> pieces;
  for (int64_t s = 0; s < num_slots; ++s) {
    const Slot& slot = slots[s];
    const int64_t* offsets = lookups.offsets + slot.feature * batch;
    const int64_t values = offsets[batch] - offsets[0];
    const int64_t parts = std::max<int64_t>(1, static_cast<int64_t>(cost(values, batch, slot.dim) / target));
    if (slot.pooling == kNone) {
      for (int64_t part = 0; part < parts; ++part) {
        pieces.push_back({s, {values * part / parts, values * (part + 1) / parts}, {0, slot.dim}});
      }
      continue;
    }
    int64_t first = 0;
    for (int64_t part = 1; part <= parts && first < batch; ++part) {
      const int64_t* bound = std::lower_bound(offsets + first + 1, offsets + batch, offsets[0] + values * part / parts);
      const int64_t last = part == parts ? batch : bound - offsets;
      // A piece far above its share holds one very long bag: cut it by columns instead.
      const double size = cost(offsets[last] - offsets[first], last - first, slot.dim);
      const int64_t wide = (slot.dim + 15) / 16;
      const int64_t cuts = size > 2 * target ? std::min<int64_t>(wide, static_cast<int64_t>(size / target)) : 1;
      for (int64_t cut = 0; cut < cuts; ++cut) {
        const int64_t from = wide * cut / cuts * 16, to = std::min(wide * (cut + 1) / cuts * 16, slot.dim);
        pieces.push_back({s, {first, last}, {from, to}});
      }
      first = last;
    }
  }
  return pieces;
}

// The gradient of every value of a max-pooled slot: the bag's, in the columns where the value is the first maximum.
template <class Index, class Load>
void spread_max(const Slot& slot, const Index* values, const int64_t* offsets, int64_t batch, Load load,
                const float* gradient, int64_t stride, float* out) {
  std::fill_n(out, (offsets[batch] - offsets[0]) * slot.dim, 0.0f);
  parallel_for(0, batch, 64, [&](int64_t from, int64_t to) {
    for (int64_t bag = from; bag < to; ++bag) {
      const int64_t begin = offsets[bag], end = offsets[bag + 1];
      for (int64_t column = 0; column < slot.dim && begin < end; ++column) {
        int64_t best = -1;
        for (int64_t i = begin; i < end; ++i) {
          if (static_cast<int64_t>(values[i]) == slot.padding) continue;
          if (best < 0 || load(values[i], column) > load(values[best], column)) best = i;
        }
        if (best >= 0) out[(best - offsets[0]) * slot.dim + column] = gradient[bag * stride + column];
      }
    }
  });
}

// One table's share of the backward pass.
struct TableWork {
  std::vector<int64_t> slots;
  int64_t num_entries = 0;
  int64_t first_entry = 0;  // in the buffers shared by all tables
  bool direct = false;      // the only slot, its gradients read where they are
  uint8_t* single = nullptr;  // direct: whether each value's row occurs once
  Gradients gradients{};
};

struct SortTask {
  int64_t table, part, parts;
  uint64_t* sorted = nullptr;
  int64_t count = 0;
};

// A run of sorted entries, or (singles) a range of a table's bags.
struct UpdateTask {
  int64_t table;
  bool singles;
  const uint64_t* sorted;
  int64_t first, last;
  const float* total;
};

struct BackwardBuffers {
  std::vector<uint64_t> entries, spare;
  std::vector<const float*> rows;
  std::vector<uint32_t> bags;
  std::vector<uint8_t> single;
  std::vector<float> scales, spread, totals;
};

class Backward {
 public:
  Backward(const Slot* slots, int64_t num_slots, int64_t num_tables, void* const* weights, float* const* first,
           float* const* second, const Lookups& lookups, int64_t batch, const float* gradient, int64_t stride,
           const float* const* sequence_gradients, const Step* steps, uint64_t seed, const Kernels& use)
      : slots_(slots), num_slots_(num_slots), weights_(weights), first_(first), second_(second), lookups_(lookups),
        batch_(batch), gradient_(gradient), stride_(stride), sequence_gradients_(sequence_gradients), steps_(steps),
        seed_(seed), use_(use), tables_(static_cast<size_t>(num_tables)) {}

  void run() {
    gather();
    if (lookups_.index_bytes == 4) {
      sort<int32_t>();
    } else {
      sort<int64_t>();
    }
    update();
  }

 private:
  const float* gradient_of(const Slot& slot) const {
    if (slot.pooling == kNone) return sequence_gradients_[slot.sequence];
    return gradient_ ? gradient_ + slot.column : nullptr;
  }

  // Which entries each table has, and where their gradients lie.
  void gather() {
    for (int64_t s = 0; s < num_slots_; ++s) {
      // An output that nothing depended on has no gradient.
      if (gradient_of(slots_[s])) tables_[static_cast<size_t>(slots_[s].table)].slots.push_back(s);
    }
    int64_t total = 0, general = 0, spread = 0, means = 0;
    for (TableWork& table : tables_) {
      table.first_entry = total;
      for (int64_t s : table.slots) {
        const int64_t* offsets = lookups_.offsets + slots_[s].feature * batch_;
        const int64_t values = offsets[batch_] - offsets[0];
        table.num_entries += values;
        if (slots_[s].pooling == kMax) spread += values * slots_[s].dim;
      }
      total += table.num_entries;
      const bool simple = table.slots.size() == 1 && !lookups_.sample_weights;
      const int64_t pooling = table.slots.empty() ? kSum : slots_[table.slots[0]].pooling;
      table.direct = simple && (pooling == kSum || pooling == kMean);
      if (table.direct && pooling == kMean) means += batch_;
      if (!table.direct) general += table.num_entries;
    }
    static thread_local BackwardBuffers buffers;
    buffers_ = &buffers;
    scratch(buffers.entries, static_cast<size_t>(total));
    scratch(buffers.spare, static_cast<size_t>(total));
    const float** rows = scratch(buffers.rows, static_cast<size_t>(general));
    float* scales = scratch(buffers.scales, static_cast<size_t>(general + means));
    float* spread_at = scratch(buffers.spread, static_cast<size_t>(spread));
    uint32_t* bags = scratch(buffers.bags, static_cast<size_t>(total));
    uint8_t* single = scratch(buffers.single, static_cast<size_t>(total));
    std::fill_n(single, total, uint8_t{0});
    for (TableWork& table : tables_) {
      if (table.slots.empty()) continue;
      if (table.direct) {
        const Slot& slot = slots_[table.slots[0]];
        const int64_t* offsets = lookups_.offsets + slot.feature * batch_;
        table.gradients = {nullptr, gradient_of(slot), stride_, bags + table.first_entry, nullptr, nullptr};
        table.single = single + table.first_entry;
        uint32_t* to = bags + table.first_entry;
        for (int64_t bag = 0; bag < batch_; ++bag) {
          for (int64_t i = offsets[bag]; i < offsets[bag + 1]; ++i) *to++ = static_cast<uint32_t>(bag);
        }
        if (slot.pooling == kMean) {
          for (int64_t bag = 0; bag < batch_; ++bag) scales[bag] = share_of(slot, offsets[bag], offsets[bag + 1]);
          table.gradients.scales = scales;
          scales += batch_;
        }
      } else {
        table.gradients = {rows, nullptr, 0, nullptr, scales, nullptr};
        for (int64_t s : table.slots) spread_at = place(slots_[s], rows, scales, spread_at);
      }
    }
  }

  // Writes where the gradient of each value of a slot lies, and its factor.
  float* place(const Slot& slot, const float**& rows, float*& scales, float* spread) {
    const int64_t* offsets = lookups_.offsets + slot.feature * batch_;
    const float* gradient = gradient_of(slot);
    const float* weights = lookups_.sample_weights;
    const int64_t values = offsets[batch_] - offsets[0];
    if (slot.pooling == kMax) spread_gradients(slot, offsets, gradient, spread);
    for (int64_t bag = 0; bag < batch_; ++bag) {
      const float share = slot.pooling == kMean ? share_of(slot, offsets[bag], offsets[bag + 1]) : 1.0f;
      for (int64_t i = offsets[bag]; i < offsets[bag + 1]; ++i) {
        const int64_t position = i - offsets[0];
        if (slot.pooling == kNone) {
          *rows++ = gradient + position * slot.dim;
        } else if (slot.pooling == kMax) {
          *rows++ = spread + position * slot.dim;
        } else {
          *rows++ = gradient + bag * stride_;
        }
        *scales++ = weights && slot.pooling != kNone && slot.pooling != kMax ? share * weights[i] : share;
      }
    }
    return slot.pooling == kMax ? spread + values * slot.dim : spread;
  }

  // What mean pooling multiplies the gradient of each value of a bag with.
  float share_of(const Slot& slot, int64_t begin, int64_t end) const {
    int64_t count = end - begin;
    if (slot.padding >= 0) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t id = lookups_.index_bytes == 4 ? static_cast<const int32_t*>(lookups_.values)[i]
                                                     : static_cast<const int64_t*>(lookups_.values)[i];
        count -= id == slot.padding;
      }
    }
    return 1.0f / static_cast<float>(std::max<int64_t>(1, count));
  }

  void spread_gradients(const Slot& slot, const int64_t* offsets, const float* gradient, float* out) {
    const auto run = [&](const auto* values) {
      const void* weight = weights_[slot.table];
      const int64_t dim = slot.dim;
      if (slot.dtype == kFloat32) {
        const auto load = [=](int64_t row, int64_t c) { return static_cast<const float*>(weight)[row * dim + c]; };
        spread_max(slot, values, offsets, batch_, load, gradient, stride_, out);
      } else if (slot.dtype == kBFloat16) {
        const auto load = [=](int64_t row, int64_t c) {
          const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(weight)[row * dim + c]) << 16;
          float value;
          std::memcpy(&value, &bits, 4);
          return value;
        };
        spread_max(slot, values, offsets, batch_, load, gradient, stride_, out);
      } else {
        // Halves are ordered like their bits, with the negative ones turned round.
        const auto load = [=](int64_t row, int64_t c) {
          const int32_t bits = static_cast<const uint16_t*>(weight)[row * dim + c];
          return bits & 0x8000 ? -(bits & 0x7fff) : bits;
        };
        spread_max(slot, values, offsets, batch_, load, gradient, stride_, out);
      }
    };
    if (lookups_.index_bytes == 4) return run(static_cast<const int32_t*>(lookups_.values));
    run(static_cast<const int64_t*>(lookups_.values));
  }

  template <class Index>
  void sort() {
    const int64_t threads = num_threads();
    int64_t total = 0;
    for (const TableWork& table : tables_) total += table.num_entries;
    for (size_t t = 0; t < tables_.size(); ++t) {
      const int64_t n = tables_[t].num_entries;
      if (!n) continue;
      // A table with more than its share is sorted in parts, by the low bits of its rows.
      int64_t parts = 1;
      while (threads > 1 && parts < 4 * threads && n / parts > 32768 && n / parts > total / (2 * threads)) parts *= 2;
      for (int64_t part = 0; part < parts; ++part) sorts_.push_back({static_cast<int64_t>(t), part, parts});
    }
    std::vector<int64_t> starts(sorts_.size(), 0);
    // Where each part begins is known once its entries are counted.
    for_each_task(static_cast<int64_t>(sorts_.size()), [&](int64_t task) {
      SortTask& sort = sorts_[static_cast<size_t>(task)];
      const TableWork& table = tables_[static_cast<size_t>(sort.table)];
      if (sort.parts == 1) {
        sort.count = table.num_entries;
        return;
      }
      const int64_t mask = sort.parts - 1;
      for (int64_t s : table.slots) {
        const int64_t* offsets = lookups_.offsets + slots_[s].feature * batch_;
        const Index* values = static_cast<const Index*>(lookups_.values);
        for (int64_t i = offsets[0]; i < offsets[batch_]; ++i) {
          sort.count += (static_cast<int64_t>(values[i]) & mask) == sort.part;
        }
      }
    });
    int64_t table = -1, start = 0;
    for (size_t task = 0; task < sorts_.size(); ++task) {
      if (sorts_[task].table != table) {
        table = sorts_[task].table;
        start = tables_[static_cast<size_t>(table)].first_entry;
      }
      starts[task] = start;
      start += sorts_[task].count;
    }
    for_each_task(static_cast<int64_t>(sorts_.size()), [&](int64_t task) {
      SortTask& sort = sorts_[static_cast<size_t>(task)];
      uint64_t* entries = buffers_->entries.data() + starts[static_cast<size_t>(task)];
      sort.count = collect<Index>(sort, entries);
      const int64_t rows = slots_[tables_[static_cast<size_t>(sort.table)].slots[0]].rows;
      sort.sorted = radix_sort(entries, buffers_->spare.data() + starts[static_cast<size_t>(task)], sort.count,
                               bits_for(static_cast<uint64_t>(rows)));
      set_singles_aside(sort);
    });
  }

  // Takes rows that occur once out of the sorted entries and marks them: they are updated in batch order.
  void set_singles_aside(SortTask& sort) {
    uint8_t* single = tables_[static_cast<size_t>(sort.table)].single;
    if (!single) return;
    uint64_t* kept = sort.sorted;
    uint64_t before = ~uint64_t{0};
    for (int64_t i = 0; i < sort.count; ++i) {
      const uint64_t entry = sort.sorted[i], row = entry >> 32;
      const uint64_t after = i + 1 < sort.count ? sort.sorted[i + 1] >> 32 : ~uint64_t{0};
      const bool alone = row != before && row != after;
      single[static_cast<uint32_t>(entry)] = alone;
      *kept = entry;
      kept += !alone;
      before = row;
    }
    sort.count = kept - sort.sorted;
  }

  // Writes the entries of a part, without those of a padding id; returns how many they are.
  template <class Index>
  int64_t collect(const SortTask& sort, uint64_t* to) {
    const uint64_t* start = to;
    const TableWork& table = tables_[static_cast<size_t>(sort.table)];
    const Index* values = static_cast<const Index*>(lookups_.values);
    const uint64_t mask = static_cast<uint64_t>(sort.parts - 1), part = static_cast<uint64_t>(sort.part);
    uint64_t source = 0;
    for (int64_t s : table.slots) {
      const int64_t* offsets = lookups_.offsets + slots_[s].feature * batch_;
      const uint64_t padding = static_cast<uint64_t>(slots_[s].padding);
      for (int64_t i = offsets[0]; i < offsets[batch_]; ++i, ++source) {
        const uint64_t row = static_cast<uint64_t>(values[i]);
        if ((row & mask) == part && row != padding) *to++ = row << 32 | source;
      }
    }
    return to - start;
  }

  void update() {
    cut_updates();
    for_each_task(static_cast<int64_t>(updates_.size()), [&](int64_t task) {
      const UpdateTask& one = updates_[static_cast<size_t>(task)];
      const TableWork& table = tables_[static_cast<size_t>(one.table)];
      const Slot& slot = slots_[table.slots[0]];
      static thread_local std::vector<float> row;
      float* scratch_row = scratch(row, static_cast<size_t>(slot.dim));
      const uint64_t seed = seed_ + static_cast<uint64_t>(one.table) * 0xd1342543de82ef95ull;
      void* weight = weights_[one.table];
      float *first = first_[one.table], *second = second_[one.table];
      if (one.singles) {
        use_.update_singles(slot, weight, first, second, of_slot(lookups_, slot, batch_), {one.first, one.last},
                            table.single, table.gradients, steps_[one.table], seed, scratch_row);
        return;
      }
      Gradients gradients = table.gradients;
      gradients.total = one.total;
      use_.update(slot, weight, first, second, one.sorted + one.first, one.last - one.first, gradients,
                  steps_[one.table], seed, scratch_row);
    });
  }

  // Cuts sorted entries where a row ends. A row with very many is added up column by column by all threads first.
  void cut_updates() {
    double total = 0;
    for (const SortTask& sort : sorts_) total += static_cast<double>(sort.count) * width(sort);
    const double target = std::max(total / static_cast<double>(num_threads() * 8), 65536.0);
    struct Hot {
      size_t update;
      Range columns;
      int64_t at;
    };
    std::vector<Hot> hot;
    int64_t totals = 0;
    for (const SortTask& sort : sorts_) {
      const int64_t step = std::max<int64_t>(64, static_cast<int64_t>(target / width(sort)));
      const int64_t dim = slots_[tables_[static_cast<size_t>(sort.table)].slots[0]].dim;
      for (int64_t first = 0, last; first < sort.count; first = last) {
        last = std::min(first + step, sort.count);
        while (last < sort.count && sort.sorted[last] >> 32 == sort.sorted[last - 1] >> 32) ++last;
        if (num_threads() > 1 && last - first > 2 * step) {
          // The row that made this piece long is its last; what comes before it is a piece of its own.
          int64_t begin = last - 1;
          while (begin > first && sort.sorted[begin - 1] >> 32 == sort.sorted[begin] >> 32) --begin;
          if (begin > first) updates_.push_back({sort.table, false, sort.sorted, first, begin, nullptr});
          const int64_t wide = (dim + 15) / 16, cuts = std::min<int64_t>(wide, 2 * num_threads());
          for (int64_t cut = 0; cut < cuts; ++cut) {
            hot.push_back({updates_.size(), {wide * cut / cuts * 16, std::min(wide * (cut + 1) / cuts * 16, dim)}, totals});
          }
          totals += dim;
          updates_.push_back({sort.table, false, sort.sorted, begin, last, nullptr});
        } else {
          updates_.push_back({sort.table, false, sort.sorted, first, last, nullptr});
        }
      }
    }
    for (size_t t = 0; t < tables_.size(); ++t) {
      if (!tables_[t].single || !tables_[t].num_entries) continue;
      const Slot& slot = slots_[tables_[t].slots[0]];
      const double size = static_cast<double>(tables_[t].num_entries) * static_cast<double>(slot.dim + 16);
      const int64_t parts = std::min<int64_t>(batch_, 1 + static_cast<int64_t>(size / target));
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t first = batch_ * part / parts, last = batch_ * (part + 1) / parts;
        updates_.push_back({static_cast<int64_t>(t), true, nullptr, first, last, nullptr});
      }
    }
    float* sums = scratch(buffers_->totals, static_cast<size_t>(totals));
    for (const Hot& one : hot) updates_[one.update].total = sums + one.at;
    for_each_task(static_cast<int64_t>(hot.size()), [&](int64_t task) {
      const Hot& one = hot[static_cast<size_t>(task)];
      const UpdateTask& update = updates_[one.update];
      use_.add_up(update.sorted + update.first, update.last - update.first,
                  tables_[static_cast<size_t>(update.table)].gradients, one.columns, sums + one.at);
    });
  }

  double width(const SortTask& sort) const {
    return static_cast<double>(slots_[tables_[static_cast<size_t>(sort.table)].slots[0]].dim + 16);
  }

  const Slot* slots_;
  int64_t num_slots_;
  void* const* weights_;
  float* const* first_;
  float* const* second_;
  Lookups lookups_;
  int64_t batch_;
  const float* gradient_;
  int64_t stride_;
  const float* const* sequence_gradients_;
  const Step* steps_;
  uint64_t seed_;
  const Kernels& use_;
  std::vector<TableWork> tables_;
  std::vector<SortTask> sorts_;
  std::vector<UpdateTask> updates_;
  BackwardBuffers* buffers_ = nullptr;
};

}  // namespace
}  // namespace megalith

using megalith::Slot;

MG_EXPORT void mg_embedding_forward(const int64_t* slots, int64_t num_slots, void* const* weights,
                                    const void* values, int32_t index_bytes, const int64_t* offsets,
                                    const float* sample_weights, int64_t batch, void* out, int64_t out_dtype,
                                    int64_t out_stride, void* const* sequences, int32_t simd_level) {
  const Slot* described = reinterpret_cast<const Slot*>(slots);
  const megalith::Lookups lookups{values, index_bytes, offsets, sample_weights};
  const megalith::Kernels& use = megalith::kernels(simd_level);
  const auto pieces = megalith::cut_forward(described, num_slots, lookups, batch);
  const int64_t out_bytes = out_dtype == megalith::kFloat32 ? 4 : 2;
  megalith::for_each_task(static_cast<int64_t>(pieces.size()), [&](int64_t task) {
    const megalith::Piece& piece = pieces[static_cast<size_t>(task)];
    const Slot& slot = described[piece.slot];
    const megalith::Lookups own = megalith::of_slot(lookups, slot, batch);
    if (slot.pooling == megalith::kNone) {
      use.copy(slot, weights[slot.table], own, piece.bags.first, piece.bags.last, sequences[slot.sequence], out_dtype);
    } else {
      char* to = static_cast<char*>(out) + slot.column * out_bytes;
      use.pool(slot, weights[slot.table], own, piece.bags, piece.columns, to, out_dtype, out_stride);
    }
  });
}

MG_EXPORT void mg_embedding_backward(const int64_t* slots, int64_t num_slots, int64_t num_tables, void* const* weights,
                                     float* const* first_states, float* const* second_states, const void* values,
                                     int32_t index_bytes, const int64_t* offsets, const float* sample_weights,
                                     int64_t batch, const float* gradient, int64_t stride,
                                     const float* const* sequence_gradients, const float* steps, uint64_t seed,
                                     int32_t simd_level) {
  megalith::Backward(reinterpret_cast<const Slot*>(slots), num_slots, num_tables, weights, first_states, second_states,
                     {values, index_bytes, offsets, sample_weights}, batch, gradient, stride, sequence_gradients,
                     reinterpret_cast<const megalith::Step*>(steps), seed, megalith::kernels(simd_level))
      .run();
}

MG_EXPORT void mg_sample_weight_gradient(const int64_t* slots, int64_t num_slots, void* const* weights,
                                         const void* values, int32_t index_bytes, const int64_t* offsets,
                                         int64_t batch, const float* gradient, int64_t stride, float* out,
                                         int32_t simd_level) {
  const Slot* described = reinterpret_cast<const Slot*>(slots);
  const megalith::Lookups lookups{values, index_bytes, offsets, nullptr};
  const megalith::Kernels& use = megalith::kernels(simd_level);
  for (int64_t s = 0; s < num_slots; ++s) {
    const Slot& slot = described[s];
    if (slot.pooling != megalith::kSum && slot.pooling != megalith::kMean) continue;
    const megalith::Lookups own = megalith::of_slot(lookups, slot, batch);
    megalith::parallel_for(0, batch, 64, [&](int64_t from, int64_t to) {
      use.weight_gradient(slot, weights[slot.table], own, from, to, gradient + slot.column, stride, out);
    });
  }
}

// Asks for huge pages under a table: one translation then covers thousands of rows instead of sixteen.
MG_EXPORT void mg_advise_huge_pages(void* from, int64_t bytes) {
#if defined(__linux__)
  const uintptr_t huge = 2 << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(from) + huge - 1) / huge * huge;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(from) + static_cast<uintptr_t>(bytes)) / huge * huge;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)from;
  (void)bytes;
#endif
}
