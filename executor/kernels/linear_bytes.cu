// Linear layers on tensor cores whose activations and weights are signed bytes: out = activation(sums · scale + bias).
//
// What each 32 of the depth add to a sum is
//   (whole number · w's scale) · x's scale
// of which the whole number is exact. So a sum depends on nothing but the depth, whatever tile its element falls into.
//
// x, w: [rows, depth] and [columns, depth], as quantise.cu and decode_bytes.cu write them, multiples of 32 deep.
//
// Grid: one block for each tile of the output, of 128 x 96 or 64 x 64, in one dimension. Blocks: 128 threads. Tiles lie in shared memory
// as those of 16-bit numbers do (half_tile.cuh), two bytes in each number's place, and so are 64 deep. One is copied while another is
// multiplied.
#include "half_tile.cuh"
#include "mma_bytes.cuh"
#include "row_places.cuh"

namespace linear_bytes {

// Numbers of a row that share a scale.
constexpr int BLOCK = 32;
// Such blocks of a tile.
constexpr int TILE_BLOCKS = 2;
constexpr int TILE_BYTES = BLOCK * TILE_BLOCKS;
constexpr int CHUNK_BYTES = 16;

// Threads of a block, four warps that compute a quarter of the tile each.
constexpr int THREADS = 128;

struct LinearBytesArgs {
    LinearOut to;
    const uint8_t* x;
    const float* x_scales;  // [depth / 32, x_stride], rows in the order of row_places.cuh
    const uint8_t* w;
    const float* w_scales;  // [depth / 32, w_stride]
    int32_t depth;
    int32_t x_stride;  // a multiple of 64
    int32_t w_stride;  // a multiple of four
    uint32_t padding;
};

// What is multiplied together, in shared memory.
template <int ROWS, int COLUMNS>
struct TILES_ALIGNED Stage {
    uint16_t x[ROWS * DEPTH];
    uint16_t w[COLUMNS * DEPTH];
    float x_scales[TILE_BLOCKS][ROWS];
    float w_scales[TILE_BLOCKS][COLUMNS];
};

// The scales of one tile after the other: each thread copies a chunk of x's or of w's, or none.
template <int ROWS, int COLUMNS>
struct ScaleRows {
    static constexpr int CHUNK = 4;
    static constexpr int X_SHARERS = TILE_BLOCKS * ROWS / CHUNK;  // threads that copy x's
    static constexpr int W_SHARERS = TILE_BLOCKS * COLUMNS / CHUNK;
    static_assert(X_SHARERS + W_SHARERS <= THREADS, "each thread has a chunk at most");

    const bool of_x;
    const int index;    // of the chunk, row by row
    const float* from;  // it, of the next tile
    int further;        // from there to that of the one after
    int blocks;         // from the chunk's one on; none where there is no chunk

    __device__ ScaleRows(const LinearBytesArgs& args, const TilePlace& tile)
        : of_x(threadIdx.x < X_SHARERS), index(static_cast<int>(threadIdx.x) - (of_x ? 0 : X_SHARERS)) {
        const int row_chunks = (of_x ? ROWS : COLUMNS) / CHUNK;
        const int stride = of_x ? args.x_stride : args.w_stride;
        const int block = index / row_chunks;
        const int at = (of_x ? tile.row : tile.column) + index % row_chunks * CHUNK;
        from = (of_x ? args.x_scales : args.w_scales) + static_cast<int64_t>(block) * stride + at;
        further = TILE_BLOCKS * stride;
        blocks = at < stride ? args.depth / BLOCK - block : 0;
    }

    // Starts to copy those of the next tile; beyond the depth and the last column they are zeros.
    __device__ void start(Stage<ROWS, COLUMNS>& stage) {
        if (threadIdx.x < X_SHARERS + W_SHARERS) {
            float* to = of_x ? stage.x_scales[0] : stage.w_scales[0];
            copy_async_16(to + index * CHUNK, from, blocks > 0);
        }
        from += further;
        blocks -= TILE_BLOCKS;
    }
};

// Rows of x or of w as tiles. Rows past the end are the last one again: what they give is never stored.
template <int COUNT>
struct ByteRows {
    static constexpr int COPIES = COUNT * ROW_CHUNKS / THREADS;
    static constexpr int APART = THREADS / ROW_CHUNKS;  // rows from a thread's chunk to its next one
    static_assert(COPIES * THREADS == COUNT * ROW_CHUNKS, "each thread copies as many chunks");
    static_assert(APART % 8 == 0, "a thread's chunks lie in the same order in their rows");
    // Of this thread's chunks of the first tile, from the beginning of the matrix: bytes, of which it has fewer than 2^32.
    uint32_t offsets[COPIES];
    uint4 held[COPIES_ARE_ASYNCHRONOUS ? 1 : COPIES];

    // `row_bytes`: of a row of the matrix.
    __device__ ByteRows(uint32_t row_bytes, int first, int count) {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const int row = first + static_cast<int>(threadIdx.x) / ROW_CHUNKS + i * APART;
            offsets[i] = min(row, count - 1) * row_bytes + own_chunk() * CHUNK_BYTES;
        }
    }

    static __device__ uint16_t* place_of(uint16_t* tile, int copy) {
        return tile + chunk_at(static_cast<int>(threadIdx.x) / ROW_CHUNKS, own_chunk()) + copy * (APART * DEPTH);
    }

