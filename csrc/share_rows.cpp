// Ids of tables whose rows are cut, shared out among the workers that hold the parts.
//
// A family is a feature with a cut of its table's rows; each of its parts belongs to a stream or to nobody, and
// a stream to one family alone, so families are shared out side by side and no thread waits for another. Ids of
// a stream keep their order. Three passes: which part, how many of each bag, and then every id to its place.
#include <algorithm>
#include <vector>

#include "abi.h"
#include "parallel.h"

namespace {

struct Family {
  int64_t feature, first_part, num_parts;
};

// Up to here, comparing an id with every bound is quicker than halving: it runs over vectors.
constexpr int64_t kFew = 16;

template <class Id>
void find_parts(const Id* ids, int64_t count, const int64_t* bounds, int64_t num_parts, uint16_t* parts) {
  if (num_parts <= kFew) {
    std::fill_n(parts, count, uint16_t{0});
    for (int64_t part = 1; part < num_parts; ++part) {
      // The row before it: the bound itself may be one more than an id can say.
      const Id before = static_cast<Id>(bounds[part] - 1);
      for (int64_t i = 0; i < count; ++i) parts[i] = static_cast<uint16_t>(parts[i] + (ids[i] > before));
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t* base = bounds;
    for (int64_t left = num_parts; left > 1;) {
      const int64_t half = left / 2;
      base += base[half] <= static_cast<int64_t>(ids[i]) ? half : 0;
      left -= half;
    }
    parts[i] = static_cast<uint16_t>(base - bounds);
  }
}

// Where the next id of a part goes, and what is taken from it; nobody's parts have no place.
template <class Id>
struct Cursor {
  Id* place;
  float* weight;
  Id first_row;
};

template <class Id>
void share(const Id* values, const float* weights, const int64_t* offsets, int64_t batch, const Family* families,
           int64_t num_families, const int64_t* bounds, const int64_t* streams, int64_t num_streams,
           int32_t* lengths, int64_t* held, Id* out, float* out_weights) {
  // Kept from call to call: fresh memory costs more than the work on it.
  static thread_local std::vector<uint16_t> kept;
  std::vector<int64_t> starts(static_cast<size_t>(num_families) + 1, 0);
  const auto values_of = [&](const Family& family) { return offsets + family.feature * batch; };
  for (int64_t f = 0; f < num_families; ++f) {
    const int64_t* edges = values_of(families[f]);
    starts[f + 1] = starts[f] + edges[batch] - edges[0];
  }
  if (static_cast<int64_t>(kept.size()) < starts[num_families]) kept.resize(static_cast<size_t>(starts[num_families]));
  uint16_t* parts = kept.data();
  std::fill_n(lengths, num_streams * batch, 0);
  std::fill_n(held, num_streams, int64_t{0});

  megalith::for_each_task(num_families, [&](int64_t f) {
    const Family& family = families[f];
    const int64_t* edges = values_of(family);
    const int64_t* of_part = streams + family.first_part;
    uint16_t* found = parts + starts[f];
    find_parts(values + edges[0], edges[batch] - edges[0], bounds + family.first_part, family.num_parts, found);
    // Nobody's ids are counted where nobody looks.
    std::vector<int32_t> unread(static_cast<size_t>(batch));
    std::vector<int32_t*> counts(static_cast<size_t>(family.num_parts));
    for (int64_t part = 0; part < family.num_parts; ++part) {
      counts[part] = of_part[part] < 0 ? unread.data() : lengths + of_part[part] * batch;
    }
    for (int64_t sample = 0; sample < batch; ++sample) {
      for (int64_t i = edges[sample] - edges[0]; i < edges[sample + 1] - edges[0]; ++i) ++counts[found[i]][sample];
    }
    for (int64_t part = 0; part < family.num_parts; ++part) {
      if (of_part[part] < 0) continue;
      int64_t total = 0;
      for (int64_t sample = 0; sample < batch; ++sample) total += counts[part][sample];
      held[of_part[part]] = total;
    }
  });

  std::vector<int64_t> places(static_cast<size_t>(num_streams) + 1, 0);
  for (int64_t stream = 0; stream < num_streams; ++stream) places[stream + 1] = places[stream] + held[stream];

  megalith::for_each_task(num_families, [&](int64_t f) {
    const Family& family = families[f];
    const int64_t begin = values_of(family)[0], count = starts[f + 1] - starts[f];
    const uint16_t* found = parts + starts[f];
    std::vector<Cursor<Id>> cursors(static_cast<size_t>(family.num_parts));
    for (int64_t part = 0; part < family.num_parts; ++part) {
      const int64_t stream = streams[family.first_part + part];
      if (stream < 0) continue;
      cursors[part] = {out + places[stream], out_weights ? out_weights + places[stream] : nullptr,
                       static_cast<Id>(bounds[family.first_part + part])};
    }
    for (int64_t i = 0; i < count; ++i) {
      Cursor<Id>& to = cursors[found[i]];
      if (!to.place) continue;
      *to.place++ = values[begin + i] - to.first_row;
      if (weights) *to.weight++ = weights[begin + i];
    }
  });
}

}  // namespace

// `families` are triples of feature, first part and number of parts; `bounds` the first row of every part and
// `streams` who takes it, -1 for nobody. `lengths` is [num_streams, batch], `held` the ids of each stream; they
// lie one after the other in `out`, each counted from the first row of its part.
MG_EXPORT int32_t mg_share_rows(const void* values, int32_t index_bytes, const float* weights, const int64_t* offsets,
                                int64_t batch, const int64_t* families, int64_t num_families, const int64_t* bounds,
                                const int64_t* streams, int64_t num_streams, int32_t* lengths, int64_t* held,
                                void* out, float* out_weights) {
  return megalith::guarded("share the ids of cut tables out", [&] {
    const Family* some = reinterpret_cast<const Family*>(families);
    if (index_bytes == 4) {
      share(static_cast<const int32_t*>(values), weights, offsets, batch, some, num_families, bounds, streams,
            num_streams, lengths, held, static_cast<int32_t*>(out), out_weights);
    } else {
      share(static_cast<const int64_t*>(values), weights, offsets, batch, some, num_families, bounds, streams,
            num_streams, lengths, held, static_cast<int64_t*>(out), out_weights);
    }
  });
}
