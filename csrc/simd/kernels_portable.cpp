#define MG_VARIANT portable
#include "simd/build.h"

const megalith::Kernels& megalith::portable_kernels() { return portable::kKernels; }
