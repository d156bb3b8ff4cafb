// The backward kernels of one processor variant: gradients in, one optimizer step on each touched row.
#pragma once

#include <algorithm>
#include <vector>

#include "embedding.h"
#include "prefetch.h"
#include "simd.h"

namespace megalith {
inline namespace MG_VARIANT {

inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// One optimizer step on one row. `gradient` is the row's whole gradient; `known`, if given, keeps its mean square
// for the next row with the same one (negative: not known yet).
template <int Kind, class T>
inline void step_row(T* row, float* first_state, float* second_state, const float* gradient, int64_t dim,
                     const Step& step, uint64_t row_seed, float* known) {
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
  if (kNeedsSquares && known && *known >= 0 && step.weight_decay == 0) {
    mean_square = *known;
  } else if constexpr (kNeedsSquares) {
    Floats squares{};
    for (int64_t column = 0; column < dim; column += kLanes) {
      const int n = part(column);
      const Floats lanes = effective(column, step.weight_decay != 0 ? load(row + column, n) : Floats{}, n);
      squares += lanes * lanes;
    }
    mean_square = sum(squares) / static_cast<float>(dim);
    if (known) *known = mean_square;
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

// Whether a row has state for each of its columns: (in the first, in the second).
constexpr bool first_is_full(int kind) { return kind != kRowWiseAdaGrad && kind != kSgd; }
constexpr bool second_is_full(int kind) { return kind == kAdam || kind == kLamb; }

template <class Body>
inline void for_columns(int64_t dim, Body body) {
  int64_t column = 0;
  for (; column + kLanes <= dim; column += kLanes) body(column, kLanes);
  if (column < dim) body(column, static_cast<int>(dim - column));
}

inline const float* gradient_of(const Gradients& gradients, Entry entry) {
  const uint32_t source = static_cast<uint32_t>(entry);
  return gradients.rows ? gradients.rows[source] : gradients.dense + source * gradients.stride;
}

// The gradient of the next bag is asked for when the first of its entries comes near.
inline void prefetch_gradient(const TableUpdate& table, const Entry* entries, int64_t at) {
  if (static_cast<uint32_t>(entries[at]) == static_cast<uint32_t>(entries[at - 1])) return;
  prefetch_row(gradient_of(table.gradients, entries[at]), table.dim * 4);
}

template <int Kind, class T>
void update_rows(const TableUpdate& table, const Entry* entries, int64_t count) {
  const int64_t dim = table.dim, row_bytes = dim * static_cast<int64_t>(sizeof(T));
  const int64_t first_dim = first_is_full(Kind) ? dim : 1, second_dim = second_is_full(Kind) ? dim : 1;
  const int64_t ahead = prefetch_distance(row_bytes);
  const Step step = *table.step;
  T* weight = static_cast<T*>(table.weight);
  float *first = table.first_state, *second = table.second_state;
  static thread_local std::vector<float> buffer;
  if (buffer.size() < static_cast<size_t>(dim)) buffer.resize(static_cast<size_t>(dim));
  float* scaled = buffer.data();
  const auto prefetch = [&](int64_t i) {
    const int64_t row = static_cast<int64_t>(entries[i] >> 32);
    prefetch_row(weight + row * dim, row_bytes);
    if (first) prefetch_row(first + row * first_dim, first_dim * 4);
    if (second) prefetch_row(second + row * second_dim, second_dim * 4);
  };
  for (int64_t i = 0; i < std::min(ahead, count); ++i) prefetch(i);
  uint32_t before = ~uint32_t{0};
  // The rows of a bag share its gradient, so its mean square is found once.
  float mean_square = -1.0f;
  for (int64_t i = 0; i < count; ++i) {
    if (i + ahead < count) {
      prefetch(i + ahead);
      prefetch_gradient(table, entries, i + ahead);
    }
    const int64_t row = static_cast<int64_t>(entries[i] >> 32);
    const uint32_t source = static_cast<uint32_t>(entries[i]);
    const float* gradient = gradient_of(table.gradients, entries[i]);
    if (source != before) mean_square = -1.0f;
    if (table.gradients.scales) {
      const float factor = table.gradients.scales[source];
      if (source != before) {
        for_columns(dim, [&](int64_t column, int n) { store(scaled + column, load(gradient + column, n) * factor, n); });
      }
      gradient = scaled;
    }
    before = source;
    step_row<Kind>(weight + row * dim, first ? first + row * first_dim : nullptr,
                   second ? second + row * second_dim : nullptr, gradient, dim, step,
                   step.stochastic_rounding != 0 ? mix(table.seed + static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15ull) : 0,
                   &mean_square);
  }
}

inline void rank_rows(const std::vector<uint64_t>& marked, std::vector<uint32_t>& before, std::vector<uint32_t>& rows) {
  before.resize(marked.size());
  size_t count = 0;
  for (size_t word = 0; word < marked.size(); ++word) {
    before[word] = static_cast<uint32_t>(count);
    count += static_cast<size_t>(__builtin_popcountll(marked[word]));
  }
  rows.resize(count);
  uint32_t* row = rows.data();
  for (size_t word = 0; word < marked.size(); ++word) {
    for (uint64_t bits = marked[word]; bits; bits &= bits - 1) {
      *row++ = static_cast<uint32_t>(word << 6) | static_cast<uint32_t>(__builtin_ctzll(bits));
    }
  }
}

inline void deal_rows(const std::vector<uint64_t>& marked, const std::vector<uint32_t>& before, const Entry* entries,
                      int64_t count, Entry*& once_end, Entry*& again_end) {
  Entry *once = once_end, *again = again_end;
  // Written to both and kept in one: which it is, no processor can guess.
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t row = entries[i] >> 32;
    const uint64_t word = marked[row >> 6], lower = (uint64_t{1} << (row & 63)) - 1;
    const uint64_t rank = before[row >> 6] + static_cast<uint64_t>(__builtin_popcountll(word & lower));
    const uint64_t repeated = word >> (row & 63) & 1;
    *once = entries[i];
    *again = rank << 32 | static_cast<uint32_t>(entries[i]);
    once += repeated ^ 1;
    again += repeated;
  }
  once_end = once;
  again_end = again;
}

// Sums of rows that are hot stay in the nearest cache, and so does the gradient of the bag at hand.
inline void add_up(const TableUpdate& table, const Entry* entries, int64_t count, float* sums) {
  constexpr int64_t kAhead = 8;
  const int64_t dim = table.dim;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      prefetch_row(sums + (entries[i + kAhead] >> 32) * static_cast<uint64_t>(dim), dim * 4);
      prefetch_gradient(table, entries, i + kAhead);
    }
    const float* gradient = gradient_of(table.gradients, entries[i]);
    float* sum = sums + (entries[i] >> 32) * static_cast<uint64_t>(dim);
    if (table.gradients.scales) {
      const float scale = table.gradients.scales[static_cast<uint32_t>(entries[i])];
      for_columns(dim, [&](int64_t column, int n) {
        store(sum + column, load(sum + column, n) + load(gradient + column, n) * scale, n);
      });
    } else {
      for_columns(dim, [&](int64_t column, int n) {
        store(sum + column, load(sum + column, n) + load(gradient + column, n), n);
      });
    }
  }
}

}  // namespace MG_VARIANT
}  // namespace megalith
