// Wrong values in a device's memory: see `wrong.h`.
#include "wrong.h"

#include <cstring>
#include <utility>

namespace simulator {

constexpr std::uint16_t CHANGED_BITS = 0x0040;

bool is_wrong(const char* name) {
    const auto& wrong = configuration().wrong;
    return !wrong.empty() && wrong.count(name) != 0;
}

// Bytes of a device's memory as they were.
struct Kept {
    unsigned char* start;
    std::vector<unsigned char> bytes;
};

static std::vector<Kept> kept(Device& device) {
    const std::lock_guard held(lock());
    std::vector<Kept> all;
    for (const auto& [address, allocation] : state().allocations) {
        if (allocation.device != &device) continue;
        auto* start = reinterpret_cast<unsigned char*>(address);
        all.push_back({start, {start, start + allocation.bytes}});
    }
    return all;
}

unsigned store_wrong(Device& device, const std::function<unsigned()>& run) {
    const std::vector<Kept> before = kept(device);
    const unsigned code = run();
    for (const Kept& kept : before) {
        for (std::size_t at = 0; at + 2 <= kept.bytes.size(); at += 2) {
            std::uint16_t was, is;
            std::memcpy(&was, kept.bytes.data() + at, 2);
            std::memcpy(&is, kept.start + at, 2);
            if (was == is) continue;
            is ^= CHANGED_BITS;
            std::memcpy(kept.start + at, &is, 2);
        }
    }
    return code;
}

}  // namespace simulator
