// The state itself, the frame of each call, and the log.
#include "state.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "log.h"

namespace simulator {

thread_local Device* current = nullptr;
thread_local bool in_host_function = false;

State& state() {
    static State& state = *new State;
    return state;
}

std::mutex& lock() {
    static std::mutex& lock = *new std::mutex;
    return lock;
}

bool log_wanted() { return !configuration().log.empty(); }

void log_line(const std::string& line) {
    static std::FILE* file = std::fopen(configuration().log.c_str(), "ae");
    if (file == nullptr) {
        std::perror("BERTH_SIMULATOR: log");
        std::abort();
    }
    // One write a line, since processes share the file.
    const std::string whole = std::to_string(getpid()) + " " + line + "\n";
    std::fwrite(whole.data(), 1, whole.size(), file);
    std::fflush(file);
}

void Call::say(const char* key, unsigned long long value) { say(key, std::to_string(value)); }

void Call::say(const char* key, const std::string& value) {
    if (log_wanted()) log += std::string(" ") + key + "=" + value;
}

Device& Call::device() {
    if (current == nullptr || current->retained == 0) throw Failure{INVALID_CONTEXT, ""};
    return *current;
}

bool happens(const std::string& fault) {
    if (!configuration().passing) return true;
    const int file = open((configuration().folder + "/fault-" + fault).c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return false;
    close(file);
    return true;
}

bool breaks_context(unsigned code) {
    return code == 700 || code == 702 || code == 710 || (code >= 714 && code <= 719) || code == 721 || code == 999;
}

// The configured error of this call, or success.
static unsigned injected(const char* name) {
    const unsigned long number = ++state().calls[name];
    for (const FailingCall& failing : configuration().failing) {
        if (failing.function == name && failing.call == number && happens(failing.function)) return failing.code;
    }
    return SUCCESS;
}

unsigned call(const char* name, Needs needs, const std::function<unsigned(Call&)>& body) {
    if (in_host_function) {
        std::fprintf(stderr, "simulator: %s within a host function\n", name);
        return NOT_PERMITTED;
    }
    Call call{name, std::unique_lock(lock()), {}};
    unsigned result;
    try {
        if (needs != Needs::nothing && !state().initialised) throw Failure{NOT_INITIALIZED, ""};
        if (needs == Needs::context) {
            Device& device = call.device();
            call.say("device", device.position);
            if (device.error != 0) throw Failure{device.error, ""};
        }
        result = injected(name);
        if (breaks_context(result) && needs == Needs::context) call.device().error = result;
        if (result == SUCCESS) result = body(call);
    } catch (const Failure& failure) {
        result = failure.code;
        if (!failure.reason.empty()) std::fprintf(stderr, "simulator: %s: %s\n", name, failure.reason.c_str());
    }
    if (log_wanted()) {
        std::size_t used = 0;
        for (const auto& device : state().devices) used += device->charged_bytes;
        log_line(std::string("call ") + name + call.log + " result=" + std::to_string(result) +
                 " used=" + std::to_string(used));
    }
    return result;
}

}  // namespace simulator
