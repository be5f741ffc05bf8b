// The simulator's tests of itself, run by tests/simulator.rs: `selftest CASE`, on the machine that
// BERTH_SIMULATOR describes. Exit code 0: the case holds.
//
// It is linked to the simulated driver as a program is to the real one; kernels are in `selftest.cu`.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

typedef std::uintptr_t Address;

extern "C" {
unsigned cuInit(unsigned);
unsigned cuDeviceGetCount(int*);
unsigned cuDeviceGetUuid_v2(unsigned char*, int);
unsigned cuDevicePrimaryCtxRetain(void**, int);
unsigned cuDevicePrimaryCtxRelease_v2(int);
unsigned cuCtxSetCurrent(void*);
unsigned cuCtxSynchronize();
unsigned cuCtxEnablePeerAccess(void*, unsigned);
unsigned cuMemGetInfo_v2(std::size_t*, std::size_t*);
unsigned cuMemAlloc_v2(Address*, std::size_t);
unsigned cuMemFree_v2(Address);
unsigned cuMemHostAlloc(void**, std::size_t, unsigned);
unsigned cuMemFreeHost(void*);
unsigned cuMemHostRegister_v2(void*, std::size_t, unsigned);
unsigned cuMemHostUnregister(void*);
unsigned cuMemcpyHtoDAsync_v2(Address, const void*, std::size_t, void*);
unsigned cuMemcpyDtoHAsync_v2(void*, Address, std::size_t, void*);
unsigned cuMemcpyDtoDAsync_v2(Address, Address, std::size_t, void*);
unsigned cuMemcpyPeerAsync(Address, void*, Address, void*, std::size_t, void*);
unsigned cuMemcpy2DAsync_v2(const void*, void*);
unsigned cuMemsetD8Async(Address, unsigned char, std::size_t, void*);
unsigned cuStreamCreate(void**, unsigned);
unsigned cuStreamDestroy_v2(void*);
unsigned cuStreamSynchronize(void*);
unsigned cuStreamQuery(void*);
unsigned cuStreamWaitEvent(void*, void*, unsigned);
unsigned cuEventCreate(void**, unsigned);
unsigned cuEventDestroy_v2(void*);
unsigned cuEventRecord(void*, void*);
unsigned cuEventQuery(void*);
unsigned cuEventSynchronize(void*);
unsigned cuEventElapsedTime(float*, void*, void*);
unsigned cuLaunchHostFunc(void*, void (*)(void*), void*);
unsigned cuModuleLoadData(void**, const void*);
unsigned cuModuleUnload(void*);
unsigned cuModuleGetFunction(void**, void*, const char*);
unsigned cuFuncSetAttribute(void*, int, int);
unsigned cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                        void**);
int nvmlInit_v2();
int nvmlDeviceGetCount_v2(unsigned*);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void**);
int nvmlDeviceGetMemoryInfo(void*, unsigned long long*);
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned*, void*);
}

static int failures = 0;

#define HOLDS(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            failures++;                                                                  \
        }                                                                                \
    } while (false)

#define IS(expected, value)                                                                          \
    do {                                                                                             \
        const auto is_value = (value);                                                               \
        if (is_value != (expected)) {                                                                \
            std::fprintf(stderr, "%s:%d: %s is %g\n", __FILE__, __LINE__, #value, double(is_value)); \
            failures++;                                                                              \
        }                                                                                            \
    } while (false)

#define OK(call) IS(0u, call)

// A context with a module and a stream, current on this thread.
struct Gpu {
    int ordinal;
    void *context = nullptr, *module = nullptr, *stream = nullptr;

    explicit Gpu(int ordinal = 0) : ordinal(ordinal) {
        OK(cuInit(0));
        OK(cuDevicePrimaryCtxRetain(&context, ordinal));
        OK(cuCtxSetCurrent(context));
        OK(cuModuleLoadData(&module, "// simulator"));
        OK(cuStreamCreate(&stream, 1));
    }

    Address alloc(std::size_t bytes) const {
        Address address = 0;
        OK(cuMemAlloc_v2(&address, bytes));
        return address;
    }

    // What a launch and the wait for it answer: the first error.
    template <typename Arguments>
    unsigned launch(const char* kernel, unsigned grid, unsigned block, Arguments arguments, unsigned shared = 0,
                    std::size_t bytes = sizeof(Arguments)) const {
        void* function;
        if (const unsigned error = cuModuleGetFunction(&function, module, kernel)) return error;
        void* extra[] = {reinterpret_cast<void*>(1), &arguments, reinterpret_cast<void*>(2), &bytes, nullptr};
        const unsigned error = cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, nullptr, extra);
        return error ? error : cuStreamSynchronize(stream);
    }

    template <typename T>
    Address put(const std::vector<T>& values) const {
        const Address address = alloc(values.size() * sizeof(T));
        OK(cuMemcpyHtoDAsync_v2(address, values.data(), values.size() * sizeof(T), stream));
        return address;
    }

    std::vector<float> get(Address address, std::size_t count) const {
        std::vector<float> values(count);
        OK(cuMemcpyDtoHAsync_v2(values.data(), address, count * sizeof(float), stream));
        return values;
    }
};

