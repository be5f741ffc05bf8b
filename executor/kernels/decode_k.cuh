// The k-quants, for decode.cuh: blocks of 256 numbers whose groups of 16 or 32 have factors of few bits, multiplied by one or
// two f16. Short numbers lie in planes: a run of 32 bytes holds the lowest bits of 32 numbers, above them those of the 32
// numbers after, and so on.

#pragma once

// scale × number - less, rounded twice as on the host
__device__ inline void scaled_minus(uint2 bytes, float scale, float less, float (&out)[GROUP]) {
    scaled<0>(bytes, scale, out);
#pragma unroll
    for (int i = 0; i < GROUP; i++) out[i] = __fsub_rn(out[i], less);
}

// Two bits of each of eight numbers, from 64 bytes of such.
__device__ inline uint2 twos(const uint8_t* bytes, int place) {
    return planes<3>(read_8(bytes + place / 128 * 32 + place % 32), place % 128 / 32 * 2);
}

// factors[16], twos[64], factor, minimum: a factor's low nibble multiplies, the high one is subtracted.
struct Q2_K : Blocks<Q2_K, 256, 84> {
    static __device__ void decode(const uint8_t* row, int64_t element, float (&out)[GROUP]) {
        const uint8_t* from = block(row, element);
        const int place = within(element);
        const int factors = __ldg(from + place / 16);
        const float scale = __fmul_rn(read_f16(from + 80), static_cast<float>(factors & 15));
        const float less = __fmul_rn(read_f16(from + 82), static_cast<float>(factors >> 4));
        scaled_minus(twos(from + 16, place), scale, less, out);
    }
};

// third bits[32], twos[64], factors[12], factor: a third bit that is not set takes 4 away; factors have six bits, less 32.
struct Q3_K : Blocks<Q3_K, 256, 110> {
    static __device__ void decode(const uint8_t* row, int64_t element, float (&out)[GROUP]) {
        const uint8_t* from = block(row, element);
        const int place = within(element);
        const int run = place / 16;
        const int low = __ldg(from + 96 + run % 8) >> (run / 8 * 4) & 15;
        const int high = __ldg(from + 104 + run % 4) >> (run / 4 * 2) & 3;
        const float scale = __fmul_rn(read_f16(from + 108), static_cast<float>((low | high << 4) - 32));
        const uint2 thirds = planes<1>(read_8(from + place % 32), place / 32);
        scaled<4>(with<2>(twos(from + 32, place), thirds), scale, out);
    }
};

// The factor and what is subtracted of a group of 32 numbers, six bits each in twelve bytes: the upper bits of the last four
// groups' stand above those of the first four. `head`: factor, minimum, factors[12].
__device__ inline float2 scale_and_less(uint4 head, int run) {
    const int shift = run % 4 * 8;
    const uint32_t first = head.y >> shift;
    const uint32_t second = head.z >> shift;
    const uint32_t third = head.w >> shift;
    const bool late = run >= 4;
    const uint32_t scale = late ? (third & 15) | (first >> 6 & 3) << 4 : first & 63;
    const uint32_t less = late ? (third >> 4 & 15) | (second >> 6 & 3) << 4 : second & 63;
    const float factor = f32_of_f16(static_cast<uint16_t>(head.x));
    const float minimum = f32_of_f16(static_cast<uint16_t>(head.x >> 16));
    return make_float2(__fmul_rn(factor, number_of_byte<0>(scale, 0)), __fmul_rn(minimum, number_of_byte<0>(less, 0)));
}

// factor, minimum, factors[12], nibbles[128]
struct Q4_K : SummandBlocks<Q4_K, 256, 144> {
    static __device__ Levels levels(const uint8_t* row, int64_t element) {
        const uint8_t* from = block(row, element);
        const int place = within(element);
        const float2 group = scale_and_less(__ldg(reinterpret_cast<const uint4*>(from)), place / 32);
        const uint2 bytes = read_8_aligned(from + 16 + place / 64 * 32 + place % 32);
        return {nibbles(bytes, place % 64 >= 32), group.x, -group.y};
    }
};

// factor, minimum, factors[12], fifth bits[32], nibbles[128]
struct Q5_K : SummandBlocks<Q5_K, 256, 176> {
    static __device__ Levels levels(const uint8_t* row, int64_t element) {
        const uint8_t* from = block(row, element);
        const int place = within(element);
        const float2 group = scale_and_less(__ldg(reinterpret_cast<const uint4*>(from)), place / 32);
        const uint2 bytes = read_8_aligned(from + 48 + place / 64 * 32 + place % 32);
        const uint2 fifths = planes<1>(read_8_aligned(from + 16 + place % 32), place / 32);
        return {with<4>(nibbles(bytes, place % 64 >= 32), fifths), group.x, -group.y};
    }
};

// nibbles[128], twos[64], factors[16], factor: numbers have six bits, less 32; factors are signed.
struct Q6_K : OffsetBlocks<Q6_K, 256, 210, 32> {
    static __device__ Levels levels(const uint8_t* row, int64_t element) {
        const uint8_t* from = block(row, element);
        const int place = within(element);
        const int8_t factor = static_cast<int8_t>(__ldg(from + 192 + place / 16));
        const float scale = __fmul_rn(read_f16(from + 208), static_cast<float>(factor));
        const uint2 low = nibbles(read_8(from + place / 128 * 64 + place % 64), place % 128 >= 64);
        return {with<4>(low, twos(from + 128, place)), scale, 0.0f};
    }
};
