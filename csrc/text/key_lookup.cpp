// Keys to ids: through a vocabulary, or by hashing.
#include <stdexcept>

#include "abi.h"
#include "text/key_table.h"

namespace {

using megalith::KeyTable;

constexpr int32_t kMissingId = 0, kUnknownId = 1, kFirstId = 2;
constexpr int64_t kMostBuckets = INT32_MAX - kFirstId + int64_t{1};

}  // namespace

// A table for `entries` keys, in memory or (`file` not null) in a mapped file.
MG_EXPORT int32_t mg_lookup_create(int64_t entries, const char* file, void** lookup) {
  return megalith::guarded("hold a vocabulary", [&] { *lookup = new KeyTable(KeyTable::buckets_for(entries), file); });
}

MG_EXPORT int64_t mg_lookup_bytes(int64_t entries) noexcept {
  return KeyTable::buckets_for(entries) * static_cast<int64_t>(sizeof(megalith::KeyEntry));
}

// Gives the keys the ids first_id, first_id + 1, ...
MG_EXPORT int32_t mg_lookup_insert(void* lookup, const uint64_t* keys, int64_t count, int64_t first_id) {
  return megalith::guarded("hold a vocabulary", [&] {
    KeyTable& table = *static_cast<KeyTable*>(lookup);
    // A full table would be searched for ever.
    if (!table.has_room(count)) throw std::invalid_argument("more keys than were announced");
    for (int64_t i = 0; i < count; ++i) {
      if (i + KeyTable::kAhead < count) table.prefetch(keys[i + KeyTable::kAhead]);
      if (keys[i] != 0) table.at(keys[i]).value = static_cast<uint64_t>(first_id + i);
    }
  });
}

MG_EXPORT int32_t mg_lookup_map(void* lookup, const uint64_t* keys, int64_t count, int32_t* ids) {
  return megalith::guarded("map keys to ids", [&] {
    const KeyTable& table = *static_cast<KeyTable*>(lookup);
    for (int64_t i = 0; i < count; ++i) {
      if (i + KeyTable::kAhead < count) table.prefetch(keys[i + KeyTable::kAhead]);
      ids[i] = keys[i] == 0 ? kMissingId : static_cast<int32_t>(table.find(keys[i], kUnknownId));
    }
  });
}

MG_EXPORT void mg_lookup_destroy(void* lookup) noexcept { delete static_cast<KeyTable*>(lookup); }

// No vocabulary: the id is 2 + mix64(key) mod num_buckets.
MG_EXPORT int32_t mg_hash_keys(const uint64_t* keys, int64_t count, int64_t num_buckets, int32_t* ids) {
  return megalith::guarded("hash keys", [&] {
    if (num_buckets < 1 || num_buckets > kMostBuckets) throw std::invalid_argument("ids have 1 to 2^31 - 2 buckets");
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t bucket = megalith::mix64(keys[i]) % static_cast<uint64_t>(num_buckets);
      ids[i] = keys[i] == 0 ? kMissingId : static_cast<int32_t>(bucket) + kFirstId;
    }
  });
}

// The key of each of `count` tokens; token i is text[offsets[i] : offsets[i + 1]].
MG_EXPORT int32_t mg_token_keys(const char* text, const int64_t* offsets, int64_t count, uint64_t* keys) {
  return megalith::guarded("hash tokens", [&] {
    for (int64_t i = 0; i < count; ++i) {
      keys[i] = megalith::token_key(text + offsets[i], offsets[i + 1] - offsets[i], text + offsets[count]);
    }
  });
}
