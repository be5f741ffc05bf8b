// The types with tables, for decode.cuh: groups of four or eight numbers are looked up, with their signs apart, or each number
// in a table of sixteen.

#pragma once

#include "iq_tables.cuh"

// Eight numbers of two bits each from a table's entry, as indices in bytes.
__device__ inline uint2 eight_of(uint32_t entry) {
    // Each of the four pairs of bits is shifted to a byte of its own.
    const uint32_t low = entry & 255;
    const uint32_t high = entry >> 8 & 255;
    return make_uint2((low | low << 6 | low << 12 | low << 18) & 0x03030303,
                      (high | high << 6 | high << 12 | high << 18) & 0x03030303);
}

// Four numbers of four bits each, as indices in bytes.
__device__ inline uint32_t four_of(uint32_t entry) {
    return (entry & 15) | (entry & 0xf0) << 4 | (entry & 0xf00) << 8 | (entry & 0xf000) << 12;
}

// What the two-bit tables hold: 0x08, 0x19, 0x2b.
__device__ inline uint2 sizes_of_two_bits(uint32_t entry) {
    // 8 + 17 for one, 8 + 35 for two: no byte's sum reaches the next.
    const uint2 index = eight_of(entry);
    return make_uint2(0x08080808 + index.x * 17 + (index.x >> 1 & 0x01010101),
                      0x08080808 + index.y * 17 + (index.y >> 1 & 0x01010101));
}

// What IQ3_S_TABLE holds: the odd numbers from 1 to 15.
__device__ inline uint32_t odd_sizes(uint32_t entry) {
    return four_of(entry) * 2 + 0x01010101;
}

// What IQ3_XXS_TABLE holds: 4, 12, 20 and so on to 52, then 62.
__device__ inline uint32_t wide_sizes(uint32_t entry) {
    const uint32_t index = four_of(entry);
    const uint32_t last = index & index >> 1 & index >> 2 & 0x01010101;
    return index * 8 + last * 2 + 0x04040404;
}

// scale × size, negative where the bit is set
__device__ inline void scaled_signed(uint2 sizes, float scale, uint32_t signs, float (&out)[GROUP]) {
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        const float size = number_of_byte<0>(i < 4 ? sizes.x : sizes.y, i % 4);
        out[i] = __fmul_rn(scale, __uint_as_float(__float_as_uint(size) ^ (signs >> i & 1) << 31));
    }
}

// Eight signs of which an even number is negative, from the first seven in the lowest bits.
__device__ inline uint32_t even_signs(uint32_t seven) {
    seven &= 127;
    // The parity of seven bits, by folding.
    uint32_t parity = seven ^ seven >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return seven | (parity & 1) << 7;
}

// The nibble `index` of some bytes, the lower of each byte first.
__device__ inline int nibble_at(const uint8_t* bytes, int index) {
    return __ldg(bytes + index / 2) >> (index % 2 * 4) & 15;
}

// factor × addend and a nibble, times a power of two
__device__ inline float scale_of(float factor, float addend, int nibble, float power) {
    return __fmul_rn(__fmul_rn(factor, addend + static_cast<float>(nibble)), power);
}

// factor, indices[32], u16[8]: for each 32 numbers the upper three bits of four indices, a factor of three bits and the
// direction of a shift.
struct IQ1_S : Blocks<IQ1_S, 256, 50> {
    static __device__ void decode(const uint8_t* row, int64_t element, float (&out)[GROUP]) {
        const uint8_t* from = block(row, element);
        const int run = within(element) / 8;
        const uint32_t word = read_2(from + 34 + run / 4 * 2);
        const float scale = __fmul_rn(read_f16(from), static_cast<float>(2 * (word >> 12 & 7) + 1));
        const float shift = (word & 0x8000) == 0 ? 0.125f : -0.125f;
        const uint32_t high = word >> (3 * (run % 4)) & 7;
        const uint2 index = eight_of(IQ1_S_TABLE[__ldg(from + 2 + run) | high << 8]);
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            const float number = number_of_byte<1>(i < 4 ? index.x : index.y, i % 4);
            out[i] = __fmul_rn(scale, number + shift);
        }
    }
};

// factor, (indices[4], u32)[8]: the second is four indices of signs and a factor of four bits.
struct IQ2_XXS : Blocks<IQ2_XXS, 256, 66> {
    static __device__ void decode(const uint8_t* row, int64_t element, float (&out)[GROUP]) {
        const uint8_t* from = block(row, element);
        const int run = within(element) / 8;
        const uint8_t* part = from + 2 + run / 4 * 8;
        const uint32_t word = read_4(part + 4);
        const float scale = scale_of(read_f16(from), 0.5f, static_cast<int>(word >> 28), 0.25f);
        const uint2 sizes = sizes_of_two_bits(IQ2_XXS_TABLE[__ldg(part + run % 4)]);
        scaled_signed(sizes, scale, even_signs(word >> (7 * (run % 4))), out);
    }
};

