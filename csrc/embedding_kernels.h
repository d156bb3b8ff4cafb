// The embedding kernels of one processor variant; included by kernels_portable.cpp, _avx2.cpp and _avx512.cpp.
#pragma once

#include <algorithm>
#include <limits>

#include "embedding.h"
#include "simd.h"

namespace megalith {
inline namespace MG_VARIANT {

// Rows in flight ahead of the one in use: enough bytes to cover the latency of memory, within what a core's
// line-fill buffers and first-level cache can hold.
inline int64_t prefetch_distance(int64_t row_bytes) {
  return std::clamp<int64_t>(6144 / std::max<int64_t>(row_bytes, 64), 4, 48);
}

template <int kWrite>
inline void prefetch_row(const void* row, int64_t bytes) {
  const char* from = static_cast<const char*>(row);
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, kWrite, 3);
  // A row that does not start a cache line ends in one more.
  __builtin_prefetch(from + bytes - 1, kWrite, 3);
}

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
    const int tail = static_cast<int>(std::min<int64_t>(kLanes, dim - column));
    Floats total[1];
    add_columns<1, Weighted>(row, factor, n, column, tail, total);
    finish(column, total[0], tail);
  }
}

// The values of a bag that mean pooling divides by.
template <class Index>
inline int64_t num_counted(const Slot& slot, const Index* ids, int64_t length) {
  if (slot.padding < 0) return length;
  int64_t count = 0;
  for (int64_t i = 0; i < length; ++i) count += static_cast<int64_t>(ids[i]) != slot.padding;
  return count;
}

