// In which order what stands for rows of activations lies, for quantise.cu and linear_bytes.cu.
#pragma once

#include "common.cuh"

// Rows that are put into another order among themselves.
constexpr int ROWS_PLACED = 64;

// Of 64 rows those that are eight apart lie beside each other: a thread's sums are of such rows.
__device__ __forceinline__ uint32_t row_place(uint32_t row) {
    return row / ROWS_PLACED * ROWS_PLACED + row % 8 * 8 + row % ROWS_PLACED / 8;
}
