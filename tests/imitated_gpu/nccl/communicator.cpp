// How a communicator comes to be, fails and ends.
#include "communicator.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>
#include <vector>

#include "imitation.h"
#include "launch.h"
#include "names.h"

using namespace imitated;

namespace {
constexpr size_t DEVICE_BUFFER_BYTES = 4 << 20;

std::atomic<long> live_communicators{0};
std::atomic<long> split_communicators{0};

ncclComm* new_communicator(int rank, int size) {
    auto* comm = new ncclComm;
    comm->rank = rank;
    comm->size = size;
    cudaGetDevice(&comm->device);
    ++live_communicators;
    return comm;
}

bool is_blocking(const ncclConfig_t* config) { return !config || config->blocking != 0; }

std::string random_name() {
    unsigned char bytes[8];
    if (getentropy(bytes, sizeof bytes) != 0) abort();
    std::string name;
    for (auto byte : bytes) name += "0123456789abcdef"[byte >> 4], name += "0123456789abcdef"[byte & 15];
    return name;
}

ncclResult_t meet(ncclComm* comm, const std::function<bool()>& find_name) {
    auto aborted = [&] { return comm->aborted.load(); };
    if (!find_name()) return ncclInternalError;
    if (imitated_gpu_fault(names::MISSING_PEER) >= 0) {
        while (!aborted()) pause_us(1000);
        return ncclInternalError;
    }
    double delay_s = imitated_gpu_fault(names::SLOW_INIT);
    auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::clamp(delay_s, 0.0, 1e6));
    while (std::chrono::steady_clock::now() < until && !aborted()) pause_us(1000);
    cudaSetDevice(comm->device);  // this may be a thread of its own
    if (cudaMalloc(&comm->device_buffer, DEVICE_BUFFER_BYTES) != cudaSuccess) return ncclUnhandledCudaError;
    comm->segment = map_segment(comm->name, comm->size);
    if (!comm->segment) return ncclSystemError;
    comm->segment->process[comm->rank] = getpid();
    ++comm->segment->joined;
    bool complete = wait_for(comm, [&] { return comm->segment->joined == comm->size; });
    forget_segment(comm->name);  // all have it, or nobody may: nothing is left behind, whoever dies
    return complete ? ncclSuccess : ncclInternalError;
}

SplitWish* wishes_of(ncclComm* parent, uint64_t number) { return parent->segment->wishes[number % SPLITS_AT_ONCE]; }

// Learns rank, size and name of a communicator that is split off, once all ranks of the parent have said what they want.
bool find_place(ncclComm* comm, ncclComm* parent, uint64_t number) {
    auto* wishes = wishes_of(parent, number);
    int color = wishes[parent->rank].color;
    std::vector<std::pair<int, int>> members;  // key and old rank
    for (int rank = 0; rank < parent->size; ++rank) {
        bool said = wait_for(parent, [&] { return wishes[rank].number == number || comm->aborted; });
        if (!said || comm->aborted) return false;
        if (wishes[rank].color == color) members.emplace_back(wishes[rank].key, rank);
    }
    std::sort(members.begin(), members.end());
    auto is_this = [&](auto& member) { return member.second == parent->rank; };
    comm->rank = std::find_if(members.begin(), members.end(), is_this) - members.begin();
    comm->size = members.size();
    int owner = parent->segment->process[members[0].second];
    auto rest = parent->name.substr(parent->name.rfind('-') + 1);
    comm->name = new_segment_name(owner, rest + "." + std::to_string(number) + "." + std::to_string(color));
    return true;
}
}  // namespace

namespace imitated {
void pause_us(int microseconds) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); }

bool is_lost(const ncclComm* comm) { return comm->aborted || imitated_gpu_device_error(); }

// A communicator that has failed comes to no end by itself, whatever its peers do.
static bool has_failed(const ncclComm* comm) { return comm->state != ncclSuccess && comm->state != ncclInProgress; }

bool wait_for(const ncclComm* comm, const std::function<bool()>& true_now) {
    while (has_failed(comm) || !true_now()) {
        if (is_lost(comm)) return false;
        pause_us(POLL_US);
    }
    return true;
}

