// Weights whose storage type is known only when a kernel runs: types that few models have share one kernel, as each one of their
// own would be compiled on every start.
#pragma once

#include "decode.cuh"

// In the order of protocol::StorageType.
#define STORAGE_KIND(name, Type) STORAGE_##name,
enum StorageKind : uint32_t { EACH_STORAGE(STORAGE_KIND) };
#undef STORAGE_KIND

// Stands for a type in a template.
struct AnyStorage {};

// What EACH_STORAGE has but the plain types.
#define EACH_SMALL_STORAGE(M)                                                                                             \
    M(f8_e4m3, F8_E4M3) M(f8_e5m2, F8_E5M2)                                                                               \
    M(q8_0, Q8_0) M(q4_0, Q4_0) M(q4_1, Q4_1) M(q5_0, Q5_0) M(q5_1, Q5_1)                                                 \
    M(q2_k, Q2_K) M(q3_k, Q3_K) M(q4_k, Q4_K) M(q5_k, Q5_K) M(q6_k, Q6_K)                                                 \
    M(iq1_s, IQ1_S) M(iq2_xxs, IQ2_XXS) M(iq2_xs, IQ2_XS) M(iq2_s, IQ2_S) M(iq3_xxs, IQ3_XXS) M(iq3_s, IQ3_S)             \
    M(iq4_nl, IQ4_NL) M(iq4_xs, IQ4_XS)

struct Eight {
    float at[GROUP];
};

// Eight numbers of any type but the plain ones, as its own `decode` gives them. Not inlined: there is one copy in a module.
static __device__ __noinline__ Eight any_eight(uint32_t storage, const uint8_t* row, int64_t element) {
    Eight all = {};
    switch (storage) {
#define DECODE(name, Type) \
    case STORAGE_##name: Type::decode(row, element, all.at); break;
        EACH_SMALL_STORAGE(DECODE)
#undef DECODE
        default: break;
    }
    return all;
}

// Eight numbers from a multiple of eight on; `storage` counts for AnyStorage alone.
template <class Type>
__device__ inline void eight_numbers(uint32_t storage, const uint8_t* row, int64_t element, float (&out)[GROUP]) {
    Type::decode(row, element, out);
}

template <>
__device__ inline void eight_numbers<AnyStorage>(uint32_t storage, const uint8_t* row, int64_t element, float (&out)[GROUP]) {
    const Eight all = any_eight(storage, row, element);
#pragma unroll
    for (int i = 0; i < GROUP; i++) out[i] = all.at[i];
}

// One number.
template <class Type>
__device__ inline float one_number(uint32_t storage, const uint8_t* row, int64_t element) {
    return Type::at(row, element);
}

template <>
__device__ inline float one_number<AnyStorage>(uint32_t storage, const uint8_t* row, int64_t element) {
    if (storage == STORAGE_f8_e4m3) return F8_E4M3::at(row, element);
    if (storage == STORAGE_f8_e5m2) return F8_E5M2::at(row, element);
    const Eight all = any_eight(storage, row, element & ~static_cast<int64_t>(GROUP - 1));
    float value = all.at[0];
#pragma unroll
    for (int i = 1; i < GROUP; i++) value = (element & (GROUP - 1)) == i ? all.at[i] : value;
    return value;
}
