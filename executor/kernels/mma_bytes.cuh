// Tensor-core products of signed bytes, as mma.cuh has those of 16-bit numbers. Not for the simulator, whose header has the names.
//
// Fragments are those of the PTX manual (section "Matrix Fragments for mma.m16n8k32"). With group = lane / 4 and first = 4 ·
// (lane % 4), and four neighbours in each register, the first in its lowest byte:
//   a[0] = A[group][first], a[1] = A[group + 8][first], a[2] = A[group][first + 16], a[3] = A[group + 8][first + 16]
//   b[0] = B[first][group], b[1] = B[first + 16][group]
// A is [16, 32], B [32, 8], D [16, 8] as of mma.cuh. ldmatrix gives a and b, as of half as many elements of 16 bits.
//
// Invariant: all 32 lanes of a warp call each function together.
#pragma once

#include "common.cuh"

#ifdef __CUDACC_RTC__

// d = a · b + start in whole numbers.
__device__ __forceinline__ void mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int start) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(start));
#else
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%4}, {%8}, {%10, %10};\n"
        "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%2, %3}, {%5}, {%8}, {%10, %10};\n"
        "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%6}, {%9}, {%0, %1};\n"
        "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%2, %3}, {%7}, {%9}, {%2, %3};"
        : "=&r"(d[0]), "=&r"(d[1]), "=&r"(d[2]), "=&r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(start));
#endif
}

#endif
