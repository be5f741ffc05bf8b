// What a warp's operations compute, once all lanes have come.
//
// Fragment layouts are those of the PTX ISA manual, sections on mma.m16n8k16 with .f16/.bf16, on mma.m16n8k32
// with .s8, and on ldmatrix: with group = lane / 4 and t = lane % 4,
//   a: registers 0..3 hold rows group, group + 8, group, group + 8 and columns 2t (+ 8 in 2, 3) and the next;
//   b: registers 0..1 hold column group and rows 2t (+ 8 in 1) and the next;
//   d: elements 0..3 hold rows group (+ 8 in 2, 3) and columns 2t, 2t + 1;
//   ldmatrix: register i holds of matrix i row group, columns 2t and the next (transposed: rows and columns swapped).
#include <cstring>

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "runner.h"

namespace simulator {

// Eight elements at once.
static inline void from_bf16(const std::uint16_t* bits, float* values) {
    for (int i = 0; i < 8; i++) values[i] = __builtin_bit_cast(float, std::uint32_t(bits[i]) << 16);
}

static inline void from_f16(const std::uint16_t* bits, float* values) {
#ifdef __F16C__
    _mm256_storeu_ps(values, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits))));
#else
    for (int i = 0; i < 8; i++) {
        // Scaling by 2^112 moves the exponent's bias from 15 to 127, of subnormal numbers too.
        const std::uint32_t sign = std::uint32_t(bits[i] & 0x8000) << 16;
        const std::uint32_t magnitude = std::uint32_t(bits[i] & 0x7fff) << 13;
        const float scaled = __builtin_bit_cast(float, magnitude) * 0x1p112f;
        const bool finite = (bits[i] & 0x7c00) != 0x7c00;
        const std::uint32_t value = finite ? __builtin_bit_cast(std::uint32_t, scaled) : magnitude | 0x7f800000;
        values[i] = __builtin_bit_cast(float, value | sign);
    }
#endif
}

template <void (*DECODE)(const std::uint16_t*, float*)>
static void mma(Warp& warp) {
    // As pairs of neighbours in a row of a, or in a column of b.
    std::uint32_t a_pairs[16][8];
    std::uint16_t b_bits[16][8];
    alignas(32) float a[16][16], b[16][8], d[16][8];
    for (unsigned lane = 0; lane < LANES; lane++) {
        const unsigned group = lane / 4, t = lane % 4;
        for (unsigned i = 0; i < 4; i++) a_pairs[group + 8 * (i % 2)][t + 4 * (i / 2)] = warp.words[i][lane];
        for (unsigned i = 0; i < 2; i++) {
            const std::uint32_t pair = warp.words[4 + i][lane];
            b_bits[2 * t + 8 * i][group] = std::uint16_t(pair);
            b_bits[2 * t + 8 * i + 1][group] = std::uint16_t(pair >> 16);
        }
        for (unsigned i = 0; i < 4; i++)
            std::memcpy(&d[group + 8 * (i / 2)][2 * t + i % 2], &warp.words[6 + i][lane], 4);
    }
    for (unsigned row = 0; row < 16; row++) {
        std::uint16_t bits[16];
        std::memcpy(bits, a_pairs[row], sizeof bits);
        DECODE(bits, a[row]);
        DECODE(bits + 8, a[row] + 8);
        DECODE(b_bits[row], b[row]);
    }
    for (unsigned row = 0; row < 16; row++) {
        typedef float Eight __attribute__((vector_size(32)));
        Eight sums;
        std::memcpy(&sums, d[row], sizeof sums);
        for (unsigned k = 0; k < 16; k++) {
            Eight of_b;
            std::memcpy(&of_b, b[k], sizeof of_b);
            sums += a[row][k] * of_b;
        }
        std::memcpy(d[row], &sums, sizeof sums);
    }
    for (unsigned lane = 0; lane < LANES; lane++) {
        const unsigned group = lane / 4, t = lane % 4;
        for (unsigned i = 0; i < 4; i++)
            std::memcpy(&warp.words[6 + i][lane], &d[group + 8 * (i / 2)][2 * t + i % 2], 4);
    }
}

