// SPDX-License-Identifier: Apache-2.0
// The process that does and times the work of the benchmark, at the speed of a C++ program.
#pragma once

namespace weightfs::bench {

// Reads a job in JSON from each line of standard input, {"do": NAME, …}, and answers with a line on standard output:
// {"seconds", "cpu", "amount"} or {"error"}. Returns at the end of input. libraries.py answers jobs in the same format.
int RunWorker();

}  // namespace weightfs::bench
