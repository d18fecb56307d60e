// SPDX-License-Identifier: Apache-2.0
// Reports the fault that ends the program.
#pragma once

namespace weightfs::cli {

// Installs handlers for SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT. They write the signal's name and a backtrace to
// standard error and then let the signal end the process as usual. Must be called once, before any thread is created.
void ReportCrashes();

}  // namespace weightfs::cli