// factor, u16[32], factors[8]: an index of nine bits and an index of signs; factors of four bits for each 16.
struct IQ2_XS : Blocks<IQ2_XS, 256, 74> {
    static __device__ void decode(const uint8_t* row, int64_t element, float (&out)[GROUP]) {
        const uint8_t* from = block(row, element);
        const int run = within(element) / 8;
        const uint32_t word = read_2(from + 2 + 2 * run);
        const float scale = scale_of(read_f16(from), 0.5f, nibble_at(from + 66, run / 2), 0.25f);
        scaled_signed(sizes_of_two_bits(IQ2_XS_TABLE[word & 511]), scale, even_signs(word >> 9), out);
    }
};

// factor, indices[32], signs[32], upper index bits[8], factors[8]
struct IQ2_S : Blocks<IQ2_S, 256, 82> {
    static __device__ void decode(const uint8_t* row, int64_t element, float (&out)[GROUP]) {
        const uint8_t* from = block(row, element);
        const int run = within(element) / 8;
        const float scale = scale_of(read_f16(from), 0.5f, nibble_at(from + 74, run / 2), 0.25f);
        const uint32_t high = __ldg(from + 66 + run / 4) >> (2 * (run % 4)) & 3;
        const uint2 sizes = sizes_of_two_bits(IQ2_S_TABLE[__ldg(from + 2 + run) | high << 8]);
        scaled_signed(sizes, scale, __ldg(from + 34 + run), out);
    }
};

// factor, indices[64], u32[8]: for each 32 numbers four indices of signs and a factor of four bits.
struct IQ3_XXS : Blocks<IQ3_XXS, 256, 98> {
    static __device__ void decode(const uint8_t* row, int64_t element, float (&out)[GROUP]) {
        const uint8_t* from = block(row, element);
        const int run = within(element) / 8;
        const uint32_t word = read_4(from + 66 + run / 4 * 4);
        const float scale = scale_of(read_f16(from), 0.5f, static_cast<int>(word >> 28), 0.5f);
        const uint32_t indices = read_2(from + 2 + 2 * run);
        const uint32_t first = wide_sizes(IQ3_XXS_TABLE[indices & 255]);
        const uint2 sizes = make_uint2(first, wide_sizes(IQ3_XXS_TABLE[indices >> 8]));
        scaled_signed(sizes, scale, even_signs(word >> (7 * (run % 4))), out);
    }
};

// factor, indices[64], ninth index bits[8], signs[32], factors[4]
struct IQ3_S : Blocks<IQ3_S, 256, 110> {
    static __device__ void decode(const uint8_t* row, int64_t element, float (&out)[GROUP]) {
        const uint8_t* from = block(row, element);
        const int run = within(element) / 8;
        const int nibble = nibble_at(from + 106, run / 4);
        const float scale = __fmul_rn(read_f16(from), static_cast<float>(1 + 2 * nibble));
        const uint32_t indices = read_2(from + 2 + 2 * run);
        const uint32_t ninths = __ldg(from + 66 + run / 4) >> (run % 4 * 2);
        const uint32_t first = odd_sizes(IQ3_S_TABLE[(indices & 255) | (ninths & 1) << 8]);
        const uint32_t second = odd_sizes(IQ3_S_TABLE[indices >> 8 | (ninths >> 1 & 1) << 8]);
        scaled_signed(make_uint2(first, second), scale, __ldg(from + 74 + run), out);
    }
};

// Eight of 32 numbers of sixteen uneven steps (kvalues_iq4nl), the lower nibbles first.
__device__ inline void steps(const uint8_t* bytes, int place, float scale, float (&out)[GROUP]) {
    const uint2 index = nibbles(read_8(bytes + place % 16), place >= 16);
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        const uint32_t step = (i < 4 ? index.x : index.y) >> (i % 4 * 8) & 15;
        out[i] = __fmul_rn(scale, static_cast<float>(IQ4_STEPS[step]));
    }
}

// factor, nibbles[16]
struct IQ4_NL : Blocks<IQ4_NL, 32, 18> {
    static __device__ void decode(const uint8_t* row, int64_t element, float (&out)[GROUP]) {
        const uint8_t* from = block(row, element);
        steps(from + 2, within(element), read_f16(from), out);
    }
};

// factor, u16, low factor nibbles[4], nibbles[128]: a factor of six bits, less 32, for each 32 numbers; the upper two are in
// the u16.
struct IQ4_XS : Blocks<IQ4_XS, 256, 136> {
    static __device__ void decode(const uint8_t* row, int64_t element, float (&out)[GROUP]) {
        const uint8_t* from = block(row, element);
        const int place = within(element);
        const int part = place / 32;
        const int high = read_2(from + 2) >> (2 * part) & 3;
        const int scale = nibble_at(from + 4, part) + 16 * high - 32;
        steps(from + 8 + 16 * part, place % 32, __fmul_rn(read_f16(from), static_cast<float>(scale)), out);
    }
};