struct SelfArgs {
    Address out, in;
    unsigned long long count;
};

struct ProductArgs {
    Address out, a, b;
    unsigned trans, fill;
};

static std::vector<float> ascending(std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; i++) values[i] = float(i);
    return values;
}

static bool is_nan(float x) { return x != x; }

// ---- kernels

static void kernels() {
    const Gpu gpu;
    const Address in = gpu.put(ascending(1024)), out = gpu.alloc(4096);
    OK(gpu.launch("self_affine", 4, 256, SelfArgs{out, in, 1000}));
    const auto affine = gpu.get(out, 1024);
    for (int i = 0; i < 1000; i++) IS(2.0f * float(i) + 1.0f, affine[i]);
    for (int i = 1000; i < 1024; i++) HOLDS(is_nan(affine[i]));
    OK(gpu.launch("self_sum", 4, 256, SelfArgs{out, in, 0}));
    const auto sums = gpu.get(out, 4);
    for (int i = 0; i < 4; i++) IS(float(256 * 256 * i + 255 * 128), sums[i]);
    OK(gpu.launch("self_reverse", 1, 256, SelfArgs{out, in, 0}, 1024));
    const auto reversed = gpu.get(out, 256);
    for (int i = 0; i < 256; i++) IS(float(255 - i), reversed[i]);
}

static void shuffles() {
    const Gpu gpu;
    const Address in = gpu.put(ascending(32)), out = gpu.alloc(1024);
    OK(gpu.launch("self_shuffles", 1, 32, SelfArgs{out, in, 0}));
    const auto got = gpu.get(out, 256);
    for (int lane = 0; lane < 32; lane++) {
        IS(float((lane + 5) % 32), got[lane]);
        IS(float(lane / 8 * 8 + 3), got[32 + lane]);
        IS(float(lane % 16 >= 2 ? lane - 2 : lane), got[64 + lane]);
        IS(float(lane % 8 < 5 ? lane + 3 : lane), got[96 + lane]);
        IS(float(lane ^ 9), got[128 + lane]);
        IS(31.5f, got[160 + lane]);
        IS(float(0x49249249 & 0xffff), got[192 + lane]);
        IS(float(lane + (lane ^ (lane < 16 ? 1 : 2))), got[224 + lane]);
    }
}

// A missing barrier: in order of threads, and in a shuffled order, some thread reads what is not there.
static void missing_barrier() {
    const Gpu gpu;
    const Address in = gpu.put(ascending(256)), out = gpu.alloc(1024);
    OK(gpu.launch("self_reverse_unsafe", 1, 256, SelfArgs{out, in, 0}, 1024));
    bool found = false;
    for (const float x : gpu.get(out, 256)) found |= is_nan(x);
    HOLDS(found);
}

// Small integers are exact in both types.
static std::uint16_t to_f16(int x) {
    if (x == 0) return 0;
    const unsigned magnitude = unsigned(x < 0 ? -x : x), exponent = 31 - unsigned(__builtin_clz(magnitude));
    return std::uint16_t((x < 0 ? 0x8000 : 0) | (exponent + 15) << 10 | ((magnitude << (10 - exponent)) & 0x3ff));
}

