// The threads of a block as fibres of one OS thread, and what they wait for together.
//
// A fibre runs until it waits at a barrier or a warp operation; then the next ready one of its warp
// runs, then the next warp with a ready one. The last fibre that comes completes the operation for
// all and goes on. If none is ready and not all have ended, the kernel has diverged: it fails.
//
// Not here: what the operations compute (`collectives.cpp`), CUDA's names for them (`simulator.h`).
//
// Invariants: a block never leaves its OS thread; a fibre's stack is aligned to STACK_BYTES, and its
// `Fibre` stands above the first frame, so that a fibre finds itself by its stack pointer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "vectors.h"

namespace simulator {

// A power of 2. Kernels keep their tiles in shared memory and small arrays: a few KiB are used.
constexpr std::uintptr_t STACK_BYTES = 64 << 10;
constexpr unsigned LANES = 32;
constexpr unsigned BLOCK_THREADS_MAX = 1024;

// A place in a kernel's source. Operations made together must stand at one place.
struct Site {
    const char* file;
    unsigned line;
};

enum class Operation : unsigned { sync, shuffle, shuffle_64, ballot, mma_f16, mma_bf16, mma_s8, ldmatrix, ldmatrix_trans };
enum class State : unsigned { running, at_barrier, in_warp_operation, ended };

// A copy_async that was not waited for yet.
struct PendingCopy {
    void* to;
    const void* from;
    unsigned bytes;
    bool valid;
    unsigned group;
};

struct Block;
struct Warp;

struct alignas(64) Fibre {
    uint3 thread;
    unsigned lane;
    Warp* warp;
    Block* block;
    void* context;  // the stack pointer, or a ucontext_t
    Site site;      // of the operation that it waits in
    State state;
    Operation operation;
    unsigned mask;
    unsigned copy_group;  // committed groups of asynchronous copies
    std::vector<PendingCopy> copies;
};

// The operands of a warp's operation, one column a lane: written by the lane when it comes; the
// results stand there when it goes on.
struct alignas(64) Warp {
    unsigned index;
    std::uint32_t ready;    // lanes that may run
    std::uint32_t arrived;  // lanes that wait in a warp operation
    Fibre* fibres[LANES];
    alignas(64) std::uint32_t words[10][LANES];
    const void* addresses[LANES];
};

struct Block {
    uint3 index;
    dim3 threads{1, 1, 1}, grid{1, 1, 1};
    unsigned char* dynamic_shared;
    std::size_t dynamic_bytes;
    unsigned thread_count, ended, at_barrier;
    std::uint32_t ready_warps;  // warps that may have ready lanes
    Site barrier;
    std::uint64_t random;  // 0: in order of lanes
    Warp warps[BLOCK_THREADS_MAX / LANES];
};

// Where the `Fibre` of the stack is that has this address. Aligned stacks would all meet in one set
// of each cache: neighbours stand a line apart.
constexpr std::uintptr_t fibre_address(std::uintptr_t within) {
    const std::uintptr_t bottom = within & ~(STACK_BYTES - 1);
    return bottom + STACK_BYTES - sizeof(Fibre) - ((bottom >> 10) & 0xfc0);
}

// The fibre that runs on this stack.
static inline __attribute__((always_inline)) Fibre& self() {
#if defined(__x86_64__)
    std::uintptr_t here;
    asm("movq %%rsp, %0" : "=r"(here));
#else
    const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
#endif
    return *reinterpret_cast<Fibre*>(fibre_address(here));
}

// Waits for every thread of the block.
void block_barrier(Site site);

// Does `operation` with the lanes of `mask`, once each has come with its operands in its column.
void collective(Fibre& fibre, Operation operation, unsigned mask, Site site);

// Computes `operation` for the lanes of `mask`, all of which have come.
void perform(Operation operation, Block& block, Warp& warp, unsigned mask);

void copy_async(void* to, const void* from, unsigned bytes, bool valid, Site site);
void copy_async_finish(unsigned groups_left);

// Ends the kernel with `code`, a CUresult. Only within a fibre.
[[noreturn]] void fail(unsigned code, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Whether a block's shared memory, static or dynamic, has these bytes.
bool in_shared_memory(const Block& block, const void* address, std::size_t bytes);

}  // namespace simulator
