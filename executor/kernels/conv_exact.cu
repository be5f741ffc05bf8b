// Convolution in f32: out = conv(norm(input), weights) + bias (+ added).
//
// See conv.cuh for a block's part. The staged input is turned, [CHANNELS, pixels], so that a thread reads its pixels under a
// tap as neighbours, and weights are [CHANNELS, OUT]. A thread has PIXELS neighbouring pixels of a row and SHARE output
// channels. While the taps of a chunk are multiplied, the next chunk is read and staged beside it, a part a tap. Grid: [tiles
// of pixels × tiles of output channels], block: 256.
#include "conv.cuh"
#include "mma.cuh"

template <uint32_t KERNEL, uint32_t STRIDE, uint32_t OUT>
struct ExactConv {
    static constexpr uint32_t CHANNELS = STRIDE == 1 ? 16 : 8;
    using Input = InputTile<KERNEL, STRIDE, CHANNELS>;
    static constexpr uint32_t SHARE = OUT == 128 ? 8 : OUT / 16 > 0 ? OUT / 16 : 1;
    static constexpr uint32_t GROUPS = OUT / SHARE;                        // of output channels
    static constexpr uint32_t PIXELS = CONV_PIXELS * GROUPS / CONV_THREADS;
    // The distance of channels: lanes that write four channels of neighbouring pixels then use all banks.
    static constexpr uint32_t PAD = STRIDE == 1 ? 10 : 12;
    static constexpr uint32_t ROW = (Input::PIXELS + 7) / 8 * 8 - 8 + PAD;
    static_assert(ROW >= Input::PIXELS && ROW % 8 == PAD % 8, "rows hold all pixels");

    // Stages a part of the input.
    static __device__ __forceinline__ void stage(
        float* tile, uint32_t part, const typename Input::Part& read, const ConvArgs& args, const ChannelNorm& norm) {
        const uint32_t place = Input::part_place(part);
        if (place >= Input::PIXELS) return;
        const float values[4] = {read.values.x, read.values.y, read.values.z, read.values.w};
        float* to = tile + threadIdx.x % Input::FOURS * 4 * ROW + place;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            float value = values[i];
            if (args.norm) {
                value = fmaf(value, norm.channels[i].x, norm.channels[i].y);
                if (args.silu) value = value / (1.0f + expf(-value));
                if (!read.inside) value = 0.0f;
            }
            to[i * ROW] = value;
        }
    }

    // Starts to copy the tile of weights of a chunk and tap; `step` counts both.
    static __device__ __forceinline__ void start_weights(
        float* tile, const ConvArgs& args, uint32_t step, uint32_t steps, uint32_t column) {
        const uint32_t rows = args.out_tiles * OUT;
        const float* source =
            reinterpret_cast<const float*>(args.weights) + uint64_t(step) * CHANNELS * rows + column;
        if (step < steps) {
#pragma unroll
            for (uint32_t at = threadIdx.x * 4; at < OUT * CHANNELS; at += CONV_THREADS * 4) {
                copy_async_16(tile + at, source + at / OUT * rows + at % OUT, true);
            }
        }
        copy_async_commit();
    }

    // This thread's output channel `i`, counted from the block's first: of 8, two vectors of four, half a tile apart.
    static __device__ __forceinline__ uint32_t column_of(uint32_t group, uint32_t i) {
        return SHARE == 8 ? i / 4 * 64 + group * 4 + i % 4 : group * SHARE + i;
    }

    // Adds the products of one tap. `place`: of this thread's first pixel under it.
    static __device__ __forceinline__ void multiply(
        float (&sums)[PIXELS][SHARE], const float* input, const float* weights, uint32_t place, uint32_t group) {
#pragma unroll 4
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
                    args.out[begin + k] = args.added ? args.added[begin + k] + sum : sum;
                }
            }
        }
    }

    static __device__ __forceinline__ void convolve(const ConvArgs& args) {
        __shared__ __align__(16) float inputs[2][CHANNELS * ROW];
        __shared__ __align__(16) float weights[WEIGHT_STAGES][OUT * CHANNELS];
        const uint32_t group = threadIdx.x % GROUPS, pixel = threadIdx.x / GROUPS * PIXELS;
        const ConvPlace place(args, Input::OUT_HEIGHT, Input::OUT_WIDTH, OUT);
        const uint32_t chunks = (args.in_channels + CHANNELS - 1) / CHANNELS, steps = chunks * Input::TAPS;
        const uint32_t four = threadIdx.x % Input::FOURS * 4;
        const uint32_t at = Input::place_of(pixel);

        float sums[PIXELS][SHARE];
#pragma unroll
        for (uint32_t i = 0; i < PIXELS; ++i) {
#pragma unroll
            for (uint32_t j = 0; j < SHARE; ++j) sums[i][j] = 0.0f;
        }
        start_weights(weights[0], args, 0, steps, place.column);
        start_weights(weights[1], args, 1, steps, place.column);
        {
            const ChannelNorm norm(args, place.image, four);
#pragma unroll 2
            for (uint32_t part = 0; part < Input::PARTS; ++part) {
                stage(inputs[0], part, Input::read(args, place, part, 0), args, norm);
            }
        }
        uint32_t step = 0, slot = 0;
        for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
            const bool more = chunk + 1 < chunks;
            const uint32_t next = (chunk + 1) * CHANNELS;
            const ChannelNorm norm(args, place.image, next + four);
#pragma unroll 1
            for (uint32_t tap = 0; tap < Input::TAPS; ++tap, ++step) {
                copy_async_wait<WEIGHT_STAGES - 2>();
                __syncthreads();
                const uint32_t free = slot == 0 ? WEIGHT_STAGES - 1 : slot - 1;
                start_weights(weights[free], args, step + WEIGHT_STAGES - 1, steps, place.column);
                const bool staging = more && tap * Input::TAP_PARTS < Input::PARTS;
                typename Input::Part parts[Input::TAP_PARTS];
                if (staging) {
#pragma unroll
                    for (uint32_t i = 0; i < Input::TAP_PARTS; ++i) {
                        parts[i] = Input::read(args, place, tap * Input::TAP_PARTS + i, next);
                    }
                }
                multiply(sums, inputs[chunk % 2], weights[slot], at + Input::offset_of(tap), group);
                if (staging) {
#pragma unroll
                    for (uint32_t i = 0; i < Input::TAP_PARTS; ++i) {
                        stage(inputs[(chunk + 1) % 2], tap * Input::TAP_PARTS + i, parts[i], args, norm);
                    }
                }
                slot = slot + 1 == WEIGHT_STAGES ? 0 : slot + 1;
            }
        }
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
