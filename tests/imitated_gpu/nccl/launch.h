// What one group posts on one communicator: it runs on a stream, as one kernel.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

#include "communicator.h"

namespace imitated {

enum class Kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE };

struct Operation {
    Kind kind;
    const void* in;
    void* out;
    size_t count;  // elements, as NCCL counts them: of one rank for all-gather and reduce-scatter
    ncclDataType_t type;
    Reduction reduction = {};
    int peer = 0;  // of send and receive; root of broadcast and reduce

    size_t bytes() const { return count * width_of(type); }
    size_t out_bytes(int ranks) const { return kind == Kind::ALL_GATHER ? bytes() * ranks : bytes(); }
};

struct Launch {
    ncclComm* comm;
    cudaStream_t stream;
    std::vector<Operation> operations;
    uint64_t number = 0;
};

bool run_collective(ncclComm* comm, const Operation& operation);
bool run_transfers(ncclComm* comm, const std::vector<Operation>& operations);

void at_end_of_group(std::function<void()> action);  // at once outside a group

}  // namespace imitated
