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

// Tiles begin at multiples of a row's bytes, so that the address of chunk c ^ 2 is that of c with one other bit.
#define TILES_ALIGNED __align__(2 * DEPTH)

// Inputs of a layer, at most.
constexpr int HALF_INPUTS = 4;

// The argument of each of these kernels.
struct LinearHalfArgs {
    LinearOut to;
    const uint16_t* x[HALF_INPUTS];  // [rows, features] each, thought beside each other
    const float* factors;            // [rows], or null
    const uint8_t* w;                // [columns, depth]
    int64_t row_bytes;               // of a row of w
    // Of each input, multiples of 8, as inputs begin at multiples of 16 bytes. Beyond the depth x is zero.
    int32_t features[HALF_INPUTS];
    // Where each input but the first begins, in features of all; the largest number where there are fewer.
    int32_t begins[HALF_INPUTS - 1];
    int32_t depth;
};

// Whether copies from global to shared memory pass no register.
#if !defined(__CUDACC_RTC__) || __CUDA_ARCH__ >= 800
constexpr bool COPIES_ARE_ASYNCHRONOUS = true;
#else
constexpr bool COPIES_ARE_ASYNCHRONOUS = false;
#endif

// Which chunk of its rows a thread copies into each tile.
__device__ inline int own_chunk() {
    return static_cast<int>(threadIdx.x) % ROW_CHUNKS;
}

// Rows of a matrix [count, stride] of 16-bit numbers as tiles of ROWS, copied by THREADS threads. Rows past the end are the last
// one again: what they give is never stored.
template <int ROWS, int THREADS, bool ASYNCHRONOUS = COPIES_ARE_ASYNCHRONOUS>
struct HalfRows {
    static constexpr int COPIES = ROWS * ROW_CHUNKS / THREADS;
    static constexpr int STEP = THREADS / ROW_CHUNKS;  // rows from a thread's copy to its next one
    static_assert(COPIES * THREADS == ROWS * ROW_CHUNKS, "each thread copies as many chunks");
    static_assert(STEP % 8 == 0, "a thread's copies lie in the same order in their rows");
    const uint16_t* from;    // the row of the first copy
    int32_t further[COPIES];  // of the others: elements from there on
    uint4 held[ASYNCHRONOUS ? 1 : COPIES];

    // The row of a tile whose chunk is this thread's copy `i`.
    static __device__ int row_of(int i) { return (static_cast<int>(threadIdx.x) + i * THREADS) / ROW_CHUNKS; }

    // Where this thread's copy `i` lies in a tile.
    static __device__ uint16_t* place_of(uint16_t* tile, int i) {
        return tile + chunk_at(row_of(0), own_chunk()) + i * (STEP * DEPTH);
    }

    // Turns to rows of a matrix from `first` on.
    __device__ void turn_to(const uint16_t* matrix, int32_t stride, int first, int count) {
        const int start = min(first + row_of(0), count - 1);
        from = matrix + static_cast<int64_t>(start) * stride + own_chunk() * CHUNK;
#pragma unroll
        for (int i = 0; i < COPIES; i++) further[i] = (min(first + row_of(i), count - 1) - start) * stride;
    }

    // Starts to copy what is at `depth`; where there is no chunk nothing is read, and zeros are written.
    __device__ void start(uint16_t* tile, int depth, bool valid) {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const uint16_t* source = from + (further[i] + (valid ? depth : 0));
            if constexpr (ASYNCHRONOUS) {
                copy_async_16(place_of(tile, i), source, valid);
            } else {
                held[i] = valid ? *reinterpret_cast<const uint4*>(source) : make_uint4(0, 0, 0, 0);
            }
        }
        copy_async_commit();
    }

    // What is left to do of the last copies once there is time, before they are waited for: `change(eight numbers, which copy)`
    // is what is stored.
    template <class Change>
    __device__ void finish(uint16_t* tile, Change change) const {
        if constexpr (!ASYNCHRONOUS) {
#pragma unroll
            for (int i = 0; i < COPIES; i++)
                *reinterpret_cast<uint4*>(place_of(tile, i)) = change(held[i], i);
        }
    }
};

// The same of all inputs, of which there are up to INPUTS, thought beside each other.
template <int ROWS, int THREADS, int INPUTS, bool ASYNCHRONOUS = COPIES_ARE_ASYNCHRONOUS>
struct JoinedRows {
    const LinearHalfArgs& args;
    const int first;
    HalfRows<ROWS, THREADS, ASYNCHRONOUS> rows;  // of the input that has this thread's chunk

    __device__ JoinedRows(const LinearHalfArgs& args, int first) : args(args), first(first) {
        rows.turn_to(args.x[0], args.features[0], first, args.to.rows);
    }

    // Starts to copy what is at `depth`: zero the first time, then as much again as before or a tile further.
    __device__ void start(uint16_t* tile, int depth) {
        const int at = depth + own_chunk() * CHUNK;
        bool turns = false;
#pragma unroll
        for (int input = 1; input < INPUTS; input++) {
            // Whether it began within what this thread has moved by.
            turns |= static_cast<uint32_t>(at - args.begins[input - 1]) < DEPTH;
        }
        if (turns) turn_to(at);
        rows.start(tile, depth, at < args.depth);
    }

