#define MG_VARIANT portable
#include "embedding_kernels.h"
#include "interaction_kernels.h"

const megalith::Kernels& megalith::portable_kernels() { return portable::kKernels; }
const megalith::InteractionKernels& megalith::portable_interaction() { return portable::kInteraction; }
