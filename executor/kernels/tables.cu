// What is looked up in a stored table: embeddings of ids, learnt positions, T5's biases by distance. Variants by storage type.
//
// A row of a table whose length eight divides is decoded in groups of eight, any other number by number: only types without
// blocks have such.

#include "decode.cuh"

struct StoredTable {
    const uint8_t* bytes;
    // What each number is multiplied by.
    float scale;
    uint32_t padding;
};

// Calls `function(feature, value)` for a thread's features of row `row`. Block: `[threads of a row, rows]`.
template <class Storage, class Function>
__device__ inline void each_feature(const StoredTable& table, int64_t row, uint32_t features, Function function) {
    const int64_t start = row * features;
    if constexpr (Storage::block_elements == 1) {
        if (features % GROUP != 0) {
            for (uint32_t feature = threadIdx.x; feature < features; feature += blockDim.x)
                function(feature, __fmul_rn(Storage::at(table.bytes, start + feature), table.scale));
            return;
        }
    }
    for (uint32_t first = threadIdx.x * GROUP; first < features; first += blockDim.x * GROUP) {
        float values[GROUP];
        Storage::decode(table.bytes, start + first, values);
#pragma unroll
        for (int i = 0; i < GROUP; i++) function(first + i, __fmul_rn(values[i], table.scale));
    }
}

struct EmbeddingArgs {
    // [rows, features]
    float* out;
    // [rows], each of them a row of the table: whoever launches has checked that.
    const int32_t* ids;
    StoredTable table;
    uint32_t rows;
    uint32_t features;
};

// out[i] = table[ids[i]]; `blockIdx.x` counts blocks of rows.
template <class Storage>
__device__ inline void embed(const EmbeddingArgs& args) {
    const uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= args.rows) return;
    float* out = args.out + static_cast<int64_t>(row) * args.features;
    each_feature<Storage>(args.table, args.ids[row], args.features,
                          [&](uint32_t feature, float value) { out[feature] = value; });
}

struct AddPositionsArgs {
    // [batch, tokens, features]; out may be x.
    float* out;
    const float* x;
    StoredTable table;
    uint32_t rows;
    uint32_t tokens;
    uint32_t features;
    uint32_t padding;
};

// x + the table's row of each token; `blockIdx.x` counts blocks of rows.
template <class Storage>
__device__ inline void add_position(const AddPositionsArgs& args) {
    const uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= args.rows) return;
    const int64_t start = static_cast<int64_t>(row) * args.features;
    each_feature<Storage>(args.table, row % args.tokens, args.features,
                          [&](uint32_t feature, float value) { args.out[start + feature] = args.x[start + feature] + value; });
}

struct RelativePositionBiasArgs {
    // [heads, 2 × tokens - 1]
    float* out;
    // [buckets, heads]
    StoredTable table;
    uint32_t tokens;
    uint32_t heads;
    uint32_t buckets;
    // The logarithm of the largest distance over the largest that has a bucket of its own, rounded to f32.
    float range;
};

// The bucket of a distance in one direction, of `buckets`: half of them for each distance alone, the others growing by a constant
// factor. In f32, whose rounding decides at borders, of a logarithm rounded from f64, as the host has it.
__device__ inline uint32_t distance_bucket(uint32_t distance, uint32_t buckets, float range) {
    const uint32_t exact = buckets / 2;
    if (distance < exact) return distance;
    const float ratio = static_cast<float>(distance) / static_cast<float>(exact);
    const float share = static_cast<float>(log(static_cast<double>(ratio))) / range;
    const uint32_t beyond = static_cast<uint32_t>(share * static_cast<float>(buckets - exact));
    return min(exact + beyond, buckets - 1);
}

// out[head, key - query + tokens - 1] = table[bucket(key - query), head]. Grid of `[offsets in blocks, heads]`.
template <class Storage>
__device__ inline void bias_by_distance(const RelativePositionBiasArgs& args) {
    const uint32_t offsets = 2 * args.tokens - 1;
    const uint32_t offset = blockIdx.x * blockDim.x + threadIdx.x;
    if (offset >= offsets) return;
    const uint32_t head = blockIdx.y;
    const bool later = offset >= args.tokens;
    const uint32_t distance = later ? offset - (args.tokens - 1) : args.tokens - 1 - offset;
    const uint32_t half = args.buckets / 2;
    const uint32_t bucket = distance_bucket(distance, half, args.range) + (later ? half : 0);
    const float value = Storage::at(args.table.bytes, static_cast<int64_t>(bucket) * args.heads + head);
    args.out[static_cast<int64_t>(head) * offsets + offset] = __fmul_rn(value, args.table.scale);
}

#define TABLES(name, Storage)                                                                      \
    extern "C" __global__ void embedding_##name(EmbeddingArgs args) {                              \
        embed<Storage>(args);                                                                      \
    }                                                                                              \
    extern "C" __global__ void add_positions_##name(AddPositionsArgs args) {                       \
        add_position<Storage>(args);                                                               \
    }                                                                                              \
    extern "C" __global__ void relative_position_bias_##name(RelativePositionBiasArgs args) {      \
        bias_by_distance<Storage>(args);                                                           \
    }
EACH_STORAGE(TABLES)
#undef TABLES
