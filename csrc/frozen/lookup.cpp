// Pooled lookups over many frozen tables in one call: how the work is shared, and the ids that tables list.
//
// Bags are counted lookup by lookup and cut into pieces of about equal bytes, each of which may reach over many tables, so
// that a batch of one sample is shared as well as one of thousands. A bag belongs to one piece: results do not depend on
// the number of threads. A call allocates nothing.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "abi.h"
#include "frozen/id_buckets.h"
#include "parallel.h"
#include "simd/kernels.h"

namespace megalith {
namespace {

constexpr int64_t kMaxPieces = 256;
constexpr double kPieceBytes = 65536;  // what is not worth sharing out

// Tables and who looks them up; addresses of rows must stay what they are.
struct FrozenTables {
  std::vector<FrozenSource> lookups;
  std::vector<IdBuckets> ids;
};

// As ops/frozen/lookup.py fills it, for each lookup. Of tables with several features the first has the ids.
struct FrozenDescriptor {
  int64_t rows, starts, ids;  // addresses, or 0
  int64_t same_ids_as;        // the lookup whose ids are meant, or its own number
  int64_t num_rows, row_bytes, dim, precision, header_bytes, chunk, chunk_bytes, unit;
  int64_t pooling, feature, column, has_padding, padding, unknown;
};

struct Pieces {
  FrozenPlace bounds[kMaxPieces + 1];
  int64_t count = 0;
};

// Not that of the kernels, which is built for each processor.
int64_t offset_of(const FrozenBatch& batch, int64_t bag) {
  if (batch.offset_bytes == 4) return static_cast<const int32_t*>(batch.offsets)[bag];
  return static_cast<const int64_t*>(batch.offsets)[bag];
}

bool rises(const FrozenBatch& batch, int64_t num_bags, int64_t num_values) {
  if (offset_of(batch, 0) != 0 || offset_of(batch, num_bags) != num_values) return false;
  uint64_t any = 0;
  if (batch.offset_bytes == 4) {
    const int32_t* offsets = static_cast<const int32_t*>(batch.offsets);
    for (int64_t bag = 0; bag < num_bags; ++bag) {
      any |= static_cast<uint64_t>(int64_t{offsets[bag + 1]} - int64_t{offsets[bag]});
    }
  } else {
    const int64_t* offsets = static_cast<const int64_t*>(batch.offsets);
    for (int64_t bag = 0; bag < num_bags; ++bag) {
      any |= static_cast<uint64_t>(offsets[bag + 1]) - static_cast<uint64_t>(offsets[bag]);
    }
  }
  return any >> 63 == 0;
}

void cut(const std::vector<FrozenSource>& lookups, const FrozenBatch& batch, Pieces* pieces) {
  const int64_t num_lookups = static_cast<int64_t>(lookups.size());
  const auto value_cost = [&](const FrozenSource& one) { return static_cast<double>(one.row_bytes + 64); };
  const auto bag_cost = [](const FrozenSource& one) { return static_cast<double>(one.dim * 4 + 16); };
  double total = 0;
  for (const FrozenSource& one : lookups) {
    const int64_t base = one.feature * batch.size;
    const int64_t values = offset_of(batch, base + batch.size) - offset_of(batch, base);
    total += static_cast<double>(values) * value_cost(one) + static_cast<double>(batch.size) * bag_cost(one);
  }
  const int64_t threads = num_threads();
  const int64_t worth = static_cast<int64_t>(total / kPieceBytes);
  int64_t wanted = worth < threads ? (total > kPieceBytes / 4 ? threads : 1) : std::min(worth, threads * 8);
  wanted = std::max<int64_t>(1, std::min(wanted, kMaxPieces));
  const double share = total / static_cast<double>(wanted);
  pieces->bounds[0] = {0, 0};
  pieces->count = 0;
  double before = 0;
  for (int64_t n = 0; n < num_lookups && pieces->count + 1 < wanted; ++n) {
    const FrozenSource& one = lookups[n];
    const int64_t base = one.feature * batch.size, begin = offset_of(batch, base);
    const double per_value = value_cost(one), per_bag = bag_cost(one);
    const auto cost = [&](int64_t bag) {
      return static_cast<double>(offset_of(batch, base + bag) - begin) * per_value + static_cast<double>(bag) * per_bag;
    };
    const double own = cost(batch.size);
    while (pieces->count + 1 < wanted && before + own >= share * static_cast<double>(pieces->count + 1)) {
      // The bag at whose end the piece has its share, or the one before, whichever is nearer.
      const double left = share * static_cast<double>(pieces->count + 1) - before;
      int64_t low = 0, high = batch.size;
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (cost(middle) < left) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      if (low > 0 && left - cost(low - 1) < cost(low) - left) --low;
      pieces->bounds[++pieces->count] = low == batch.size ? FrozenPlace{n + 1, 0} : FrozenPlace{n, low};
    }
    before += own;
  }
  pieces->bounds[++pieces->count] = {num_lookups, 0};
}

}  // namespace
}  // namespace megalith

