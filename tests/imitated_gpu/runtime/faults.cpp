// An ordered fault is a file: NAME.PID is used up when the fault happens there, NAME holds for every process until it is taken away.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "device.h"

namespace {
const std::string* folder() {
    static const char* named = getenv(imitated::names::FOLDER_VARIABLE);
    static const auto* path = named && *named ? new std::string(named) : nullptr;
    return path;
}

std::optional<double> order_in(const std::string& path) {
    std::ifstream file(path);
    std::string seconds;
    if (!(file >> seconds)) return {};
    return strtod(seconds.c_str(), nullptr);
}

void write_down(const char* fault) {
    auto line = std::to_string(getpid()) + " " + fault + "\n";
    int file = open((*folder() + "/" + imitated::names::FIRED).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file < 0 || write(file, line.data(), line.size()) != (ssize_t)line.size()) {
        perror("imitated GPU: a fault cannot be written down");
        abort();
    }
    close(file);
    fprintf(stderr, "imitated GPU: the ordered fault happens: %s\n", fault);
}
}  // namespace

API double imitated_gpu_fault(const char* fault) {
    if (!folder()) return -1;
    auto for_all = *folder() + "/" + fault;
    auto for_this = for_all + "." + std::to_string(getpid());
    auto seconds = order_in(for_this);
    if (seconds && unlink(for_this.c_str()) != 0) seconds.reset();  // another thread was first
    if (!seconds) seconds = order_in(for_all);
    if (!seconds) return -1;
    write_down(fault);
    return *seconds;
}
