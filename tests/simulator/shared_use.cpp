// See `shared_use.h`.
#include "shared_use.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "configuration.h"

namespace simulator {

constexpr unsigned PROCESSES_MAX = 256, DEVICES_MAX = 16;

struct Slot {
    int process;  // 0: free
    unsigned long long bytes[DEVICES_MAX];
};

static int file = -1;
static Slot* slots = nullptr;

static Slot* map_slots() {
    constexpr std::size_t BYTES = PROCESSES_MAX * sizeof(Slot);
    const std::string& folder = configuration().folder;
    int flags = MAP_SHARED | MAP_ANONYMOUS;
    if (!folder.empty()) {
        file = open((folder + "/simulated-memory").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (file < 0 || ftruncate(file, BYTES) != 0) {
            std::perror("BERTH_SIMULATOR: folder");
            std::abort();
        }
        flags = MAP_SHARED;
    }
    void* memory = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, flags, file, 0);
    if (memory == MAP_FAILED) std::abort();
    return static_cast<Slot*>(memory);
}

// One process at a time, and one thread of it.
struct Turn {
    static inline std::mutex mutex;
    std::lock_guard<std::mutex> guard{mutex};
    Turn() {
        if (slots == nullptr) slots = map_slots();
        if (file >= 0) flock(file, LOCK_EX);
    }
    ~Turn() {
        if (file >= 0) flock(file, LOCK_UN);
    }
};

static bool alive(int process) { return process != 0 && (kill(process, 0) == 0 || errno == EPERM); }

static std::size_t total(unsigned device) {
    std::size_t bytes = 0;
    for (unsigned i = 0; i < PROCESSES_MAX; i++) {
        if (slots[i].bytes[device] != 0 && alive(slots[i].process)) bytes += slots[i].bytes[device];
    }
    return bytes;
}

static Slot& own() {
    const int process = getpid();
    for (unsigned i = 0; i < PROCESSES_MAX; i++) {
        if (slots[i].process == process) return slots[i];
    }
    for (unsigned i = 0; i < PROCESSES_MAX; i++) {
        if (alive(slots[i].process)) continue;
        slots[i] = {};
        slots[i].process = process;
        return slots[i];
    }
    std::abort();
}

bool add_use(unsigned device, long long bytes, std::size_t limit_bytes) {
    const Turn turn;
    if (bytes > 0 && total(device) + std::size_t(bytes) > limit_bytes) return false;
    own().bytes[device] += (unsigned long long)bytes;
    return true;
}

std::size_t total_use(unsigned device) {
    const Turn turn;
    return total(device);
}

std::vector<std::pair<int, std::size_t>> uses(unsigned device) {
    const Turn turn;
    std::vector<std::pair<int, std::size_t>> found;
    for (unsigned i = 0; i < PROCESSES_MAX; i++) {
        if (slots[i].bytes[device] != 0 && alive(slots[i].process))
            found.push_back({slots[i].process, slots[i].bytes[device]});
    }
    return found;
}

}  // namespace simulator
