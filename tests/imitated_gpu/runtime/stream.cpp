#include "stream.h"

#include <algorithm>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "device.h"

namespace imitated {
namespace {
using Lock = std::unique_lock<std::mutex>;

std::atomic<long> live_streams{0};
std::atomic<long> live_events{0};

// Never destroyed: the threads of streams outlive static objects.
struct Registry {
    std::mutex mutex;
    std::set<StreamPtr> created;
    std::map<int, StreamPtr> defaults;  // by device
    std::condition_variable released;
    uint64_t releases = 0;
};

Registry& registry() {
    static auto& made = *new Registry;
    return made;
}
}  // namespace

Stream::Stream(int device, int priority) : device(device), priority(priority) { ++live_streams; }

Stream::~Stream() { --live_streams; }

void Stream::run() {
    Lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return closed_ || !queue_.empty(); });
        if (queue_.empty()) return;
        Work work = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        bool fails = !imitated_gpu_device_error() && imitated_gpu_fault(names::DEVICE_ERROR) >= 0;
        if (fails) imitated_gpu_fail_device(cudaErrorIllegalAddress);
        work();
        work = nullptr;
        lock.lock();
        ++finished_;
        changed_.notify_all();
    }
}

void Stream::add(Work work) {
    Lock lock(mutex_);
    if (!started_) std::thread([self = shared_from_this()] { self->run(); }).detach();
    started_ = true;
    queue_.push_back(std::move(work));
    ++added_;
    changed_.notify_all();
}

void Stream::add_kernel(Work work) {
    add([work = std::move(work)] {
        if (!imitated_gpu_device_error()) work();
    });
}

bool Stream::idle() {
    Lock lock(mutex_);
    return added_ == finished_;
}

void Stream::synchronize() {
    Lock lock(mutex_);
    auto until = added_;
    changed_.wait(lock, [&] { return finished_ >= until; });
}

void Stream::close() {
    Lock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
}

// 0, the legacy default stream and the per-thread one are the same here.
StreamPtr stream_of(cudaStream_t handle) {
    if ((uintptr_t)handle > 2) return ((Stream*)handle)->shared_from_this();
    auto& all = registry();
    Lock lock(all.mutex);
    auto& stream = all.defaults[current_device()];
    if (!stream) stream = std::make_shared<Stream>(current_device(), 0);
    return stream;
}

void synchronize_device(int device) {
    auto& all = registry();
    std::vector<StreamPtr> of_device;
    {
        Lock lock(all.mutex);
        for (auto& stream : all.created) {
            if (stream->device == device) of_device.push_back(stream);
        }
        if (all.defaults.count(device)) of_device.push_back(all.defaults[device]);
    }
    for (auto& stream : of_device) stream->synchronize();
}

Event::Event() { ++live_events; }

Event::~Event() { --live_events; }

void Event::record(Stream& stream, std::shared_ptr<Event> self) {
    uint64_t number;
    {
        Lock lock(mutex_);
        number = ++recorded_;
    }
    stream.add([self, number] {
        Lock lock(self->mutex_);
        self->reached_ = std::max(self->reached_, number);
        self->time_ = std::chrono::steady_clock::now();
        self->changed_.notify_all();
    });
}

bool Event::reached() {
    Lock lock(mutex_);
    return reached_ == recorded_;
}

uint64_t Event::last() {
    Lock lock(mutex_);
    return recorded_;
}

void Event::wait(uint64_t recording) {
    Lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_ >= recording; });
}

void Event::wait_for_last() { wait(last()); }

void Event::hold_up(Stream& stream, std::shared_ptr<Event> self) {
    stream.add([self, recording = last()] { self->wait(recording); });
}

std::chrono::steady_clock::time_point Event::time() {
    Lock lock(mutex_);
    return time_;
}
}  // namespace imitated

using namespace imitated;

namespace {
using EventPtr = std::shared_ptr<Event>;

EventPtr& event_of(cudaEvent_t handle) { return *(EventPtr*)handle; }
}  // namespace

