// What both convolution kernels share: arguments, tiles of the input with all that happens to it before the products, the
// order in which tiles are staged and multiplied, and the place of a result.
//
// A block computes 128 output pixels of one image, 8 rows of 16 (of single pixels: one row of 128), for some output channels.
// It takes the input channels in chunks: the input under its pixels, with what the taps reach around them, is staged once a
// chunk, enlarged, normalised and with zeros outside, so that each tap reads it at another offset. Weights were packed by
// conv_pack.cu, a tile for each chunk and tap. While the taps of a chunk are multiplied, the next chunk is read and staged
// beside it, a part a tap.
//
// Invariant: an element is summed by chunks, in each by taps, then by channels, wherever its pixel lies.
#pragma once

#include "short.cuh"
#include "tiles.cuh"
#include "vector.cuh"

struct ConvArgs {
    const void* input;     // of input_kind, [batch, height, width, in_channels]
    const uint8_t* weights;
    const float2* norm;    // [batch, in_channels], factor and summand of each channel; or null
    const float* added;    // as out, which it may be if that is f32; or null
    void* out;             // of out_kind, [batch, out_height, out_width, out_channels]
    StoredVector bias;     // [out_channels]
    uint32_t height;
    uint32_t width;
    uint32_t in_channels;
    uint32_t out_channels;
    uint32_t out_height;
    uint32_t out_width;
    uint32_t tile_rows;    // tiles of pixels below each other in an image
    uint32_t tile_columns; // beside each other
    uint32_t out_tiles;    // of output channels
    uint32_t stride;
    uint32_t pad;          // zeros above and to the left
    uint32_t upsample;     // 0, or 1 where the input is enlarged by 2
    uint32_t silu;         // whether it follows the norm
    uint32_t input_kind;   // ElementKind; of the exact kernel f32, as out_kind
    uint32_t out_kind;
    uint32_t unused;
};

constexpr uint32_t CONV_THREADS = 256;
constexpr uint32_t CONV_PIXELS = 128;
// Tiles of weights: one is multiplied, two are on their way.
constexpr uint32_t WEIGHT_STAGES = 3;

// What a block computes. Neighbouring blocks share the pixels, which are read from the device's cache then.
struct ConvPlace {
    uint32_t image;
    uint32_t y;      // first row of the output
    uint32_t x;      // first column
    uint32_t column; // first output channel

    __device__ __forceinline__ ConvPlace(const ConvArgs& args, uint32_t tile_height, uint32_t tile_width, uint32_t tile_out) {
        const uint32_t tile = blockIdx.x / args.out_tiles;
        column = blockIdx.x % args.out_tiles * tile_out;
        x = tile % args.tile_columns * tile_width;
        y = tile / args.tile_columns % args.tile_rows * tile_height;
        image = tile / args.tile_columns / args.tile_rows;
    }
};

// The input under a block's pixels, CHANNELS at a time. A thread stages PARTS times four channels of a pixel, the same ones
// each time. SHORT: whether the input may have 16 bits.
template <uint32_t KERNEL, uint32_t STRIDE, uint32_t CHANNELS, bool SHORT>
struct InputTile {
    static constexpr uint32_t TAPS = KERNEL * KERNEL;
    static constexpr uint32_t OUT_HEIGHT = KERNEL == 1 ? 1 : 8;
    static constexpr uint32_t OUT_WIDTH = CONV_PIXELS / OUT_HEIGHT;
    static constexpr uint32_t HEIGHT = (OUT_HEIGHT - 1) * STRIDE + KERNEL;
    static constexpr uint32_t WIDTH = (OUT_WIDTH - 1) * STRIDE + KERNEL;
    static constexpr uint32_t PIXELS = HEIGHT * WIDTH;
    static constexpr uint32_t FOURS = CHANNELS / 4;  // of a pixel
    static constexpr uint32_t PARTS = (PIXELS * FOURS + CONV_THREADS - 1) / CONV_THREADS;
    static constexpr uint32_t TAP_PARTS = (PARTS + TAPS - 1) / TAPS;  // staged beside the products of a tap

