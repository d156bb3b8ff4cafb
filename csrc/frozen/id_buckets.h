// From listed ids to rows: buckets of one cache line, so that an id costs one access to memory.
#pragma once

#include <cstdint>

#include "frozen/format.h"
#include "mix.h"
#include "zeroed_memory.h"

namespace megalith {

class IdBuckets {
 public:
  IdBuckets() = default;
  // Of `count` ids, no two of which are the same; id n has row n.
  IdBuckets(const int64_t* ids, int64_t count)
      : num_buckets_((count * 5 + kFill - 1) / kFill + 1), memory_(num_buckets_ * static_cast<int64_t>(sizeof(IdBucket))) {
    constexpr int64_t kEarly = 16;
    for (int64_t row = 0; row < count; ++row) {
      if (row + kEarly < count) __builtin_prefetch(memory_.as<IdBucket>() + home(ids[row + kEarly]), 1);
      insert(ids[row], static_cast<uint32_t>(row));
    }
  }

  const IdBucket* buckets() const { return memory_.as<IdBucket>(); }
  int64_t num_buckets() const { return num_buckets_; }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  static constexpr int64_t kFill = 18;  // ids for every five buckets, of 25: 72%, so that one bucket is enough for most

  int64_t home(int64_t id) const {
    const auto wide = static_cast<unsigned __int128>(mix64(static_cast<uint64_t>(id)));
    return static_cast<int64_t>(static_cast<uint64_t>((wide * static_cast<uint64_t>(num_buckets_)) >> 64));
  }

  void insert(int64_t id, uint32_t row) {
    for (int64_t at = home(id);; at = at + 1 == num_buckets_ ? 0 : at + 1) {
      IdBucket& bucket = memory_.as<IdBucket>()[at];
      if (bucket.used < IdBucket::kRoom) {
        bucket.ids[bucket.used] = id;
        bucket.rows[bucket.used++] = row;
        return;
      }
      bucket.passed = 1;
    }
  }

  int64_t num_buckets_ = 0;
  ZeroedMemory memory_;
};

}  // namespace megalith
