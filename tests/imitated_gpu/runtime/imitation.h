// What the imitated CUDA runtime offers beside CUDA's own functions: to the imitated NCCL, to the operators and to Python.
#pragma once
#include <cuda_runtime_api.h>

#define API extern "C" __attribute__((visibility("default")))

// Queues a function on a stream. It runs also after the device has failed, and may ask whether it has.
API void imitated_gpu_run(cudaStream_t stream, void (*run)(void*), void* argument);

// Keeps a stream busy until all that are held are released.
API void imitated_gpu_hold(cudaStream_t stream);
API void imitated_gpu_release();

// The sticky error, or cudaSuccess. All devices of a process share it.
API cudaError_t imitated_gpu_device_error();
API void imitated_gpu_fail_device(cudaError_t error);

// Whether this fault is ordered here and now: the seconds that go with it, or a negative number. An answer that is not negative
// means that the fault happens: it is written down as fired.
API double imitated_gpu_fault(const char* fault);

// What Python reads. Bytes are those of all devices of this process.
API long imitated_gpu_device_bytes();
API long imitated_gpu_pinned_bytes();
API long imitated_gpu_live_streams();
API long imitated_gpu_live_events();
API long imitated_gpu_skipped_kernels();
API long imitated_gpu_host_waits();  // calls that wait for the device: synchronize, copies to pageable memory, cudaFree
