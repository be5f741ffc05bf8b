// What the kernels of linear layers share: how a sum becomes an element of the output.
//
// out[row, from + column] = activation(sum · scale + bias[column]), with out [rows, stride] of f32, or rounded to 16 bits.
#pragma once

#include "activation.cuh"
#include "any_storage.cuh"
#include "element.cuh"
#include "vector.cuh"

// Where results go, and what is done with them on the way.
struct LinearOut {
    void* out;          // [rows, stride]
    int64_t stride;     // elements from one row of `out` to the next
    StoredVector bias;  // [columns]; without bytes where there is none
    int32_t rows;
    int32_t columns;    // of this call; as many as the weight has rows
    int32_t from;       // the first column of `out` that is written
    float scale;        // of the weight
    uint32_t activation;
    uint32_t storage;   // the weight's StorageKind
    uint32_t element;   // ElementKind of `out`
    uint32_t padding;
};

// What is added to a column's sum.
__device__ inline float bias_of(const LinearOut& to, int column) {
    return to.bias.bytes == nullptr ? 0.0f : vector_at(to.bias, column);
}

// The element that a sum stands for; `bias` is the column's. Rounded after the product, so that whatever the compiler does
// around it the bits are the same in every kernel that calls it.
__device__ inline float finished(const LinearOut& to, float sum, float bias) {
    return activate(to.activation, __fadd_rn(__fmul_rn(sum, to.scale), bias));
}

// Where an element goes, in elements from the beginning of `out`.
__device__ inline int64_t place_of(const LinearOut& to, int row, int column) {
    return row * to.stride + to.from + column;
}

// Writes one element.
__device__ inline void put(const LinearOut& to, int row, int column, float value) {
    const int64_t place = place_of(to, row, column);
    if (to.element == ELEMENT_F32) {
        static_cast<float*>(to.out)[place] = value;
    } else {
        static_cast<uint16_t*>(to.out)[place] = static_cast<uint16_t>(pair_of(to.element, value, value));
    }
}

// Which tile of the output a block computes: of `ROWS` rows and `COLUMNS` columns, at the block's index in a grid of one
// dimension. Sixteen tiles below each other come first, then the columns beside them, so that blocks that run together read few
// rows of either operand.
struct TilePlace {
    int row;
    int column;

    __device__ TilePlace(const LinearOut& to, int tile_rows, int tile_columns) {
        const int down = (to.rows + tile_rows - 1) / tile_rows;
        const int across = (to.columns + tile_columns - 1) / tile_columns;
        const int band = static_cast<int>(blockIdx.x) / (16 * across);
        const int within = static_cast<int>(blockIdx.x) - band * 16 * across;
        const int height = min(16, down - 16 * band);
        row = (16 * band + within % height) * tile_rows;
        column = within / height * tile_columns;
    }
};
