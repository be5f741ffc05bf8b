// Linear layers of up to eight rows, in f32: out = activation(x · wᵀ · scale + bias), for weights of any storage type. They are
// read once, at the memory's rate, and decoded in registers.
//
// Grid: one block for each eight columns. Blocks: 128 threads; a warp computes two columns of all rows. A thousand activations of
// each row pass through shared memory at a time. Of those a lane takes eight neighbours, then the eight that begin 256 after;
// the lanes' sums are added at the end.
//
// Invariant: the order of an element's additions depends on the depth alone.
#include "linear_f32.cuh"

namespace linear_few {

constexpr int THREADS = 128;
// Columns of a warp: each activation that is read is used for so many.
constexpr int COLUMNS = 2;
// What a warp takes of the summed dimension at a time, and how often before a block reads more activations.
constexpr int STEP = WARP * GROUP;
constexpr int STEPS = 4;

template <class Type, int ROWS>
__device__ void multiply(const LinearF32Args& args) {
    // [ROWS, STEPS, 2, WARP]: the first four of each lane's eight, then the others, so that lanes read neighbours.
    __shared__ __align__(16) float4 x[ROWS * STEPS * 2 * WARP];
    const LinearOut& to = args.to;
    const int lane = threadIdx.x % WARP;
    const int column = (blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP) * COLUMNS;
    const int rows = min(ROWS, to.rows);
    float sums[ROWS][COLUMNS] = {};
    for (int from = 0; from < args.depth; from += STEPS * STEP) {
        __syncthreads();
#pragma unroll 1
        for (int item = threadIdx.x; item < rows * STEPS * 2 * WARP; item += THREADS) {
            const int within = item % (STEPS * 2 * WARP);
            const int k = from + within * 4;
            const int place = within / 2 % WARP + within % 2 * WARP + within / (2 * WARP) * (2 * WARP);
            x[item - within + place] = four_activations(args, item / (STEPS * 2 * WARP), k);
        }
        __syncthreads();
#pragma unroll(ROWS == 1 ? 2 : 1)
        for (int step = 0; step < STEPS; step++) {
            const int k = from + step * STEP + lane * GROUP;
            if (k >= args.depth) break;
            float w[COLUMNS][GROUP];
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) eight_weights<Type>(args, min(column + j, to.columns - 1), k, w[j]);
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                if (row >= rows) break;
                const float4* eight = x + (row * STEPS + step) * 2 * WARP + lane;
                const float4 low = eight[0];
                const float4 high = eight[WARP];
                const float all[GROUP] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                for (int i = 0; i < GROUP; i++)
#pragma unroll
                    for (int j = 0; j < COLUMNS; j++) sums[row][j] = fmaf(all[i], w[j][i], sums[row][j]);
            }
        }
    }
    // Lane `row` · COLUMNS + `j` finishes that element. Registers have no index: the next row's sums move to the first place.
    float own = 0.0f;
#pragma unroll 1
    for (int row = 0; row < rows; row++) {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const float sum = warp_sum(sums[0][j]);
            if (lane == row * COLUMNS + j) own = sum;
        }
#pragma unroll
        for (int next = 1; next < ROWS; next++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) sums[next - 1][j] = sums[next][j];
    }
    const int row = lane / COLUMNS;
    const int at = column + lane % COLUMNS;
    if (row < rows && at < to.columns) put(to, row, at, finished(to, own, bias_of(to, at)));
}

}  // namespace linear_few

// For one row, and for up to eight.
#define LINEAR_FEW(name, Type)                                                                                           \
    extern "C" __global__ void __launch_bounds__(linear_few::THREADS) linear_few_##name##_one(LinearF32Args args) {   \
        linear_few::multiply<Type, 1>(args);                                                                             \
    }                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(linear_few::THREADS) linear_few_##name##_eight(LinearF32Args args) { \
        linear_few::multiply<Type, 8>(args);                                                                             \
    }

EACH_PLAIN_STORAGE(LINEAR_FEW)
LINEAR_FEW(f8_e4m3, F8_E4M3)
LINEAR_FEW(f8_e5m2, F8_E5M2)
LINEAR_FEW(q8_0, Q8_0)
LINEAR_FEW(q4_0, Q4_0)
LINEAR_FEW(q4_k, Q4_K)
LINEAR_FEW(q5_k, Q5_K)
LINEAR_FEW(q6_k, Q6_K)
// Types that few models have.
LINEAR_FEW(any, AnyStorage)
