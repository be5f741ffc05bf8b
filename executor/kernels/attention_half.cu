// Flash attention on tensor cores for heads of up to 128 features: out = softmax(scale · q · kᵀ + bias) · v.
//
// A block takes 64 queries of a head, 16 a warp, whose f16 fragments stay in registers, and goes through the keys 64 at a
// time. They and the values come in rows of DIM into two swizzled tiles: while one is multiplied, the other is on its way.
// attention_half_* takes queries of f32, and keys and values as attention_pack leaves them; attention_half_direct_* takes
// all three in f16 as they lie, of heads of exactly DIM features. Scores, softmax and sums are f32; weights are rounded to f16
// for the second product. Powers are of two, with the scale and log2 e as one factor. Grid: [queries / 64, heads, batch],
// block: 128.
//
// Invariant: a query's arithmetic depends on the keys alone, not on the block or row in which it is: tiles that it does not
// see add exact zeros.
#include "attention.cuh"
#include "tiles.cuh"

constexpr uint32_t WARPS = 4;
constexpr uint32_t THREADS = 32 * WARPS;
constexpr uint32_t QUERIES = 16 * WARPS;
constexpr uint32_t KEYS = 64;

// Keys or values of a head as attention_pack leaves them: whole tiles of rows of DIM.
template <uint32_t DIM>
struct PackedRows {
    const uint16_t* rows;

    __device__ __forceinline__ PackedRows(const AttentionArgs& args, const void* value, uint32_t, uint32_t heads, uint32_t head) :
        rows(static_cast<const uint16_t*>(value) + (uint64_t(blockIdx.z) * heads + head) * args.key_rows * DIM) {}

    // Starts to copy KEYS rows from row `first` on into a tile.
    __device__ __forceinline__ void start(uint16_t* tile, uint32_t first) const {
        start_copy<KEYS, DIM / 8, THREADS>(tile, rows + uint64_t(first) * DIM, DIM);
        copy_async_commit();
    }
};

// Queries, keys or values of a head of DIM features as they lie, rows of all heads below each other.
template <uint32_t DIM>
struct DirectRows {
    static constexpr uint32_t PIECES = DIM / 8;
    static constexpr uint32_t STEP = THREADS / PIECES;  // rows that are copied together
    static_assert(KEYS == QUERIES && KEYS % STEP == 0 && STEP % 8 == 0, "a thread's pieces are 8 rows apart");

    const uint8_t* rows;  // this thread's piece of its first one
    uint32_t stride_bytes;
    uint32_t tokens;

    __device__ __forceinline__ DirectRows(
        const AttentionArgs&, const void* value, uint32_t tokens, uint32_t heads, uint32_t head) :
        stride_bytes(2 * DIM * heads), tokens(tokens) {
        const uint32_t row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
        const uint64_t first = (uint64_t(blockIdx.z) * tokens + row) * stride_bytes + head * (2 * DIM);
        rows = static_cast<const uint8_t*>(value) + first + piece * 16;
    }

    // Starts to copy KEYS rows from row `first` on into a tile; behind the last token they are zeros.
    __device__ __forceinline__ void start(uint16_t* tile, uint32_t first) const {
        const uint32_t row = threadIdx.x / PIECES;
        uint16_t* to = tile + tile_at<PIECES>(row, threadIdx.x % PIECES);
        const uint8_t* from = rows + uint64_t(first) * stride_bytes;
        const int32_t left = static_cast<int32_t>(tokens - first - row);  // tokens from this thread's first one on
#pragma unroll
        for (uint32_t at = 0; at < KEYS; at += STEP) {
            copy_async_16(to + at * DIM, from, static_cast<int32_t>(at) < left);
            from += STEP * stride_bytes;
        }
        copy_async_commit();
    }
};

// The fragments of 16 queries of f32, of which this lane holds rows `row` and `row + 8`.
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

// The same of a tile of f16.
template <uint32_t DIM>
__device__ __forceinline__ void load_queries(uint32_t (&fragments)[DIM / 16][4], const uint16_t* tile) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t query_at = tile_at<DIM / 8>(warp * 16 + lane % 16, lane / 16);
#pragma unroll
    for (uint32_t depth = 0; depth < DIM / 16; ++depth) ldmatrix_x4(fragments[depth], tile + (query_at ^ depth * 16));
}

