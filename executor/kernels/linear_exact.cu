// Linear layers in f32 on the ordinary cores: out = activation(x · wᵀ · scale + bias), for weights of any storage type.
//
// Grid: one block for each tile of the output, in one dimension. Blocks: 256 threads for tiles of 128 x 128, 64 for tiles of
// 64 x 64; a thread computes 8 x 8 elements, in four squares of 4 x 4. Tiles of 16 of the summed dimension lie transposed in
// shared memory, twice: while one is multiplied, the next is read and decoded.
//
// Invariant: an element's products are added one after the other, in order, each sum rounded once.
#include "linear_f32.cuh"

namespace linear_exact {

constexpr int STEP = 16;
// Elements of a thread, in both directions.
constexpr int OWN = 8;

// STEP by SIDE numbers; four more in a row keep rows at multiples of 16 bytes.
template <int SIDE>
using Tile = float[STEP][SIDE + 4];

// What a thread reads of the next tiles.
template <class Type, int SIDE, int THREADS>
struct Next {
    static constexpr int FOURS = SIDE * STEP / 4 / THREADS;
    static constexpr int EIGHTS = SIDE * STEP / GROUP / THREADS;
    float4 x[FOURS];
    float w[EIGHTS][GROUP];

    // Rows and columns past the end are the last one again: what they give is never stored.
    __device__ void read(const LinearF32Args& args, int row, int column, int k) {
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            const int item = threadIdx.x + i * THREADS;
            x[i] = four_activations(args, min(row + item / 4, args.to.rows - 1), k + item % 4 * 4);
        }
#pragma unroll
        for (int i = 0; i < EIGHTS; i++) {
            const int item = threadIdx.x + i * THREADS;
            eight_weights<Type>(args, min(column + item / 2, args.to.columns - 1), k + item % 2 * GROUP, w[i]);
        }
    }

    __device__ void put(Tile<SIDE>& a, Tile<SIDE>& b) const {
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            const int item = threadIdx.x + i * THREADS;
            const float four[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
            for (int j = 0; j < 4; j++) a[item % 4 * 4 + j][item / 4] = four[j];
        }
#pragma unroll
        for (int i = 0; i < EIGHTS; i++) {
            const int item = threadIdx.x + i * THREADS;
#pragma unroll
            for (int j = 0; j < GROUP; j++) b[item % 2 * GROUP + j][item / 2] = w[i][j];
        }
    }
};

// Eight numbers of a tile's row: four at `at`, four half a row further.
template <int SIDE>
__device__ inline void eight_of_row(const float* row, int at, float (&out)[OWN]) {
    const float4 low = *reinterpret_cast<const float4*>(row + at);
    const float4 high = *reinterpret_cast<const float4*>(row + SIDE / 2 + at);
    out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
    out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
}

// Where a thread's element `i` of eight lies in a tile's side, if the first is at `at`.
template <int SIDE>
__device__ inline int place_of_own(int at, int i) {
    return at + i % 4 + i / 4 * (SIDE / 2);
}

template <class Type, int SIDE>
__device__ void multiply(const LinearF32Args& args) {
    constexpr int THREADS = SIDE * SIDE / (OWN * OWN);
    __shared__ __align__(16) Tile<SIDE> a[2];
    __shared__ __align__(16) Tile<SIDE> b[2];
    const LinearOut& to = args.to;
    const TilePlace tile(to, SIDE, SIDE);
    const int row = threadIdx.x / (SIDE / OWN) * 4;
    const int column = threadIdx.x % (SIDE / OWN) * 4;
    const int steps = (args.depth + STEP - 1) / STEP;
    float sums[OWN][OWN] = {};  // rows and columns of a thread
    Next<Type, SIDE, THREADS> next;
    next.read(args, tile.row, tile.column, 0);
    next.put(a[0], b[0]);
    __syncthreads();
    for (int step = 0; step < steps; step++) {
        const int full = step % 2;
        if (step + 1 < steps) next.read(args, tile.row, tile.column, (step + 1) * STEP);
#pragma unroll 4
        for (int k = 0; k < STEP; k++) {
            float left[OWN];
            float right[OWN];
            eight_of_row<SIDE>(a[full][k], row, left);
            eight_of_row<SIDE>(b[full][k], column, right);
#pragma unroll
            for (int i = 0; i < OWN; i++)
#pragma unroll
                for (int j = 0; j < OWN; j++) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
        }
        if (step + 1 < steps) next.put(a[1 - full], b[1 - full]);
        __syncthreads();
    }
    // Registers have no index: each sum in turn moves to the first place, so that the code of finishing is there once.
#pragma unroll 1
    for (int j = 0; j < OWN; j++) {
        const int at = tile.column + place_of_own<SIDE>(column, j);
        const float bias = at < to.columns ? bias_of(to, at) : 0.0f;
#pragma unroll 1
        for (int i = 0; i < OWN; i++) {
            const int line = tile.row + place_of_own<SIDE>(row, i);
            if (line < to.rows && at < to.columns) put(to, line, at, finished(to, sums[0][0], bias));
#pragma unroll
            for (int next = 1; next < OWN; next++) sums[next - 1][0] = sums[next][0];
        }
#pragma unroll
        for (int next = 1; next < OWN; next++)
#pragma unroll
            for (int i = 0; i < OWN; i++) sums[i][next - 1] = sums[i][next];
    }
}

}  // namespace linear_exact

#define LINEAR_EXACT(name, Type)                                                                           \
    extern "C" __global__ void __launch_bounds__(256, 2) linear_exact_##name##_large(LinearF32Args args) { \
        linear_exact::multiply<Type, 128>(args);                                                           \
    }                                                                                                      \
    extern "C" __global__ void __launch_bounds__(64) linear_exact_##name##_small(LinearF32Args args) {     \
        linear_exact::multiply<Type, 64>(args);                                                            \
    }

EACH_PLAIN_STORAGE(LINEAR_EXACT)
LINEAR_EXACT(any, AnyStorage)
