// What runs a grid on one OS thread: the fibres' stacks and the block. Inside of the simulator.
#pragma once

#include <cstdint>
#include <string>

#if !defined(__x86_64__) || defined(SIMULATOR_UCONTEXT)
#include <ucontext.h>
#endif

#include "fibres.h"
#include "launch.h"

namespace simulator {

// Of CUresult, in cuda.h.
constexpr unsigned ILLEGAL_ADDRESS = 700, LAUNCH_OUT_OF_RESOURCES = 701, ILLEGAL_INSTRUCTION = 715,
                   MISALIGNED_ADDRESS = 716, LAUNCH_FAILED = 719;

struct Runner {
    Block block;  // first: a fibre finds its runner by its block
    const Entry* entry;
    const void* argument;
    void* main_context = nullptr;
    Outcome outcome;
    bool broken = false;              // fibres were abandoned: their stacks begin anew
    unsigned char* stacks = nullptr;  // BLOCK_THREADS_MAX of them
    unsigned fibres = 0;              // so many are made
    unsigned char* shared = nullptr;  // dynamic shared memory, before an unmapped page

    Runner();
    Runner(const Runner&) = delete;
    // Makes the first `count` fibres ready for a grid.
    void prepare(unsigned count);
};

extern thread_local Runner* running;

// A context that begins `start` on the stack below the fibre.
void make_context(Fibre& fibre, void (*start)());
void fibre_main();
// Runs one block to its end or failure.
void start_block(Runner& runner);

}  // namespace simulator
