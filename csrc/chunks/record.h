// A row of a chunked table in memory: one contiguous record with the chunks that live, and nothing of the others.
//
//   u16 growth utility | u16 x ceil(C / 16) which chunks live | u16 x k utilities | to a multiple of 4
//   | u32 id, if weights are half precision | first state | second state | weights of k chunks
//
// A slot is the position of a record in units of 4 bytes or more. All records of an extent have the same number of live
// chunks, so that a slot tells how long its record is before anything of it is read.
//
// Kernels of every build include this: functions have no linkage, so that none is shared (simd/scalar.h says why).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace megalith {

// Reads as zeros, does not count in a mean and is never updated.
constexpr uint32_t kPaddingSlot = 0;
// Slots from here on are numbers of ids without a record: they read as zeros and count.
constexpr uint32_t kFirstAbsent = uint32_t{1} << 31;
constexpr int64_t kMostChunks = 64;

// What an optimizer keeps of a row: nothing, one number, or one for each live column.
enum StateShape : int64_t { kNoState = 0, kRowState = 1, kFullState = 2 };

// Where the parts of a record begin, in bytes from its first, and how many bytes it has.
struct RecordLayout {
  uint32_t utilities, id, first, second, weights, bytes;
};

// A pool of records as kernels see it. Nothing of it moves while the pool lives.
struct ChunkedPool {
  char* base;                    // of slot 0
  const uint8_t* live;           // chunks of each record of an extent
  const RecordLayout* layouts;   // by live chunks, 0 to `chunks`
  int64_t unit_shift;            // bytes of a unit, as a power of two
  int64_t extent_shift;          // units of an extent, as a power of two
  int64_t dim, width, chunks, dtype;
  int64_t first_shape, second_shape;
  uint64_t all_chunks;           // `chunks` bits
};

// Whether a slot is a record's.
static inline bool is_record(uint32_t slot) { return slot - 1 < kFirstAbsent - 1; }

static inline char* record_at(const ChunkedPool& pool, uint32_t slot) {
  return pool.base + (static_cast<size_t>(slot) << pool.unit_shift);
}

static inline int64_t live_chunks(const ChunkedPool& pool, uint32_t slot) {
  return pool.live[slot >> pool.extent_shift];
}

// Which chunks live. No record ends before the eight bytes that are read.
static inline uint64_t record_mask(const ChunkedPool& pool, const char* record) {
  uint64_t mask;
  std::memcpy(&mask, record + 2, 8);
  return mask & pool.all_chunks;
}

static inline int64_t dtype_bytes(int64_t dtype) { return dtype == 0 ? 4 : 2; }

// The weight of one column, or null if the row or its chunk is not there.
static inline const char* record_column(const ChunkedPool& pool, uint32_t slot, int64_t column) {
  if (!is_record(slot)) return nullptr;
  const char* record = record_at(pool, slot);
  const uint64_t mask = record_mask(pool, record);
  const int64_t chunk = column / pool.width;
  if (!(mask >> chunk & 1)) return nullptr;
  const int64_t before = __builtin_popcountll(mask & ((uint64_t{1} << chunk) - 1));
  const int64_t at = before * pool.width + column % pool.width;
  return record + pool.layouts[live_chunks(pool, slot)].weights + at * dtype_bytes(pool.dtype);
}

}  // namespace megalith
