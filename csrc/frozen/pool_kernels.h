// Bags of frozen rows, added up in registers where their columns are whole blocks of sixteen.
#pragma once

#include <cstdint>
#include <type_traits>

#include "embedding/lookup.h"
#include "frozen/codes.h"
#include "frozen/row_stream.h"

namespace megalith {
inline namespace MG_VARIANT {

constexpr int64_t kRowsAtOnce = 16;  // read between two looks ahead

// The rows of one bag: calls visit(row number, position in the bag) for each, some of them at a time.
template <class Visit>
inline void for_each_row(RowStream& stream, int64_t first, int64_t length, Visit visit) {
  for (int64_t done = 0; done < length;) {
    const int64_t until = least(length, done + kRowsAtOnce);
    stream.find(first + until + kAhead);
    for (; done < until; ++done) visit(first + done, done);
  }
}

// The sum of a bag of `Blocks` * 16 columns.
template <class Row, int Blocks>
inline void add_bag(RowStream& stream, int64_t first, int64_t length, Floats (&total)[Blocks]) {
  for (int k = 0; k < Blocks; ++k) total[k] = Floats{};
  for_each_row(stream, first, length, [&](int64_t number, int64_t) {
    const uint8_t* at = stream.row(number);
    if (reinterpret_cast<uintptr_t>(at) <= RowStream::kZeros) return;
    const Row row(at);
    for (int k = 0; k < Blocks; ++k) total[k] += row.block(k);
  });
}

#if defined(__AVX512F__)
// The same of codes of four bits: a row's sixteen readings are computed once and picked by code. Even columns are added
// up apart from odd ones, as the bytes hold them.
template <class Row, int Blocks>
inline void add_paired_bag(RowStream& stream, int64_t first, int64_t length, Floats (&total)[Blocks]) {
  __m512 even[Blocks / 2], odd[Blocks / 2];
  for (int k = 0; k < Blocks / 2; ++k) even[k] = odd[k] = _mm512_setzero_ps();
  for_each_row(stream, first, length, [&](int64_t number, int64_t) {
    const uint8_t* at = stream.row(number);
    if (reinterpret_cast<uintptr_t>(at) <= RowStream::kZeros) return;
    const Row row(at);
    const __m512 readings = row.readings();
    for (int k = 0; k < Blocks / 2; ++k) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row.codes + k * kLanes));
      // Only the lowest four bits of a number pick.
      const __m512i pairs = _mm512_cvtepu8_epi32(bytes);
      even[k] = _mm512_add_ps(even[k], _mm512_permutexvar_ps(pairs, readings));
      odd[k] = _mm512_add_ps(odd[k], _mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), readings));
    }
  });
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  for (int k = 0; k < Blocks / 2; ++k) {
    total[2 * k] = {{(Floats::Part)_mm512_permutex2var_ps(even[k], low, odd[k])}};
    total[2 * k + 1] = {{(Floats::Part)_mm512_permutex2var_ps(even[k], high, odd[k])}};
  }
}
#endif

// A bag of any kind, in its place in the output. Returns the rows that count in a mean.
template <class Row>
inline int64_t pool_any(const FrozenSource& source, RowStream& stream, int64_t first, int64_t length,
                        const float* weights, float* out) {
  const int64_t dim = source.dim;
  const bool is_max = source.pooling == kMax;
  for (int64_t column = 0; column < dim; ++column) out[column] = 0.0f;
  int64_t counted = 0;
  for_each_row(stream, first, length, [&](int64_t number, int64_t position) {
    const uint8_t* at = stream.row(number);
    if (reinterpret_cast<uintptr_t>(at) == RowStream::kPadding) return;
    const bool is_zeros = reinterpret_cast<uintptr_t>(at) == RowStream::kZeros;
    const int64_t width = is_zeros ? 0 : source.starts ? stream.width(number) : dim;
    const bool is_first = counted++ == 0;
    if (!is_zeros) {
      const Row row(at);
      const float weight = weights ? weights[position] : 1.0f;
      for (int64_t column = 0; column < width; column += kLanes) {
        const int n = static_cast<int>(least<int64_t>(kLanes, width - column));
        Floats lanes = row.block(column / kLanes, n);
        const Floats held = load(out + column, n);
        if (is_max) {
          lanes = is_first ? lanes : larger(lanes, held);
        } else {
          lanes = held + (weights ? lanes * weight : lanes);
        }
        store(out + column, lanes, n);
      }
    }
    if (is_max && !is_first) {
      for (int64_t column = width; column < dim; ++column) out[column] = 0.0f > out[column] ? 0.0f : out[column];
    }
  });
  return counted;
}

