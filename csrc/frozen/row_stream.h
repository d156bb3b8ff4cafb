// The rows of a batch on their way: found from ids, asked for ahead of their turn, and handed over in order.
//
// Rows are found up to kAhead before they are read, across bags and across tables, so that memory is never idle
// where one bag ends. The lines that a row covers are asked for, one or two of most, and no more. What an id needs
// before its row is known (the bucket of a listed id, the start of a row of unequal length) is asked for a stage earlier.
#pragma once

#include <cstdint>

#include "frozen/format.h"
#include "mix.h"
#include "simd/scalar.h"

namespace megalith {
inline namespace MG_VARIANT {

constexpr int64_t kAhead = 64;  // rows
constexpr int64_t kRing = 512;  // rows that are found and not yet read, a power of two

// Into the second cache: into the first it is half as fast (docs/decisions/0025).
// `Short` rows have 64 bytes at most.
template <bool Short>
inline void prefetch_packed(const uint8_t* row, int64_t bytes) {
  // Keeps the compiler from taking a function that only prefetches for one without effect and leaving it out.
  __asm__ volatile("");
  __builtin_prefetch(row, 0, 2);
  if constexpr (Short) {
    // At most two lines: asking for one twice costs less than a branch that nobody foresees.
    __builtin_prefetch(row + bytes - 1, 0, 2);
    return;
  }
  const uintptr_t end = reinterpret_cast<uintptr_t>(row) + static_cast<uintptr_t>(bytes);
  for (uintptr_t line = (reinterpret_cast<uintptr_t>(row) & ~uintptr_t{63}) + 64; line < end; line += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(line), 0, 2);
  }
}

inline int64_t offset_of(const FrozenBatch& batch, int64_t bag) {
  if (batch.offset_bytes == 4) return static_cast<const int32_t*>(batch.offsets)[bag];
  return static_cast<const int64_t*>(batch.offsets)[bag];
}

inline uint64_t bucket_of(int64_t id, int64_t num_buckets) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(mix64(static_cast<uint64_t>(id))) *
                                static_cast<uint64_t>(num_buckets)) >> 64);
}

// The row of a listed id, or -1.
inline int64_t listed_row(const FrozenSource& source, int64_t id) {
  int64_t at = static_cast<int64_t>(bucket_of(id, source.num_buckets));
  for (int64_t seen = 0; seen < source.num_buckets; ++seen) {
    const IdBucket& bucket = source.buckets[at];
    for (int i = 0; i < bucket.used; ++i) {
      if (bucket.ids[i] == id) return bucket.rows[i];
    }
    if (!bucket.passed) break;
    at = at + 1 == source.num_buckets ? 0 : at + 1;
  }
  return -1;
}

class RowStream {
 public:
  // What stands for a row that is not read: padding, which counts for nothing, and a row of zeros.
  static constexpr uintptr_t kPadding = 0, kZeros = 1;

  RowStream(const FrozenSource* lookups, const FrozenBatch& batch, const FrozenPlace& first, const FrozenPlace& last)
      : lookups_(lookups), batch_(batch), last_(last) {
    enter(first.lookup, first.bag);
  }

  // Finds rows until `count` of them were found since the beginning, or all were.
  __attribute__((noinline)) void find(int64_t count) {
    while (found_ < count && lookup_ >= 0) {
      const int64_t some = least(count - found_, stop_ - next_);
      if (batch_.index_bytes == 4) {
        find_some(static_cast<const int32_t*>(batch_.values), some);
      } else {
        find_some(static_cast<const int64_t*>(batch_.values), some);
      }
      found_ += some;
      if (next_ == stop_) enter(lookup_ + 1, 0);
    }
  }

  int64_t found() const { return found_; }
  // Of the rows found, by their number since the beginning.
  const uint8_t* row(int64_t number) const { return rows_[number & (kRing - 1)]; }
  // Columns that are stored of it, in tables of unequal rows.
  int64_t width(int64_t number) const { return widths_[number & (kRing - 1)]; }
  const FrozenFault& fault() const { return fault_; }

 private:
  // Goes on with this lookup, or the next one that has ids.
  void enter(int64_t lookup, int64_t bag) {
    for (; lookup < last_.lookup || (lookup == last_.lookup && last_.bag > 0); ++lookup, bag = 0) {
      const int64_t base = lookups_[lookup].feature * batch_.size;
      next_ = offset_of(batch_, base + bag);
      stop_ = offset_of(batch_, base + (lookup == last_.lookup ? last_.bag : batch_.size));
      if (next_ == stop_) continue;
      lookup_ = lookup;
      numbered_ = bucketed_ = next_;
      return;
    }
    lookup_ = -1;
  }

  template <class Index>
  void find_some(const Index* ids, int64_t count) {
    const FrozenSource& source = lookups_[lookup_];
    if (source.buckets || source.starts || source.has_padding || source.changed) return find_staged(ids, count);
    const bool is_short = source.row_bytes <= 64;
    const bool inside = is_short ? find_plain<true>(ids + next_, count) : find_plain<false>(ids + next_, count);
    if (!inside) note(ids, count);
    next_ += count;
  }

