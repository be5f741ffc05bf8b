// Flash attention as attention_half_direct_128 forms it, bit for bit, in blocks of 128 queries: for GPUs of which a multiprocessor
// has shared memory for two of these blocks, and for queries enough to fill the GPU so.
//
// A warp takes 32 queries of a head as two tiles, which share each fragment of keys and values: a product then loads half as much
// from shared memory. Beside the sums of two tiles the queries' own fragments have no room in registers: they are loaded from
// shared memory anew for each tile of keys. Scores become weights 16 keys at a time, so that powers of the next ones go on beside
// products of those before.
//
// Grid: [queries / 128, heads, batch], block: 128, shared memory: SHARED_BYTES, which is more than a launch may have without
// asking. From capability 8.0 on.
#include "attention.cuh"
#include "tiles.cuh"

#if !defined(__CUDACC_RTC__) || __CUDA_ARCH__ >= 800

constexpr uint32_t WARPS = 4;
constexpr uint32_t THREADS = 32 * WARPS;
constexpr uint32_t DIM = 128;
constexpr uint32_t PIECES = DIM / 8;
// Of 16 queries, of a warp.
constexpr uint32_t TILES = 2;
constexpr uint32_t WARP_QUERIES = 16 * TILES;
constexpr uint32_t QUERIES = WARP_QUERIES * WARPS;
constexpr uint32_t KEYS = 64;

// Of shared memory: the queries, a tile of keys, and one of values.
constexpr uint32_t QUERY_BYTES = 2 * DIM * QUERIES;
constexpr uint32_t TILE_BYTES = 2 * DIM * KEYS;
// scripts/ptxas_facts.py finds it by its name in the PTX.
constexpr uint32_t SHARED_BYTES = QUERY_BYTES + 2 * TILE_BYTES;
static_assert(SHARED_BYTES == 64 << 10, "executor/src/backend/cuda/ops/attention.rs launches it with so much");

#ifdef __CUDACC_RTC__
// At a multiple of a row's bytes, so that addresses keep the order of a row's pieces.
extern __shared__ __align__(2 * DIM) unsigned char shared_tiles[];
#endif

// The pointer of an address in shared memory.
__device__ __forceinline__ void* shared_pointer(SharedAddress address) {
#ifdef __CUDACC_RTC__
    return __cvta_shared_to_generic(address);
#else
    return reinterpret_cast<void*>(address);
#endif
}

// Rows of a head as they lie, those of all heads below each other. Registers are few: keys and values lie alike, and so have one
// place together, where DirectRows of attention_half.cu keeps the address of each.
struct HeadRows {
    static constexpr uint32_t STEP = THREADS / PIECES;  // rows that are copied together
    static_assert(KEYS % STEP == 0 && STEP % 8 == 0, "a thread's pieces are 8 rows apart");

    uint64_t place;  // of this thread's piece of its first row, in bytes
    uint32_t stride_bytes;
    uint32_t tokens;

    __device__ __forceinline__ HeadRows(uint32_t tokens, uint32_t heads, uint32_t head) :
        stride_bytes(2 * DIM * heads), tokens(tokens) {
        const uint32_t row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
        place = (uint64_t(blockIdx.z) * tokens + row) * stride_bytes + head * (2 * DIM) + piece * 16;
    }

    // Starts to copy ROWS rows of a value from row `first` on into a tile; behind the last token they are zeros.
    template <uint32_t ROWS>
    __device__ __forceinline__ void start(SharedAddress tile, const void* value, uint32_t first) const {
        const uint32_t row = threadIdx.x / PIECES;
        const SharedAddress to = tile + 2 * tile_at<PIECES>(row, threadIdx.x % PIECES);
        const uint8_t* from = static_cast<const uint8_t*>(value) + (place + uint64_t(first) * stride_bytes);
        const int32_t left = static_cast<int32_t>(tokens - first - row);  // tokens from this thread's first one on
#pragma unroll
        for (uint32_t at = 0; at < ROWS; at += STEP) {
            copy_async_16(shared_pointer(to + at * 2 * DIM), from, static_cast<int32_t>(at) < left);
            from += STEP * stride_bytes;
        }
        copy_async_commit();
    }
};

// Scores of 16 keys, of tiles `n` and `n + 1`, to weights relative to `tops`, which are added to `weights` of their rows.
__device__ __forceinline__ void weigh_keys(
    float (&s)[TILES][KEYS / 8][4], uint32_t n, float factor, const float (&tops)[TILES][2], float (&weights)[TILES][2]) {
#pragma unroll
    for (uint32_t at = n; at < n + 2; ++at) {
#pragma unroll
        for (uint32_t m = 0; m < TILES; ++m) {
#pragma unroll
            for (uint32_t i = 0; i < 2; ++i) weights[m][i] += Softmax::weigh_pair(s[m][at], i, factor, tops[m][i]);
        }
    }
}

