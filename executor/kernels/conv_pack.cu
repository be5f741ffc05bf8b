// What a convolution reads beside its input, in the order in which it does.
//
// conv_pack_half: weights [out, in, taps], of a type without blocks, as f16 [chunks, taps, out_rows, CHANNELS]: a tile for each
// chunk of channels and tap. conv_pack_exact: the same as f32 [chunks, taps, CHANNELS, out_rows]. Zeros fill whole chunks and
// tiles. Grid: [out_rows × chunks × CHANNELS / 256], block: 256.
//
// conv_norm: a group normalisation's moments, scale and shift as one factor and summand a channel. Grid:
// [batch × channels / 256], block: 256.
#include "tiles.cuh"
#include "vector.cuh"

constexpr uint32_t THREADS = 256;

struct ConvPackArgs {
    StoredVector weights;
    uint8_t* target;
    uint32_t out_channels;
    uint32_t in_channels;
    uint32_t taps;
    uint32_t out_rows;  // at least out_channels
    uint32_t channels;  // of a chunk
    uint32_t chunks;
};

// The element at a tap of an output and an input channel, or zero behind the last of either.
__device__ __forceinline__ float weight_at(const ConvPackArgs& args, uint32_t out, uint32_t in, uint32_t tap) {
    if (out >= args.out_channels || in >= args.in_channels) return 0.0f;
    return vector_at(args.weights, (int64_t(out) * args.in_channels + in) * args.taps + tap);
}

// A thread packs all taps of an output and an input channel; neighbours write neighbouring channels.
extern "C" __global__ void conv_pack_half(ConvPackArgs args) {
    const uint32_t at = blockIdx.x * THREADS + threadIdx.x, padded = args.chunks * args.channels;
    const uint32_t out = at / padded, in = at % padded;
    if (out >= args.out_rows) return;
    uint16_t* target = reinterpret_cast<uint16_t*>(args.target) + in % args.channels;
    for (uint32_t tap = 0; tap < args.taps; ++tap) {
        const uint64_t row = (uint64_t(in / args.channels) * args.taps + tap) * args.out_rows + out;
        target[row * args.channels] = uint16_t(pack_f16(weight_at(args, out, in, tap), 0.0f));
    }
}

// The same, but neighbours write neighbouring outputs.
extern "C" __global__ void conv_pack_exact(ConvPackArgs args) {
    const uint32_t at = blockIdx.x * THREADS + threadIdx.x;
    const uint32_t in = at / args.out_rows, out = at % args.out_rows;
    if (in >= args.chunks * args.channels) return;
    float* target = reinterpret_cast<float*>(args.target) + out;
    for (uint32_t tap = 0; tap < args.taps; ++tap) {
        const uint64_t row = (uint64_t(in / args.channels) * args.taps + tap) * args.channels + in % args.channels;
        target[row * args.out_rows] = weight_at(args, out, in, tap);
    }
}

struct ConvNormArgs {
    const float2* moments;  // [batch, groups], mean and one over the standard deviation
    float2* target;         // [batch, channels]
    StoredVector scale;     // [channels]
    StoredVector shift;     // [channels]
    uint32_t batch;
    uint32_t channels;
    uint32_t groups;
    uint32_t unused;
};

extern "C" __global__ void conv_norm(ConvNormArgs args) {
    const uint32_t at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= args.batch * args.channels) return;
    const uint32_t image = at / args.channels, channel = at % args.channels;
    const float2 moments = args.moments[image * args.groups + channel / (args.channels / args.groups)];
    const float factor = vector_at(args.scale, channel) * moments.y;
    args.target[at] = float2{factor, fmaf(-moments.x, factor, vector_at(args.shift, channel))};
}
