// Running a grid: stacks, shared memory, the order of blocks, and faults of a kernel's own accesses.
//
// Static shared memory: which of the library's thread_local variables are a kernel's `__shared__`
// ones no compiler tells, so a kernel's first and second launch fill all of them before a block, and
// those that changed are the kernel's. From then on only these are filled.
#include "launch.h"

#include <elf.h>
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runner.h"

// Where this thread's thread_local variables stand: the others are found from its own offset.
extern "C" __attribute__((visibility("hidden"))) thread_local unsigned char simulator_anchor;
thread_local unsigned char simulator_anchor = 1;

namespace simulator {

struct Variable {
    std::size_t offset, bytes;
};

// The `__shared__` variables of all kernels, by the symbols of this library's file.
struct SharedVariables {
    std::vector<Variable> all;
    std::size_t anchor = 0, start = SIZE_MAX, end = 0;

    SharedVariables() {
        Dl_info info;
        if (dladdr(reinterpret_cast<void*>(&fibre_main), &info) == 0) std::abort();
        std::FILE* file = std::fopen(info.dli_fname, "rb");
        if (file == nullptr) std::abort();
        std::vector<unsigned char> bytes;
        std::fseek(file, 0, SEEK_END);
        bytes.resize(std::size_t(std::ftell(file)));
        std::rewind(file);
        if (std::fread(bytes.data(), 1, bytes.size(), file) != bytes.size()) std::abort();
        std::fclose(file);
        const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(bytes.data());
        const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(bytes.data() + header->e_shoff);
        for (unsigned i = 0; i < header->e_shnum; i++) {
            if (sections[i].sh_type == SHT_SYMTAB) read(bytes.data(), sections[i], sections[sections[i].sh_link]);
        }
    }

    void read(const unsigned char* bytes, const ElfW(Shdr) & table, const ElfW(Shdr) & strings) {
        const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(bytes + table.sh_offset);
        for (std::size_t i = 0; i < table.sh_size / sizeof *symbols; i++) {
            if (ELF64_ST_TYPE(symbols[i].st_info) != STT_TLS) continue;
            const char* name = reinterpret_cast<const char*>(bytes + strings.sh_offset) + symbols[i].st_name;
            if (std::strcmp(name, "simulator_anchor") == 0) anchor = symbols[i].st_value;
            // Variables within functions; the simulator's own stand outside.
            if (std::strncmp(name, "_ZZ", 3) != 0) continue;
            all.push_back({symbols[i].st_value, symbols[i].st_size});
            start = std::min(start, symbols[i].st_value);
            end = std::max(end, symbols[i].st_value + symbols[i].st_size);
        }
    }

