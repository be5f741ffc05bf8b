// Convolution in f32: out = conv(norm(input), weights) + bias (+ added).
//
// See conv.cuh for a block's part. The staged input is turned, [CHANNELS, pixels], so that a thread reads its pixels under a
// tap as neighbours, and weights are [CHANNELS, OUT]. A thread has PIXELS neighbouring pixels of a row and SHARE output
// channels. Grid: [tiles of pixels × tiles of output channels], block: 256.
#include "conv.cuh"
#include "mma.cuh"

template <uint32_t KERNEL, uint32_t STRIDE, uint32_t OUT>
struct ExactConv {
    using Element = float;
    static constexpr uint32_t CHANNELS = STRIDE == 1 ? 16 : 8;
    using Input = InputTile<KERNEL, STRIDE, CHANNELS, false>;
    static constexpr uint32_t SHARE = OUT == 128 ? 8 : OUT / 16 > 0 ? OUT / 16 : 1;
    static constexpr uint32_t GROUPS = OUT / SHARE;                        // of output channels
    static constexpr uint32_t PIXELS = CONV_PIXELS * GROUPS / CONV_THREADS;
    // The distance of channels: lanes that write four channels of neighbouring pixels then use all banks.
    static constexpr uint32_t PAD = STRIDE == 1 ? 10 : 12;
    static constexpr uint32_t ROW = (Input::PIXELS + 7) / 8 * 8 - 8 + PAD;
    static_assert(ROW >= Input::PIXELS && ROW % 8 == PAD % 8, "rows hold all pixels");
    static constexpr uint32_t INPUT_ELEMENTS = CHANNELS * ROW;
    static constexpr uint32_t WEIGHT_ELEMENTS = OUT * CHANNELS;

