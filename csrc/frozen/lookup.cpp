// Pooled lookups over many frozen tables in one call: how the work is shared, and the ids that tables list.
//
// Bags are counted lookup by lookup and cut into pieces by their bytes, each of which may reach over many tables, so that a
// batch of a few samples is shared as well as one of thousands. A bag belongs to one piece: results do not depend on the
// number of threads. A call allocates nothing.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "abi.h"
#include "frozen/tables.h"
#include "parallel.h"
#include "simd/kernels.h"

namespace megalith {
namespace {

constexpr int64_t kMaxPieces = 256;
// Bytes, counted as below: what one thread has done before another has woken up, and what a piece is worth that begins
// with no row on its way.
constexpr double kAloneBytes = 128 << 10, kPieceBytes = 256 << 10;
constexpr int64_t kPiecesEach = 8;  // of a thread, in large batches

// As ops/frozen/lookup.py fills it, for each lookup. Of tables with several features the first has the ids.
struct FrozenDescriptor {
  int64_t rows, starts, ids;  // addresses, or 0
  int64_t same_ids_as;        // the lookup whose ids are meant, or its own number
  int64_t num_rows, row_bytes, dim, precision, header_bytes, chunk, chunk_bytes, unit;
  int64_t pooling, feature, column, has_padding, padding, unknown;
  int64_t changed, changed_rows;  // addresses, or 0
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

// How many pieces, and the share of all bytes that lies before each. Large batches are cut evenly. Of small ones every
// thread takes one large piece, and small ones are left for whoever is done first: a thread that was woken begins late, and
// each new piece costs the time that its first rows take to arrive.
struct Shares {
  Shares(double total, int64_t workers) {
    const int64_t most = std::min(workers * kPiecesEach, kMaxPieces);
    const int64_t worth = static_cast<int64_t>(total / kPieceBytes);
    if (workers <= 1 || total < kAloneBytes) {
      count = 1;
    } else if (worth >= most) {
      count = most;
    } else {
      large = std::min(workers, kMaxPieces / 2);
      count = 2 * large;
    }
  }

  double before(int64_t piece) const {
    if (large == 0) return static_cast<double>(piece) / static_cast<double>(count);
    const double one = 1.0 / static_cast<double>(large);
    if (piece <= large) return kLarge * one * static_cast<double>(piece);
    return kLarge + (1 - kLarge) * one * static_cast<double>(piece - large);
  }

  static constexpr double kLarge = 0.75;  // of all bytes, in the large pieces
  int64_t count = 1, large = 0;
};

void cut(const std::vector<FrozenSource>& lookups, const FrozenBatch& batch, int64_t workers, Pieces* pieces) {
  const int64_t num_lookups = static_cast<int64_t>(lookups.size());
  const auto value_cost = [&](const FrozenSource& one) { return static_cast<double>(one.row_bytes + 64); };
  const auto bag_cost = [](const FrozenSource& one) { return static_cast<double>(one.dim * 4 + 16); };
  double total = 0;
  for (const FrozenSource& one : lookups) {
    const int64_t base = one.feature * batch.size;
    const int64_t values = offset_of(batch, base + batch.size) - offset_of(batch, base);
    total += static_cast<double>(values) * value_cost(one) + static_cast<double>(batch.size) * bag_cost(one);
  }
  const Shares shares(total, workers);
  pieces->bounds[0] = {0, 0};
  pieces->count = 0;
  double before = 0;
  for (int64_t n = 0; n < num_lookups && pieces->count + 1 < shares.count; ++n) {
    const FrozenSource& one = lookups[static_cast<size_t>(n)];
    const int64_t base = one.feature * batch.size, begin = offset_of(batch, base);
    const double per_value = value_cost(one), per_bag = bag_cost(one);
    const auto cost = [&](int64_t bag) {
      return static_cast<double>(offset_of(batch, base + bag) - begin) * per_value + static_cast<double>(bag) * per_bag;
    };
    const double own = cost(batch.size);
    while (pieces->count + 1 < shares.count && before + own >= total * shares.before(pieces->count + 1)) {
      // The bag at whose end the piece has its share, or the one before, whichever is nearer.
      const double left = total * shares.before(pieces->count + 1) - before;
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

FrozenFault pool_tables(const FrozenTables& tables, const FrozenBatch& batch, int64_t workers) {
  const FrozenKernels& use = kernels().frozen;
  Pieces pieces;
  cut(tables.lookups, batch, std::max<int64_t>(1, std::min<int64_t>(workers, num_threads())), &pieces);
  FrozenFault faults[kMaxPieces];  // each written by its piece
  std::atomic<bool> all_fine{true};
  for_each_task(pieces.count, std::min(workers, pieces.count), [&](int64_t piece, int64_t) {
    const FrozenPlace *first = pieces.bounds + piece, *last = first + 1;
    if (!use.pool(tables.lookups.data(), batch, *first, *last, faults + piece)) all_fine = false;
  });
  for (int64_t piece = 0; piece < pieces.count && !all_fine; ++piece) {
    if (faults[piece].lookup >= 0) return faults[piece];
  }
  return {-1, -1};
}
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
            from.unknown,
            reinterpret_cast<const megalith::ChangedRows*>(from.changed),
            reinterpret_cast<const uint8_t*>(from.changed_rows)};
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
    const auto& held = *static_cast<const megalith::FrozenTables*>(tables);
    const megalith::FrozenBatch batch{values,         index_bytes, offsets, offset_bytes,
                                      sample_weights, batch_size,  out,     out_stride};
    fault[0] = fault[1] = -1;
    if (!megalith::rises(batch, batch_size * num_features, num_values)) {
      fault[0] = fault[1] = -2;
      return;
    }
    const megalith::FrozenFault found = megalith::pool_tables(held, batch, megalith::num_threads());
    fault[0] = found.lookup;
    fault[1] = found.value;
  });
}
