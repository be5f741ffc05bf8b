// Reads BERTH_SIMULATOR: see `configuration.h`.
#include "configuration.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>

namespace simulator {

[[noreturn]] static void wrong(const std::string& what) {
    std::fprintf(stderr, "BERTH_SIMULATOR: %s\n", what.c_str());
    std::abort();
}

static std::vector<std::string> split(const std::string& text, char at) {
    std::vector<std::string> parts;
    std::size_t start = 0;
    for (;;) {
        const std::size_t end = text.find(at, start);
        parts.push_back(text.substr(start, end == std::string::npos ? end : end - start));
        if (end == std::string::npos) return parts;
        start = end + 1;
    }
}

static unsigned long long number(const std::string& text) {
    char* end = nullptr;
    const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
    if (text.empty() || *end != 0) wrong("no number: \"" + text + "\"");
    return value;
}

static std::size_t bytes(const std::string& text) {
    static const std::map<std::string, double> units = {
        {"", 1}, {"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const auto unit = units.find(end);
    if (end == text.c_str() || unit == units.end()) wrong("no size: \"" + text + "\"");
    return std::size_t(value * unit->second);
}

// The parts of each item of a list, two of which must be there; the last is an error, or this one.
static std::vector<std::vector<std::string>> faults(const std::string& list, const char* error) {
    std::vector<std::vector<std::string>> faults;
    for (const std::string& item : split(list, ',')) {
        faults.push_back(split(item, ':'));
        if (faults.back().size() < 2) wrong("what:number:error, not \"" + item + "\"");
        if (faults.back().size() == 2) faults.back().push_back(error);
    }
    return faults;
}

typedef std::vector<std::string> List;

// Lists for the devices in order.
struct Lists {
    List memory{"8GiB"}, used{"0"}, uuid, name{"Simulated GPU"}, capability{"8.6"}, processors{"4"}, integrated{"0"},
        order;
};

// The item for a device: the last stands for all that follow.
static const std::string& item(const List& list, std::size_t device) {
    return list[device < list.size() ? device : list.size() - 1];
}

static void add_device(Configuration& read, const Lists& lists, std::size_t i) {
    DeviceConfiguration device;
    device.memory_bytes = bytes(item(lists.memory, i));
    device.used_bytes = bytes(item(lists.used, i));
    char text[64];
    std::snprintf(text, sizeof text, "GPU-51510000-0000-0000-0000-%012zx", i);
    device.uuid = i < lists.uuid.size() ? lists.uuid[i] : text;
    device.name = item(lists.name, i);
    const List version = split(item(lists.capability, i), '.');
    if (version.size() != 2) wrong("capability=major.minor");
    device.major = int(number(version[0]));
    device.minor = int(number(version[1]));
    device.processors = int(number(item(lists.processors, i)));
    device.integrated = number(item(lists.integrated, i)) != 0;
    read.devices.push_back(device);
    read.order.push_back(i < lists.order.size() ? unsigned(number(lists.order[i])) : unsigned(i));
}

static Configuration read() {
    Configuration read;
    read.context_bytes = 64 << 20;
    read.module_bytes = 2 << 20;
    read.granularity_bytes = 2 << 20;
    std::size_t count = 1;
    Lists lists;
    typedef const std::string& Text;
    const std::map<std::string, std::function<void(Text)>> keys = {
        {"devices", [&](Text value) { count = number(value); }},
        {"memory", [&](Text value) { lists.memory = split(value, ','); }},
        {"used", [&](Text value) { lists.used = split(value, ','); }},
        {"uuid", [&](Text value) { lists.uuid = split(value, ','); }},
        {"name", [&](Text value) { lists.name = split(value, ','); }},
        {"capability", [&](Text value) { lists.capability = split(value, ','); }},
        {"processors", [&](Text value) { lists.processors = split(value, ','); }},
        {"integrated", [&](Text value) { lists.integrated = split(value, ','); }},
        {"order", [&](Text value) { lists.order = split(value, ','); }},
        {"peer", [&](Text value) { read.peer = number(value) != 0; }},
        {"driver", [&](Text value) { read.driver = int(number(value)); }},
        {"nvml_driver", [&](Text value) { read.nvml_driver = value; }},
        {"ptx", [&](Text value) { read.ptx = int(number(value)); }},
        {"context", [&](Text value) { read.context_bytes = bytes(value); }},
        {"module", [&](Text value) { read.module_bytes = bytes(value); }},
        {"granularity", [&](Text value) { read.granularity_bytes = bytes(value); }},
        {"seed", [&](Text value) { read.seed = number(value); }},
        {"delay", [&](Text value) { read.delay_us = unsigned(number(value)); }},
        {"init", [&](Text value) { read.init = unsigned(number(value)); }},
        {"nvml", [&](Text value) { read.nvml = unsigned(number(value)); }},
        {"passing", [&](Text value) { read.passing = number(value) != 0; }},
        {"wrong",
         [&](Text value) {
             for (const std::string& name : split(value, ',')) read.wrong.insert(name);
         }},
        {"log", [&](Text value) { read.log = value; }},
        {"folder", [&](Text value) { read.folder = value; }},
        {"fail",
         [&](Text value) {
             for (const List& fault : faults(value, "999")) {
                 read.failing.push_back({fault[0], number(fault[1]), unsigned(number(fault[2]))});
             }
         }},
        {"lost",
         [&](Text value) {
             for (const List& fault : faults(value, "719")) {
                 read.lost.push_back({unsigned(number(fault[0])), number(fault[1]), unsigned(number(fault[2]))});
             }
         }},
    };
    const char* variable = std::getenv("BERTH_SIMULATOR");
    for (const std::string& pair : split(variable ? variable : "", ';')) {
        if (pair.empty()) continue;
        const std::size_t equals = pair.find('=');
        const auto key = keys.find(pair.substr(0, equals));
        if (equals == std::string::npos || key == keys.end()) wrong("no key with a value: \"" + pair + "\"");
        key->second(pair.substr(equals + 1));
    }
    for (std::size_t i = 0; i < count; i++) add_device(read, lists, i);
    for (const unsigned position : read.order) {
        if (position >= count) wrong("order names a device that is not there");
    }
    if (read.passing && read.folder.empty()) wrong("passing without a folder");
    return read;
}

const Configuration& configuration() {
    static const Configuration& configuration = *new Configuration(read());
    return configuration;
}

std::vector<unsigned> visible_devices() {
    const Configuration& all = configuration();
    const char* variable = std::getenv("CUDA_VISIBLE_DEVICES");
    if (variable == nullptr) return all.order;
    std::vector<unsigned> visible;
    for (const std::string& entry : split(variable, ',')) {
        std::vector<unsigned> named;
        for (unsigned ordinal = 0; ordinal < all.order.size(); ordinal++) {
            const bool by_uuid =
                entry.rfind("GPU-", 0) == 0 && all.devices[all.order[ordinal]].uuid.rfind(entry, 0) == 0;
            if (by_uuid || entry == std::to_string(ordinal)) named.push_back(all.order[ordinal]);
        }
        // The first entry that names nothing, or more than one, ends the list.
        if (named.size() != 1) break;
        visible.push_back(named[0]);
    }
    return visible;
}

}  // namespace simulator
