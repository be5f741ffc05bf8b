// Linear layers on tensor cores whose activations and weights both have 16 bits: out = activation(x · wᵀ · factors + bias).
//
// x: up to four of [rows, features] in bf16, or one in f16 with a factor for each row. w: [columns, depth] as stored. Features are
// multiples of 8 and all operands begin at multiples of 16 bytes: linear_decoded.cu has the others.
//
// Grid: one block for each tile of the output, in one dimension. Blocks: 128 threads, four warps that compute a quarter of the
// tile each. Tiles pass through three stages of shared memory (48 KiB for large tiles, 24 KiB for small ones), filled by
// asynchronous copies two steps ahead. Needs capability 8.0.
#include "half_tile.cuh"

#if !defined(__CUDACC_RTC__) || __CUDA_ARCH__ >= 800

namespace linear_half {

constexpr int THREADS = 128;
constexpr int STAGES = 3;

// Starts to copy weights from `depth` on.
template <int SIDE>
__device__ inline void start_weights(HalfRows<SIDE, THREADS>& w, const LinearHalfArgs& args, uint16_t* tile, int depth) {
    w.start(tile, depth, depth + own_chunk() * CHUNK < args.depth);
}

template <bool BF16_NUMBERS, int SIDE>
__device__ void multiply(const LinearHalfArgs& args) {
    using Sums = WarpSums<SIDE / 32, SIDE / 16>;
    constexpr int TILE = SIDE * DEPTH;
    __shared__ TILES_ALIGNED uint16_t a[STAGES * TILE];
    __shared__ TILES_ALIGNED uint16_t b[STAGES * TILE];
    const TilePlace tile(args.to, SIDE, SIDE);
    // Those in f16 are one matrix, which was made for this product.
    JoinedRows<SIDE, THREADS, BF16_NUMBERS ? HALF_INPUTS : 1> x(args, tile.row);
    HalfRows<SIDE, THREADS> w;
    w.turn_to(reinterpret_cast<const uint16_t*>(args.w), args.depth, tile.column, args.to.columns);
    const int steps = (args.depth + DEPTH - 1) / DEPTH;
    const int warp = threadIdx.x / WARP;
    const int row = warp / 2 * (SIDE / 2);
    const int column = warp % 2 * (SIDE / 2);
    Sums sums;
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        x.start(a + stage * TILE, stage * DEPTH);
        start_weights(w, args, b + stage * TILE, stage * DEPTH);
    }
    int full = 0;                    // where the stage begins that is multiplied next
    int free = (STAGES - 1) * TILE;  // and the one that is filled next
    for (int step = 0; step < steps; step++) {
        copy_async_wait<2 * (STAGES - 2)>();
        // What was copied is seen by all, and the stage that is filled now was multiplied by all.
        __syncthreads();
        // After the end only zeros are written.
        x.start(a + free, (step + STAGES - 1) * DEPTH);
        start_weights(w, args, b + free, (step + STAGES - 1) * DEPTH);
        sums.template add<BF16_NUMBERS>(a + full, row, b + full, column);
        full = full == (STAGES - 1) * TILE ? 0 : full + TILE;
        free = free == (STAGES - 1) * TILE ? 0 : free + TILE;
    }
    copy_async_wait<0>();
    __syncthreads();
    // Two warps pass their sums through each operand's stages, which nobody reads any more.
    static_assert(2 * Sums::BUFFER_LENGTH * sizeof(float) <= sizeof(a), "the sums' buffers fit");
    float* buffer = reinterpret_cast<float*>(warp / 2 == 0 ? a : b) + warp % 2 * Sums::BUFFER_LENGTH;
    sums.store(args.to, args.factors, tile.row + row, tile.column + column, buffer);
}

}  // namespace linear_half

// Blocks of a multiprocessor are told, because some assemblers would rather have more of them and compute addresses in each step.
#define LINEAR_HALF(name, bf16_numbers, side)                                                                         \
    extern "C" __global__ void __launch_bounds__(linear_half::THREADS, side == 64 ? 5 : 2) name(LinearHalfArgs args) { \
        linear_half::multiply<bf16_numbers, side>(args);                                                              \
    }

LINEAR_HALF(linear_half_f16_large, false, 128)
LINEAR_HALF(linear_half_f16_small, false, 64)
LINEAR_HALF(linear_half_bf16_large, true, 128)
LINEAR_HALF(linear_half_bf16_small, true, 64)

#endif
