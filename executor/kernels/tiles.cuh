// What kernels that stage f16 tiles in shared memory share: the order of a tile's 16-byte
// pieces, and powers of two at the speed of the special function units.
//
// Not here: products and matrix loads (mma.cuh), conversions of stored weights (common.cuh).
#pragma once

#include "common.cuh"
#include "mma.cuh"

// log2 e
constexpr float LOG2_E = 1.44269504f;

// Where a 16-byte piece of a row of a tile lies, in pieces from the row's beginning. Eight rows below each other are
// then in different banks, as ldmatrix wants them. PIECES, of a row, is a power of two.
template <uint32_t PIECES>
__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t piece) {
    // Rows shorter than 128 bytes share the banks, so that only each so many-th row needs another place.
    constexpr uint32_t SHARING = PIECES >= 8 ? 1 : 8 / PIECES;
    constexpr uint32_t MASK = PIECES >= 8 ? 7 : PIECES - 1;
    return piece ^ (row / SHARING & MASK);
}

// Where the 16 bytes at a row and piece lie in a tile, in elements. Rows 8 apart have their pieces in the same order; and pieces
// that differ in some bits lie apart by the same bits, so that of a lane's place those of other rows and pieces come by an
// addition and an exclusive or.
template <uint32_t PIECES>
__device__ __forceinline__ uint32_t tile_at(uint32_t row, uint32_t piece) {
    return (row * PIECES + swizzled<PIECES>(row, piece)) * 8;
}

// Starts to copy ROWS rows of PIECES times 16 bytes, `stride` elements apart, into a tile.
template <uint32_t ROWS, uint32_t PIECES, uint32_t THREADS>
__device__ __forceinline__ void start_copy(uint16_t* tile, const uint16_t* source, uint32_t stride) {
    constexpr uint32_t STEP = THREADS / PIECES;  // rows that are copied together
    static_assert(THREADS % PIECES == 0 && (STEP % 8 == 0 || STEP >= ROWS), "a thread's pieces are 8 rows apart");
    const uint32_t row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    uint16_t* to = tile + tile_at<PIECES>(row, piece);
    const uint16_t* from = source + row * stride + piece * 8;
#pragma unroll
    for (uint32_t first = 0; first < ROWS; first += STEP) {
        if (first + STEP <= ROWS || row < ROWS - first) {
            copy_async_16(to + first * PIECES * 8, from + first * stride, true);
        }
    }
}

// 2^x to about 2 units in the last place; what would be less than the least normal number is zero.
__device__ __forceinline__ float exp2_fast(float x) {
#ifdef __CUDACC_RTC__
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
#else
    return exp2f(x);
#endif
}

// 1 / x to about 1 unit in the last place; of what is infinite, zero.
__device__ __forceinline__ float reciprocal_fast(float x) {
#ifdef __CUDACC_RTC__
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
    return reciprocal;
#else
    return 1.0f / x;
#endif
}
