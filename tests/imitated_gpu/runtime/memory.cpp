// Device memory is mapped host memory; pinned memory is ordinary memory that is remembered.
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "device.h"
#include "stream.h"

using namespace imitated;

namespace {
using Lock = std::unique_lock<std::mutex>;

constexpr size_t DEVICE_BYTES = 8ull << 30;  // of each device
constexpr size_t PAGE_BYTES = 4096;

struct Range {
    size_t bytes;
    int device;
};

class Ranges {
  public:
    void add(const void* address, Range range) {
        Lock lock(mutex_);
        ranges_[(char*)address] = range;
        bytes_[range.device] += range.bytes;
    }
    bool remove(const void* address, Range& removed) {
        Lock lock(mutex_);
        auto found = ranges_.find((char*)address);
        if (found == ranges_.end()) return false;
        removed = found->second;
        bytes_[removed.device] -= removed.bytes;
        ranges_.erase(found);
        return true;
    }
    const Range* find(const void* address) {  // of what is freed meanwhile the caller has a bug anyway
        Lock lock(mutex_);
        auto after = ranges_.upper_bound((char*)address);
        if (after == ranges_.begin()) return nullptr;
        auto before = std::prev(after);
        return (char*)address < before->first + before->second.bytes ? &before->second : nullptr;
    }
    size_t bytes_of(int device) {
        Lock lock(mutex_);
        return bytes_[device];
    }
    long bytes() {
        Lock lock(mutex_);
        long sum = 0;
        for (auto& [device, bytes] : bytes_) sum += bytes;
        return sum;
    }

  private:
    std::mutex mutex_;
    std::map<char*, Range> ranges_;
    std::map<int, size_t> bytes_;
};

Ranges& device_memory() {
    static auto& ranges = *new Ranges;
    return ranges;
}

Ranges& pinned_memory() {
    static auto& ranges = *new Ranges;
    return ranges;
}

bool is_pageable(const void* address) { return !device_memory().find(address) && !pinned_memory().find(address); }
}  // namespace

API long imitated_gpu_device_bytes() { return device_memory().bytes(); }

API long imitated_gpu_pinned_bytes() { return pinned_memory().bytes(); }

API cudaError_t cudaMalloc(void** address, size_t bytes) {
    RETURN_IF_DEVICE_FAILED
    int device = current_device();
    bytes = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    if (device_memory().bytes_of(device) + bytes > DEVICE_BYTES) return fail(cudaErrorMemoryAllocation);
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return fail(cudaErrorMemoryAllocation);
    device_memory().add(mapped, {bytes, device});
    *address = mapped;
    return cudaSuccess;
}

// Waits for the whole device, as the real one does: it hangs behind a collective that hangs.
API cudaError_t cudaFree(void* address) {
    if (!address) return cudaSuccess;
    auto* range = device_memory().find(address);
    if (!range) return fail(cudaErrorInvalidValue);
    ++host_waits;
    synchronize_device(range->device);
    Range removed;
    if (!device_memory().remove(address, removed)) return fail(cudaErrorInvalidValue);
    munmap(address, removed.bytes);
    RETURN_IF_DEVICE_FAILED
    return cudaSuccess;
}

API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    RETURN_IF_DEVICE_FAILED
    *free = DEVICE_BYTES - device_memory().bytes_of(current_device());
    *total = DEVICE_BYTES;
    return cudaSuccess;
}

API cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
    RETURN_IF_DEVICE_FAILED
    pinned_memory().add(address, {bytes, current_device()});
    return cudaSuccess;
}

API cudaError_t cudaHostUnregister(void* address) {
    Range removed;
    return pinned_memory().remove(address, removed) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

API cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned flags) {
    RETURN_IF_DEVICE_FAILED
    if (posix_memalign(address, PAGE_BYTES, bytes ? bytes : 1)) return fail(cudaErrorMemoryAllocation);
    return cudaHostRegister(*address, bytes, flags);
}

API cudaError_t cudaFreeHost(void* address) {
    auto result = cudaHostUnregister(address);
    if (result == cudaSuccess) free(address);
    return result;
}

API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    *attributes = {};
    auto* on_device = device_memory().find(address);
    auto* pinned = pinned_memory().find(address);
    attributes->type = on_device ? cudaMemoryTypeDevice : pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    attributes->device = on_device ? on_device->device : pinned ? pinned->device : -2;
    attributes->hostPointer = on_device ? nullptr : (void*)address;
    attributes->devicePointer = on_device || pinned ? (void*)address : nullptr;
    return cudaSuccess;
}

// From pageable memory: the content is taken at once, the host goes on. To pageable memory: the host waits.
API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t handle) {
    RETURN_IF_DEVICE_FAILED
    auto stream = stream_of(handle);
    if (is_pageable(from)) {
        stream->add_kernel([=, staged = std::string((const char*)from, bytes)] { memcpy(to, staged.data(), bytes); });
    } else {
        stream->add_kernel([=] { memmove(to, from, bytes); });
    }
    return is_pageable(to) ? cudaStreamSynchronize(handle) : cudaSuccess;
}

API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    auto result = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    return result ? result : cudaStreamSynchronize(nullptr);
}

API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

API cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
    RETURN_IF_DEVICE_FAILED
    stream_of(stream)->add_kernel([=] { memset(address, value, bytes); });
    return cudaSuccess;
}

API cudaError_t cudaMemset(void* address, int value, size_t bytes) { return cudaMemsetAsync(address, value, bytes, nullptr); }
