// The activation functions, for kernels that apply one to each element or to their results.

#pragma once

#include "common.cuh"

// In the order of graph::Activation.
enum ActivationKind : uint32_t { ACTIVATION_NONE, ACTIVATION_SILU, ACTIVATION_GELU_TANH, ACTIVATION_GELU_ERF, ACTIVATION_QUICK_GELU };

// x · sigmoid(x)
__device__ inline float silu(float x) {
    return x / (1.0f + expf(-x));
}

// By 1 + tanh(u) = 2 sigmoid(2u), which does not cancel where tanh is near -1.
__device__ inline float gelu_tanh(float x) {
    // -2 √(2/π)
    const float minus_two_root = -1.5957692f;
    const float cubic = fmaf(0.044715f * x * x, x, x);
    return x / (1.0f + expf(minus_two_root * cubic));
}

// By the complementary error function of |x|/√2, which keeps its relative precision in the tail.
__device__ inline float gelu_erf(float x) {
    // 0.4 / √2
    const float slope = 0.2828427f;
    // exp(z²) erfc(z) / t in powers of t = 1 / (1 + 0.4 z) for z in 0..9.5, as the host has it: relative error 9e-8.
    const float t = 1.0f / fmaf(slope, fabsf(x), 1.0f);
    float sum = 0.037383834f;
    sum = fmaf(sum, t, -0.12183466f);
    sum = fmaf(sum, t, 0.04653391f);
    sum = fmaf(sum, t, 0.1298884f);
    sum = fmaf(sum, t, 0.051478724f);
    sum = fmaf(sum, t, 0.20513116f);
    sum = fmaf(sum, t, 0.19896605f);
    sum = fmaf(sum, t, 0.22684109f);
    sum = fmaf(sum, t, 0.22561153f);
    // Half of erfc(|x|/√2): the standard normal distribution at -|x|.
    const float tail = 0.5f * t * sum * expf(-0.5f * x * x);
    return x * (x > 0.0f ? 1.0f - tail : tail);
}

// x · sigmoid(1.702 x)
__device__ inline float quick_gelu(float x) {
    return x / (1.0f + expf(-1.702f * x));
}

template <uint32_t KIND>
__device__ inline float activated(float x) {
    if constexpr (KIND == ACTIVATION_SILU) return silu(x);
    if constexpr (KIND == ACTIVATION_GELU_TANH) return gelu_tanh(x);
    if constexpr (KIND == ACTIVATION_GELU_ERF) return gelu_erf(x);
    if constexpr (KIND == ACTIVATION_QUICK_GELU) return quick_gelu(x);
    return x;
}

// By a number that is the same for all threads.
__device__ inline float activate(uint32_t kind, float x) {
    switch (kind) {
        case ACTIVATION_SILU: return silu(x);
        case ACTIVATION_GELU_TANH: return gelu_tanh(x);
        case ACTIVATION_GELU_ERF: return gelu_erf(x);
        case ACTIVATION_QUICK_GELU: return quick_gelu(x);
        default: return x;
    }
}
