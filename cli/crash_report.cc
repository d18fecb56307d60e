// SPDX-License-Identifier: Apache-2.0
#include "cli/crash_report.h"

#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string_view>

namespace weightfs::cli {
namespace {

struct Fault {
  int signal;
  std::string_view name;
};
constexpr std::array kFaults = {Fault{SIGSEGV, "SIGSEGV"}, Fault{SIGBUS, "SIGBUS"}, Fault{SIGFPE, "SIGFPE"},
                                Fault{SIGILL, "SIGILL"}, Fault{SIGABRT, "SIGABRT"}};
constexpr int kMostCalls = 64;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // sanitizers print better reports of their own
#else
constexpr bool kSanitized = false;
#endif

void Say(std::string_view text) {
  // A failure cannot be reported any more.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

// Calls only async-signal-safe functions.
void OnFault(int signal) {
  Say("weightfs: critical: killed by ");
  for (const Fault& fault : kFaults) {
    if (fault.signal == signal) Say(fault.name);
  }
  Say("; please report the lines below. Committed data is not lost: mount the store again\n");
  std::array<void*, kMostCalls> calls;
  backtrace_symbols_fd(calls.data(), backtrace(calls.data(), kMostCalls), STDERR_FILENO);
  raise(signal);  // its default action has been restored
}

}  // namespace

void ReportCrashes() {
  if (kSanitized) return;
  // The first call loads a library, which a signal handler must not do.
  void* call = nullptr;
  backtrace(&call, 1);
  struct sigaction action = {};
  action.sa_handler = OnFault;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_NODEFER;
  for (const Fault& fault : kFaults) sigaction(fault.signal, &action, nullptr);
}

}  // namespace weightfs::cli