MG_EXPORT int32_t mg_frozen_create(const int64_t* descriptors, int64_t num_lookups, void** tables) {
  return megalith::guarded("read a frozen model", [&] {
    const auto* given = reinterpret_cast<const megalith::FrozenDescriptor*>(descriptors);
    auto made = std::make_unique<megalith::FrozenTables>();
    made->lookups.resize(static_cast<size_t>(num_lookups));
    made->ids.resize(static_cast<size_t>(num_lookups));
    for (int64_t n = 0; n < num_lookups; ++n) {
      const megalith::FrozenDescriptor& from = given[n];
      megalith::FrozenSource& to = made->lookups[static_cast<size_t>(n)];
      to = {reinterpret_cast<const uint8_t*>(from.rows),
            reinterpret_cast<const uint32_t*>(from.starts),
            nullptr,
            0,
            from.num_rows,
            from.row_bytes,
            from.dim,
            from.precision,
            from.header_bytes,
            from.chunk,
            from.chunk_bytes,
            from.unit,
            from.pooling,
            from.feature,
            from.column,
            from.has_padding,
            from.padding,
            from.unknown};
      if (from.ids == 0) continue;
      megalith::IdBuckets& own = made->ids[static_cast<size_t>(from.same_ids_as)];
      if (from.same_ids_as == n) own = megalith::IdBuckets(reinterpret_cast<const int64_t*>(from.ids), from.num_rows);
      to.buckets = own.buckets();
      to.num_buckets = own.num_buckets();
    }
    *tables = made.release();
  });
}

MG_EXPORT void mg_frozen_destroy(void* tables) noexcept { delete static_cast<megalith::FrozenTables*>(tables); }

// Bytes of the ids that tables list, as they are held here.
MG_EXPORT int64_t mg_frozen_id_bytes(void* tables) noexcept {
  int64_t bytes = 0;
  for (const megalith::IdBuckets& ids : static_cast<megalith::FrozenTables*>(tables)->ids) bytes += ids.bytes();
  return bytes;
}

// Pooled vectors of all lookups. `fault` is {-1, -1}; {-2, -2} where offsets do not rise from 0 to the number of values; or
// the first lookup with an id that its table does not have, and the position of that id.
MG_EXPORT int32_t mg_frozen_lookup(void* tables, const void* values, int32_t index_bytes, int64_t num_values,
                                   const void* offsets, int32_t offset_bytes, int64_t batch_size, int64_t num_features,
                                   const float* sample_weights, float* out, int64_t out_stride, int64_t* fault) {
  return megalith::guarded("look frozen rows up", [&] {
    const auto& lookups = static_cast<const megalith::FrozenTables*>(tables)->lookups;
    const megalith::FrozenBatch batch{values,         index_bytes, offsets, offset_bytes,
                                      sample_weights, batch_size,  out,     out_stride};
    fault[0] = fault[1] = -1;
    if (!megalith::rises(batch, batch_size * num_features, num_values)) {
      fault[0] = fault[1] = -2;
      return;
    }
    const megalith::FrozenKernels& use = megalith::kernels().frozen;
    megalith::Pieces pieces;
    megalith::cut(lookups, batch, &pieces);
    megalith::FrozenFault faults[megalith::kMaxPieces];  // each written by its piece
    std::atomic<bool> all_fine{true};
    megalith::for_each_task(pieces.count, [&](int64_t piece) {
      const megalith::FrozenPlace *first = pieces.bounds + piece, *last = first + 1;
      if (!use.pool(lookups.data(), batch, *first, *last, faults + piece)) all_fine = false;
    });
    if (all_fine) return;
    for (int64_t piece = 0; piece < pieces.count; ++piece) {
      if (faults[piece].lookup < 0) continue;
      fault[0] = faults[piece].lookup;
      fault[1] = faults[piece].value;
      return;
    }
  });
}
