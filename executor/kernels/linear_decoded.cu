// Products on tensor cores with weights decoded to 16 bits (decoded_tile.cuh). Those of f16 are for rows of odd lengths, and for
// capability 7.5; those of bf16 operands, from 8.0 on, for all other types, of bf16 for rows of odd lengths.
#include "decoded_tile.cuh"

LINEAR_DECODED(linear_decoded, f16, F16, Operands::F16)

#if !defined(__CUDACC_RTC__) || __CUDA_ARCH__ >= 800
#define LINEAR_OF_BF16(name, Type) LINEAR_DECODED(linear_decoded, name, Type, Operands::BF16)
EACH_DECODED(LINEAR_OF_BF16)
#endif
