// Linear layers on tensor cores whose weights are decoded on their way to shared memory: out = activation(x · wᵀ · factors + bias).
//
// x: up to four of [rows, features] in 16 bits; Operands says what they are and become. w: [columns, depth] of any storage type; a
// row is whole blocks. A weight is decoded as on the host, then rounded to 16 bits; beyond 65504 it is infinite in f16.
//
// Grid: one block for each tile of the output, in one dimension. Blocks: 256 threads for tiles of 128 x 128, 128 for tiles of
// 64 x 64; a warp computes half the rows of a tile and 32 columns or 16. While a tile is multiplied, each thread decodes 16 numbers
// of the next one, two threads a row.
#pragma once

#include "half_tile.cuh"

// What is multiplied.
enum class Operands {
    // f16 by f16: x is f16, of which each row was divided by its factor.
    F16,
    // bf16 by bf16, without factors; from capability 8.0 on.
    BF16,
    // f16 by f16: x is bf16, of which each row is divided by its factor, a power of two, when its tiles are stored.
    SCALED,
};

__device__ inline uint4 f16_of_floats(const float (&all)[GROUP]) {
    return make_uint4(f16x2_of_f32(all[0], all[1]), f16x2_of_f32(all[2], all[3]), f16x2_of_f32(all[4], all[5]),
                      f16x2_of_f32(all[6], all[7]));
}

__device__ inline uint4 bf16_of_floats(const float (&all)[GROUP]) {
    return make_uint4(bf16x2_of_f32(all[0], all[1]), bf16x2_of_f32(all[2], all[3]), bf16x2_of_f32(all[4], all[5]),
                      bf16x2_of_f32(all[6], all[7]));
}

template <Operands OF>
__device__ inline uint4 halves_of_floats(const float (&all)[GROUP]) {
    if constexpr (OF == Operands::BF16) return bf16_of_floats(all);
    return f16_of_floats(all);
}

// Whether weights of a type are multiplied as they are stored.
template <class Type, Operands OF>
constexpr bool AS_STORED = false;
template <>
constexpr bool AS_STORED<F16, Operands::F16> = true;
template <>
constexpr bool AS_STORED<BF16, Operands::BF16> = true;

// Eight numbers of a row, in order.
template <class Type, Operands OF>
__device__ inline uint4 halves_of(uint32_t storage, const uint8_t* row, int element) {
    if constexpr (AS_STORED<Type, OF>) {
        return read_16(row + 2 * static_cast<int64_t>(element));
    } else {
        float all[GROUP];
        eight_numbers<Type>(storage, row, element, all);
        return halves_of_floats<OF>(all);
    }
}

// The same of numbers that end before `end`; zeros follow.
template <class Type, Operands OF>
__device__ inline uint4 halves_until(uint32_t storage, const uint8_t* row, int element, int end) {
    float all[GROUP];
#pragma unroll 1
    for (int i = 0; i < GROUP; i++) {
#pragma unroll
        for (int j = 0; j + 1 < GROUP; j++) all[j] = all[j + 1];
        all[GROUP - 1] = element + i < end ? one_number<Type>(storage, row, element + i) : 0.0f;
    }
    return halves_of_floats<OF>(all);
}

// Whether rows may end anywhere in a tile: blocks are at least as long as one is deep.
template <class Type>
constexpr bool ENDS_ANYWHERE = Type::block_elements == 1;
template <>
constexpr bool ENDS_ANYWHERE<AnyStorage> = false;

// Whether decoding takes many registers: of blocks of 256.
template <class Type>
constexpr bool HAS_LARGE_BLOCKS = Type::block_elements == 256;
template <>
constexpr bool HAS_LARGE_BLOCKS<AnyStorage> = false;

// Keeps what is computed from a number out of registers across a loop: the compiler cannot know that it is the same each time.
__device__ __forceinline__ void hide(int& number) {
#ifdef __CUDACC_RTC__
    asm volatile("" : "+r"(number));
#endif
}

