// Modules, their functions, and launches. Kernels run from the C++ of this library; the PTX that is
// loaded says which of them a module has, and that device and compiler would take it.
#include <cctype>
#include <cstdio>
#include <cstring>

#include "log.h"
#include "state.h"
#include "wrong.h"

namespace simulator {

// The newest PTX that a driver reads: the release notes' table in the PTX ISA manual.
static int newest_ptx(int driver) {
    const int major = driver / 1000, minor = driver % 1000 / 10;
    if (major >= 13) return 90 + minor;
    if (major < 12) return 70 + minor;
    const int of_12[] = {80, 81, 82, 83, 84, 85, 85, 86, 87, 88};
    return of_12[minor < 10 ? minor : 9];
}

// The text after the first line that begins with this word; null: none.
static const char* directive(const std::string& ptx, const char* word) {
    std::size_t at = ptx.find(word);
    while (at != std::string::npos && at != 0 && ptx[at - 1] != '\n') at = ptx.find(word, at + 1);
    return at == std::string::npos ? nullptr : ptx.c_str() + at + std::strlen(word);
}

static void check_ptx(const Device& device, const std::string& ptx) {
    int major = 0, minor = 0, target = 0;
    char suffix = 0;
    const char* version = directive(ptx, ".version");
    const char* architecture = directive(ptx, ".target");
    if (version == nullptr || std::sscanf(version, " %d.%d", &major, &minor) != 2)
        throw Failure{INVALID_PTX, "no .version"};
    if (architecture == nullptr || std::sscanf(architecture, " sm_%d%c", &target, &suffix) < 1)
        throw Failure{INVALID_PTX, "no .target"};
    const int newest = configuration().ptx ? configuration().ptx : newest_ptx(configuration().driver);
    if (major * 10 + minor > newest) {
        throw Failure{UNSUPPORTED_PTX_VERSION,
                      "PTX " + std::to_string(major) + "." + std::to_string(minor) + " is newer than the driver"};
    }
    const int capability = device.facts->major * 10 + device.facts->minor;
    const bool exactly = suffix == 'a';
    if (target > capability || (exactly && target != capability)) {
        throw Failure{NO_BINARY_FOR_GPU,
                      "PTX for sm_" + std::to_string(target) + " on a device of " + std::to_string(capability)};
    }
}

static unsigned load(Call& call, void** handle, const void* image) {
    Device& device = call.device();
    if (handle == nullptr || image == nullptr) return INVALID_VALUE;
    const auto* bytes = static_cast<const char*>(image);
    auto module = std::make_unique<Module>();
    module->device = &device;
    if (std::memcmp(bytes,
                    "\x7f"
                    "ELF",
                    4) != 0) {
        const std::string text = bytes;
        // A text without PTX that names the simulator stands for every kernel.
        if (text.rfind("// simulator", 0) != 0) {
            if (text.find(".version") == std::string::npos) throw Failure{INVALID_IMAGE, "neither PTX nor a cubin"};
            check_ptx(device, text);
            module->ptx = text;
        }
    }
    device.module_count++;
    if (!charge(device)) {
        device.module_count--;
        return OUT_OF_MEMORY;
    }
    state().modules.insert(module.get());
    *handle = module.release();
    return SUCCESS;
}

static Module& module_of(void* handle) {
    auto* module = static_cast<Module*>(handle);
    if (state().modules.count(module) == 0) throw Failure{INVALID_HANDLE, "no module of this driver"};
    return *module;
}

static Function& function_of(void* handle) {
    auto* function = static_cast<Function*>(handle);
    if (state().functions.count(function) == 0) throw Failure{INVALID_HANDLE, "no function of this driver"};
    return *function;
}

// Bytes of the only parameter of an entry point, as its PTX declares it.
static long ptx_argument_bytes(const std::string& ptx, std::size_t entry) {
    const std::size_t end = ptx.find(')', entry), array = ptx.find(".b8 ", entry);
    if (array == std::string::npos || array > end) return 0;
    const std::size_t bracket = ptx.find('[', array);
    return bracket > end ? 0 : std::atol(ptx.c_str() + bracket + 1);
}

static const Entry& entry_of(const Module& module, const std::string& name) {
    const Entry* entry = find_entry(name);
    if (!module.ptx.empty()) {
        const std::size_t at = module.ptx.find(".entry " + name + "(");
        if (at == std::string::npos) throw Failure{NOT_FOUND, "the module has no kernel " + name};
        if (entry != nullptr && std::size_t(ptx_argument_bytes(module.ptx, at)) != entry->argument_bytes) {
            throw Failure{INVALID_IMAGE,
                          name + ": its argument has another size in PTX than here: the PTX is of another source"};
        }
    }
    if (entry == nullptr) throw Failure{NOT_FOUND, "there is no kernel " + name};
    return *entry;
}

// The argument's bytes, from either way to pass them.
static std::vector<unsigned char> argument_of(const Entry& entry, void** parameters, void** extra) {
    const unsigned char* bytes = nullptr;
    std::size_t count = entry.argument_bytes;
    if (parameters != nullptr && extra != nullptr) throw Failure{INVALID_VALUE, "parameters given in both ways"};
    if (parameters != nullptr) bytes = static_cast<const unsigned char*>(parameters[0]);
    const auto END = reinterpret_cast<void*>(0), POINTER = reinterpret_cast<void*>(1),
               SIZE = reinterpret_cast<void*>(2);
    for (void** item = extra; item != nullptr && *item != END; item += 2) {
        if (*item == POINTER) bytes = static_cast<const unsigned char*>(item[1]);
        if (*item == SIZE) count = *static_cast<const std::size_t*>(item[1]);
    }
    if (count != entry.argument_bytes || (bytes == nullptr && count != 0)) {
        throw Failure{INVALID_VALUE, std::string(entry.name) + " takes " + std::to_string(entry.argument_bytes) +
                                         " bytes of arguments, not " + std::to_string(count)};
    }
    return {bytes, bytes + count};
}

// Whether an argument holds an address of a device that this one does not reach.
static bool names_unreachable(const Device& device, const std::vector<unsigned char>& argument) {
    for (std::size_t at = 0; at + 8 <= argument.size(); at += 8) {
        std::uintptr_t word;
        std::memcpy(&word, argument.data() + at, 8);
        Device* other = owner(word, 1);
        if (other != nullptr && other != &device && device.reaches.count(other) == 0) return true;
    }
    return false;
}

static std::string triple(dim3 size) {
    return std::to_string(size.x) + "," + std::to_string(size.y) + "," + std::to_string(size.z);
}

static unsigned run_kernel(const Launch& launch, Device& device, bool unreachable) {
    Outcome outcome;
    if (unreachable) {
        outcome = {ILLEGAL_ADDRESS, "an argument is an address of another device, without peer access"};
    } else if (is_wrong(launch.entry->name)) {
        store_wrong(device, [&] {
            outcome = run(launch);
            return outcome.code;
        });
    } else {
        outcome = run(launch);
    }
    if (outcome.code == 0) {
        const std::lock_guard held(lock());
        if (!slack_is_intact(device, outcome.reason)) outcome.code = ILLEGAL_ADDRESS;
    }
    if (outcome.code != 0)
        std::fprintf(stderr, "simulator: kernel %s failed: %s\n", launch.entry->name, outcome.reason.c_str());
    return outcome.code;
}

}  // namespace simulator