static std::uint16_t to_bf16(int x) {
    const float value = float(x);
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return std::uint16_t(bits >> 16);
}

static void products() {
    const Gpu gpu;
    for (const bool half : {true, false}) {
        for (const bool trans : {false, true}) {
            std::vector<std::uint16_t> a(256), b(128);
            std::vector<float> before(128), expected(128);
            int ai[256], bi[128];
            for (int i = 0; i < 256; i++)
                a[i] = half ? to_f16(ai[i] = i * 37 % 101 - 50) : to_bf16(ai[i] = i * 37 % 101 - 50);
            // bi is [16, 8], k by columns.
            for (int i = 0; i < 128; i++) bi[i] = i * 53 % 97 - 40;
            for (int k = 0; k < 16; k++) {
                for (int n = 0; n < 8; n++) {
                    const int x = bi[k * 8 + n];
                    b[trans ? k * 8 + n : n * 16 + k] = half ? to_f16(x) : to_bf16(x);
                }
            }
            for (int m = 0; m < 16; m++) {
                for (int n = 0; n < 8; n++) {
                    int sum = m * 1000 + n;
                    before[m * 8 + n] = float(sum);
                    for (int k = 0; k < 16; k++) sum += ai[m * 16 + k] * bi[k * 8 + n];
                    expected[m * 8 + n] = float(sum);
                }
            }
            const Address out = gpu.put(before);
            OK(gpu.launch(half ? "self_product_f16" : "self_product_bf16", 1, 32,
                          ProductArgs{out, gpu.put(a), gpu.put(b), trans, 0}));
            const auto got = gpu.get(out, 128);
            for (int i = 0; i < 128; i++) IS(expected[i], got[i]);
        }
    }
}

static void asynchronous_copies() {
    const Gpu gpu;
    const Address in = gpu.put(ascending(128)), out = gpu.alloc(1024);
    OK(gpu.launch("self_copied", 1, 32, SelfArgs{out, in, 0}));
    const auto waited = gpu.get(out, 256);
    for (int i = 0; i < 128; i++) {
        IS(float(i), waited[i]);
        IS(i / 4 % 2 == 0 ? float(i % 4) : 0.0f, waited[128 + i]);
    }
    OK(gpu.launch("self_copied_too_early", 1, 32, SelfArgs{out, in, 0}));
    for (const float x : gpu.get(out, 128)) HOLDS(is_nan(x));
}

// A wrong kernel ends with this error, which stays.
static void wrong(const char* kernel, unsigned block, std::size_t in_floats, unsigned long long count, unsigned error) {
    const Gpu gpu;
    const Address in = gpu.put(ascending(in_floats)), out = gpu.alloc(4096);
    IS(error, gpu.launch(kernel, 1, block, SelfArgs{out, in, count}, 1024));
    IS(error, cuStreamQuery(gpu.stream));
    IS(error, cuMemFree_v2(in));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    // Nor is a new context of use; another device is.
    void* context;
    IS(error, cuDevicePrimaryCtxRetain(&context, 0));
    const Gpu other(1);
    OK(other.launch("self_affine", 1, 32, SelfArgs{other.alloc(128), other.put(ascending(32)), 32}));
}

