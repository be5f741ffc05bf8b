// What is left of a linear layer once cuBLASLt has written the plain sums of its products, in their place:
// out = activation(out · factors · scale + bias).
//
// The output is [rows, stride] of f32, of which `columns` from `from` on are read and written; factors: [rows], or null.
//
// Grid: blocks of columns, then of rows. Blocks: 256 threads, a column each, which takes several rows so that it reads the bias
// once for them.
#include "linear.cuh"

struct LinearFinishArgs {
    LinearOut to;
    const float* factors;
};

namespace finishing {

constexpr int THREADS = 256;
// Rows that a thread reads before it writes them, so that several reads are under way.
constexpr int ROWS = 8;

}  // namespace finishing

extern "C" __global__ void __launch_bounds__(finishing::THREADS) linear_finish(LinearFinishArgs args) {
    using finishing::ROWS;
    const LinearOut& to = args.to;
    const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (column >= to.columns) return;
    const float bias = bias_of(to, column);
    const int step = static_cast<int>(gridDim.y) * ROWS;
    for (int first = static_cast<int>(blockIdx.y) * ROWS; first < to.rows; first += step) {
        float* out = static_cast<float*>(to.out) + place_of(to, first, column);
        const int count = min(ROWS, to.rows - first);
        float sums[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) sums[i] = i < count ? out[i * to.stride] : 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (i >= count) break;
            const float factor = args.factors == nullptr ? 1.0f : args.factors[first + i];
            out[i * to.stride] = finished(to, sums[i] * factor, bias);
        }
    }
}
