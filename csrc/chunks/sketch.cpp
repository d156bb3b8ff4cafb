#include "chunks/sketch.h"

#include <algorithm>
#include <vector>

#include "abi.h"

namespace megalith {
namespace {

SketchEntry* find_entry(const SketchBucket& bucket, uint32_t row) {
  for (SketchEntry* entry = bucket.begin(); entry < bucket.end() && entry->utility > 0; ++entry) {
    if (entry->row == row) return entry;
  }
  return nullptr;
}

// Takes an entry out; those behind it move up.
void erase_entry(const SketchBucket& bucket, SketchEntry* entry) {
  std::copy(entry + 1, bucket.end(), entry);
  bucket.end()[-1] = {0, 0.0f};
}

void increase(SketchEntry& entry, float utility) {
  const float sum = entry.utility + utility;
  entry.utility = is_utility(sum) ? sum : entry.utility;
}

}  // namespace

float sketch_utility(const SketchBucket& bucket, uint32_t row) {
  const SketchEntry* entry = find_entry(bucket, row);
  return entry ? entry->utility : 0.0f;
}

bool sketch_increase(const SketchBucket& bucket, uint32_t row, float utility) {
  SketchEntry* entry = find_entry(bucket, row);
  if (entry == nullptr) return false;
  if (is_utility(utility)) increase(*entry, utility);
  return true;
}

void sketch_insert(const SketchBucket& bucket, uint32_t row, float utility) {
  if (!is_utility(utility) || sketch_increase(bucket, row, utility)) return;
  SketchEntry* last = bucket.end() - 1;
  if (last->utility > 0) {
    SketchEntry* smallest = bucket.begin();
    for (SketchEntry* entry = smallest + 1; entry <= last; ++entry) {
      if (entry->utility <= smallest->utility) smallest = entry;
    }
    const bool is_larger = utility > smallest->utility ||
                           (utility == smallest->utility && bucket.order_of(row) < bucket.order_of(smallest->row));
    if (!is_larger) return;
    erase_entry(bucket, smallest);
  }
  SketchEntry* at = last;
  while (at > bucket.begin() && (at[-1].utility == 0 || bucket.order_of(at[-1].row) > bucket.order_of(row))) {
    *at = at[-1];
    --at;
  }
  *at = {row, utility};
}

void sketch_remove(const SketchBucket& bucket, uint32_t row) {
  if (SketchEntry* entry = find_entry(bucket, row)) erase_entry(bucket, entry);
}

}  // namespace megalith

using megalith::SketchEntry;
using megalith::SketchTable;

// `absent` are (table, id). Rows that have an entry are served before one of them might lose it to another.
MG_EXPORT int32_t mg_sketch_add(const void* tables, int64_t num_tables, const int64_t* absent, const float* norms,
                                float weight, int64_t count) {
  return megalith::guarded("add to the candidates of chunked rows", [&] {
    const auto* described = static_cast<const SketchTable*>(tables);
    struct Addition {
      megalith::SketchBucket bucket;
      uint32_t row;
      float utility;
    };
    std::vector<Addition> given(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t table = absent[2 * i];
      if (table < 0 || table >= num_tables) throw std::out_of_range("there is no such table");
      const int64_t row = described[table].row_of(absent[2 * i + 1]);
      given[static_cast<size_t>(i)] = {described[table].bucket_of(row), static_cast<uint32_t>(row), norms[i] * weight};
    }
    // Those that have no entry yet move to the front.
    constexpr size_t kAhead = 16;
    size_t others = 0;
    for (size_t i = 0; i < given.size(); ++i) {
      if (i + kAhead < given.size()) __builtin_prefetch(given[i + kAhead].bucket.first, 1);
      const Addition one = given[i];
      if (!megalith::sketch_increase(one.bucket, one.row, one.utility)) given[others++] = one;
    }
    for (size_t i = 0; i < others; ++i) {
      if (i + kAhead < others) __builtin_prefetch(given[i + kAhead].bucket.first, 1);
      megalith::sketch_insert(given[i].bucket, given[i].row, given[i].utility);
    }
  });
}

MG_EXPORT int32_t mg_sketch_remove(const void* table, const int64_t* ids, int64_t count) {
  return megalith::guarded("remove candidates of chunked rows", [&] {
    const SketchTable& own = *static_cast<const SketchTable*>(table);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = own.row_of(ids[i]);
      megalith::sketch_remove(own.bucket_of(row), static_cast<uint32_t>(row));
    }
  });
}

// Entries that become 0 are gone.
MG_EXPORT void mg_sketch_scale(const void* table, float factor) noexcept {
  const SketchTable& own = *static_cast<const SketchTable*>(table);
  for (int64_t b = 0; b < own.num_buckets(); ++b) {
    const megalith::SketchBucket bucket = own.bucket(b);
    SketchEntry* kept = bucket.begin();
    for (const SketchEntry& entry : bucket) {
      const SketchEntry scaled = {entry.row, entry.utility * factor};
      if (megalith::is_utility(scaled.utility)) *kept++ = scaled;
    }
    std::fill(kept, bucket.end(), SketchEntry{0, 0.0f});
  }
}
