// Kernels that show what the simulator does, for tests/simulator.rs: right ones, and wrong ones that it must catch.
#ifndef __CUDACC_RTC__
#include "simulator.h"
#endif

struct SelfArgs {
    float* out;
    const float* in;
    unsigned long long count;
};

// out[i] = 2 in[i] + 1
extern "C" __global__ void __launch_bounds__(256) self_affine(SelfArgs args) {
    const unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < args.count) args.out[i] = 2.0f * args.in[i] + 1.0f;
}

// Writes `count` floats from one thread on, beyond the end if told so.
extern "C" __global__ void self_overrun(SelfArgs args) {
    if (threadIdx.x == 0) {
        for (unsigned long long i = 0; i < args.count; i++) args.out[i] = 1.0f;
    }
}

// out[block] = sum of in[256 block ..], by shuffles and static shared memory.
extern "C" __global__ void __launch_bounds__(256) self_sum(SelfArgs args) {
    __shared__ float warps[8];
    float sum = args.in[blockIdx.x * 256 + threadIdx.x];
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, offset);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < 8; i++) sum += warps[i];
        args.out[blockIdx.x] = sum;
    }
}

// Each way to shuffle, a ballot and a vote: 8 results a lane, [8, 32].
extern "C" __global__ void self_shuffles(SelfArgs args) {
    const unsigned lane = threadIdx.x;
    const float x = args.in[lane];
    args.out[lane] = __shfl_sync(0xffffffff, x, int(lane) + 5);
    args.out[32 + lane] = __shfl_sync(0xffffffff, x, 3, 8);
    args.out[64 + lane] = __shfl_up_sync(0xffffffff, x, 2, 16);
    args.out[96 + lane] = __shfl_down_sync(0xffffffff, x, 3, 8);
    args.out[128 + lane] = __shfl_xor_sync(0xffffffff, x, 9);
    args.out[160 + lane] = float(__shfl_sync(0xffffffff, double(x) + 0.5, 31));
    args.out[192 + lane] = float(__ballot_sync(0xffffffff, lane % 3 == 0) & 0xffff);
    // Halves of the warp apart, the upper one first as it does less.
    const unsigned half = lane < 16 ? 0x0000ffff : 0xffff0000;
    float sum = x;
    if (lane < 16) sum += __shfl_xor_sync(half, sum, 1);
    if (lane >= 16) sum += __shfl_xor_sync(half, sum, 2);
    args.out[224 + lane] = sum;
}

