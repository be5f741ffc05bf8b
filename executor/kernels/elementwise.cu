// Operations on each element of values that lie as flat runs: out may be x.
//
// out, x, y: `[elements]`. Grid and block of one dimension, any: a thread takes four numbers at a time.

#include "activation.cuh"

struct ElementwiseArgs {
    float* out;
    const float* x;
    // Not read by the activations.
    const float* y;
    int64_t elements;
};

// Values are at multiples of 16 bytes; the up to three numbers that are left belong to the first threads.
template <class Function>
__device__ inline void each_element(const ElementwiseArgs& args, Function function) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
    const float4* x = reinterpret_cast<const float4*>(args.x);
    float4* out = reinterpret_cast<float4*>(args.out);
    for (int64_t at = thread; at < args.elements / 4; at += threads) out[at] = function.four(x[at], at);
    const int64_t last = args.elements / 4 * 4 + thread;
    if (last < args.elements) args.out[last] = function.one(args.x[last], last);
}

struct Sum {
    const float* y;
    __device__ float one(float x, int64_t at) const { return x + y[at]; }
    __device__ float4 four(float4 x, int64_t at) const {
        const float4 add = reinterpret_cast<const float4*>(y)[at];
        return make_float4(x.x + add.x, x.y + add.y, x.z + add.z, x.w + add.w);
    }
};

struct Product {
    const float* y;
    __device__ float one(float x, int64_t at) const { return x * y[at]; }
    __device__ float4 four(float4 x, int64_t at) const {
        const float4 by = reinterpret_cast<const float4*>(y)[at];
        return make_float4(x.x * by.x, x.y * by.y, x.z * by.z, x.w * by.w);
    }
};

template <uint32_t KIND>
struct Activated {
    __device__ float one(float x, int64_t) const { return activated<KIND>(x); }
    __device__ float4 four(float4 x, int64_t) const {
        return make_float4(activated<KIND>(x.x), activated<KIND>(x.y), activated<KIND>(x.z), activated<KIND>(x.w));
    }
};

// x + y
extern "C" __global__ void add(ElementwiseArgs args) {
    each_element(args, Sum{args.y});
}

// x × y
extern "C" __global__ void mul(ElementwiseArgs args) {
    each_element(args, Product{args.y});
}

extern "C" __global__ void activate_silu(ElementwiseArgs args) {
    each_element(args, Activated<ACTIVATION_SILU>{});
}

extern "C" __global__ void activate_gelu_tanh(ElementwiseArgs args) {
    each_element(args, Activated<ACTIVATION_GELU_TANH>{});
}

extern "C" __global__ void activate_gelu_erf(ElementwiseArgs args) {
    each_element(args, Activated<ACTIVATION_GELU_ERF>{});
}

extern "C" __global__ void activate_quick_gelu(ElementwiseArgs args) {
    each_element(args, Activated<ACTIVATION_QUICK_GELU>{});
}
