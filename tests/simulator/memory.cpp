// Device memory, pinned host memory, copies and fills.
//
// A device's allocation is host memory, filled with 0xff, whose end meets an unmapped page as far as
// an alignment of 256 bytes allows; what lies between is checked after each kernel. Freed addresses
// are never given out again.
//
// Pageable host memory is read when a copy is called and written before it returns, as the driver
// documents; pinned memory is read and written when the copy runs.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "log.h"
#include "shared_use.h"
#include "state.h"
#include "wrong.h"

namespace simulator {

constexpr std::size_t PAGE_BYTES = 4096, ALIGNMENT = 256;
// So much of an allocation is filled, since a filled page takes real memory.
constexpr std::size_t FILLED_BYTES_MAX = 64 << 20;

static std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

bool charge(Device& device) {
    const Configuration& all = configuration();
    std::size_t needed = device.large_bytes + round_up(device.small_bytes, all.granularity_bytes);
    if (device.retained != 0) needed += all.context_bytes + device.module_count * all.module_bytes;
    const std::size_t limit =
        device.facts->memory_bytes - std::min(device.facts->used_bytes, device.facts->memory_bytes);
    if (!add_use(device.position, (long long)needed - (long long)device.charged_bytes, limit)) return false;
    device.charged_bytes = needed;
    return true;
}

std::size_t free_bytes(Device& device) {
    const std::size_t used = device.facts->used_bytes + total_use(device.position);
    return device.facts->memory_bytes - std::min(used, device.facts->memory_bytes);
}

// Where the bytes are counted, and as how many.
static std::size_t& account(Device& device, std::size_t bytes, std::size_t& counted) {
    const std::size_t granularity = configuration().granularity_bytes;
    const bool large = bytes >= granularity;
    counted = round_up(bytes, large ? granularity : 512);
    return large ? device.large_bytes : device.small_bytes;
}

static bool take(Device& device, std::size_t bytes) {
    std::size_t counted;
    std::size_t& sum = account(device, bytes, counted);
    sum += counted;
    if (charge(device)) return true;
    sum -= counted;
    return false;
}

static void give_back(const Allocation& allocation) {
    std::size_t counted;
    account(*allocation.device, allocation.bytes, counted) -= counted;
    charge(*allocation.device);
    // The addresses stay taken, and no longer readable.
    if (mmap(allocation.mapped, allocation.mapped_bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
        std::abort();
    }
}

template <typename Map>
static auto range_at(Map& map, std::uintptr_t address) {
    auto after = map.upper_bound(address);
    return after == map.begin() ? map.end() : std::prev(after);
}

Device* owner(std::uintptr_t address, std::size_t bytes) {
    const auto found = range_at(state().allocations, address);
    if (found == state().allocations.end()) return nullptr;
    const std::size_t offset = address - found->first;
    return offset < found->second.bytes && bytes <= found->second.bytes - offset ? found->second.device : nullptr;
}

bool is_pinned(std::uintptr_t address, std::size_t bytes) {
    const auto found = range_at(state().pinned, address);
    if (found == state().pinned.end()) return false;
    const std::size_t offset = address - found->first;
    if (offset >= found->second) return false;
    if (bytes > found->second - offset) throw Failure{INVALID_VALUE, "a range that leaves pinned memory"};
    return true;
}

bool slack_is_intact(Device& device, std::string& reason) {
    for (const auto& [address, allocation] : state().allocations) {
        if (allocation.device != &device) continue;
        const auto* end = reinterpret_cast<const unsigned char*>(address + allocation.bytes);
        if (std::all_of(end, end + allocation.slack_bytes, [](unsigned char byte) { return byte == SLACK; })) continue;
        std::memset(const_cast<unsigned char*>(end), SLACK, allocation.slack_bytes);
        char text[128];
        std::snprintf(text, sizeof text, "something was written behind the end of the allocation of %zu bytes at %#zx",
                      allocation.bytes, address);
        reason = text;
        return false;
    }
    return true;
}

void free_all(Device& device) {
    auto& allocations = state().allocations;
    for (auto at = allocations.begin(); at != allocations.end();) {
        if (at->second.device != &device) {
            ++at;
            continue;
        }
        if (log_wanted())
            log_line("leak device=" + std::to_string(device.position) + " bytes=" + std::to_string(at->second.bytes));
        give_back(at->second);
        at = allocations.erase(at);
    }
}

// ---- copies

// One side of a copy: rows within slices.
struct Side {
    unsigned char* start;
    std::size_t row_bytes, slice_bytes;  // from one to the next
    Device* device;                      // null: the host
    bool pinned;
};

struct Extent {
    std::size_t width_bytes, rows, slices;
    std::size_t span(const Side& side) const {
        return (slices - 1) * side.slice_bytes + (rows - 1) * side.row_bytes + width_bytes;
    }
};

static Side device_side(std::uintptr_t address, std::size_t row_bytes, std::size_t slice_bytes, const Extent& extent) {
    Side side{reinterpret_cast<unsigned char*>(address), row_bytes, slice_bytes, nullptr, true};
    side.device = owner(address, extent.span(side));
    if (side.device == nullptr) throw Failure{INVALID_VALUE, "addresses that are not of one live allocation"};
    return side;
}

static Side host_side(const void* address, std::size_t row_bytes, std::size_t slice_bytes, const Extent& extent) {
    if (address == nullptr) throw Failure{INVALID_VALUE, "a null host address"};
    Side side{static_cast<unsigned char*>(const_cast<void*>(address)), row_bytes, slice_bytes, nullptr, false};
    const auto start = reinterpret_cast<std::uintptr_t>(address);
    if (owner(start, 1) != nullptr) throw Failure{INVALID_VALUE, "device memory given as the host's"};
    side.pinned = is_pinned(start, extent.span(side));
    return side;
}

static void copy(const Side& to, const Side& from, const Extent& extent) {
    for (std::size_t slice = 0; slice < extent.slices; slice++) {
        for (std::size_t row = 0; row < extent.rows; row++) {
            std::memcpy(to.start + slice * to.slice_bytes + row * to.row_bytes,
                        from.start + slice * from.slice_bytes + row * from.row_bytes, extent.width_bytes);
        }
    }
}

static std::string hexadecimal(const void* address) {
    char text[32];
    std::snprintf(text, sizeof text, "%p", address);
    return text;
}

static unsigned enqueue_copy(Call& call, void* handle, Side to, Side from, Extent extent) {
    Stream& stream = stream_of(handle);
    const std::size_t bytes = extent.width_bytes * extent.rows * extent.slices;
    const std::string direction = std::string(from.device   ? "d" + std::to_string(from.device->position)
                                              : from.pinned ? "pinned"
                                                            : "pageable") +
                                  ">" +
                                  (to.device   ? "d" + std::to_string(to.device->position)
                                   : to.pinned ? "pinned"
                                               : "pageable");
    call.say("stream", stream.number);
    call.say("bytes", bytes);
    call.say("way", direction);
    call.say("to", hexadecimal(to.start));
    call.say("from", hexadecimal(from.start));
    Task task;
    task.what = "copy way=" + direction + " bytes=" + std::to_string(bytes) + " to=" + hexadecimal(to.start) +
                " from=" + hexadecimal(from.start);
    task.counts = true;
    std::shared_ptr<unsigned char[]> staged;
    if (!from.pinned) {
        staged = std::shared_ptr<unsigned char[]>(new unsigned char[bytes]);
        const Side stage{staged.get(), extent.width_bytes, extent.width_bytes * extent.rows, nullptr, true};
        copy(stage, from, extent);
        from = stage;
    }
    const bool wait = !to.pinned;
    const bool wrong = to.device != nullptr && is_wrong(call.name);
    task.run = [to, from, extent, staged, wrong]() -> unsigned {
        const auto run = [&]() -> unsigned {
            copy(to, from, extent);
            return SUCCESS;
        };
        return wrong ? store_wrong(*to.device, run) : run();
    };
    Device& device = *stream.device;
    if (wait) {
        task.moment = std::make_shared<Moment>();
        task.reaches = true;
    }
    const std::shared_ptr<Moment> moment = task.moment;
    enqueue(stream, std::move(task));
    if (!wait) return SUCCESS;
    state().done.wait(call.held, [&] { return moment->reached; });
    return device.error;
}

static Device& context_device(void* context) {
    for (const auto& device : state().devices) {
        if (device.get() == context && device->retained != 0) return *device;
    }
    throw Failure{INVALID_CONTEXT, "no context of this driver"};
}

// The layouts of CUDA_MEMCPY2D and CUDA_MEMCPY3D_PEER in cuda.h.
enum MemoryType : unsigned { HOST = 1, DEVICE = 2, UNIFIED = 4 };

struct Side2D {
    std::size_t x_bytes, y;
    unsigned type;
    const void* host;
    std::uintptr_t device;
    void* array;
    std::size_t pitch;
};

struct Copy2D {
    Side2D from, to;
    std::size_t width_bytes, height;
};

struct Side3D {
    std::size_t x_bytes, y, z, level;
    unsigned type;
    const void* host;
    std::uintptr_t device;
    void* array;
    void* context;
    std::size_t pitch, height;
};

struct Copy3D {
    Side3D from, to;
    std::size_t width_bytes, height, depth;
};

static Side side_of(unsigned type, const void* host, std::uintptr_t device, std::size_t offset, std::size_t pitch,
                    std::size_t slice, const Extent& extent, bool fits) {
    if (!fits) throw Failure{INVALID_VALUE, "a pitch that is smaller than a row"};
    if (type == UNIFIED && owner(device, 1) == nullptr)
        return host_side(reinterpret_cast<const void*>(device + offset), pitch, slice, extent);
    if (type == DEVICE || type == UNIFIED) return device_side(device + offset, pitch, slice, extent);
    if (type == HOST) return host_side(static_cast<const char*>(host) + offset, pitch, slice, extent);
    throw Failure{INVALID_VALUE, "a kind of memory that is not simulated"};
}

// What real GPUs answer for CU_DEVICE_ATTRIBUTE_MAX_PITCH. Of one row a copy has no need of it, and is refused too.
constexpr std::size_t MAX_PITCH = (std::size_t(1) << 31) - 1;

static void check_pitch(std::size_t pitch) {
    if (pitch > MAX_PITCH) throw Failure{INVALID_VALUE, "a pitch of " + std::to_string(pitch) + " bytes"};
}

static Side side_2d(const Side2D& side, const Extent& extent) {
    check_pitch(side.pitch);
    const bool fits = extent.rows == 1 || side.pitch >= side.x_bytes + extent.width_bytes;
    return side_of(side.type, side.host, side.device, side.y * side.pitch + side.x_bytes, side.pitch, 0, extent, fits);
}

static Side side_3d(const Side3D& side, const Extent& extent) {
    check_pitch(side.pitch);
    const bool fits = (extent.rows == 1 || side.pitch >= side.x_bytes + extent.width_bytes) &&
                      (extent.slices == 1 || side.height >= side.y + extent.rows);
    const std::size_t slice = side.pitch * side.height;
    const Side found = side_of(side.type, side.host, side.device, side.z * slice + side.y * side.pitch + side.x_bytes,
                               side.pitch, slice, extent, fits);
    if (found.device != nullptr && found.device != &context_device(side.context))
        throw Failure{INVALID_VALUE, "addresses of another context's device"};
    return found;
}

}  // namespace simulator

using namespace simulator;

EXPORT cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    return call("cuMemGetInfo_v2", Needs::context, [&](Call& call) -> unsigned {
        Device& device = call.device();
        if (free != nullptr) *free = free_bytes(device);
        if (total != nullptr) *total = device.facts->memory_bytes;
        return SUCCESS;
    });
}

