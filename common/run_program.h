// SPDX-License-Identifier: Apache-2.0
// Runs another program.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace weightfs {

// Runs a program of PATH with `input` as its standard input and waits for its end. Returns its exit status, or the
// negative number of the signal that ended it; the errno if it cannot be run or waited for. `output` gets all that it
// prints, also on standard error. The program is in a process group of its own: Ctrl-C does not interrupt it.
// `check`, if it is given, is called every 10 ms with the bytes of the output so far. Its error kills the program and
// its children, and is returned. Standard error is then that of this process.
Result<int> RunProgram(std::vector<std::string> words, std::string_view input = {}, std::string* output = nullptr,
                       const std::function<Result<void>(size_t printed)>& check = {});

}  // namespace weightfs
