// SPDX-License-Identifier: Apache-2.0
// The log file of a mount in the background.
#pragma once

#include <string>

#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::cli {

// Thread-safe, except Start.
class DaemonLog {
 public:
  // No file: the log goes only to standard error.
  DaemonLog() = default;

  // Also sends the log to STORE/weightfs.log, created if it is missing. A file that cannot be created because the
  // filesystem is full or read-only is a warning; a file that is not safe to use is an error.
  static Result<DaemonLog> Start(const std::string& store);

  // Opens the file again under its name, after logrotate(8) has renamed the old one; standard error follows if it goes
  // to the old file. After an error, which is logged, the log continues in the old file.
  void Reopen() const;

  // -1 if there is no file. Refers to the new file after Reopen.
  int descriptor() const { return file_.get(); }

 private:
  std::string store_;
  UniqueFd file_;
};

}  // namespace weightfs::cli
