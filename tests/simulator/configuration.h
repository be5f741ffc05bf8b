// What the simulated machine is like, by the variable BERTH_SIMULATOR: `key=value` pairs, apart by
// `;`. Lists are for the devices in order, apart by `,`; the last item stands for all that follow.
//
//   devices=2                 how many GPUs (default 1)
//   memory=8GiB,4GiB          of each, in B, KiB, MiB or GiB (default 8GiB)
//   used=512MiB,0             taken by other programs (default 0)
//   uuid=GPU-…,GPU-…          (default GPU-51510000-0000-0000-0000-000000000000, and the last digits counting up)
//   name=Simulated GPU        (default)
//   capability=8.6,7.5        (default 8.6)
//   processors=4              multiprocessors (default)
//   integrated=0              1: the device says that it shares the host's memory
//   order=1,0                 CUDA's ordinals, as positions in the order of PCI buses and of NVML (default 0,1,…)
//   peer=1                    whether devices may reach each other's memory (default 0)
//   driver=13000              what cuDriverGetVersion says (default 13010)
//   nvml_driver=535.1         the driver's version, as NVML tells it (default 580.00.00)
//   ptx=63                    the newest PTX that the driver reads, ten times its version (default: as the driver's version says)
//   context=64MiB             device memory that a process's context takes (default)
//   module=2MiB               device memory that a loaded module takes (default)
//   granularity=2MiB          device memory is taken in pieces of so much (default)
//   seed=7                    shuffles the order of threads, warps and blocks (default 0: ascending)
//   delay=300                 an operation of a stream waits up to so many microseconds, by the seed (default 0)
//   init=100                  what cuInit answers: 100 no device, 34 a stub, 803 a mismatch, 999 (default 0)
//   nvml=9                    what nvmlInit answers (default 0)
//   fail=cuMemAlloc_v2:3:2,…  the third call of the function fails with error 2 (default error 999); of cuBLASLt's too.
//                             Of the errors that break a context, so does every later call on the device
//   lost=1:40:719             device 1's 40th operation fails, and every call on the device after it, with
//                             error 719 (default)
//   passing=1                 what `fail` and `lost` say happens once, in the first process that comes so far, and not again
//                             in others; needs `folder` (default 0: in each)
//   wrong=add,mul             what these kernels store is wrong, and what the functions cublasLtMatmul and cuMemcpy3DPeerAsync
//                             store, if they are named: see `wrong.h`
//   log=/path                 the calls, a line each: see `log.h`
//   folder=/path              what processes share: each one's device memory counts for all (default: each is alone)
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace simulator {

struct DeviceConfiguration {
    std::size_t memory_bytes, used_bytes;
    std::string uuid, name;
    int major, minor, processors;
    bool integrated;
};

struct FailingCall {
    std::string function;
    unsigned long call;
    unsigned code;
};

struct LostDevice {
    unsigned device;
    unsigned long operation;
    unsigned code;
};

struct Configuration {
    // In the order of PCI buses.
    std::vector<DeviceConfiguration> devices;
    // Positions in `devices`, by CUDA's ordinals.
    std::vector<unsigned> order;
    bool peer = false, passing = false;
    int driver = 13010, ptx = 0;
    std::size_t context_bytes, module_bytes, granularity_bytes;
    unsigned long long seed = 0;
    unsigned delay_us = 0;
    unsigned init = 0, nvml = 0;
    std::vector<FailingCall> failing;
    std::vector<LostDevice> lost;
    std::set<std::string> wrong;
    std::string log, folder, nvml_driver = "580.00.00";
};

// Read once, from the environment. A key or value that is none ends the process: a test is wrong.
const Configuration& configuration();

// CUDA's ordinals after CUDA_VISIBLE_DEVICES: positions in `devices`.
std::vector<unsigned> visible_devices();

}  // namespace simulator
