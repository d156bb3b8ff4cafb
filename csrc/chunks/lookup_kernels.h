// Lookups of chunked rows: pooled or copied, and the gradient of sample weights. Chunks that do not live read as zeros.
//
// Where all chunks of all rows of a bag live, the loops are those of whole rows (embedding/forward_kernels.h). Otherwise
// sums are kept in the nearest cache, and every row adds its live columns. Both add in the same order: results are the
// same bits.
#pragma once

#include <cstdint>

#include "chunks/live_columns.h"
#include "chunks/record.h"
#include "embedding/forward_kernels.h"
#include "embedding/lookup.h"
#include "embedding/type_dispatch.h"
#include "simd/prefetch.h"

namespace megalith {
inline namespace MG_VARIANT {

// Columns that are added up at a time.
constexpr int64_t kColumnsAtOnce = 1024;

// A row as lookups read it; no chunk lives of one that is not there.
template <class T>
struct LiveRow {
  const T* weights;
  uint64_t mask;
};

template <class T>
inline LiveRow<T> live_row(const ChunkedPool& pool, uint32_t slot) {
  // Memory that is there, of which nothing is read.
  if (!is_record(slot)) return {reinterpret_cast<const T*>(&pool), 0};
  const char* record = record_at(pool, slot);
  return {reinterpret_cast<const T*>(record + pool.layouts[live_chunks(pool, slot)].weights), record_mask(pool, record)};
}

inline void prefetch_record(const ChunkedPool& pool, uint32_t slot) {
  if (is_record(slot)) prefetch_row(record_at(pool, slot), pool.layouts[live_chunks(pool, slot)].bytes);
}

// Records in flight ahead of the one in use, by the length of a whole one.
inline int64_t records_ahead(const ChunkedPool& pool) { return prefetch_distance(pool.layouts[pool.chunks].bytes); }

template <class Index>
inline uint32_t slot_of(Index value) {
  return static_cast<uint32_t>(value);
}

// Bags of one value without a factor: the sum is the row, and its zeros are positive.
template <class T, class Out>
inline void write_row(const ChunkedPool& pool, uint32_t slot, const Range& columns, Out* to) {
  const LiveRow<T> row = live_row<T>(pool, slot);
  if (row.mask == pool.all_chunks) {
    for (int64_t column = columns.first; column < columns.last; column += kLanes) {
      const int n = static_cast<int>(least<int64_t>(kLanes, columns.last - column));
      store(to + column, Floats{} + load(row.weights + column, n), n);
    }
    return;
  }
  for_live_columns(pool, row.mask, columns.first, columns.last, [&](int64_t column, int n, uint32_t lanes, int64_t at) {
    store(to + column, Floats{} + load_live(row.weights + at, lanes), n);
  });
}

template <class Index>
inline bool all_live(const ChunkedPool& pool, const Index* slots, int64_t length) {
  for (int64_t i = 0; i < length; ++i) {
    const uint32_t slot = slot_of(slots[i]);
    if (!is_record(slot) || live_chunks(pool, slot) != pool.chunks) return false;
  }
  return true;
}

// Sixteen zeros at a time, as far as some columns reach.
inline void clear(float* numbers, const Range& columns) {
  for (int64_t at = 0; at < columns.last - columns.first; at += kLanes) store(numbers + at, Floats{});
}

template <class T, class Index, class Out>
inline void pool_maximum(const LookupDescriptor& lookup, const ChunkedPool& pool, const Index* slots, int64_t length,
                         const Range& columns, Out* to) {
  float best[kColumnsAtOnce];
  bool found = false;
  clear(best, columns);
  for (int64_t i = 0; i < length; ++i) {
    if (static_cast<int64_t>(slots[i]) == lookup.padding) continue;
    const LiveRow<T> row = live_row<T>(pool, slot_of(slots[i]));
    for_live_columns(pool, row.mask, columns.first, columns.last,
                     [&](int64_t column, int, uint32_t lanes, int64_t at) {
                       float* kept = best + (column - columns.first);
                       const Floats given = load_live(row.weights + at, lanes);
                       store(kept, found ? larger(given, load(kept)) : given);
                     });
    found = true;
  }
  for (int64_t column = columns.first; column < columns.last; column += kLanes) {
    const int n = static_cast<int>(least<int64_t>(kLanes, columns.last - column));
    store(to + column, load(best + (column - columns.first), n), n);
  }
}

template <class T, class Index, class Out, class Factor>
inline void pool_sum(const ChunkedPool& pool, const Index* slots, int64_t length, const Range& columns, bool weighted,
                     Factor factor, float divisor, Out* to) {
  float total[kColumnsAtOnce];
  clear(total, columns);
  for (int64_t i = 0; i < length; ++i) {
    const LiveRow<T> row = live_row<T>(pool, slot_of(slots[i]));
    if (row.mask == 0) continue;
    const float weight = weighted ? factor(i) : 1.0f;
    for_live_columns(pool, row.mask, columns.first, columns.last,
                     [&](int64_t column, int, uint32_t lanes, int64_t at) {
                       if (lanes == 0) return;
                       float* sum = total + (column - columns.first);
                       const Floats given = load_live(row.weights + at, lanes);
                       store(sum, load(sum) + (weighted ? given * weight : given));
                     });
  }
  for (int64_t column = columns.first; column < columns.last; column += kLanes) {
    const int n = static_cast<int>(least<int64_t>(kLanes, columns.last - column));
    const Floats lanes = load(total + (column - columns.first), n);
    store(to + column, divisor != 0.0f ? lanes / divisor : lanes, n);
  }
}

template <class T, class Index, class Out>
void pool_chunked_bags(const LookupDescriptor& lookup, const ChunkedPool& pool, const Index* values,
                       const int64_t* offsets, const float* sample_weights, const Range& bags, const Range& columns,
                       Out* out, int64_t out_stride) {
  const int64_t ahead = records_ahead(pool), stop = offsets[bags.last];
  int64_t fetched = offsets[bags.first];
  for (int64_t bag = bags.first; bag < bags.last; ++bag) {
    const int64_t begin = offsets[bag], length = offsets[bag + 1] - begin;
    for (const int64_t until = least<int64_t>(stop, begin + length + ahead); fetched < until; ++fetched) {
      prefetch_record(pool, slot_of(values[fetched]));
    }
    Out* to = out + bag * out_stride;
    const Index* slots = values + begin;
    const bool is_max = lookup.pooling == kMax, weighted = sample_weights || lookup.padding >= 0;
    if (length == 1 && !is_max && !weighted) {
      write_row<T>(pool, slot_of(slots[0]), columns, to);
      continue;
    }
    const auto is_padding = [&](int64_t i) { return static_cast<int64_t>(slots[i]) == lookup.padding; };
    const auto factor = [&](int64_t i) {
      return is_padding(i) ? 0.0f : sample_weights ? sample_weights[begin + i] : 1.0f;
    };
    const int64_t counted = lookup.pooling == kMean ? num_counted(lookup, slots, length) : 1;
    const float divisor = counted > 1 ? static_cast<float>(counted) : 0.0f;
    if (!is_max && !weighted && all_live(pool, slots, length)) {
      const uint32_t weights = pool.layouts[pool.chunks].weights;
      const auto row = [&](int64_t i) {
        return reinterpret_cast<const T*>(record_at(pool, slot_of(slots[i])) + weights) + columns.first;
      };
      add_rows<false>(row, [](int64_t) { return 1.0f; }, length, columns.last - columns.first,
                      [=](int64_t column, Floats lanes, int n) {
                        store(to + columns.first + column, divisor != 0.0f ? lanes / divisor : lanes, n);
                      });
      continue;
    }
    for (int64_t first = columns.first; first < columns.last; first += kColumnsAtOnce) {
      const Range some{first, least<int64_t>(first + kColumnsAtOnce, columns.last)};
      if (is_max) {
        pool_maximum<T>(lookup, pool, slots, length, some, to);
      } else {
        pool_sum<T>(pool, slots, length, some, weighted, factor, divisor, to);
      }
    }
  }
}

template <class T, class Index, class Out>
void copy_chunked_values(const ChunkedPool& pool, const Index* slots, int64_t first, int64_t last, Out* out) {
  const int64_t ahead = records_ahead(pool), dim = pool.dim;
  for (int64_t i = first; i < last; ++i) {
    if (i + ahead < last) prefetch_record(pool, slot_of(slots[i + ahead]));
    const LiveRow<T> row = live_row<T>(pool, slot_of(slots[i]));
    for_live_columns(pool, row.mask, 0, dim, [&](int64_t column, int n, uint32_t lanes, int64_t at) {
      store(out + i * dim + column, load_live(row.weights + at, lanes), n);
    });
  }
}

template <class T, class Index>
void dot_chunked_rows(const LookupDescriptor& lookup, const ChunkedPool& pool, const Index* values,
                      const int64_t* offsets, const Range& bags, const float* gradient, int64_t stride, float* out) {
  for (int64_t bag = bags.first; bag < bags.last; ++bag) {
    const int64_t begin = offsets[bag], end = offsets[bag + 1];
    const int64_t counted = lookup.pooling == kMean ? num_counted(lookup, values + begin, end - begin) : 1;
    const float divisor = static_cast<float>(counted);
    for (int64_t i = begin; i < end; ++i) {
      // Padding has no record.
      const LiveRow<T> row = live_row<T>(pool, slot_of(values[i]));
      Floats total{};
      for_live_columns(pool, row.mask, 0, pool.dim, [&](int64_t column, int n, uint32_t lanes, int64_t at) {
        total += load_live(row.weights + at, lanes) * load(gradient + bag * stride + column, n);
      });
      out[i] = row.mask ? sum(total) / divisor : 0.0f;
    }
  }
}

inline void pool_chunked(const LookupDescriptor& lookup, const ChunkedPool& rows, const LookupBatch& batch,
                         const Range& bags, const Range& columns, void* out, int64_t out_dtype, int64_t out_stride) {
  with_type(rows.dtype, [&](auto stored) {
    with_type(out_dtype, [&](auto written) {
      with_index(batch.index_bytes, [&](auto index) {
        pool_chunked_bags<decltype(stored)>(lookup, rows, static_cast<const decltype(index)*>(batch.values),
                                            batch.offsets, batch.sample_weights, bags, columns,
                                            static_cast<decltype(written)*>(out), out_stride);
      });
    });
  });
}

inline void copy_chunked(const LookupDescriptor&, const ChunkedPool& rows, const LookupBatch& batch,
                         const Range& values, void* out, int64_t out_dtype) {
  with_type(rows.dtype, [&](auto stored) {
    with_type(out_dtype, [&](auto written) {
      with_index(batch.index_bytes, [&](auto index) {
        copy_chunked_values<decltype(stored)>(rows, static_cast<const decltype(index)*>(batch.values) + batch.offsets[0],
                                              values.first, values.last, static_cast<decltype(written)*>(out));
      });
    });
  });
}

inline void chunked_weight_gradient(const LookupDescriptor& lookup, const ChunkedPool& rows, const LookupBatch& batch,
                                    const Range& bags, const float* gradient, int64_t stride, float* out) {
  with_type(rows.dtype, [&](auto stored) {
    with_index(batch.index_bytes, [&](auto index) {
      dot_chunked_rows<decltype(stored)>(lookup, rows, static_cast<const decltype(index)*>(batch.values), batch.offsets,
                                         bags, gradient, stride, out);
    });
  });
}

}  // namespace MG_VARIANT
}  // namespace megalith
