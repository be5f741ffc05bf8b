// Whole tokens copied, and the sinusoids of a time.

#include "four.cuh"

struct CopySpansArgs {
    float* out;
    const float* in;
    // Numbers of a span.
    int64_t span;
    // From one span to the next.
    int64_t out_stride;
    int64_t in_stride;
};

// Spans of a value to places of another: joining and cutting of sequences. Grid of `[any, spans]`, block of one dimension.
extern "C" __global__ void copy_spans(CopySpansArgs args) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
    const float* in = args.in + blockIdx.y * args.in_stride;
    float* out = args.out + blockIdx.y * args.out_stride;
    if (is_aligned(in, 16) && is_aligned(out, 16) && args.span % 4 == 0) {
        for (int64_t at = thread; at < args.span / 4; at += threads)
            reinterpret_cast<float4*>(out)[at] = reinterpret_cast<const float4*>(in)[at];
    } else {
        for (int64_t at = thread; at < args.span; at += threads) out[at] = in[at];
    }
}

struct SinusoidArgs {
    // [batch, features]
    float* out;
    // [batch]
    const float* times;
    uint32_t batch;
    // Even.
    uint32_t features;
    // Minus the logarithm of the longest period over the shortest, rounded to f32.
    float exponent;
    uint32_t padding;
};

// [cos(t · freq)..., sin(t · freq)...] with freq = exp(exponent · j / (features / 2)). Frequencies and angles are rounded to f32,
// as the models were trained with; what is between is f64, as on the host. Grid and block of one dimension.
extern "C" __global__ void sinusoid(SinusoidArgs args) {
    const uint32_t half = args.features / 2;
    const uint32_t pair = blockIdx.x * blockDim.x + threadIdx.x;
    if (pair >= args.batch * half) return;
    const uint32_t item = pair / half;
    const uint32_t index = pair % half;
    const float exponent = __fmul_rn(args.exponent, static_cast<float>(index)) / static_cast<float>(half);
    const float frequency = static_cast<float>(exp(static_cast<double>(exponent)));
    const double angle = __fmul_rn(args.times[item], frequency);
    float* out = args.out + static_cast<int64_t>(item) * args.features + index;
    out[0] = static_cast<float>(cos(angle));
    out[half] = static_cast<float>(sin(angle));
}