template <class T, class Index, class Out>
void pool_bags(const Slot& slot, const T* weight, const Index* values, const int64_t* offsets,
               const float* sample_weights, const Range& bags, const Range& columns, Out* out,
               int64_t out_stride) {
  const int64_t first = bags.first, last = bags.last, dim = slot.dim, width = columns.last - columns.first;
  const int64_t row_bytes = width * sizeof(T);
  weight += columns.first;
  out += columns.first;
  const int64_t ahead = prefetch_distance(row_bytes), stop = offsets[last];
  int64_t fetched = offsets[first];
  for (int64_t bag = first; bag < last; ++bag) {
    const int64_t begin = offsets[bag], length = offsets[bag + 1] - begin;
    for (const int64_t until = std::min(stop, begin + length + ahead); fetched < until; ++fetched) {
      prefetch_row<0>(weight + static_cast<int64_t>(values[fetched]) * dim, row_bytes);
    }
    Out* to = out + bag * out_stride;
    const Index* ids = values + begin;
    const auto row = [=](int64_t i) { return weight + static_cast<int64_t>(ids[i]) * dim; };
    const auto is_padding = [&](int64_t i) { return static_cast<int64_t>(ids[i]) == slot.padding; };
    if (slot.pooling == kMax) {
      for (int64_t column = 0; column < width; column += kLanes) {
        const int n = static_cast<int>(std::min<int64_t>(kLanes, width - column));
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
    const int64_t counted = slot.pooling == kMean ? num_counted(slot, ids, length) : 1;
    const float divisor = counted > 1 ? static_cast<float>(counted) : 0.0f;
    const auto finish = [=](int64_t column, Floats lanes, int n) {
      store(to + column, divisor != 0.0f ? lanes / divisor : lanes, n);
    };
    if (slot.padding >= 0) {
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
void copy_rows(const Slot& slot, const T* weight, const Index* ids, int64_t first, int64_t last, Out* out) {
  const int64_t dim = slot.dim, row_bytes = dim * sizeof(T);
  const int64_t ahead = prefetch_distance(row_bytes);
  for (int64_t i = first; i < last; ++i) {
    if (i + ahead < last) prefetch_row<0>(weight + static_cast<int64_t>(ids[i + ahead]) * dim, row_bytes);
    const T* from = weight + static_cast<int64_t>(ids[i]) * dim;
    for (int64_t column = 0; column < dim; column += kLanes) {
      const int n = static_cast<int>(std::min<int64_t>(kLanes, dim - column));
      const bool padding = static_cast<int64_t>(ids[i]) == slot.padding;
      store(out + i * dim + column, padding ? Floats{} : load(from + column, n), n);
    }
  }
}

template <class T, class Index>
void dot_rows(const Slot& slot, const T* weight, const Index* values, const int64_t* offsets, int64_t first,
              int64_t last, const float* gradient, int64_t stride, float* out) {
  for (int64_t bag = first; bag < last; ++bag) {
    const int64_t begin = offsets[bag], end = offsets[bag + 1];
    const int64_t counted = slot.pooling == kMean ? num_counted(slot, values + begin, end - begin) : 1;
    const float divisor = static_cast<float>(counted);
    for (int64_t i = begin; i < end; ++i) {
      if (static_cast<int64_t>(values[i]) == slot.padding) {
        out[i] = 0.0f;
        continue;
      }
      const T* row = weight + static_cast<int64_t>(values[i]) * slot.dim;
      Floats total{};
      for (int64_t column = 0; column < slot.dim; column += kLanes) {
        const int n = static_cast<int>(std::min<int64_t>(kLanes, slot.dim - column));
        total += load(row + column, n) * load(gradient + bag * stride + column, n);
      }
      out[i] = sum(total) / divisor;
    }
  }
}

inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// One optimizer step on one row. `gradient` is the row's whole gradient.
template <int Kind, class T>
inline void step_row(T* row, float* first_state, float* second_state, const float* gradient, int64_t dim,
                     const Step& step, uint64_t row_seed) {
  const auto part = [dim](int64_t column) { return static_cast<int>(std::min<int64_t>(kLanes, dim - column)); };
  const auto effective = [&](int64_t column, Floats weight, int n) {
    Floats lanes = load(gradient + column, n);
    if (step.max_gradient > 0) {
      lanes = smaller(larger(lanes, all(-step.max_gradient)), all(step.max_gradient));
    }
    return step.weight_decay != 0 ? lanes + weight * step.weight_decay : lanes;
  };
  const auto write = [&](int64_t column, Floats updated, int n) {
    if (sizeof(T) == 2 && step.stochastic_rounding != 0) {
      store_random(row + column, updated, random_words(row_seed, column), n);
    } else {
      store(row + column, updated, n);
    }
  };
  constexpr bool kNeedsSquares = Kind == kRowWiseAdaGrad || Kind == kRowWiseAdam;
  float mean_square = 0;
  if constexpr (kNeedsSquares) {
    Floats squares{};
    for (int64_t column = 0; column < dim; column += kLanes) {
      const int n = part(column);
      const Floats lanes = effective(column, step.weight_decay != 0 ? load(row + column, n) : Floats{}, n);
      squares += lanes * lanes;
    }
    mean_square = sum(squares) / static_cast<float>(dim);
  }
  if constexpr (Kind == kSgd) {
    for (int64_t column = 0; column < dim; column += kLanes) {
      const int n = part(column);
      const Floats weight = load(row + column, n);
      write(column, weight - effective(column, weight, n) * step.lr, n);
    }
  } else if constexpr (Kind == kRowWiseAdaGrad) {
    const float total = *first_state + mean_square;
    *first_state = total;
    const float rate = step.lr / (std::sqrt(total) + step.eps);
    for (int64_t column = 0; column < dim; column += kLanes) {
      const int n = part(column);
      const Floats weight = load(row + column, n);
      write(column, weight - effective(column, weight, n) * rate, n);
    }
  } else if constexpr (Kind == kAdaGrad) {
    for (int64_t column = 0; column < dim; column += kLanes) {
      const int n = part(column);
      const Floats weight = load(row + column, n), lanes = effective(column, weight, n);
      const Floats total = load(first_state + column, n) + lanes * lanes;
      store(first_state + column, total, n);
      write(column, weight - lanes * step.lr / (root(total) + step.eps), n);
    }
  } else if constexpr (Kind == kAdam || Kind == kRowWiseAdam) {
    float row_scale = 0;
    if constexpr (Kind == kRowWiseAdam) {
      const float square = *second_state * step.beta2 + mean_square * step.rest2;
      *second_state = square;
      row_scale = std::sqrt(square / step.second_correction) + step.eps;
    }
    const float rate = step.lr / step.first_correction;
    for (int64_t column = 0; column < dim; column += kLanes) {
      const int n = part(column);
      const Floats weight = load(row + column, n), lanes = effective(column, weight, n);
      const Floats mean = load(first_state + column, n) * step.beta1 + lanes * step.rest1;
      store(first_state + column, mean, n);
      Floats scale = all(row_scale);
      if constexpr (Kind == kAdam) {
        const Floats square = load(second_state + column, n) * step.beta2 + lanes * lanes * step.rest2;
        store(second_state + column, square, n);
        scale = root(square / step.second_correction) + step.eps;
      }
      write(column, weight - mean * rate / scale, n);
    }
  } else {
    // LAMB and LARS scale the step of a row by the ratio of the norms of its weights and of its update.
    Floats weights{}, updates{};
    const auto direction = [&](int64_t column, Floats weight, int n, bool commit) {
      const Floats lanes = load(gradient + column, n);
      const Floats clipped =
          step.max_gradient > 0 ? smaller(larger(lanes, all(-step.max_gradient)), all(step.max_gradient)) : lanes;
      if constexpr (Kind == kLars) return clipped + weight * step.weight_decay;
      Floats mean = load(first_state + column, n), square = load(second_state + column, n);
      if (commit) {
        mean = mean * step.beta1 + clipped * step.rest1;
        square = square * step.beta2 + clipped * clipped * step.rest2;
        store(first_state + column, mean, n);
        store(second_state + column, square, n);
      }
      const Floats adam = mean / step.first_correction / (root(square / step.second_correction) + step.eps);
      return adam + weight * step.weight_decay;
    };
    for (int64_t column = 0; column < dim; column += kLanes) {
      const int n = part(column);
      const Floats weight = load(row + column, n), update = direction(column, weight, n, true);
      weights += weight * weight;
      // Lanes beyond the row hold 0 / eps, which is 0.
      updates += update * update;
    }
    const float weight_norm = std::sqrt(sum(weights)), update_norm = std::sqrt(sum(updates));
    float trust = weight_norm > 0 && update_norm > 0 ? weight_norm / update_norm : 1.0f;
    if constexpr (Kind == kLars) trust = weight_norm > 0 && update_norm > 0 ? step.eps * trust : 1.0f;
    const float rate = step.lr * trust;
    for (int64_t column = 0; column < dim; column += kLanes) {
      const int n = part(column);
      const Floats weight = load(row + column, n);
      Floats update = direction(column, weight, n, false);
      if constexpr (Kind == kLars) {
        update = load(first_state + column, n) * step.beta1 + update * rate;
        store(first_state + column, update, n);
        write(column, weight - update, n);
      } else {
        write(column, weight - update * rate, n);
      }
    }
  }
}

// State elements of a row: (in the first, in the second).
constexpr bool first_is_full(int kind) { return kind != kRowWiseAdaGrad && kind != kSgd; }
constexpr bool second_is_full(int kind) { return kind == kAdam || kind == kLamb; }

inline const float* gradient_of(const Gradients& gradients, uint64_t entry) {
  const uint32_t source = static_cast<uint32_t>(entry);
  if (gradients.rows) return gradients.rows[source];
  return gradients.dense + (gradients.bags ? gradients.bags[source] : source) * gradients.stride;
}

inline float factor_of(const Gradients& gradients, uint64_t entry) {
  const uint32_t source = static_cast<uint32_t>(entry);
  return gradients.scales[!gradients.rows && gradients.bags ? gradients.bags[source] : source];
}

template <int Kind, class T>
void update_rows(const Slot& slot, T* weight, float* first_state, float* second_state, const uint64_t* entries,
                 int64_t n, const Gradients& gradients, const Step& step, uint64_t seed, float* scratch) {
  const int64_t dim = slot.dim, row_bytes = dim * sizeof(T);
  const int64_t ahead = prefetch_distance(row_bytes + dim * 4);
  const int64_t first_dim = first_is_full(Kind) ? dim : 1, second_dim = second_is_full(Kind) ? dim : 1;
  const auto gradient = [&](int64_t i) { return gradient_of(gradients, entries[i]); };
  const auto factor = [&](int64_t i) { return factor_of(gradients, entries[i]); };
  const auto prefetch = [&](int64_t i) {
    const uint64_t row = entries[i] >> 32;
    prefetch_row<0>(gradient(i), dim * 4);
    if (i > 0 && (entries[i - 1] >> 32) == row) return;
    prefetch_row<1>(weight + row * dim, row_bytes);
    if (first_state) prefetch_row<1>(first_state + row * first_dim, first_dim * 4);
    if (second_state) prefetch_row<1>(second_state + row * second_dim, second_dim * 4);
  };
  for (int64_t i = 0; i < std::min(ahead, n); ++i) prefetch(i);
  for (int64_t begin = 0, end; begin < n; begin = end) {
    const uint64_t row = entries[begin] >> 32;
    for (end = begin + 1; end < n && (entries[end] >> 32) == row; ++end) {
    }
    for (int64_t i = begin + ahead; i < std::min(end + ahead, n); ++i) prefetch(i);
    const float* total = gradient(begin);
    if (gradients.total) {
      total = gradients.total;
    } else if (gradients.scales || end - begin > 1) {
      const auto from = [&](int64_t i) { return gradient(begin + i); };
      const auto keep = [=](int64_t column, Floats lanes, int width) { store(scratch + column, lanes, width); };
      if (gradients.scales) {
        add_rows<true>(from, [&](int64_t i) { return factor(begin + i); }, end - begin, dim, keep);
      } else {
        add_rows<false>(from, [](int64_t) { return 1.0f; }, end - begin, dim, keep);
      }
      total = scratch;
    }
    step_row<Kind>(weight + row * dim, first_state ? first_state + row * first_dim : nullptr,
                   second_state ? second_state + row * second_dim : nullptr, total, dim, step,
                   step.stochastic_rounding != 0 ? mix(seed + row * 0x9e3779b97f4a7c15ull) : 0);
  }
}

template <int Kind, class T, class Index>
void update_single_rows(const Slot& slot, T* weight, float* first_state, float* second_state, const Index* values,
                        const int64_t* offsets, const Range& bags, const uint8_t* single, const Gradients& gradients,
                        const Step& step, uint64_t seed, float* scratch) {
  const int64_t dim = slot.dim, row_bytes = dim * sizeof(T);
  const int64_t ahead = prefetch_distance(row_bytes);
  const int64_t first_dim = first_is_full(Kind) ? dim : 1, second_dim = second_is_full(Kind) ? dim : 1;
  const int64_t stop = offsets[bags.last];
  single -= offsets[0];
  int64_t fetched = offsets[bags.first];
  for (int64_t bag = bags.first; bag < bags.last; ++bag) {
    const float* gradient = gradients.dense + bag * gradients.stride;
    if (bag + 1 < bags.last) prefetch_row<0>(gradient + gradients.stride, dim * 4);
    if (gradients.scales) {
      const float scale = gradients.scales[bag];
      for (int64_t column = 0; column < dim; column += kLanes) {
        const int n = static_cast<int>(std::min<int64_t>(kLanes, dim - column));
        store(scratch + column, load(gradient + column, n) * scale, n);
      }
      gradient = scratch;
    }
    for (int64_t i = offsets[bag]; i < offsets[bag + 1]; ++i) {
      for (const int64_t until = std::min(stop, i + ahead + 1); fetched < until; ++fetched) {
        if (!single[fetched]) continue;
        const int64_t row = static_cast<int64_t>(values[fetched]);
        prefetch_row<1>(weight + row * dim, row_bytes);
        if (first_state) prefetch_row<1>(first_state + row * first_dim, first_dim * 4);
        if (second_state) prefetch_row<1>(second_state + row * second_dim, second_dim * 4);
      }
      if (!single[i]) continue;
      const uint64_t row = static_cast<uint64_t>(values[i]);
      step_row<Kind>(weight + row * dim, first_state ? first_state + row * first_dim : nullptr,
                     second_state ? second_state + row * second_dim : nullptr, gradient, dim, step,
                     step.stochastic_rounding != 0 ? mix(seed + row * 0x9e3779b97f4a7c15ull) : 0);
    }
  }
}

// ---- from run-time types to the templates ----

template <class Call>
void with_type(int64_t dtype, Call call) {
  if (dtype == kFloat32) return call(float{});
  if (dtype == kFloat16) return call(Half{});
  return call(BFloat16{});
}

template <class Call>
void with_index(int32_t index_bytes, Call call) {
  return index_bytes == 4 ? call(int32_t{}) : call(int64_t{});
}

void pool(const Slot& slot, const void* weight, const Lookups& lookups, const Range& bags, const Range& columns,
          void* out, int64_t out_dtype, int64_t out_stride) {
  with_type(slot.dtype, [&](auto stored) {
    with_type(out_dtype, [&](auto written) {
      with_index(lookups.index_bytes, [&](auto index) {
        using Index = decltype(index);
        pool_bags(slot, static_cast<const decltype(stored)*>(weight), static_cast<const Index*>(lookups.values),
                  lookups.offsets, lookups.sample_weights, bags, columns, static_cast<decltype(written)*>(out),
                  out_stride);
      });
    });
  });
}

void copy(const Slot& slot, const void* weight, const Lookups& lookups, int64_t first, int64_t last, void* out,
          int64_t out_dtype) {
  with_type(slot.dtype, [&](auto stored) {
    with_type(out_dtype, [&](auto written) {
      with_index(lookups.index_bytes, [&](auto index) {
        copy_rows(slot, static_cast<const decltype(stored)*>(weight),
                  static_cast<const decltype(index)*>(lookups.values) + lookups.offsets[0], first, last,
                  static_cast<decltype(written)*>(out));
      });
    });
  });
}

void weight_gradient(const Slot& slot, const void* weight, const Lookups& lookups, int64_t first, int64_t last,
                     const float* gradient, int64_t stride, float* out) {
  with_type(slot.dtype, [&](auto stored) {
    with_index(lookups.index_bytes, [&](auto index) {
      dot_rows(slot, static_cast<const decltype(stored)*>(weight),
               static_cast<const decltype(index)*>(lookups.values), lookups.offsets, first, last, gradient, stride,
               out);
    });
  });
}

template <class Call>
void with_kind(const Step& step, Call call) {
  switch (static_cast<int>(step.kind)) {
    case kSgd: return call(std::integral_constant<int, kSgd>{});
    case kAdaGrad: return call(std::integral_constant<int, kAdaGrad>{});
    case kRowWiseAdaGrad: return call(std::integral_constant<int, kRowWiseAdaGrad>{});
    case kAdam: return call(std::integral_constant<int, kAdam>{});
    case kRowWiseAdam: return call(std::integral_constant<int, kRowWiseAdam>{});
    case kLamb: return call(std::integral_constant<int, kLamb>{});
    case kLars: return call(std::integral_constant<int, kLars>{});
  }
}

void update(const Slot& slot, void* weight, float* first, float* second, const uint64_t* entries, int64_t n,
            const Gradients& gradients, const Step& step, uint64_t seed, float* scratch) {
  with_type(slot.dtype, [&](auto stored) {
    with_kind(step, [&](auto kind) {
      update_rows<decltype(kind)::value>(slot, static_cast<decltype(stored)*>(weight), first, second, entries, n,
                                         gradients, step, seed, scratch);
    });
  });
}

void update_singles(const Slot& slot, void* weight, float* first, float* second, const Lookups& lookups,
                    const Range& bags, const uint8_t* single, const Gradients& gradients, const Step& step,
                    uint64_t seed, float* scratch) {
  with_type(slot.dtype, [&](auto stored) {
    with_kind(step, [&](auto kind) {
      with_index(lookups.index_bytes, [&](auto index) {
        update_single_rows<decltype(kind)::value>(
            slot, static_cast<decltype(stored)*>(weight), first, second,
            static_cast<const decltype(index)*>(lookups.values), lookups.offsets, bags, single, gradients, step, seed,
            scratch);
      });
    });
  });
}

// The sum of the gradients of `n` entries over some columns: the part of a hot row that one thread adds up.
void add_up(const uint64_t* entries, int64_t n, const Gradients& gradients, const Range& columns, float* total) {
  const auto gradient = [&](int64_t i) { return gradient_of(gradients, entries[i]) + columns.first; };
  const auto keep = [=](int64_t column, Floats lanes, int width) {
    store(total + columns.first + column, lanes, width);
  };
  const int64_t width = columns.last - columns.first;
  if (gradients.scales) {
    const auto factor = [&](int64_t i) { return factor_of(gradients, entries[i]); };
    add_rows<true>(gradient, factor, n, width, keep);
  } else {
    add_rows<false>(gradient, [](int64_t) { return 1.0f; }, n, width, keep);
  }
}

constexpr Kernels kKernels{pool, copy, update, update_singles, add_up, weight_gradient};

}  // namespace MG_VARIANT
}  // namespace megalith
