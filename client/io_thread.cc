// SPDX-License-Identifier: Apache-2.0
#include "client/io_thread.h"

#include <fmt/format.h>
#include <pthread.h>

#include <csignal>
#include <cstring>
#include <system_error>

namespace weightfs::client {

IoResult<std::thread> StartIoThread(std::function<void()> run) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  int error_number = 0;
  try {
    thread = std::thread(std::move(run));
    pthread_setname_np(thread.native_handle(), "weightfs-io");
  } catch (const std::system_error& error) {
    error_number = error.code().value();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error_number == 0) return thread;
  return IoError{error_number, fmt::format("cannot start an I/O thread: {}", std::strerror(error_number))};
}

}  // namespace weightfs::client