template <uint32_t DIM, bool DIRECT, class Rows>
__device__ __forceinline__ void attend(const AttentionArgs& args) {
    constexpr uint32_t PIECES = DIM / 8;
    // At multiples of a row's bytes, so that addresses keep the order of a row's pieces.
    __shared__ __align__(2 * DIM) uint16_t key_tile[KEYS * DIM];
    __shared__ __align__(2 * DIM) uint16_t value_tile[KEYS * DIM];
    const uint32_t lane = threadIdx.x % 32, pair = lane % 4 * 2;
    const uint32_t head = blockIdx.y, batch = blockIdx.z;
    // Where later queries see more keys, their blocks come first.
    const uint32_t block = args.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const uint32_t row = block * QUERIES + threadIdx.x / 32 * 16 + lane / 4;  // this lane's, and row + 8
    const uint32_t head_dim = DIRECT ? DIM : args.head_dim;
    const uint64_t stride = uint64_t(args.heads) * head_dim;
    const uint64_t begin = uint64_t(batch) * args.query_tokens * stride + uint64_t(head) * head_dim;
    const uint32_t kv_head = args.kv_head(head);
    const Rows keys(args, args.k, args.key_tokens, args.kv_heads, kv_head);
    const Rows values(args, args.v, args.key_tokens, args.kv_heads, kv_head);

    uint32_t queries[DIM / 16][4];
    if constexpr (DIRECT) {
        // The tile of values is free until that of keys is there.
        Rows(args, args.q, args.query_tokens, args.heads, head).start(value_tile, block * QUERIES);
        keys.start(key_tile, 0);
        copy_async_wait<1>();
        __syncthreads();
        load_queries<DIM>(queries, value_tile);
    } else {
        load_queries<DIM>(queries, args, static_cast<const float*>(args.q) + begin, row, pair);
    }
    float sums[DIM / 8][4];
#pragma unroll
    for (uint32_t n = 0; n < DIM / 8; ++n) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.0f;
    Softmax softmax;
    const Scores scores = scores_of(args, head);

    // Rows that this lane gives to ldmatrix. Of keys: 0 to 7 and 8 to 15, of each features 0 to 7 and 8 to 15; of values: features
    // 0 to 7 and 8 to 15, of each keys 0 to 7 and 8 to 15.
    const SharedAddress key_at = shared_address(key_tile) + 2 * tile_at<PIECES>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const SharedAddress value_at = shared_address(value_tile) + 2 * tile_at<PIECES>(lane % 16, lane / 16);
    const uint32_t seen = args.causal ? min(scores.key_tokens, (block + 1) * QUERIES) : scores.key_tokens;
    const uint32_t seen_by_all = args.causal ? min(scores.key_tokens, block * QUERIES) : scores.key_tokens;
    if constexpr (!DIRECT) keys.start(key_tile, 0);
    for (uint32_t first = 0; first < seen; first += KEYS) {
        copy_async_wait<0>();
        __syncthreads();
        values.start(value_tile, first);
        float s[KEYS / 8][4];
#pragma unroll
        for (uint32_t n = 0; n < KEYS / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
        for (uint32_t depth = 0; depth < DIM / 16; ++depth) {
#pragma unroll
            for (uint32_t n = 0; n < KEYS / 8; n += 2) {
                uint32_t b[4];
                ldmatrix_x4(b, (key_at ^ depth * 32) + n * 16 * DIM);
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
        if (first + KEYS < seen) keys.start(key_tile, first + KEYS);
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
                ldmatrix_x4_trans(b, (value_at ^ n * 16) + depth * 32 * DIM);
                const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
                mma_f16(sums[n], a, b0);
                mma_f16(sums[n + 1], a, b1);
            }
        }
    }

    softmax.join_lanes();
    divide(sums, softmax.weights[0], softmax.weights[1]);
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
        if (row + 8 * i >= args.query_tokens) continue;
        store_row(args, begin + (row + 8 * i) * stride, pair, head_dim, sums, i);
    }
}

// Blocks of a multiprocessor bound a thread's registers: so many that sums, queries and scores fit without spilling.
#define ATTENTION_HALF(DIM, BLOCKS)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention_half_##DIM(AttentionArgs args) {      \
        attend<DIM, false, PackedRows<DIM>>(args);                                                                \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention_half_direct_##DIM(AttentionArgs args) { \
        attend<DIM, true, DirectRows<DIM>>(args);                                                                 \
    }

ATTENTION_HALF(16, 4)
ATTENTION_HALF(32, 4)
ATTENTION_HALF(64, 3)
ATTENTION_HALF(128, 2)
