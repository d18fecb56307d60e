// Logging: spdlog's default logger. The program logs an error once, where it began; `Log` names the part.
// Before LogToSyslog the lines go to standard error.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace weightfs {

// Lines of this process go to standard error as "weightfs: level: text". Called once, at the start of main.
void LogToStderr(spdlog::level::level_enum level);

// Lines of this process go to `path` (appended) as well; for a mount in the background.
void LogToFile(const std::string& path);

}  // namespace weightfs
