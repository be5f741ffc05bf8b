// Group normalisation of pictures `[batch, pixels, channels]`: the mean and the deviation of each group of neighbouring channels
// over a whole picture, then the normalisation itself.
//
// Three passes. `group_norm_spread` reads a picture in chunks of pixels, each a block or a row of such, and leaves for each column
// of channels its mean and the sum of the squares of the distances from it. `group_norm_moments` joins those of a group, in order.
// `group_norm_apply` normalises, and may write where it reads; a convolution that normalises its input needs only the first two,
// and its input may have 16 bits.
//
// A column is four neighbouring channels where that divides a group's number, else one. Nothing is subtracted that is larger than
// the spread of the numbers: a mean far from zero costs no precision.

#include "activation.cuh"
#include "short.cuh"
#include "vector.cuh"

// Pixels that a thread reads at once.
constexpr int LUMP = 8;
// Threads of a block of the first and last pass: `[columns, pixels]`, both powers of two.
constexpr int GROUP_NORM_BLOCK = 256;

// Count, mean, and sum of the squares of the distances from the mean.
struct Spread {
    float count;
    float mean;
    float squares;
};

__device__ inline Spread joined(const Spread& a, const Spread& b) {
    const float count = a.count + b.count;
    if (count == 0.0f) return a;
    const float distance = b.mean - a.mean;
    const float share = b.count / count;
    return Spread{count, fmaf(distance, share, a.mean), a.squares + b.squares + distance * distance * a.count * share};
}

// The numbers of a column at one pixel.
template <int WIDTH>
struct Column {
    float at[WIDTH];
    // From element `at` of a value.
    template <ElementKind KIND>
    __device__ static Column load(const void* value, int64_t at) {
        if constexpr (KIND == ELEMENT_F32) {
            const float* from = static_cast<const float*>(value) + at;
            if constexpr (WIDTH == 4) {
                const float4 all = *reinterpret_cast<const float4*>(from);
                return Column{{all.x, all.y, all.z, all.w}};
            } else {
                return Column{{*from}};
            }
        } else {
            const uint16_t* from = static_cast<const uint16_t*>(value) + at;
            if constexpr (WIDTH == 4) {
                const Four all = four_of(KIND, *reinterpret_cast<const uint2*>(from));
                return Column{{all.at[0], all.at[1], all.at[2], all.at[3]}};
            } else {
                return Column{{four_of(KIND, make_uint2(*from, 0)).at[0]}};
            }
        }
    }
    __device__ void store(float* to) const {
        if constexpr (WIDTH == 4) {
            *reinterpret_cast<float4*>(to) = make_float4(at[0], at[1], at[2], at[3]);
        } else {
            *to = at[0];
        }
    }
};

struct GroupSpreadArgs {
    const void* x;  // of kind
    // [batch, chunks, columns]: mean and squares
    float2* partials;
    uint32_t pixels;
    uint32_t channels;
    uint32_t chunk_pixels;
    uint32_t columns;
    uint32_t kind;  // ElementKind
    uint32_t padding;
};

template <int WIDTH>
__device__ inline Spread spread_of_lump(const Column<WIDTH> (&lump)[LUMP], int pixels) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < LUMP; i++)
#pragma unroll
        for (int channel = 0; channel < WIDTH; channel++) sum += i < pixels ? lump[i].at[channel] : 0.0f;
    const float count = static_cast<float>(pixels * WIDTH);
    const float mean = sum / count;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < LUMP; i++)
#pragma unroll
        for (int channel = 0; channel < WIDTH; channel++) {
            const float distance = i < pixels ? lump[i].at[channel] - mean : 0.0f;
            squares = fmaf(distance, distance, squares);
        }
    return Spread{count, mean, squares};
}

