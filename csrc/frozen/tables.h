// Frozen tables and who looks them up: what a handle of mg_frozen_create holds.
#pragma once

#include <cstdint>
#include <vector>

#include "frozen/format.h"
#include "frozen/id_buckets.h"

namespace megalith {

// Addresses of rows must stay what they are.
struct FrozenTables {
  std::vector<FrozenSource> lookups;
  std::vector<IdBuckets> ids;
};

// Pools all bags of a batch whose offsets rise, by up to `workers` threads. Returns the first lookup with an id that its
// table does not have, and the position of that id. Allocates nothing.
FrozenFault pool_tables(const FrozenTables& tables, const FrozenBatch& batch, int64_t workers);

}  // namespace megalith
