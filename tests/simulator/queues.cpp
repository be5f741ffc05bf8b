// Streams and events: a thread for each stream, which runs its operations in order.
//
// Not here: what operations do (`memory.cpp`, `modules.cpp`).
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "log.h"
#include "state.h"

namespace simulator {

Stream& stream_of(void* handle) {
    auto* stream = static_cast<Stream*>(handle);
    if (state().streams.count(stream) != 0) return *stream;
    const bool is_default = reinterpret_cast<std::uintptr_t>(handle) <= 2;
    throw Failure{INVALID_HANDLE,
                  is_default ? "the default stream, which is not simulated" : "no stream of this driver"};
}

Event& event_of(void* handle) {
    auto* event = static_cast<Event*>(handle);
    if (state().events.count(event) != 0) return *event;
    throw Failure{INVALID_HANDLE, "no event of this driver"};
}

static void log_task(const char* when, const Stream& stream, const Task& task, const std::string& more) {
    if (log_wanted()) log_line(std::string(when) + " stream=" + std::to_string(stream.number) + " " + task.what + more);
}

// The error that the configuration has for this operation, or success.
static unsigned lost(Device& device) {
    device.operations++;
    for (const LostDevice& lost : configuration().lost) {
        if (lost.device != device.position || lost.operation != device.operations) continue;
        if (happens("lost-" + std::to_string(lost.device))) return lost.code;
    }
    return SUCCESS;
}

static void delay(Stream& stream) {
    stream.random = stream.random * 6364136223846793005ull + 1442695040888963407ull;  // Knuth's MMIX
    usleep(unsigned(stream.random >> 33) % (configuration().delay_us + 1));
}

static void run_one(Stream& stream, Task& task, std::unique_lock<std::mutex>& held) {
    Device& device = *stream.device;
    if (configuration().delay_us != 0) {
        held.unlock();
        delay(stream);
        held.lock();
    }
    if (task.moment != nullptr && !task.reaches) {
        state().done.wait(held, [&] { return task.moment->reached; });
    }
    log_task("begin", stream, task, "");
    unsigned result = device.error;
    if (result == SUCCESS && task.counts) result = lost(device);
    if (result == SUCCESS && task.run) {
        held.unlock();
        result = task.run();
        held.lock();
    }
    if (result != SUCCESS && device.error == SUCCESS) device.error = result;
    if (task.moment != nullptr && task.reaches) {
        task.moment->reached = true;
        task.moment->when = std::chrono::steady_clock::now();
    }
    log_task("end", stream, task, " result=" + std::to_string(result));
}

static void serve(Stream* stream) {
    std::unique_lock held(lock());
    for (;;) {
        stream->changed.wait(held, [&] { return !stream->queue.empty() || stream->closing; });
        if (stream->queue.empty()) break;
        Task task = std::move(stream->queue.front());
        stream->queue.pop_front();
        stream->busy = true;
        run_one(*stream, task, held);
        stream->busy = false;
        state().done.notify_all();
    }
    stream->device->streams.erase(stream);
    state().done.notify_all();
    delete stream;
}

void enqueue(Stream& stream, Task task) {
    stream.queue.push_back(std::move(task));
    stream.changed.notify_one();
}

static bool is_idle(const Device& device) {
    for (const Stream* stream : device.streams) {
        if (!stream->idle()) return false;
    }
    return true;
}

void wait_idle(Call& call, Device& device) {
    state().done.wait(call.held, [&] { return is_idle(device); });
}

static unsigned create_stream(Call& call, void** handle, unsigned flags) {
    constexpr unsigned NON_BLOCKING = 1;
    if (handle == nullptr || (flags & ~NON_BLOCKING) != 0) return INVALID_VALUE;
    Device& device = call.device();
    auto* stream = new Stream;
    stream->number = ++state().streams_made;
    stream->device = &device;
    stream->random = configuration().seed + stream->number;
    device.streams.insert(stream);
    state().streams.insert(stream);
    std::thread(serve, stream).detach();
    *handle = stream;
    call.say("stream", stream->number);
    return SUCCESS;
}

// The stream of a call, which is logged.
static Stream& told_stream(Call& call, void* handle) {
    Stream& stream = stream_of(handle);
    call.say("stream", stream.number);
    return stream;
}

static Event& told_event(Call& call, void* handle) {
    Event& event = event_of(handle);
    call.say("event", event.number);
    return event;
}

}  // namespace simulator

using namespace simulator;

EXPORT cuStreamCreate(void** stream, unsigned flags) {
    return call("cuStreamCreate", Needs::context, [&](Call& call) { return create_stream(call, stream, flags); });
}

EXPORT cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
    return call("cuStreamCreateWithPriority", Needs::context, [&](Call& call) {
        call.say("priority", std::to_string(priority));
        return create_stream(call, stream, flags);
    });
}

EXPORT cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    return call("cuCtxGetStreamPriorityRange", Needs::context, [&](Call&) {
        if (least != nullptr) *least = 0;
        if (greatest != nullptr) *greatest = -5;
        return SUCCESS;
    });
}

