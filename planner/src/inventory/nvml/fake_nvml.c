/* A made-up NVML for tests: three or four GPUs that answer from a table, in an order that is not the PCI bus order.
 * It declares what it needs of NVML's interface by itself. Macros choose what is broken:
 *   INIT_RESULT   what nvmlInit_v2 answers         NO_INIT, NO_SHUTDOWN   the function is missing
 *   GPU_COUNT     how many GPUs there are          OLD_DRIVER             functions of newer drivers are missing
 *   MIG           the first GPU has two instances  FIRST_GPU              where the table is entered
 */
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, GPU_IS_LOST = 15 };

#ifndef INIT_RESULT
#define INIT_RESULT SUCCESS
#endif
#ifndef GPU_COUNT
#define GPU_COUNT 4
#endif
#ifndef FIRST_GPU
#define FIRST_GPU 0
#endif

#define MIB(count) ((unsigned long long)(count) << 20)

struct gpu {
    const char *name, *uuid;
    unsigned domain, bus;
    int memory_result, facts_result;
    unsigned long long total, reserved, used;
    unsigned generation, lanes, cores, sm_mhz, memory_mhz, bus_bits;
    int major, minor;
};

static struct gpu gpus[] = {
    {"NVIDIA Large", "GPU-bbbb0000", 0, 0x41, SUCCESS, SUCCESS, MIB(24576), MIB(512), MIB(2048), 4, 16, 16384, 2520,
     10501, 384, 8, 9},
    {"NVIDIA Small", "GPU-aaaa0000", 0, 0x01, SUCCESS, NOT_SUPPORTED, MIB(6144), MIB(256), 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {"NVIDIA Shared", "GPU-dddd0000", 1, 0x01, NOT_SUPPORTED, SUCCESS, 0, 0, 0, 0, 0, 6144, 2418, 4267, 256, 12, 1},
    {"NVIDIA Lost", "GPU-cccc0000", 0, 0x02, GPU_IS_LOST, GPU_IS_LOST, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
};

static struct gpu instances[] = {
    {"NVIDIA Large MIG 1g.6gb", "MIG-0001", 0, 0x41, SUCCESS, NOT_SUPPORTED, MIB(6144), 0, MIB(16), 0, 0, 0, 0, 0, 0, 0, 0},
    {"NVIDIA Large MIG 2g.12gb", "MIG-0002", 0, 0x41, SUCCESS, NOT_SUPPORTED, MIB(12288), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
};

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

#ifndef NO_INIT
int nvmlInit_v2(void) { return INIT_RESULT; }
#endif
#ifndef NO_SHUTDOWN
int nvmlShutdown(void) { return SUCCESS; }
#endif

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    snprintf(text, length, "580.95.05");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = GPU_COUNT;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **gpu) {
    if (index >= GPU_COUNT) return INVALID_ARGUMENT;
    *gpu = &gpus[FIRST_GPU + index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(struct gpu *gpu, char *text, unsigned length) {
    snprintf(text, length, "%s", gpu->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(struct gpu *gpu, char *text, unsigned length) {
    snprintf(text, length, "%s", gpu->name);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(struct gpu *gpu, struct pci_info *info) {
    memset(info, 0, sizeof *info);
    info->domain = gpu->domain;
    info->bus = gpu->bus;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(struct gpu *gpu, struct memory_v2 *info) {
    if (info->version != (sizeof *info | 2u << 24)) return 25; /* argument version mismatch */
    info->total = gpu->total;
    info->reserved = gpu->reserved;
    info->used = gpu->used;
    info->free = gpu->total - gpu->reserved - gpu->used;
    return gpu->memory_result;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetNumGpuCores(struct gpu *gpu, unsigned *cores) {
    *cores = gpu->cores;
    return gpu->facts_result;
}

int nvmlDeviceGetMemoryBusWidth(struct gpu *gpu, unsigned *bits) {
    *bits = gpu->bus_bits;
    return gpu->facts_result;
}

int nvmlDeviceGetMigMode(struct gpu *gpu, unsigned *current, unsigned *pending) {
#ifdef MIG
    *current = *pending = gpu == gpus;
    return SUCCESS;
#else
    (void)gpu, (void)current, (void)pending;
    return NOT_SUPPORTED;
#endif
}

int nvmlDeviceGetMaxMigDeviceCount(struct gpu *gpu, unsigned *count) {
    (void)gpu;
    *count = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct gpu *gpu, unsigned index, struct gpu **instance) {
    (void)gpu;
    if (index != 0 && index != 3) return NOT_FOUND;
    *instance = &instances[index == 3];
    return SUCCESS;
}
#endif

int nvmlDeviceGetMaxClockInfo(struct gpu *gpu, int clock, unsigned *mhz) {
    enum { CLOCK_SM = 1, CLOCK_MEMORY = 2 };
    if (clock != CLOCK_SM && clock != CLOCK_MEMORY) return INVALID_ARGUMENT;
    *mhz = clock == CLOCK_SM ? gpu->sm_mhz : gpu->memory_mhz;
    return gpu->facts_result;
}

int nvmlDeviceGetCudaComputeCapability(struct gpu *gpu, int *major, int *minor) {
    *major = gpu->major;
    *minor = gpu->minor;
    return gpu->facts_result;
}

int nvmlDeviceGetMaxPcieLinkGeneration(struct gpu *gpu, unsigned *generation) {
    *generation = gpu->generation;
    return gpu->facts_result;
}

int nvmlDeviceGetMaxPcieLinkWidth(struct gpu *gpu, unsigned *lanes) {
    *lanes = gpu->lanes;
    return gpu->facts_result;
}
