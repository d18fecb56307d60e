// SPDX-License-Identifier: Apache-2.0
// Logging through spdlog's default logger. Each error is logged once, where it occurs. Names in messages are made
// printable (common/printable.h), so that each message is one line.
#pragma once

#include <spdlog/spdlog.h>

#include "common/unique_fd.h"

namespace weightfs {

// Sends the log of this process to standard error as "weightfs: level: text"; for the journal (LogsToJournal) as
// "<N>text" with the syslog priority N of sd-daemon(3), because the journal stores time, name and level itself. Call it
// once, at the start of main.
void LogToStderr(spdlog::level::level_enum level);

// True if systemd reads standard error line by line: it is the journal's stream ($JOURNAL_STREAM), or systemd started
// this process itself ($SYSTEMD_EXEC_PID) with another socket or the kernel's log there.
bool LogsToJournal();

// Limits what standard error gets; the file is not affected. Call it after LogToStderr.
void LimitStderr(spdlog::level::level_enum level);

// Keeps the lines that come before LogToFile for it; of more than a thousand, the last ones. Call it after LogToStderr.
void KeepForFile();

// Also appends the log to `file`, which is open for appending; for a mount in the background. Called again, after the
// old file was renamed, it continues the log in the new one; each line is in one of the two. Lines that do not fit on
// the filesystem are lost. Call it after LogToStderr; other threads may be logging.
void LogToFile(UniqueFd file);

}  // namespace weightfs
