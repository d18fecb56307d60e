// SPDX-License-Identifier: Apache-2.0
// A token bucket: the bytes per second that several transfers may send together.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace weightfs::s3 {

// Senders wait in a queue, and each Distribute serves those that have waited longest: every sender makes progress,
// whatever the order in which libcurl runs the transfers. Not thread-safe.
class RateLimit {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Sender {
    size_t wanted = 0;   // bytes, while it waits
    size_t granted = 0;  // bytes that it may send now
  };

  // Bytes per second; 0: unlimited, and then there is nothing to wait for.
  explicit RateLimit(uint64_t rate) : rate_(static_cast<double>(rate)) {}

  bool unlimited() const { return rate_ == 0; }
  // Puts the sender at the end of the queue. It must stay valid until it is granted bytes or leaves the queue.
  void Wait(Sender* sender, size_t wanted);
  void Leave(Sender* sender);
  bool has_waiting() const { return !waiting_.empty(); }

  // Grants bytes to the senders at the front of the queue, which leave it. They share what may be sent by now, but each
  // gets a useful piece or as many bytes as it wants.
  void Distribute(Time now);

 private:
  const double rate_;
  double available_ = 0;
  Time filled_ = {};
  std::deque<Sender*> waiting_;
};

}  // namespace weightfs::s3
