// The forward pass over many tables: how the work is cut into tasks, and the kernels that do it.
//
// The batch is cut into pieces of about equal bytes, whatever the tables and bags are like; a very long bag is cut
// by columns. Every output is written by one piece, so the result does not depend on the number of threads.
#include <algorithm>
#include <vector>

#include "abi.h"
#include "embedding/lookup.h"
#include "parallel.h"
#include "simd/kernels.h"

namespace megalith {

namespace {

// Some bags of a lookup, or values where it does not pool, and the columns that are read of their rows.
struct ForwardTask {
  int64_t lookup;
  Range bags;
  Range columns;
};

LookupBatch of_lookup(const LookupBatch& batch, const LookupDescriptor& lookup) {
  LookupBatch own = batch;
  own.offsets += lookup.feature * batch.size;
  return own;
}

std::vector<ForwardTask> cut_forward(const LookupDescriptor* lookups, int64_t num_lookups, const LookupBatch& batch) {
  const int64_t threads = num_threads();
  double total = 0;
  const auto cost = [](int64_t values, int64_t bags, int64_t width) {
    return static_cast<double>(values + bags) * static_cast<double>(width + 16);
  };
  for (int64_t n = 0; n < num_lookups; ++n) {
    const int64_t* offsets = batch.offsets + lookups[n].feature * batch.size;
    total += cost(offsets[batch.size] - offsets[0], batch.size, lookups[n].dim);
  }
  const double target = std::max(total / static_cast<double>(threads * 16), 65536.0);
  std::vector<ForwardTask> tasks;
  for (int64_t n = 0; n < num_lookups; ++n) {
    const LookupDescriptor& lookup = lookups[n];
    const int64_t* offsets = batch.offsets + lookup.feature * batch.size;
    const int64_t values = offsets[batch.size] - offsets[0];
    const int64_t parts = std::max<int64_t>(1, static_cast<int64_t>(cost(values, batch.size, lookup.dim) / target));
    if (lookup.pooling == kNone) {
      for (int64_t part = 0; part < parts; ++part) {
        tasks.push_back({n, {values * part / parts, values * (part + 1) / parts}, {0, lookup.dim}});
      }
      continue;
    }
    int64_t first = 0;
    for (int64_t part = 1; part <= parts && first < batch.size; ++part) {
      const int64_t share_end = offsets[0] + values * part / parts;
      const int64_t* bound = std::lower_bound(offsets + first + 1, offsets + batch.size, share_end);
      const int64_t last = part == parts ? batch.size : bound - offsets;
      // A task far above its share holds one very long bag: cut it by columns instead.
      const double size = cost(offsets[last] - offsets[first], last - first, lookup.dim);
      const int64_t wide = (lookup.dim + 15) / 16;
      const int64_t cuts = size > 2 * target ? std::min<int64_t>(wide, static_cast<int64_t>(size / target)) : 1;
      for (int64_t cut = 0; cut < cuts; ++cut) {
        const int64_t from = wide * cut / cuts * 16, to = std::min(wide * (cut + 1) / cuts * 16, lookup.dim);
        tasks.push_back({n, {first, last}, {from, to}});
      }
      first = last;
    }
  }
  return tasks;
}

}  // namespace
}  // namespace megalith

using megalith::LookupDescriptor;

MG_EXPORT int32_t mg_embedding_forward(const int64_t* descriptors, int64_t num_descriptors, void* const* weights,
                                       const void* values, int32_t index_bytes, const int64_t* offsets,
                                       const float* sample_weights, int64_t batch_size, void* out, int64_t out_dtype,
                                       int64_t out_stride, void* const* sequences) {
  return megalith::guarded("look embedding rows up", [&] {
    const LookupDescriptor* lookups = reinterpret_cast<const LookupDescriptor*>(descriptors);
    const megalith::LookupBatch batch{values, index_bytes, offsets, sample_weights, batch_size};
    const megalith::LookupKernels& use = megalith::kernels().lookup;
    const megalith::ChunkedKernels& use_chunks = megalith::kernels().chunked;
    const auto tasks = megalith::cut_forward(lookups, num_descriptors, batch);
    const int64_t out_bytes = out_dtype == megalith::kFloat32 ? 4 : 2;
    megalith::for_each_task(static_cast<int64_t>(tasks.size()), [&](int64_t number) {
      const megalith::ForwardTask& task = tasks[static_cast<size_t>(number)];
      const LookupDescriptor& lookup = lookups[task.lookup];
      const megalith::LookupBatch own = megalith::of_lookup(batch, lookup);
      if (lookup.layout == megalith::kChunkedRows) {
        const auto& rows = *static_cast<const megalith::ChunkedPool*>(weights[lookup.table]);
        if (lookup.pooling == megalith::kNone) {
          use_chunks.copy(lookup, rows, own, task.bags, sequences[lookup.sequence], out_dtype);
        } else {
          char* to = static_cast<char*>(out) + lookup.column * out_bytes;
          use_chunks.pool(lookup, rows, own, task.bags, task.columns, to, out_dtype, out_stride);
        }
      } else if (lookup.pooling == megalith::kNone) {
        void* to = sequences[lookup.sequence];
        use.copy(lookup, weights[lookup.table], own, task.bags, to, out_dtype);
      } else {
        char* to = static_cast<char*>(out) + lookup.column * out_bytes;
        use.pool(lookup, weights[lookup.table], own, task.bags, task.columns, to, out_dtype, out_stride);
      }
    });
  });
}

MG_EXPORT int32_t mg_sample_weight_gradient(const int64_t* descriptors, int64_t num_descriptors, void* const* weights,
                                            const void* values, int32_t index_bytes, const int64_t* offsets,
                                            int64_t batch_size, const float* gradient, int64_t stride, float* out) {
  return megalith::guarded("compute the gradient of sample weights", [&] {
    const LookupDescriptor* lookups = reinterpret_cast<const LookupDescriptor*>(descriptors);
    const megalith::LookupBatch batch{values, index_bytes, offsets, nullptr, batch_size};
    const megalith::LookupKernels& use = megalith::kernels().lookup;
    const megalith::ChunkedKernels& use_chunks = megalith::kernels().chunked;
    for (int64_t n = 0; n < num_descriptors; ++n) {
      const LookupDescriptor& lookup = lookups[n];
      if (lookup.pooling != megalith::kSum && lookup.pooling != megalith::kMean) continue;
      const megalith::LookupBatch own = megalith::of_lookup(batch, lookup);
      megalith::parallel_for(0, batch_size, 64, [&](int64_t from, int64_t to) {
        if (lookup.layout == megalith::kChunkedRows) {
          const auto& rows = *static_cast<const megalith::ChunkedPool*>(weights[lookup.table]);
          return use_chunks.weight_gradient(lookup, rows, own, {from, to}, gradient + lookup.column, stride, out);
        }
        use.weight_gradient(lookup, weights[lookup.table], own, {from, to}, gradient + lookup.column, stride, out);
      });
    }
  });
}