EXPORT cuMemAlloc_v2(std::uintptr_t* address, std::size_t bytes) {
    return call("cuMemAlloc_v2", Needs::context, [&](Call& call) -> unsigned {
        Device& device = call.device();
        call.say("bytes", bytes);
        if (address == nullptr || bytes == 0) return INVALID_VALUE;
        if (bytes > device.facts->memory_bytes || !take(device, bytes)) return OUT_OF_MEMORY;
        const std::size_t rounded = round_up(bytes, ALIGNMENT), pages = round_up(rounded, PAGE_BYTES);
        void* memory = mmap(nullptr, pages + 2 * PAGE_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) throw Failure{OUT_OF_MEMORY, "the host has no address space left"};
        auto* mapped = static_cast<unsigned char*>(memory);
        mprotect(mapped, PAGE_BYTES, PROT_NONE);
        mprotect(mapped + PAGE_BYTES + pages, PAGE_BYTES, PROT_NONE);
        unsigned char* start = mapped + PAGE_BYTES + pages - rounded;
        std::memset(start, 0xff, std::min(bytes, FILLED_BYTES_MAX));
        std::memset(start + bytes, SLACK, rounded - bytes);
        *address = reinterpret_cast<std::uintptr_t>(start);
        state().allocations[*address] = {&device, bytes, mapped, pages + 2 * PAGE_BYTES, rounded - bytes};
        call.say("address", hexadecimal(start));
        return SUCCESS;
    });
}

