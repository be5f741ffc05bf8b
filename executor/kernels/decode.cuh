// Stored weights as f32: bit for bit what the host decodes, whatever the storage type.
//
// A type is a struct: `block_elements` lie in `block_bytes`, and `decode(row, element, out)` gives the eight numbers that begin
// with `element`, a multiple of eight, of the row that begins at `row`; all eight must be there, and there is no state. `at(row,
// element)` gives one. The scale that stands beside a weight is not included.
//
// Rows begin at whole blocks of a weight that begins at a multiple of 16 bytes. Blocks of 18, 34 or 210 bytes are then at even
// addresses only: reads are no wider than what that allows.
//
// `EACH_STORAGE(M)` is `M(name, type)` for all; the names are those of protocol::StorageType.

#pragma once

#include "plain.cuh"

// --- Eight small numbers, a byte each.

// Nibbles of eight bytes: the lower ones or the upper ones.
__device__ inline uint2 nibbles(uint2 bytes, bool upper) {
    const int shift = upper ? 4 : 0;
    return make_uint2(bytes.x >> shift & 0x0f0f0f0f, bytes.y >> shift & 0x0f0f0f0f);
}

// Bits `shift` and above of eight bytes, `MASK` in each.
template <uint32_t MASK>
__device__ inline uint2 planes(uint2 bytes, int shift) {
    constexpr uint32_t mask = MASK * 0x01010101u;
    return make_uint2(bytes.x >> shift & mask, bytes.y >> shift & mask);
}

// Eight bits, each the lowest of a byte.
__device__ inline uint2 spread(uint32_t bits) {
    // Four shifted copies, one of which has bit i at bit 8 i; no two of their bits meet.
    return make_uint2((bits & 15) * 0x00204081u & 0x01010101, (bits >> 4 & 15) * 0x00204081u & 0x01010101);
}

// `bytes | above << SHIFT`
template <int SHIFT>
__device__ inline uint2 with(uint2 bytes, uint2 above) {
    return make_uint2(bytes.x | above.x << SHIFT, bytes.y | above.y << SHIFT);
}

// factor × (number - OFFSET)
template <int OFFSET>
__device__ inline void scaled(uint2 bytes, float factor, float (&out)[GROUP]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[i] = __fmul_rn(factor, number_of_byte<OFFSET>(bytes.x, i));
        out[i + 4] = __fmul_rn(factor, number_of_byte<OFFSET>(bytes.y, i));
    }
}

// What the types with blocks have in common: where an element's block begins, and one element by its group.
template <class Type, int ELEMENTS, int BYTES>
struct Blocks {
    static constexpr int group = GROUP, block_elements = ELEMENTS, block_bytes = BYTES;
    static __device__ const uint8_t* block(const uint8_t* row, int64_t element) {
        return row + element / ELEMENTS * BYTES;
    }
    // The element's place in its block.
    static __device__ int within(int64_t element) { return static_cast<int>(element & (ELEMENTS - 1)); }
    static __device__ float at(const uint8_t* row, int64_t element) {
        float all[GROUP];
        Type::decode(row, element & ~static_cast<int64_t>(GROUP - 1), all);
        float value = all[0];
#pragma unroll
        for (int i = 1; i < GROUP; i++) value = (element & (GROUP - 1)) == i ? all[i] : value;
        return value;
    }
};

// Eight stored numbers with what they stand for: factor × (byte - the type's OFFSET) + summand.
struct Levels {
    uint2 bytes;  // below 128, or 256 where the offset is 128
    float factor;
    float summand;
};

// The types whose `levels(row, element)` gives eight numbers with an offset and no summand.
template <class Type, int ELEMENTS, int BYTES, int OFF>
struct OffsetBlocks : Blocks<Type, ELEMENTS, BYTES> {
    static constexpr int OFFSET = OFF;
    static __device__ void decode(const uint8_t* row, int64_t element, float (&out)[GROUP]) {
        const Levels levels = Type::levels(row, element);
        scaled<OFFSET>(levels.bytes, levels.factor, out);
    }
};

