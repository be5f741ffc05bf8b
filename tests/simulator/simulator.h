// The shim under which the kernels in executor/kernels compile with g++: CUDA's keywords, built-in
// variables and functions, and the primitives of `mma.cuh`, for fibres that run on the CPU.
//
// Not here: how fibres run (`fibres.h`), the driver's functions (`driver.cpp`).
//
// Arithmetic: compile with -ffp-contract=off. NVRTC may contract `a * b + c` to one rounding, which
// no host compiler repeats at the same places; here each operation is rounded, and fmaf is the only
// fused one, so results are the same on every processor and differ from a device's by the
// contracted roundings alone. Division and square root are correctly rounded, as NVRTC's defaults
// are. expf, exp2f, tanhf, erff, sinf, cosf and logf are the C library's (within 1 ulp; a device's
// within 2 or so). A product of an mma is exact in f32 and is added in order of k, each sum rounded
// to nearest; tensor cores add several products at once and truncate.
//
// Memory: static shared memory is thread_local, and each block finds it filled with NaNs. A pointer
// that is misaligned for its type, and an index beyond a static array, end the kernel with an error
// (g++ -fsanitize=alignment,bounds with handlers of our own).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "fibres.h"
#include "vectors.h"

#ifdef SIMULATOR_SCAN
// The kernels are only preprocessed, to find the entry points: `entries` of the build.
#define __global__ SIMULATOR_ENTRY
#define __launch_bounds__(...) SIMULATOR_BOUNDS(__VA_ARGS__)
#else
#define __global__
#define __launch_bounds__(...)
#endif
#define __device__
#define __host__
#define __constant__
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__

#define threadIdx (static_cast<const uint3&>(simulator::self().thread))
#define blockIdx (static_cast<const uint3&>(simulator::self().block->index))
#define blockDim (static_cast<const dim3&>(simulator::self().block->threads))
#define gridDim (static_cast<const dim3&>(simulator::self().block->grid))
constexpr int warpSize = simulator::LANES;

#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(name) unsigned char* const name = simulator::self().block->dynamic_shared
#endif

// The caller's place, as two last arguments of each collective function.
#define SIMULATOR_SITE const char *file = __builtin_FILE(), unsigned line = __builtin_LINE()

static inline void __syncthreads(SIMULATOR_SITE) { simulator::block_barrier({file, line}); }

static inline void __syncwarp(unsigned mask = 0xffffffff, SIMULATOR_SITE) {
    simulator::collective(simulator::self(), simulator::Operation::sync, mask, {file, line});
}

static inline void __threadfence() {}
static inline void __threadfence_block() {}

namespace simulator {

// `value` of lane `source`, which each lane chooses.
template <typename T>
static inline T shuffle(unsigned mask, T value, unsigned source, Site site) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    Fibre& fibre = self();
    Warp& warp = *fibre.warp;
    const unsigned lane = fibre.lane;
    std::uint32_t words[sizeof(T) / 4];
    std::memcpy(words, &value, sizeof(T));
    warp.words[0][lane] = words[0];
    if constexpr (sizeof(T) == 8) warp.words[1][lane] = words[1];
    warp.words[4][lane] = source;
    collective(fibre, sizeof(T) == 8 ? Operation::shuffle_64 : Operation::shuffle, mask, site);
    words[0] = warp.words[2][lane];
    if constexpr (sizeof(T) == 8) words[1] = warp.words[3][lane];
    std::memcpy(&value, words, sizeof(T));
    return value;
}

// The lanes that a lane may read: its segment of `width` lanes.
static inline unsigned segment_start(unsigned lane, int width) { return lane & ~(unsigned(width) - 1); }

}  // namespace simulator

template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, SIMULATOR_SITE) {
    const unsigned start = simulator::segment_start(simulator::self().lane, width);
    return simulator::shuffle(mask, value, start | (unsigned(source) & (width - 1)), {file, line});
}

template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, SIMULATOR_SITE) {
    const unsigned lane = simulator::self().lane, start = simulator::segment_start(lane, width);
    return simulator::shuffle(mask, value, lane - start >= delta ? lane - delta : lane, {file, line});
}

template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, SIMULATOR_SITE) {
    const unsigned lane = simulator::self().lane, start = simulator::segment_start(lane, width);
    return simulator::shuffle(mask, value, lane - start + delta < unsigned(width) ? lane + delta : lane, {file, line});
}

template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = warpSize, SIMULATOR_SITE) {
    const unsigned lane = simulator::self().lane, start = simulator::segment_start(lane, width);
    const unsigned source = lane ^ unsigned(with);
    return simulator::shuffle(mask, value, source < start + width ? source : lane, {file, line});
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, SIMULATOR_SITE) {
    simulator::Fibre& fibre = simulator::self();
    fibre.warp->words[0][fibre.lane] = predicate != 0;
    simulator::collective(fibre, simulator::Operation::ballot, mask, {file, line});
    return fibre.warp->words[1][fibre.lane];
}