// Sizes that no kernel may have.
static void sizes() {
    const Gpu gpu;
    const Address in = gpu.put(ascending(1024)), out = gpu.alloc(4096);
    IS(1u, gpu.launch("self_affine", 1, 256, SelfArgs{out, in, 1}, 0, sizeof(SelfArgs) - 8));
    IS(701u, gpu.launch("self_affine", 1, 512, SelfArgs{out, in, 1}));
    IS(1u, gpu.launch("self_reverse", 1, 1056, SelfArgs{out, in, 1}));
    IS(1u, gpu.launch("self_reverse", 1, 32, SelfArgs{out, in, 1}, (48 << 10) + 16));
    OK(gpu.launch("self_reverse", 1, 32, SelfArgs{out, in, 1}, 48 << 10));
    IS(500u, gpu.launch("self_nothing", 1, 32, SelfArgs{out, in, 1}));
    void* function;
    // More shared memory for a kernel that asks, as far as a device of 8.6 has it.
    OK(cuModuleGetFunction(&function, gpu.module, "self_reverse"));
    IS(1u, cuFuncSetAttribute(function, 8, (99 << 10) + 1));
    OK(cuFuncSetAttribute(function, 8, 99 << 10));
    OK(cuFuncSetAttribute(function, 8, 64 << 10));
    IS(1u, gpu.launch("self_reverse", 1, 32, SelfArgs{out, in, 1}, (64 << 10) + 16));
    OK(gpu.launch("self_reverse", 1, 32, SelfArgs{out, in, 1}, 64 << 10));
    OK(cuModuleGetFunction(&function, gpu.module, "self_affine"));
    // The default stream, and no stream at all.
    SelfArgs arguments{out, in, 1};
    void* parameters[] = {&arguments};
    IS(400u, cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr));
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, gpu.stream, parameters, nullptr));
    // Only what the module's PTX has.
    void* module;
    const std::string ptx =
        ".version 7.0\n.target sm_75\n.visible .entry self_affine(\n.param .align 8 .b8 self_affine_param_0[";
    OK(cuModuleLoadData(&module, (ptx + "24]\n)").c_str()));
    OK(cuModuleGetFunction(&function, module, "self_affine"));
    IS(500u, cuModuleGetFunction(&function, module, "self_sum"));
    OK(cuModuleUnload(module));
    OK(cuModuleLoadData(&module, (ptx + "32]\n)").c_str()));
    IS(200u, cuModuleGetFunction(&function, module, "self_affine"));
    IS(222u, cuModuleLoadData(&module, ".version 99.0\n.target sm_75\n"));
    IS(209u, cuModuleLoadData(&module, ".version 8.0\n.target sm_90\n"));
    OK(cuCtxSynchronize());
}

// ---- streams

// A host function that waits until it is let go.
struct Gate {
    std::atomic<bool> open{false};
    void close(void* stream) {
        OK(cuLaunchHostFunc(stream, [](void* gate) { static_cast<Gate*>(gate)->open.wait(false); }, this));
    }
    void let_go() {
        open = true;
        open.notify_all();
    }
};

static void streams() {
    const Gpu gpu;
    const Address a = gpu.alloc(64), b = gpu.alloc(64);
    OK(cuCtxSynchronize());
    Gate gate;
    gate.close(gpu.stream);
    OK(cuMemsetD8Async(a, 1, 64, gpu.stream));
    OK(cuMemcpyDtoDAsync_v2(b, a, 64, gpu.stream));
    OK(cuMemsetD8Async(a, 2, 64, gpu.stream));
    // All of it waits, and the calls have returned.
    IS(600u, cuStreamQuery(gpu.stream));
    gate.let_go();
    unsigned char host[64];
    OK(cuMemcpyDtoHAsync_v2(host, b, 64, gpu.stream));
    IS(1, int(host[63]));
    OK(cuMemcpyDtoHAsync_v2(host, a, 64, gpu.stream));
    IS(2, int(host[0]));
    OK(cuStreamQuery(gpu.stream));
    OK(cuStreamDestroy_v2(gpu.stream));
    IS(400u, cuStreamQuery(gpu.stream));
}

// The stream has every chance to go on, and does not.
static bool stays_held(void* stream) {
    for (int i = 0; i < 5000; i++) {
        if (cuStreamQuery(stream) != 600) return false;
        std::this_thread::yield();
    }
    return true;
}

static void events() {
    const Gpu gpu;
    void *other, *event, *never, *first;
    OK(cuStreamCreate(&other, 1));
    OK(cuEventCreate(&event, 0));
    OK(cuEventCreate(&first, 0));
    OK(cuEventCreate(&never, 2));
    const Address a = gpu.alloc(64);
    OK(cuCtxSynchronize());
    Gate gate;
    OK(cuEventRecord(first, gpu.stream));
    OK(cuEventSynchronize(first));
    gate.close(gpu.stream);
    OK(cuMemsetD8Async(a, 7, 64, gpu.stream));
    OK(cuEventRecord(event, gpu.stream));
    unsigned char* pinned;
    OK(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 64, 0));
    // An event that was never recorded holds nobody; the recorded one holds the copy.
    OK(cuStreamWaitEvent(other, never, 0));
    OK(cuStreamWaitEvent(other, event, 0));
    OK(cuMemcpyDtoHAsync_v2(pinned, a, 64, other));
    IS(600u, cuEventQuery(event));
    HOLDS(stays_held(other));
    float milliseconds = -1;
    IS(600u, cuEventElapsedTime(&milliseconds, first, event));
    gate.let_go();
    OK(cuStreamSynchronize(other));
    IS(7, int(pinned[5]));
    OK(cuEventQuery(event));
    OK(cuEventElapsedTime(&milliseconds, first, event));
    HOLDS(milliseconds >= 0);
    IS(400u, cuEventElapsedTime(&milliseconds, first, never));
    OK(cuEventDestroy_v2(event));
    IS(400u, cuEventQuery(event));
    OK(cuMemFreeHost(pinned));
}

