// The simulated driver's state: devices, streams, events, modules and allocations, behind one lock.
//
// Not here: the exported functions (`driver.cpp`, `memory.cpp`, `queues.cpp`, `modules.cpp`).
//
// Invariants: everything is read and written under `lock()`; only an operation of a stream runs
// without it. A device with an error answers every call with it, and its streams do nothing more
// except to complete their events, so that nobody waits for ever.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "configuration.h"
#include "launch.h"

namespace simulator {

// CUresult, by the numbers of cuda.h.
enum Result : unsigned {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    CONTEXT_IS_DESTROYED = 709,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    ILLEGAL_INSTRUCTION = 715,
    MISALIGNED_ADDRESS = 716,
    LAUNCH_FAILED = 719,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    UNKNOWN = 999,
};

struct Device;

// A moment that an event was recorded to mark.
struct Moment {
    bool reached = false;
    std::chrono::steady_clock::time_point when;
};

struct Event {
    unsigned number;
    Device* device;
    bool timing;
    std::shared_ptr<Moment> latest;  // null: never recorded
};

struct Task {
    std::string what;  // for the log
    // Runs without the lock, except when `moment` is set: that is waited for, or reached.
    std::function<unsigned()> run;
    std::shared_ptr<Moment> moment;
    bool reaches = false;
    bool counts = false;  // copies, fills and launches, for `lost`
};

struct Stream {
    unsigned number;
    Device* device;
    std::deque<Task> queue;
    bool busy = false, closing = false;
    std::uint64_t random;
    std::condition_variable changed;

    bool idle() const { return queue.empty() && !busy; }
};

struct Function;

struct Module {
    Device* device;
    std::string ptx;  // empty: its kernels are not known by its text
    std::map<std::string, std::unique_ptr<Function>> functions;
};

struct Function {
    Module* module;
    const Entry* entry;
    std::map<int, int> attributes;
};

struct Allocation {
    Device* device;
    std::size_t bytes;
    unsigned char* mapped;
    std::size_t mapped_bytes;
    std::size_t slack_bytes;  // between the end and the unmapped page, filled with SLACK
};

constexpr unsigned char SLACK = 0xa5;

// A primary context is its device.
struct Device {
    unsigned position;  // by the PCI bus
    const DeviceConfiguration* facts;
    unsigned retained = 0;
    unsigned error = 0;
    unsigned long operations = 0;
    std::size_t small_bytes = 0, large_bytes = 0, module_count = 0;  // in use
    std::size_t charged_bytes = 0;                                   // of the shared use
    std::set<Device*> reaches;                                       // enabled peers
    std::set<Stream*> streams;
};

struct State {
    bool initialised = false;
    std::vector<std::unique_ptr<Device>> devices;  // by CUDA's ordinals
    std::set<Stream*> streams;
    std::set<Event*> events;
    std::set<Module*> modules;
    std::set<Function*> functions;
    std::map<std::uintptr_t, Allocation> allocations;          // of devices, by address
    std::map<std::uintptr_t, std::size_t> pinned, own_pinned;  // host ranges, by address; those that we made
    unsigned streams_made = 0, events_made = 0;
    unsigned long long launches = 0;
    std::map<std::string, unsigned long> calls;
    std::condition_variable done;  // an operation has ended, or a moment was reached
};

// Never destroyed: streams' threads outlive the end of the process.
State& state();
std::mutex& lock();
extern thread_local Device* current;
// Within a function that a stream calls on the host: no driver call is allowed there.
extern thread_local bool in_host_function;

struct Failure {
    unsigned code;
    std::string reason;  // on stderr, where it is not empty
};

// What a call's body works with: the lock that it holds, and what the log will say.
struct Call {
    const char* name;
    std::unique_lock<std::mutex> held;
    std::string log;
    // The context's device is in order; set by `device`.
    Device& device();
    // Appends ` key=value` to the log.
    void say(const char* key, unsigned long long value);
    void say(const char* key, const std::string& value);
};

enum class Needs { nothing, initialised, context };

// Runs the body of the exported function `name` under the lock: checks what it needs, lets it fail
// where that is configured, logs it.
unsigned call(const char* name, Needs needs, const std::function<unsigned(Call&)>& body);

// Whether a configured fault happens now: each time, or, where faults pass, the first time on this machine.
bool happens(const std::string& fault);

// Whether an error leaves a context that answers all that follows with it (CUDA driver API reference, CUresult).
bool breaks_context(unsigned code);

// The stream of a handle; only real ones, ours never use the default stream.
Stream& stream_of(void* handle);
Event& event_of(void* handle);
void enqueue(Stream& stream, Task operation);
void wait_idle(Call& call, Device& device);

// The device whose memory has all these bytes, or null.
Device* owner(std::uintptr_t address, std::size_t bytes);
bool is_pinned(std::uintptr_t address, std::size_t bytes);
// Whether a kernel has written behind the end of an allocation of the device.
bool slack_is_intact(Device& device, std::string& reason);
void free_all(Device& device);
// Accounts for bytes taken by or given back to the device; false: not so many are left.
bool charge(Device& device);
std::size_t free_bytes(Device& device);
std::size_t used_bytes(const Device& device);
// Shared memory of a multiprocessor, and the most that a block may ask for.
std::size_t processor_shared_bytes(const Device& device);
std::size_t block_shared_bytes_max(const Device& device);

}  // namespace simulator

#define EXPORT extern "C" __attribute__((visibility("default"))) unsigned
