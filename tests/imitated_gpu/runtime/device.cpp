// Devices, what they say of themselves, errors, and the few answers of the driver that torch needs.
#include "device.h"

#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "driver.h"

namespace {
std::atomic<cudaError_t> sticky_error{cudaSuccess};
thread_local cudaError_t last_error = cudaSuccess;
thread_local int chosen_device = 0;

// As many as asked for, or fewer if CUDA_VISIBLE_DEVICES names fewer.
int count_devices() {
    const char* wanted = getenv(imitated::names::DEVICES_VARIABLE);
    const char* visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = wanted ? atoi(wanted) : 8;
    if (!visible) return count;
    int named = *visible && *visible != '-' ? 1 + std::count(visible, visible + strlen(visible), ',') : 0;
    return std::min(count, named);
}
}  // namespace

namespace imitated {
cudaError_t fail(cudaError_t error) {
    last_error = error;
    return error;
}

int device_count() {
    static const int count = count_devices();
    return count;
}

int current_device() { return chosen_device; }
}  // namespace imitated

using namespace imitated;

API cudaError_t imitated_gpu_device_error() { return sticky_error; }

API void imitated_gpu_fail_device(cudaError_t error) {
    auto none = cudaSuccess;
    sticky_error.compare_exchange_strong(none, error);
}

API long imitated_gpu_host_waits() { return host_waits; }

API cudaError_t cudaGetDeviceCount(int* count) {
    *count = device_count();
    return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}

API cudaError_t cudaGetDevice(int* device) {
    *device = chosen_device;
    return cudaSuccess;
}

API cudaError_t cudaSetDevice(int device) {
    RETURN_IF_DEVICE_FAILED
    if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
    chosen_device = device;
    return cudaSuccess;
}

API cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

API cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

API cudaError_t cudaGetLastError() {
    auto error = last_error;
    last_error = cudaSuccess;
    return sticky_error != cudaSuccess ? sticky_error.load() : error;
}

API cudaError_t cudaPeekAtLastError() { return sticky_error != cudaSuccess ? sticky_error.load() : last_error; }

API const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorNotReady: return "device not ready";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
        case cudaErrorAssert: return "device-side assert triggered";
        case cudaErrorNotSupported: return "operation not supported (the imitated GPU does not have it)";
        default: return "unknown error";
    }
}

API const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "cudaSuccess";
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorNotReady: return "cudaErrorNotReady";
        case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
        case cudaErrorAssert: return "cudaErrorAssert";
        case cudaErrorNotSupported: return "cudaErrorNotSupported";
        default: return "cudaErrorUnknown";
    }
}

// What decides how torch splits its work is like that of a large device of compute capability 9.0.
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
    auto& p = *properties;
    memset(&p, 0, sizeof p);
    strcpy(p.name, "imitated GPU");
    memcpy(p.uuid.bytes, "imitated GPU", 12);
    p.uuid.bytes[15] = (char)device;
    p.pciBusID = device + 1;
    p.major = 9;
    p.multiProcessorCount = 132;
    p.warpSize = 32;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsPerMultiProcessor = 2048;
    cudaMemGetInfo(&p.sharedMemPerBlock, &p.totalGlobalMem);
    p.sharedMemPerBlock = 48 << 10;
    p.regsPerBlock = 1 << 16;
    p.maxGridSize[0] = INT32_MAX;
    p.maxGridSize[1] = p.maxGridSize[2] = UINT16_MAX;
    p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
    p.maxThreadsDim[2] = 64;
    p.textureAlignment = 512;
    p.unifiedAddressing = 1;
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
        case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
        case cudaDevAttrMultiProcessorCount: *value = 132; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        default: *value = 0;
    }
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
    *can = 0;
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
    snprintf(id, length, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

API cudaError_t cudaProfilerStart() { return cudaSuccess; }

API cudaError_t cudaProfilerStop() { return cudaSuccess; }

API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                 cudaDriverEntryPointQueryResult* result) {
    bool known = !strcmp(name, "cuDevicePrimaryCtxGetState");
    if (!known && tracing()) fprintf(stderr, "imitated GPU: %s is not imitated\n", name);
    *function = known ? (void*)primary_context_state : (void*)driver_function_missing;
    if (result) *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
