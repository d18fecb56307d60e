// SPDX-License-Identifier: Apache-2.0
// The process in which the benchmark's work is done and timed: what must be as fast as a C++ program is.
#pragma once

namespace weightfs::bench {

// Reads a job in JSON from each line of standard input, {"do": NAME, …}, and answers with a line on standard output:
// {"seconds", "cpu", "amount"} or {"error"}. Ends with its input. The jobs are in worker.cc; clients.py answers jobs in
// the same form.
int RunWorker();

}  // namespace weightfs::bench
