// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <utility>

#include "common/printable.h"

namespace weightfs {
namespace {

// Formats a line by a pattern, with its text made printable.
class LineFormatter final : public spdlog::formatter {
 public:
  explicit LineFormatter(std::string pattern)
      : pattern_(std::move(pattern)), inner_(std::make_unique<spdlog::pattern_formatter>(pattern_)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const std::string text = Printable({message.payload.data(), message.payload.size()});
    spdlog::details::log_msg printable = message;
    printable.payload = text;
    inner_->format(printable, out);
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<LineFormatter>(pattern_); }

 private:
  const std::string pattern_;
  const std::unique_ptr<spdlog::formatter> inner_;
};

// Writes each line with one write(2), so that lines of several processes do not mix.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(UniqueFd file) : file_(std::move(file)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    for (size_t done = 0; done < line.size();) {
      const ssize_t written = write(file_.get(), line.data() + done, line.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;
      done += static_cast<size_t>(written);
    }
  }
  void flush_() override {}

  const UniqueFd file_;
};

// Other threads may be logging, so sinks are only added inside this one, which has a mutex.
spdlog::sinks::dist_sink_mt& Sinks() {
  return dynamic_cast<spdlog::sinks::dist_sink_mt&>(*spdlog::default_logger()->sinks().front());
}

}  // namespace

void LogToStderr(spdlog::level::level_enum level) {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  sink->set_formatter(std::make_unique<LineFormatter>("weightfs: %l: %v"));
  auto sinks = std::make_shared<spdlog::sinks::dist_sink_mt>();
  sinks->add_sink(std::move(sink));
  auto logger = std::make_shared<spdlog::logger>("weightfs", std::move(sinks));
  logger->set_level(level);
  spdlog::set_default_logger(std::move(logger));
}

void LimitStderr(spdlog::level::level_enum level) { Sinks().sinks().front()->set_level(level); }

void LogToFile(UniqueFd file) {
  auto sink = std::make_shared<FileSink>(std::move(file));
  sink->set_formatter(std::make_unique<LineFormatter>("%Y-%m-%dT%H:%M:%S.%e%z %l %v"));
  Sinks().add_sink(std::move(sink));
}

}  // namespace weightfs