// A thread's column, which begins at element `column`, over its pixels of the chunk.
template <int WIDTH, ElementKind KIND>
__device__ inline Spread spread_of_column(const GroupSpreadArgs& args, int64_t column, uint32_t first, uint32_t last) {
    Spread all = {};
    for (uint32_t pixel = first; pixel < last; pixel += LUMP * blockDim.y) {
        Column<WIDTH> lump[LUMP] = {};
        int count = 0;
#pragma unroll
        for (int i = 0; i < LUMP; i++) {
            const uint32_t at = pixel + i * blockDim.y;
            if (at < last) {
                lump[i] = Column<WIDTH>::template load<KIND>(args.x, column + static_cast<int64_t>(at) * args.channels);
                count++;
            }
        }
        all = joined(all, spread_of_lump(lump, count));
    }
    return all;
}

template <int WIDTH>
__device__ inline Spread spread_of_thread(const GroupSpreadArgs& args, int64_t column, uint32_t first, uint32_t last) {
    if (args.kind == ELEMENT_F16) return spread_of_column<WIDTH, ELEMENT_F16>(args, column, first, last);
    if (args.kind == ELEMENT_BF16) return spread_of_column<WIDTH, ELEMENT_BF16>(args, column, first, last);
    return spread_of_column<WIDTH, ELEMENT_F32>(args, column, first, last);
}

// Grid `[chunks, columns in blocks, batch]`.
extern "C" __global__ void group_norm_spread(GroupSpreadArgs args) {
    __shared__ float counts[GROUP_NORM_BLOCK], means[GROUP_NORM_BLOCK], squares[GROUP_NORM_BLOCK];
    const uint32_t column = blockIdx.y * blockDim.x + threadIdx.x;
    const uint32_t width = args.channels / args.columns;
    const uint32_t start = blockIdx.x * args.chunk_pixels;
    const uint32_t last = min(start + args.chunk_pixels, args.pixels);
    Spread spread = {};
    if (column < args.columns) {
        const int64_t picture = static_cast<int64_t>(blockIdx.z) * args.pixels * args.channels;
        const int64_t from = picture + column * width;
        const uint32_t first = start + threadIdx.y;
        spread = width == 4 ? spread_of_thread<4>(args, from, first, last) : spread_of_thread<1>(args, from, first, last);
    }
    // The threads of a column in pairs, then the pairs in pairs.
    const uint32_t thread = threadIdx.y * blockDim.x + threadIdx.x;
    counts[thread] = spread.count, means[thread] = spread.mean, squares[thread] = spread.squares;
    for (uint32_t step = blockDim.y / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.y < step) {
            const uint32_t other = thread + step * blockDim.x;
            spread = joined(spread, Spread{counts[other], means[other], squares[other]});
            counts[thread] = spread.count, means[thread] = spread.mean, squares[thread] = spread.squares;
        }
    }
    if (threadIdx.y == 0 && column < args.columns) {
        const int64_t chunk = static_cast<int64_t>(blockIdx.z) * gridDim.x + blockIdx.x;
        args.partials[chunk * args.columns + column] = make_float2(spread.mean, spread.squares);
    }
}

struct GroupMomentsArgs {
    // [batch, groups]: mean, and one over the root of the variance plus eps
    float2* moments;
    // [batch, chunks, columns]
    const float2* partials;
    uint32_t pixels;
    uint32_t chunk_pixels;
    uint32_t chunks;
    uint32_t columns;
    // Of one group.
    uint32_t group_columns;
    uint32_t column_width;
    float eps;
    uint32_t padding;
};