ncclResult_t join(ncclComm* comm, const ncclConfig_t* config, std::function<bool()> find_name) {
    if (is_blocking(config)) return comm->state = meet(comm, find_name);
    comm->state = ncclInProgress;
    comm->joining = std::thread([=] { comm->state = meet(comm, find_name); });
    return ncclInProgress;
}

void check_peers(ncclComm* comm) {
    if (comm->state != ncclSuccess || !comm->segment) return;
    auto set = [&](const char* fault, ncclResult_t error) {
        if (imitated_gpu_fault(fault) >= 0) comm->state = error;
    };
    for (int rank = 0; rank < comm->size && comm->unfinished; ++rank) {
        int process = comm->segment->process[rank];
        if (process == LEFT || is_dead(process)) return set(names::CONNECTION_ERROR, ncclRemoteError);
    }
    set(names::ASYNC_ERROR, ncclInternalError);
}

void leave(ncclComm* comm) {
    if (comm->joining.joinable()) comm->joining.join();
    while (comm->unfinished) pause_us(100);
    cudaFree(comm->device_buffer);
    if (comm->segment) {
        comm->segment->process[comm->rank] = LEFT;
        unmap_segment(comm->segment, comm->size);
    }
    --live_communicators;
    delete comm;
}
}  // namespace imitated

API long imitated_gpu_live_communicators() { return live_communicators; }

API long imitated_gpu_split_communicators() { return split_communicators; }

API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    remove_segments_of_dead();
    *id = {};
    new_segment_name(getpid(), random_name()).copy(id->internal, sizeof id->internal - 1);
    return ncclSuccess;
}

API ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
    if (size < 1 || size > MAX_RANKS || rank < 0 || rank >= size) return ncclInvalidArgument;
    auto* comm = *out = new_communicator(rank, size);
    comm->name = id.internal;
    return join(comm, config, [] { return true; });
}

API ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}

API ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int, ncclUniqueId* ids, ncclConfig_t* config) {
    return ncclCommInitRankConfig(comm, size, ids[0], rank, config);
}

API ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* out, ncclConfig_t* config) {
    if (parent->state != ncclSuccess || parent->aborted) return ncclInvalidUsage;
    auto number = ++parent->splits;
    auto& wish = wishes_of(parent, number)[parent->rank];
    wish.color = color;
    wish.key = key;
    wish.number = number;
    *out = nullptr;
    if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
    auto* comm = *out = new_communicator(parent->rank, parent->size);
    ++split_communicators;
    ++parent->unfinished;  // it stays as long as it is asked
    return join(comm, config, [=] {
        bool found = find_place(comm, parent, number);
        --parent->unfinished;
        return found;
    });
}

API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    check_peers(comm);
    *error = comm->state;
    return ncclSuccess;
}

API ncclResult_t ncclCommAbort(ncclComm_t comm) {
    static std::atomic<bool> stuck{false};  // who waits for a driver that does not answer holds up those behind it
    if (stuck || imitated_gpu_fault(names::STUCK_ABORT) >= 0) {
        stuck = true;
        for (;;) pause();
    }
    comm->aborted = true;
    at_end_of_group([=] { leave(comm); });
    return ncclSuccess;
}

API ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    return wait_for(comm, [&] { return comm->unfinished == 0; }) ? ncclSuccess : ncclInternalError;
}

API ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    at_end_of_group([=] { leave(comm); });
    return ncclSuccess;
}

API ncclResult_t ncclCommCount(const ncclComm_t comm, int* size) {
    *size = comm->size;
    return ncclSuccess;
}

API ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
    *rank = comm->rank;
    return ncclSuccess;
}

API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type, ncclScalarResidence_t residence,
                                          ncclComm_t comm) {
    Reduction reduction;
    if (residence == ncclScalarDevice) {
        reduction.scale_on_device = scalar;
        reduction.scale_type = type;
    } else {
        reduction.scale = read_scalar(scalar, type);
    }
    std::lock_guard lock(comm->mutex);
    int number = ncclNumOps;
    while (comm->reductions.count(number)) ++number;
    comm->reductions[number] = reduction;
    *op = (ncclRedOp_t)number;
    return ncclSuccess;
}

API ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
    std::lock_guard lock(comm->mutex);
    return comm->reductions.erase(op) ? ncclSuccess : ncclInvalidArgument;
}
