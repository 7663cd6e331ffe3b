// Groups, and how a launch runs. An aborted one ends without an error and leaves garbage; what is queued behind it runs.
#include "launch.h"

#include <cstdio>
#include <cstring>

#include "imitation.h"
#include "names.h"

using namespace imitated;

namespace {
struct Group {
    int depth = 0;
    std::vector<Launch> launches;
    std::vector<std::function<void()>> at_end;
};

thread_local Group group;

bool run_operations(Launch& launch) {
    auto* comm = launch.comm;
    if (is_lost(comm) || !wait_for(comm, [&] { return comm->finished >= launch.number; })) return false;
    for (auto& operation : launch.operations) {
        bool is_transfer = operation.kind == Kind::SEND || operation.kind == Kind::RECEIVE;
        if (!is_transfer && !run_collective(comm, operation)) return false;
    }
    return run_transfers(comm, launch.operations);
}

void run(void* argument) {
    auto* launch = (Launch*)argument;
    auto* comm = launch->comm;
    if (!run_operations(*launch)) {
        for (auto& operation : launch->operations) {
            if (operation.out) memset(operation.out, 0xFF, operation.out_bytes(comm->size));  // NaN, or -1
        }
    }
    delete launch;
    ++comm->finished;
    --comm->unfinished;  // the last touch: the communicator may be gone behind it
}

ncclResult_t start(Launch&& launch) {
    auto* comm = launch.comm;
    if (imitated_gpu_device_error()) return ncclUnhandledCudaError;
    ++comm->unfinished;
    launch.number = comm->posted++;
    imitated_gpu_run(launch.stream, run, new Launch(std::move(launch)));
    return ncclSuccess;
}

ncclResult_t post(ncclComm* comm, cudaStream_t stream, Operation operation) {
    static const bool tracing = getenv(names::TRACE_VARIABLE);
    if (comm->aborted) return ncclInvalidUsage;
    if (comm->state != ncclSuccess) return comm->state == ncclInProgress ? ncclInvalidUsage : comm->state.load();
    if (tracing) fprintf(stderr, "imitated NCCL: rank %d kind %d count %zu\n", comm->rank, (int)operation.kind, operation.count);
    if (!group.depth) return start({comm, stream, {operation}});
    for (auto& launch : group.launches) {
        if (launch.comm == comm && launch.stream == stream) return launch.operations.push_back(operation), ncclSuccess;
    }
    group.launches.push_back({comm, stream, {operation}});
    return ncclSuccess;
}

Reduction reduction_of(ncclComm* comm, ncclRedOp_t op) {
    std::lock_guard lock(comm->mutex);
    auto made = comm->reductions.find(op);
    return made == comm->reductions.end() ? Reduction{op} : made->second;
}

ncclResult_t post_reduction(ncclComm* comm, cudaStream_t stream, Operation operation, ncclRedOp_t op) {
    if (!is_reducible(operation.type)) return ncclInvalidArgument;
    operation.reduction = reduction_of(comm, op);
    return post(comm, stream, operation);
}
}  // namespace

namespace imitated {
void at_end_of_group(std::function<void()> action) {
    if (!group.depth) return action();
    group.at_end.push_back(std::move(action));
}
}  // namespace imitated

API ncclResult_t ncclGroupStart() {
    ++group.depth;
    return ncclSuccess;
}

API ncclResult_t ncclGroupEnd() {
    if (!group.depth) return ncclInvalidUsage;
    if (--group.depth) return ncclSuccess;
    auto whole = std::move(group);
    group = {};
    auto result = ncclSuccess;
    for (auto& launch : whole.launches) {
        auto started = start(std::move(launch));
        if (result == ncclSuccess) result = started;
    }
    for (auto& action : whole.at_end) action();
    return result;
}

API ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
    return post_reduction(comm, stream, {Kind::ALL_REDUCE, in, out, count, type}, op);
}

API ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                            ncclComm_t comm, cudaStream_t stream) {
    return post_reduction(comm, stream, {Kind::REDUCE, in, comm->rank == root ? out : nullptr, count, type, {}, root}, op);
}

API ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                   cudaStream_t stream) {
    return post_reduction(comm, stream, {Kind::REDUCE_SCATTER, in, out, count, type}, op);
}

API ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                               cudaStream_t stream) {
    return post(comm, stream, {Kind::BROADCAST, in, out, count, type, {}, root});
}

API ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

API ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    return post(comm, stream, {Kind::ALL_GATHER, in, out, count, type});
}

API ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return post(comm, stream, {Kind::SEND, in, nullptr, count, type, {}, peer});
}

API ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return post(comm, stream, {Kind::RECEIVE, nullptr, out, count, type, {}, peer});
}

API ncclResult_t ncclAlltoAll(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    size_t bytes = count * width_of(type);
    ncclGroupStart();
    for (int rank = 0; rank < comm->size; ++rank) {
        ncclSend((const char*)in + rank * bytes, count, type, rank, comm, stream);
        ncclRecv((char*)out + rank * bytes, count, type, rank, comm, stream);
    }
    return ncclGroupEnd();
}
