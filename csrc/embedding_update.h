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

template <class Body>
inline void for_columns(int64_t dim, Body body) {
  int64_t column = 0;
  for (; column + kLanes <= dim; column += kLanes) body(column, kLanes);
  if (column < dim) body(column, static_cast<int>(dim - column));
}

// Sums over a row that its optimizer needs before any column can take its step.
struct RowSums {
  float update;
  float weight;
};

// One optimizer step on one row, or on some columns of it, in two halves: sums over the row, then the step.
template <int Kind, class T>
struct RowStep {
  T* row;
  float* first_state;
  float* second_state;
  const float* gradient;  // of the whole batch
  int64_t dim;            // columns that are here
  const Step& step;
  uint64_t row_seed;

  // LAMB's moments move on in this half.
  RowSums sums() const {
    Floats updates{}, weights{};
    for_columns(dim, [&](int64_t column, int n) {
      const Floats weight = kNeedsWeight || step.weight_decay != 0 ? load(row + column, n) : Floats{};
      Floats lanes;
      if constexpr (Kind == kLamb) {
        const Floats given = clipped(column, n);
        const Floats mean = load(first_state + column, n) * step.beta1 + given * step.rest1;
        const Floats square = load(second_state + column, n) * step.beta2 + given * given * step.rest2;
        store(first_state + column, mean, n);
        store(second_state + column, square, n);
        lanes = adam(mean, square, weight);
      } else {
        lanes = direction(column, weight, n);
      }
      // Lanes beyond the row hold 0, or 0 / eps.
      updates += lanes * lanes;
      if constexpr (kNeedsWeight) weights += weight * weight;
    });
    return {sum(updates), kNeedsWeight ? sum(weights) : 0.0f};
  }

  // `whole` sums over all `columns` of the row.
  void take(const RowSums& whole, int64_t columns) const {
    const float mean_square = whole.update / static_cast<float>(columns);
    if constexpr (Kind == kSgd) {
      for_columns(dim, [&](int64_t column, int n) {
        const Floats weight = load(row + column, n);
        write(column, weight - direction(column, weight, n) * step.lr, n);
      });
    } else if constexpr (Kind == kRowWiseAdaGrad) {
      const float total = *first_state + mean_square;
      *first_state = total;
      const float rate = step.lr / (std::sqrt(total) + step.eps);
      for_columns(dim, [&](int64_t column, int n) {
        const Floats weight = load(row + column, n);
        write(column, weight - direction(column, weight, n) * rate, n);
      });
    } else if constexpr (Kind == kAdaGrad) {
      for_columns(dim, [&](int64_t column, int n) {
        const Floats weight = load(row + column, n), lanes = direction(column, weight, n);
        const Floats total = load(first_state + column, n) + lanes * lanes;
        store(first_state + column, total, n);
        write(column, weight - lanes * step.lr / (root(total) + step.eps), n);
      });
    } else if constexpr (Kind == kAdam || Kind == kRowWiseAdam) {
      float row_scale = 0;
      if constexpr (Kind == kRowWiseAdam) {
        const float square = *second_state * step.beta2 + mean_square * step.rest2;
        *second_state = square;
        row_scale = std::sqrt(square / step.second_correction) + step.eps;
      }
      const float rate = step.lr / step.first_correction;
      for_columns(dim, [&](int64_t column, int n) {
        const Floats weight = load(row + column, n), lanes = direction(column, weight, n);
        const Floats mean = load(first_state + column, n) * step.beta1 + lanes * step.rest1;
        store(first_state + column, mean, n);
        Floats scale = all(row_scale);
        if constexpr (Kind == kAdam) {
          const Floats square = load(second_state + column, n) * step.beta2 + lanes * lanes * step.rest2;
          store(second_state + column, square, n);
          scale = root(square / step.second_correction) + step.eps;
        }
        write(column, weight - mean * rate / scale, n);
      });
    } else {
      // LAMB and LARS scale the step of a row by the ratio of the lengths of its weights and of its update.
      const float weight_norm = std::sqrt(whole.weight), update_norm = std::sqrt(whole.update);
      float trust = weight_norm > 0 && update_norm > 0 ? weight_norm / update_norm : 1.0f;
      if constexpr (Kind == kLars) trust = weight_norm > 0 && update_norm > 0 ? step.eps * trust : 1.0f;
      const float rate = step.lr * trust;
      for_columns(dim, [&](int64_t column, int n) {
        const Floats weight = load(row + column, n);
        Floats update = direction(column, weight, n) * rate;
        if constexpr (Kind == kLars) {
          update = load(first_state + column, n) * step.beta1 + update;
          store(first_state + column, update, n);
        }
        write(column, weight - update, n);
      });
    }
  }

