// Fibres: switching, barriers, asynchronous copies, and the ways in which a kernel fails.
//
// Not here: the computation of warp operations (`collectives.cpp`), grids (`launch.cpp`).
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "runner.h"

namespace simulator {

// The block that runs on this thread; null outside of kernels.
thread_local Runner* running = nullptr;

#if defined(__x86_64__) && !defined(SIMULATOR_UCONTEXT)

// Saves the registers that a call keeps, and goes on where `load` saved them.
extern "C" void simulator_switch(void** save, void* load) __attribute__((visibility("hidden")));
asm(R"(
    .text
    .globl simulator_switch
    .hidden simulator_switch
    .type simulator_switch, @function
simulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
    .size simulator_switch, . - simulator_switch
)");

static inline void switch_context(void** save, void** load) { simulator_switch(save, *load); }

void make_context(Fibre& fibre, void (*start)()) {
    auto* stack = reinterpret_cast<void**>(&fibre) - 2;
    *stack = reinterpret_cast<void*>(start);
    stack -= 6;
    std::memset(stack, 0, 6 * sizeof(void*));
    fibre.context = stack;
}

#else

static inline void switch_context(void** save, void** load) {
    if (*save == nullptr) *save = new ucontext_t;
    swapcontext(static_cast<ucontext_t*>(*save), static_cast<ucontext_t*>(*load));
}

void make_context(Fibre& fibre, void (*start)()) {
    if (fibre.context == nullptr) fibre.context = new ucontext_t;
    auto* context = static_cast<ucontext_t*>(fibre.context);
    getcontext(context);
    constexpr std::size_t BYTES = STACK_BYTES / 2;
    context->uc_stack.ss_sp = reinterpret_cast<unsigned char*>(&fibre) - BYTES;
    context->uc_stack.ss_size = BYTES;
    context->uc_link = nullptr;
    makecontext(context, start, 0);
}

#endif

static void finish(Fibre& fibre);

// The life of a fibre: the kernel, once a block.
void fibre_main() {
    for (;;) {
        Fibre& fibre = self();
        const Runner& runner = *reinterpret_cast<Runner*>(fibre.block);
        runner.entry->call(runner.entry->function, runner.argument);
        finish(fibre);
    }
}

static std::uint64_t next_random(std::uint64_t& state) {
    // xorshift64 (Marsaglia 2003)
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

// The lowest bit, or any when the order is shuffled.
static inline unsigned choose(Block& block, std::uint32_t bits) {
    if (block.random == 0) return unsigned(__builtin_ctz(bits));
    const unsigned turn = unsigned(next_random(block.random) >> 32) & 31;
    const std::uint32_t turned = bits >> turn | (turn == 0 ? 0 : bits << (32 - turn));
    return (unsigned(__builtin_ctz(turned)) + turn) & 31;
}

// The next fibre to run, preferably of this warp; none where all wait or have ended.
static inline Fibre* next_ready(Block& block, Warp* warp) {
    while (warp->ready == 0) {
        block.ready_warps &= ~(1u << warp->index);
        if (block.ready_warps == 0) return nullptr;
        warp = &block.warps[choose(block, block.ready_warps)];
    }
    const unsigned lane = choose(block, warp->ready);
    warp->ready &= ~(1u << lane);
    return warp->fibres[lane];
}

static const char* name_of(Operation operation) {
    switch (operation) {
        case Operation::sync: return "__syncwarp";
        case Operation::shuffle:
        case Operation::shuffle_64: return "a shuffle";
        case Operation::ballot: return "a vote";
        case Operation::mma_f16: return "mma_f16";
        case Operation::mma_bf16: return "mma_bf16";
        case Operation::mma_s8: return "mma_s8";
        case Operation::ldmatrix: return "ldmatrix";
        case Operation::ldmatrix_trans: return "ldmatrix_trans";
    }
    return "?";
}

static std::string thread_name(const Fibre& fibre) {
    const uint3 t = fibre.thread, b = fibre.block->index;
    char text[128];
    std::snprintf(text, sizeof text, "thread (%u, %u, %u) of block (%u, %u, %u)", t.x, t.y, t.z, b.x, b.y, b.z);
    return text;
}

static std::string site_name(Site site) {
    const char* slash = std::strrchr(site.file, '/');
    return std::string(slash ? slash + 1 : site.file) + ":" + std::to_string(site.line);
}

static std::string where(const Fibre& fibre) {
    switch (fibre.state) {
        case State::running: return "runs";
        case State::ended: return "has ended";
        case State::at_barrier: return "waits at __syncthreads, " + site_name(fibre.site);
        case State::in_warp_operation: break;
    }
    char mask[32];
    std::snprintf(mask, sizeof mask, "%08x", fibre.mask);
    return std::string("waits in ") + name_of(fibre.operation) + " of lanes " + mask + ", " + site_name(fibre.site);
}

// No fibre can go on and some have not ended: says who waits where, four places at most.
[[noreturn, gnu::cold, gnu::noinline]] static void stuck(Block& block) {
    std::string reason = "its threads have diverged:";
    std::string seen;
    int places = 0;
    for (unsigned i = 0; i < block.thread_count && places < 4; i++) {
        const Fibre& fibre = *block.warps[i / LANES].fibres[i % LANES];
        const std::string place = where(fibre);
        if (seen.find(place + ";") != std::string::npos) continue;
        seen += place + ";";
        places++;
        reason += (places == 1 ? " " : "; ") + thread_name(fibre) + " " + place;
    }
    fail(LAUNCH_FAILED, "%s", reason.c_str());
}

// Failures apart, since their texts would widen the frames of every wait.

[[noreturn, gnu::cold, gnu::noinline]] static void ended_before_barrier(const Fibre& fibre) {
    fail(LAUNCH_FAILED, "%s has ended while others wait at __syncthreads, %s", thread_name(fibre).c_str(),
         site_name(fibre.block->barrier).c_str());
}

[[noreturn, gnu::cold, gnu::noinline]] static void barrier_without_ended(const Fibre& fibre, Site site) {
    fail(LAUNCH_FAILED, "%s waits at __syncthreads, %s, but others have ended", thread_name(fibre).c_str(),
         site_name(site).c_str());
}

[[noreturn, gnu::cold, gnu::noinline]] static void other_barrier(const Fibre& fibre, Site site) {
    fail(LAUNCH_FAILED, "%s waits at __syncthreads, %s, others at another, %s", thread_name(fibre).c_str(),
         site_name(site).c_str(), site_name(fibre.block->barrier).c_str());
}

[[noreturn, gnu::cold, gnu::noinline]] static void not_of_mask(const Fibre& fibre) {
    fail(LAUNCH_FAILED, "%s is not of the mask %08x of its warp operation, %s", thread_name(fibre).c_str(), fibre.mask,
         site_name(fibre.site).c_str());
}

[[noreturn, gnu::cold, gnu::noinline]] static void other_operation(Fibre& fibre, const Fibre& other) {
    fibre.state = State::in_warp_operation;
    fail(LAUNCH_FAILED, "its threads have diverged: %s %s; %s %s", thread_name(fibre).c_str(), where(fibre).c_str(),
         thread_name(other).c_str(), where(other).c_str());
}

static inline bool same_place(Site one, Site other) {
    return one.line == other.line && (one.file == other.file || std::strcmp(one.file, other.file) == 0);
}

static inline void yield(Fibre& fibre) {
    Fibre* next = next_ready(*fibre.block, fibre.warp);
    if (next == nullptr) stuck(*fibre.block);
    switch_context(&fibre.context, &next->context);
}

static void finish(Fibre& fibre) {
    Block& block = *fibre.block;
    fibre.state = State::ended;
    fibre.copies.clear();
    fibre.copy_group = 0;
    if (block.at_barrier > 0) ended_before_barrier(fibre);
    block.ended++;
    if (Fibre* next = next_ready(block, fibre.warp)) {
        switch_context(&fibre.context, &next->context);
    } else if (block.ended == block.thread_count) {
        switch_context(&fibre.context, &running->main_context);
    } else {
        stuck(block);
    }
}

void start_block(Runner& runner) {
    Block& block = runner.block;
    block.ended = block.at_barrier = 0;
    const unsigned warps = block.thread_count / LANES, rest = block.thread_count % LANES;
    for (unsigned i = 0; i < warps; i++) block.warps[i].ready = 0xffffffff;
    if (rest != 0) block.warps[warps].ready = (1u << rest) - 1;
    const unsigned count = warps + (rest != 0);
    block.ready_warps = count == 32 ? 0xffffffff : (1u << count) - 1;
    for (unsigned i = 0; i < count; i++) block.warps[i].arrived = 0;
    Fibre* first = next_ready(block, &block.warps[choose(block, block.ready_warps)]);
    switch_context(&runner.main_context, &first->context);
}

void block_barrier(Site site) {
    Fibre& fibre = self();
    Block& block = *fibre.block;
    if (block.ended > 0) barrier_without_ended(fibre, site);
    if (block.at_barrier == 0) {
        block.barrier = site;
    } else if (!same_place(block.barrier, site)) {
        other_barrier(fibre, site);
    }
    if (++block.at_barrier < block.thread_count) {
        fibre.state = State::at_barrier;
        fibre.site = site;
        yield(fibre);
        fibre.state = State::running;
        return;
    }
    block.at_barrier = 0;
    for (unsigned i = 0; i * LANES < block.thread_count; i++) {
        const unsigned lanes = block.thread_count - i * LANES;
        block.warps[i].ready = lanes >= LANES ? 0xffffffff : (1u << lanes) - 1;
        block.ready_warps |= 1u << i;
    }
    fibre.warp->ready &= ~(1u << fibre.lane);
}

void collective(Fibre& fibre, Operation operation, unsigned mask, Site site) {
    Warp& warp = *fibre.warp;
    Block& block = *fibre.block;
    const std::uint32_t lane = 1u << fibre.lane;
    fibre.operation = operation;
    fibre.mask = mask;
    fibre.site = site;
    if ((mask & lane) == 0) not_of_mask(fibre);
    warp.arrived |= lane;
    if ((warp.arrived & mask) != mask) {
        fibre.state = State::in_warp_operation;
        yield(fibre);
        fibre.state = State::running;
        return;
    }
    for (std::uint32_t left = mask & ~lane; left != 0; left &= left - 1) {
        const Fibre& other = *warp.fibres[__builtin_ctz(left)];
        if (other.operation != operation || other.mask != mask || !same_place(other.site, site))
            other_operation(fibre, other);
    }
    perform(operation, block, warp, mask);
    warp.arrived &= ~mask;
    warp.ready |= mask & ~lane;
    block.ready_warps |= 1u << warp.index;
}

void copy_async(void* to, const void* from, unsigned bytes, bool valid, Site site) {
    Fibre& fibre = self();
    const auto misaligned = [bytes](const void* address) {
        return reinterpret_cast<std::uintptr_t>(address) % bytes != 0;
    };
    if (misaligned(to) || (valid && misaligned(from))) {
        fail(MISALIGNED_ADDRESS, "%s: copy_async of %u bytes with a misaligned address, %s", thread_name(fibre).c_str(),
             bytes, site_name(site).c_str());
    }
    if (!in_shared_memory(*fibre.block, to, bytes)) {
        fail(ILLEGAL_ADDRESS, "%s: copy_async to what is not shared memory, %s", thread_name(fibre).c_str(),
             site_name(site).c_str());
    }
    std::memset(to, 0xff, bytes);
    fibre.copies.push_back({to, from, bytes, valid, fibre.copy_group});
}

void copy_async_finish(unsigned groups_left) {
    Fibre& fibre = self();
    std::size_t done = 0;
    for (const PendingCopy& copy : fibre.copies) {
        // Groups are numbered from 0: `copy_group` of them are committed.
        if (copy.group + groups_left >= fibre.copy_group) break;
        if (copy.valid) {
            std::memcpy(copy.to, copy.from, copy.bytes);
        } else {
            std::memset(copy.to, 0, copy.bytes);
        }
        done++;
    }
    fibre.copies.erase(fibre.copies.begin(), fibre.copies.begin() + std::ptrdiff_t(done));
}

void fail(unsigned code, const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    running->outcome = {code, text};
    running->broken = true;
    void* abandoned = nullptr;
    switch_context(&abandoned, &running->main_context);
    __builtin_unreachable();
}

}  // namespace simulator

// What g++ calls for -fsanitize=alignment,bounds; the layouts are those of its runtime's interface.
struct SanitizedPlace {
    const char* file;
    std::uint32_t line, column;
};

extern "C" void __ubsan_handle_type_mismatch_v1_abort(const SanitizedPlace* place, void* address) {
    simulator::fail(simulator::MISALIGNED_ADDRESS, "%s: address %p is misaligned for its type, %s",
                    simulator::thread_name(simulator::self()).c_str(), address,
                    simulator::site_name({place->file, place->line}).c_str());
}

extern "C" void __ubsan_handle_out_of_bounds_abort(const SanitizedPlace* place, void* index) {
    simulator::fail(simulator::ILLEGAL_ADDRESS, "%s: index %lld is beyond the array, %s",
                    simulator::thread_name(simulator::self()).c_str(), (long long)(std::intptr_t)index,
                    simulator::site_name({place->file, place->line}).c_str());
}