// Pageable memory may be used again when the call returns; pinned memory may not.
static void host_memory() {
    const Gpu gpu;
    const Address a = gpu.alloc(64), b = gpu.alloc(64), c = gpu.alloc(64);
    std::vector<unsigned char> pageable(64, 1), registered(64, 1);
    unsigned char* pinned;
    OK(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), 64, 0));
    OK(cuMemHostRegister_v2(registered.data(), 64, 0));
    IS(712u, cuMemHostRegister_v2(registered.data(), 1, 0));
    std::memset(pinned, 1, 64);
    Gate gate;
    gate.close(gpu.stream);
    OK(cuMemcpyHtoDAsync_v2(a, pageable.data(), 64, gpu.stream));
    OK(cuMemcpyHtoDAsync_v2(b, pinned, 64, gpu.stream));
    OK(cuMemcpyHtoDAsync_v2(c, registered.data(), 64, gpu.stream));
    std::fill(pageable.begin(), pageable.end(), 2);
    std::fill(registered.begin(), registered.end(), 2);
    std::memset(pinned, 2, 64);
    gate.let_go();
    unsigned char host[64];
    const int expected[] = {1, 2, 2};
    int i = 0;
    for (const Address address : {a, b, c}) {
        OK(cuMemcpyDtoHAsync_v2(host, address, 64, gpu.stream));
        IS(expected[i++], int(host[9]));
    }
    OK(cuMemHostUnregister(registered.data()));
    IS(713u, cuMemHostUnregister(registered.data()));
    OK(cuMemFreeHost(pinned));
}

// CUDA_MEMCPY2D.
struct Copy2D {
    struct Side {
        std::size_t x_bytes, y;
        unsigned type;
        const void* host;
        Address device;
        void* array;
        std::size_t pitch;
    } from, to;
    std::size_t width_bytes, height;
};

static void rectangles() {
    const Gpu gpu;
    const Address in = gpu.put(ascending(64)), out = gpu.alloc(64);
    // Columns 2 and 3 of rows 1 to 4, of 8 columns.
    const Copy2D copy{{8, 1, 2, nullptr, in, nullptr, 32}, {0, 0, 2, nullptr, out, nullptr, 8}, 8, 4};
    OK(cuMemcpy2DAsync_v2(&copy, gpu.stream));
    const auto got = gpu.get(out, 8);
    for (int i = 0; i < 8; i++) IS(float((1 + i / 2) * 8 + 2 + i % 2), got[i]);
    Copy2D beyond = copy;
    beyond.height = 9;
    IS(1u, cuMemcpy2DAsync_v2(&beyond, gpu.stream));
}

// ---- memory

// On a device of 64 MiB, of which the context takes 16 and the module 2, in pieces of 2.
static void capacity() {
    const Gpu gpu;
    std::size_t free, total;
    OK(cuMemGetInfo_v2(&free, &total));
    IS(64u << 20, total);
    IS(46u << 20, free);
    const Address large = gpu.alloc((3 << 20) + 1), small = gpu.alloc(100);
    OK(cuMemGetInfo_v2(&free, &total));
    IS(40u << 20, free);
    Address address;
    IS(2u, cuMemAlloc_v2(&address, 41 << 20));
    OK(cuMemAlloc_v2(&address, 40 << 20));
    IS(2u, cuMemAlloc_v2(&address, 4 << 20));
    gpu.alloc(512);
    OK(cuMemFree_v2(large));
    OK(cuMemFree_v2(small));
    IS(1u, cuMemFree_v2(small));
    OK(cuMemGetInfo_v2(&free, &total));
    IS(4u << 20, free);
    // What was freed is no address any more.
    IS(1u, cuMemsetD8Async(large, 0, 1, gpu.stream));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    IS(201u, cuMemGetInfo_v2(&free, &total));
}

