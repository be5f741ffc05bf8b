// What norms scale the rows of rows.cuh by. Sums are of f32.

#pragma once

#include "rows.cuh"

struct RowMoments {
    float mean;
    // One over the root of the variance plus eps.
    float scale;
};

// The mean first, then the squares of the distances from it, so that a mean far from zero costs no precision.
__device__ inline RowMoments row_moments(const Row<PlainRow>& row, int features, float eps, float* partial) {
    float sum = 0.0f;
    row.each([&](const Four& x, int) { sum += (x.at[0] + x.at[1]) + (x.at[2] + x.at[3]); });
    const float mean = row_sum(sum, partial) / static_cast<float>(features);
    float squares = 0.0f;
    row.each([&](const Four& x, int first) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float distance = first + i < features ? x.at[i] - mean : 0.0f;
            squares = fmaf(distance, distance, squares);
        }
    });
    const float variance = row_sum(squares, partial) / static_cast<float>(features);
    return RowMoments{mean, 1.0f / sqrtf(variance + eps)};
}

// One over the root of the mean of the squares plus eps.
__device__ inline float inverse_root_mean_square(const Row<PlainRow>& row, int features, float eps, float* partial) {
    float squares = 0.0f;
    row.each([&](const Four& x, int) {
#pragma unroll
        for (int i = 0; i < 4; i++) squares = fmaf(x.at[i], x.at[i], squares);
    });
    const float mean = row_sum(squares, partial) / static_cast<float>(features);
    return 1.0f / sqrtf(mean + eps);
}
