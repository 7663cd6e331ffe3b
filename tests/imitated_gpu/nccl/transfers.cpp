// The sends and receives of a group make progress side by side, so that those that need each other never wait for ever.
#include <algorithm>
#include <cstring>
#include <set>

#include "launch.h"

namespace imitated {
namespace {
struct Transfer {
    const Operation* operation;
    size_t done = 0;

    bool is_send() const { return operation->kind == Kind::SEND; }
    bool is_done() const { return done == operation->bytes(); }
};

// Moves a parcel if the channel lets it.
bool step(ncclComm* comm, Transfer& transfer) {
    auto& o = *transfer.operation;
    int from = transfer.is_send() ? comm->rank : o.peer;
    int to = transfer.is_send() ? o.peer : comm->rank;
    auto& channel = comm->segment->channel(comm->size, from, to);
    bool is_full = channel.sent > channel.received;
    if (is_full == transfer.is_send()) return false;
    size_t bytes = std::min(PARCEL_BYTES, o.bytes() - transfer.done);
    if (transfer.is_send()) {
        memcpy(channel.parcel, (const char*)o.in + transfer.done, bytes);
        ++channel.sent;
    } else {
        memcpy((char*)o.out + transfer.done, channel.parcel, bytes);
        ++channel.received;
    }
    transfer.done += bytes;
    return true;
}

// One step of each that is not behind another one on the same channel.
bool step_all(ncclComm* comm, std::vector<Transfer>& transfers) {
    bool moved = false;
    std::set<std::pair<bool, int>> taken;
    for (auto& transfer : transfers) {
        if (transfer.is_done()) continue;
        bool first = taken.emplace(transfer.is_send(), transfer.operation->peer).second;
        if (first) moved |= step(comm, transfer);
    }
    return moved;
}
}  // namespace

bool run_transfers(ncclComm* comm, const std::vector<Operation>& operations) {
    std::vector<Transfer> transfers;
    for (auto& operation : operations) {
        if (operation.kind == Kind::SEND || operation.kind == Kind::RECEIVE) transfers.push_back({&operation});
    }
    auto all_done = [&] { return std::all_of(transfers.begin(), transfers.end(), [](auto& t) { return t.is_done(); }); };
    while (!all_done()) {
        if (!wait_for(comm, [&] { return step_all(comm, transfers); })) return false;
    }
    return true;
}

}  // namespace imitated
