// The C interface of rankings of chunks (ops/chunks/ranking.py). The pool is given with every call but the last, so that
// one that is closed is never used.
#include <cstring>

#include "abi.h"
#include "chunks/locked_chunks.h"
#include "chunks/ranking.h"

using megalith::LockedChunks;
using megalith::Ranking;

// `sketch` has a row and `exempt` a byte for each table of the pool, `factors` a number for each chunk. `outlines`, if
// given, is a second pool; callers see to it that nobody else uses it during a call.
MG_EXPORT int32_t mg_ranking_create(void* pool, void* outlines, const void* sketch, const uint8_t* exempt, const float* settings,
                                    const float* factors, void** out) {
  return megalith::guarded("make a ranking of chunks", [&] {
    const LockedChunks held(pool);
    const size_t tables = held->tables().size();
    const auto* candidates = static_cast<const megalith::SketchTable*>(sketch);
    const auto chunks = static_cast<size_t>(held->pool().chunks);
    megalith::ChunkedRows* second = outlines ? &megalith::chunks_of(outlines) : nullptr;
    *out = new Ranking(*held, second, {candidates, candidates + tables}, {exempt, exempt + tables},
                       *reinterpret_cast<const megalith::RankingSettings*>(settings), {factors, factors + chunks});
  });
}

MG_EXPORT void mg_ranking_destroy(void* ranking) noexcept { delete static_cast<Ranking*>(ranking); }

MG_EXPORT int32_t mg_ranking_sums(void* ranking, void* pool, int64_t* out) {
  return megalith::guarded("sum the norms of chunks", [&] {
    const LockedChunks held(pool);
    static_cast<Ranking*>(ranking)->sums(out);
  });
}

// `magnitudes` are the mean norm and the power of each table; `scratch` receives the bytes that values take until they
// are forgotten.
MG_EXPORT int32_t mg_ranking_score(void* ranking, void* pool, const float* magnitudes, int64_t* sums,
                                   int64_t* scratch) {
  return megalith::guarded("score chunks", [&] {
    const LockedChunks held(pool);
    auto* own = static_cast<Ranking*>(ranking);
    own->score(reinterpret_cast<const megalith::TableMagnitudes*>(magnitudes), sums);
    *scratch = own->scratch_bytes();
  });
}

MG_EXPORT int32_t mg_ranking_histogram(void* ranking, void* pool, const float* scales, int64_t level, int64_t prefix,
                                       int64_t* out) {
  return megalith::guarded("count the bytes of chunks by score", [&] {
    const LockedChunks held(pool);
    static_cast<Ranking*>(ranking)->histogram(scales, level, static_cast<uint32_t>(prefix), out);
  });
}

MG_EXPORT int32_t mg_ranking_changes(void* ranking, void* pool, const float* scales, int64_t key, int64_t* out) {
  return megalith::guarded("count the changes of a ranking", [&] {
    const LockedChunks held(pool);
    const megalith::RankingChanges found = static_cast<Ranking*>(ranking)->changes(scales, static_cast<uint64_t>(key));
    std::memcpy(out, &found, sizeof found);
  });
}

MG_EXPORT int32_t mg_ranking_apply(void* ranking, void* pool, const float* scales, int64_t key) {
  return megalith::guarded("prune and grow chunks", [&] {
    const LockedChunks held(pool);
    static_cast<Ranking*>(ranking)->apply(scales, static_cast<uint64_t>(key));
  });
}

// Changes of the second pool by the last `apply`, four numbers each: how many, and themselves where there is room.
MG_EXPORT void mg_ranking_outline_changes(void* ranking, int64_t* count, int64_t* out) noexcept {
  const auto& changes = static_cast<Ranking*>(ranking)->outline_changes();
  *count = static_cast<int64_t>(changes.size());
  if (out) std::memcpy(out, changes.data(), changes.size() * sizeof changes[0]);
}

MG_EXPORT void mg_ranking_forget(void* ranking) noexcept { static_cast<Ranking*>(ranking)->forget(); }
