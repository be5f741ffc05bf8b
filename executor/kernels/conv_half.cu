// Convolution on tensor cores: out = conv(norm(input), weights) + bias (+ added), operands in f16, sums in f32. What is
// read and what is written is f32 or has 16 bits.
//
// See conv.cuh for a block's part. A row of the staged input is a pixel's CHANNELS in f16, so that a tap's operand is rows at
// another offset, which ldmatrix takes as they are. Warps share the block's pixels and, where it has 128 output channels,
// these too.
// Grid: [tiles of pixels × tiles of output channels], block: 256.
#include "conv.cuh"

// How the warps share 128 pixels and OUT output channels.
template <uint32_t OUT>
struct WarpShare {
    static constexpr uint32_t WARPS_OUT = OUT == 128 ? 4 : 1;
    static constexpr uint32_t ROWS = CONV_PIXELS / 16 / (8 / WARPS_OUT);  // tiles of 16 pixels of a warp
    static constexpr uint32_t COLUMNS = OUT / 8 / WARPS_OUT;              // tiles of 8 channels
};

template <uint32_t KERNEL, uint32_t STRIDE, uint32_t OUT>
struct HalfConv {
    using Element = uint16_t;
    static constexpr uint32_t CHANNELS = STRIDE == 1 ? 32 : 16;
    static constexpr uint32_t PIECES = CHANNELS / 8;
    using Input = InputTile<KERNEL, STRIDE, CHANNELS, true>;
    using Share = WarpShare<OUT>;
    static constexpr uint32_t INPUT_ELEMENTS = Input::PIXELS * CHANNELS;
    static constexpr uint32_t WEIGHT_ELEMENTS = OUT * CHANNELS;

    // Stages a part of the input.
    static __device__ __forceinline__ void stage(
        uint16_t* tile, uint32_t part, const typename Input::Part& read, const ConvArgs& args, const ChannelNorm& norm) {
        const uint32_t place = Input::part_place(part);
        if (place >= Input::PIXELS) return;
        Four values = read.values(args);
        if (args.norm) {
#pragma unroll
            for (uint32_t i = 0; i < 4; ++i) {
                values.at[i] = fmaf(values.at[i], norm.channels[i].x, norm.channels[i].y);
                if (args.silu) values.at[i] = values.at[i] * reciprocal_fast(1.0f + exp2_fast(-LOG2_E * values.at[i]));
                if (!read.inside) values.at[i] = 0.0f;
            }
        }
        const uint32_t four = threadIdx.x % Input::FOURS;
        const uint2 packed = {pack_f16(values.at[0], values.at[1]), pack_f16(values.at[2], values.at[3])};
        const uint32_t piece = swizzled<PIECES>(place, four / 2);
        *reinterpret_cast<uint2*>(tile + place * CHANNELS + piece * 8 + four % 2 * 4) = packed;
    }

    // Starts to copy the tile of weights of a step.
    static __device__ __forceinline__ void copy_weights(
        uint16_t* tile, const ConvArgs& args, const ConvPlace& place, uint32_t step) {
        const uint32_t rows = args.out_tiles * OUT;
        const uint16_t* source =
            reinterpret_cast<const uint16_t*>(args.weights) + (uint64_t(step) * rows + place.column) * CHANNELS;
        start_copy<OUT, PIECES, CONV_THREADS>(tile, source, CHANNELS);
    }

