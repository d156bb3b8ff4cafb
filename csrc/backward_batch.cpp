#include "backward_batch.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "parallel.h"
#include "row_index.h"

namespace megalith {
namespace {

// Threads may wait at the end for a tenth of the time; pieces of less than this many values times columns are not cut.
constexpr double kWaiting = 1.1, kSmallest = 65536;

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

}  // namespace

BackwardBatch::BackwardBatch(const Slot* slots, int64_t num_slots, int64_t num_tables, void* const* weights,
                             const Lookups& lookups, int64_t batch, const float* gradient, int64_t stride,
                             const float* const* sequence_gradients, GradientBuffers& buffers)
    : lookups_(lookups), batch_(batch), gradient_(gradient), stride_(stride), sequence_gradients_(sequence_gradients),
      tables_(static_cast<size_t>(num_tables)) {
  int64_t general = 0, spread = 0, means = 0;
  for (const Slot* slot = slots; slot < slots + num_slots; ++slot) {
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
    // An entry has 32 bits for a row and as many for the number of a value.
    if (table.num_values >= kMostRows) throw std::invalid_argument("a table has 2^32 values or more in one batch");
    if (!table.slots.empty() && table.slots[0]->rows >= kMostRows) {
      throw std::invalid_argument("a table has 2^32 rows or more");
    }
    const int64_t pooling = table.slots.empty() ? kSum : table.slots[0]->pooling;
    table.direct = table.slots.size() == 1 && !lookups_.sample_weights && (pooling == kSum || pooling == kMean);
    if (table.direct && pooling == kMean) means += batch_;
    if (!table.direct) general += table.num_values;
  }
  float* spread_at = scratch(buffers.spread, static_cast<size_t>(spread));
  float* scales = scratch(buffers.scales, static_cast<size_t>(general + means));
  const float** rows = scratch(buffers.rows, static_cast<size_t>(general));
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
      for (const Slot* slot : table.slots) spread_at = place(*slot, weights[slot->table], rows, scales, spread_at);
    }
  }
}

const float* BackwardBatch::gradient_of(const Slot& slot) const {
  if (slot.pooling == kNone) return sequence_gradients_[slot.sequence];
  return gradient_ ? gradient_ + slot.column : nullptr;
}

// Writes where the gradient of each value of a slot lies, and its factor.
float* BackwardBatch::place(const Slot& slot, void* weight, const float**& rows, float*& scales, float* spread) const {
  const int64_t* offsets = offsets_of(slot);
  const float* gradient = gradient_of(slot);
  const float* weights = lookups_.sample_weights;
  const int64_t values = offsets[batch_] - offsets[0];
  if (slot.pooling == kMax) spread_gradients(slot, weight, spread);
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
float BackwardBatch::share_of(const Slot& slot, int64_t begin, int64_t end) const {
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

void BackwardBatch::spread_gradients(const Slot& slot, const void* weight, float* out) const {
  const int64_t *offsets = offsets_of(slot), dim = slot.dim;
  const float* gradient = gradient_of(slot);
  const auto run = [&](const auto* values) {
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

std::vector<Task> BackwardBatch::cut() const {
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

void Parts::reserve(int64_t num_entries, int64_t num_rows, int64_t at_a_time) {
  const int64_t parts = (num_rows + at_a_time - 1) / at_a_time;
  make_room(bounds, parts + 1);
  make_room(places, parts + 1);
  make_room(parted, num_entries);
}

void Parts::cut(std::vector<Entry>& entries, int64_t num_rows, int64_t at_a_time) {
  const size_t parts = static_cast<size_t>((num_rows + at_a_time - 1) / at_a_time);
  bounds.assign(parts + 1, 0);
  if (parts == 1) bounds[1] = static_cast<int64_t>(entries.size());
  if (parts <= 1) return;
  const uint64_t size = static_cast<uint64_t>(at_a_time);
  for (const Entry entry : entries) ++bounds[(entry >> 32) / size + 1];
  for (size_t p = 0; p < parts; ++p) bounds[p + 1] += bounds[p];
  places.assign(bounds.begin(), bounds.end() - 1);
  Entry* to = resized(parted, static_cast<int64_t>(entries.size()));
  for (const Entry entry : entries) {
    const uint64_t p = (entry >> 32) / size;
    to[places[p]++] = entry - (p * size << 32);
  }
  std::swap(entries, parted);
}

}  // namespace megalith
