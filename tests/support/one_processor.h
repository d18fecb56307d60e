// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <optional>

namespace weightfs {

// Keeps the calling thread, and the threads that it starts, on one of the processors that it may use, because they mostly
// run in turn: a thread that wakes one on another processor has to interrupt that processor.
class OneProcessor {
 public:
  // `number` spreads several callers over the processors. Without one, it is the processor of the calling thread.
  explicit OneProcessor(std::optional<int> number = std::nullopt) {
    if (sched_getaffinity(0, sizeof(before_), &before_) != 0) return;  // more processors than the set holds
    int chosen = sched_getcpu();
    if (number) {
      int skipped = *number % CPU_COUNT(&before_);
      for (chosen = 0; !CPU_ISSET(chosen, &before_) || skipped-- > 0; ++chosen) {
      }
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(chosen, &one);
    changed_ = sched_setaffinity(0, sizeof(one), &one) == 0;
  }
  ~OneProcessor() {
    if (changed_) sched_setaffinity(0, sizeof(before_), &before_);
  }
  OneProcessor(const OneProcessor&) = delete;
  OneProcessor& operator=(const OneProcessor&) = delete;

 private:
  cpu_set_t before_ = {};
  bool changed_ = false;
};

}  // namespace weightfs