using namespace simulator;

EXPORT cuModuleLoadData(void** module, const void* image) {
    return call("cuModuleLoadData", Needs::context, [&](Call& call) { return load(call, module, image); });
}

// Writes the words of a failure where the options ask for a log of errors.
static void write_log(const std::string& words, unsigned count, const int* options, void** values) {
    enum : int { ERROR_LOG = 5, ERROR_LOG_BYTES = 6 };  // of CUjit_option
    char* log = nullptr;
    std::size_t bytes = 0;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == ERROR_LOG) log = static_cast<char*>(values[i]);
        if (options[i] == ERROR_LOG_BYTES) bytes = reinterpret_cast<std::uintptr_t>(values[i]);
    }
    if (log != nullptr && bytes != 0) std::snprintf(log, bytes, "%s", words.c_str());
}

EXPORT cuModuleLoadDataEx(void** module, const void* image, unsigned count, int* options, void** values) {
    return call("cuModuleLoadDataEx", Needs::context, [&](Call& call) {
        try {
            return load(call, module, image);
        } catch (const Failure& failure) {
            write_log("ptxas fatal   : " + failure.reason + "\n", count, options, values);
            throw;
        }
    });
}

EXPORT cuModuleUnload(void* handle) {
    return call("cuModuleUnload", Needs::context, [&](Call& call) -> unsigned {
        Module& module = module_of(handle);
        wait_idle(call, *module.device);
        module.device->module_count--;
        charge(*module.device);
        for (const auto& [name, function] : module.functions) state().functions.erase(function.get());
        state().modules.erase(&module);
        delete &module;
        return SUCCESS;
    });
}

