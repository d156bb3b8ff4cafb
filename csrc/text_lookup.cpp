// Keys to ids: through a vocabulary, or by hashing.
#include <new>

#include "abi.h"
#include "key_table.h"

namespace {

using megalith::KeyTable;

constexpr int kAhead = 16;
constexpr int32_t kMissingId = 0, kUnknownId = 1, kFirstId = 2;

}  // namespace

// A table for `entries` keys, in memory or (`file` not null) in a mapped file. Null and `*error` on failure.
MG_EXPORT void* mg_lookup_create(int64_t entries, const char* file, int64_t* error) {
  try {
    return new KeyTable(KeyTable::slots_for(entries), file);
  } catch (const std::system_error& failure) {
    *error = failure.code().value();
  } catch (const std::bad_alloc&) {
    *error = ENOMEM;
  }
  return nullptr;
}

MG_EXPORT int64_t mg_lookup_bytes(int64_t entries) {
  return KeyTable::slots_for(entries) * static_cast<int64_t>(sizeof(megalith::Entry));
}

// Gives the keys the ids first_id, first_id + 1, ...
MG_EXPORT void mg_lookup_insert(void* lookup, const uint64_t* keys, int64_t count, int64_t first_id) {
  KeyTable& table = *static_cast<KeyTable*>(lookup);
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) table.prefetch(keys[i + kAhead]);
    if (keys[i] != 0) table.at(keys[i]).value = static_cast<uint64_t>(first_id + i);
  }
}

MG_EXPORT void mg_lookup_map(void* lookup, const uint64_t* keys, int64_t count, int32_t* ids) {
  const KeyTable& table = *static_cast<KeyTable*>(lookup);
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) table.prefetch(keys[i + kAhead]);
    ids[i] = keys[i] == 0 ? kMissingId : static_cast<int32_t>(table.find(keys[i], kUnknownId));
  }
}

MG_EXPORT void mg_lookup_destroy(void* lookup) { delete static_cast<KeyTable*>(lookup); }

// No vocabulary: the id is 2 + mix64(key) mod num_buckets.
MG_EXPORT void mg_hash_keys(const uint64_t* keys, int64_t count, int64_t num_buckets, int32_t* ids) {
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bucket = megalith::mix64(keys[i]) % static_cast<uint64_t>(num_buckets);
    ids[i] = keys[i] == 0 ? kMissingId : static_cast<int32_t>(bucket) + kFirstId;
  }
}
