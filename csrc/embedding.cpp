// The forward pass over many tables: how the work is cut, and which kernels do it.
//
// The batch is cut into pieces of about equal bytes, whatever the tables and bags are like; a very long bag is cut
// by columns. Every output is written by one piece, so the result does not depend on the number of threads.
#include "embedding.h"

#include <algorithm>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "abi.h"
#include "parallel.h"

namespace megalith {

const Kernels& kernels(int32_t level) {
#if defined(__x86_64__)
  if (level >= 2) return avx512_kernels();
  if (level == 1) return avx2_kernels();
#endif
  (void)level;
  return portable_kernels();
}

namespace {

struct Piece {
  int64_t slot;
  Range bags;
  Range columns;
};

Lookups of_slot(const Lookups& lookups, const Slot& slot, int64_t batch) {
  Lookups own = lookups;
  own.offsets += slot.feature * batch;
  return own;
}

std::vector<Piece> cut_forward(const Slot* slots, int64_t num_slots, const Lookups& lookups, int64_t batch) {
  const int64_t threads = num_threads();
  double total = 0;
  const auto cost = [](int64_t values, int64_t bags, int64_t width) {
    return static_cast<double>(values + bags) * static_cast<double>(width + 16);
  };
  for (int64_t s = 0; s < num_slots; ++s) {
    const int64_t* offsets = lookups.offsets + slots[s].feature * batch;
    total += cost(offsets[batch] - offsets[0], batch, slots[s].dim);
  }
  const double target = std::max(total / static_cast<double>(threads * 16), 65536.0);
  std::vector<Piece> pieces;
  for (int64_t s = 0; s < num_slots; ++s) {
    const Slot& slot = slots[s];
    const int64_t* offsets = lookups.offsets + slot.feature * batch;
    const int64_t values = offsets[batch] - offsets[0];
    const int64_t parts = std::max<int64_t>(1, static_cast<int64_t>(cost(values, batch, slot.dim) / target));
    if (slot.pooling == kNone) {
      for (int64_t part = 0; part < parts; ++part) {
        pieces.push_back({s, {values * part / parts, values * (part + 1) / parts}, {0, slot.dim}});
      }
      continue;
    }
    int64_t first = 0;
    for (int64_t part = 1; part <= parts && first < batch; ++part) {
      const int64_t* bound = std::lower_bound(offsets + first + 1, offsets + batch, offsets[0] + values * part / parts);
      const int64_t last = part == parts ? batch : bound - offsets;
      // A piece far above its share holds one very long bag: cut it by columns instead.
      const double size = cost(offsets[last] - offsets[first], last - first, slot.dim);
      const int64_t wide = (slot.dim + 15) / 16;
      const int64_t cuts = size > 2 * target ? std::min<int64_t>(wide, static_cast<int64_t>(size / target)) : 1;
      for (int64_t cut = 0; cut < cuts; ++cut) {
        const int64_t from = wide * cut / cuts * 16, to = std::min(wide * (cut + 1) / cuts * 16, slot.dim);
        pieces.push_back({s, {first, last}, {from, to}});
      }
      first = last;
    }
  }
  return pieces;
}

}  // namespace
}  // namespace megalith

using megalith::Slot;

MG_EXPORT int32_t mg_embedding_forward(const int64_t* slots, int64_t num_slots, void* const* weights,
                                       const void* values, int32_t index_bytes, const int64_t* offsets,
                                       const float* sample_weights, int64_t batch, void* out, int64_t out_dtype,
                                       int64_t out_stride, void* const* sequences, int32_t simd_level) {
  return megalith::guarded("look embedding rows up", [&] {
    const Slot* described = reinterpret_cast<const Slot*>(slots);
    const megalith::Lookups lookups{values, index_bytes, offsets, sample_weights};
    const megalith::Kernels& use = megalith::kernels(simd_level);
    const auto pieces = megalith::cut_forward(described, num_slots, lookups, batch);
    const int64_t out_bytes = out_dtype == megalith::kFloat32 ? 4 : 2;
    megalith::for_each_task(static_cast<int64_t>(pieces.size()), [&](int64_t task) {
      const megalith::Piece& piece = pieces[static_cast<size_t>(task)];
      const Slot& slot = described[piece.slot];
      const megalith::Lookups own = megalith::of_slot(lookups, slot, batch);
      if (slot.pooling == megalith::kNone) {
        void* to = sequences[slot.sequence];
        use.copy(slot, weights[slot.table], own, piece.bags.first, piece.bags.last, to, out_dtype);
      } else {
        char* to = static_cast<char*>(out) + slot.column * out_bytes;
        use.pool(slot, weights[slot.table], own, piece.bags, piece.columns, to, out_dtype, out_stride);
      }
    });
  });
}

MG_EXPORT int32_t mg_sample_weight_gradient(const int64_t* slots, int64_t num_slots, void* const* weights,
                                            const void* values, int32_t index_bytes, const int64_t* offsets,
                                            int64_t batch, const float* gradient, int64_t stride, float* out,
                                            int32_t simd_level) {
  return megalith::guarded("compute the gradient of sample weights", [&] {
    const Slot* described = reinterpret_cast<const Slot*>(slots);
    const megalith::Lookups lookups{values, index_bytes, offsets, nullptr};
    const megalith::Kernels& use = megalith::kernels(simd_level);
    for (int64_t s = 0; s < num_slots; ++s) {
      const Slot& slot = described[s];
      if (slot.pooling != megalith::kSum && slot.pooling != megalith::kMean) continue;
      const megalith::Lookups own = megalith::of_slot(lookups, slot, batch);
      megalith::parallel_for(0, batch, 64, [&](int64_t from, int64_t to) {
        use.weight_gradient(slot, weights[slot.table], own, from, to, gradient + slot.column, stride, out);
      });
    }
  });
}

// Asks for huge pages under a table: one translation then covers thousands of rows instead of sixteen.
MG_EXPORT void mg_advise_huge_pages(void* from, int64_t bytes) noexcept {
#if defined(__linux__)
  const uintptr_t huge = 2 << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(from) + huge - 1) / huge * huge;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(from) + static_cast<uintptr_t>(bytes)) / huge * huge;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)from;
  (void)bytes;
#endif
}
