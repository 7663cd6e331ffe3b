#pragma once
#include <nccl.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "reduce.h"
#include "segment.h"

struct ncclComm {
    int rank = 0;
    int size = 0;
    int device = 0;
    std::string name;
    imitated::Segment* segment = nullptr;
    void* device_buffer = nullptr;  // a real one has buffers on the device, too: one that leaks shows there
    std::atomic<bool> aborted{false};
    std::atomic<ncclResult_t> state{ncclSuccess};
    std::atomic<int> unfinished{0};    // launches that were posted, and splits
    std::atomic<uint64_t> posted{0};   // launches run in the order of posting, whatever their streams
    std::atomic<uint64_t> finished{0};
    uint64_t round = 0;                // of collectives; used by the one launch that runs
    uint64_t splits = 0;
    std::thread joining;
    std::mutex mutex;
    std::map<int, imitated::Reduction> reductions;  // made by ncclRedOpCreatePreMulSum
};

namespace imitated {

constexpr int POLL_US = 20;

void pause_us(int microseconds);
bool is_lost(const ncclComm* comm);  // aborted, or its device has failed: nothing more comes of waiting

// Waits until it is true. False if the communicator is lost before.
bool wait_for(const ncclComm* comm, const std::function<bool()>& true_now);

// Meets the other ranks, in a thread of its own unless `config` is blocking. `find_name` waits for what the name depends on, and
// is false if that does not come.
ncclResult_t join(ncclComm* comm, const ncclConfig_t* config, std::function<bool()> find_name);

void check_peers(ncclComm* comm);  // sets the state if a fault is ordered that it shows
void leave(ncclComm* comm);        // waits for what runs, gives everything back

}  // namespace imitated
