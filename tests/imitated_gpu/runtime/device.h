// The state that all parts of the imitated runtime share: errors, counts, tracing.
#pragma once
#include <atomic>
#include <cstdlib>

#include "imitation.h"
#include "names.h"

namespace imitated {

// What torch finds wrong with its last call is kept per thread, as CUDA does. A sticky error outlasts being read.
cudaError_t fail(cudaError_t error);

inline std::atomic<long> host_waits{0};

inline bool tracing() {
    static const bool on = getenv(names::TRACE_VARIABLE);
    return on;
}

int device_count();
int current_device();

}  // namespace imitated

// First line of every function that touches the device.
#define RETURN_IF_DEVICE_FAILED                                    \
    if (auto sticky = imitated_gpu_device_error(); sticky)         \
        return imitated::fail(sticky);