API void imitated_gpu_run(cudaStream_t stream, void (*run)(void*), void* argument) {
    stream_of(stream)->add([=] { run(argument); });
}

API void imitated_gpu_hold(cudaStream_t stream) {
    auto held = stream_of(stream);
    Lock lock(registry().mutex);
    held->add([before = registry().releases] {
        Lock lock(registry().mutex);
        registry().released.wait(lock, [&] { return registry().releases != before; });
    });
}

API void imitated_gpu_release() {
    Lock lock(registry().mutex);
    ++registry().releases;
    registry().released.notify_all();
}

API long imitated_gpu_live_streams() { return live_streams; }

API long imitated_gpu_live_events() { return live_events; }

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned, int priority) {
    RETURN_IF_DEVICE_FAILED
    auto stream = std::make_shared<Stream>(current_device(), priority);
    *handle = (cudaStream_t)stream.get();
    Lock lock(registry().mutex);
    registry().created.insert(stream);
    return cudaSuccess;
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
    return cudaStreamCreateWithPriority(handle, flags, 0);
}

API cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }

API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    auto stream = stream_of(handle);
    stream->close();
    Lock lock(registry().mutex);
    registry().created.erase(stream);
    return cudaSuccess;
}

API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
    *priority = stream_of(handle)->priority;
    return cudaSuccess;
}

API cudaError_t cudaStreamQuery(cudaStream_t handle) {
    RETURN_IF_DEVICE_FAILED
    return stream_of(handle)->idle() ? cudaSuccess : fail(cudaErrorNotReady);
}

API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    ++host_waits;
    stream_of(handle)->synchronize();
    RETURN_IF_DEVICE_FAILED
    return cudaSuccess;
}

API cudaError_t cudaDeviceSynchronize() {
    ++host_waits;
    synchronize_device(current_device());
    RETURN_IF_DEVICE_FAILED
    return cudaSuccess;
}

API cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
    RETURN_IF_DEVICE_FAILED
    stream_of(handle)->add_kernel([=] { function(argument); });
    return cudaSuccess;
}

API cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* argument, unsigned) {
    RETURN_IF_DEVICE_FAILED
    stream_of(handle)->add([=] { function(handle, imitated_gpu_device_error(), argument); });
    return cudaSuccess;
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
    RETURN_IF_DEVICE_FAILED
    event_of(event)->hold_up(*stream_of(handle), event_of(event));
    return cudaSuccess;
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned) {
    RETURN_IF_DEVICE_FAILED
    *handle = (cudaEvent_t) new EventPtr(std::make_shared<Event>());
    return cudaSuccess;
}

API cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, 0); }

// What a stream still has to do with the event holds it until then.
API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    delete &event_of(handle);
    return cudaSuccess;
}

API cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
    RETURN_IF_DEVICE_FAILED
    event_of(handle)->record(*stream_of(stream), event_of(handle));
    return cudaSuccess;
}

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned) {
    return cudaEventRecord(handle, stream);
}

API cudaError_t cudaEventQuery(cudaEvent_t handle) {
    RETURN_IF_DEVICE_FAILED
    return event_of(handle)->reached() ? cudaSuccess : fail(cudaErrorNotReady);
}

API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    ++host_waits;
    event_of(handle)->wait_for_last();
    RETURN_IF_DEVICE_FAILED
    return cudaSuccess;
}

API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
    RETURN_IF_DEVICE_FAILED
    if (!event_of(from)->reached() || !event_of(to)->reached()) return fail(cudaErrorNotReady);
    *milliseconds = std::chrono::duration<float, std::milli>(event_of(to)->time() - event_of(from)->time()).count();
    return cudaSuccess;
}

// No graphs: nothing is ever being captured.

API cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t*,
                                         const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t* count) {
    *status = cudaStreamCaptureStatusNone;
    if (id) *id = 0;
    if (count) *count = 0;
    return cudaSuccess;
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
