// SPDX-License-Identifier: Apache-2.0
// Threads of the library's own.
#pragma once

#include <functional>
#include <thread>

#include "client/error.h"

namespace weightfs::client {

// Starts one that takes no signals: those are for the threads of the program. EAGAIN when there are no more.
IoResult<std::thread> StartIoThread(std::function<void()> run);

}  // namespace weightfs::client
