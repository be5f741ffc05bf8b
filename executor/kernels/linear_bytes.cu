// Linear layers on tensor cores whose activations and weights are signed bytes: out = activation(sums · scale + bias).
//
// A sum is formed of runs of the depth, 32 of them or 16, that share a scale of the weight. What a run adds to it is
//   (whole number · w's scale) · x's scale + w's summand · x's sum
// of which the whole number is exact. So a sum depends on the depth and the run, whatever tile its element falls into.
//
// x, w: [rows, depth] and [columns, depth], as quantise.cu and decode_bytes.cu write them, multiples of 32 deep.
//
// Grid: one block for each tile of the output, of 128 x 96, 128 x 64 or 64 x 64, in one dimension. Blocks: 128 threads. Tiles lie in
// shared memory as those of 16-bit numbers do (half_tile.cuh), two bytes in each number's place, and so are 64 deep. One is copied
// while another is multiplied.
#include "half_tile.cuh"
#include "mma_bytes.cuh"
#include "row_places.cuh"

namespace linear_bytes {

// Numbers of x that share a scale.
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
    const float* w_scales;  // [depth / run, w_stride]
    int32_t depth;
    int32_t x_stride;  // a multiple of 64
    int32_t w_stride;  // a multiple of four
    // From x's scales to the sums of what is quantised, and from w's scales to its summands: numbers. Where w has summands.
    int32_t x_sums;
    int32_t w_summands;
    uint32_t padding;
};

// What is multiplied together, in shared memory.
template <int RUN, bool SUMMANDS, int ROWS, int COLUMNS>
struct TILES_ALIGNED Stage {
    static constexpr int RUNS = BLOCK / RUN;  // of a block
    uint16_t x[ROWS * DEPTH];
    uint16_t w[COLUMNS * DEPTH];
    // Scales, and then sums and summands.
    float x_rows[TILE_BLOCKS * (SUMMANDS ? 2 : 1)][ROWS];
    float w_rows[TILE_BLOCKS * (SUMMANDS ? 2 : RUNS)][COLUMNS];
};

// The scales of one tile after the other, with sums and summands: each thread copies chunks of x's or of w's, or none.
template <int RUN, bool SUMMANDS, int ROWS, int COLUMNS>
struct ScaleRows {
    using Of = Stage<RUN, SUMMANDS, ROWS, COLUMNS>;
    static constexpr int CHUNK = 4;
    static constexpr int X_SHARERS = TILE_BLOCKS * ROWS / CHUNK;  // threads that copy x's
    static constexpr int W_SHARERS = TILE_BLOCKS * COLUMNS / CHUNK;
    static_assert(X_SHARERS + W_SHARERS <= THREADS, "each thread has a chunk at most");

    const bool of_x;
    const int index;    // of the chunk, row by row
    const float* from;  // it, of the next tile
    int further;        // from there to that of the one after
    int second;         // to the thread's second chunk: of sums and summands, or of w's later runs
    int rows;           // from the chunk's one on; none where there is no chunk

    __device__ ScaleRows(const LinearBytesArgs& args, const TilePlace& tile)
        : of_x(threadIdx.x < X_SHARERS), index(static_cast<int>(threadIdx.x) - (of_x ? 0 : X_SHARERS)) {
        const int row_chunks = (of_x ? ROWS : COLUMNS) / CHUNK;
        const int stride = of_x ? args.x_stride : args.w_stride;
        const int row = index / row_chunks;
        const int at = (of_x ? tile.row : tile.column) + index % row_chunks * CHUNK;
        from = (of_x ? args.x_scales : args.w_scales) + static_cast<int64_t>(row) * stride + at;
        further = TILE_BLOCKS * (of_x ? 1 : Of::RUNS) * stride;
        second = !SUMMANDS ? TILE_BLOCKS * stride : of_x ? args.x_sums : args.w_summands;
        rows = at < stride ? args.depth / (of_x ? BLOCK : RUN) - row : 0;
    }

