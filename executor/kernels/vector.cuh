// Biases, and the scales and shifts of norms: short vectors as stored, read number by number.

#pragma once

#include "plain.cuh"

// In the order of protocol::StorageType.
enum VectorKind : uint32_t { VECTOR_F32, VECTOR_F16, VECTOR_BF16, VECTOR_F8_E4M3, VECTOR_F8_E5M2 };

// A kernel's argument, 16 bytes.
struct StoredVector {
    // Zero where there is none.
    const uint8_t* bytes;
    // What each number is multiplied by.
    float scale;
    // A VectorKind, the same for all threads.
    uint32_t kind;
};

__device__ inline float vector_at(const StoredVector& vector, int64_t index) {
    float value;
    switch (vector.kind) {
        case VECTOR_F16: value = F16::at(vector.bytes, index); break;
        case VECTOR_BF16: value = BF16::at(vector.bytes, index); break;
        case VECTOR_F8_E4M3: value = F8_E4M3::at(vector.bytes, index); break;
        case VECTOR_F8_E5M2: value = F8_E5M2::at(vector.bytes, index); break;
        default: value = F32::at(vector.bytes, index); break;
    }
    return __fmul_rn(value, vector.scale);
}