// Grid `[groups, batch]`, block of one dimension. In f64: there is little to join.
extern "C" __global__ void group_norm_moments(GroupMomentsArgs args) {
    __shared__ double partial[BLOCK_MAX / WARP];
    const uint32_t group = blockIdx.x;
    const float2* partials = args.partials + static_cast<int64_t>(blockIdx.y) * args.chunks * args.columns;
    const uint32_t entries = args.chunks * args.group_columns;
    const double all = static_cast<double>(args.pixels) * args.group_columns * args.column_width;
    // Pass 0 sums to the mean, pass 1 to the variance.
    double mean = 0.0;
    double variance = 0.0;
    for (int pass = 0; pass < 2; pass++) {
        double sum = 0.0;
        for (uint32_t entry = threadIdx.x; entry < entries; entry += blockDim.x) {
            const uint32_t chunk = entry / args.group_columns;
            const uint32_t column = group * args.group_columns + entry % args.group_columns;
            const float2 part = partials[static_cast<int64_t>(chunk) * args.columns + column];
            const uint32_t start = chunk * args.chunk_pixels;
            const double count = static_cast<double>(min(args.chunk_pixels, args.pixels - start) * args.column_width);
            const double distance = part.x - mean;
            sum += pass == 0 ? count * part.x : part.y + count * distance * distance;
        }
        sum = block_sum(sum, partial) / all;
        if (pass == 0) {
            mean = sum;
        } else {
            variance = sum;
        }
    }
    if (threadIdx.x == 0) {
        const float scale = static_cast<float>(1.0 / sqrt(variance + args.eps));
        args.moments[blockIdx.y * gridDim.x + group] = make_float2(static_cast<float>(mean), scale);
    }
}

struct GroupApplyArgs {
    // out may be x.
    float* out;
    const float* x;
    // [batch, groups]
    const float2* moments;
    // [channels] each
    StoredVector weight;
    StoredVector bias;
    uint32_t pixels;
    uint32_t channels;
    uint32_t chunk_pixels;
    uint32_t columns;
    uint32_t groups;
    // Whether SiLU follows.
    uint32_t silu;
};

// Pixels that a thread has in flight.
constexpr int APPLY_LUMP = 4;

// (x - mean) × scale × weight + bias, of a thread's column.
template <int WIDTH, bool SILU>
__device__ inline void apply_to_column(const GroupApplyArgs& args, uint32_t column) {
    const int64_t picture = static_cast<int64_t>(blockIdx.z) * args.pixels * args.channels;
    const uint32_t channel = column * WIDTH;
    const uint32_t group = channel / (args.channels / args.groups);
    const float2 moments = args.moments[blockIdx.z * args.groups + group];
    Column<WIDTH> factors, summands;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        factors.at[i] = moments.y * vector_at(args.weight, channel + i);
        summands.at[i] = vector_at(args.bias, channel + i);
    }
    const uint32_t start = blockIdx.x * args.chunk_pixels;
    const uint32_t last = min(start + args.chunk_pixels, args.pixels);
    for (uint32_t pixel = start + threadIdx.y; pixel < last; pixel += APPLY_LUMP * blockDim.y) {
        Column<WIDTH> lump[APPLY_LUMP] = {};
#pragma unroll
        for (int i = 0; i < APPLY_LUMP; i++) {
            const int64_t at = pixel + i * blockDim.y;
            if (at < last) lump[i] = Column<WIDTH>::template load<ELEMENT_F32>(args.x, picture + at * args.channels + channel);
        }
#pragma unroll
        for (int i = 0; i < APPLY_LUMP; i++) {
            const int64_t at = pixel + i * blockDim.y;
            if (at >= last) continue;
#pragma unroll
            for (int k = 0; k < WIDTH; k++) {
                const float y = fmaf(lump[i].at[k] - moments.x, factors.at[k], summands.at[k]);
                lump[i].at[k] = SILU ? silu(y) : y;
            }
            lump[i].store(args.out + picture + at * args.channels + channel);
        }
    }
}

// Grid `[chunks, columns in blocks, batch]`, as of the first pass.
extern "C" __global__ void group_norm_apply(GroupApplyArgs args) {
    const uint32_t column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= args.columns) return;
    if (args.channels == args.columns * 4) {
        args.silu ? apply_to_column<4, true>(args, column) : apply_to_column<4, false>(args, column);
    } else {
        args.silu ? apply_to_column<1, true>(args, column) : apply_to_column<1, false>(args, column);
    }
}
