// SPDX-License-Identifier: Apache-2.0
// Logging: spdlog's default logger. The program logs an error once, where it began. Names in a line are made printable
// (common/printable.h), so that one message is one line.
#pragma once

#include <spdlog/spdlog.h>

#include "common/unique_fd.h"

namespace weightfs {

// Lines of this process go to standard error as "weightfs: level: text". Called once, at the start of main.
void LogToStderr(spdlog::level::level_enum level);

// Lines of this process are also appended to `file`, open for appending; for a mount in the background. A line that the
// filesystem has no space for is lost.
void LogToFile(UniqueFd file);

}  // namespace weightfs
