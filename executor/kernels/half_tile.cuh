// The product of two tiles of 16-bit numbers in shared memory by one warp, on tensor cores with f32 sums.
//
// A tile is [rows, 32]: 64 bytes a row, four chunks of 16 bytes. Chunk c of row r lies at c ^ (r / 2 % 4), so that eight rows at
// one depth (a matrix of ldmatrix), and two whole rows (eight copies of 16 bytes), each touch all 32 banks once.
//
// Invariant: a sum is formed over the depth in steps of 16, in order, whatever tile its element falls into.
#pragma once

#include "linear.cuh"
#include "mma.cuh"

// The summed dimension of a tile.
constexpr int DEPTH = 32;
// 16-bit numbers in 16 bytes.
constexpr int CHUNK = 8;
constexpr int ROW_CHUNKS = DEPTH / CHUNK;

// Where a chunk of a tile lies, in numbers from its start.
__device__ inline int chunk_at(int row, int chunk) {
    return row * DEPTH + (chunk ^ (row / 2 % 4)) * CHUNK;
}

// The argument of each of these kernels.
struct LinearHalfArgs {
    LinearOut to;
    const uint16_t* x;     // [rows, x_stride]; what follows the depth is zero
    const float* factors;  // [rows], or null
    const uint8_t* w;      // [columns, depth]
    int64_t x_stride;      // elements; a multiple of 8, as x begins at a multiple of 16 bytes
    int64_t row_bytes;     // of a row of w
    int32_t depth;
    int32_t padding;
};

// Whether copies from global to shared memory pass no register.
#if !defined(__CUDACC_RTC__) || __CUDA_ARCH__ >= 800
#define COPIES_ARE_ASYNCHRONOUS 1
#else
#define COPIES_ARE_ASYNCHRONOUS 0
#endif

// Rows of a matrix [count, stride] of 16-bit numbers as tiles of ROWS, copied by THREADS threads. Rows past the end are the last
// one again: what they give is never stored.
template <int ROWS, int THREADS>
struct HalfRows {
    static constexpr int COPIES = ROWS * ROW_CHUNKS / THREADS;
    static_assert(COPIES * THREADS == ROWS * ROW_CHUNKS, "each thread copies as many chunks");
    const uint16_t* from[COPIES];
#if !COPIES_ARE_ASYNCHRONOUS
    uint4 held[COPIES];
#endif

    __device__ HalfRows(const uint16_t* matrix, int64_t stride, int first, int count) {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const int row = min(first + row_of(i), count - 1);
            from[i] = matrix + row * stride + threadIdx.x % ROW_CHUNKS * CHUNK;
        }
    }

    // The row of a tile whose chunk is this thread's copy `i`.
    static __device__ int row_of(int i) { return (static_cast<int>(threadIdx.x) + i * THREADS) / ROW_CHUNKS; }

    // Starts to copy what is at `depth`; chunks from `end` on are zeros.
    __device__ void start(uint16_t* tile, int depth, int end) {
        const bool valid = depth + static_cast<int>(threadIdx.x) % ROW_CHUNKS * CHUNK < end;
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const uint16_t* source = valid ? from[i] + depth : from[i];
#if COPIES_ARE_ASYNCHRONOUS
            copy_async_16(tile + chunk_at(row_of(i), threadIdx.x % ROW_CHUNKS), source, valid);
#else
            held[i] = valid ? *reinterpret_cast<const uint4*>(source) : make_uint4(0, 0, 0, 0);
#endif
        }
        copy_async_commit();
    }

    // What is left to do of the last copies once there is time, before they are waited for.
    __device__ void finish(uint16_t* tile) const {
#if !COPIES_ARE_ASYNCHRONOUS
#pragma unroll
        for (int i = 0; i < COPIES; i++)
            *reinterpret_cast<uint4*>(tile + chunk_at(row_of(i), threadIdx.x % ROW_CHUNKS)) = held[i];
#endif
    }
};

