#include "optimizer/backward_batch.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "chunks/record.h"
#include "optimizer/buffers.h"
#include "parallel.h"

namespace megalith {
namespace {

// Threads may wait at the end for a tenth of the time; pieces of less than this many values times columns are not cut.
constexpr double kWaiting = 1.1, kSmallest = 65536;

// The gradient of every value of a max-pooled lookup: the bag's, in the columns where the value is the first maximum.
template <class Index, class Load>
void spread_max(const LookupDescriptor& lookup, const Index* values, const int64_t* offsets, int64_t batch, Load load,
                const float* gradient, int64_t stride, float* out) {
  std::fill_n(out, (offsets[batch] - offsets[0]) * lookup.dim, 0.0f);
  parallel_for(0, batch, 64, [&](int64_t from, int64_t to) {
    for (int64_t bag = from; bag < to; ++bag) {
      const int64_t begin = offsets[bag], end = offsets[bag + 1];
      for (int64_t column = 0; column < lookup.dim && begin < end; ++column) {
        int64_t best = -1;
        for (int64_t i = begin; i < end; ++i) {
          if (static_cast<int64_t>(values[i]) == lookup.padding) continue;
          if (best < 0 || load(values[i], column) > load(values[best], column)) best = i;
        }
        if (best >= 0) out[(best - offsets[0]) * lookup.dim + column] = gradient[bag * stride + column];
      }
    }
  });
}

// A column of a chunked row, 0 where it does not live.
float column_value(const ChunkedPool& rows, uint32_t slot, int64_t column) {
  const char* stored = record_column(rows, slot, column);
  if (stored == nullptr) return 0.0f;
  float value = 0.0f;
  if (rows.dtype == kFloat32) {
    std::memcpy(&value, stored, 4);
  } else if (rows.dtype == kBFloat16) {
    std::memcpy(reinterpret_cast<char*>(&value) + 2, stored, 2);
  } else {
    _Float16 half;
    std::memcpy(&half, stored, 2);
    value = static_cast<float>(half);
  }
  return value;
}

}  // namespace

BackwardBatch::BackwardBatch(const LookupDescriptor* lookups, int64_t num_lookups, int64_t num_tables,
                             void* const* weights, const LookupBatch& batch, const OutputGradients& gradients,
                             GradientBuffers& buffers)
    : batch_(batch), gradients_(gradients), tables_(static_cast<size_t>(num_tables)) {
  int64_t general = 0, spread = 0, means = 0;
  for (const LookupDescriptor* lookup = lookups; lookup < lookups + num_lookups; ++lookup) {
    // An output that nothing depended on has no gradient.
    if (gradient_of(*lookup)) tables_[static_cast<size_t>(lookup->table)].lookups.push_back(lookup);
  }
  for (TableWork& table : tables_) {
    for (const LookupDescriptor* lookup : table.lookups) {
      const int64_t* offsets = offsets_of(*lookup);
      const int64_t values = offsets[batch_.size] - offsets[0];
      table.num_values += values;
      if (lookup->pooling == kMax) spread += values * lookup->dim;
    }
    // A RowSource has 32 bits for a row and as many for the number of a value.
    if (table.num_values >= kMostRows) throw std::invalid_argument("a table has 2^32 values or more in one batch");
    if (!table.lookups.empty() && num_physical_rows(*table.lookups[0]) >= kMostRows) {
      throw std::invalid_argument("a table has 2^32 rows or more");
    }
    const int64_t pooling = table.lookups.empty() ? kSum : table.lookups[0]->pooling;
    table.direct = table.lookups.size() == 1 && !batch_.sample_weights && (pooling == kSum || pooling == kMean);
    if (table.direct && pooling == kMean) means += batch_.size;
    if (!table.direct) general += table.num_values;
  }
  float* spread_at = scratch(buffers.spread, static_cast<size_t>(spread));
  float* scales = scratch(buffers.scales, static_cast<size_t>(general + means));
  const float** rows = scratch(buffers.rows, static_cast<size_t>(general));
  for (TableWork& table : tables_) {
    if (table.lookups.empty()) continue;
    if (table.direct) {
      const LookupDescriptor& lookup = *table.lookups[0];
      table.gradients = {gradient_of(lookup), gradients_.stride, nullptr, nullptr};
      if (lookup.pooling == kMean) {
        const int64_t* offsets = offsets_of(lookup);
        for (int64_t bag = 0; bag < batch_.size; ++bag) scales[bag] = share_of(lookup, offsets[bag], offsets[bag + 1]);
        table.gradients.scales = scales;
        scales += batch_.size;
      }
    } else {
      table.gradients = {nullptr, 0, rows, scales};
      for (const LookupDescriptor* lookup : table.lookups) {
        spread_at = locate_gradients(*lookup, weights[lookup->table], rows, scales, spread_at);
      }
    }
  }
}

const float* BackwardBatch::gradient_of(const LookupDescriptor& lookup) const {
  if (lookup.pooling == kNone) return gradients_.sequences[lookup.sequence];
  return gradients_.pooled ? gradients_.pooled + lookup.column : nullptr;
}

// Writes where the gradient of each value of a lookup is, and its factor.
float* BackwardBatch::locate_gradients(const LookupDescriptor& lookup, void* weight, const float**& rows,
                                       float*& scales, float* spread) const {
  const int64_t* offsets = offsets_of(lookup);
  const float* gradient = gradient_of(lookup);
  const float* weights = batch_.sample_weights;
  const int64_t values = offsets[batch_.size] - offsets[0];
  if (lookup.pooling == kMax) spread_gradients(lookup, weight, spread);
  for (int64_t bag = 0; bag < batch_.size; ++bag) {
    const float share = lookup.pooling == kMean ? share_of(lookup, offsets[bag], offsets[bag + 1]) : 1.0f;
    for (int64_t i = offsets[bag]; i < offsets[bag + 1]; ++i) {
      const int64_t position = i - offsets[0];
      if (lookup.pooling == kNone) {
        *rows++ = gradient + position * lookup.dim;
      } else if (lookup.pooling == kMax) {
        *rows++ = spread + position * lookup.dim;
      } else {
        *rows++ = gradient + bag * gradients_.stride;
      }
      *scales++ = weights && lookup.pooling != kNone && lookup.pooling != kMax ? share * weights[i] : share;
    }
  }
  return lookup.pooling == kMax ? spread + values * lookup.dim : spread;
}

// What mean pooling multiplies the gradient of each value of a bag with.
float BackwardBatch::share_of(const LookupDescriptor& lookup, int64_t begin, int64_t end) const {
  int64_t count = end - begin;
  if (lookup.padding >= 0) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = batch_.index_bytes == 4 ? static_cast<const int32_t*>(batch_.values)[i]
                                                 : static_cast<const int64_t*>(batch_.values)[i];
      count -= id == lookup.padding;
    }
  }
  return 1.0f / static_cast<float>(std::max<int64_t>(1, count));
}