    // Stages a part of the input.
    static __device__ __forceinline__ void stage(
        float* tile, uint32_t part, const typename Input::Part& read, const ConvArgs& args, const ChannelNorm& norm) {
        const uint32_t place = Input::part_place(part);
        if (place >= Input::PIXELS) return;
        const Four values = read.values(args);
        float* to = tile + threadIdx.x % Input::FOURS * 4 * ROW + place;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            float value = values.at[i];
            if (args.norm) {
                value = fmaf(value, norm.channels[i].x, norm.channels[i].y);
                if (args.silu) value = value / (1.0f + expf(-value));
                if (!read.inside) value = 0.0f;
            }
            to[i * ROW] = value;
        }
    }

    // Starts to copy the tile of weights of a step.
    static __device__ __forceinline__ void copy_weights(
        float* tile, const ConvArgs& args, const ConvPlace& place, uint32_t step) {
        const uint32_t rows = args.out_tiles * OUT;
        const float* source =
            reinterpret_cast<const float*>(args.weights) + uint64_t(step) * CHANNELS * rows + place.column;
#pragma unroll
        for (uint32_t at = threadIdx.x * 4; at < WEIGHT_ELEMENTS; at += CONV_THREADS * 4) {
            copy_async_16(tile + at, source + at / OUT * rows + at % OUT, true);
        }
    }

    // This thread's output channel `i`, counted from the block's first: of 8, two vectors of four, half a tile apart.
    static __device__ __forceinline__ uint32_t column_of(uint32_t group, uint32_t i) {
        return SHARE == 8 ? i / 4 * 64 + group * 4 + i % 4 : group * SHARE + i;
    }

    // Adds the products of one tap. `place`: of this thread's first pixel under it.
    static __device__ __forceinline__ void multiply(
        float (&sums)[PIXELS][SHARE], const float* input, const float* weights, uint32_t place, uint32_t group) {
        // More channels at once than a thread has registers for, where the staging of a chunk is beside one tap.
#pragma unroll (KERNEL == 1 ? 2 : 4)
        for (uint32_t channel = 0; channel < CHANNELS; ++channel) {
            float a[PIXELS], b[SHARE];
#pragma unroll
            for (uint32_t i = 0; i < PIXELS; ++i) a[i] = input[channel * ROW + place + i];
            if constexpr (SHARE == 8) {
#pragma unroll
                for (uint32_t half = 0; half < 2; ++half) {
                    const float4 four = *reinterpret_cast<const float4*>(weights + channel * OUT + half * 64 + group * 4);
                    b[half * 4] = four.x, b[half * 4 + 1] = four.y, b[half * 4 + 2] = four.z, b[half * 4 + 3] = four.w;
                }
            } else {
#pragma unroll
                for (uint32_t i = 0; i < SHARE; ++i) b[i] = weights[channel * OUT + group * SHARE + i];
            }
#pragma unroll
            for (uint32_t i = 0; i < PIXELS; ++i) {
#pragma unroll
                for (uint32_t j = 0; j < SHARE; ++j) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
            }
        }
    }

    // Adds bias and what is added, and writes.
    static __device__ __forceinline__ void finish(
        const float (&sums)[PIXELS][SHARE], const ConvArgs& args, const ConvPlace& place, uint32_t pixel, uint32_t group) {
        constexpr uint32_t WIDTH = SHARE < 4 ? SHARE : 4;  // neighbouring output channels
#pragma unroll
        for (uint32_t j = 0; j < SHARE; j += WIDTH) {
            const uint32_t column = place.column + column_of(group, j);
            float bias[WIDTH];
#pragma unroll
            for (uint32_t k = 0; k < WIDTH; ++k) {
                bias[k] = column + k < args.out_channels ? vector_at(args.bias, column + k) : 0.0f;
            }
#pragma unroll
            for (uint32_t i = 0; i < PIXELS; ++i) {
                const uint32_t at = pixel + i;
                uint64_t begin;
                if (!find_pixel(args, place, at / Input::OUT_WIDTH, at % Input::OUT_WIDTH, begin)) continue;
                begin += column;
#pragma unroll
                for (uint32_t k = 0; k < WIDTH; ++k) {
                    if (column + k >= args.out_channels) continue;
                    const float sum = sums[i][j + k] + bias[k];
                    static_cast<float*>(args.out)[begin + k] = args.added ? args.added[begin + k] + sum : sum;
                }
            }
        }
    }

    static __device__ __forceinline__ void convolve(const ConvArgs& args) {
        const uint32_t group = threadIdx.x % GROUPS, pixel = threadIdx.x / GROUPS * PIXELS;
        const ConvPlace place(args, Input::OUT_HEIGHT, Input::OUT_WIDTH, OUT);
        const uint32_t at = Input::place_of(pixel);
        float sums[PIXELS][SHARE];
#pragma unroll
        for (uint32_t i = 0; i < PIXELS; ++i) {
#pragma unroll
            for (uint32_t j = 0; j < SHARE; ++j) sums[i][j] = 0.0f;
        }
        for_each_tap<ExactConv>(args, place, [&](const float* input, const float* weights, uint32_t tap) {
            multiply(sums, input, weights, at + Input::offset_of(tap), group);
        });
        finish(sums, args, place, pixel, group);
    }
};

// The variants are those of conv_half.cu.
#define CONV_EXACT(NAME, KERNEL, STRIDE, OUT)                                                                 \
    extern "C" __global__ void __launch_bounds__(CONV_THREADS, 2) conv_exact_##NAME##_##OUT(ConvArgs args) {  \
        ExactConv<KERNEL, STRIDE, OUT>::convolve(args);                                                       \
    }

CONV_EXACT(k1, 1, 1, 32)
CONV_EXACT(k1, 1, 1, 128)
CONV_EXACT(k3, 3, 1, 8)
CONV_EXACT(k3, 3, 1, 32)
CONV_EXACT(k3, 3, 1, 128)
CONV_EXACT(k3_s2, 3, 2, 32)
CONV_EXACT(k3_s2, 3, 2, 128)
