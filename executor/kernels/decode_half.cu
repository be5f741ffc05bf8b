// Stored weights as bf16, before products of many rows: decoded as on the host and rounded as linear_decoded.cu rounds them, once
// for all rows. From capability 8.0 on.
//
// in: `elements` numbers as stored, whole blocks and a multiple of eight of them; out: `[elements]`. A thread decodes eight and
// stores them together; grid and block of one dimension, any.
#include "decoded_tile.cuh"

struct DecodeHalfArgs {
    const uint8_t* in;
    uint16_t* out;  // at a multiple of 16 bytes
    int64_t elements;
    uint32_t storage;
    uint32_t padding;
};

template <class Type>
__device__ inline void decode_half(const DecodeHalfArgs& args) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * GROUP;
    int64_t element = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * GROUP;
    for (; element < args.elements; element += step) {
        float all[GROUP];
        eight_numbers<Type>(args.storage, args.in, element, all);
        *reinterpret_cast<uint4*>(args.out + element) = bf16_of_floats(all);
    }
}

#if !defined(__CUDACC_RTC__) || __CUDA_ARCH__ >= 800
#define DECODE_HALF(name, Type)                                                \
    extern "C" __global__ void decode_half_##name(DecodeHalfArgs args) {       \
        decode_half<Type>(args);                                               \
    }
EACH_QUANTISED(DECODE_HALF)
#undef DECODE_HALF
#endif