    // The place of an output pixel's input under the first tap. Of rows read with a stride, even columns come first, so that
    // pixels beside each other in the output stay so.
    static __device__ __forceinline__ uint32_t place_of(uint32_t pixel) {
        const uint32_t row = pixel / OUT_WIDTH, column = pixel % OUT_WIDTH;
        return row * STRIDE * WIDTH + column;
    }

    // How far from there a tap reads.
    static __device__ __forceinline__ uint32_t offset_of(uint32_t tap) {
        const uint32_t row = tap / KERNEL, column = tap % KERNEL;
        return row * WIDTH + (STRIDE == 1 ? column : column % 2 * ((WIDTH + 1) / 2) + column / 2);
    }

    struct Part {
        uint4 words;  // four channels as they lie in memory; where they have 16 bits, in the first two
        bool inside;

        __device__ __forceinline__ Four values(const ConvArgs& args) const {
            if (SHORT && args.input_kind != ELEMENT_F32) return four_of(args.input_kind, uint2{words.x, words.y});
            return Four{
                {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z), __uint_as_float(words.w)}};
        }
    };

    // The place in the tile of this thread's part; at least PIXELS if there is none.
    static __device__ __forceinline__ uint32_t part_place(uint32_t part) {
        const uint32_t at = (part * CONV_THREADS + threadIdx.x) / FOURS;
        if (STRIDE == 1 || at >= PIXELS) return at;
        const uint32_t column = at % WIDTH;
        return at - column + column % 2 * ((WIDTH + 1) / 2) + column / 2;
    }

    // Reads this thread's part of the channels from `first` on.
    static __device__ __forceinline__ Part read(const ConvArgs& args, const ConvPlace& place, uint32_t part, uint32_t first) {
        const uint32_t at = (part * CONV_THREADS + threadIdx.x) / FOURS;
        const uint32_t channel = first + threadIdx.x % FOURS * 4;
        // Single pixels are apart by the stride, of which no others are staged.
        const uint32_t step = KERNEL == 1 ? args.stride : 1;
        const uint32_t y = place.y * args.stride + at / WIDTH * step - args.pad;
        const uint32_t x = place.x * args.stride + at % WIDTH * step - args.pad;
        Part result;
        // What is above or to the left has wrapped around.
        result.inside = at < PIXELS && y < args.height << args.upsample && x < args.width << args.upsample;
        result.words = uint4{0, 0, 0, 0};
        if (!result.inside || channel >= args.in_channels) return result;
        const uint64_t pixel =
            (uint64_t(place.image) * args.height + (y >> args.upsample)) * args.width + (x >> args.upsample);
        const uint64_t first_of_four = pixel * args.in_channels + channel;
        const bool second = channel + 1 < args.in_channels, third = channel + 2 < args.in_channels;
        const bool fourth = channel + 3 < args.in_channels;
        if (SHORT && args.input_kind != ELEMENT_F32) {
            const uint16_t* from = static_cast<const uint16_t*>(args.input) + first_of_four;
            if (args.in_channels % 4 == 0) {
                const uint2 words = *reinterpret_cast<const uint2*>(from);
                result.words.x = words.x, result.words.y = words.y;
            } else {
                result.words.x = from[0];
                if (second) result.words.x |= uint32_t(from[1]) << 16;
                if (third) result.words.y = from[2];
                if (fourth) result.words.y |= uint32_t(from[3]) << 16;
            }
        } else {
            const uint32_t* from = static_cast<const uint32_t*>(args.input) + first_of_four;
            if (args.in_channels % 4 == 0) {
                result.words = *reinterpret_cast<const uint4*>(from);
            } else {
                result.words.x = from[0];
                if (second) result.words.y = from[1];
                if (third) result.words.z = from[2];
                if (fourth) result.words.w = from[3];
            }
        }
        return result;
    }
};

// The factors and summands of a thread's four channels.
struct ChannelNorm {
    float2 channels[4];

