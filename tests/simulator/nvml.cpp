// The part of NVML that our planner asks, about the same simulated GPUs as `driver.cpp`, in the order of
// their PCI buses. Memory in use is that of all processes, where BERTH_SIMULATOR names a folder.
//
// Not here: MIG, and anything that changes a device.
#include <cstdio>
#include <cstring>

#include "configuration.h"
#include "shared_use.h"

#define EXPORT extern "C" __attribute__((visibility("default"))) int

using namespace simulator;

// Of nvmlReturn_t, in nvml.h.
enum : int {
    NVML_SUCCESS = 0,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_VERSION_MISMATCH = 25
};

// The layouts of nvmlPciInfo_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlProcessInfo_t.
struct PciInfo {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char text[32];
};

struct Memory {
    unsigned long long total, free, used;
};

struct MemoryV2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct Process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

// A handle is the address of a device's facts.
static const DeviceConfiguration& facts(void* device) { return *static_cast<const DeviceConfiguration*>(device); }

static unsigned position(void* device) { return unsigned(&facts(device) - configuration().devices.data()); }

static void* handle(std::size_t position) {
    return const_cast<DeviceConfiguration*>(&configuration().devices[position]);
}

static int write(char* text, unsigned bytes, const char* value) {
    if (std::strlen(value) >= bytes) return NVML_INSUFFICIENT_SIZE;
    std::strcpy(text, value);
    return NVML_SUCCESS;
}

EXPORT nvmlInit_v2() { return int(configuration().nvml); }

EXPORT nvmlInitWithFlags(unsigned) { return int(configuration().nvml); }

EXPORT nvmlShutdown() { return NVML_SUCCESS; }

EXPORT nvmlSystemGetDriverVersion(char* text, unsigned bytes) { return write(text, bytes, configuration().nvml_driver.c_str()); }

EXPORT nvmlSystemGetCudaDriverVersion_v2(int* version) {
    *version = configuration().driver;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetCount_v2(unsigned* count) {
    *count = unsigned(configuration().devices.size());
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
    if (index >= configuration().devices.size()) return NVML_INVALID_ARGUMENT;
    *device = handle(index);
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
    for (std::size_t i = 0; i < configuration().devices.size(); i++) {
        if (configuration().devices[i].uuid != uuid) continue;
        *device = handle(i);
        return NVML_SUCCESS;
    }
    return NVML_NOT_FOUND;
}

EXPORT nvmlDeviceGetUUID(void* device, char* text, unsigned bytes) {
    return write(text, bytes, facts(device).uuid.c_str());
}

EXPORT nvmlDeviceGetName(void* device, char* text, unsigned bytes) {
    return write(text, bytes, facts(device).name.c_str());
}

EXPORT nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) {
    *info = {};
    info->bus = position(device) + 1;
    std::snprintf(info->text, sizeof info->text, "00000000:%02X:00.0", info->bus);
    std::snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", info->bus & 0xff);
    return NVML_SUCCESS;
}

static unsigned long long used(void* device) {
    const unsigned long long used = facts(device).used_bytes + total_use(position(device));
    return used < facts(device).memory_bytes ? used : facts(device).memory_bytes;
}

EXPORT nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
    *memory = {facts(device).memory_bytes, facts(device).memory_bytes - used(device), used(device)};
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetMemoryInfo_v2(void* device, MemoryV2* memory) {
    if (memory->version != (sizeof *memory | 2u << 24)) return NVML_VERSION_MISMATCH;
    const unsigned long long in_use = used(device);
    *memory = {memory->version, facts(device).memory_bytes, 0, facts(device).memory_bytes - in_use, in_use};
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, Process* processes) {
    const auto found = uses(position(device));
    const unsigned room = *count;
    *count = unsigned(found.size());
    if (found.size() > room) return NVML_INSUFFICIENT_SIZE;
    for (std::size_t i = 0; i < found.size(); i++) processes[i] = {unsigned(found[i].first), found[i].second, ~0u, ~0u};
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetMigMode(void*, unsigned*, unsigned*) { return NVML_NOT_SUPPORTED; }

EXPORT nvmlDeviceGetNumGpuCores(void* device, unsigned* cores) {
    *cores = unsigned(facts(device).processors) * 128;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetMemoryBusWidth(void*, unsigned* bits) {
    *bits = 256;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetMaxClockInfo(void*, int clock, unsigned* mhz) {
    constexpr int SM = 1, MEMORY = 2;
    if (clock != SM && clock != MEMORY) return NVML_INVALID_ARGUMENT;
    *mhz = clock == SM ? 1500 : 7000;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
    *major = facts(device).major;
    *minor = facts(device).minor;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* generation) {
    *generation = 4;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* lanes) {
    *lanes = 16;
    return NVML_SUCCESS;
}
