// SPDX-License-Identifier: Apache-2.0
// Lets a test wait until other threads of its process are waiting.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace weightfs {

// Reads a /proc file of a thread of this process. Returns an empty string if the thread has ended.
inline std::string ReadThreadFile(pid_t thread, const char* name) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/" + name);
  std::string text;
  std::getline(file, text, '\0');  // An iterator would throw if the thread ended between the open and the read.
  return text;
}

// Returns when the thread sleeps or has ended.
inline void WaitUntilAsleep(pid_t thread) {
  while (true) {
    const std::string line = ReadThreadFile(thread, "stat");
    const size_t name = line.rfind(") ");
    if (name == std::string::npos || line[name + 2] == 'S') return;
    std::this_thread::yield();
  }
}

// The threads of this process with this name.
inline std::vector<pid_t> ThreadsNamed(std::string_view name) {
  std::vector<pid_t> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const pid_t thread = std::stoi(entry.path().filename());
    if (ReadThreadFile(thread, "comm") == std::string(name) + "\n") threads.push_back(thread);
  }
  return threads;
}

// Returns, as text, how often a thread that is blocked by another thread (on a lock, a condition or a latch) has slept.
// Returns nothing while it runs or waits for the kernel, and an empty text once it has ended.
inline std::optional<std::string> SleepsOfBlocked(pid_t thread) {
  const std::string call = ReadThreadFile(thread, "syscall");
  const std::string status = ReadThreadFile(thread, "status");
  if (status.empty()) return "";
  if (!call.starts_with(std::to_string(SYS_futex) + " ")) return std::nullopt;
  return status.substr(status.find("voluntary_ctxt_switches"));
}

// Returns when all of these threads are blocked by other threads at the same time, or have ended. They then do nothing
// until another thread, or the end of a timed wait, wakes one of them.
inline void WaitUntilBlocked(const std::vector<pid_t>& threads) {
  if (threads.empty()) std::abort();  // a wrong name
  // A thread that was asleep in two passes with the same number of sleeps did not wake in between.
  std::vector<std::string> before;
  while (true) {
    std::vector<std::string> sleeps;
    for (const pid_t thread : threads) {
      auto slept = SleepsOfBlocked(thread);
      if (!slept) break;
      sleeps.push_back(*std::move(slept));
    }
    if (sleeps.size() == threads.size() && sleeps == before) return;
    before = std::move(sleeps);
    std::this_thread::yield();
  }
}

// Calls `call` on a thread of its own. Returns once that thread is blocked by another one, or has ended.
template <typename Call>
auto StartUntilBlocked(Call call) {
  std::promise<pid_t> started;
  auto result = std::async(std::launch::async, [&started, call = std::move(call)] {
    started.set_value(gettid());
    return call();
  });
  WaitUntilBlocked({started.get_future().get()});
  return result;
}

template <typename Result>
bool HasEnded(const std::future<Result>& call) {
  return call.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace weightfs
