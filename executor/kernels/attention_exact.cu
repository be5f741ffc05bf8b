// Flash attention in f32 for heads of up to 512 features: out = softmax(scale · q · kᵀ + bias) · v.
//
// A block takes 64 queries of a head and goes through the keys 64 at a time. Its threads are 16 by 16: each has scores of 4
// queries and 4 keys, and sums of the same 4 queries for 4 · COLUMNS features, so that the 16 threads of a row of the
// softmax are one half of a warp. Queries and keys come to shared memory 32 features at a time, turned so that the products
// read whole vectors; values as many keys at a time as fit the same 16 KiB. Grid: [queries / 64, heads, batch], block: 256.
//
// Invariant: a query's arithmetic depends on the keys alone, not on the block or row in which it is: tiles that it does not
// see add exact zeros.
#include "attention.cuh"

constexpr uint32_t THREADS = 256;
constexpr uint32_t QUERIES = 64;
constexpr uint32_t KEYS = 64;
constexpr uint32_t DEPTH = 32;                // features of a step of scores
constexpr uint32_t STAGE = 2 * DEPTH * 64;    // elements
constexpr uint32_t WEIGHT_STRIDE = KEYS + 4;  // rows in other banks

// Four neighbouring elements of a row, as far as it has them.
__device__ __forceinline__ float4 load_float4(const float* row, uint32_t at, uint32_t len) {
    if (len % 4 == 0) {
        // Rows begin at multiples of 16 bytes then.
        return at < len ? *reinterpret_cast<const float4*>(row + at) : float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
    return float4{
        at < len ? row[at] : 0.0f,
        at + 1 < len ? row[at + 1] : 0.0f,
        at + 2 < len ? row[at + 2] : 0.0f,
        at + 3 < len ? row[at + 3] : 0.0f,
    };
}

// Stages DEPTH features of 64 rows, from row `first` and feature `from` on, as [DEPTH, 64], times a factor.
__device__ __forceinline__ void stage_turned(
    float* stage, const float* source, uint64_t stride, uint32_t first, uint32_t rows, uint32_t from, uint32_t head_dim,
    float factor) {
    const uint32_t row = threadIdx.x % 64;
#pragma unroll
    for (uint32_t feature = threadIdx.x / 64 * 4; feature < DEPTH; feature += THREADS / 64 * 4) {
        float4 values = {0.0f, 0.0f, 0.0f, 0.0f};
        if (first + row < rows) values = load_float4(source + (first + row) * stride, from + feature, head_dim);
        stage[feature * 64 + row] = values.x * factor;
        stage[(feature + 1) * 64 + row] = values.y * factor;
        stage[(feature + 2) * 64 + row] = values.z * factor;
        stage[(feature + 3) * 64 + row] = values.w * factor;
    }
}

template <uint32_t COLUMNS>
__device__ __forceinline__ void attend_exact(const AttentionArgs& args) {
    constexpr uint32_t LEN = 64 * COLUMNS;          // features of a padded row of values
    constexpr uint32_t VALUE_KEYS = STAGE / LEN;    // keys of a step of values
    __shared__ __align__(16) float stage[STAGE];
    __shared__ __align__(16) float weights[QUERIES * WEIGHT_STRIDE];
    const uint32_t x = threadIdx.x % 16 * 4, y = threadIdx.x / 16 * 4;  // this thread's keys and features, and queries
    const uint32_t head = blockIdx.y, batch = blockIdx.z;
    const uint32_t block = args.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const uint32_t first_query = block * QUERIES;
    const uint64_t stride = uint64_t(args.heads) * args.head_dim;
    const uint64_t queries = uint64_t(batch) * args.query_tokens * stride + uint64_t(head) * args.head_dim;
    const uint64_t kv_stride = uint64_t(args.kv_heads) * args.head_dim;
    const uint64_t keys = uint64_t(batch) * args.key_tokens * kv_stride + uint64_t(args.kv_head(head)) * args.head_dim;
    const float* q = static_cast<const float*>(args.q) + queries;
    const float* k = static_cast<const float*>(args.k) + keys;
    const float* v = static_cast<const float*>(args.v) + keys;
    const float* bias = bias_of(args, head);

    float sums[4][COLUMNS][4];
    float largest[4], total[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
        largest[i] = LEAST_SCORE;
        total[i] = 0.0f;
#pragma unroll
        for (uint32_t c = 0; c < COLUMNS; ++c) sums[i][c][0] = sums[i][c][1] = sums[i][c][2] = sums[i][c][3] = 0.0f;
    }

    const uint32_t known = args.keys_seen();
    const uint32_t seen = args.causal ? min(known, first_query + QUERIES) : known;
    for (uint32_t first = 0; first < seen; first += KEYS) {
        float s[4][4] = {};
        for (uint32_t from = 0; from < args.head_dim; from += DEPTH) {
            __syncthreads();
            stage_turned(stage, q, stride, first_query, args.query_tokens, from, args.head_dim, args.scale);
            stage_turned(stage + DEPTH * 64, k, kv_stride, first, args.key_tokens, from, args.head_dim, 1.0f);
            __syncthreads();
#pragma unroll 8
            for (uint32_t d = 0; d < DEPTH; ++d) {
                const float4 a = *reinterpret_cast<const float4*>(stage + d * 64 + y);
                const float4 b = *reinterpret_cast<const float4*>(stage + (DEPTH + d) * 64 + x);
                const float as[4] = {a.x, a.y, a.z, a.w}, bs[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
                for (uint32_t i = 0; i < 4; ++i) {
#pragma unroll
                    for (uint32_t j = 0; j < 4; ++j) s[i][j] = fmaf(as[i], bs[j], s[i][j]);
                }
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t query = first_query + y + i;
            float most = largest[i];
#pragma unroll
            for (uint32_t j = 0; j < 4; ++j) {
                const uint32_t key = first + x + j;
                const bool hidden = key >= known || (args.causal && key > query);
                if (hidden) {
                    s[i][j] = MINUS_INFINITY;
                } else if (bias && query < args.query_tokens) {
                    s[i][j] = fmaf(bias[key + args.query_tokens - 1 - query], LOG2_E, s[i][j]);
                }
                most = fmaxf(most, s[i][j]);
            }
#pragma unroll
            for (uint32_t lanes = 8; lanes > 0; lanes /= 2) most = fmaxf(most, __shfl_xor_sync(WHOLE_WARP, most, lanes));
            const float factor = exp2f(largest[i] - most);
            largest[i] = most;
#pragma unroll
            for (uint32_t j = 0; j < 4; ++j) s[i][j] = exp2f(s[i][j] - most);
            total[i] = fmaf(total[i], factor, (s[i][0] + s[i][1]) + (s[i][2] + s[i][3]));
#pragma unroll
            for (uint32_t c = 0; c < COLUMNS; ++c) {
#pragma unroll
                for (uint32_t j = 0; j < 4; ++j) sums[i][c][j] *= factor;
            }
            *reinterpret_cast<float4*>(weights + (y + i) * WEIGHT_STRIDE + x) = float4{s[i][0], s[i][1], s[i][2], s[i][3]};
        }
        for (uint32_t from = 0; from < KEYS; from += VALUE_KEYS) {
            __syncthreads();
#pragma unroll
            for (uint32_t at = threadIdx.x * 4; at < STAGE; at += THREADS * 4) {
                const uint32_t key = first + from + at / LEN;
                float4 values = {0.0f, 0.0f, 0.0f, 0.0f};
                if (key < args.key_tokens) values = load_float4(v + key * kv_stride, at % LEN, args.head_dim);
                *reinterpret_cast<float4*>(stage + at) = values;
            }
            __syncthreads();
#pragma unroll 1
            for (uint32_t key = 0; key < VALUE_KEYS; key += 4) {
                float p[4][4];
#pragma unroll
                for (uint32_t i = 0; i < 4; ++i) {
                    const float4 row = *reinterpret_cast<const float4*>(weights + (y + i) * WEIGHT_STRIDE + from + key);
                    p[i][0] = row.x, p[i][1] = row.y, p[i][2] = row.z, p[i][3] = row.w;
                }
#pragma unroll
                for (uint32_t d = 0; d < 4; ++d) {
#pragma unroll
                    for (uint32_t c = 0; c < COLUMNS; ++c) {
                        const float4 value = *reinterpret_cast<const float4*>(stage + (key + d) * LEN + c * 64 + x);
#pragma unroll
                        for (uint32_t i = 0; i < 4; ++i) {
                            sums[i][c][0] = fmaf(p[i][d], value.x, sums[i][c][0]);
                            sums[i][c][1] = fmaf(p[i][d], value.y, sums[i][c][1]);
                            sums[i][c][2] = fmaf(p[i][d], value.z, sums[i][c][2]);
                            sums[i][c][3] = fmaf(p[i][d], value.w, sums[i][c][3]);
                        }
                    }
                }
            }
        }
    }

#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
#pragma unroll
        for (uint32_t lanes = 8; lanes > 0; lanes /= 2) total[i] += __shfl_xor_sync(WHOLE_WARP, total[i], lanes);
        const uint32_t query = first_query + y + i;
        if (query >= args.query_tokens) continue;
        float* out = static_cast<float*>(args.out) + queries + query * stride;
#pragma unroll
        for (uint32_t c = 0; c < COLUMNS; ++c) {
            const uint32_t feature = c * 64 + x;
#pragma unroll
            for (uint32_t j = 0; j < 4; ++j) {
                if (feature + j < args.head_dim) out[feature + j] = sums[i][c][j] / total[i];
            }
        }
    }
}

#define ATTENTION_EXACT(DIM)                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_exact_##DIM(AttentionArgs args) {        \
        attend_exact<DIM / 64>(args);                                                                             \
    }

ATTENTION_EXACT(64)
ATTENTION_EXACT(128)
ATTENTION_EXACT(256)
ATTENTION_EXACT(512)