static inline int __any_sync(unsigned mask, int predicate, SIMULATOR_SITE) {
    return __ballot_sync(mask, predicate, file, line) != 0;
}

static inline int __all_sync(unsigned mask, int predicate, SIMULATOR_SITE) {
    return __ballot_sync(mask, predicate, file, line) == mask;
}

// ---- tensor cores and asynchronous copies, with the names of mma.cuh

namespace simulator {

static inline void mma(Operation operation, float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                       Site site) {
    Fibre& fibre = self();
    Warp& warp = *fibre.warp;
    const unsigned lane = fibre.lane;
    for (int i = 0; i < 4; i++) warp.words[i][lane] = a[i];
    for (int i = 0; i < 2; i++) warp.words[4 + i][lane] = b[i];
    for (int i = 0; i < 4; i++) std::memcpy(&warp.words[6 + i][lane], &d[i], 4);
    collective(fibre, operation, 0xffffffff, site);
    for (int i = 0; i < 4; i++) std::memcpy(&d[i], &warp.words[6 + i][lane], 4);
}

static inline void mma_s8(Operation operation, int (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                          int start, Site site) {
    Fibre& fibre = self();
    Warp& warp = *fibre.warp;
    const unsigned lane = fibre.lane;
    for (int i = 0; i < 4; i++) warp.words[i][lane] = a[i];
    for (int i = 0; i < 2; i++) warp.words[4 + i][lane] = b[i];
    for (int i = 0; i < 4; i++) warp.words[6 + i][lane] = std::uint32_t(start);
    collective(fibre, operation, 0xffffffff, site);
    for (int i = 0; i < 4; i++) d[i] = int(warp.words[6 + i][lane]);
}

// `words[4]` says how many matrices.
template <unsigned COUNT>
static inline void ldmatrix(Operation operation, std::uint32_t (&r)[COUNT], const void* row, Site site) {
    Fibre& fibre = self();
    Warp& warp = *fibre.warp;
    warp.addresses[fibre.lane] = row;
    warp.words[4][fibre.lane] = COUNT;
    collective(fibre, operation, 0xffffffff, site);
    for (unsigned i = 0; i < COUNT; i++) r[i] = warp.words[i][fibre.lane];
}

}  // namespace simulator

// d += a b, m16n8k16, operands f16.
static inline void mma_f16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], SIMULATOR_SITE) {
    simulator::mma(simulator::Operation::mma_f16, d, a, b, {file, line});
}

// d += a b, m16n8k16, operands bf16.
static inline void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], SIMULATOR_SITE) {
    simulator::mma(simulator::Operation::mma_bf16, d, a, b, {file, line});
}

// d = a b + start, m16n8k32, operands signed bytes.
static inline void mma_s8(int (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], int start,
                          SIMULATOR_SITE) {
    simulator::mma_s8(simulator::Operation::mma_s8, d, a, b, start, {file, line});
}

// A device's has 32 bits.
using SharedAddress = std::uintptr_t;

static inline SharedAddress shared_address(const void* pointer) { return reinterpret_cast<SharedAddress>(pointer); }

// Matrices of 8 rows of 8 two-byte elements; the lanes 8i to 8i + 7 give the rows of the i-th.
static inline void ldmatrix_x4(std::uint32_t (&r)[4], const void* shared_row, SIMULATOR_SITE) {
    simulator::ldmatrix(simulator::Operation::ldmatrix, r, shared_row, {file, line});
}

static inline void ldmatrix_x4(std::uint32_t (&r)[4], SharedAddress row, SIMULATOR_SITE) {
    ldmatrix_x4(r, reinterpret_cast<const void*>(row), file, line);
}

static inline void ldmatrix_x2(std::uint32_t (&r)[2], const void* shared_row, SIMULATOR_SITE) {
    simulator::ldmatrix(simulator::Operation::ldmatrix, r, shared_row, {file, line});
}

static inline void ldmatrix_x4_trans(std::uint32_t (&r)[4], const void* shared_row, SIMULATOR_SITE) {
    simulator::ldmatrix(simulator::Operation::ldmatrix_trans, r, shared_row, {file, line});
}

static inline void ldmatrix_x4_trans(std::uint32_t (&r)[4], SharedAddress row, SIMULATOR_SITE) {
    ldmatrix_x4_trans(r, reinterpret_cast<const void*>(row), file, line);
}

static inline void ldmatrix_x2_trans(std::uint32_t (&r)[2], const void* shared_row, SIMULATOR_SITE) {
    simulator::ldmatrix(simulator::Operation::ldmatrix_trans, r, shared_row, {file, line});
}

// Copies when it is waited for; until then the destination holds NaNs.
static inline void copy_async_16(void* shared, const void* global, bool valid = true, SIMULATOR_SITE) {
    simulator::copy_async(shared, global, 16, valid, {file, line});
}

static inline void copy_async_commit() { simulator::self().copy_group++; }

// Until at most GROUPS of the committed groups of this thread's copies are under way.
template <int GROUPS>
static inline void copy_async_wait() {
    simulator::copy_async_finish(GROUPS);
}

#include "arithmetic.h"
