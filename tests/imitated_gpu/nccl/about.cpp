// What the library says of itself, and memory.
#include <nccl.h>

#include "imitation.h"

API ncclResult_t ncclGetVersion(int* version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

API const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclUnhandledCudaError: return "unhandled cuda error";
        case ncclSystemError: return "unhandled system error";
        case ncclInternalError: return "internal error";
        case ncclInvalidArgument: return "invalid argument";
        case ncclInvalidUsage: return "invalid usage";
        case ncclRemoteError: return "remote process exited or there was a network error";
        case ncclInProgress: return "NCCL operation in progress";
        default: return "unknown result code";
    }
}

API const char* ncclGetLastError(ncclComm_t) { return "(the imitated NCCL keeps no messages)"; }

API ncclResult_t ncclMemAlloc(void** address, size_t bytes) {
    return cudaMalloc(address, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

API ncclResult_t ncclMemFree(void* address) { return cudaFree(address) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError; }