void BackwardBatch::spread_gradients(const LookupDescriptor& lookup, const void* weight, float* out) const {
  const int64_t *offsets = offsets_of(lookup), dim = lookup.dim;
  const float* gradient = gradient_of(lookup);
  const auto run = [&](const auto* values) {
    if (lookup.layout == kChunkedRows) {
      const auto& rows = *static_cast<const ChunkedPool*>(weight);
      const auto load = [&](int64_t slot, int64_t c) { return column_value(rows, static_cast<uint32_t>(slot), c); };
      spread_max(lookup, values, offsets, batch_.size, load, gradient, gradients_.stride, out);
    } else if (lookup.dtype == kFloat32) {
      const auto load = [=](int64_t row, int64_t c) { return static_cast<const float*>(weight)[row * dim + c]; };
      spread_max(lookup, values, offsets, batch_.size, load, gradient, gradients_.stride, out);
    } else if (lookup.dtype == kBFloat16) {
      const auto load = [=](int64_t row, int64_t c) {
        const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(weight)[row * dim + c]) << 16;
        float value;
        std::memcpy(&value, &bits, 4);
        return value;
      };
      spread_max(lookup, values, offsets, batch_.size, load, gradient, gradients_.stride, out);
    } else {
      // Halves are ordered like their bits, with the negative ones turned round.
      const auto load = [=](int64_t row, int64_t c) {
        const int32_t bits = static_cast<const uint16_t*>(weight)[row * dim + c];
        return bits & 0x8000 ? -(bits & 0x7fff) : bits;
      };
      spread_max(lookup, values, offsets, batch_.size, load, gradient, gradients_.stride, out);
    }
  };
  if (batch_.index_bytes == 4) return run(static_cast<const int32_t*>(batch_.values));
  run(static_cast<const int64_t*>(batch_.values));
}

std::vector<TableTask> BackwardBatch::cut() const {
  struct SizedTable {
    int64_t table;
    double size;
    uint64_t pieces;
  };
  std::vector<SizedTable> sized;
  double total = 0;
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (!tables_[t].num_values) continue;
    const double size = static_cast<double>(tables_[t].num_values * (tables_[t].lookups[0]->dim + 16));
    sized.push_back({static_cast<int64_t>(t), size, 1});
    total += size;
  }
  const int threads = num_threads();
  std::vector<double> loads(static_cast<size_t>(threads));
  const auto larger = [](const SizedTable& a, const SizedTable& b) {
    return a.size != b.size ? a.size > b.size : a.table < b.table;
  };
  const auto last_end = [&] {
    std::fill(loads.begin(), loads.end(), 0.0);
    for (const SizedTable& table : sized) {
      for (uint64_t piece = 0; piece < table.pieces; ++piece) {
        *std::min_element(loads.begin(), loads.end()) += table.size;
      }
    }
    return *std::max_element(loads.begin(), loads.end());
  };
  std::sort(sized.begin(), sized.end(), larger);
  while (threads > 1 && last_end() > kWaiting * total / threads && sized[0].size > kSmallest) {
    sized[0].size /= 2;
    sized[0].pieces *= 2;
    std::sort(sized.begin(), sized.end(), larger);
  }
  std::vector<TableTask> tasks;
  for (const SizedTable& table : sized) {
    for (uint64_t piece = 0; piece < table.pieces; ++piece) tasks.push_back({table.table, piece, table.pieces});
  }
  return tasks;
}

}  // namespace megalith
