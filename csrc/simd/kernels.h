// All kernels that are built once for each level of vector instructions, in one table.
//
// A kernel is written once over packs of sixteen lanes (pack.h) and built three times: portable, AVX2, AVX-512. The
// operators call `kernels()`, the table of the widest level that the processor has or of a narrower one that a test
// asked for. What these headers declare is seen by code of every build, so it holds plain structs and pointers only.
#pragma once

#include "chunks/kernels.h"
#include "dense/kernels.h"
#include "embedding/kernels.h"
#include "frozen/kernels.h"
#include "interaction/kernels.h"
#include "machine/kernels.h"
#include "optimizer/kernels.h"

namespace megalith {

struct Kernels {
  LookupKernels lookup;
  UpdateKernels update;
  InteractionKernels interaction;
  BandwidthKernels bandwidth;
  ChunkedKernels chunked;
  FrozenKernels frozen;
  DenseKernels dense;
};

// The table in use; chosen at the first call.
const Kernels& kernels();

// One table for each build (kernels_*.cpp).
const Kernels& portable_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();

// Products of bytes alone, for processors that have VNNI beside AVX-512 (kernels_vnni.cpp).
const ByteKernels& vnni_kernels();

}  // namespace megalith