// Writes behind the end: at once behind the page, and within it when the kernel has ended.
static void overrun(std::size_t floats, unsigned long long written) {
    const Gpu gpu;
    const Address out = gpu.alloc(floats * 4);
    IS(700u, gpu.launch("self_overrun", 1, 32, SelfArgs{out, 0, written}));
    IS(700u, cuCtxSynchronize());
}

static void freed() {
    const Gpu gpu;
    const Address in = gpu.alloc(1024), out = gpu.alloc(1024);
    OK(cuMemFree_v2(in));
    IS(700u, gpu.launch("self_affine", 1, 32, SelfArgs{out, in, 32}));
}

// ---- several devices

static void two_devices(bool peer) {
    const Gpu first(0);
    const Address a = first.put(ascending(32));
    OK(cuStreamSynchronize(first.stream));
    const Gpu second(1);
    const Address b = second.alloc(128), c = second.alloc(128);
    OK(cuMemcpyPeerAsync(b, second.context, a, first.context, 128, second.stream));
    IS(31.0f, second.get(b, 32)[31]);
    IS(1u, cuMemcpyPeerAsync(b, first.context, a, second.context, 128, second.stream));
    IS(1u, cuMemcpyDtoDAsync_v2(b, a, 128, second.stream));
    // A stream of another device than the current one.
    SelfArgs arguments{c, b, 32};
    void *parameters[] = {&arguments}, *function;
    OK(cuModuleGetFunction(&function, second.module, "self_affine"));
    IS(400u, cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, first.stream, parameters, nullptr));
    IS(peer ? 0u : 217u, cuCtxEnablePeerAccess(first.context, 0));
    if (peer) IS(704u, cuCtxEnablePeerAccess(first.context, 0));
    IS(peer ? 0u : 700u, second.launch("self_affine", 1, 32, SelfArgs{c, a, 32}));
    if (peer) IS(63.0f, second.get(c, 32)[31]);
    // The other device goes on.
    OK(cuCtxSetCurrent(first.context));
    IS(31.0f, first.get(a, 32)[31]);
}

// ---- what is configured to fail

static void failing() {
    const Gpu gpu;
    Address address;
    OK(cuMemAlloc_v2(&address, 64));
    IS(2u, cuMemAlloc_v2(&address, 64));
    OK(cuMemAlloc_v2(&address, 64));
    // The third operation of the device is lost, and all that follow.
    OK(cuMemsetD8Async(address, 0, 64, gpu.stream));
    OK(cuMemsetD8Async(address, 0, 64, gpu.stream));
    OK(cuStreamSynchronize(gpu.stream));
    void* event;
    OK(cuEventCreate(&event, 0));
    Gate gate;
    gate.close(gpu.stream);
    OK(cuMemsetD8Async(address, 0, 64, gpu.stream));
    OK(cuEventRecord(event, gpu.stream));
    gate.let_go();
    IS(719u, cuEventSynchronize(event));
    IS(719u, cuMemAlloc_v2(&address, 64));
}

static void initialisation() {
    const char* expected = std::getenv("EXPECTED");
    const unsigned code = expected ? unsigned(std::atoi(expected)) : 0;
    IS(code, cuInit(0));
    int count = -1;
    IS(code == 0 ? 0u : 3u, cuDeviceGetCount(&count));
}

// Ordinals in the order that is configured, of those that are visible.
static void ordinals() {
    OK(cuInit(0));
    int count = 0;
    OK(cuDeviceGetCount(&count));
    IS(2, count);
    unsigned char uuid[16];
    OK(cuDeviceGetUuid_v2(uuid, 0));
    IS(0xab, int(uuid[15]));
    OK(cuDeviceGetUuid_v2(uuid, 1));
    IS(0xcd, int(uuid[15]));
    IS(101u, cuDeviceGetUuid_v2(uuid, 2));
}