// Those whose numbers have a summand and no offset; rounded twice as on the host.
template <class Type, int ELEMENTS, int BYTES>
struct SummandBlocks : Blocks<Type, ELEMENTS, BYTES> {
    static constexpr int OFFSET = 0;
    static __device__ void decode(const uint8_t* row, int64_t element, float (&out)[GROUP]) {
        const Levels levels = Type::levels(row, element);
        scaled<OFFSET>(levels.bytes, levels.factor, out);
#pragma unroll
        for (int i = 0; i < GROUP; i++) out[i] = __fadd_rn(out[i], levels.summand);
    }
};

// --- Blocks of 32 numbers. Nibbles: the lower ones are the first 16 numbers, the upper ones the others.

// factor, bytes[32]
struct Q8_0 : OffsetBlocks<Q8_0, 32, 34, 128> {
    static __device__ Levels levels(const uint8_t* row, int64_t element) {
        const uint8_t* from = block(row, element);
        const uint2 bytes = read_8(from + 2 + within(element));
        // As numbers that are not negative.
        return {make_uint2(bytes.x ^ 0x80808080, bytes.y ^ 0x80808080), read_f16(from), 0.0f};
    }
};

// factor, nibbles[16]
struct Q4_0 : OffsetBlocks<Q4_0, 32, 18, 8> {
    static __device__ Levels levels(const uint8_t* row, int64_t element) {
        const uint8_t* from = block(row, element);
        const int place = within(element);
        return {nibbles(read_8(from + 2 + place % 16), place >= 16), read_f16(from), 0.0f};
    }
};

// factor, summand, nibbles[16]
struct Q4_1 : SummandBlocks<Q4_1, 32, 20> {
    static __device__ Levels levels(const uint8_t* row, int64_t element) {
        const uint8_t* from = block(row, element);
        const int place = within(element);
        return {nibbles(read_8(from + 4 + place % 16), place >= 16), read_f16(from), read_f16(from + 2)};
    }
};

// factor, fifth bits, nibbles[16]
struct Q5_0 : OffsetBlocks<Q5_0, 32, 22, 16> {
    static __device__ Levels levels(const uint8_t* row, int64_t element) {
        const uint8_t* from = block(row, element);
        const int place = within(element);
        const uint2 bytes = nibbles(read_8(from + 6 + place % 16), place >= 16);
        return {with<4>(bytes, spread(read_4(from + 2) >> place)), read_f16(from), 0.0f};
    }
};

// factor, summand, fifth bits, nibbles[16]
struct Q5_1 : SummandBlocks<Q5_1, 32, 24> {
    static __device__ Levels levels(const uint8_t* row, int64_t element) {
        const uint8_t* from = block(row, element);
        const int place = within(element);
        const uint2 bytes = nibbles(read_8(from + 8 + place % 16), place >= 16);
        return {with<4>(bytes, spread(read_4(from + 4) >> place)), read_f16(from), read_f16(from + 2)};
    }
};

#include "decode_iq.cuh"
#include "decode_k.cuh"

#define EACH_PLAIN_STORAGE(M) M(f32, F32) M(f16, F16) M(bf16, BF16)

#define EACH_STORAGE(M)                                                                                                   \
    EACH_PLAIN_STORAGE(M)                                                                                                 \
    M(f8_e4m3, F8_E4M3) M(f8_e5m2, F8_E5M2)                                                                               \
    M(q8_0, Q8_0) M(q4_0, Q4_0) M(q4_1, Q4_1) M(q5_0, Q5_0) M(q5_1, Q5_1)                                                 \
    M(q2_k, Q2_K) M(q3_k, Q3_K) M(q4_k, Q4_K) M(q5_k, Q5_K) M(q6_k, Q6_K)                                                 \
    M(iq1_s, IQ1_S) M(iq2_xxs, IQ2_XXS) M(iq2_xs, IQ2_XS) M(iq2_s, IQ2_S) M(iq3_xxs, IQ3_XXS) M(iq3_s, IQ3_S)             \
    M(iq4_nl, IQ4_NL) M(iq4_xs, IQ4_XS)