// Two blocks of a multiprocessor leave a thread all registers that it can name, 255.
extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_tall_128(AttentionArgs args) {
#ifndef __CUDACC_RTC__
    DYNAMIC_SHARED(shared_tiles);
#endif
    const SharedAddress query_tile = shared_address(shared_tiles);
    const SharedAddress key_tile = query_tile + QUERY_BYTES, value_tile = key_tile + TILE_BYTES;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = lane % 4 * 2;
    const uint32_t head = blockIdx.y, batch = blockIdx.z;
    // Where later queries see more keys, their blocks come first.
    const uint32_t block = args.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const uint32_t row = block * QUERIES + warp * WARP_QUERIES + lane / 4;  // this lane's, and row + 8, + 16 and + 24
    const HeadRows rows(args.key_tokens, args.kv_heads, args.kv_head(head));
    const Scores scores = scores_of(args, head);
    const uint32_t seen = args.causal ? min(scores.key_tokens, (block + 1) * QUERIES) : scores.key_tokens;
    const uint32_t seen_by_all = args.causal ? min(scores.key_tokens, block * QUERIES) : scores.key_tokens;

    HeadRows(args.query_tokens, args.heads, head).start<QUERIES>(query_tile, args.q, block * QUERIES);
    float sums[TILES][DIM / 8][4];
#pragma unroll
    for (uint32_t m = 0; m < TILES; ++m) {
#pragma unroll
        for (uint32_t n = 0; n < DIM / 8; ++n) sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0.0f;
    }
    Softmax softmax[TILES];

    // Rows that this lane gives to ldmatrix; of keys and values as in attention_half.cu.
    const SharedAddress query_at = query_tile + 2 * tile_at<PIECES>(warp * WARP_QUERIES + lane % 16, lane / 16);
    const SharedAddress key_at = key_tile + 2 * tile_at<PIECES>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const SharedAddress value_at = value_tile + 2 * tile_at<PIECES>(lane % 16, lane / 16);
    // It is so; with what the loop asks before its first turn the compiler needs no register more than there are.
    if (seen > 0) rows.start<KEYS>(key_tile, args.k, 0);
    for (uint32_t first = 0; first < seen; first += KEYS) {
        copy_async_wait<0>();
        __syncthreads();
        rows.start<KEYS>(value_tile, args.v, first);
        float s[TILES][KEYS / 8][4];
#pragma unroll
        for (uint32_t m = 0; m < TILES; ++m) {
#pragma unroll
            for (uint32_t n = 0; n < KEYS / 8; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0.0f;
        }
#pragma unroll
        for (uint32_t depth = 0; depth < DIM / 16; ++depth) {
            uint32_t a[TILES][4];
#pragma unroll
            for (uint32_t m = 0; m < TILES; ++m) ldmatrix_x4(a[m], (query_at ^ depth * 32) + m * 32 * DIM);
#pragma unroll
            for (uint32_t n = 0; n < KEYS / 8; n += 2) {
                uint32_t b[4];
                ldmatrix_x4(b, (key_at ^ depth * 32) + n * 16 * DIM);
                const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
#pragma unroll
                for (uint32_t m = 0; m < TILES; ++m) mma_f16(s[m][n], a[m], b0);
#pragma unroll
                for (uint32_t m = 0; m < TILES; ++m) mma_f16(s[m][n + 1], a[m], b1);
            }
        }

        float tops[TILES][2], factors[TILES][2], weights[TILES][2];
#pragma unroll
        for (uint32_t m = 0; m < TILES; ++m) {
            scores.finish(s[m], row + m * 16, first + pair, first + KEYS > seen_by_all);
            softmax[m].maximum(s[m]);
#pragma unroll
            for (uint32_t i = 0; i < 2; ++i) {
                tops[m][i] = softmax[m].renew(i, scores.factor, factors[m][i]);
                weights[m][i] = 0.0f;
            }
        }
        weigh_keys(s, 0, scores.factor, tops, weights);
#pragma unroll
        for (uint32_t m = 0; m < TILES; ++m) rescale(sums[m], factors[m]);
        copy_async_wait<0>();
        __syncthreads();
        if (first + KEYS < seen) rows.start<KEYS>(key_tile, args.k, first + KEYS);
#pragma unroll
        for (uint32_t depth = 0; depth < KEYS / 16; ++depth) {
            // Two neighbouring tiles of scores are one fragment of weights.
            uint32_t a[TILES][4];
#pragma unroll
            for (uint32_t m = 0; m < TILES; ++m) {
#pragma unroll
                for (uint32_t i = 0; i < 4; ++i) {
                    const float(&of)[4] = s[m][2 * depth + i / 2];
                    a[m][i] = f16x2_of_f32(of[i % 2 * 2], of[i % 2 * 2 + 1]);
                }
            }
            if (depth + 1 < KEYS / 16) weigh_keys(s, 2 * depth + 2, scores.factor, tops, weights);
#pragma unroll
            for (uint32_t n = 0; n < DIM / 8; n += 2) {
                uint32_t b[4];
                ldmatrix_x4_trans(b, (value_at ^ n * 16) + depth * 32 * DIM);
                const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
#pragma unroll
                for (uint32_t m = 0; m < TILES; ++m) mma_f16(sums[m][n], a[m], b0);
#pragma unroll
                for (uint32_t m = 0; m < TILES; ++m) mma_f16(sums[m][n + 1], a[m], b1);
            }
        }
#pragma unroll
        for (uint32_t m = 0; m < TILES; ++m) {
            softmax[m].add(0, weights[m][0], factors[m][0]);
            softmax[m].add(1, weights[m][1], factors[m][1]);
        }
    }

    const uint64_t stride = uint64_t(args.heads) * DIM;
    const uint64_t begin = uint64_t(batch) * args.query_tokens * stride + uint64_t(head) * DIM;
#pragma unroll
    for (uint32_t m = 0; m < TILES; ++m) {
        softmax[m].join_lanes();
        divide(sums[m], softmax[m].weights[0], softmax[m].weights[1]);
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
            const uint32_t query = row + m * 16 + 8 * i;
            if (query >= args.query_tokens) continue;
            store_row(args, begin + query * stride, pair, DIM, sums[m], i);
        }
    }
}

#endif
