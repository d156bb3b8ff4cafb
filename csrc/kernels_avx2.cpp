#define MG_VARIANT avx2
#include "embedding_kernels.h"
#include "interaction_kernels.h"

const megalith::Kernels& megalith::avx2_kernels() { return avx2::kKernels; }
const megalith::InteractionKernels& megalith::avx2_interaction() { return avx2::kInteraction; }