 private:
  static constexpr bool kNeedsWeight = num_sums(Kind) == 2;

  Floats clipped(int64_t column, int n) const {
    const Floats lanes = load(gradient + column, n);
    return step.max_gradient > 0 ? smaller(larger(lanes, all(-step.max_gradient)), all(step.max_gradient)) : lanes;
  }

  // What the step goes along: the gradient with the decay or, with LAMB, Adam's direction with it.
  Floats direction(int64_t column, const Floats& weight, int n) const {
    if constexpr (Kind == kLamb) {
      return adam(load(first_state + column, n), load(second_state + column, n), weight);
    } else {
      const Floats lanes = clipped(column, n);
      return step.weight_decay != 0 ? lanes + weight * step.weight_decay : lanes;
    }
  }

  Floats adam(const Floats& mean, const Floats& square, const Floats& weight) const {
    const Floats scaled = mean / step.first_correction / (root(square / step.second_correction) + step.eps);
    return scaled + weight * step.weight_decay;
  }

  void write(int64_t column, const Floats& updated, int n) const {
    if (sizeof(T) == 2 && step.stochastic_rounding != 0) {
      store_random(row + column, updated, random_words(row_seed, column), n);
    } else {
      store(row + column, updated, n);
    }
  }
};

// Whether a row has state for each of its columns: (in the first, in the second).
constexpr bool first_is_full(int kind) { return kind != kRowWiseAdaGrad && kind != kSgd; }
constexpr bool second_is_full(int kind) { return kind == kAdam || kind == kLamb; }

inline const float* gradient_of(const Gradients& gradients, Entry entry) {
  const uint32_t source = static_cast<uint32_t>(entry);
  return gradients.rows ? gradients.rows[source] : gradients.dense + source * gradients.stride;
}

// The gradient of the next bag is asked for when the first of its entries comes near.
inline void prefetch_gradient(const TableUpdate& table, const Entry* entries, int64_t at) {
  if (static_cast<uint32_t>(entries[at]) == static_cast<uint32_t>(entries[at - 1])) return;
  prefetch_row(gradient_of(table.gradients, entries[at]), table.dim * 4);
}

// Which halves of a step a pass over rows takes. Between the first and the second, sums over columns that lie
// elsewhere are added to those found here.
enum class Halves { kBoth, kFirst, kSecond };

