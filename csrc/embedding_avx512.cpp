#define MG_VARIANT avx512
#include "embedding_kernels.h"

const megalith::Kernels& megalith::avx512_kernels() { return avx512::kKernels; }
