// Entry points of the kernels, and running a grid of one.
//
// `kernels.cpp`, written by the build for each .cu, registers what `entry` makes of its entry points.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

#include "vectors.h"

namespace simulator {

// A kernel: its only argument is a struct by value.
struct Entry {
    const char* name;
    void (*function)();
    // Calls `function` with the argument that stands at the address.
    void (*call)(void (*function)(), const void* argument);
    std::size_t argument_bytes;
    unsigned threads_max;  // __launch_bounds__
};

template <typename Argument>
Entry entry(const char* name, void (*function)(Argument), unsigned threads_max) {
    static_assert(std::is_trivially_copyable_v<Argument>, "an argument is copied byte by byte");
    const auto call = [](void (*function)(), const void* argument) {
        reinterpret_cast<void (*)(Argument)>(function)(*static_cast<const Argument*>(argument));
    };
    return {name, reinterpret_cast<void (*)()>(function), call, sizeof(Argument), threads_max};
}

inline Entry entry(const char* name, void (*function)(), unsigned threads_max) {
    return {name, function, [](void (*function)(), const void*) { function(); }, 0, threads_max};
}

// Adds to the entry points, when the library is loaded.
struct Register {
    explicit Register(Entry entry);
};

// The entry point of this name, or none.
const Entry* find_entry(const std::string& name);

// Shared memory of a block: what every device allows, and what some allow a kernel that asks (CUDA C++ Programming Guide,
// "Technical Specifications per Compute Capability").
constexpr std::size_t SHARED_BYTES_MAX = 48 << 10, SHARED_BYTES_ASKED_MAX = 227 << 10;

struct Launch {
    const Entry* entry;
    dim3 grid, block;
    std::size_t dynamic_bytes;
    const void* argument;
    // Of the order of threads, warps and blocks; 0: ascending.
    unsigned long long seed;
    // Dynamic shared memory that the kernel may have, as was asked for.
    std::size_t dynamic_max = SHARED_BYTES_MAX;
};

struct Outcome {
    unsigned code = 0;  // a CUresult
    std::string reason;
};

// Why this launch cannot be: sizes beyond the limits, as far as they are known yet.
Outcome refusal(const Launch& launch);

// Runs every block on this thread.
Outcome run(const Launch& launch);

// Bytes of static shared memory that the kernel was seen to use in its first blocks.
std::size_t static_shared_bytes(const Entry& entry);

}  // namespace simulator
