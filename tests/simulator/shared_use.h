// Device memory in use by each process of one simulated machine, in a file that they map.
//
// Invariants: a process writes its own slots only; a slot whose process is gone counts as free.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace simulator {

// Adds `bytes` (or takes them back) to what this process uses of the device, unless more than
// `limit_bytes` would then be in use by all processes: false, and nothing changes.
bool add_use(unsigned device, long long bytes, std::size_t limit_bytes);

// Bytes in use by all processes of the machine.
std::size_t total_use(unsigned device);

// The processes that use the device, with their bytes.
std::vector<std::pair<int, std::size_t>> uses(unsigned device);

}  // namespace simulator
