// Ids of tables whose rows are cut, shared out among the workers that hold the parts.
//
// A family is a feature with a cut of its table's rows; each of its parts belongs to a stream or to nobody, and
// a stream to one family alone, so families are shared out side by side and no thread waits for another. Ids of
// a stream keep their order. Three passes: which part, how many of each bag, and then every id to its place.
#include <cstring>
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
void find_parts(const Id* ids, int64_t count, const int64_t* bounds, int64_t num_parts, int32_t* parts) {
  if (num_parts <= kFew) {
    std::memset(parts, 0, static_cast<size_t>(count) * sizeof(int32_t));
    for (int64_t part = 1; part < num_parts; ++part) {
      // The row before it: the bound itself may be one more than an id can say.
      const Id before = static_cast<Id>(bounds[part] - 1);
      for (int64_t i = 0; i < count; ++i) parts[i] += ids[i] > before;
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
    parts[i] = static_cast<int32_t>(base - bounds);
  }
}

template <class Id>
void share(const Id* values, const float* weights, const int64_t* offsets, int64_t batch, const Family* families,
           int64_t num_families, const int64_t* bounds, const int64_t* streams, int64_t num_streams,
           int32_t* lengths, int64_t* held, Id* out, float* out_weights) {
  std::vector<int64_t> starts(static_cast<size_t>(num_families) + 1, 0);
  const auto values_of = [&](const Family& family) { return offsets + family.feature * batch; };
  for (int64_t f = 0; f < num_families; ++f) {
    const int64_t* edges = values_of(families[f]);
    starts[f + 1] = starts[f] + edges[batch] - edges[0];
  }
  std::vector<int32_t> parts(static_cast<size_t>(starts[num_families]));
  std::memset(lengths, 0, static_cast<size_t>(num_streams * batch) * sizeof(int32_t));
  std::memset(held, 0, static_cast<size_t>(num_streams) * sizeof(int64_t));

  megalith::for_each_task(num_families, [&](int64_t f) {
    const Family& family = families[f];
    const int64_t* edges = values_of(family);
    const int64_t* of_part = streams + family.first_part;
    int32_t* found = parts.data() + starts[f];
    find_parts(values + edges[0], edges[batch] - edges[0], bounds + family.first_part, family.num_parts, found);
    std::vector<int64_t> counts(static_cast<size_t>(family.num_parts), 0);
    for (int64_t sample = 0; sample < batch; ++sample) {
      for (int64_t i = edges[sample] - edges[0]; i < edges[sample + 1] - edges[0]; ++i) {
        const int64_t stream = of_part[found[i]];
        ++counts[found[i]];
        if (stream >= 0) ++lengths[stream * batch + sample];
      }
    }
    for (int64_t part = 0; part < family.num_parts; ++part) {
      if (of_part[part] >= 0) held[of_part[part]] += counts[part];
    }
  });

  std::vector<int64_t> places(static_cast<size_t>(num_streams) + 1, 0);
  for (int64_t stream = 0; stream < num_streams; ++stream) places[stream + 1] = places[stream] + held[stream];

  megalith::for_each_task(num_families, [&](int64_t f) {
    const Family& family = families[f];
    const int64_t begin = values_of(family)[0], count = starts[f + 1] - starts[f];
    const int64_t* of_part = streams + family.first_part;
    const int64_t* first_rows = bounds + family.first_part;
    const int32_t* found = parts.data() + starts[f];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t stream = of_part[found[i]];
      if (stream < 0) continue;
      const int64_t place = places[stream]++;
      out[place] = static_cast<Id>(values[begin + i] - first_rows[found[i]]);
      if (weights) out_weights[place] = weights[begin + i];
    }
  });
}

}  // namespace

// `families` are triples of feature, first part and number of parts; `bounds` the first row of every part and
// `streams` who takes it, -1 for nobody. `lengths` is [num_streams, batch], `held` the ids of each stream; they
// lie one after the other in `out`, each counted from the first row of its part.
MG_EXPORT void mg_share_rows(const void* values, int32_t index_bytes, const float* weights, const int64_t* offsets,
                             int64_t batch, const int64_t* families, int64_t num_families, const int64_t* bounds,
                             const int64_t* streams, int64_t num_streams, int32_t* lengths, int64_t* held, void* out,
                             float* out_weights) {
  const Family* some = reinterpret_cast<const Family*>(families);
  if (index_bytes == 4) {
    share(static_cast<const int32_t*>(values), weights, offsets, batch, some, num_families, bounds, streams,
          num_streams, lengths, held, static_cast<int32_t*>(out), out_weights);
  } else {
    share(static_cast<const int64_t*>(values), weights, offsets, batch, some, num_families, bounds, streams,
          num_streams, lengths, held, static_cast<int64_t*>(out), out_weights);
  }
}
