// The kernels of one build; included by kernels_portable.cpp, kernels_avx2.cpp and kernels_avx512.cpp alone.
//
// No container and no function template of the standard library may be instantiated here or in what is included here:
// simd/scalar.h says why.
#pragma once

// In this order: which functions GCC expands into which, and so the speed of lookups, has been seen to depend on it.
#include "machine/bandwidth_kernels.h"

#include "optimizer/update_kernels.h"

#include "optimizer/rank_kernels.h"

#include "embedding/forward_kernels.h"

#include "interaction/dot_kernels.h"

#include "chunks/lookup_kernels.h"
#include "chunks/update_kernels.h"

#include "frozen/encode_kernels.h"
#include "frozen/pool_kernels.h"

#include "dense/byte_kernels.h"
#include "dense/float_kernels.h"
#include "dense/sample_kernels.h"
#include "simd/kernels.h"

namespace megalith {
inline namespace MG_VARIANT {

constexpr Kernels kKernels{
    {pool, copy_rows, weight_gradient},
    {update_rows, visit<StepPart::kNorms>, visit<StepPart::kFinish>, add_gradients, rank_rows, list_rows, number_rows,
     split_rows},
    {interact, interact_backward},
    {read_scattered, update_scattered},
    {pool_chunked, copy_chunked, chunked_weight_gradient, update_chunked},
    {pool_frozen, encode_frozen},
    {multiply_floats, multiply_bfloats, kByteKernels, quantise, round_to_bfloat, apply, add, multiply, multiply_add,
     layer_norm, sum_columns, pair_sum},
};

}  // namespace MG_VARIANT
}  // namespace megalith
