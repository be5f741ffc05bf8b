// Flash attention on tensor cores for heads of up to 512 features, as a VAE has one: out = softmax(scale · q · kᵀ + bias) ·
// v.
//
// All operands come as attention_pack leaves them, in rows of DIM. A block takes 64 queries of a head and 64 keys at a
// time. Four groups of two warps have 16 queries each; of a pair, each warp forms the scores of 32 keys, and the sums of
// one half of the features. Weights go from one to the other through shared memory. Nothing of 512 features fits into
// registers beside the sums, so queries and keys go by in steps of 64 features and values in steps of some keys, all
// through two stages of 16 KiB: while one is multiplied, the next step is on its way. Grid: [queries / 64, heads, batch],
// block: 256.
//
// Invariant: as of attention_half.cu, a query's arithmetic depends on the keys alone.
#include "attention.cuh"
#include "tiles.cuh"

constexpr uint32_t THREADS = 256;
constexpr uint32_t QUERIES = 64;
constexpr uint32_t KEYS = 64;
constexpr uint32_t DEPTH = 64;     // features of a step of scores
constexpr uint32_t STAGE = 8192;   // elements of a stage
constexpr uint32_t PIECES = DEPTH / 8;

template <uint32_t DIM>
struct Steps {
    static constexpr uint32_t SCORES = DIM / DEPTH;
    static constexpr uint32_t VALUE_KEYS = STAGE / DIM;  // keys of a step of values
    static constexpr uint32_t ALL = SCORES + KEYS / VALUE_KEYS;

    const uint16_t* q;  // the block's first
    const uint16_t* k;  // the head's first
    const uint16_t* v;

    // Values as tiles of DEPTH features, one after the other.
    static __device__ __forceinline__ void start_values(uint16_t* stage, const uint16_t* source) {
#pragma unroll
        for (uint32_t at = threadIdx.x; at < STAGE / 8; at += THREADS) {
            const uint32_t row = at / (DIM / 8), piece = at % (DIM / 8);
            uint16_t* tile = stage + piece / PIECES * VALUE_KEYS * DEPTH;
            copy_async_16(tile + tile_at<PIECES>(row, piece % PIECES), source + at * 8, true);
        }
    }

    // Starts to copy what a step multiplies, of the keys from `first` on.
    __device__ __forceinline__ void start(uint16_t* stage, uint32_t step, uint32_t first) const {
        if (step < SCORES) {
            start_copy<QUERIES, PIECES, THREADS>(stage, q + step * DEPTH, DIM);
            start_copy<KEYS, PIECES, THREADS>(stage + QUERIES * DEPTH, k + uint64_t(first) * DIM + step * DEPTH, DIM);
        } else {
            start_values(stage, v + uint64_t(first + (step - SCORES) * VALUE_KEYS) * DIM);
        }
        copy_async_commit();
    }
};

// Adds products of 16 queries and 32 keys over DEPTH features.
__device__ __forceinline__ void add_scores(float (&s)[4][4], const uint16_t* stage, uint32_t query, uint32_t key) {
    const uint32_t lane = threadIdx.x % 32;
    const SharedAddress query_at = shared_address(stage) + 2 * tile_at<PIECES>(query + lane % 16, lane / 16);
    const SharedAddress key_at =
        shared_address(stage) + 2 * tile_at<PIECES>(QUERIES + key + lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (uint32_t depth = 0; depth < DEPTH / 16; ++depth) {
        uint32_t a[4];
        ldmatrix_x4(a, query_at ^ depth * 32);
#pragma unroll
        for (uint32_t n = 0; n < 4; n += 2) {
            uint32_t b[4];
            ldmatrix_x4(b, (key_at ^ depth * 32) + n * 16 * DEPTH);
            const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
            mma_f16(s[n], a, b0);
            mma_f16(s[n + 1], a, b1);
        }
    }
}

// Adds products of weights, of 16 queries and a step's keys, and one half of the features of the values.
template <uint32_t DIM>
__device__ __forceinline__ void add_values(
    float (&sums)[DIM / 16][4], const uint16_t* weights, const uint16_t* stage, uint32_t query, uint32_t key, uint32_t half) {
    constexpr uint32_t TILE = Steps<DIM>::VALUE_KEYS * DEPTH;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t weight_at = tile_at<PIECES>(query + lane % 16, lane / 16) ^ key;
    const SharedAddress value_at = shared_address(stage) + half * STAGE + 2 * tile_at<PIECES>(lane % 16, lane / 16);
#pragma unroll
    for (uint32_t depth = 0; depth < Steps<DIM>::VALUE_KEYS / 16; ++depth) {
        uint32_t a[4];
        ldmatrix_x4(a, weights + (weight_at ^ depth * 16));
#pragma unroll
        for (uint32_t n = 0; n < DIM / 16; n += 2) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, (value_at ^ n % PIECES * 16) + 2 * (n / PIECES * TILE + depth * 16 * DEPTH));
            const uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
            mma_f16(sums[n], a, b0);
            mma_f16(sums[n + 1], a, b1);
        }
    }
}

