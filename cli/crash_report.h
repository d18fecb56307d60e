// SPDX-License-Identifier: Apache-2.0
// A report of the fault that ends the program.
#pragma once

namespace weightfs::cli {

// From here on a signal of a fault (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) writes one line with its name and the
// calls that led to it to standard error, and then ends the process as it would have. Once, before any thread is made.
void ReportCrashes();

}  // namespace weightfs::cli
