// A row of f32 that a warp or a block works on together, in several passes: what fits stays in registers between them.
//
// A block is `[threads of a row, rows]`: 32 threads and several rows, or more threads and one row. All threads of a row take
// part in each function here.

#pragma once

#include "four.cuh"

// Fours of a row that each thread keeps; any further ones are read again in each pass.
constexpr int ROW_KEPT = 4;

// `Source(first)` gives the four numbers from `first` on, and zeros beyond what there is.
template <class Source>
class Row {
   public:
    __device__ Row(const Source& source, int length) : source(source), length(length) {
#pragma unroll
        for (int i = 0; i < ROW_KEPT; i++) {
            const int first = place(i);
            kept[i] = first < length ? source(first) : Four{};
        }
    }

    // Calls `function(four numbers, place of the first)` for the thread's part, in the same order each time.
    template <class Function>
    __device__ void each(Function function) const {
#pragma unroll
        for (int i = 0; i < ROW_KEPT; i++)
            if (place(i) < length) function(kept[i], place(i));
        for (int i = ROW_KEPT; place(i) < length; i++) function(source(place(i)), place(i));
    }

    // The same, but read anew: for functions so long that they should stand in the code once.
    template <class Function>
    __device__ void each_again(Function function) const {
#pragma unroll 1
        for (int i = 0; place(i) < length; i++) function(source(place(i)), place(i));
    }

   private:
    __device__ static int place(int index) { return static_cast<int>(threadIdx.x + index * blockDim.x) * 4; }

    const Source& source;
    const int length;
    Four kept[ROW_KEPT];
};

// The numbers of a row as they lie.
struct PlainRow {
    const float* row;
    int features;
    __device__ Four operator()(int first) const { return load_four(row, first, features); }
};

// Which row the thread belongs to.
__device__ inline uint32_t row_of_thread() {
    return blockIdx.x * blockDim.y + threadIdx.y;
}

// The sum over the threads of a row, in each of them. `partial` as of block_sum.
__device__ inline float row_sum(float value, float* partial) {
    return blockDim.x == WARP ? warp_sum(value) : block_sum(value, partial);
}

__device__ inline float row_max(float value, float* partial) {
    return blockDim.x == WARP ? warp_max(value) : block_max(value, partial);
}
