// The lookup kernels of one build: rows pooled or copied, and the gradient of sample weights.
#pragma once

#include <cstdint>

#include "embedding/lookup.h"
#include "embedding/type_dispatch.h"
#include "simd/memory.h"
#include "simd/pack.h"
#include "simd/prefetch.h"
#include "simd/scalar.h"

namespace megalith {
inline namespace MG_VARIANT {

// Register blocks: columns that one pass over a bag's rows adds up.
#if defined(__AVX512F__)
constexpr int kBlocks = 8;
#else
constexpr int kBlocks = 4;
#endif

// Adds up row(i) * factor(i) for i < n over columns [0, width), width <= 16 * Count.
template <int Count, bool Weighted, class Row, class Factor>
inline void add_columns(Row row, Factor factor, int64_t n, int64_t column, int tail, Floats (&total)[Count]) {
  for (int k = 0; k < Count; ++k) total[k] = Floats{};
  for (int64_t i = 0; i < n; ++i) {
    const auto* from = row(i) + column;
    const float weight = Weighted ? factor(i) : 1.0f;
    for (int k = 0; k < Count; ++k) {
      const Floats lanes = load(from + k * kLanes, k == Count - 1 ? tail : kLanes);
      total[k] += Weighted ? lanes * weight : lanes;
    }
  }
}

// Calls finish(column, lanes, n) for each block of sixteen columns of the sum of n rows.
template <bool Weighted, class Row, class Factor, class Finish>
inline void add_rows(Row row, Factor factor, int64_t n, int64_t dim, Finish finish) {
  int64_t column = 0;
  for (; column + kBlocks * kLanes <= dim; column += kBlocks * kLanes) {
    Floats total[kBlocks];
    add_columns<kBlocks, Weighted>(row, factor, n, column, kLanes, total);
    for (int k = 0; k < kBlocks; ++k) finish(column + k * kLanes, total[k], kLanes);
  }
  for (; column + 2 * kLanes <= dim; column += 2 * kLanes) {
    Floats total[2];
    add_columns<2, Weighted>(row, factor, n, column, kLanes, total);
    for (int k = 0; k < 2; ++k) finish(column + k * kLanes, total[k], kLanes);
  }
  for (; column < dim; column += kLanes) {
    const int tail = static_cast<int>(least<int64_t>(kLanes, dim - column));
    Floats total[1];
    add_columns<1, Weighted>(row, factor, n, column, tail, total);
    finish(column, total[0], tail);
  }
}

// The values of a bag that mean pooling divides by.
template <class Index>
inline int64_t num_counted(const LookupDescriptor& lookup, const Index* ids, int64_t length) {
  if (lookup.padding < 0) return length;
  int64_t count = 0;
  for (int64_t i = 0; i < length; ++i) count += static_cast<int64_t>(ids[i]) != lookup.padding;
  return count;
}

template <class T, class Index, class Out>
void pool_bags(const LookupDescriptor& lookup, const T* weight, const Index* values, const int64_t* offsets,
               const float* sample_weights, const Range& bags, const Range& columns, Out* out,
               int64_t out_stride) {
  const int64_t first = bags.first, last = bags.last, dim = lookup.dim, width = columns.last - columns.first;
  const int64_t row_bytes = width * sizeof(T);
  weight += columns.first;
  out += columns.first;
  const int64_t ahead = prefetch_distance(row_bytes), stop = offsets[last];
  int64_t fetched = offsets[first];
  for (int64_t bag = first; bag < last; ++bag) {
    const int64_t begin = offsets[bag], length = offsets[bag + 1] - begin;
    for (const int64_t until = least<int64_t>(stop, begin + length + ahead); fetched < until; ++fetched) {
      prefetch_row(weight + static_cast<int64_t>(values[fetched]) * dim, row_bytes);
    }
    Out* to = out + bag * out_stride;
    const Index* ids = values + begin;
    const auto row = [=](int64_t i) { return weight + static_cast<int64_t>(ids[i]) * dim; };
    const auto is_padding = [&](int64_t i) { return static_cast<int64_t>(ids[i]) == lookup.padding; };
    if (lookup.pooling == kMax) {
      for (int64_t column = 0; column < width; column += kLanes) {
        const int n = static_cast<int>(least<int64_t>(kLanes, width - column));
        Floats best{};
        bool found = false;
        for (int64_t i = 0; i < length; ++i) {
          if (is_padding(i)) continue;
          const Floats lanes = load(row(i) + column, n);
          best = found ? larger(lanes, best) : lanes;
          found = true;
        }
        store(to + column, best, n);
      }
      continue;
    }
    const int64_t counted = lookup.pooling == kMean ? num_counted(lookup, ids, length) : 1;
    const float divisor = counted > 1 ? static_cast<float>(counted) : 0.0f;
    const auto finish = [=](int64_t column, Floats lanes, int n) {
      store(to + column, divisor != 0.0f ? lanes / divisor : lanes, n);
    };
    if (lookup.padding >= 0) {
      const float* weights = sample_weights ? sample_weights + begin : nullptr;
      const auto factor = [&](int64_t i) { return is_padding(i) ? 0.0f : weights ? weights[i] : 1.0f; };
      add_rows<true>(row, factor, length, width, finish);
    } else if (sample_weights) {
      const float* weights = sample_weights + begin;
      add_rows<true>(row, [=](int64_t i) { return weights[i]; }, length, width, finish);
    } else {
      add_rows<false>(row, [](int64_t) { return 1.0f; }, length, width, finish);
    }
  }
}

template <class T, class Index, class Out>
void copy_values(const LookupDescriptor& lookup, const T* weight, const Index* ids, int64_t first, int64_t last,
                 Out* out) {
  const int64_t dim = lookup.dim, row_bytes = dim * sizeof(T);
  const int64_t ahead = prefetch_distance(row_bytes);
  for (int64_t i = first; i < last; ++i) {
    if (i + ahead < last) prefetch_row(weight + static_cast<int64_t>(ids[i + ahead]) * dim, row_bytes);
    const T* from = weight + static_cast<int64_t>(ids[i]) * dim;
    for (int64_t column = 0; column < dim; column += kLanes) {
      const int n = static_cast<int>(least<int64_t>(kLanes, dim - column));
      const bool padding = static_cast<int64_t>(ids[i]) == lookup.padding;
      store(out + i * dim + column, padding ? Floats{} : load(from + column, n), n);
    }
  }
}

template <class T, class Index>
void dot_rows(const LookupDescriptor& lookup, const T* weight, const Index* values, const int64_t* offsets,
              int64_t first, int64_t last, const float* gradient, int64_t stride, float* out) {
  for (int64_t bag = first; bag < last; ++bag) {
    const int64_t begin = offsets[bag], end = offsets[bag + 1];
    const int64_t counted = lookup.pooling == kMean ? num_counted(lookup, values + begin, end - begin) : 1;
    const float divisor = static_cast<float>(counted);
    for (int64_t i = begin; i < end; ++i) {
      if (static_cast<int64_t>(values[i]) == lookup.padding) {
        out[i] = 0.0f;
        continue;
      }
      const T* row = weight + static_cast<int64_t>(values[i]) * lookup.dim;
      Floats total{};
      for (int64_t column = 0; column < lookup.dim; column += kLanes) {
        const int n = static_cast<int>(least<int64_t>(kLanes, lookup.dim - column));
        total += load(row + column, n) * load(gradient + bag * stride + column, n);
      }
      out[i] = sum(total) / divisor;
    }
  }
}

void pool(const LookupDescriptor& lookup, const void* weight, const LookupBatch& batch, const Range& bags,
          const Range& columns, void* out, int64_t out_dtype, int64_t out_stride) {
  with_type(lookup.dtype, [&](auto stored) {
    with_type(out_dtype, [&](auto written) {
      with_index(batch.index_bytes, [&](auto index) {
        using Index = decltype(index);
        pool_bags(lookup, static_cast<const decltype(stored)*>(weight), static_cast<const Index*>(batch.values),
                  batch.offsets, batch.sample_weights, bags, columns, static_cast<decltype(written)*>(out),
                  out_stride);
      });
    });
  });
}

void copy_rows(const LookupDescriptor& lookup, const void* weight, const LookupBatch& batch, const Range& values,
               void* out, int64_t out_dtype) {
  with_type(lookup.dtype, [&](auto stored) {
    with_type(out_dtype, [&](auto written) {
      with_index(batch.index_bytes, [&](auto index) {
        copy_values(lookup, static_cast<const decltype(stored)*>(weight),
                    static_cast<const decltype(index)*>(batch.values) + batch.offsets[0], values.first, values.last,
                    static_cast<decltype(written)*>(out));
      });
    });
  });
}

void weight_gradient(const LookupDescriptor& lookup, const void* weight, const LookupBatch& batch, const Range& bags,
                     const float* gradient, int64_t stride, float* out) {
  with_type(lookup.dtype, [&](auto stored) {
    with_index(batch.index_bytes, [&](auto index) {
      dot_rows(lookup, static_cast<const decltype(stored)*>(weight), static_cast<const decltype(index)*>(batch.values),
               batch.offsets, bags.first, bags.last, gradient, stride, out);
    });
  });
}

}  // namespace MG_VARIANT
}  // namespace megalith
