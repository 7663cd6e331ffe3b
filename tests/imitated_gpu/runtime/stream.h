// A stream is a thread with a queue; an event is a count of how often it was recorded, and how often that was reached.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "imitation.h"

namespace imitated {

using Work = std::function<void()>;

class Stream : public std::enable_shared_from_this<Stream> {
  public:
    Stream(int device, int priority);
    ~Stream();
    void add(Work work);         // runs in any case
    void add_kernel(Work work);  // is dropped once the device has failed
    bool idle();
    void synchronize();
    void close();  // the thread ends behind what is queued

    const int device;
    const int priority;

  private:
    void run();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Work> queue_;
    uint64_t added_ = 0;
    uint64_t finished_ = 0;
    bool started_ = false;
    bool closed_ = false;
};

using StreamPtr = std::shared_ptr<Stream>;

StreamPtr stream_of(cudaStream_t handle);
void synchronize_device(int device);

class Event {
  public:
    Event();
    ~Event();
    void record(Stream& stream, std::shared_ptr<Event> self);
    bool reached();
    void wait_for_last();
    void hold_up(Stream& stream, std::shared_ptr<Event> self);
    std::chrono::steady_clock::time_point time();

  private:
    void wait(uint64_t recording);
    uint64_t last();

    std::mutex mutex_;
    std::condition_variable changed_;
    uint64_t recorded_ = 0;
    uint64_t reached_ = 0;
    std::chrono::steady_clock::time_point time_;
};

}  // namespace imitated