    __device__ __forceinline__ ChannelNorm(const ConvArgs& args, uint32_t image, uint32_t channel) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            // Zeros behind the last channel stay zeros: their weights are, and what is multiplied with them is finite.
            channels[i] = args.norm && channel + i < args.in_channels
                ? args.norm[uint64_t(image) * args.in_channels + channel + i]
                : float2{1.0f, 0.0f};
        }
    }
};

// Starts to copy the weights of a step, a tap of a chunk, if there is such a step.
template <class Conv>
__device__ __forceinline__ void start_weights(
    typename Conv::Element* tile, const ConvArgs& args, const ConvPlace& place, uint32_t step, uint32_t steps) {
    if (step < steps) Conv::copy_weights(tile, args, place, step);
    copy_async_commit();
}

// Stages each chunk of input and each tile of weights of a block and calls `multiply(input, weights, tap)` once they lie in
// shared memory. `Conv` tells the type of what is staged, how much it is, and how: of the input by `stage`, of weights by
// `copy_weights`.
template <class Conv, class Multiply>
__device__ __forceinline__ void for_each_tap(const ConvArgs& args, const ConvPlace& place, Multiply multiply) {
    using Input = typename Conv::Input;
    __shared__ __align__(16) typename Conv::Element inputs[2][Conv::INPUT_ELEMENTS];
    __shared__ __align__(16) typename Conv::Element weights[WEIGHT_STAGES][Conv::WEIGHT_ELEMENTS];
    const uint32_t steps = (args.in_channels + Conv::CHANNELS - 1) / Conv::CHANNELS * Input::TAPS;
    const uint32_t four = threadIdx.x % Input::FOURS * 4;
    start_weights<Conv>(weights[0], args, place, 0, steps);
    start_weights<Conv>(weights[1], args, place, 1, steps);
    {
        const ChannelNorm norm(args, place.image, four);
#pragma unroll 2
        for (uint32_t part = 0; part < Input::PARTS; ++part) {
            Conv::stage(inputs[0], part, Input::read(args, place, part, 0), args, norm);
        }
    }
    uint32_t step = 0, slot = 0;
    for (uint32_t chunk = 0; step < steps; ++chunk) {
        const bool more = step + Input::TAPS < steps;
        const uint32_t next = (chunk + 1) * Conv::CHANNELS;
        const ChannelNorm norm(args, place.image, next + four);
#pragma unroll 1
        for (uint32_t tap = 0; tap < Input::TAPS; ++tap, ++step) {
            copy_async_wait<WEIGHT_STAGES - 2>();
            __syncthreads();
            const uint32_t free = slot == 0 ? WEIGHT_STAGES - 1 : slot - 1;
            start_weights<Conv>(weights[free], args, place, step + WEIGHT_STAGES - 1, steps);
            const bool staging = more && tap * Input::TAP_PARTS < Input::PARTS;
            typename Input::Part parts[Input::TAP_PARTS];
            if (staging) {
#pragma unroll
                for (uint32_t i = 0; i < Input::TAP_PARTS; ++i) {
                    parts[i] = Input::read(args, place, tap * Input::TAP_PARTS + i, next);
                }
            }
            multiply(inputs[chunk % 2], weights[slot], tap);
            if (staging) {
#pragma unroll
                for (uint32_t i = 0; i < Input::TAP_PARTS; ++i) {
                    Conv::stage(inputs[(chunk + 1) % 2], tap * Input::TAP_PARTS + i, parts[i], args, norm);
                }
            }
            slot = slot + 1 == WEIGHT_STAGES ? 0 : slot + 1;
        }
    }
}

// Where a pixel's results begin in `out`; false where the tile reaches over the picture's edge.
__device__ __forceinline__ bool find_pixel(
    const ConvArgs& args, const ConvPlace& place, uint32_t row, uint32_t column, uint64_t& begin) {
    const uint32_t y = place.y + row, x = place.x + column;
    begin = ((uint64_t(place.image) * args.out_height + y) * args.out_width + x) * args.out_channels;
    return y < args.out_height && x < args.out_width;
}