template <class Row, int Blocks>
inline void pool_frozen_bags(const FrozenSource& source, const FrozenBatch& batch, RowStream& stream, int64_t& number,
                      int64_t first, int64_t last) {
  const int64_t base = source.feature * batch.size;
  int64_t begin = offset_of(batch, base + first);
  for (int64_t bag = first; bag < last; ++bag) {
    const int64_t end = offset_of(batch, base + bag + 1), length = end - begin;
    float* out = batch.out + bag * batch.out_stride + source.column;
    if constexpr (Blocks > 0) {
      Floats total[Blocks];
#if defined(__AVX512F__)
      if constexpr (HasFourBits<Row>::value && Blocks % 2 == 0) {
        add_paired_bag<Row, Blocks>(stream, number, length, total);
      } else {
        add_bag<Row, Blocks>(stream, number, length, total);
      }
#else
      add_bag<Row, Blocks>(stream, number, length, total);
#endif
      const float divisor = static_cast<float>(length);
      const bool divides = source.pooling == kMean && length > 1;
      for (int k = 0; k < Blocks; ++k) store(out + k * kLanes, divides ? total[k] / divisor : total[k]);
    } else {
      const float* weights = batch.sample_weights ? batch.sample_weights + begin : nullptr;
      const int64_t counted = pool_any<Row>(source, stream, number, length, weights, out);
      if (source.pooling == kMean && counted > 1) {
        const float divisor = static_cast<float>(counted);
        for (int64_t column = 0; column < source.dim; ++column) out[column] /= divisor;
      }
    }
    number += length;
    begin = end;
  }
}

template <class Row>
inline void pool_frozen_lookup(const FrozenSource& source, const FrozenBatch& batch, RowStream& stream, int64_t& number,
                        int64_t first, int64_t last) {
  const bool is_plain = !source.starts && !source.has_padding && source.pooling != kMax && !batch.sample_weights;
  switch (is_plain ? source.dim : 0) {
    case 16:
      return pool_frozen_bags<Row, 1>(source, batch, stream, number, first, last);
    case 32:
      return pool_frozen_bags<Row, 2>(source, batch, stream, number, first, last);
    case 48:
      return pool_frozen_bags<Row, 3>(source, batch, stream, number, first, last);
    case 64:
      return pool_frozen_bags<Row, 4>(source, batch, stream, number, first, last);
    case 96:
      return pool_frozen_bags<Row, 6>(source, batch, stream, number, first, last);
    case 128:
      return pool_frozen_bags<Row, 8>(source, batch, stream, number, first, last);
    default:
      return pool_frozen_bags<Row, 0>(source, batch, stream, number, first, last);
  }
}

bool pool_frozen(const FrozenSource* lookups, const FrozenBatch& batch, const FrozenPlace& first,
                 const FrozenPlace& last, FrozenFault* fault) {
  RowStream stream(lookups, batch, first, last);
  int64_t number = 0;
  for (int64_t lookup = first.lookup; lookup <= last.lookup; ++lookup) {
    const int64_t from = lookup == first.lookup ? first.bag : 0;
    const int64_t to = lookup == last.lookup ? last.bag : batch.size;
    if (from >= to) continue;
    const FrozenSource& source = lookups[lookup];
    with_row(source.precision, source.header_bytes, [&](auto* kind) {
      using Row = std::remove_const_t<std::remove_pointer_t<decltype(kind)>>;
      pool_frozen_lookup<Row>(source, batch, stream, number, from, to);
    });
  }
  *fault = stream.fault();
  return fault->lookup < 0;
}

}  // namespace MG_VARIANT
}  // namespace megalith
