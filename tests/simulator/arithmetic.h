// CUDA's arithmetic functions that the C library lacks, and atomic operations on integers.
//
// Part of `simulator.h`. Not here: atomic additions of floats, whose order would be left to chance.
#pragma once

// glibc's headers have these names for other purposes.
#define __expf expf
#define __logf logf
#define __sinf sinf
#define __cosf cosf
#define __powf powf

static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return std::sqrt(x); }
static inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

static inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
static inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
static inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
static inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
static inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
static inline int __float2int_rz(float x) { return int(x); }
static inline int __float2int_rd(float x) { return int(std::floor(x)); }
static inline int __float2int_ru(float x) { return int(std::ceil(x)); }
static inline float __int2float_rn(int x) { return float(x); }
static inline float __uint2float_rn(unsigned x) { return float(x); }

static inline int min(int x, int y) { return x < y ? x : y; }
static inline int max(int x, int y) { return x > y ? x : y; }
static inline unsigned min(unsigned x, unsigned y) { return x < y ? x : y; }
static inline unsigned max(unsigned x, unsigned y) { return x > y ? x : y; }
static inline unsigned min(int x, unsigned y) { return min(unsigned(x), y); }
static inline unsigned max(int x, unsigned y) { return max(unsigned(x), y); }
static inline unsigned min(unsigned x, int y) { return min(x, unsigned(y)); }
static inline unsigned max(unsigned x, int y) { return max(x, unsigned(y)); }
static inline long min(long x, long y) { return x < y ? x : y; }
static inline long max(long x, long y) { return x > y ? x : y; }
static inline unsigned long min(unsigned long x, unsigned long y) { return x < y ? x : y; }
static inline unsigned long max(unsigned long x, unsigned long y) { return x > y ? x : y; }
static inline long long min(long long x, long long y) { return x < y ? x : y; }
static inline long long max(long long x, long long y) { return x > y ? x : y; }
static inline unsigned long long min(unsigned long long x, unsigned long long y) { return x < y ? x : y; }
static inline unsigned long long max(unsigned long long x, unsigned long long y) { return x > y ? x : y; }
static inline float min(float x, float y) { return fminf(x, y); }
static inline float max(float x, float y) { return fmaxf(x, y); }
static inline double min(double x, double y) { return fmin(x, y); }
static inline double max(double x, double y) { return fmax(x, y); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __umulhi(unsigned x, unsigned y) { return unsigned((std::uint64_t(x) * y) >> 32); }
static inline int __mulhi(int x, int y) { return int((std::int64_t(x) * y) >> 32); }

// Bytes of `y:x` by the digits of `selector`; its sign-replicating digits are not used by us.
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const std::uint64_t bytes = std::uint64_t(y) << 32 | x;
    unsigned chosen = 0;
    for (int i = 0; i < 4; i++) chosen |= unsigned(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
    return chosen;
}

static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return unsigned((std::uint64_t(high) << 32 | low) >> (shift & 31));
}

static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return unsigned((std::uint64_t(high) << 32 | low) << (shift & 31) >> 32);
}

// Products of four signed bytes, summed onto `sum`.
static inline int __dp4a(int x, int y, int sum) {
    for (int i = 0; i < 4; i++) sum += int(std::int8_t(x >> (8 * i))) * int(std::int8_t(y >> (8 * i)));
    return sum;
}

static inline unsigned __dp4a(unsigned x, unsigned y, unsigned sum) {
    for (int i = 0; i < 4; i++) sum += (x >> (8 * i) & 0xff) * (y >> (8 * i) & 0xff);
    return sum;
}

template <typename T>
static inline T __ldg(const T* address) {
    return *address;
}

template <typename T>
static inline T __ldcs(const T* address) {
    return *address;
}

template <typename T>
static inline void __stcs(T* address, T value) {
    *address = value;
}

// Blocks of other streams run at the same time, hence real atomics.
template <typename T>
static inline T atomicAdd(T* address, T value) {
    static_assert(std::is_integral_v<T>, "sums of floats depend on their order");
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}

template <typename T>
static inline T atomicExch(T* address, T value) {
    static_assert(std::is_integral_v<T>);
    return __atomic_exchange_n(address, value, __ATOMIC_RELAXED);
}

template <typename T>
static inline T atomicCAS(T* address, T expected, T value) {
    static_assert(std::is_integral_v<T>);
    __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

template <typename T>
static inline T atomicMax(T* address, T value) {
    static_assert(std::is_integral_v<T>);
    T old = __atomic_load_n(address, __ATOMIC_RELAXED);
    while (old < value &&
           !__atomic_compare_exchange_n(address, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}
