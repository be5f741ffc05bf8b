// What both convolution kernels share: arguments, tiles of the input with all that happens to it before the products, and
// the place of a result.
//
// A block computes 128 output pixels of one image, 8 rows of 16 (of single pixels: one row of 128), for some output channels.
// It takes the input channels in chunks: the input under its pixels, with what the taps reach around them, is staged once a
// chunk, enlarged, normalised and with zeros outside, so that each tap reads it at another offset. Weights were packed by
// conv_pack.cu, a tile for each chunk and tap.
//
// Invariant: an element is summed by chunks, in each by taps, then by channels, wherever its pixel lies.
#pragma once

#include "tiles.cuh"
#include "vector.cuh"

struct ConvArgs {
    const float* input;    // [batch, height, width, in_channels]
    const uint8_t* weights;
    const float2* norm;    // [batch, in_channels], factor and summand of each channel; or null
    const float* added;    // as out, which it may be; or null
    float* out;            // [batch, out_height, out_width, out_channels]
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
// each time.
template <uint32_t KERNEL, uint32_t STRIDE, uint32_t CHANNELS>
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
        float4 values;
        bool inside;
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
        result.values = float4{0.0f, 0.0f, 0.0f, 0.0f};
        if (!result.inside || channel >= args.in_channels) return result;
        const uint64_t pixel =
            (uint64_t(place.image) * args.height + (y >> args.upsample)) * args.width + (x >> args.upsample);
        const float* from = args.input + pixel * args.in_channels + channel;
        if (args.in_channels % 4 == 0) {
            result.values = *reinterpret_cast<const float4*>(from);
        } else {
            result.values.x = from[0];
            if (channel + 1 < args.in_channels) result.values.y = from[1];
            if (channel + 2 < args.in_channels) result.values.z = from[2];
            if (channel + 3 < args.in_channels) result.values.w = from[3];
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

// Where a pixel's results begin in `out`; false where the tile reaches over the picture's edge.
__device__ __forceinline__ bool find_pixel(
    const ConvArgs& args, const ConvPlace& place, uint32_t row, uint32_t column, uint64_t& begin) {
    const uint32_t y = place.y + row, x = place.x + column;
    begin = ((uint64_t(place.image) * args.out_height + y) * args.out_width + x) * args.out_channels;
    return y < args.out_height && x < args.out_width;
}
