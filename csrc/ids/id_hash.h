// Where an id belongs: its partition, and its place in the tables of that partition, all from one hash.
//
// The hash is fixed (the finaliser of splitmix64 over the id's 64 bits): an id has the same partition in every process
// and every run, so a partition can move to another rank as it is.
#pragma once

#include <cstdint>

#include "mix.h"

namespace megalith {

constexpr int64_t kIdPartitions = 64;

inline uint64_t hash_id(int64_t id) { return mix64(static_cast<uint64_t>(id)); }

// The highest 6 bits. Places within a partition come from the others.
inline int64_t id_partition(uint64_t hash) { return static_cast<int64_t>(hash >> 58); }

// A number below `count`, from 32 bits of a hash.
inline uint32_t hashed_below(uint32_t bits, uint32_t count) {
  return static_cast<uint32_t>((uint64_t{bits} * count) >> 32);
}

}  // namespace megalith