template <Halves Part, int Kind, class T>
void visit_rows(const TableUpdate& table, const Entry* entries, int64_t count, const Apart& apart) {
  constexpr int kSums = num_sums(Kind);
  if constexpr (Part != Halves::kBoth && kSums == 0) return;
  // LAMB's second half goes along its moments, which have taken the gradient in.
  constexpr bool kNeedsGradient = !(Part == Halves::kSecond && Kind == kLamb);
  const int64_t dim = table.dim, row_bytes = dim * static_cast<int64_t>(sizeof(T));
  const int64_t first_dim = first_is_full(Kind) ? dim : 1, second_dim = second_is_full(Kind) ? dim : 1;
  const int64_t ahead = prefetch_distance(row_bytes);
  const Step step = *table.step;
  T* weight = static_cast<T*>(table.weight);
  float *first = table.first_state, *second = table.second_state;
  const bool reads_rows = Part != Halves::kFirst || kSums == 2 || step.weight_decay != 0;
  const bool reads_states = Part != Halves::kFirst || Kind == kLamb;
  float* scaled = table.scaled;
  const auto prefetch = [&](int64_t i) {
    const int64_t row = static_cast<int64_t>(entries[i] >> 32);
    if (reads_rows) prefetch_row(weight + row * dim, row_bytes);
    if (reads_states && first) prefetch_row(first + row * first_dim, first_dim * 4);
    if (reads_states && second) prefetch_row(second + row * second_dim, second_dim * 4);
    if constexpr (Part != Halves::kBoth) prefetch_row(apart.sums + int64_t{apart.numbers[i]} * kSums, kSums * 4);
  };
  for (int64_t i = 0; i < std::min(ahead, count); ++i) prefetch(i);
  uint32_t before = ~uint32_t{0};
  // The rows of a bag share its gradient, so its squares are added up once, unless rows' own decay is among them.
  const bool shares = kSums == 1 && step.weight_decay == 0;
  bool known = false;
  RowSums sums{};
  for (int64_t i = 0; i < count; ++i) {
    if (i + ahead < count) {
      prefetch(i + ahead);
      if constexpr (kNeedsGradient) prefetch_gradient(table, entries, i + ahead);
    }
    const int64_t row = static_cast<int64_t>(entries[i] >> 32);
    const uint32_t source = static_cast<uint32_t>(entries[i]);
    const float* gradient = nullptr;
    if constexpr (kNeedsGradient) {
      gradient = gradient_of(table.gradients, entries[i]);
      if (table.gradients.scales) {
        const float factor = table.gradients.scales[source];
        if (source != before) {
          for_columns(dim, [&](int64_t column, int n) { store(scaled + column, load(gradient + column, n) * factor, n); });
        }
        gradient = scaled;
      }
    }
    known = known && shares && source == before;
    before = source;
    const RowStep<Kind, T> one{
        weight + row * dim, first ? first + row * first_dim : nullptr, second ? second + row * second_dim : nullptr,
        gradient, dim, step,
        step.stochastic_rounding != 0 ? mix(table.seed + static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15ull) : 0};
    if constexpr (kSums > 0 && Part != Halves::kSecond) {
      if (!known) sums = one.sums();
      known = true;
    }
    if constexpr (Part == Halves::kBoth) {
      one.take(sums, dim);
    } else {
      float* place = apart.sums + int64_t{apart.numbers[i]} * kSums;
      if constexpr (Part == Halves::kFirst) {
        place[0] = sums.update;
        if constexpr (kSums == 2) place[1] = sums.weight;
      } else {
        one.take({place[0], kSums == 2 ? place[1] : 0.0f}, apart.columns);
      }
    }
  }
}

inline void rank_rows(const std::vector<uint64_t>& marked, std::vector<uint32_t>& before, std::vector<uint32_t>* rows) {
  before.resize(marked.size());
  size_t count = 0;
  for (size_t word = 0; word < marked.size(); ++word) {
    before[word] = static_cast<uint32_t>(count);
    count += static_cast<size_t>(__builtin_popcountll(marked[word]));
  }
  if (!rows) return;
  rows->resize(count);
  uint32_t* row = rows->data();
  for (size_t word = 0; word < marked.size(); ++word) {
    for (uint64_t bits = marked[word]; bits; bits &= bits - 1) {
      *row++ = static_cast<uint32_t>(word << 6) | static_cast<uint32_t>(__builtin_ctzll(bits));
    }
  }
}

inline void number_rows(const std::vector<uint64_t>& marked, const std::vector<uint32_t>& before, const Entry* entries,
                        int64_t count, uint32_t* numbers) {
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t row = entries[i] >> 32, lower = (uint64_t{1} << (row & 63)) - 1;
    numbers[i] = before[row >> 6] + static_cast<uint32_t>(__builtin_popcountll(marked[row >> 6] & lower));
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
