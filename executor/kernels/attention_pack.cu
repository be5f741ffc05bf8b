// Queries, keys and values as f16 rows of single heads, for the tensor-core attention kernels.
//
// [batch, tokens, heads × head_dim] of f32 becomes [batch, heads, rows, row_len] of f16, with zeros behind head_dim and
// behind the tokens, and values beyond f16's range at its end. Keys and values are read by each block of queries; in this
// form whole tiles of them go to shared memory as they are. Grid: [16-byte pieces of the result / 256], block: 256.
#include "common.cuh"
#include "tiles.cuh"

constexpr uint32_t THREADS = 256;

struct AttentionPackArgs {
    const float* source;
    uint16_t* target;
    uint64_t pieces;   // of 8 elements, in the result
    uint32_t tokens;
    uint32_t rows;     // at least tokens
    uint32_t heads;
    uint32_t head_dim;
    uint32_t row_len;  // a multiple of 8, at least head_dim
    uint32_t unused;
};

extern "C" __global__ void attention_pack(AttentionPackArgs args) {
    const uint64_t piece = uint64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (piece >= args.pieces) return;
    const uint32_t row_pieces = args.row_len / 8;
    const uint32_t first = piece % row_pieces * 8;
    const uint64_t row = piece / row_pieces;  // [batch, heads, rows]
    const uint64_t token = row % args.rows;
    const uint64_t head = row / args.rows % args.heads;
    const uint64_t batch = row / args.rows / args.heads;
    const float* source = args.source +
        ((batch * args.tokens + token) * args.heads + head) * args.head_dim + first;
    float values[8];
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
        values[i] = token < args.tokens && first + i < args.head_dim ? source[i] : 0.0f;
    }
    uint4 packed;
    packed.x = pack_f16(values[0], values[1]);
    packed.y = pack_f16(values[2], values[3]);
    packed.z = pack_f16(values[4], values[5]);
    packed.w = pack_f16(values[6], values[7]);
    reinterpret_cast<uint4*>(args.target)[piece] = packed;
}
