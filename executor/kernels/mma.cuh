// Tensor-core products, matrix loads from shared memory and asynchronous copies, as functions: the only inline PTX of
// the product kernels. Not for the simulator, whose header emulates the same names with the same fragments.
//
// Fragments are those of the PTX manual (section "Matrix Fragments for mma.m16n8k16 with floating point type"). With
// group = lane / 4 and pair = 2 · (lane % 4), and two neighbours of a row in each register, the lower half first:
//   a[0] = A[group][pair], a[1] = A[group + 8][pair], a[2] = A[group][pair + 8], a[3] = A[group + 8][pair + 8]
//   b[0] = B[pair][group], b[1] = B[pair + 8][group]
//   d[0], d[1] = D[group][pair], [pair + 1]; d[2], d[3] = D[group + 8][pair], [pair + 1]
// A is [16, 16], B [16, 8], D [16, 8]. So if the columns of B lie in memory one after the other, as rows of weights do,
// ldmatrix without .trans gives b.
//
// Invariants: all 32 lanes of a warp call each function but the copies together; addresses are multiples of 16 bytes.
#pragma once

#include "common.cuh"

#ifdef __CUDACC_RTC__

// The address of something in shared memory as ldmatrix and cp.async take it, in bytes. What is computed with it needs one
// register, where a pointer's arithmetic may need two.
typedef uint32_t SharedAddress;

// Not by inline PTX, through which the compiler cannot see: it would form each address anew.
__device__ __forceinline__ SharedAddress shared_address(const void* pointer) {
    return static_cast<SharedAddress>(__cvta_generic_to_shared(pointer));
}

// d += a · b in f16 with f32 sums.
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%8}, {%0, %1, %2, %3};\n"
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%6, %7}, {%9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

#if __CUDA_ARCH__ >= 800
// d += a · b in bf16 with f32 sums; from capability 8.0 on.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

// Four 8 x 8 matrices of 16-bit elements: lanes 8 i to 8 i + 7 give the addresses of the rows of matrix i, and a lane
// gets of each matrix the pair at row lane / 4, columns 2 · (lane % 4).
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], SharedAddress row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* shared_row) {
    ldmatrix_x4(r, shared_address(shared_row));
}

// Two matrices, whose rows' addresses lanes 0 to 15 give.
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(shared_row))
                 : "memory");
}

// Four matrices, each transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], SharedAddress row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* shared_row) {
    ldmatrix_x4_trans(r, shared_address(shared_row));
}

// Two matrices, each transposed.
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(shared_row))
                 : "memory");
}

// Copies 16 bytes from global to shared memory, or writes zeros there if not valid; `global` is not read then, wherever it points.
// What was copied is there after copy_async_wait and a barrier.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool valid) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
#else
    uint4 value = {0, 0, 0, 0};
    if (valid) value = *static_cast<const uint4*>(global);
    *static_cast<uint4*>(shared) = value;
#endif
}

// Ends a group of copies.
__device__ __forceinline__ void copy_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most the last `Pending` groups of this thread's copies are not there yet.
template <int Pending>
__device__ __forceinline__ void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" : : "n"(Pending) : "memory");
#endif
}

#endif
