// From ids to slots, within one partition: 5 to 5.7 bytes an id.
//
// A bucket is one cache line: 15 entries of four bytes, and how many ids passed it because it was full. An entry has the
// slot in its low bits and a tag of the id's hash in the rest, never 0. The id itself is in the slot's record, which a
// lookup reads anyway to note the use: comparing it there costs no cache line, and makes every 64-bit value a legal id.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "ids/id_hash.h"
#include "zeroed_memory.h"

namespace megalith {

class IdIndex {
 public:
  static constexpr uint32_t kNoSlot = ~uint32_t{0};

  IdIndex() = default;
  // For slots below `slots`, and room for so many of them at once.
  IdIndex(uint32_t slots, uint32_t room) : num_buckets_(buckets_for(room)), memory_(int64_t{64} * num_buckets_) {
    int bits = 1;
    while ((uint64_t{1} << bits) < slots) ++bits;
    slot_mask_ = (uint32_t{1} << bits) - 1;
    first_tag_ = slot_mask_ + 1;
  }

  // Ids that it has room for.
  uint32_t room() const { return static_cast<uint32_t>(uint64_t{num_buckets_} * kFill / 4); }
  int64_t bytes() const { return memory_.bytes(); }

  void prefetch(uint64_t hash) const { __builtin_prefetch(buckets() + home(hash)); }

  // A slot whose record is likely to be read by `find`, or kNoSlot.
  uint32_t likely_slot(uint64_t hash) const {
    const IndexBucket& bucket = buckets()[home(hash)];
    const uint32_t found = matches(bucket, tag_of(hash));
    return found ? bucket.entries[__builtin_ctz(found)] & slot_mask_ : kNoSlot;
  }

  // The slot that has the hash's tag and for which is_it(slot) holds, or kNoSlot.
  template <class IsIt>
  uint32_t find(uint64_t hash, const IsIt& is_it) const {
    const uint32_t tag = tag_of(hash);
    uint32_t at = home(hash);
    for (uint32_t seen = 0; seen < num_buckets_; ++seen, at = next(at)) {
      const IndexBucket& bucket = buckets()[at];
      for (uint32_t found = matches(bucket, tag); found; found &= found - 1) {
        const uint32_t slot = bucket.entries[__builtin_ctz(found)] & slot_mask_;
        if (is_it(slot)) return slot;
      }
      if (bucket.passed == 0) break;
    }
    return kNoSlot;
  }

  // Of an id that is not here; no more of them than there is room for.
  void insert(uint64_t hash, uint32_t slot) {
    for (uint32_t at = home(hash);; at = next(at)) {
      IndexBucket& bucket = buckets()[at];
      const uint32_t empty = matches(bucket, 0);
      if (empty) {
        bucket.entries[__builtin_ctz(empty)] = tag_of(hash) | slot;
        return;
      }
      ++bucket.passed;
    }
  }

  // Of an id that is here.
  void erase(uint64_t hash, uint32_t slot) {
    const uint32_t entry = tag_of(hash) | slot;
    for (uint32_t at = home(hash);; at = next(at)) {
      IndexBucket& bucket = buckets()[at];
      for (uint32_t& held : bucket.entries) {
        if (held == entry) {
          held = 0;
          return;
        }
      }
      --bucket.passed;
    }
  }

 private:
  static constexpr uint32_t kFill = 51;  // quarters of an entry for each bucket: 85% of 15

  struct alignas(64) IndexBucket {
    uint32_t entries[15];
    uint32_t passed;
  };

  static uint32_t buckets_for(uint32_t room) {
    return static_cast<uint32_t>((uint64_t{room} * 4 + kFill - 1) / kFill) + (room == 0);
  }

  IndexBucket* buckets() const { return memory_.as<IndexBucket>(); }
  uint32_t home(uint64_t hash) const { return hashed_below(static_cast<uint32_t>(hash >> 26), num_buckets_); }
  uint32_t next(uint32_t at) const { return at + 1 == num_buckets_ ? 0 : at + 1; }
  uint32_t tag_of(uint64_t hash) const {
    const uint32_t tag = static_cast<uint32_t>(hash) & ~slot_mask_;
    return tag == 0 ? first_tag_ : tag;
  }

  // A bit for each entry with this tag; with tag 0 for each that is empty.
  uint32_t matches(const IndexBucket& bucket, uint32_t tag) const {
#if defined(__SSE2__)
    const __m128i mask = _mm_set1_epi32(static_cast<int>(~slot_mask_)), wanted = _mm_set1_epi32(static_cast<int>(tag));
    const auto* lines = reinterpret_cast<const __m128i*>(&bucket);
    const auto equal = [&](int line) { return _mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(lines + line), mask), wanted); };
    const __m128i low = _mm_packs_epi32(equal(0), equal(1)), high = _mm_packs_epi32(equal(2), equal(3));
    return static_cast<uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(low, high))) & 0x7fff;
#else
    uint32_t found = 0;
    for (uint32_t i = 0; i < 15; ++i) found |= uint32_t{(bucket.entries[i] & ~slot_mask_) == tag} << i;
    return found;
#endif
  }

  uint32_t num_buckets_ = 0, slot_mask_ = 0, first_tag_ = 0;
  ZeroedMemory memory_;
};

}  // namespace megalith