// The sums of a warp: M × 16 rows and N × 8 columns.
template <int M, int N>
struct WarpSums {
    float sums[M][N][4];

    __device__ WarpSums() {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) sums[m][n][i] = 0.0f;
    }

    // Adds the products of rows from `row` on of tile `a` with rows from `column` on of tile `b`, both multiples of 8.
    template <bool BF16_NUMBERS>
    __device__ void add(const uint16_t* a, int row, const uint16_t* b, int column) {
        const int lane = threadIdx.x % WARP;
        const uint16_t* a_row = a + (row + lane % 16) * DEPTH;
        const uint16_t* b_row = b + (column + lane / 16 * 8 + lane % 8) * DEPTH;
        const int swizzle = lane / 2 % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int a_chunk = ((2 * half + lane / 16) ^ swizzle) * CHUNK;
            const int b_chunk = ((2 * half + lane / 8 % 2) ^ swizzle) * CHUNK;
            uint32_t left[M][4];
            uint32_t right[N][2];
#pragma unroll
            for (int m = 0; m < M; m++) ldmatrix_x4(left[m], a_row + 16 * m * DEPTH + a_chunk);
#pragma unroll
            for (int n = 0; n < N; n += 2) {
                uint32_t both[4];
                ldmatrix_x4(both, b_row + 8 * n * DEPTH + b_chunk);
                right[n][0] = both[0], right[n][1] = both[1];
                right[n + 1][0] = both[2], right[n + 1][1] = both[3];
            }
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int n = 0; n < N; n++) {
                    if constexpr (BF16_NUMBERS) {
                        mma_bf16(sums[m][n], left[m], right[n]);
                    } else {
                        mma_f16(sums[m][n], left[m], right[n]);
                    }
                }
        }
    }

    // Finishes and stores the sums, the first of which is that of `row` and `column`; they are lost. `factors`: [rows], or null.
    // They pass through `buffer`, shared memory of the warp's own of BUFFER_LENGTH, so that a row's neighbours are stored
    // together, and the rows one after the other, so that the code of finishing is there once.
    __device__ void store(const LinearOut& to, const float* factors, int row, int column, float* buffer) {
        const int lane = threadIdx.x % WARP;
        float* pair = buffer + lane / 4 * BUFFER_STRIDE + lane % 4 * 2;
#pragma unroll 1
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float* four = sums[0][n];
                *reinterpret_cast<float2*>(pair + 8 * n) = make_float2(four[0], four[1]);
                *reinterpret_cast<float2*>(pair + 8 * n + 8 * BUFFER_STRIDE) = make_float2(four[2], four[3]);
            }
            __syncwarp();
            store_rows(to, factors, row + 16 * m, column, buffer);
            __syncwarp();
            // Registers have no index: the next sums move to the first place.
#pragma unroll
            for (int next = 1; next < M; next++)
#pragma unroll
                for (int n = 0; n < N; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) sums[next - 1][n][i] = sums[next][n][i];
        }
    }

    // Eight more than the columns: then 16 lanes that write pairs of four rows touch all banks once.
    static constexpr int BUFFER_STRIDE = 8 * N + 8;
    static constexpr int BUFFER_LENGTH = 16 * BUFFER_STRIDE;

    // Sixteen rows of the buffer.
    static __device__ void store_rows(const LinearOut& to, const float* factors, int row, int column, const float* buffer) {
        const int count = min(16, to.rows - row);
#pragma unroll 1
        for (int at = threadIdx.x % WARP; at < 8 * N && column + at < to.columns; at += WARP) {
            const float bias = bias_of(to, column + at);
            float* out = place_of(to, row, column + at);
#pragma unroll 1
            for (int i = 0; i < count; i++) {
                const float factor = factors == nullptr ? 1.0f : factors[row + i];
                out[i * to.stride] = finished(to, buffer[i * BUFFER_STRIDE + at] * factor, bias);
            }
        }
    }
};
