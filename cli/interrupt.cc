// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <signal.h>

namespace weightfs::cli {
namespace {

// The only global variable of the program: a signal handler can write to nothing else.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");

}  // namespace

std::vector<int> EndSignals() {
  std::vector<int> signals = {SIGINT, SIGTERM, SIGHUP};
  std::erase_if(signals, [](int signal) {
    struct sigaction action = {};
    return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
  });
  return signals;
}

const std::atomic<bool>& CatchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted.store(true); };
  sigemptyset(&action.sa_mask);
  for (const int signal : EndSignals()) sigaction(signal, &action, nullptr);
  return interrupted;
}

}  // namespace weightfs::cli