EXPORT cuStreamDestroy_v2(void* handle) {
    return call("cuStreamDestroy_v2", Needs::context, [&](Call& call) {
        Stream& stream = told_stream(call, handle);
        // Its thread ends after what was enqueued.
        state().streams.erase(&stream);
        stream.closing = true;
        stream.changed.notify_one();
        return SUCCESS;
    });
}

EXPORT cuStreamSynchronize(void* handle) {
    return call("cuStreamSynchronize", Needs::context, [&](Call& call) {
        Stream& stream = told_stream(call, handle);
        Device& device = *stream.device;
        state().done.wait(call.held, [&] { return device.streams.count(&stream) == 0 || stream.idle(); });
        return device.error;
    });
}

EXPORT cuStreamQuery(void* handle) {
    return call("cuStreamQuery", Needs::context, [&](Call& call) {
        const Stream& stream = told_stream(call, handle);
        return stream.device->error != 0 ? stream.device->error : stream.idle() ? SUCCESS : NOT_READY;
    });
}

EXPORT cuStreamWaitEvent(void* handle, void* event_handle, unsigned flags) {
    return call("cuStreamWaitEvent", Needs::context, [&](Call& call) -> unsigned {
        Stream& stream = told_stream(call, handle);
        const Event& event = told_event(call, event_handle);
        if (flags != 0) return INVALID_VALUE;
        // What is waited for is the record made last before this call.
        if (event.latest == nullptr) return SUCCESS;
        Task task;
        task.what = "wait event=" + std::to_string(event.number);
        task.moment = event.latest;
        enqueue(stream, std::move(task));
        return SUCCESS;
    });
}

EXPORT cuEventCreate(void** handle, unsigned flags) {
    return call("cuEventCreate", Needs::context, [&](Call& call) -> unsigned {
        constexpr unsigned BLOCKING_SYNC = 1, DISABLE_TIMING = 2;
        if (handle == nullptr || (flags & ~(BLOCKING_SYNC | DISABLE_TIMING)) != 0) return INVALID_VALUE;
        auto* event = new Event{++state().events_made, &call.device(), (flags & DISABLE_TIMING) == 0, nullptr};
        state().events.insert(event);
        *handle = event;
        call.say("event", event->number);
        return SUCCESS;
    });
}

EXPORT cuEventDestroy_v2(void* handle) {
    return call("cuEventDestroy_v2", Needs::context, [&](Call& call) {
        Event& event = told_event(call, handle);
        state().events.erase(&event);
        delete &event;
        return SUCCESS;
    });
}

EXPORT cuEventRecord(void* handle, void* stream_handle) {
    return call("cuEventRecord", Needs::context, [&](Call& call) -> unsigned {
        Event& event = told_event(call, handle);
        Stream& stream = told_stream(call, stream_handle);
        if (event.device != stream.device) throw Failure{INVALID_HANDLE, "event and stream are of different devices"};
        event.latest = std::make_shared<Moment>();
        Task task;
        task.what = "record event=" + std::to_string(event.number);
        task.moment = event.latest;
        task.reaches = true;
        enqueue(stream, std::move(task));
        return SUCCESS;
    });
}

EXPORT cuEventQuery(void* handle) {
    return call("cuEventQuery", Needs::context, [&](Call& call) {
        const Event& event = told_event(call, handle);
        if (event.device->error != 0) return event.device->error;
        return unsigned(event.latest == nullptr || event.latest->reached ? SUCCESS : NOT_READY);
    });
}

EXPORT cuEventSynchronize(void* handle) {
    return call("cuEventSynchronize", Needs::context, [&](Call& call) -> unsigned {
        const Event& event = told_event(call, handle);
        Device& device = *event.device;
        const std::shared_ptr<Moment> moment = event.latest;
        if (moment != nullptr) state().done.wait(call.held, [&] { return moment->reached; });
        return device.error;
    });
}

static unsigned elapsed(const char* name, float* milliseconds, void* start_handle, void* end_handle) {
    return call(name, Needs::context, [&](Call&) -> unsigned {
        const Event &start = event_of(start_handle), &end = event_of(end_handle);
        if (milliseconds == nullptr) return INVALID_VALUE;
        if (start.device != end.device || !start.timing || !end.timing) return INVALID_HANDLE;
        if (start.latest == nullptr || end.latest == nullptr) return INVALID_HANDLE;
        if (!start.latest->reached || !end.latest->reached) return NOT_READY;
        *milliseconds = std::chrono::duration<float, std::milli>(end.latest->when - start.latest->when).count();
        return SUCCESS;
    });
}

EXPORT cuEventElapsedTime(float* milliseconds, void* start, void* end) {
    return elapsed("cuEventElapsedTime", milliseconds, start, end);
}

EXPORT cuEventElapsedTime_v2(float* milliseconds, void* start, void* end) {
    return elapsed("cuEventElapsedTime_v2", milliseconds, start, end);
}

EXPORT cuLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
    return call("cuLaunchHostFunc", Needs::context, [&](Call& call) -> unsigned {
        Stream& stream = told_stream(call, handle);
        if (function == nullptr) return INVALID_VALUE;
        Task task;
        task.what = "host_function";
        task.run = [function, data]() -> unsigned {
            in_host_function = true;
            function(data);
            in_host_function = false;
            return SUCCESS;
        };
        enqueue(stream, std::move(task));
        return SUCCESS;
    });
}