// Sixteen numbers of a row of weights, for a tile.
template <class Type, Operands OF>
struct DecodedRow {
    const LinearHalfArgs& args;
    // Rows past the end are the last one again: what they give is never stored.
    const int column;
    const uint8_t* const row;
    uint4 held[2];

    __device__ DecodedRow(const LinearHalfArgs& args, int first)
        : args(args), column(min(first + static_cast<int>(threadIdx.x) / 2, args.to.columns - 1)), row(args.w + column * args.row_bytes) {}

    // Decodes what this thread has of the tile at `from`.
    __device__ void decode(int from) {
        const uint32_t storage = args.to.storage;
        const uint8_t* row = this->row;
        if constexpr (!COPIES_ARE_ASYNCHRONOUS && ENDS_ANYWHERE<Type>) {
            // Formed anew each time, as else it would be spilled.
            int own = column;
            hide(own);
            row = args.w + own * args.row_bytes;
        }
        const int element = from + static_cast<int>(threadIdx.x) % 2 * 2 * GROUP;
        if (!ENDS_ANYWHERE<Type> || from + DEPTH <= args.depth) {
            held[0] = halves_of<Type, OF>(storage, row, element);
            held[1] = halves_of<Type, OF>(storage, row, element + GROUP);
        } else {
            held[0] = halves_until<Type, OF>(storage, row, element, args.depth);
            held[1] = halves_until<Type, OF>(storage, row, element + GROUP, args.depth);
        }
    }

    __device__ void put(uint16_t* tile) const {
        const int chunk = threadIdx.x % 2 * 2;
        *reinterpret_cast<uint4*>(tile + chunk_at(threadIdx.x / 2, chunk)) = held[0];
        *reinterpret_cast<uint4*>(tile + chunk_at(threadIdx.x / 2, chunk + 1)) = held[1];
    }
};

// What divides rows by their factors, as a thread copies them: it is given which of its copies a row is.
template <Operands OF, class Rows>
struct Scaling {
    __device__ Scaling(const LinearHalfArgs& args, int first) {}
    __device__ uint4 operator()(const uint4& eight, int copy) const { return eight; }
};

template <class Rows>
struct Scaling<Operands::SCALED, Rows> {
    static constexpr uint32_t EXPONENT_BITS = 8;
    static_assert(Rows::COPIES <= 4, "the inverses' exponents are one register");
    // Of 1 / factor, which is a power of two and a normal number; shared memory has no room for them beside a second block's tiles.
    uint32_t exponents;

    __device__ Scaling(const LinearHalfArgs& args, int first) : exponents(0) {
#pragma unroll
        for (int copy = 0; copy < Rows::COPIES; copy++) {
            const float factor = args.factors[min(first + Rows::row_of(copy), args.to.rows - 1)];
            exponents |= (254 - (__float_as_uint(factor) >> 23)) << EXPONENT_BITS * copy;
        }
    }

    __device__ uint4 operator()(const uint4& eight, int copy) const {
        const float inverse = __uint_as_float((exponents >> EXPONENT_BITS * copy & 255) << 23);
        const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
        float all[GROUP];
#pragma unroll
        for (int i = 0; i < GROUP; i++) all[i] = f32_of_bf16(static_cast<uint16_t>(pairs[i / 2] >> (i % 2 * 16))) * inverse;
        return f16_of_floats(all);
    }
};

