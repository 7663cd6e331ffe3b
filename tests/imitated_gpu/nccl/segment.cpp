#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace imitated {
namespace {
const std::string PREFIX = "imitated-gpu-";
}

bool is_dead(int process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string line;
    if (!std::getline(file, line)) return true;
    auto state = line.find(") ", line.rfind(')'));
    return state != std::string::npos && line[state + 2] == 'Z';
}

std::string new_segment_name(int owner, const std::string& rest) { return PREFIX + std::to_string(owner) + "-" + rest; }

Segment* map_segment(const std::string& name, int ranks) {
    int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
    if (file < 0) return nullptr;
    size_t bytes = Segment::bytes(ranks);
    void* mapped = ftruncate(file, bytes) == 0 ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    return mapped == MAP_FAILED ? nullptr : (Segment*)mapped;
}

void unmap_segment(Segment* segment, int ranks) { munmap(segment, Segment::bytes(ranks)); }

void forget_segment(const std::string& name) { shm_unlink(name.c_str()); }

void remove_segments_of_dead() {
    std::error_code none;
    for (auto& entry : std::filesystem::directory_iterator("/dev/shm", none)) {
        auto name = entry.path().filename().string();
        if (name.rfind(PREFIX, 0) == 0 && is_dead(atoi(name.c_str() + PREFIX.size()))) forget_segment(name);
    }
}

}  // namespace imitated
