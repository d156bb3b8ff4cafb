#define MG_VARIANT avx512
#include "simd/build.h"

const megalith::Kernels& megalith::avx512_kernels() { return avx512::kKernels; }
