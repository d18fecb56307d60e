// SPDX-License-Identifier: Apache-2.0
#include "cli/daemon_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "common/log.h"
#include "store/volume/store_directory.h"

namespace weightfs::cli {
namespace {

bool IsSameFile(const struct stat& one, int descriptor) {
  struct stat other = {};
  return fstat(descriptor, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

}  // namespace

Result<DaemonLog> DaemonLog::Start(const std::string& store) {
  DaemonLog log;
  auto file = OpenLog(store);
  if (!file.has_value()) {
    // A symbolic link or another user's file is refused. A full or read-only filesystem must not prevent the mount.
    if (file.error().code != ErrorCode::kNoSpace && file.error().code != ErrorCode::kReadOnly) return file.error();
    spdlog::warn("{}; this mount has no log", file.error().what);
    return log;
  }
  log.store_ = store;
  log.file_ = UniqueFd(fcntl(file->get(), F_DUPFD_CLOEXEC, 0));
  LogToFile(*std::move(file));
  return log;
}

void DaemonLog::Reopen() const {
  struct stat old = {};
  if (!file_ || fstat(file_.get(), &old) != 0) return;
  auto file = OpenLog(store_);
  if (!file.has_value()) {
    spdlog::error("{}; the log continues in the old file", ToString(file.error()));
    return;
  }
  // In this order: a StartReport that points standard error at the descriptor meanwhile gets the new file.
  dup3(file->get(), file_.get(), O_CLOEXEC);
  if (IsSameFile(old, STDERR_FILENO)) dup2(file->get(), STDERR_FILENO);
  ReplaceLogFile(*std::move(file));
  spdlog::info("the log file was opened again");
}

}  // namespace weightfs::cli