EXPORT cuMemFree_v2(std::uintptr_t address) {
    return call("cuMemFree_v2", Needs::context, [&](Call& call) -> unsigned {
        call.say("address", hexadecimal(reinterpret_cast<void*>(address)));
        if (address == 0) return SUCCESS;
        const auto found = state().allocations.find(address);
        if (found == state().allocations.end()) throw Failure{INVALID_VALUE, "no allocation begins there"};
        Device& device = *found->second.device;
        // Freeing waits for what the device does.
        wait_idle(call, device);
        std::string reason;
        const bool intact = slack_is_intact(device, reason);
        call.say("bytes", found->second.bytes);
        give_back(found->second);
        state().allocations.erase(found);
        if (!intact) throw Failure{device.error = ILLEGAL_ADDRESS, reason};
        return device.error;
    });
}

static unsigned allocate_host(const char* name, void** address, std::size_t bytes, unsigned flags) {
    return call(name, Needs::context, [&](Call& call) -> unsigned {
        constexpr unsigned FLAGS = 7;  // portable, mapped, write-combined
        call.say("bytes", bytes);
        if (address == nullptr || bytes == 0 || (flags & ~FLAGS) != 0) return INVALID_VALUE;
        void* memory =
            mmap(nullptr, round_up(bytes, PAGE_BYTES), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return OUT_OF_MEMORY;
        std::memset(memory, 0xff, std::min(bytes, FILLED_BYTES_MAX));
        state().pinned[reinterpret_cast<std::uintptr_t>(memory)] = bytes;
        state().own_pinned[reinterpret_cast<std::uintptr_t>(memory)] = bytes;
        *address = memory;
        call.say("address", hexadecimal(memory));
        return SUCCESS;
    });
}

EXPORT cuMemAllocHost_v2(void** address, std::size_t bytes) {
    return allocate_host("cuMemAllocHost_v2", address, bytes, 0);
}

EXPORT cuMemHostAlloc(void** address, std::size_t bytes, unsigned flags) {
    return allocate_host("cuMemHostAlloc", address, bytes, flags);
}

static void wait_for_all(Call& call) {
    for (const auto& device : state().devices) wait_idle(call, *device);
}

EXPORT cuMemFreeHost(void* memory) {
    return call("cuMemFreeHost", Needs::context, [&](Call& call) -> unsigned {
        call.say("address", hexadecimal(memory));
        const auto found = state().own_pinned.find(reinterpret_cast<std::uintptr_t>(memory));
        if (found == state().own_pinned.end()) return INVALID_VALUE;
        wait_for_all(call);
        call.say("bytes", found->second);
        munmap(memory, round_up(found->second, PAGE_BYTES));
        state().pinned.erase(found->first);
        state().own_pinned.erase(found);
        return SUCCESS;
    });
}

EXPORT cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags) {
    return call("cuMemHostRegister_v2", Needs::context, [&](Call& call) -> unsigned {
        constexpr unsigned FLAGS = 1 | 2 | 4 | 8;  // portable, mapped, of a device, read only
        call.say("address", hexadecimal(memory));
        call.say("bytes", bytes);
        if (memory == nullptr || bytes == 0 || (flags & ~FLAGS) != 0) return INVALID_VALUE;
        const auto start = reinterpret_cast<std::uintptr_t>(memory);
        for (const auto& [other, length] : state().pinned) {
            if (start < other + length && other < start + bytes) return HOST_MEMORY_ALREADY_REGISTERED;
        }
        state().pinned[start] = bytes;
        return SUCCESS;
    });
}

