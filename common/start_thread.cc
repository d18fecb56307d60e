// SPDX-License-Identifier: Apache-2.0
#include "common/start_thread.h"

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <utility>

namespace weightfs {

Result<std::thread> StartThread(const char* name, std::function<void()> run, int except) {
  sigset_t blocked, before;  // the new thread gets the mask of this one
  sigfillset(&blocked);
  // The kernel resets the handler of a fault that is blocked, and the process would end without its message.
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&blocked, fault);
  if (except != 0) sigdelset(&blocked, except);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  const auto start = [&]() -> Result<std::thread> {
    try {
      std::thread thread(std::move(run));
      pthread_setname_np(thread.native_handle(), name);
      return thread;
    } catch (const std::system_error& error) {
      return SystemError(name, "the thread cannot be started", error.code().value());
    }
  };
  auto started = start();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace weightfs
