// SPDX-License-Identifier: Apache-2.0
#include "cli/signals.h"

#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "common/start_thread.h"

namespace weightfs::cli {
namespace {

// The only global variable of the program: a signal handler can write to nothing else.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");

sigset_t EndSignalSet() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : EndSignals()) sigaddset(&set, signal);
  return set;
}

constexpr std::array kFaults = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
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
  Say("weightfs: critical: killed by SIG");
  Say(sigabbrev_np(signal));
  Say("; please report the lines below. Committed data is not lost: mount the store again\n");
  std::array<void*, kMostCalls> calls;
  backtrace_symbols_fd(calls.data(), backtrace(calls.data(), kMostCalls), STDERR_FILENO);
  raise(signal);  // its default action has been restored
}

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

void BlockEndSignals(bool hangup_ends) {
  signal(SIGTERM, SIG_DFL);  // so that `weightfs umount -f` can end any daemon, however it was started
  if (!hangup_ends) signal(SIGHUP, SIG_DFL);
  const sigset_t set = EndSignalSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

Result<void> SignalThread::Start(std::function<void(int)> on_signal) {
  const auto wait = [this, call = std::move(on_signal), set = EndSignalSet()] {
    for (int number = 0; sigwait(&set, &number) == 0 && !ending_;) call(number);
  };
  ASSIGN_OR_RETURN(thread_, StartThread("weightfs-signal", wait));
  return {};
}

SignalThread::~SignalThread() {
  if (!thread_.joinable()) return;
  ending_ = true;
  pthread_kill(thread_.native_handle(), SIGTERM);  // which is blocked, and only ends the wait
  thread_.join();
}

void ReportCrashes() {
  if (kSanitized) return;
  // The first call loads a library, which a signal handler must not do.
  void* call = nullptr;
  backtrace(&call, 1);
  struct sigaction action = {};
  action.sa_handler = OnFault;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_NODEFER;
  for (const int fault : kFaults) sigaction(fault, &action, nullptr);
}

}  // namespace weightfs::cli
