#include "common/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>

namespace weightfs {

void LogToStderr(spdlog::level::level_enum level) {
  auto logger = std::make_shared<spdlog::logger>("weightfs", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("weightfs: %l: %v");
  logger->set_level(level);
  spdlog::set_default_logger(std::move(logger));
}

void LogToFile(const std::string& path) {
  auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
  sink->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  spdlog::default_logger()->sinks().push_back(std::move(sink));
  spdlog::flush_on(spdlog::level::info);
}

}  // namespace weightfs
