// Whole weights as f32, as the host decodes them: `decode_q8_0` and so on.
//
// in: `elements` numbers as stored, one row; out: `[elements]`. A thread decodes eight; grid and block of one dimension, any.

#include "decode.cuh"

struct DecodeArgs {
    const uint8_t* in;
    float* out;
    int64_t elements;
    // What each number is multiplied by.
    float scale;
    uint32_t padding;
};

template <class Storage>
__device__ inline void decode_all(const DecodeArgs& args) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * GROUP;
    int64_t element = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * GROUP;
    for (; element < args.elements; element += step) {
        if (element + GROUP <= args.elements) {
            float values[GROUP];
            Storage::decode(args.in, element, values);
#pragma unroll
            for (int i = 0; i < GROUP; i++) args.out[element + i] = __fmul_rn(values[i], args.scale);
        } else {
            for (int64_t last = element; last < args.elements; last++)
                args.out[last] = __fmul_rn(Storage::at(args.in, last), args.scale);
        }
    }
}

#define DECODE(name, Storage)                                        \
    extern "C" __global__ void decode_##name(DecodeArgs args) {      \
        decode_all<Storage>(args);                                   \
    }
EACH_STORAGE(DECODE)
#undef DECODE
