// Ids of row-sharded tables, bucketized for the workers that hold the rows.
//
// A row partition is a feature with a cut of its table's rows into buckets, or, of a dynamic table, of the 64 parts that
// its ids are hashed into. Each bucket belongs to a stream or to nobody, and a stream to one partition alone, so
// partitions are tasks of their own and no thread waits for another.
// Ids of a stream keep their order. Three passes: which bucket, how many of each bag, then every id to its stream.
#include <algorithm>
#include <vector>

#include "abi.h"
#include "ids/id_hash.h"
#include "parallel.h"

namespace {

struct RowPartition {
  int64_t feature, first_bucket, num_buckets;
  int64_t by_hash;  // whether bounds are numbers of hashed parts, and ids stay as they are
};

// Up to here, comparing an id with every bound is quicker than halving: it runs over vectors.
constexpr int64_t kFew = 16;

template <class Id>
void find_buckets(const Id* ids, int64_t count, const int64_t* bounds, int64_t num_buckets, uint16_t* buckets) {
  if (num_buckets <= kFew) {
    std::fill_n(buckets, count, uint16_t{0});
    for (int64_t bucket = 1; bucket < num_buckets; ++bucket) {
      // The row before it: the bound itself may be one more than an id can say.
      const Id before = static_cast<Id>(bounds[bucket] - 1);
      for (int64_t i = 0; i < count; ++i) buckets[i] = static_cast<uint16_t>(buckets[i] + (ids[i] > before));
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t* base = bounds;
    for (int64_t left = num_buckets; left > 1;) {
      const int64_t half = left / 2;
      base += base[half] <= static_cast<int64_t>(ids[i]) ? half : 0;
      left -= half;
    }
    buckets[i] = static_cast<uint16_t>(base - bounds);
  }
}

// The same where ids are hashed: every part has one bucket.
template <class Id>
void find_hashed_buckets(const Id* ids, int64_t count, const int64_t* bounds, int64_t num_buckets, uint16_t* buckets) {
  uint16_t bucket_of[megalith::kIdPartitions];
  for (int64_t part = 0, bucket = 0; part < megalith::kIdPartitions; ++part) {
    while (bucket + 1 < num_buckets && bounds[bucket + 1] <= part) ++bucket;
    bucket_of[part] = static_cast<uint16_t>(bucket);
  }
  for (int64_t i = 0; i < count; ++i) buckets[i] = bucket_of[megalith::id_partition(megalith::hash_id(ids[i]))];
}

// Where the next id of a bucket goes, and what is taken from it; nobody's buckets have no stream.
template <class Id>
struct StreamCursor {
  Id* next;
  float* weight;
  Id first_row;
};

template <class Id>
void bucketize(const Id* values, const float* weights, const int64_t* offsets, int64_t batch,
               const RowPartition* partitions, int64_t num_partitions, const int64_t* bounds, const int64_t* streams,
               int64_t num_streams, int32_t* lengths, int64_t* held, Id* out, float* out_weights) {
  // Kept from call to call: fresh memory costs more than the work on it.
  static thread_local std::vector<uint16_t> kept;
  std::vector<int64_t> starts(static_cast<size_t>(num_partitions) + 1, 0);
  const auto values_of = [&](const RowPartition& partition) { return offsets + partition.feature * batch; };
  for (int64_t f = 0; f < num_partitions; ++f) {
    const int64_t* edges = values_of(partitions[f]);
    starts[f + 1] = starts[f] + edges[batch] - edges[0];
  }
  const size_t total_values = static_cast<size_t>(starts[num_partitions]);
  if (kept.size() < total_values) kept.resize(total_values);
  uint16_t* buckets = kept.data();
  std::fill_n(lengths, num_streams * batch, 0);
  std::fill_n(held, num_streams, int64_t{0});

  megalith::for_each_task(num_partitions, [&](int64_t f) {
    const RowPartition& partition = partitions[f];
    const int64_t* edges = values_of(partition);
    const int64_t* stream_of = streams + partition.first_bucket;
    uint16_t* bucket_of = buckets + starts[f];
    const auto find = partition.by_hash ? find_hashed_buckets<Id> : find_buckets<Id>;
    find(values + edges[0], edges[batch] - edges[0], bounds + partition.first_bucket, partition.num_buckets, bucket_of);
    // Nobody's ids are counted where nobody looks.
    std::vector<int32_t> unread(static_cast<size_t>(batch));
    std::vector<int32_t*> counts(static_cast<size_t>(partition.num_buckets));
    for (int64_t bucket = 0; bucket < partition.num_buckets; ++bucket) {
      counts[bucket] = stream_of[bucket] < 0 ? unread.data() : lengths + stream_of[bucket] * batch;
    }
    for (int64_t sample = 0; sample < batch; ++sample) {
      for (int64_t i = edges[sample] - edges[0]; i < edges[sample + 1] - edges[0]; ++i) ++counts[bucket_of[i]][sample];
    }
    for (int64_t bucket = 0; bucket < partition.num_buckets; ++bucket) {
      if (stream_of[bucket] < 0) continue;
      int64_t total = 0;
      for (int64_t sample = 0; sample < batch; ++sample) total += counts[bucket][sample];
      held[stream_of[bucket]] = total;
    }
  });

  std::vector<int64_t> stream_starts(static_cast<size_t>(num_streams) + 1, 0);
  for (int64_t stream = 0; stream < num_streams; ++stream) {
    stream_starts[stream + 1] = stream_starts[stream] + held[stream];
  }

  megalith::for_each_task(num_partitions, [&](int64_t f) {
    const RowPartition& partition = partitions[f];
    const int64_t begin = values_of(partition)[0], count = starts[f + 1] - starts[f];
    const uint16_t* bucket_of = buckets + starts[f];
    std::vector<StreamCursor<Id>> cursors(static_cast<size_t>(partition.num_buckets));
    for (int64_t bucket = 0; bucket < partition.num_buckets; ++bucket) {
      const int64_t stream = streams[partition.first_bucket + bucket];
      if (stream < 0) continue;
      cursors[bucket] = {out + stream_starts[stream], out_weights ? out_weights + stream_starts[stream] : nullptr,
                         partition.by_hash ? Id{0} : static_cast<Id>(bounds[partition.first_bucket + bucket])};
    }
    for (int64_t i = 0; i < count; ++i) {
      StreamCursor<Id>& to = cursors[bucket_of[i]];
      if (!to.next) continue;
      *to.next++ = values[begin + i] - to.first_row;
      if (weights) *to.weight++ = weights[begin + i];
    }
  });
}

}  // namespace

// `partitions` are rows of feature, first bucket, number of buckets and whether ids are hashed; `bounds` the first row, or
// hashed part, of every bucket and `streams` who takes it, -1 for nobody. `lengths` is [num_streams, batch], `held` the
// ids of each stream; they are one after the other in `out`, each counted from the first row of its bucket, or as it is
// where ids are hashed.
MG_EXPORT int32_t mg_bucketize_rows(const void* values, int32_t index_bytes, const float* weights,
                                    const int64_t* offsets, int64_t batch, const int64_t* partitions,
                                    int64_t num_partitions, const int64_t* bounds, const int64_t* streams,
                                    int64_t num_streams, int32_t* lengths, int64_t* held, void* out,
                                    float* out_weights) {
  return megalith::guarded("bucketize the ids of row-sharded tables", [&] {
    const RowPartition* described = reinterpret_cast<const RowPartition*>(partitions);
    if (index_bytes == 4) {
      bucketize(static_cast<const int32_t*>(values), weights, offsets, batch, described, num_partitions, bounds,
                streams, num_streams, lengths, held, static_cast<int32_t*>(out), out_weights);
    } else {
      bucketize(static_cast<const int64_t*>(values), weights, offsets, batch, described, num_partitions, bounds,
                streams, num_streams, lengths, held, static_cast<int64_t*>(out), out_weights);
    }
  });
}
