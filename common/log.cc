// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "common/printable.h"
#include "common/system_calls.h"

namespace weightfs {
namespace {

// The priorities of syslog(3) that the journal understands, by level of spdlog.
int PriorityOf(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::critical: return 2;
    case spdlog::level::err: return 3;
    case spdlog::level::warn: return 4;
    case spdlog::level::info: return 6;
    default: return 7;
  }
}

// Formats a line for the journal, with its text made printable.
class JournalFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const std::string line = "<" + std::to_string(PriorityOf(message.level)) + ">" +
                             Printable({message.payload.data(), message.payload.size()}) + "\n";
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JournalFormatter>(); }
};

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

// Writes each line with one write(2), so that lines of several processes do not mix. Before there is a file it keeps
// the last lines.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void Replace(UniqueFd file) {
    const std::lock_guard lock(mutex_);
    file_ = std::move(file);
    for (const std::string& line : std::exchange(kept_, {})) Write(line);
  }

 private:
  static constexpr size_t kMostKept = 1000;

  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (file_) return Write({line.data(), line.size()});
    kept_.emplace_back(line.data(), line.size());
    if (kept_.size() > kMostKept) kept_.pop_front();
  }
  void Write(std::string_view line) const {
    for (size_t done = 0; done < line.size();) {
      const auto write_rest = [&] { return write(file_.get(), line.data() + done, line.size() - done); };
      const ssize_t written = RepeatInterrupted(write_rest);
      if (written <= 0) return;
      done += static_cast<size_t>(written);
    }
  }
  void flush_() override {}

  UniqueFd file_;
  std::deque<std::string> kept_;
};

// Other threads may be logging, so sinks are only added inside this one, which has a mutex.
spdlog::sinks::dist_sink_mt& Sinks() {
  return dynamic_cast<spdlog::sinks::dist_sink_mt&>(*spdlog::default_logger()->sinks().front());
}

// Sinks are only added at the start of a mount, so the list itself does not change later.
FileSink& TheFile() {
  for (const auto& sink : Sinks().sinks()) {
    if (auto* const file = dynamic_cast<FileSink*>(sink.get()); file != nullptr) return *file;
  }
  auto made = std::make_shared<FileSink>();
  made->set_formatter(std::make_unique<LineFormatter>("%Y-%m-%dT%H:%M:%S.%e%z %l %v"));
  Sinks().add_sink(made);
  return *made;
}

}  // namespace

void LogToStderr(spdlog::level::level_enum level) {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  if (LogsToJournal()) {
    sink->set_formatter(std::make_unique<JournalFormatter>());
  } else {
    sink->set_formatter(std::make_unique<LineFormatter>("weightfs: %l: %v"));
  }
  auto sinks = std::make_shared<spdlog::sinks::dist_sink_mt>();
  sinks->add_sink(std::move(sink));
  auto logger = std::make_shared<spdlog::logger>("weightfs", std::move(sinks));
  logger->set_level(level);
  spdlog::set_default_logger(std::move(logger));
}

void LimitStderr(spdlog::level::level_enum level) { Sinks().sinks().front()->set_level(level); }

void KeepForFile() { TheFile(); }

void LogToFile(UniqueFd file) { TheFile().Replace(std::move(file)); }

bool LogsToJournal() {
  struct stat status = {};
  if (fstat(STDERR_FILENO, &status) != 0) return false;
  const char* const stream = std::getenv("JOURNAL_STREAM");
  if (stream != nullptr && stream == std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino)) return true;
  // A file or a pipe would keep the prefixes, and a terminal would show them.
  const bool is_read_by_lines = S_ISSOCK(status.st_mode) || (S_ISCHR(status.st_mode) && isatty(STDERR_FILENO) == 0);
  const char* const started = std::getenv("SYSTEMD_EXEC_PID");
  return is_read_by_lines && started != nullptr && started == std::to_string(getpid());
}

}  // namespace weightfs