// Reverses 256 floats in dynamic shared memory, or forgets the barrier between.
template <bool BARRIER>
static __device__ void reverse(const SelfArgs& args) {
    DYNAMIC_SHARED(bytes);
    float* shared = reinterpret_cast<float*>(bytes);
    shared[threadIdx.x] = args.in[threadIdx.x];
    if (BARRIER) __syncthreads();
    args.out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void self_reverse(SelfArgs args) { reverse<true>(args); }
extern "C" __global__ void self_reverse_unsafe(SelfArgs args) { reverse<false>(args); }

// Half of the block does not come to the barrier.
extern "C" __global__ void self_missing_thread(SelfArgs args) {
    if (threadIdx.x < blockDim.x / 2) __syncthreads();
    args.out[threadIdx.x] = 0.0f;
}

// Both halves come to a barrier, but not to the same.
extern "C" __global__ void self_other_barrier(SelfArgs args) {
    if (threadIdx.x < blockDim.x / 2) {
        __syncthreads();
        args.out[threadIdx.x] = 0.0f;
    } else {
        __syncthreads();
        args.out[threadIdx.x] = 1.0f;
    }
}

// Half of the warp leaves before a shuffle of all.
extern "C" __global__ void self_missing_lane(SelfArgs args) {
    if (threadIdx.x >= 16) return;
    args.out[threadIdx.x] = __shfl_xor_sync(0xffffffff, args.in[threadIdx.x], 1);
}

// A 16-byte load from an address that is a multiple of 4.
extern "C" __global__ void self_misaligned(SelfArgs args) {
    const float4 four = *reinterpret_cast<const float4*>(args.in + threadIdx.x);
    args.out[threadIdx.x] = four.y;
}

// An index that is beyond a static array, by `count`.
extern "C" __global__ void self_index(SelfArgs args) {
    __shared__ float few[32];
    few[threadIdx.x + args.count] = args.in[threadIdx.x];
    __syncthreads();
    args.out[threadIdx.x] = few[31 - threadIdx.x + args.count];
}

// Recurses until its stack ends.
static __device__ __noinline__ float deeper(float x, unsigned long long count) {
    volatile float some[64];
    some[count % 64] = x;
    return count == 0 ? some[0] : deeper(x, count - 1) + some[count % 64];
}

extern "C" __global__ void self_deep(SelfArgs args) { args.out[threadIdx.x] = deeper(1.0f, args.count); }

// out = in read through an asynchronous copy, that is waited for or not: [threads, 4]
template <bool WAIT>
static __device__ void copied(const SelfArgs& args) {
    __shared__ __align__(16) float tiles[2][32 * 4];
    for (int i = 0; i < 4; i++) tiles[0][threadIdx.x * 4 + i] = 0.0f;
    copy_async_16(&tiles[0][threadIdx.x * 4], args.in + threadIdx.x * 4, true);
    copy_async_commit();
    copy_async_16(&tiles[1][threadIdx.x * 4], args.in, threadIdx.x % 2 == 0);
    copy_async_commit();
    copy_async_wait<WAIT ? 1 : 2>();
    __syncthreads();
    for (int i = 0; i < 4; i++) args.out[threadIdx.x * 4 + i] = tiles[0][threadIdx.x * 4 + i];
    copy_async_wait<0>();
    __syncthreads();
    for (int i = 0; i < 4; i++) args.out[128 + threadIdx.x * 4 + i] = tiles[1][threadIdx.x * 4 + i];
}

extern "C" __global__ void self_copied(SelfArgs args) { copied<true>(args); }
extern "C" __global__ void self_copied_too_early(SelfArgs args) { copied<false>(args); }

struct ProductArgs {
    float* out;                 // [16, 8], added to
    const unsigned short* a;    // [16, 16]
    const unsigned short* b;    // [8, 16], a column of b a row here
    unsigned int trans;         // b as [16, 8], read by the transposing load
    unsigned int fill;
};

// out += a b, with operands brought by ldmatrix.
template <void (*MMA)(float (&)[4], const uint32_t (&)[4], const uint32_t (&)[2], const char*, unsigned)>
static __device__ void product(const ProductArgs& args) {
    __shared__ __align__(16) unsigned short a[16][16], b[8 * 16];
    for (int i = threadIdx.x; i < 256; i += 32) a[i / 16][i % 16] = args.a[i];
    for (int i = threadIdx.x; i < 128; i += 32) b[i] = args.b[i];
    __syncthreads();
    const unsigned lane = threadIdx.x, row = lane / 4, column = 2 * (lane % 4);
    uint32_t fa[4], fb[2];
    // Matrices: rows 0 and 8 of columns 0, then of columns 8.
    ldmatrix_x4(fa, &a[lane % 16][lane / 16 * 8]);
    if (args.trans) {
        ldmatrix_x2_trans(fb, &b[lane % 16 * 8]);
    } else {
        ldmatrix_x2(fb, &b[lane % 8 * 16 + lane / 8 % 2 * 8]);
    }
    float d[4];
    for (int i = 0; i < 4; i++) d[i] = args.out[(row + 8 * (i / 2)) * 8 + column + i % 2];
    MMA(d, fa, fb, __FILE__, __LINE__);
    for (int i = 0; i < 4; i++) args.out[(row + 8 * (i / 2)) * 8 + column + i % 2] = d[i];
}

extern "C" __global__ void self_product_f16(ProductArgs args) { product<mma_f16>(args); }
extern "C" __global__ void self_product_bf16(ProductArgs args) { product<mma_bf16>(args); }

// Barriers, `count` of them, for timing; and shuffles.
extern "C" __global__ void self_barriers(SelfArgs args) {
    for (unsigned long long i = 0; i < args.count; i++) __syncthreads();
}

extern "C" __global__ void self_many_shuffles(SelfArgs args) {
    float x = float(threadIdx.x);
    for (unsigned long long i = 0; i < args.count; i++) x = __shfl_xor_sync(0xffffffff, x, 1);
    args.out[threadIdx.x] = x;
}

extern "C" __global__ void self_many_products(SelfArgs args) {
    uint32_t a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
    float d[4] = {1, 2, 3, 4};
    for (unsigned long long i = 0; i < args.count; i++) mma_f16(d, a, b);
    args.out[threadIdx.x] = d[0];
}
