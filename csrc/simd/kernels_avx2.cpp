#define MG_VARIANT avx2
#include "simd/build.h"

const megalith::Kernels& megalith::avx2_kernels() { return avx2::kKernels; }