    unsigned char* base() const { return &simulator_anchor - anchor; }
};

static const SharedVariables& shared_variables() {
    static const SharedVariables& variables = *new SharedVariables;
    return variables;
}

bool in_shared_memory(const Block& block, const void* address, std::size_t bytes) {
    const auto* at = static_cast<const unsigned char*>(address);
    if (at >= block.dynamic_shared && at + bytes <= block.dynamic_shared + block.dynamic_bytes) return true;
    const SharedVariables& variables = shared_variables();
    const unsigned char* base = variables.base();
    return !variables.all.empty() && at >= base + variables.start && at + bytes <= base + variables.end;
}

// ---- entry points

struct Known {
    Entry entry;
    std::mutex mutex;
    unsigned launches_seen = 0;
    std::vector<Variable> shared;
};

constexpr unsigned LAUNCHES_TO_LEARN = 2;

static std::map<std::string, std::unique_ptr<Known>>& known() {
    static auto& known = *new std::map<std::string, std::unique_ptr<Known>>;
    return known;
}

Register::Register(Entry entry) {
    auto& place = known()[entry.name];
    if (place != nullptr) {
        std::fprintf(stderr, "simulator: two kernels are named %s\n", entry.name);
        std::abort();
    }
    place = std::make_unique<Known>();
    place->entry = entry;
}

const Entry* find_entry(const std::string& name) {
    const auto found = known().find(name);
    return found == known().end() ? nullptr : &found->second->entry;
}

static std::size_t bytes_of(const std::vector<Variable>& variables) {
    std::size_t bytes = 0;
    for (const Variable& variable : variables) bytes += variable.bytes;
    return bytes;
}

std::size_t static_shared_bytes(const Entry& entry) {
    Known& kernel = *known().at(entry.name);
    const std::lock_guard lock(kernel.mutex);
    return bytes_of(kernel.shared);
}

static void fill(const std::vector<Variable>& variables) {
    unsigned char* base = shared_variables().base();
    for (const Variable& variable : variables) std::memset(base + variable.offset, 0xff, variable.bytes);
}

// Adds the variables that are no longer as `fill` left them.
static void learn(Known& kernel) {
    const unsigned char* base = shared_variables().base();
    const std::lock_guard lock(kernel.mutex);
    for (const Variable& variable : shared_variables().all) {
        const unsigned char* bytes = base + variable.offset;
        if (std::all_of(bytes, bytes + variable.bytes, [](unsigned char byte) { return byte == 0xff; })) continue;
        const auto same = [&](const Variable& other) { return other.offset == variable.offset; };
        if (std::none_of(kernel.shared.begin(), kernel.shared.end(), same)) kernel.shared.push_back(variable);
    }
}

// ---- stacks

constexpr std::size_t PAGE_BYTES = 4096;

static unsigned char* reserve(std::size_t bytes, std::size_t alignment) {
    void* memory =
        mmap(nullptr, bytes + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    return reinterpret_cast<unsigned char*>((address + alignment - 1) / alignment * alignment);
}

Runner::Runner() {
    stacks = reserve(BLOCK_THREADS_MAX * STACK_BYTES, STACK_BYTES);
    const std::size_t bytes = (SHARED_BYTES_ASKED_MAX * 2 + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    unsigned char* memory = reserve(bytes + PAGE_BYTES, PAGE_BYTES);
    mprotect(memory + bytes, PAGE_BYTES, PROT_NONE);
    shared = memory + bytes;
}

void Runner::prepare(unsigned count) {
    const dim3 size = block.threads;
    const unsigned sound = broken ? 0 : fibres;
    for (unsigned i = 0; i < count; i++) {
        unsigned char* stack = stacks + i * STACK_BYTES;
        auto* fibre = reinterpret_cast<Fibre*>(fibre_address(reinterpret_cast<std::uintptr_t>(stack)));
        if (i >= fibres) {
            new (fibre) Fibre{};
            // A stack that grows to this page has no room left.
            mprotect(stack, PAGE_BYTES, PROT_NONE);
        }
        if (i >= sound) {
            fibre->copies.clear();
            fibre->copy_group = 0;
            make_context(*fibre, fibre_main);
        }
        Warp& warp = block.warps[i / LANES];
        fibre->block = &block;
        fibre->warp = &warp;
        fibre->lane = i % LANES;
        fibre->state = State::running;
        fibre->thread = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
        warp.index = i / LANES;
        warp.fibres[i % LANES] = fibre;
    }
    // Of a broken grid's fibres only those made anew are sound.
    fibres = broken ? count : std::max(fibres, count);
    broken = false;
}

// Runners that no thread uses now. Like all else here it outlives the end of the process, in which
// streams may still run.
static std::mutex idle_mutex;
static std::vector<Runner*>& idle = *new std::vector<Runner*>;

static Runner& take_runner() {
    const std::lock_guard lock(idle_mutex);
    if (idle.empty()) return *new Runner;
    Runner* runner = idle.back();
    idle.pop_back();
    return *runner;
}

static void put_back(Runner& runner) {
    const std::lock_guard lock(idle_mutex);
    idle.push_back(&runner);
}

// ---- faults

static struct sigaction before[NSIG];

static void on_fault(int signal, siginfo_t* info, void* context) {
    if (running != nullptr) {
        const uint3 b = running->block.index;
        const unsigned code = signal == SIGILL   ? ILLEGAL_INSTRUCTION
                              : signal == SIGFPE ? LAUNCH_FAILED
                                                 : ILLEGAL_ADDRESS;
        fail(code, "block (%u, %u, %u): %s, address %p", b.x, b.y, b.z, strsignal(signal), info->si_addr);
    }
    // Not a kernel's: as if this handler were not there.
    const struct sigaction& other = before[signal];
    if ((other.sa_flags & SA_SIGINFO) != 0) {
        other.sa_sigaction(signal, info, context);
    } else if (other.sa_handler != SIG_DFL && other.sa_handler != SIG_IGN) {
        other.sa_handler(signal);
    } else {
        sigaction(signal, &other, nullptr);
    }
}

// A stack for the handler, since a fibre's may be what overflowed.
struct HandlerStack {
    unsigned char* memory;
    HandlerStack() {
        static std::once_flag once;
        std::call_once(once, [] {
            struct sigaction action = {};
            action.sa_sigaction = on_fault;
            action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
            for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(signal, &action, &before[signal]);
        });
        memory = new unsigned char[STACK_BYTES];
        stack_t stack = {};
        stack.ss_sp = memory;
        stack.ss_size = STACK_BYTES;
        sigaltstack(&stack, nullptr);
    }
    ~HandlerStack() {
        stack_t none = {};
        none.ss_flags = SS_DISABLE;
        sigaltstack(&none, nullptr);
        delete[] memory;
    }
};

static thread_local std::unique_ptr<HandlerStack> handler_stack;

// ---- grids

Outcome refusal(const Launch& launch) {
    const Entry& entry = *launch.entry;
    const std::size_t threads = std::size_t(launch.block.x) * launch.block.y * launch.block.z;
    const std::size_t blocks = std::size_t(launch.grid.x) * launch.grid.y * launch.grid.z;
    constexpr unsigned INVALID_VALUE = 1;
    if (threads == 0 || blocks == 0) return {INVALID_VALUE, "an empty grid or block"};
    if (threads > BLOCK_THREADS_MAX || launch.block.z > 64) return {INVALID_VALUE, "a block of more than 1024 threads"};
    if (launch.grid.x > 0x7fffffff || launch.grid.y > 65535 || launch.grid.z > 65535)
        return {INVALID_VALUE, "a grid that is too large"};
    if (threads > entry.threads_max) {
        return {LAUNCH_OUT_OF_RESOURCES,
                "a block of " + std::to_string(threads) + " threads, beyond its launch bounds"};
    }
    const std::size_t shared = launch.dynamic_bytes + static_shared_bytes(entry);
    const std::size_t shared_max = launch.dynamic_max > SHARED_BYTES_MAX ? SHARED_BYTES_ASKED_MAX : SHARED_BYTES_MAX;
    if (shared > shared_max || launch.dynamic_bytes > launch.dynamic_max)
        return {INVALID_VALUE, std::to_string(shared) + " bytes of shared memory"};
    return {};
}

Outcome run(const Launch& launch) {
    if (Outcome refused = refusal(launch); refused.code != 0) return refused;
    if (handler_stack == nullptr) handler_stack = std::make_unique<HandlerStack>();
    Known& kernel = *known().at(launch.entry->name);
    std::vector<Variable> to_fill;
    bool learning;
    {
        const std::lock_guard lock(kernel.mutex);
        learning = kernel.launches_seen < LAUNCHES_TO_LEARN;
        kernel.launches_seen += learning;
        to_fill = learning ? shared_variables().all : kernel.shared;
    }
    Runner& runner = take_runner();
    Block& block = runner.block;
    block.threads = launch.block;
    block.grid = launch.grid;
    block.thread_count = launch.block.x * launch.block.y * launch.block.z;
    block.random = launch.seed;
    block.dynamic_bytes = launch.dynamic_bytes;
    block.dynamic_shared = runner.shared - (launch.dynamic_bytes + 15) / 16 * 16;
    runner.entry = launch.entry;
    runner.argument = launch.argument;
    runner.outcome = {};
    runner.prepare(block.thread_count);
    running = &runner;
    const unsigned long long blocks = 1ull * launch.grid.x * launch.grid.y * launch.grid.z;
    for (unsigned long long i = 0; i < blocks && runner.outcome.code == 0; i++) {
        // Any order of the blocks must do: a shuffled launch runs them backwards or as they are.
        const unsigned long long at = launch.seed & 1 ? blocks - 1 - i : i;
        block.index = {unsigned(at % launch.grid.x), unsigned(at / launch.grid.x % launch.grid.y),
                       unsigned(at / launch.grid.x / launch.grid.y)};
        fill(to_fill);
        std::memset(block.dynamic_shared, 0xff, std::size_t(runner.shared - block.dynamic_shared));
        start_block(runner);
        if (learning && (i == 0 || i + 1 == blocks)) {
            learn(kernel);
            if (i == 0) {
                const std::lock_guard lock(kernel.mutex);
                to_fill = kernel.shared;
            }
            if (i + 2 == blocks) to_fill = shared_variables().all;
        }
    }
    running = nullptr;
    Outcome outcome = runner.outcome;
    put_back(runner);
    if (outcome.code == 0 && learning) return refusal(launch);
    return outcome;
}

}  // namespace simulator
