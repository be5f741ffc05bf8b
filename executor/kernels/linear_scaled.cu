// Products on tensor cores without bf16, of capability 7.5: of activations in bf16, each row divided by a power of two of its own,
// and weights, both as f16 (decoded_tile.cuh).
#include "decoded_tile.cuh"

#if !defined(__CUDACC_RTC__) || __CUDA_ARCH__ < 800
#define LINEAR_SCALED(name, Type) LINEAR_DECODED(linear_scaled, name, Type, Operands::SCALED)
EACH_DECODED(LINEAR_SCALED)
#endif
