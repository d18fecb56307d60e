// SPDX-License-Identifier: Apache-2.0
#include "cli/signal_thread.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cli/interrupt.h"

namespace weightfs::cli {
namespace {

sigset_t EndSignalSet() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : EndSignals()) sigaddset(&set, signal);
  return set;
}

}  // namespace

void BlockEndSignals(bool hangup_ends) {
  signal(SIGTERM, SIG_DFL);  // so that `weightfs umount -f` can end any daemon, however it was started
  if (!hangup_ends) signal(SIGHUP, SIG_DFL);
  const sigset_t set = EndSignalSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

Result<std::unique_ptr<SignalThread>> SignalThread::Start(std::function<void(int)> on_signal) {
  const sigset_t set = EndSignalSet();
  UniqueFd signals(signalfd(-1, &set, SFD_CLOEXEC));
  if (!signals) return SystemError("signalfd", "signals cannot be watched");
  UniqueFd wake(eventfd(0, EFD_CLOEXEC));
  if (!wake) return SystemError("eventfd", "signals cannot be watched");
  return std::unique_ptr<SignalThread>(new SignalThread(std::move(signals), std::move(wake), std::move(on_signal)));
}

SignalThread::SignalThread(UniqueFd signals, UniqueFd wake, std::function<void(int)> on_signal)
    : signals_(std::move(signals)),
      wake_(std::move(wake)),
      on_signal_(std::move(on_signal)),
      thread_([this] { Run(); }) {}

SignalThread::~SignalThread() {
  const uint64_t one = 1;
  // Writing 1 to an eventfd fails only when its counter is full.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

void SignalThread::Run() {
  for (;;) {
    pollfd sources[] = {{signals_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    if (poll(sources, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    if ((sources[1].revents & POLLIN) != 0) return;
    signalfd_siginfo info{};
    if (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) on_signal_(static_cast<int>(info.ssi_signo));
  }
}

}  // namespace weightfs::cli
