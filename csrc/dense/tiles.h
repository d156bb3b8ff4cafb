// How a product is cut: tiles of a few samples by a few panels, whose sums stay in registers.
#pragma once

#include <cstdint>

#include "dense/kernels.h"
#include "simd/scalar.h"

namespace megalith {
inline namespace MG_VARIANT {

// Runs Tile::run<rows, panels>(first row, first panel) over all rows and panels: tiles of nearly equal heights of at
// most Tile::kMaxRows, where few samples share panels in fours and many in Tile::kPanels.
template <class Tile, int Rows, int Panels>
inline void run_tile(const Tile& tile, int64_t rows, int64_t row, int64_t panel) {
  if (rows == Rows) {
    tile.template run<Rows, Panels>(row, panel);
  } else if constexpr (Rows > 1) {
    run_tile<Tile, Rows - 1, Panels>(tile, rows, row, panel);
  }
}

template <class Tile, int MaxRows, int Panels>
inline void run_tiles(const Tile& tile, int64_t rows, int64_t height, int64_t taller, int64_t first, int64_t last) {
  int64_t panel = first;
  for (; panel + Panels <= last; panel += Panels) {
    int64_t row = 0;
    for (int64_t number = 0; row < rows; ++number) {
      const int64_t here = height + (number < taller ? 1 : 0);
      run_tile<Tile, MaxRows, Panels>(tile, here, row, panel);
      row += here;
    }
  }
  if constexpr (Panels > 1) {
    if (panel < last) run_tiles<Tile, MaxRows, Panels / 2>(tile, rows, height, taller, panel, last);
  }
}

template <class Tile>
inline void for_each_tile(const Tile& tile, int64_t rows, int64_t first, int64_t last) {
  if (rows == 0) return;
  const int64_t count = (rows + Tile::kMaxRows - 1) / Tile::kMaxRows;
  const int64_t height = rows / count, taller = rows % count;
  if (height + (taller ? 1 : 0) <= Tile::kFewRows) {
    run_tiles<Tile, Tile::kFewRows, Tile::kPanels * 2>(tile, rows, height, taller, first, last);
  } else {
    run_tiles<Tile, Tile::kMaxRows, Tile::kPanels>(tile, rows, height, taller, first, last);
  }
}

}  // namespace MG_VARIANT
}  // namespace megalith
