// The CUDA driver API over host memory: start, devices, contexts, errors.
//
// A stand-in for libcuda.so.1 on machines without a GPU, for tests. It has the functions that our
// executor uses, with their documented behaviour, and refuses what is legal but never ours: the
// default stream, contexts other than the primary one. What the machine is like, and what fails in
// it, says BERTH_SIMULATOR: see `configuration.h`. What was called tells a log: see `log.h`.
//
// Not here: cuda.h; the few types that matter are written out where they are used.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "shared_use.h"
#include "state.h"

namespace simulator {

std::size_t used_bytes(const Device& device) { return device.charged_bytes; }

// By CUdevice, which is an ordinal.
static Device& device_of(int ordinal) {
    if (ordinal < 0 || std::size_t(ordinal) >= state().devices.size()) throw Failure{INVALID_DEVICE, ""};
    return *state().devices[std::size_t(ordinal)];
}

static Device& context_of(void* context) {
    for (const auto& device : state().devices) {
        if (device.get() == context) return *device;
    }
    throw Failure{INVALID_CONTEXT, "no context of this driver"};
}

// Buses from 1 on, in the order of positions.
static int bus_of(const Device& device) { return int(device.position) + 1; }

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
std::size_t processor_shared_bytes(const Device& device) {
    const int capability = device.facts->major * 10 + device.facts->minor;
    if (capability < 80) return 64 << 10;
    if (capability == 80 || capability == 87) return 164 << 10;
    return capability < 90 || capability >= 120 ? 100 << 10 : 228 << 10;
}

// From 8.0 on each block takes 1 KiB for the system.
std::size_t block_shared_bytes_max(const Device& device) {
    return processor_shared_bytes(device) - (device.facts->major < 8 ? 0 : 1 << 10);
}

// By the numbers of CUdevice_attribute; -1: not simulated.
static int attribute_of(const Device& device, int attribute) {
    const DeviceConfiguration& facts = *device.facts;
    switch (attribute) {
        case 1: return 1024;  // MAX_THREADS_PER_BLOCK
        case 2:
        case 3: return 1024;        // MAX_BLOCK_DIM_X, _Y
        case 4: return 64;          // MAX_BLOCK_DIM_Z
        case 5: return 0x7fffffff;  // MAX_GRID_DIM_X
        case 6:
        case 7: return 65535;                                 // MAX_GRID_DIM_Y, _Z
        case 8: return 48 << 10;                              // MAX_SHARED_MEMORY_PER_BLOCK
        case 9: return 64 << 10;                              // TOTAL_CONSTANT_MEMORY
        case 10: return 32;                                   // WARP_SIZE
        case 11: return 0x7fffffff;                           // MAX_PITCH
        case 12: return 65536;                                // MAX_REGISTERS_PER_BLOCK
        case 13: return 1500000;                              // CLOCK_RATE, kHz
        case 14: return 512;                                  // TEXTURE_ALIGNMENT
        case 15: return 1;                                    // GPU_OVERLAP
        case 16: return facts.processors;                     // MULTIPROCESSOR_COUNT
        case 17: return 0;                                    // KERNEL_EXEC_TIMEOUT
        case 18: return facts.integrated;                     // INTEGRATED
        case 19: return 1;                                    // CAN_MAP_HOST_MEMORY
        case 20: return 0;                                    // COMPUTE_MODE
        case 31: return 1;                                    // CONCURRENT_KERNELS
        case 32: return 0;                                    // ECC_ENABLED
        case 33: return bus_of(device);                       // PCI_BUS_ID
        case 34: return 0;                                    // PCI_DEVICE_ID
        case 36: return 7000000;                              // MEMORY_CLOCK_RATE, kHz
        case 37: return 256;                                  // GLOBAL_MEMORY_BUS_WIDTH
        case 38: return 4 << 20;                              // L2_CACHE_SIZE
        case 39: return facts.major == 7 ? 1024 : 1536;       // MAX_THREADS_PER_MULTIPROCESSOR
        case 40: return 2;                                    // ASYNC_ENGINE_COUNT
        case 41: return 1;                                    // UNIFIED_ADDRESSING
        case 50: return 0;                                    // PCI_DOMAIN_ID
        case 75: return facts.major;                          // COMPUTE_CAPABILITY_MAJOR
        case 76: return facts.minor;                          // COMPUTE_CAPABILITY_MINOR
        case 78: return 1;                                    // STREAM_PRIORITIES_SUPPORTED
        case 81: return int(processor_shared_bytes(device));  // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        case 82: return 65536;                                // MAX_REGISTERS_PER_MULTIPROCESSOR
        case 83: return 0;                                    // MANAGED_MEMORY
        case 91: return 1;                                    // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        case 97: return int(block_shared_bytes_max(device));  // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        case 99: return 1;                                    // HOST_REGISTER_SUPPORTED
        case 106: return 16;                                  // MAX_BLOCKS_PER_MULTIPROCESSOR
        case 115: return 0;                                   // MEMORY_POOLS_SUPPORTED
        default: return -1;
    }
}

// The 16 bytes of `GPU-` and hexadecimal digits.
static void write_uuid(const std::string& text, unsigned char* bytes) {
    std::memset(bytes, 0, 16);
    unsigned digits = 0;
    const std::size_t dash = text.find('-');
    for (std::size_t i = dash == std::string::npos ? 0 : dash + 1; i < text.size() && digits < 32; i++) {
        if (!std::isxdigit((unsigned char)text[i])) continue;
        const unsigned value = unsigned(std::strtoul(std::string(1, text[i]).c_str(), nullptr, 16));
        bytes[digits / 2] |= (unsigned char)(value << (digits % 2 == 0 ? 4 : 0));
        digits++;
    }
}

static void start() {
    if (!state().devices.empty()) return;
    for (const unsigned position : visible_devices()) {
        auto device = std::make_unique<Device>();
        device->position = position;
        device->facts = &configuration().devices[position];
        state().devices.push_back(std::move(device));
    }
}

// Ends what the context had: its streams' work is done, its memory free. An error of the device stays, as
// the driver documents it: only a new process can go on.
static void end_context(Call& call, Device& device) {
    wait_idle(call, device);
    for (Stream* stream : device.streams) {
        state().streams.erase(stream);
        stream->closing = true;
        stream->changed.notify_one();
    }
    for (auto at = state().events.begin(); at != state().events.end();) {
        Event* event = *at;
        if (event->device != &device) {
            ++at;
            continue;
        }
        at = state().events.erase(at);
        delete event;
    }
    for (auto at = state().modules.begin(); at != state().modules.end();) {
        Module* module = *at;
        if (module->device != &device) {
            ++at;
            continue;
        }
        for (const auto& [name, function] : module->functions) state().functions.erase(function.get());
        at = state().modules.erase(at);
        delete module;
    }
    device.module_count = 0;
    free_all(device);
    device.reaches.clear();
    charge(device);
}

struct NamedResult {
    unsigned code;
    const char *name, *text;
};

static const NamedResult* named(unsigned code) {
    static const NamedResult all[] = {
        {0, "CUDA_SUCCESS", "no error"},
        {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
        {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
        {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
        {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
        {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
        {36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "API call is not supported in the installed CUDA driver"},
        {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
        {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
        {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
        {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
        {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
        {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
        {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
        {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
        {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
        {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found"},
        {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
        {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
        {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
        {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
        {600, "CUDA_ERROR_NOT_READY", "device not ready"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
        {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
        {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
        {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
        {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
        {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
        {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
         "part or all of the requested memory range is already mapped"},
        {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
        {714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
        {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
        {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
        {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space"},
        {718, "CUDA_ERROR_INVALID_PC", "invalid program counter"},
        {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
        {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
        {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
        {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
        {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
        {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
         "forward compatibility was attempted on non supported HW"},
        {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
    };
    for (const NamedResult& result : all) {
        if (result.code == code) return &result;
    }
    return nullptr;
}

}  // namespace simulator

using namespace simulator;

EXPORT cuInit(unsigned flags) {
    return call("cuInit", Needs::nothing, [&](Call&) -> unsigned {
        if (flags != 0) return INVALID_VALUE;
        if (configuration().init != 0) return configuration().init;
        start();
        if (state().devices.empty()) return NO_DEVICE;
        state().initialised = true;
        return SUCCESS;
    });
}

EXPORT cuDriverGetVersion(int* version) {
    return call("cuDriverGetVersion", Needs::nothing, [&](Call&) -> unsigned {
        if (version == nullptr) return INVALID_VALUE;
        *version = configuration().driver;
        return SUCCESS;
    });
}

EXPORT cuGetErrorName(unsigned code, const char** name) {
    const NamedResult* result = named(code);
    *name = result ? result->name : nullptr;
    return result ? SUCCESS : INVALID_VALUE;
}

EXPORT cuGetErrorString(unsigned code, const char** text) {
    const NamedResult* result = named(code);
    *text = result ? result->text : nullptr;
    return result ? SUCCESS : INVALID_VALUE;
}

EXPORT cuDeviceGetCount(int* count) {
    return call("cuDeviceGetCount", Needs::initialised, [&](Call&) -> unsigned {
        if (count == nullptr) return INVALID_VALUE;
        *count = int(state().devices.size());
        return SUCCESS;
    });
}

EXPORT cuDeviceGet(int* device, int ordinal) {
    return call("cuDeviceGet", Needs::initialised, [&](Call&) -> unsigned {
        if (device == nullptr) return INVALID_VALUE;
        device_of(ordinal);
        *device = ordinal;
        return SUCCESS;
    });
}

EXPORT cuDeviceGetName(char* name, int bytes, int device) {
    return call("cuDeviceGetName", Needs::initialised, [&](Call&) -> unsigned {
        if (name == nullptr || bytes <= 0) return INVALID_VALUE;
        std::snprintf(name, std::size_t(bytes), "%s", device_of(device).facts->name.c_str());
        return SUCCESS;
    });
}

EXPORT cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    return call("cuDeviceGetUuid_v2", Needs::initialised, [&](Call&) -> unsigned {
        if (uuid == nullptr) return INVALID_VALUE;
        write_uuid(device_of(device).facts->uuid, uuid);
        return SUCCESS;
    });
}

EXPORT cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
    return call("cuDeviceTotalMem_v2", Needs::initialised, [&](Call&) -> unsigned {
        if (bytes == nullptr) return INVALID_VALUE;
        *bytes = device_of(device).facts->memory_bytes;
        return SUCCESS;
    });
}

EXPORT cuDeviceGetAttribute(int* value, int attribute, int device) {
    return call("cuDeviceGetAttribute", Needs::initialised, [&](Call&) -> unsigned {
        if (value == nullptr) return INVALID_VALUE;
        const int found = attribute_of(device_of(device), attribute);
        if (found < 0) throw Failure{INVALID_VALUE, "attribute " + std::to_string(attribute) + " is not simulated"};
        *value = found;
        return SUCCESS;
    });
}

EXPORT cuDeviceGetPCIBusId(char* text, int bytes, int device) {
    return call("cuDeviceGetPCIBusId", Needs::initialised, [&](Call&) -> unsigned {
        if (text == nullptr || bytes < 13) return INVALID_VALUE;
        std::snprintf(text, std::size_t(bytes), "0000:%02X:00.0", unsigned(bus_of(device_of(device))));
        return SUCCESS;
    });
}

EXPORT cuDeviceCanAccessPeer(int* can, int device, int peer) {
    return call("cuDeviceCanAccessPeer", Needs::initialised, [&](Call&) -> unsigned {
        if (can == nullptr) return INVALID_VALUE;
        *can = &device_of(device) != &device_of(peer) && configuration().peer;
        return SUCCESS;
    });
}

EXPORT cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
    return call("cuDevicePrimaryCtxSetFlags_v2", Needs::initialised, [&](Call&) -> unsigned {
        constexpr unsigned FLAGS = 0xff;
        device_of(device);
        return (flags & ~FLAGS) != 0 ? INVALID_VALUE : SUCCESS;
    });
}

EXPORT cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
    return call("cuDevicePrimaryCtxGetState", Needs::initialised, [&](Call&) -> unsigned {
        if (flags != nullptr) *flags = 0;
        if (active != nullptr) *active = device_of(device).retained != 0;
        return SUCCESS;
    });
}

EXPORT cuDevicePrimaryCtxRetain(void** context, int ordinal) {
    return call("cuDevicePrimaryCtxRetain", Needs::initialised, [&](Call& call) -> unsigned {
        if (context == nullptr) return INVALID_VALUE;
        Device& device = device_of(ordinal);
        call.say("device", device.position);
        if (device.error != 0) return device.error;
        device.retained++;
        if (!charge(device)) {
            device.retained--;
            return OUT_OF_MEMORY;
        }
        *context = &device;
        return SUCCESS;
    });
}

EXPORT cuDevicePrimaryCtxRelease_v2(int ordinal) {
    return call("cuDevicePrimaryCtxRelease_v2", Needs::initialised, [&](Call& call) -> unsigned {
        Device& device = device_of(ordinal);
        call.say("device", device.position);
        if (device.retained == 0) return INVALID_CONTEXT;
        if (--device.retained == 0) end_context(call, device);
        return SUCCESS;
    });
}

EXPORT cuCtxSetCurrent(void* context) {
    return call("cuCtxSetCurrent", Needs::initialised, [&](Call& call) -> unsigned {
        current = context == nullptr ? nullptr : &context_of(context);
        if (current != nullptr) call.say("device", current->position);
        return SUCCESS;
    });
}

EXPORT cuCtxGetCurrent(void** context) {
    return call("cuCtxGetCurrent", Needs::initialised, [&](Call&) -> unsigned {
        if (context == nullptr) return INVALID_VALUE;
        *context = current;
        return SUCCESS;
    });
}

EXPORT cuCtxGetDevice(int* device) {
    return call("cuCtxGetDevice", Needs::context, [&](Call& call) -> unsigned {
        for (std::size_t i = 0; i < state().devices.size(); i++) {
            if (state().devices[i].get() == &call.device()) *device = int(i);
        }
        return SUCCESS;
    });
}

EXPORT cuCtxSynchronize() {
    return call("cuCtxSynchronize", Needs::context, [&](Call& call) -> unsigned {
        Device& device = call.device();
        wait_idle(call, device);
        return device.error;
    });
}

EXPORT cuCtxEnablePeerAccess(void* peer, unsigned flags) {
    return call("cuCtxEnablePeerAccess", Needs::context, [&](Call& call) -> unsigned {
        Device &device = call.device(), &other = context_of(peer);
        call.say("peer", other.position);
        if (flags != 0) return INVALID_VALUE;
        if (&device == &other) return INVALID_DEVICE;
        if (!configuration().peer) return PEER_ACCESS_UNSUPPORTED;
        return device.reaches.insert(&other).second ? SUCCESS : PEER_ACCESS_ALREADY_ENABLED;
    });
}