    // Starts to copy a tile: `matrix` is as far from its beginning as the tile from the first one. Beyond the depth nothing is read.
    __device__ void start(uint16_t* tile, const uint8_t* matrix, bool within) {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const uint8_t* source = matrix + offsets[i];
            if constexpr (COPIES_ARE_ASYNCHRONOUS) {
                copy_async_16(place_of(tile, i), source, within);
            } else {
                held[i] = within ? *reinterpret_cast<const uint4*>(source) : make_uint4(0, 0, 0, 0);
            }
        }
    }

    // What is left to do of that once there is time.
    __device__ void finish(uint16_t* tile) const {
        if constexpr (!COPIES_ARE_ASYNCHRONOUS) {
#pragma unroll
            for (int i = 0; i < COPIES; i++) *reinterpret_cast<uint4*>(place_of(tile, i)) = held[i];
        }
    }
};

// Adding this to a whole number below 2^22 gives a float whose lowest bits are the number.
constexpr float RAISE = 12582912.0f;
constexpr int RAISE_BITS = 0x4b400000;

// number · scale for a sum that began with RAISE_BITS. Rounded once: a scale has 11 bits, and RAISE two, so `raised` = -RAISE · scale is
// exact.
__device__ inline float scaled_number(int number, float scale, float raised) {
    return __fmaf_rn(__int_as_float(number), scale, raised);
}

// Adds to sums of an upper and a lower row and two columns what a block gives.
__device__ inline void add_terms(float (&sums)[4], const uint32_t (&left)[4], const uint32_t (&right)[2], float2 w_scales, float2 x_scales) {
    int numbers[4];
    mma_s8(numbers, left, right, RAISE_BITS);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float scale = i % 2 == 0 ? w_scales.x : w_scales.y;
        const float term = scaled_number(numbers[i], scale, __fmul_rn(scale, -RAISE));
        sums[i] = __fmaf_rn(term, i < 2 ? x_scales.x : x_scales.y, sums[i]);
    }
}

// Adds the products of a tile's rows from `row` on with its columns from `column` on.
template <int ROWS, int COLUMNS, int M, int N>
__device__ inline void add(WarpSums<M, N>& sums, const Stage<ROWS, COLUMNS>& stage, int row, int column) {
    const int lane = threadIdx.x % WARP;
    const SharedAddress x_at = left_at(stage.x, row);
    const SharedAddress w_at = right_at(stage.w, column);
    const int x_row = row_place(row + lane / 4);
    const int w_row = column + lane % 4 * 2;
#pragma unroll 1
    for (int block = 0; block < TILE_BLOCKS; block++) {
        uint32_t right[N][2];
        read_right(right, w_at, block);
        float2 w_scales[N];
#pragma unroll
        for (int n = 0; n < N; n++) w_scales[n] = *reinterpret_cast<const float2*>(&stage.w_scales[block][w_row + 8 * n]);
#pragma unroll
        for (int m = 0; m < M; m++) {
            uint32_t left[4];
            read_left(left, x_at, m, block);
            // Of the upper row, and of that eight below it.
            const float2 x_scales = *reinterpret_cast<const float2*>(&stage.x_scales[block][x_row + 2 * m]);
#pragma unroll
            for (int n = 0; n < N; n++) add_terms(sums.sums[m][n], left, right[n], w_scales[n], x_scales);
        }
    }
}

template <int ROWS, int COLUMNS>
__device__ void multiply(const LinearBytesArgs& args) {
    using Sums = WarpSums<ROWS / 32, COLUMNS / 16>;
    using Of = Stage<ROWS, COLUMNS>;
    // One is filled while the other is multiplied; afterwards the buffers of the sums.
    __shared__ Of stages[2];
    static_assert(THREADS / WARP * Sums::BUFFER_LENGTH * sizeof(float) <= sizeof(stages), "the sums' buffers fit");
    // Kept there, as registers are few.
    __shared__ int2 place;
    const TilePlace tile(args.to, ROWS, COLUMNS);
    if (threadIdx.x == 0) place = make_int2(tile.row, tile.column);
    ByteRows<ROWS> x(args.depth, tile.row, args.to.rows);
    ByteRows<COLUMNS> w(args.depth, tile.column, args.to.columns);
    ScaleRows<ROWS, COLUMNS> scales(args, tile);
    const int warp = threadIdx.x / WARP;
    const int row = warp / 2 * (ROWS / 2);
    const int column = warp % 2 * (COLUMNS / 2);
    Sums sums;
    const auto start = [&](Of& stage, int from) {
        const bool within = from + own_chunk() * CHUNK_BYTES < args.depth;
        scales.start(stage);
        x.start(stage.x, args.x + from, within);
        w.start(stage.w, args.w + from, within);
        copy_async_commit();
    };
    const auto finish = [&](Of& stage) {
        x.finish(stage.x);
        w.finish(stage.w);
        copy_async_wait<0>();
        __syncthreads();
    };
    start(stages[0], 0);
    finish(stages[0]);
#pragma unroll 1
    for (int step = 0; step * TILE_BYTES < args.depth; step++) {
        // After the last one zeros are written, that nobody reads.
        start(stages[1 - step % 2], (step + 1) * TILE_BYTES);
        add<ROWS, COLUMNS>(sums, stages[step % 2], row, column);
        finish(stages[1 - step % 2]);
    }
    float* buffer = reinterpret_cast<float*>(stages) + warp * Sums::BUFFER_LENGTH;
    sums.store(args.to, nullptr, place.x + row, place.y + column, buffer);
}

}  // namespace linear_bytes

#define LINEAR_BYTES(name, ROWS, COLUMNS, BLOCKS)                                                                       \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS) linear_bytes_##name(linear_bytes::LinearBytesArgs args) { \
        linear_bytes::multiply<ROWS, COLUMNS>(args);                                                                    \
    }
LINEAR_BYTES(small, 64, 64, 3)
// On 7.5 one such block would take all shared memory.
#if !defined(__CUDACC_RTC__) || __CUDA_ARCH__ >= 800
LINEAR_BYTES(large, 128, 96, 2)
#endif