    // Starts to copy those of the next tile; beyond the depth and the last column they are zeros.
    __device__ void start(Of& stage) {
        if (threadIdx.x < X_SHARERS + W_SHARERS) {
            float* to = (of_x ? stage.x_rows[0] : stage.w_rows[0]) + index * CHUNK;
            float* later = to + TILE_BLOCKS * (of_x ? ROWS : COLUMNS);
            copy_async_16(to, from, rows > 0);
            if constexpr (SUMMANDS) {
                copy_async_16(later, from + second, rows > 0);
            } else if constexpr (Of::RUNS > 1) {
                if (!of_x) copy_async_16(later, from + second, rows > TILE_BLOCKS);
            }
        }
        from += further;
        rows -= TILE_BLOCKS * (of_x ? 1 : Of::RUNS);
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

// number · scale for a sum that began with RAISE_BITS. Rounded once: a scale has 18 bits at most, an f16 times seven bits, and
// RAISE two, so `raised` = -RAISE · scale is exact.
__device__ inline float scaled_number(int number, float scale, float raised) {
    return __fmaf_rn(__int_as_float(number), scale, raised);
}

// Adds to sums of an upper and a lower row and two columns what a block gives.
template <int RUN>
__device__ inline void add_terms(
    float (&sums)[4], const uint32_t (&left)[4], const uint32_t (&right)[2], const float2 (&scales)[BLOCK / RUN], float2 x_scales) {
    constexpr int RUNS = BLOCK / RUN;
    int numbers[RUNS][4];
    if constexpr (RUNS == 1) {
        mma_s8(numbers[0], left, right, RAISE_BITS);
    } else {
#pragma unroll
        for (int run = 0; run < RUNS; run++) mma_s8_half(numbers[run], left[2 * run], left[2 * run + 1], right[run], RAISE_BITS);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float term = 0.0f;
#pragma unroll
        for (int run = 0; run < RUNS; run++) {
            const float scale = i % 2 == 0 ? scales[run].x : scales[run].y;
            const float next = scaled_number(numbers[run][i], scale, __fmul_rn(scale, -RAISE));
            term = run == 0 ? next : __fadd_rn(term, next);
        }
        sums[i] = __fmaf_rn(term, i < 2 ? x_scales.x : x_scales.y, sums[i]);
    }
}

// Adds the product of two rows' numbers with two columns'.
__device__ inline void add_outer(float (&sums)[4], float2 rows, float2 columns) {
    sums[0] = __fmaf_rn(columns.x, rows.x, sums[0]);
    sums[1] = __fmaf_rn(columns.y, rows.x, sums[1]);
    sums[2] = __fmaf_rn(columns.x, rows.y, sums[2]);
    sums[3] = __fmaf_rn(columns.y, rows.y, sums[3]);
}

// Adds the products of a tile's rows from `row` on with its columns from `column` on.
template <int RUN, bool SUMMANDS, int ROWS, int COLUMNS, int M, int N>
__device__ inline void add(WarpSums<M, N>& sums, const Stage<RUN, SUMMANDS, ROWS, COLUMNS>& stage, int row, int column) {
    constexpr int RUNS = BLOCK / RUN;
    const int lane = threadIdx.x % WARP;
    const SharedAddress x_at = left_at(stage.x, row);
    const SharedAddress w_at = right_at(stage.w, column);
    const int x_row = row_place(row + lane / 4);
    const int w_row = column + lane % 4 * 2;
#pragma unroll 1
    for (int block = 0; block < TILE_BLOCKS; block++) {
        uint32_t right[N][2];
        read_right(right, w_at, block);
        float2 scales[N][RUNS];
        float2 summands[N];
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float* rows = &stage.w_rows[block * RUNS][w_row + 8 * n];
#pragma unroll
            for (int run = 0; run < RUNS; run++) scales[n][run] = *reinterpret_cast<const float2*>(rows + run * COLUMNS);
            if constexpr (SUMMANDS) summands[n] = *reinterpret_cast<const float2*>(rows + TILE_BLOCKS * COLUMNS);
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            uint32_t left[4];
            read_left(left, x_at, m, block);
            // Of the upper row, and of that eight below it.
            const float* rows = &stage.x_rows[block][x_row + 2 * m];
            const float2 x_scales = *reinterpret_cast<const float2*>(rows);
            float2 x_sums = {};
            if constexpr (SUMMANDS) x_sums = *reinterpret_cast<const float2*>(rows + TILE_BLOCKS * ROWS);
#pragma unroll
            for (int n = 0; n < N; n++) {
                add_terms<RUN>(sums.sums[m][n], left, right[n], scales[n], x_scales);
                if constexpr (SUMMANDS) add_outer(sums.sums[m][n], x_sums, summands[n]);
            }
        }
    }
}

template <int RUN, bool SUMMANDS, int ROWS, int COLUMNS>
__device__ void multiply(const LinearBytesArgs& args) {
    using Sums = WarpSums<ROWS / 32, COLUMNS / 16>;
    using Of = Stage<RUN, SUMMANDS, ROWS, COLUMNS>;
    // One is filled while the other is multiplied; afterwards the buffers of the sums.
    __shared__ Of stages[2];
    static_assert(THREADS / WARP * Sums::BUFFER_LENGTH * sizeof(float) <= sizeof(stages), "the sums' buffers fit");
    // Kept there, as registers are few.
    __shared__ int2 place;
    const TilePlace tile(args.to, ROWS, COLUMNS);
    if (threadIdx.x == 0) place = make_int2(tile.row, tile.column);
    ByteRows<ROWS> x(args.depth, tile.row, args.to.rows);
    ByteRows<COLUMNS> w(args.depth, tile.column, args.to.columns);
    ScaleRows<RUN, SUMMANDS, ROWS, COLUMNS> scales(args, tile);
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
        add<RUN, SUMMANDS, ROWS, COLUMNS>(sums, stages[step % 2], row, column);
        finish(stages[1 - step % 2]);
    }
    float* buffer = reinterpret_cast<float*>(stages) + warp * Sums::BUFFER_LENGTH;
    sums.store(args.to, nullptr, place.x + row, place.y + column, buffer);
}

}  // namespace linear_bytes

// By what the weights have: a scale for each 32 numbers or 16, and whether a summand stands beside it.
#define LINEAR_BYTES(name, RUN, SUMMANDS, ROWS, COLUMNS, BLOCKS)                                                      \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS) linear_bytes_##name(linear_bytes::LinearBytesArgs args) { \
        linear_bytes::multiply<RUN, SUMMANDS, ROWS, COLUMNS>(args);                                                   \
    }
#define LINEAR_BYTES_SMALL(name, RUN, SUMMANDS) LINEAR_BYTES(name##_small, RUN, SUMMANDS, 64, 64, 3)
LINEAR_BYTES_SMALL(32, 32, false)
LINEAR_BYTES_SMALL(32_plus, 32, true)
LINEAR_BYTES_SMALL(16, 16, false)
// On 7.5 one such block would take all shared memory.
#if !defined(__CUDACC_RTC__) || __CUDA_ARCH__ >= 800
LINEAR_BYTES(32_large, 32, false, 128, 96, 2)
LINEAR_BYTES(32_plus_large, 32, true, 128, 96, 2)
LINEAR_BYTES(16_large, 16, false, 128, 64, 2)
#endif
