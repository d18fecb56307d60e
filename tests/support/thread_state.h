// SPDX-License-Identifier: Apache-2.0
// Lets a test wait until another thread of its process waits for something.
#pragma once

#include <sys/types.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>

namespace weightfs {

// Returns when the thread sleeps, or has ended.
inline void WaitUntilAsleep(pid_t thread) {
  while (true) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    const size_t name = line.rfind(") ");
    if (name == std::string::npos || line[name + 2] == 'S') return;
    std::this_thread::yield();
  }
}

}  // namespace weightfs