template <class Type, int SIDE, Operands OF>
__device__ void multiply_decoded(const LinearHalfArgs& args) {
    constexpr int THREADS = 2 * SIDE;
    constexpr int TILE = SIDE * DEPTH;
    constexpr int ACROSS = THREADS / WARP / 2;  // warps beside each other
    constexpr bool ASYNCHRONOUS = COPIES_ARE_ASYNCHRONOUS && OF != Operands::SCALED;
    // What waits for products in registers would be spilled: on 7.5 weights are decoded after them, while another block's go on.
    constexpr bool STARTS_EARLY = ASYNCHRONOUS || !HAS_LARGE_BLOCKS<Type>;
    using Sums = WarpSums<SIDE / 32, SIDE / ACROSS / 8>;
    // Two stages of each operand; afterwards the buffers of the sums.
    __shared__ TILES_ALIGNED uint16_t tiles[4 * TILE];
    static_assert(THREADS / WARP * Sums::BUFFER_LENGTH * sizeof(float) <= sizeof(tiles), "the sums' buffers fit");
    const TilePlace tile(args.to, SIDE, SIDE);
    // Those in f16 are one matrix, which was made for this product.
    constexpr int INPUTS = OF == Operands::F16 ? 1 : HALF_INPUTS;
    JoinedRows<SIDE, THREADS, INPUTS, ASYNCHRONOUS> x(args, tile.row);
    const Scaling<OF, HalfRows<SIDE, THREADS, ASYNCHRONOUS>> scaling(args, tile.row);
    DecodedRow<Type, OF> w(args, tile.column);
    const int steps = (args.depth + DEPTH - 1) / DEPTH;
    const int warp = threadIdx.x / WARP;
    const int row = warp / ACROSS * (SIDE / 2);
    const int column = warp % ACROSS * (SIDE / ACROSS);
    uint16_t* full = tiles;
    uint16_t* free = tiles + 2 * TILE;
    Sums sums;
    x.start(full, 0);
    w.decode(0);
    w.put(full + TILE);
    x.rows.finish(full, scaling);
    copy_async_wait<0>();
    __syncthreads();
    for (int step = 0; step < steps; step++) {
        // The last step's next one is itself, and not used: without a branch the compiler mixes decoding with products.
        const int next = min(step + 1, steps - 1) * DEPTH;
        if constexpr (STARTS_EARLY) x.start(free, next);
        if constexpr (ASYNCHRONOUS) w.decode(next);
        sums.template add<OF == Operands::BF16>(full, row, full + TILE, column);
        if constexpr (STARTS_EARLY) x.rows.finish(free, scaling);
        if constexpr (!STARTS_EARLY) x.start(free, next);
        if constexpr (!ASYNCHRONOUS) w.decode(next);
        w.put(free + TILE);
        if constexpr (!STARTS_EARLY) x.rows.finish(free, scaling);
        copy_async_wait<0>();
        __syncthreads();
        uint16_t* was_full = full;
        full = free;
        free = was_full;
    }
    float* buffer = reinterpret_cast<float*>(tiles) + warp * Sums::BUFFER_LENGTH;
    sums.store(args.to, args.factors, tile.row + row, tile.column + column, buffer);
}

// The two sizes of a type's kernel. Two blocks of 256 threads are to run on a multiprocessor together, and five of 128;
// four on 7.5, whose copies need registers.
constexpr int SMALL_BLOCKS = COPIES_ARE_ASYNCHRONOUS ? 5 : 4;

#define LINEAR_DECODED(family, name, Type, OF)                                                               \
    extern "C" __global__ void __launch_bounds__(256, 2) family##_##name##_large(LinearHalfArgs args) { \
        multiply_decoded<Type, 128, OF>(args);                                                               \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(128, SMALL_BLOCKS) family##_##name##_small(LinearHalfArgs args) { \
        multiply_decoded<Type, 64, OF>(args);                                                                \
    }

// What there are kernels for: the types that models mostly have, and one for all others but f32 and f16.
#define EACH_QUANTISED(M)                                                                             \
    M(f8_e4m3, F8_E4M3) M(f8_e5m2, F8_E5M2) M(q8_0, Q8_0) M(q4_0, Q4_0) M(q4_k, Q4_K) M(q5_k, Q5_K) \
    M(q6_k, Q6_K) M(any, AnyStorage)
#define EACH_DECODED(M) M(bf16, BF16) EACH_QUANTISED(M)