    __device__ void turn_to(int at) {
        const uint16_t* matrix = args.x[0];
        int features = args.features[0];
        int begin = 0;
#pragma unroll
        for (int input = 1; input < INPUTS; input++) {
            if (at >= args.begins[input - 1]) {
                matrix = args.x[input];
                features = args.features[input];
                begin = args.begins[input - 1];
            }
        }
        rows.turn_to(matrix - begin, features, first, args.to.rows);
    }
};

// Where this lane begins to read 16 rows of a tile, as the left operand of a product.
__device__ inline SharedAddress left_at(const uint16_t* tile, int row) {
    const int lane = threadIdx.x % WARP;
    return shared_address(tile) + 2 * chunk_at(row + lane % 16, lane / 16);
}

// The same for rows that are the right operand.
__device__ inline SharedAddress right_at(const uint16_t* tile, int row) {
    const int lane = threadIdx.x % WARP;
    return shared_address(tile) + 2 * chunk_at(row + lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

// Reads the m-th 16 rows behind there, one half of their depth.
__device__ inline void read_left(uint32_t (&left)[4], SharedAddress at, int m, int half) {
    ldmatrix_x4(left, (at ^ 32 * half) + 32 * m * DEPTH);
}

// Reads N × 8 rows from there on, one half of their depth.
template <int N>
__device__ inline void read_right(uint32_t (&right)[N][2], SharedAddress at, int half) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t both[4];
        ldmatrix_x4(both, (at ^ 32 * half) + 16 * n * DEPTH);
        right[n][0] = both[0], right[n][1] = both[1];
        right[n + 1][0] = both[2], right[n + 1][1] = both[3];
    }
}

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
        const SharedAddress a_at = left_at(a, row);
        const SharedAddress b_at = right_at(b, column);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t right[N][2];
            read_right(right, b_at, half);
#pragma unroll
            for (int m = 0; m < M; m++) {
                uint32_t left[4];
                read_left(left, a_at, m, half);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    if constexpr (BF16_NUMBERS) {
                        mma_bf16(sums[m][n], left, right[n]);
                    } else {
                        mma_f16(sums[m][n], left, right[n]);
                    }
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

    // Sixteen rows of the buffer. What becomes 16-bit numbers is finished where it lies, and then stored in fours.
    static __device__ void store_rows(const LinearOut& to, const float* factors, int row, int column, float* buffer) {
        const int count = min(16, to.rows - row);
        const bool in_place = to.element != ELEMENT_F32;
        const int64_t stride = in_place ? BUFFER_STRIDE : to.stride;
#pragma unroll 1
        for (int at = threadIdx.x % WARP; at < 8 * N && column + at < to.columns; at += WARP) {
            const float bias = bias_of(to, column + at);
            float* out = in_place ? buffer + at : static_cast<float*>(to.out) + place_of(to, row, column + at);
            if (factors == nullptr && to.activation == ACTIVATION_NONE) {
                // As below, and short enough to be there several times.
                constexpr int AT_ONCE = 8;
#pragma unroll
                for (int first = 0; first < 16; first += AT_ONCE) {
                    float some[AT_ONCE];
#pragma unroll
                    for (int i = 0; i < AT_ONCE; i++)
                        some[i] = __fadd_rn(__fmul_rn(buffer[(first + i) * BUFFER_STRIDE + at], to.scale), bias);
#pragma unroll
                    for (int i = 0; i < AT_ONCE; i++)
                        if (first + i < count) out[(first + i) * stride] = some[i];
                }
                continue;
            }
#pragma unroll 1
            for (int i = 0; i < count; i++) {
                const float factor = factors == nullptr ? 1.0f : factors[row + i];
                out[i * stride] = finished(to, buffer[i * BUFFER_STRIDE + at] * factor, bias);
            }
        }
        if (!in_place) return;
        __syncwarp();
        store_short_rows(to, row, column, buffer);
    }

    // Sixteen rows of finished elements as 16-bit numbers.
    static __device__ void store_short_rows(const LinearOut& to, int row, int column, const float* buffer) {
        constexpr int FOURS = 2 * N;
        const int count = min(16, to.rows - row);
        // Then each four that begins in the output ends there, at a multiple of eight bytes.
        const bool whole = (to.stride | to.from | to.columns) % 4 == 0;
#pragma unroll 1
        for (int item = threadIdx.x % WARP; item < count * FOURS; item += WARP) {
            const int i = item / FOURS;
            const int at = item % FOURS * 4;
            const float4 four = *reinterpret_cast<const float4*>(buffer + i * BUFFER_STRIDE + at);
            const uint32_t low = pair_of(to.element, four.x, four.y);
            const uint32_t high = pair_of(to.element, four.z, four.w);
            uint16_t* out = static_cast<uint16_t*>(to.out) + place_of(to, row + i, column + at);
            const int left = to.columns - column - at;
            if (whole) {
                if (left > 0) *reinterpret_cast<uint2*>(out) = make_uint2(low, high);
                continue;
            }
            if (left > 0) out[0] = static_cast<uint16_t>(low);
            if (left > 1) out[1] = static_cast<uint16_t>(low >> 16);
            if (left > 2) out[2] = static_cast<uint16_t>(high);
            if (left > 3) out[3] = static_cast<uint16_t>(high >> 16);
        }
    }
};