// As mma, with four signed bytes where a pair is.
static void mma_s8(Warp& warp) {
    std::uint32_t a_words[16][8], b_words[8][8];
    int d[16][8];
    for (unsigned lane = 0; lane < LANES; lane++) {
        const unsigned group = lane / 4, t = lane % 4;
        for (unsigned i = 0; i < 4; i++) a_words[group + 8 * (i % 2)][t + 4 * (i / 2)] = warp.words[i][lane];
        for (unsigned i = 0; i < 2; i++) b_words[group][t + 4 * i] = warp.words[4 + i][lane];
        for (unsigned i = 0; i < 4; i++) d[group + 8 * (i / 2)][2 * t + i % 2] = int(warp.words[6 + i][lane]);
    }
    std::int8_t a[16][32], b[8][32];
    std::memcpy(a, a_words, sizeof a);
    std::memcpy(b, b_words, sizeof b);
    for (unsigned row = 0; row < 16; row++)
        for (unsigned column = 0; column < 8; column++)
            for (unsigned k = 0; k < 32; k++) d[row][column] += a[row][k] * b[column][k];
    for (unsigned lane = 0; lane < LANES; lane++) {
        const unsigned group = lane / 4, t = lane % 4;
        for (unsigned i = 0; i < 4; i++) warp.words[6 + i][lane] = std::uint32_t(d[group + 8 * (i / 2)][2 * t + i % 2]);
    }
}

static void ldmatrix(Block& block, Warp& warp, bool transposed) {
    const unsigned count = warp.words[4][0];
    std::uint16_t matrices[4][8][8];
    for (unsigned row = 0; row < 8 * count; row++) {
        const void* address = warp.addresses[row];
        const Site site = warp.fibres[row]->site;
        if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) {
            fail(MISALIGNED_ADDRESS, "ldmatrix of a row that is not aligned to 16 bytes, %s:%u", site.file, site.line);
        }
        if (!in_shared_memory(block, address, 16)) {
            fail(ILLEGAL_ADDRESS, "ldmatrix of a row that is not in shared memory, %s:%u", site.file, site.line);
        }
        std::memcpy(matrices[row / 8][row % 8], address, 16);
    }
    for (unsigned lane = 0; lane < LANES; lane++) {
        const unsigned group = lane / 4, t = lane % 4;
        for (unsigned i = 0; i < count; i++) {
            const auto& m = matrices[i];
            const std::uint32_t low = transposed ? m[2 * t][group] : m[group][2 * t];
            const std::uint32_t high = transposed ? m[2 * t + 1][group] : m[group][2 * t + 1];
            warp.words[i][lane] = low | high << 16;
        }
    }
}

static void shuffle(Warp& warp, unsigned mask, unsigned words) {
    std::uint32_t results[2][LANES];
    for (std::uint32_t left = mask; left != 0; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        const unsigned source = warp.words[4][lane];
        if ((mask >> source & 1) == 0) {
            const Site site = warp.fibres[lane]->site;
            fail(LAUNCH_FAILED, "lane %d shuffles from lane %u, which is not of the mask %08x, %s:%u", lane, source,
                 mask, site.file, site.line);
        }
        for (unsigned word = 0; word < words; word++) results[word][lane] = warp.words[word][source];
    }
    for (std::uint32_t left = mask; left != 0; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        for (unsigned word = 0; word < words; word++) warp.words[2 + word][lane] = results[word][lane];
    }
}

static void ballot(Warp& warp, unsigned mask) {
    std::uint32_t votes = 0;
    for (std::uint32_t left = mask; left != 0; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        votes |= warp.words[0][lane] << lane;
    }
    for (std::uint32_t left = mask; left != 0; left &= left - 1) warp.words[1][__builtin_ctz(left)] = votes;
}

void perform(Operation operation, Block& block, Warp& warp, unsigned mask) {
    switch (operation) {
        case Operation::sync: return;
        case Operation::shuffle: return shuffle(warp, mask, 1);
        case Operation::shuffle_64: return shuffle(warp, mask, 2);
        case Operation::ballot: return ballot(warp, mask);
        case Operation::mma_f16: return mma<from_f16>(warp);
        case Operation::mma_bf16: return mma<from_bf16>(warp);
        case Operation::mma_s8: return mma_s8(warp);
        case Operation::ldmatrix: return ldmatrix(block, warp, false);
        case Operation::ldmatrix_trans: return ldmatrix(block, warp, true);
    }
}

}  // namespace simulator
