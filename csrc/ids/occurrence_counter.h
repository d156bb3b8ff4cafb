// How often ids that have no row were seen, in a given number of bytes: 6.4 bytes an id.
//
// A bucket is one cache line of 10 entries {32 bits of the id's hash, count}, the last used first. A new one pushes the
// last out, so what is forgotten is what was not seen for longest among those that share a bucket.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ids/id_hash.h"

namespace megalith {

struct alignas(64) CounterBucket {
  static constexpr int kEntries = 10;

  uint32_t tags[kEntries];  // 0: none
  uint16_t counts[kEntries];
  uint32_t unused;
};

// The buckets of one partition; the memory is the table's.
class OccurrenceCounter {
 public:
  static constexpr uint32_t kMost = 65535;

  OccurrenceCounter(CounterBucket* buckets, uint32_t num_buckets) : buckets_(buckets), num_buckets_(num_buckets) {}

  // Notes occurrences of an id; how many there were before.
  uint32_t add(uint64_t hash, uint64_t occurrences) {
    const CounterPlace place = place_of(hash);
    CounterBucket& bucket = *place.bucket;
    const int at = find(bucket, place.tag);
    const uint32_t before = at < 0 ? 0 : bucket.counts[at];
    const int moved = at < 0 ? CounterBucket::kEntries - 1 : at;
    std::memmove(bucket.tags + 1, bucket.tags, static_cast<size_t>(moved) * sizeof *bucket.tags);
    std::memmove(bucket.counts + 1, bucket.counts, static_cast<size_t>(moved) * sizeof *bucket.counts);
    bucket.tags[0] = place.tag;
    bucket.counts[0] = static_cast<uint16_t>(std::min<uint64_t>(kMost, before + occurrences));
    return before;
  }

  void forget(uint64_t hash) {
    const CounterPlace place = place_of(hash);
    CounterBucket& bucket = *place.bucket;
    const int at = find(bucket, place.tag), last = CounterBucket::kEntries - 1;
    if (at < 0) return;
    std::memmove(bucket.tags + at, bucket.tags + at + 1, static_cast<size_t>(last - at) * sizeof *bucket.tags);
    std::memmove(bucket.counts + at, bucket.counts + at + 1, static_cast<size_t>(last - at) * sizeof *bucket.counts);
    bucket.tags[last] = 0;
    bucket.counts[last] = 0;
  }

  void prefetch(uint64_t hash) const { __builtin_prefetch(place_of(hash).bucket, 1); }

 private:
  struct CounterPlace {
    CounterBucket* bucket;
    uint32_t tag;
  };

  CounterPlace place_of(uint64_t hash) const {
    const uint64_t mixed = mix64(hash + 0x9e3779b97f4a7c15ull);
    const auto tag = static_cast<uint32_t>(mixed);
    return {buckets_ + hashed_below(static_cast<uint32_t>(mixed >> 32), num_buckets_), tag == 0 ? 1 : tag};
  }
  static int find(const CounterBucket& bucket, uint32_t tag) {
    for (int at = 0; at < CounterBucket::kEntries; ++at) {
      if (bucket.tags[at] == tag) return at;
    }
    return -1;
  }

  CounterBucket* buckets_;
  uint32_t num_buckets_;
};

}  // namespace megalith
