// A collective is a series of rounds: each rank that gives fills its slot, waits for the others, takes what it wants from all slots,
// and waits until all have.
#include <algorithm>
#include <cstring>

#include "launch.h"

namespace imitated {
namespace {
using Take = std::function<void(Segment*)>;

bool all_reached(const ncclComm* comm, const std::atomic<uint64_t>* counters, uint64_t round) {
    return std::all_of(counters, counters + comm->size, [&](auto& counter) { return counter >= round; });
}

bool run_round(ncclComm* comm, const void* given, size_t bytes, const Take& take) {
    auto* segment = comm->segment;
    auto round = ++comm->round;
    if (given) memcpy(segment->slot(comm->rank), given, bytes);
    segment->arrived[comm->rank] = round;
    if (!wait_for(comm, [&] { return all_reached(comm, segment->arrived, round); })) return false;
    take(segment);
    segment->read[comm->rank] = round;
    return wait_for(comm, [&] { return all_reached(comm, segment->read, round); });
}

void take_reduced(ncclComm* comm, const Operation& operation, Segment* segment, char* into, size_t count) {
    char* given[MAX_RANKS];
    for (int rank = 0; rank < comm->size; ++rank) given[rank] = segment->slot(rank);
    reduce(into, given, comm->size, count, operation.type, operation.reduction);
}

// Elements `in` .. `in + count` of every rank, reduced, into `out` of the ranks that want them.
bool reduce_range(ncclComm* comm, const Operation& o, const char* in, char* out, bool wanted) {
    size_t width = width_of(o.type);
    size_t most = SLOT_BYTES / width;
    for (size_t at = 0; at < o.count; at += most) {
        size_t count = std::min(most, o.count - at);
        auto take = [&](Segment* segment) {
            if (wanted) take_reduced(comm, o, segment, out + at * width, count);
        };
        if (!run_round(comm, in + at * width, count * width, take)) return false;
    }
    return true;
}

bool reduce_scatter(ncclComm* comm, const Operation& o) {
    for (int rank = 0; rank < comm->size; ++rank) {
        if (!reduce_range(comm, o, (const char*)o.in + rank * o.bytes(), (char*)o.out, rank == comm->rank)) return false;
    }
    return true;
}

bool move(ncclComm* comm, const Operation& o) {
    bool gives = o.kind == Kind::ALL_GATHER || comm->rank == o.peer;
    auto* out = (char*)o.out;
    for (size_t at = 0; at < o.bytes(); at += SLOT_BYTES) {
        size_t bytes = std::min(SLOT_BYTES, o.bytes() - at);
        auto take = [&](Segment* segment) {
            if (o.kind == Kind::BROADCAST) memcpy(out + at, segment->slot(o.peer), bytes);
            for (int rank = 0; rank < comm->size && o.kind == Kind::ALL_GATHER; ++rank) {
                memcpy(out + rank * o.bytes() + at, segment->slot(rank), bytes);
            }
        };
        if (!run_round(comm, gives ? (const char*)o.in + at : nullptr, bytes, take)) return false;
    }
    return true;
}
}  // namespace

bool run_collective(ncclComm* comm, const Operation& o) {
    switch (o.kind) {
        case Kind::ALL_REDUCE: return reduce_range(comm, o, (const char*)o.in, (char*)o.out, true);
        case Kind::REDUCE: return reduce_range(comm, o, (const char*)o.in, (char*)o.out, comm->rank == o.peer);
        case Kind::REDUCE_SCATTER: return reduce_scatter(comm, o);
        default: return move(comm, o);
    }
}

}  // namespace imitated
