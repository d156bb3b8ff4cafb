// The backward pass over many tables: which rows a batch touches, and which thread updates them.
//
// Tables are the tasks; a table with more than its share is cut into pieces by the low bits of its rows. A task
// numbers the rows of its values and hands them to the update kernel. A row belongs to one task and its gradients
// are added in the order of the batch, so the result does not depend on the number of threads.
#include <algorithm>
#include <cstring>
#include <vector>

#include "abi.h"
#include "embedding.h"
#include "parallel.h"
#include "row_index.h"

namespace megalith {
namespace {

// Memory that lives from call to call, so that no step pays for fresh pages.
template <class T>
T* scratch(std::vector<T>& buffer, size_t count) {
  if (buffer.size() < count) buffer.resize(count + count / 4);
  return buffer.data();
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
  std::vector<const Slot*> slots;
  int64_t num_values = 0;
  bool direct = false;  // one pooled slot without sample weights: a value's source is its bag
  Gradients gradients{};
};

struct Task {
  int64_t table;
  uint64_t piece, pieces;
};

// What a thread keeps from task to task and from call to call.
struct Buffers {
  Repeats repeats;
  RowNumbers numbers;
  std::vector<uint32_t> before, repeated;  // ranks of the marked rows, and those rows by number
  std::vector<Entry> all, once, again, parted, rows;
  std::vector<float> sums;
};

// Threads may wait at the end for a tenth of the time; pieces of less than this many values times columns are not cut.
constexpr double kWaiting = 1.1, kSmallest = 65536;

// Sums of repeated rows that a thread works on at a time, so that they stay in its second-level cache.
constexpr int64_t kSumBytes = 512 << 10;

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
    const std::vector<Task> tasks = cut();
    for_each_task(static_cast<int64_t>(tasks.size()), [&](int64_t task) {
      if (lookups_.index_bytes == 4) {
        update<int32_t>(tasks[static_cast<size_t>(task)]);
      } else {
        update<int64_t>(tasks[static_cast<size_t>(task)]);
      }
    });
  }

 private:
  const float* gradient_of(const Slot& slot) const {
    if (slot.pooling == kNone) return sequence_gradients_[slot.sequence];
    return gradient_ ? gradient_ + slot.column : nullptr;
  }

  const int64_t* offsets_of(const Slot& slot) const { return lookups_.offsets + slot.feature * batch_; }

  // Which values each table has, and where their gradients lie.
  void gather() {
    int64_t general = 0, spread = 0, means = 0;
    for (const Slot* slot = slots_; slot < slots_ + num_slots_; ++slot) {
      // An output that nothing depended on has no gradient.
      if (gradient_of(*slot)) tables_[static_cast<size_t>(slot->table)].slots.push_back(slot);
    }
    for (TableWork& table : tables_) {
      for (const Slot* slot : table.slots) {
        const int64_t* offsets = offsets_of(*slot);
        const int64_t values = offsets[batch_] - offsets[0];
        table.num_values += values;
        if (slot->pooling == kMax) spread += values * slot->dim;
      }
      const int64_t pooling = table.slots.empty() ? kSum : table.slots[0]->pooling;
      table.direct = table.slots.size() == 1 && !lookups_.sample_weights && (pooling == kSum || pooling == kMean);
      if (table.direct && pooling == kMean) means += batch_;
      if (!table.direct) general += table.num_values;
    }
    static thread_local std::vector<float> spread_buffer, scale_buffer;
    static thread_local std::vector<const float*> row_buffer;
    float* spread_at = scratch(spread_buffer, static_cast<size_t>(spread));
    float* scales = scratch(scale_buffer, static_cast<size_t>(general + means));
    const float** rows = scratch(row_buffer, static_cast<size_t>(general));
    for (TableWork& table : tables_) {
      if (table.slots.empty()) continue;
      if (table.direct) {
        const Slot& slot = *table.slots[0];
        table.gradients = {gradient_of(slot), stride_, nullptr, nullptr};
        if (slot.pooling == kMean) {
          const int64_t* offsets = offsets_of(slot);
          for (int64_t bag = 0; bag < batch_; ++bag) scales[bag] = share_of(slot, offsets[bag], offsets[bag + 1]);
          table.gradients.scales = scales;
          scales += batch_;
        }
      } else {
        table.gradients = {nullptr, 0, rows, scales};
        for (const Slot* slot : table.slots) spread_at = place(*slot, rows, scales, spread_at);
      }
    }
  }