// Holds 100 MiB of the first device, says so, and goes on when its input ends.
static void hold() {
    const Gpu gpu;
    gpu.alloc(100 << 20);
    std::puts("held");
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
}

// What NVML and CUDA say while another process holds memory: of 1 GiB, 64 MiB by others, and for each of the
// two processes a context of 64 MiB and a module of 2.
static void shared() {
    const Gpu gpu;
    void* device;
    unsigned count = 0;
    IS(0, nvmlInit_v2());
    IS(0, nvmlDeviceGetCount_v2(&count));
    IS(2u, count);
    IS(0, nvmlDeviceGetHandleByIndex_v2(0, &device));
    unsigned long long memory[3];  // total, free, used
    IS(0, nvmlDeviceGetMemoryInfo(device, memory));
    const unsigned long long used = (64 + 66 + 100 + 66) << 20;
    IS(1ull << 30, memory[0]);
    IS((1ull << 30) - used, memory[1]);
    IS(used, memory[2]);
    std::size_t free, total;
    OK(cuMemGetInfo_v2(&free, &total));
    IS(memory[1], free);
    struct {
        unsigned pid;
        unsigned long long used;
        unsigned instances[2];
    } processes[4];
    count = 4;
    IS(0, nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes));
    IS(2u, count);
    int found = 0;
    for (unsigned i = 0; i < count && i < 4; i++) {
        const bool own = processes[i].pid == unsigned(getpid());
        found += own;
        IS((own ? 66ull : 166ull) << 20, processes[i].used);
    }
    IS(1, found);
    Address address;
    IS(2u, cuMemAlloc_v2(&address, memory[1] + 1));
    OK(cuMemAlloc_v2(&address, memory[1]));
    // The other device is nobody's.
    IS(0, nvmlDeviceGetHandleByIndex_v2(1, &device));
    IS(0, nvmlDeviceGetMemoryInfo(device, memory));
    IS(64ull << 20, memory[2]);
}

// Many kernels at once, in several streams of several threads.
static void crowd() {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; thread++) {
        threads.emplace_back([] {
            const Gpu gpu;
            const Address in = gpu.put(ascending(1024)), out = gpu.alloc(16);
            for (int i = 0; i < 50; i++) {
                OK(gpu.launch("self_sum", 4, 256, SelfArgs{out, in, 0}));
                IS(float(3 * 65536 + 255 * 128), gpu.get(out, 4)[3]);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
}

int main(int count, char** arguments) {
    const std::map<std::string, std::function<void()>> cases = {
        {"kernels", kernels},
        {"shuffles", shuffles},
        {"missing_barrier", missing_barrier},
        {"products", products},
        {"asynchronous_copies", asynchronous_copies},
        {"missing_thread", [] { wrong("self_missing_thread", 64, 64, 0, 719); }},
        {"other_barrier", [] { wrong("self_other_barrier", 64, 64, 0, 719); }},
        {"missing_lane", [] { wrong("self_missing_lane", 32, 32, 0, 719); }},
        {"misaligned", [] { wrong("self_misaligned", 32, 64, 0, 716); }},
        {"index", [] { wrong("self_index", 32, 32, 1, 700); }},
        {"deep", [] { wrong("self_deep", 32, 32, 100000, 700); }},
        {"sizes", sizes},
        {"streams", streams},
        {"events", events},
        {"host_memory", host_memory},
        {"rectangles", rectangles},
        {"capacity", capacity},
        {"overrun", [] { overrun(64, 65); }},
        {"overrun_within", [] { overrun(33, 34); }},
        {"freed", freed},
        {"two_devices", [] { two_devices(false); }},
        {"two_peers", [] { two_devices(true); }},
        {"failing", failing},
        {"initialisation", initialisation},
        {"ordinals", ordinals},
        {"hold", hold},
        {"shared", shared},
        {"crowd", crowd},
    };
    const auto found = cases.find(count == 2 ? arguments[1] : "");
    if (found == cases.end()) {
        std::fprintf(stderr, "no such case\n");
        return 2;
    }
    found->second();
    return failures == 0 ? 0 : 1;
}
