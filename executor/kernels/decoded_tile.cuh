// Linear layers on tensor cores whose weights become f16 on their way to shared memory: out = activation(x · wᵀ · factors + bias).
//
// x: [rows, x_stride] of f16 with a factor for each row, in the node's workspace. w: [columns, depth] of any storage type; a row
// is whole blocks. A weight is decoded as on the host, then rounded to f16; beyond 65504 it is infinite there.
//
// Grid: one block for each tile of the output, in one dimension. Blocks: 256 threads for tiles of 128 x 128, 128 for tiles of
// 64 x 64; a warp computes half the rows of a tile and 32 columns or 16. While a tile is multiplied, each thread decodes 16 numbers
// of the next one, two threads a row.
#pragma once

#include "half_tile.cuh"

__device__ inline uint4 halves_of_floats(const float (&all)[GROUP]) {
    return make_uint4(f16x2_of_f32(all[0], all[1]), f16x2_of_f32(all[2], all[3]), f16x2_of_f32(all[4], all[5]),
                      f16x2_of_f32(all[6], all[7]));
}

// Eight numbers of a row as f16, in order.
template <class Type>
__device__ inline uint4 halves_of(uint32_t storage, const uint8_t* row, int element) {
    float all[GROUP];
    eight_numbers<Type>(storage, row, element, all);
    return halves_of_floats(all);
}

template <>
__device__ inline uint4 halves_of<F16>(uint32_t storage, const uint8_t* row, int element) {
    return read_16(row + 2 * static_cast<int64_t>(element));
}

// The same of numbers that end before `end`; zeros follow.
template <class Type>
__device__ inline uint4 halves_until(uint32_t storage, const uint8_t* row, int element, int end) {
    float all[GROUP];
#pragma unroll 1
    for (int i = 0; i < GROUP; i++) {
#pragma unroll
        for (int j = 0; j + 1 < GROUP; j++) all[j] = all[j + 1];
        all[GROUP - 1] = element + i < end ? one_number<Type>(storage, row, element + i) : 0.0f;
    }
    return halves_of_floats(all);
}

// Whether rows may end anywhere in a tile: blocks are at least as long as one is deep.
template <class Type>
constexpr bool ENDS_ANYWHERE = Type::block_elements == 1;
template <>
constexpr bool ENDS_ANYWHERE<AnyStorage> = false;

// Sixteen numbers of a row of weights, for a tile.
template <class Type>
struct DecodedRow {
    const LinearHalfArgs& args;
    const uint8_t* row;
    uint4 held[2];

    __device__ DecodedRow(const LinearHalfArgs& args, int first) : args(args) {
        // Rows past the end are the last one again: what they give is never stored.
        const int column = min(first + static_cast<int>(threadIdx.x) / 2, args.to.columns - 1);
        row = args.w + column * args.row_bytes;
    }

    // Decodes what this thread has of the tile at `from`.
    __device__ void decode(int from) {
        const uint32_t storage = args.to.storage;
        const int element = from + static_cast<int>(threadIdx.x) % 2 * 2 * GROUP;
        if (!ENDS_ANYWHERE<Type> || from + DEPTH <= args.depth) {
            held[0] = halves_of<Type>(storage, row, element);
            held[1] = halves_of<Type>(storage, row, element + GROUP);
        } else {
            held[0] = halves_until<Type>(storage, row, element, args.depth);
            held[1] = halves_until<Type>(storage, row, element + GROUP, args.depth);
        }
    }

    __device__ void put(uint16_t* tile) const {
        const int chunk = threadIdx.x % 2 * 2;
        *reinterpret_cast<uint4*>(tile + chunk_at(threadIdx.x / 2, chunk)) = held[0];
        *reinterpret_cast<uint4*>(tile + chunk_at(threadIdx.x / 2, chunk + 1)) = held[1];
    }
};

template <class Type, int SIDE>
__device__ void multiply_decoded(const LinearHalfArgs& args) {
    constexpr int THREADS = 2 * SIDE;
    constexpr int TILE = SIDE * DEPTH;
    constexpr int ACROSS = THREADS / WARP / 2;  // warps beside each other
    using Sums = WarpSums<SIDE / 32, SIDE / ACROSS / 8>;
    // Two stages of each operand; afterwards the buffers of the sums.
    __shared__ __align__(16) uint16_t tiles[4 * TILE];
    static_assert(THREADS / WARP * Sums::BUFFER_LENGTH * sizeof(float) <= sizeof(tiles), "the sums' buffers fit");
    const TilePlace tile(args.to, SIDE, SIDE);
    HalfRows<SIDE, THREADS> x(args.x, args.x_stride, tile.row, args.to.rows);
    DecodedRow<Type> w(args, tile.column);
    const int steps = (args.depth + DEPTH - 1) / DEPTH;
    const int warp = threadIdx.x / WARP;
    const int row = warp / ACROSS * (SIDE / 2);
    const int column = warp % ACROSS * (SIDE / ACROSS);
    uint16_t* full = tiles;
    uint16_t* free = tiles + 2 * TILE;
    Sums sums;
    x.start(full, 0, args.depth);
    w.decode(0);
    w.put(full + TILE);
    x.finish(full);
    copy_async_wait<0>();
    __syncthreads();
    for (int step = 0; step < steps; step++) {
        // The last step's next one is itself, and not used: without a branch the compiler mixes decoding with products.
        const int next = min(step + 1, steps - 1) * DEPTH;
        x.start(free, next, args.depth);
        w.decode(next);
        sums.template add<false>(full, row, full + TILE, column);
        w.put(free + TILE);
        x.finish(free);
        copy_async_wait<0>();
        __syncthreads();
        uint16_t* was_full = full;
        full = free;
        free = was_full;
    }
    float* buffer = reinterpret_cast<float*>(tiles) + warp * Sums::BUFFER_LENGTH;
    sums.store(args.to, args.factors, tile.row + row, tile.column + column, buffer);
}

// The two sizes of a type's kernel. Two blocks of 256 threads are to run on a multiprocessor together.
#define LINEAR_DECODED(name, Type)                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 2) linear_decoded_##name##_large(LinearHalfArgs args) { \
        multiply_decoded<Type, 128>(args);                                                                \
    }                                                                                                     \
    extern "C" __global__ void __launch_bounds__(128) linear_decoded_##name##_small(LinearHalfArgs args) {   \
        multiply_decoded<Type, 64>(args);                                                                 \
    }