EXPORT cuModuleGetFunction(void** handle, void* module_handle, const char* name) {
    return call("cuModuleGetFunction", Needs::context, [&](Call& call) -> unsigned {
        if (handle == nullptr || name == nullptr) return INVALID_VALUE;
        call.say("kernel", name);
        Module& module = module_of(module_handle);
        const Entry& entry = entry_of(module, name);
        auto& function = module.functions[name];
        if (function == nullptr) function = std::make_unique<Function>(Function{&module, &entry, {}});
        state().functions.insert(function.get());
        *handle = function.get();
        return SUCCESS;
    });
}

// Of CUfunction_attribute.
enum : int {
    MAX_THREADS = 0,
    SHARED_BYTES = 1,
    CONSTANT_BYTES = 2,
    LOCAL_BYTES = 3,
    REGISTERS = 4,
    MAX_DYNAMIC_SHARED = 8,
    CARVEOUT = 9
};

// Dynamic shared memory that a launch of the function may have.
static std::size_t dynamic_shared_max(const Function& function) {
    const auto asked = function.attributes.find(MAX_DYNAMIC_SHARED);
    return asked == function.attributes.end() ? SHARED_BYTES_MAX : std::size_t(asked->second);
}

EXPORT cuFuncSetAttribute(void* handle, int attribute, int value) {
    return call("cuFuncSetAttribute", Needs::context, [&](Call& call) -> unsigned {
        Function& function = function_of(handle);
        call.say("kernel", function.entry->name);
        call.say("attribute", unsigned(attribute));
        call.say("value", unsigned(value));
        if (attribute != MAX_DYNAMIC_SHARED && attribute != CARVEOUT) return INVALID_VALUE;
        const std::size_t others = static_shared_bytes(*function.entry);
        const std::size_t most = block_shared_bytes_max(*function.module->device);
        if (attribute == MAX_DYNAMIC_SHARED && (value < 0 || std::size_t(value) + others > most)) {
            throw Failure{INVALID_VALUE, std::to_string(value) + " bytes of shared memory, where a block has at most " +
                                             std::to_string(most)};
        }
        function.attributes[attribute] = value;
        return SUCCESS;
    });
}

EXPORT cuFuncGetAttribute(int* value, int attribute, void* handle) {
    return call("cuFuncGetAttribute", Needs::context, [&](Call& call) -> unsigned {
        Function& function = function_of(handle);
        call.say("kernel", function.entry->name);
        if (value == nullptr) return INVALID_VALUE;
        const unsigned bound = function.entry->threads_max;
        switch (attribute) {
            case MAX_THREADS: *value = int(bound < 1024 ? bound : 1024); return SUCCESS;
            case SHARED_BYTES: *value = int(static_shared_bytes(*function.entry)); return SUCCESS;
            case CONSTANT_BYTES:
            case LOCAL_BYTES: *value = 0; return SUCCESS;
            case REGISTERS: *value = 64; return SUCCESS;
            case MAX_DYNAMIC_SHARED:
                *value = int(dynamic_shared_max(function));
                return SUCCESS;
            default: return INVALID_VALUE;
        }
    });
}

EXPORT cuLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream_handle, void** parameters,
                      void** extra) {
    return call("cuLaunchKernel", Needs::context, [&](Call& call) -> unsigned {
        Function& function = function_of(handle);
        Stream& stream = stream_of(stream_handle);
        Device& device = *stream.device;
        Launch launch{function.entry, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, nullptr, 0};
        Task task;
        task.what = std::string("kernel=") + function.entry->name + " grid=" + triple(launch.grid) +
                    " block=" + triple(launch.block) + " shared=" + std::to_string(shared_bytes);
        task.counts = true;
        call.say("stream", stream.number);
        if (log_wanted()) call.log += " " + task.what;
        if (&device != &call.device() || function.module->device != &device)
            throw Failure{INVALID_HANDLE, "stream, function and context are of different devices"};
        const auto argument =
            std::make_shared<std::vector<unsigned char>>(argument_of(*function.entry, parameters, extra));
        launch.dynamic_max = dynamic_shared_max(function);
        if (const Outcome refused = refusal(launch); refused.code != 0)
            throw Failure{refused.code, std::string(function.entry->name) + ": " + refused.reason};
        const unsigned long long seed = configuration().seed;
        if (seed != 0) launch.seed = (seed + ++state().launches) * 0x9e3779b97f4a7c15ull | 2;
        const bool unreachable = names_unreachable(device, *argument);
        task.run = [launch, argument, unreachable, &device]() -> unsigned {
            Launch with = launch;
            with.argument = argument->data();
            return run_kernel(with, device, unreachable);
        };
        enqueue(stream, std::move(task));
        return SUCCESS;
    });
}
