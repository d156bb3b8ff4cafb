// The C interface of pools of chunked rows (ops/chunks/chunked_rows.py).
#include "abi.h"
#include "chunks/locked_chunks.h"
#include "stores/table_fields.h"

using megalith::ChunkedHandle;
using megalith::LockedChunks;

MG_EXPORT int32_t mg_chunks_create(const int64_t* shape, int64_t capacity, const int64_t* tables, int64_t num_tables,
                                   void** out) {
  return megalith::guarded("make a pool of chunked rows", [&] {
    std::vector<megalith::ChunkedTable> described;
    for (int64_t t = 0; t < num_tables; ++t) {
      const auto& fields = reinterpret_cast<const megalith::TableFields*>(tables)[t];
      described.push_back({fields.rows, fields.padding, fields.start()});
    }
    *out = new ChunkedHandle(std::move(described), *reinterpret_cast<const megalith::ChunkShape*>(shape), capacity);
  });
}

MG_EXPORT void mg_chunks_destroy(void* handle) noexcept { delete static_cast<ChunkedHandle*>(handle); }

// What the lookup and update kernels take for the weights of a table; valid as long as the pool.
MG_EXPORT int32_t mg_chunks_pool(void* handle, const void** pool) {
  return megalith::guarded("find a pool of chunked rows", [&] {
    *pool = &static_cast<ChunkedHandle*>(handle)->rows.pool();
  });
}

// `raw_ids`, one for each row of a table, must live as long as the pool.
MG_EXPORT int32_t mg_chunks_map_rows(void* handle, int64_t table, const int64_t* raw_ids, int64_t ranked_rows) {
  return megalith::guarded("map the rows of a table", [&] {
    const LockedChunks held(handle);
    held->map_rows(table, raw_ids, ranked_rows);
  });
}

// `new_rows` are chunks and room; the room that is left is written back.
MG_EXPORT int32_t mg_chunks_resolve(void* handle, const int64_t* lookups, int64_t num_lookups, const void* values,
                                    int32_t index_bytes, int32_t* slots, int32_t trains, int64_t* new_rows,
                                    int64_t* absent, int64_t* num_absent, int32_t parallel) {
  return megalith::guarded("find chunked rows", [&] {
    const LockedChunks held(handle);
    const auto* described = reinterpret_cast<const megalith::ChunkedLookup*>(lookups);
    auto& made = *reinterpret_cast<megalith::NewRows*>(new_rows);
    auto* listed = reinterpret_cast<megalith::AbsentRow*>(absent);
    const auto resolve = [&](const auto* ids) {
      *num_absent = held->resolve(described, num_lookups, ids, slots, trains != 0, made, listed, parallel != 0);
    };
    if (index_bytes == 4) {
      resolve(static_cast<const int32_t*>(values));
    } else {
      resolve(static_cast<const int64_t*>(values));
    }
  });
}

MG_EXPORT int32_t mg_chunks_rewrite(void* handle, int64_t table, const int64_t* ids, const uint64_t* masks,
                                    const float* utilities, const float* growth, int64_t count) {
  return megalith::guarded("change the live chunks of rows", [&] {
    const LockedChunks held(handle);
    held->rewrite(table, ids, masks, utilities, growth, count);
  });
}

MG_EXPORT int32_t mg_chunks_compact(void* handle) {
  return megalith::guarded("move chunked rows together", [&] {
    const LockedChunks held(handle);
    held->compact();
  });
}

// Those of one table, or of all where `table` is -1.
MG_EXPORT int32_t mg_chunks_scale_utilities(void* handle, int64_t table, float factor) {
  return megalith::guarded("scale the utilities of chunks", [&] {
    const LockedChunks held(handle);
    held->scale_utilities(table, factor);
  });
}

// The lowest ids of a table from `first` on, at most `count`; how many there are.
MG_EXPORT int32_t mg_chunks_ids(void* handle, int64_t table, int64_t first, int64_t count, int64_t* ids,
                                int64_t* found) {
  return megalith::guarded("list chunked rows", [&] {
    const LockedChunks held(handle);
    const std::vector<uint32_t> rows = held->ids_from(table, first, count);
    std::copy(rows.begin(), rows.end(), ids);
    *found = static_cast<int64_t>(rows.size());
  });
}

MG_EXPORT int32_t mg_chunks_masks(void* handle, int64_t table, const int64_t* ids, int64_t count, uint64_t* masks) {
  return megalith::guarded("find the live chunks of rows", [&] {
    const LockedChunks held(handle);
    held->masks(table, ids, count, masks);
  });
}

// The norms of the live chunks of rows that have a record, one row after the other.
MG_EXPORT int32_t mg_chunks_norms(void* handle, int64_t table, const int64_t* ids, int64_t count, float* norms) {
  return megalith::guarded("find the norms of chunks", [&] {
    const LockedChunks held(handle);
    held->norms(table, ids, count, norms);
  });
}

MG_EXPORT int32_t mg_chunks_read(void* handle, int64_t table, const int64_t* ids, int64_t count, uint64_t* masks,
                                 uint16_t* growth, uint16_t* utilities, void* weights, float* first_state,
                                 float* second_state) {
  return megalith::guarded("read chunked rows", [&] {
    const LockedChunks held(handle);
    held->read(table, {ids, count, masks, growth, utilities, static_cast<char*>(weights), first_state, second_state});
  });
}

MG_EXPORT int32_t mg_chunks_load(void* handle, int64_t table, const int64_t* ids, int64_t count, uint64_t* masks,
                                 uint16_t* growth, uint16_t* utilities, void* weights, float* first_state,
                                 float* second_state) {
  return megalith::guarded("load chunked rows", [&] {
    const LockedChunks held(handle);
    held->load(table, {ids, count, masks, growth, utilities, static_cast<char*>(weights), first_state, second_state});
  });
}

// Bytes by part, the generation, the bytes of a unit, then rows and the form of the index of each table, then records
// by live chunks from 1 on, and last the bytes that a row with 0, 1, ... live chunks is counted with.
MG_EXPORT int32_t mg_chunks_statistics(void* handle, int64_t* out) {
  return megalith::guarded("count chunked rows", [&] {
    const LockedChunks held(handle);
    const megalith::ChunkedBytes bytes = held->bytes();
    const megalith::ChunkedPool& pool = held->pool();
    for (const int64_t part : {bytes.weights, bytes.state, bytes.utility, bytes.index, bytes.free, bytes.bookkeeping,
                               held->generation(), int64_t{1} << pool.unit_shift}) {
      *out++ = part;
    }
    for (size_t table = 0; table < held->tables().size(); ++table) {
      *out++ = held->num_rows(static_cast<int64_t>(table));
      *out++ = static_cast<int64_t>(held->form(static_cast<int64_t>(table)));
    }
    for (int64_t live = 1; live <= pool.chunks; ++live) *out++ = held->num_records(live);
    for (int64_t live = 0; live <= pool.chunks; ++live) *out++ = held->record_bytes(live);
  });
}
