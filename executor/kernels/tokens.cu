// Whole tokens copied, and the sinusoids of a time.

#include "common.cuh"

struct CopySpansArgs {
    uint8_t* out;
    const uint8_t* in;
    // Bytes of a span, of whole elements.
    int64_t span;
    // From one span to the next, in bytes.
    int64_t out_stride;
    int64_t in_stride;
};

// A span in pieces of a `Piece`, of which it is a multiple.
template <class Piece>
__device__ inline void copy_span(uint8_t* out, const uint8_t* in, int64_t span) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
    const int64_t pieces = span / static_cast<int64_t>(sizeof(Piece));
    for (int64_t at = thread; at < pieces; at += threads)
        reinterpret_cast<Piece*>(out)[at] = reinterpret_cast<const Piece*>(in)[at];
}

// Spans of a value to places of another, elements of 16 or 32 bits: joining and cutting of sequences. Grid of `[any, spans]`,
// block of one dimension.
extern "C" __global__ void copy_spans(CopySpansArgs args) {
    const uint8_t* in = args.in + blockIdx.y * args.in_stride;
    uint8_t* out = args.out + blockIdx.y * args.out_stride;
    const uint64_t places = reinterpret_cast<uint64_t>(in) | reinterpret_cast<uint64_t>(out) | static_cast<uint64_t>(args.span);
    if (places % 16 == 0) {
        copy_span<uint4>(out, in, args.span);
    } else if (places % 4 == 0) {
        copy_span<uint32_t>(out, in, args.span);
    } else {
        copy_span<uint16_t>(out, in, args.span);
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
    // Of the angles.
    float scale;
};

// [cos(scale · (t · freq))..., sin(scale · (t · freq))...] with freq = exp(exponent · j / (features / 2)). Frequencies, their
// products with times, and angles are rounded to f32, as the models were trained with; what is between is f64, as on the host.
// Grid and block of one dimension.
extern "C" __global__ void sinusoid(SinusoidArgs args) {
    const uint32_t half = args.features / 2;
    const uint32_t pair = blockIdx.x * blockDim.x + threadIdx.x;
    if (pair >= args.batch * half) return;
    const uint32_t item = pair / half;
    const uint32_t index = pair % half;
    const float exponent = __fmul_rn(args.exponent, static_cast<float>(index)) / static_cast<float>(half);
    const float frequency = static_cast<float>(exp(static_cast<double>(exponent)));
    const double angle = __fmul_rn(args.scale, __fmul_rn(args.times[item], frequency));
    float* out = args.out + static_cast<int64_t>(item) * args.features + index;
    out[0] = static_cast<float>(cos(angle));
    out[half] = static_cast<float>(sin(angle));
}