EXPORT cuMemHostUnregister(void* memory) {
    return call("cuMemHostUnregister", Needs::context, [&](Call& call) -> unsigned {
        call.say("address", hexadecimal(memory));
        const auto start = reinterpret_cast<std::uintptr_t>(memory);
        if (state().own_pinned.count(start) != 0) return INVALID_VALUE;
        if (state().pinned.count(start) == 0) return HOST_MEMORY_NOT_REGISTERED;
        wait_for_all(call);
        state().pinned.erase(start);
        return SUCCESS;
    });
}

EXPORT cuMemcpyHtoDAsync_v2(std::uintptr_t to, const void* from, std::size_t bytes, void* stream) {
    return call("cuMemcpyHtoDAsync_v2", Needs::context, [&](Call& call) -> unsigned {
        if (bytes == 0) return SUCCESS;
        const Extent extent{bytes, 1, 1};
        return enqueue_copy(call, stream, device_side(to, 0, 0, extent), host_side(from, 0, 0, extent), extent);
    });
}

EXPORT cuMemcpyDtoHAsync_v2(void* to, std::uintptr_t from, std::size_t bytes, void* stream) {
    return call("cuMemcpyDtoHAsync_v2", Needs::context, [&](Call& call) -> unsigned {
        if (bytes == 0) return SUCCESS;
        const Extent extent{bytes, 1, 1};
        return enqueue_copy(call, stream, host_side(to, 0, 0, extent), device_side(from, 0, 0, extent), extent);
    });
}

