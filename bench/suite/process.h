// SPDX-License-Identifier: Apache-2.0
// Other programs and child processes of the benchmark. None outlives it: the kernel ends them when it dies.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/suite/basics.h"
#include "common/result.h"

namespace weightfs::bench {

struct Command {
  std::vector<std::string> words;             // the first is a path, or a name that PATH knows
  std::string cgroup;                         // directory that the process enters first; empty: it stays in ours
  const std::atomic<bool>* cancel = nullptr;  // once true, the process gets SIGTERM, and the result is Interrupted()
};

// Runs a program to its end and returns its standard output. It gets no terminal signals: the benchmark decides. An
// error names the program and the last line that it printed. A daemon that the program leaves behind stays.
Result<std::string> RunCommand(const Command& command);

// The full path of a program in PATH; empty when it is not there.
std::string FindProgram(std::string_view name);

// Runs `work(index)` in `count` processes at once and waits for all. Each calls `prepare(index)` first; the clock
// starts when all have. Returns the seconds from there to the end of the last; the first error otherwise.
Result<double> RunTogether(unsigned count, const std::function<Result<void>(unsigned)>& prepare,
                           const std::function<Result<void>(unsigned)>& work);

// A program that answers each line on its standard input with one on its standard output. Ended by the destructor.
class Worker {
 public:
  static Result<Worker> Start(const std::vector<std::string>& words);
  Worker(Worker&& other) noexcept;
  Worker& operator=(Worker&&) = delete;
  ~Worker();

  // kIo when the program ended; Interrupted() once `cancel` is set.
  Result<std::string> Ask(const std::string& line, const std::atomic<bool>* cancel);

 private:
  Worker(pid_t pid, File to, File from) : pid_(pid), to_(std::move(to)), from_(std::move(from)) {}
  pid_t pid_ = -1;
  File to_, from_;
  std::string unread_;
};

}  // namespace weightfs::bench
