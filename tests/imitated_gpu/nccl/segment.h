// The memory that the ranks of one communicator share, and how they find it.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

namespace imitated {

constexpr int MAX_RANKS = 32;
constexpr size_t SLOT_BYTES = 1 << 20;     // what one rank gives in one round of a collective
constexpr size_t PARCEL_BYTES = 64 << 10;  // what one rank sends to another at once
constexpr int SPLITS_AT_ONCE = 64;          // by so many may a rank be ahead of another
constexpr int LEFT = -1;                   // in the place of a process: it has given the communicator up

// From one rank to another. The sender fills it when sent == received, the receiver empties it when sent > received.
struct Channel {
    std::atomic<uint64_t> sent;
    std::atomic<uint64_t> received;
    char parcel[PARCEL_BYTES];
};

// What a rank says about its place in a communicator that is split off.
struct SplitWish {
    std::atomic<uint64_t> number;  // of the split, from 1
    std::atomic<int> color;
    std::atomic<int> key;
};

struct Segment {
    std::atomic<int> joined;
    std::atomic<int> process[MAX_RANKS];
    std::atomic<uint64_t> arrived[MAX_RANKS];  // the last round in which the rank's slot is filled
    std::atomic<uint64_t> read[MAX_RANKS];     // the last round of which the rank has read all slots
    SplitWish wishes[SPLITS_AT_ONCE][MAX_RANKS];
    char slots[];

    static size_t bytes(int ranks) {
        return sizeof(Segment) + ranks * SLOT_BYTES + (size_t)ranks * ranks * sizeof(Channel);
    }
    char* slot(int rank) { return slots + rank * SLOT_BYTES; }
    Channel& channel(int ranks, int from, int to) {
        return ((Channel*)(slots + ranks * SLOT_BYTES))[from * ranks + to];
    }
};

// Names in /dev/shm carry the process that owns them; the next process that makes a communicator removes those of dead ones.
std::string new_segment_name(int owner, const std::string& rest);
Segment* map_segment(const std::string& name, int ranks);  // null if the system refuses
void unmap_segment(Segment* segment, int ranks);
void forget_segment(const std::string& name);  // nobody else can map it from now on
void remove_segments_of_dead();

bool is_dead(int process);

}  // namespace imitated