EXPORT cuMemcpyDtoDAsync_v2(std::uintptr_t to, std::uintptr_t from, std::size_t bytes, void* stream) {
    return call("cuMemcpyDtoDAsync_v2", Needs::context, [&](Call& call) -> unsigned {
        if (bytes == 0) return SUCCESS;
        const Extent extent{bytes, 1, 1};
        const Side target = device_side(to, 0, 0, extent), source = device_side(from, 0, 0, extent);
        if (target.device != source.device) throw Failure{INVALID_VALUE, "a copy within a device, of two devices"};
        return enqueue_copy(call, stream, target, source, extent);
    });
}

EXPORT cuMemcpyPeerAsync(std::uintptr_t to, void* to_context, std::uintptr_t from, void* from_context,
                         std::size_t bytes, void* stream) {
    return call("cuMemcpyPeerAsync", Needs::context, [&](Call& call) -> unsigned {
        if (bytes == 0) return SUCCESS;
        const Extent extent{bytes, 1, 1};
        const Side target = device_side(to, 0, 0, extent), source = device_side(from, 0, 0, extent);
        if (target.device != &context_device(to_context) || source.device != &context_device(from_context)) {
            throw Failure{INVALID_VALUE, "addresses of another context's device"};
        }
        return enqueue_copy(call, stream, target, source, extent);
    });
}

EXPORT cuMemcpy2DAsync_v2(const Copy2D* copy, void* stream) {
    return call("cuMemcpy2DAsync_v2", Needs::context, [&](Call& call) -> unsigned {
        if (copy == nullptr) return INVALID_VALUE;
        const Extent extent{copy->width_bytes, copy->height, 1};
        if (extent.width_bytes * extent.rows == 0) return SUCCESS;
        return enqueue_copy(call, stream, side_2d(copy->to, extent), side_2d(copy->from, extent), extent);
    });
}

EXPORT cuMemcpy3DPeerAsync(const Copy3D* copy, void* stream) {
    return call("cuMemcpy3DPeerAsync", Needs::context, [&](Call& call) -> unsigned {
        if (copy == nullptr) return INVALID_VALUE;
        const Extent extent{copy->width_bytes, copy->height, copy->depth};
        if (extent.width_bytes * extent.rows * extent.slices == 0) return SUCCESS;
        return enqueue_copy(call, stream, side_3d(copy->to, extent), side_3d(copy->from, extent), extent);
    });
}

EXPORT cuMemsetD8Async(std::uintptr_t address, unsigned char value, std::size_t bytes, void* handle) {
    return call("cuMemsetD8Async", Needs::context, [&](Call& call) -> unsigned {
        if (bytes == 0) return SUCCESS;
        const Side to = device_side(address, 0, 0, {bytes, 1, 1});
        Stream& stream = stream_of(handle);
        call.say("stream", stream.number);
        call.say("bytes", bytes);
        Task task;
        task.what = "fill bytes=" + std::to_string(bytes) + " to=" + hexadecimal(to.start);
        task.counts = true;
        task.run = [to, value, bytes]() -> unsigned {
            std::memset(to.start, value, bytes);
            return SUCCESS;
        };
        enqueue(stream, std::move(task));
        return SUCCESS;
    });
}

EXPORT cuMemsetD8_v2(std::uintptr_t address, unsigned char value, std::size_t bytes) {
    return call("cuMemsetD8_v2", Needs::context, [&](Call& call) -> unsigned {
        if (bytes == 0) return SUCCESS;
        const Side to = device_side(address, 0, 0, {bytes, 1, 1});
        call.say("bytes", bytes);
        // On the default stream, which waits for the others.
        wait_idle(call, *to.device);
        std::memset(to.start, value, bytes);
        return to.device->error;
    });
}
