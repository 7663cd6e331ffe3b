// CUDA kernels are registered but cannot run here. One that is launched all the same fails, so that no result is silently wrong.
// Only the kernel of torch.cuda._sleep is imitated: it keeps the stream busy for as many nanoseconds as it is given cycles.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "device.h"
#include "stream.h"

using namespace imitated;

namespace {
struct Kernels {
    std::mutex mutex;
    std::unordered_map<const void*, const char*> names;
};

Kernels& kernels() {
    static auto& made = *new Kernels;
    return made;
}

const char* name_of(const void* function) {
    std::lock_guard lock(kernels().mutex);
    auto found = kernels().names.find(function);
    return found == kernels().names.end() ? "(unknown)" : found->second;
}

std::atomic<long> skipped_kernels{0};

struct Configuration {
    dim3 grid, block;
    size_t shared;
    void* stream;
};

thread_local Configuration configuration;

void sleep_on_device(int64_t nanoseconds) { std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds)); }
}  // namespace

API long imitated_gpu_skipped_kernels() { return skipped_kernels; }

API void** __cudaRegisterFatBinary(void*) {
    static void* handle;
    return &handle;
}

API void __cudaRegisterFatBinaryEnd(void**) {}

API void __cudaUnregisterFatBinary(void**) {}

API void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*, void*, void*, void*, int*) {
    std::lock_guard lock(kernels().mutex);
    kernels().names.emplace(function, name);
}

API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
    configuration = {grid, block, shared, stream};
    return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    *grid = configuration.grid;
    *block = configuration.block;
    *shared = configuration.shared;
    *(void**)stream = configuration.stream;
    return cudaSuccess;
}

API cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
    RETURN_IF_DEVICE_FAILED
    const char* name = name_of(function);
    if (strstr(name, "spin_kernel")) {
        stream_of(stream)->add_kernel([nanoseconds = *(int64_t*)arguments[0]] { sleep_on_device(nanoseconds); });
        return cudaSuccess;
    }
    ++skipped_kernels;
    fprintf(stderr, "imitated GPU: no CPU operator stands for this kernel: %.200s\n", name);
    return fail(cudaErrorNotSupported);
}

API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                                   cudaStream_t stream) {
    return cudaLaunchKernel((const void*)kernel, grid, block, arguments, shared, stream);
}

API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}

API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
    return cudaLaunchKernel(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, config->stream);
}

API cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                                            cudaStream_t stream) {
    return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}

API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->binaryVersion = attributes->ptxVersion = 90;
    return cudaSuccess;
}

API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void*, int, size_t) {
    *count = 2;
    return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int, size_t, unsigned) {
    *count = 2;
    return cudaSuccess;
}