template <uint32_t DIM>
__device__ __forceinline__ void attend_wide(const AttentionArgs& args) {
    // Stages at multiples of the bytes of a tile's row, so that addresses keep the order of a row's pieces.
    __shared__ __align__(2 * DEPTH) uint16_t stages[2][STAGE];
    __shared__ __align__(16) uint16_t weights[QUERIES * KEYS];
    __shared__ float halves[2][QUERIES];  // of each query, what the warps of a pair have to join
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = lane % 4 * 2;
    const uint32_t query = warp % 4 * 16, half = warp / 4;  // queries of the block, and which half of keys and features
    const uint32_t row = query + lane / 4;                  // this lane's, and row + 8
    const uint32_t head = blockIdx.y, batch = blockIdx.z;
    const uint32_t block = args.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const uint32_t first_query = block * QUERIES;
    const uint64_t rows = uint64_t(batch) * args.heads + head;
    const uint64_t kv_rows = uint64_t(batch) * args.kv_heads + args.kv_head(head);
    const Steps<DIM> steps{
        static_cast<const uint16_t*>(args.q) + (rows * args.query_rows + first_query) * DIM,
        static_cast<const uint16_t*>(args.k) + kv_rows * args.key_rows * DIM,
        static_cast<const uint16_t*>(args.v) + kv_rows * args.key_rows * DIM,
    };

    float sums[DIM / 16][4];
#pragma unroll
    for (uint32_t n = 0; n < DIM / 16; ++n) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.0f;
    Softmax softmax;
    const Scores scores = scores_of(args, head);

    const uint32_t seen = args.causal ? min(scores.key_tokens, first_query + QUERIES) : scores.key_tokens;
    const uint32_t seen_by_all = args.causal ? min(scores.key_tokens, first_query) : scores.key_tokens;
    uint32_t stage = 0;
    steps.start(stages[0], 0, 0);
    for (uint32_t first = 0; first < seen; first += KEYS) {
        float s[4][4];
#pragma unroll
        for (uint32_t n = 0; n < 4; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll 1
        for (uint32_t step = 0; step < Steps<DIM>::SCORES; ++step, stage ^= 1) {
            copy_async_wait<0>();
            __syncthreads();
            steps.start(stages[stage ^ 1], step + 1, first);
            add_scores(s, stages[stage], query, half * 32);
        }
        scores.finish(s, first_query + row, first + half * 32 + pair, first + KEYS > seen_by_all);
        softmax.maximum(s);
        if (lane % 4 < 2) halves[half][row + lane % 4 * 8] = lane % 4 == 0 ? softmax.next[0] : softmax.next[1];
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) softmax.next[i] = fmaxf(halves[0][row + 8 * i], halves[1][row + 8 * i]);
        float factors[2];
        softmax.weigh(s, scores.factor, factors);
#pragma unroll
        for (uint32_t n = 0; n < 4; ++n) {
#pragma unroll
            for (uint32_t i = 0; i < 2; ++i) {
                const uint32_t at = row + 8 * i, piece = swizzled<PIECES>(at, half * 4 + n);
                *reinterpret_cast<uint32_t*>(weights + at * KEYS + piece * 8 + pair) = f16x2_of_f32(s[n][2 * i], s[n][2 * i + 1]);
            }
        }
        rescale(sums, factors);
#pragma unroll 1
        for (uint32_t step = Steps<DIM>::SCORES; step < Steps<DIM>::ALL; ++step, stage ^= 1) {
            copy_async_wait<0>();
            __syncthreads();
            const bool last = step + 1 == Steps<DIM>::ALL;
            if (!last) steps.start(stages[stage ^ 1], step + 1, first);
            if (last && first + KEYS < seen) steps.start(stages[stage ^ 1], 0, first + KEYS);
            const uint32_t key = (step - Steps<DIM>::SCORES) * Steps<DIM>::VALUE_KEYS;
            add_values<DIM>(sums, weights, stages[stage], query, key, half);
        }
    }

    softmax.join_lanes();
    if (lane % 4 < 2) halves[half][row + lane % 4 * 8] = lane % 4 == 0 ? softmax.weights[0] : softmax.weights[1];
    __syncthreads();
    divide(sums, halves[0][row] + halves[1][row], halves[0][row + 8] + halves[1][row + 8]);
    const uint64_t stride = uint64_t(args.heads) * args.head_dim;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t token = first_query + row + 8 * i;
        if (token >= args.query_tokens) continue;
        const uint64_t out = (uint64_t(batch) * args.query_tokens + token) * stride + uint64_t(head) * args.head_dim;
        store_row(args, out, half * (DIM / 2) + pair, args.head_dim, sums, i);
    }
}

#define ATTENTION_WIDE(DIM)                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_wide_##DIM(AttentionArgs args) {  \
        attend_wide<DIM>(args);                                                                              \
    }

ATTENTION_WIDE(256)
ATTENTION_WIDE(512)