  // False where an id is outside its table.
  template <bool Short, class Index>
  bool find_plain(const Index* ids, int64_t count) {
    const FrozenSource& source = lookups_[lookup_];
    const uint8_t* const rows = source.rows;
    const int64_t bytes = source.row_bytes, begin = found_;
    const uint64_t num_rows = static_cast<uint64_t>(source.num_rows);
    bool inside = true;
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t id = static_cast<uint64_t>(static_cast<int64_t>(ids[i]));
      const bool is_row = id < num_rows;
      inside &= is_row;
      const uint8_t* row = rows + (is_row ? id : 0) * static_cast<uint64_t>(bytes);
      rows_[(begin + i) & (kRing - 1)] = is_row ? row : nullptr;
      prefetch_packed<Short>(row, bytes);
    }
    return inside;
  }

  template <class Index>
  __attribute__((noinline)) void note(const Index* ids, int64_t count) {
    if (fault_.lookup >= 0) return;
    const uint64_t num_rows = static_cast<uint64_t>(lookups_[lookup_].num_rows);
    int64_t at = next_;
    while (at + 1 < next_ + count && static_cast<uint64_t>(static_cast<int64_t>(ids[at])) < num_rows) ++at;
    fault_ = {lookup_, at};
  }

  // The same where ids are listed, rows of unequal length, or some id is padding.
  template <class Index>
  __attribute__((noinline)) void find_staged(const Index* ids, int64_t count) {
    const FrozenSource& source = lookups_[lookup_];
    if (source.buckets) {
      for (const int64_t until = least(stop_, next_ + count + 2 * kAhead); bucketed_ < until; ++bucketed_) {
        __builtin_prefetch(source.buckets + bucket_of(static_cast<int64_t>(ids[bucketed_]), source.num_buckets));
      }
    } else if (source.changed) {
      for (const int64_t until = least(stop_, next_ + count + 2 * kAhead); bucketed_ < until; ++bucketed_) {
        const uint64_t id = static_cast<uint64_t>(static_cast<int64_t>(ids[bucketed_]));
        __builtin_prefetch(source.changed + (id < static_cast<uint64_t>(source.num_rows) ? id >> 6 : 0));
      }
    }
    for (const int64_t until = least(stop_, next_ + count + kAhead); numbered_ < until; ++numbered_) {
      const int64_t id = static_cast<int64_t>(ids[numbered_]);
      const int64_t number = where(source, number_of(source, id, numbered_));
      numbers_[numbered_ & (kRing - 1)] = number;
      if (source.starts && number >= 0) __builtin_prefetch(source.starts + number);
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t number = numbers_[(next_ + i) & (kRing - 1)], place = (found_ + i) & (kRing - 1);
      if (number < 0) {
        rows_[place] = reinterpret_cast<const uint8_t*>(number == kPaddingNumber ? kPadding : kZeros);
        widths_[place] = 0;
        continue;
      }
      int64_t begin = number * source.row_bytes, bytes = source.row_bytes;
      widths_[place] = source.dim;
      if (source.starts) {
        begin = static_cast<int64_t>(source.starts[number]) * source.unit;
        bytes = static_cast<int64_t>(source.starts[number + 1]) * source.unit - begin;
        const int64_t chunks = (bytes - source.header_bytes + source.chunk_bytes - 1) / source.chunk_bytes;
        widths_[place] = least(chunks * source.chunk, source.dim);
      }
      if (bytes == 0) {
        rows_[place] = reinterpret_cast<const uint8_t*>(kZeros);
        continue;
      }
      rows_[place] = number < source.num_rows ? source.rows + begin : source.changed_rows + begin - source.num_rows * bytes;
      prefetch_packed<false>(rows_[place], bytes);
    }
    next_ += count;
  }

  // A row that changed stands behind all others.
  static int64_t where(const FrozenSource& source, int64_t number) {
    if (!source.changed || number < 0) return number;
    const ChangedRows& some = source.changed[number >> 6];
    const uint64_t bit = uint64_t{1} << (number & 63);
    if (!(some.bits & bit)) return number;
    return source.num_rows + some.before + __builtin_popcountll(some.bits & (bit - 1));
  }

  static constexpr int64_t kZerosNumber = -1, kPaddingNumber = -2;

  int64_t number_of(const FrozenSource& source, int64_t id, int64_t value) {
    if (source.has_padding && id == source.padding) return kPaddingNumber;
    if (source.buckets) {
      const int64_t number = listed_row(source, id);
      return number < 0 ? source.unknown : number;
    }
    if (static_cast<uint64_t>(id) < static_cast<uint64_t>(source.num_rows)) return id;
    if (fault_.lookup < 0) fault_ = {lookup_, value};
    return kPaddingNumber;
  }

  const FrozenSource* const lookups_;
  const FrozenBatch& batch_;
  const FrozenPlace last_;
  int64_t lookup_ = -1, next_ = 0, stop_ = 0;  // where ids are read, by position
  int64_t numbered_ = 0, bucketed_ = 0;        // how far the stages before are
  int64_t found_ = 0;
  FrozenFault fault_{-1, -1};
  const uint8_t* rows_[kRing];
  int64_t widths_[kRing];
  int64_t numbers_[kRing];
};

}  // namespace MG_VARIANT
}  // namespace megalith
