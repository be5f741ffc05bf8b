// Flash attention on tensor cores for heads of up to 128 features: out = softmax(scale · q · kᵀ + bias) · v.
//
// A block takes 64 queries of a head, 16 a warp, whose f16 fragments stay in registers, and goes through the keys 64 at a
// time. Queries are f32; keys and values come as attention_pack leaves them, in rows of DIM, into two swizzled tiles: while
// one is multiplied, the other is on its way. Scores, softmax and sums are f32; weights are rounded to f16 for the second
// product. Powers are of two, with the scale and log2 e as one factor. Grid: [queries / 64, heads, batch], block: 128.
//
// Invariant: a query's arithmetic depends on the keys alone, not on the block or row in which it is: tiles that it does not
// see add exact zeros.
#include "attention.cuh"
#include "tiles.cuh"

constexpr uint32_t WARPS = 4;
constexpr uint32_t THREADS = 32 * WARPS;
constexpr uint32_t QUERIES = 16 * WARPS;
constexpr uint32_t KEYS = 64;

// Starts to copy KEYS rows of DIM elements into a tile.
template <uint32_t DIM>
__device__ __forceinline__ void start_tile(uint16_t* tile, const uint16_t* source) {
    start_copy<KEYS, DIM / 8, THREADS>(tile, source, DIM);
    copy_async_commit();
}

// The fragments of 16 queries, of which this lane holds rows `row` and `row + 8`.
template <uint32_t DIM>
__device__ __forceinline__ void load_queries(
    uint32_t (&fragments)[DIM / 16][4], const AttentionArgs& args, const float* q, uint32_t row, uint32_t pair) {
    const uint64_t stride = uint64_t(args.heads) * args.head_dim;
#pragma unroll
    for (uint32_t depth = 0; depth < DIM / 16; ++depth) {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t query = row + i % 2 * 8, feature = depth * 16 + i / 2 * 8 + pair;
            float values[2];
#pragma unroll
            for (uint32_t j = 0; j < 2; ++j) {
                const bool valid = query < args.query_tokens && feature + j < args.head_dim;
                values[j] = valid ? q[query * stride + feature + j] : 0.0f;
            }
            fragments[depth][i] = pack_f16(values[0], values[1]);
        }
    }
}

template <uint32_t DIM>
__device__ __forceinline__ void attend(const AttentionArgs& args) {
    constexpr uint32_t PIECES = DIM / 8;
    __shared__ __align__(16) uint16_t key_tile[KEYS * DIM];
    __shared__ __align__(16) uint16_t value_tile[KEYS * DIM];
    const uint32_t lane = threadIdx.x % 32, pair = lane % 4 * 2;
    const uint32_t head = blockIdx.y, batch = blockIdx.z;
    // Where later queries see more keys, their blocks come first.
    const uint32_t block = args.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const uint32_t row = block * QUERIES + threadIdx.x / 32 * 16 + lane / 4;  // this lane's, and row + 8
    const uint64_t stride = uint64_t(args.heads) * args.head_dim;
    const uint64_t begin = uint64_t(batch) * args.query_tokens * stride + uint64_t(head) * args.head_dim;
    const uint64_t packed = (uint64_t(batch) * args.heads + head) * args.key_rows * DIM;
    const uint16_t* k = static_cast<const uint16_t*>(args.k) + packed;
    const uint16_t* v = static_cast<const uint16_t*>(args.v) + packed;

    uint32_t queries[DIM / 16][4];
    load_queries<DIM>(queries, args, static_cast<const float*>(args.q) + begin, row, pair);
    float sums[DIM / 8][4];
#pragma unroll
    for (uint32_t n = 0; n < DIM / 8; ++n) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.0f;
    Softmax softmax;
    const Scores scores = scores_of(args, head);

    // Rows that this lane gives to ldmatrix. Of keys: 0 to 7 and 8 to 15, of each features 0 to 7 and 8 to 15; of values: features
    // 0 to 7 and 8 to 15, of each keys 0 to 7 and 8 to 15.
    const uint32_t key_at = tile_at<PIECES>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const uint32_t value_at = tile_at<PIECES>(lane % 16, lane / 16);
    const uint32_t seen = args.causal ? min(args.key_tokens, (block + 1) * QUERIES) : args.key_tokens;
    const uint32_t seen_by_all = args.causal ? block * QUERIES : args.key_tokens;
    start_tile<DIM>(key_tile, k);
    for (uint32_t first = 0; first < seen; first += KEYS) {
        copy_async_wait<0>();
        __syncthreads();
        start_tile<DIM>(value_tile, v + uint64_t(first) * DIM);
        float s[KEYS / 8][4];
#pragma unroll
        for (uint32_t n = 0; n < KEYS / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
        for (uint32_t depth = 0; depth < DIM / 16; ++depth) {
#pragma unroll
            for (uint32_t n = 0; n < KEYS / 8; n += 2) {
                uint32_t b[4];
                ldmatrix_x4(b, key_tile + (key_at ^ depth * 16) + n * 8 * DIM);
                const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
                mma_f16(s[n], queries[depth], b0);
                mma_f16(s[n + 1], queries[depth], b1);
            }
        }
        scores.finish(s, row, first + pair, first + KEYS > seen_by_all);
        softmax.maximum(s);
        float factors[2];
        softmax.weigh(s, scores.factor, factors);
        rescale(sums, factors);
        copy_async_wait<0>();
        __syncthreads();
        if (first + KEYS < seen) start_tile<DIM>(key_tile, k + uint64_t(first + KEYS) * DIM);
#pragma unroll
        for (uint32_t depth = 0; depth < KEYS / 16; ++depth) {
            // Two neighbouring tiles of scores are one fragment of weights.
            const uint32_t a[4] = {
                f16x2_of_f32(s[2 * depth][0], s[2 * depth][1]),
                f16x2_of_f32(s[2 * depth][2], s[2 * depth][3]),
                f16x2_of_f32(s[2 * depth + 1][0], s[2 * depth + 1][1]),
                f16x2_of_f32(s[2 * depth + 1][2], s[2 * depth + 1][3]),
            };
#pragma unroll
            for (uint32_t n = 0; n < DIM / 8; n += 2) {
                uint32_t b[4];
                ldmatrix_x4_trans(b, value_tile + (value_at ^ n * 8) + depth * 16 * DIM);
                const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
                mma_f16(sums[n], a, b0);
                mma_f16(sums[n + 1], a, b1);
            }
        }
    }

    softmax.join_lanes();
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
        if (row + 8 * i >= args.query_tokens) continue;
        float* out = args.out + begin + (row + 8 * i) * stride;
#pragma unroll
        for (uint32_t n = 0; n < DIM / 8; ++n) {
            const uint32_t feature = n * 8 + pair;
            store_pair(
                out, feature, args.head_dim, sums[n][2 * i] / softmax.weights[i], sums[n][2 * i + 1] / softmax.weights[i]);
        }
    }
}

// Blocks of a multiprocessor bound a thread's registers: so many that sums, queries and scores fit without spilling.
#define ATTENTION_HALF(DIM, BLOCKS)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention_half_##DIM(AttentionArgs args) {      \
        attend<DIM>(args);                                                                                        \
    }

ATTENTION_HALF(16, 4)
ATTENTION_HALF(32, 4)
ATTENTION_HALF(64, 3)
ATTENTION_HALF(128, 2)
