// CUDA's small vector types and dim3, with the alignment that the device demands of them.
//
// Not here: arithmetic on them; CUDA has none either.
#pragma once

#include <cstdint>

struct uint3 { unsigned x, y, z; };
struct int2 { alignas(8) int x; int y; };
struct int4 { alignas(16) int x; int y, z, w; };
struct uint2 { alignas(8) unsigned x; unsigned y; };
struct uint4 { alignas(16) unsigned x; unsigned y, z, w; };
struct float2 { alignas(8) float x; float y; };
struct float3 { float x, y, z; };
struct float4 { alignas(16) float x; float y, z, w; };
struct short2 { alignas(4) short x; short y; };
struct ushort2 { alignas(4) unsigned short x; unsigned short y; };
struct ushort4 { alignas(8) unsigned short x; unsigned short y, z, w; };
struct char4 { alignas(4) signed char x; signed char y, z, w; };
struct uchar4 { alignas(4) unsigned char x; unsigned char y, z, w; };

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline short2 make_short2(short x, short y) { return {x, y}; }
static inline ushort2 make_ushort2(unsigned short x, unsigned short y) { return {x, y}; }
static inline ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w) {
    return {x, y, z, w};
}
static inline char4 make_char4(signed char x, signed char y, signed char z, signed char w) { return {x, y, z, w}; }
static inline uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w) {
    return {x, y, z, w};
}