    // Adds the products of one tap. `pixels`: the places of this lane's rows under it.
    static __device__ __forceinline__ void multiply(
        float (&sums)[Share::ROWS][Share::COLUMNS][4], const uint16_t* input, const uint16_t* weights,
        const uint32_t (&pixels)[Share::ROWS], uint32_t column) {
        const uint32_t lane = threadIdx.x % 32;
        uint32_t pixel_at[Share::ROWS];
#pragma unroll
        for (uint32_t m = 0; m < Share::ROWS; ++m) pixel_at[m] = tile_at<PIECES>(pixels[m], lane / 16);
        // Matrices: output channels 0 to 7 and 8 to 15, of each input channels 0 to 7 and 8 to 15.
        const uint32_t weight_at = tile_at<PIECES>(column + lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
        for (uint32_t depth = 0; depth < CHANNELS / 16; ++depth) {
            uint32_t a[Share::ROWS][4];
#pragma unroll
            for (uint32_t m = 0; m < Share::ROWS; ++m) ldmatrix_x4(a[m], input + (pixel_at[m] ^ depth * 16));
            if constexpr (Share::COLUMNS == 1) {
                uint32_t b[2];
                ldmatrix_x2(b, weights + (tile_at<PIECES>(column + lane % 8, lane / 8 % 2) ^ depth * 16));
#pragma unroll
                for (uint32_t m = 0; m < Share::ROWS; ++m) mma_f16(sums[m][0], a[m], b);
            } else {
#pragma unroll
                for (uint32_t n = 0; n < Share::COLUMNS; n += 2) {
                    uint32_t b[4];
                    ldmatrix_x4(b, weights + (weight_at ^ depth * 16) + n * 8 * CHANNELS);
                    const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
#pragma unroll
                    for (uint32_t m = 0; m < Share::ROWS; ++m) {
                        mma_f16(sums[m][n], a[m], b0);
                        mma_f16(sums[m][n + 1], a[m], b1);
                    }
                }
            }
        }
    }

    // Writes results of two channels beside each other, or of the first alone.
    static __device__ __forceinline__ void write(const ConvArgs& args, uint64_t begin, float2 sum, bool both) {
        const bool whole = args.out_channels % 2 == 0;
        if (args.out_kind == ELEMENT_F32) {
            float* out = static_cast<float*>(args.out) + begin;
            if (whole) {
                *reinterpret_cast<float2*>(out) = sum;
            } else {
                out[0] = sum.x;
                if (both) out[1] = sum.y;
            }
            return;
        }
        uint16_t* out = static_cast<uint16_t*>(args.out) + begin;
        const uint32_t pair = pair_of(args.out_kind, sum.x, sum.y);
        if (whole) {
            *reinterpret_cast<uint32_t*>(out) = pair;
        } else {
            out[0] = uint16_t(pair);
            if (both) out[1] = uint16_t(pair >> 16);
        }
    }

    // Adds bias and what is added, and writes.
    static __device__ __forceinline__ void finish(
        const float (&sums)[Share::ROWS][Share::COLUMNS][4], const ConvArgs& args, const ConvPlace& place, uint32_t pixel,
        uint32_t column) {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (uint32_t n = 0; n < Share::COLUMNS; ++n) {
            const uint32_t first = place.column + column + n * 8 + lane % 4 * 2;
            if (first >= args.out_channels) continue;
            const bool both = first + 1 < args.out_channels;
            const float bias[2] = {vector_at(args.bias, first), both ? vector_at(args.bias, first + 1) : 0.0f};
#pragma unroll
            for (uint32_t m = 0; m < Share::ROWS; ++m) {
#pragma unroll
                for (uint32_t i = 0; i < 2; ++i) {
                    const uint32_t at = pixel + m * 16 + i * 8 + lane / 4;
                    uint64_t begin;
                    if (!find_pixel(args, place, at / Input::OUT_WIDTH, at % Input::OUT_WIDTH, begin)) continue;
                    float2 sum = {sums[m][n][2 * i] + bias[0], sums[m][n][2 * i + 1] + bias[1]};
                    begin += first;
                    if (args.added && args.out_channels % 2 == 0) {
                        const float2 before = *reinterpret_cast<const float2*>(args.added + begin);
                        sum = float2{before.x + sum.x, before.y + sum.y};
                    } else if (args.added) {
                        sum.x += args.added[begin];
                        if (both) sum.y += args.added[begin + 1];
                    }
                    write(args, begin, sum, both);
                }
            }
        }
    }

    static __device__ __forceinline__ void convolve(const ConvArgs& args) {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const uint32_t pixel = warp / Share::WARPS_OUT * Share::ROWS * 16;      // this warp's first
        const uint32_t column = warp % Share::WARPS_OUT * Share::COLUMNS * 8;
        const ConvPlace place(args, Input::OUT_HEIGHT, Input::OUT_WIDTH, OUT);
        float sums[Share::ROWS][Share::COLUMNS][4];
        uint32_t places[Share::ROWS];
#pragma unroll
        for (uint32_t m = 0; m < Share::ROWS; ++m) {
            places[m] = Input::place_of(pixel + m * 16 + lane % 16);
#pragma unroll
            for (uint32_t n = 0; n < Share::COLUMNS; ++n) sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0.0f;
        }
        for_each_tap<HalfConv>(args, place, [&](const uint16_t* input, const uint16_t* weights, uint32_t tap) {
            uint32_t pixels[Share::ROWS];
#pragma unroll
            for (uint32_t m = 0; m < Share::ROWS; ++m) pixels[m] = places[m] + Input::offset_of(tap);
            multiply(sums, input, weights, pixels, column);
        });
        finish(sums, args, place, pixel, column);
    }
};

// Single pixels may be any distance apart; kernels of 3 x 3 are compiled for a stride of 1 and of 2. Tiles of 8 output channels
// are for the last convolution of a decoder, which has 3.
// Two blocks are to run on a multiprocessor together; on 7.5 its 64 KiB of shared memory hold one of the large ones.
#if !defined(__CUDACC_RTC__) || __CUDA_ARCH__ >= 800
#define CONV_HALF_BLOCKS(OUT) 2
#else
#define CONV_HALF_BLOCKS(OUT) ((OUT) == 128 ? 1 : 2)
#endif
#define CONV_HALF(NAME, KERNEL, STRIDE, OUT)                                                                                     \
    extern "C" __global__ void __launch_bounds__(CONV_THREADS, CONV_HALF_BLOCKS(OUT)) conv_half_##NAME##_##OUT(ConvArgs args) {  \
        HalfConv<KERNEL, STRIDE, OUT>::convolve(args);                                                                           \
    }

CONV_HALF(k1, 1, 1, 32)
CONV_HALF(k1, 1, 1, 128)
CONV_HALF(k3, 3, 1, 8)
CONV_HALF(k3, 3, 1, 32)
CONV_HALF(k3, 3, 1, 128)
CONV_HALF(k3_s2, 3, 2, 32)
CONV_HALF(k3_s2, 3, 2, 128)
