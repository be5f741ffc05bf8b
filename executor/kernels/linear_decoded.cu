// Products on tensor cores with weights decoded to f16 (decoded_tile.cuh): kernels for the types that models mostly have, and one
// for all others but f32. f16 and bf16 are here for rows of odd lengths and for capability 7.5.
#include "decoded_tile.cuh"

LINEAR_DECODED(f16, F16)
LINEAR_DECODED(bf16, BF16)
LINEAR_DECODED(f8_e4m3, F8_E4M3)
LINEAR_DECODED(f8_e5m2, F8_E5M2)
LINEAR_DECODED(q8_0, Q8_0)
LINEAR_DECODED(q4_0, Q4_0)
LINEAR_DECODED(q4_k, Q4_K)
LINEAR_DECODED(q5_k, Q5_K)
LINEAR_DECODED(q6_k, Q6_K)
LINEAR_DECODED(any, AnyStorage)