  // Writes where the gradient of each value of a slot lies, and its factor.
  float* place(const Slot& slot, const float**& rows, float*& scales, float* spread) {
    const int64_t* offsets = offsets_of(slot);
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

  // Tables, largest first. Each piece of a table reads all of its values, so one is cut only while whole tables would
  // leave threads waiting at the end.
  std::vector<Task> cut() const {
    struct Sized {
      int64_t table;
      double size;
      uint64_t pieces;
    };
    std::vector<Sized> sized;
    double total = 0;
    for (size_t t = 0; t < tables_.size(); ++t) {
      if (!tables_[t].num_values) continue;
      const double size = static_cast<double>(tables_[t].num_values * (tables_[t].slots[0]->dim + 16));
      sized.push_back({static_cast<int64_t>(t), size, 1});
      total += size;
    }
    const int threads = num_threads();
    std::vector<double> loads(static_cast<size_t>(threads));
    const auto larger = [](const Sized& a, const Sized& b) {
      return a.size != b.size ? a.size > b.size : a.table < b.table;
    };
    const auto last_end = [&] {
      std::fill(loads.begin(), loads.end(), 0.0);
      for (const Sized& one : sized) {
        for (uint64_t piece = 0; piece < one.pieces; ++piece) *std::min_element(loads.begin(), loads.end()) += one.size;
      }
      return *std::max_element(loads.begin(), loads.end());
    };
    std::sort(sized.begin(), sized.end(), larger);
    while (threads > 1 && last_end() > kWaiting * total / threads && sized[0].size > kSmallest) {
      sized[0].size /= 2;
      sized[0].pieces *= 2;
      std::sort(sized.begin(), sized.end(), larger);
    }
    std::vector<Task> tasks;
    for (const Sized& one : sized) {
      for (uint64_t piece = 0; piece < one.pieces; ++piece) tasks.push_back({one.table, piece, one.pieces});
    }
    return tasks;
  }

  template <class Index>
  void update(const Task& task) {
    static thread_local Buffers buffers;
    const TableWork& table = tables_[static_cast<size_t>(task.table)];
    const Slot& slot = *table.slots[0];
    TableUpdate work{slot.dim, slot.dtype, weights_[task.table], first_[task.table], second_[task.table],
                     &steps_[task.table], seed_ + static_cast<uint64_t>(task.table) * 0xd1342543de82ef95ull,
                     table.gradients};
    split<Index>(table, task, buffers);
    use_.update(work, buffers.once.data(), static_cast<int64_t>(buffers.once.size()));
    const std::vector<uint32_t>& rows = buffers.repeated;
    const int64_t num_rows = static_cast<int64_t>(rows.size());
    const int64_t at_a_time = std::max<int64_t>(16, kSumBytes / (slot.dim * 4));
    const std::vector<int64_t> bounds = part(buffers, num_rows, at_a_time);
    float* sums = scratch(buffers.sums, static_cast<size_t>(std::min(num_rows, at_a_time) * slot.dim));
    for (size_t p = 0; p + 1 < bounds.size(); ++p) {
      const int64_t first = static_cast<int64_t>(p) * at_a_time, last = std::min(first + at_a_time, num_rows);
      work.gradients = table.gradients;
      std::memset(sums, 0, static_cast<size_t>((last - first) * slot.dim) * sizeof(float));
      use_.add_up(work, buffers.again.data() + bounds[p], bounds[p + 1] - bounds[p], sums);
      buffers.rows.clear();
      for (int64_t i = first; i < last; ++i) {
        buffers.rows.push_back(static_cast<Entry>(rows[static_cast<size_t>(i)]) << 32 | static_cast<Entry>(i - first));
      }
      work.gradients = {sums, slot.dim, nullptr, nullptr};
      use_.update(work, buffers.rows.data(), last - first);
    }
  }

  // Lists the values whose rows occur once as (row, source), the others as (number of the row, source).
  template <class Index>
  void split(const TableWork& table, const Task& task, Buffers& buffers) const {
    Repeats& repeats = buffers.repeats;
    repeats.reset(table.num_values, table.slots[0]->rows);
    Entry* all = resized(buffers.all, table.num_values + 1);
    for_values<Index>(table, task, [&](uint64_t row, uint64_t source, bool own) {
      repeats.meet(row, own);
      *all = row << 32 | source;
      all += own;
    });
    const int64_t count = all - buffers.all.data();
    Entry* once = resized(buffers.once, count + 1);
    Entry* again = resized(buffers.again, count + 1);
    if (repeats.exact()) {
      use_.rank(repeats.marked(), buffers.before, buffers.repeated);
      use_.deal(repeats.marked(), buffers.before, buffers.all.data(), count, once, again);
    } else {
      for (const Entry* entry = buffers.all.data(); entry < all; ++entry) {
        const bool repeated = repeats.repeated(*entry >> 32);
        *once = *again = *entry;
        once += !repeated;
        again += repeated;
      }
    }
    buffers.once.resize(static_cast<size_t>(once - buffers.once.data()));
    buffers.again.resize(static_cast<size_t>(again - buffers.again.data()));
    if (repeats.exact()) return;
    buffers.numbers.reset();
    for (Entry& entry : buffers.again) {
      const uint64_t number = buffers.numbers.number(static_cast<uint32_t>(entry >> 32));
      entry = number << 32 | static_cast<uint32_t>(entry);
    }
    buffers.repeated = buffers.numbers.rows();
  }

  // Calls body(row, source, whether the row is of this piece) for every value of a table.
  template <class Index, class Body>
  void for_values(const TableWork& table, const Task& task, Body body) const {
    const uint64_t mask = task.pieces - 1;
    const Index* values = static_cast<const Index*>(lookups_.values);
    uint64_t source = 0;
    for (const Slot* slot : table.slots) {
      const int64_t* offsets = offsets_of(*slot);
      const uint64_t padding = static_cast<uint64_t>(slot->padding);
      for (int64_t bag = 0; bag < batch_; ++bag) {
        for (int64_t i = offsets[bag]; i < offsets[bag + 1]; ++i, ++source) {
          const uint64_t row = static_cast<uint64_t>(values[i]);
          const bool own = ((row & mask) == task.piece) & (row != padding);
          body(row, table.direct ? static_cast<uint64_t>(bag) : source, own);
        }
      }
    }
  }

  static Entry* resized(std::vector<Entry>& entries, int64_t count) {
    entries.resize(static_cast<size_t>(count));
    return entries.data();
  }

  // Brings the entries of each `at_a_time` numbers together, numbers counted from the first of them; returns where
  // each part begins and the last one ends.
  static std::vector<int64_t> part(Buffers& buffers, int64_t num_rows, int64_t at_a_time) {
    const size_t parts = static_cast<size_t>((num_rows + at_a_time - 1) / at_a_time);
    std::vector<int64_t> bounds(parts + 1, 0);
    if (parts == 1) bounds[1] = static_cast<int64_t>(buffers.again.size());
    if (parts <= 1) return bounds;
    const uint64_t size = static_cast<uint64_t>(at_a_time);
    for (const Entry entry : buffers.again) ++bounds[(entry >> 32) / size + 1];
    for (size_t p = 0; p < parts; ++p) bounds[p + 1] += bounds[p];
    std::vector<int64_t> places(bounds.begin(), bounds.end() - 1);
    Entry* parted = resized(buffers.parted, static_cast<int64_t>(buffers.again.size()));
    for (const Entry entry : buffers.again) {
      const uint64_t p = (entry >> 32) / size;
      parted[places[p]++] = entry - (p * size << 32);
    }
    std::swap(buffers.again, buffers.parted);
    return bounds;
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
};

}  // namespace
}  // namespace megalith

MG_EXPORT void mg_embedding_backward(const int64_t* slots, int64_t num_slots, int64_t num_tables, void* const* weights,
                                     float* const* first_states, float* const* second_states, const void* values,
                                     int32_t index_bytes, const int64_t* offsets, const float* sample_weights,
                                     int64_t batch, const float* gradient, int64_t stride,
                                     const float* const* sequence_gradients, const float* steps, uint64_t seed,
                                     int32_t simd_level) {
  megalith::Backward(reinterpret_cast<const megalith::Slot*>(slots), num_slots, num_tables, weights, first_states,
                     second_states, {values, index_bytes, offsets, sample_weights}, batch, gradient, stride,
                     sequence_gradients, reinterpret_cast<const megalith::Step*>(steps), seed,
                     megalith::kernels(simd_level))
      .run();
}
