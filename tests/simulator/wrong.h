// What stores wrong values, where the configuration says so (`wrong=`).
#pragma once

#include <functional>

#include "state.h"

namespace simulator {

// Whether what has this name stores wrong values.
bool is_wrong(const char* name);

// Runs what stores into a device's memory, then changes a bit of each 16 that it changed: as by a
// store of another register. That is the highest bit of a fraction in f32 and bf16, and one that
// counts 1/16 in f16. Nothing else may store there meanwhile, or it is changed too.
unsigned store_wrong(Device& device, const std::function<unsigned()>& run);

}  // namespace simulator
