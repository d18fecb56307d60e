// SPDX-License-Identifier: Apache-2.0
// The process of a mount as others see it: the command that started it, its log, and systemd.
#pragma once

#include <memory>
#include <thread>

#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::cli {

// The child's end of the pipe to the parent, which waits until the child serves requests or has failed. It does nothing
// in the foreground.
class StartReport {
 public:
  StartReport() = default;
  explicit StartReport(UniqueFd descriptor) : descriptor_(std::move(descriptor)) {}

  // Lets the parent exit with success. From here on standard output goes to /dev/null, and standard error to the
  // descriptor `log` (-1: to /dev/null), for messages of libraries and ReportCrashes at an unexpected end. Only the
  // first report counts.
  void Ready(int log);
  // Lets the parent print the line and exit with failure. Returns false if the parent no longer waits.
  bool Failed(const std::string& line);

 private:
  void Send(const std::string& text);
  UniqueFd descriptor_;
};

// Forks. In the child, which is in a new session with working directory /, returns the descriptor for a StartReport.
// The parent never returns: it exits with the child's report. Must be called before any thread is created.
Result<UniqueFd> GoToBackground();

// The log file of a mount in the background. Thread-safe, except Start.
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

// The protocol of sd_notify(3), by which a service of Type=notify reports its state to systemd. Externally
// synchronized. Reports that cannot be sent are lost: the mount does not depend on them.
class ServiceNotifier {
 public:
  // Reports to the datagram socket `address`, which is a path, or an abstract name after '@'; an empty address means
  // nobody. Returns an error, as a complete message, if the address is neither.
  static Result<std::unique_ptr<ServiceNotifier>> Connect(std::string_view address);
  ~ServiceNotifier();
  ServiceNotifier(const ServiceNotifier&) = delete;
  ServiceNotifier& operator=(const ServiceNotifier&) = delete;

  // Until Ready, or the destructor, asks repeatedly for more time than TimeoutStartSec=. Later calls do nothing.
  void Extend();
  // The service works. `status` is one line for `systemctl status`.
  void Ready(std::string_view status);
  // The service ends. Until this object is destroyed, asks repeatedly for more time than TimeoutStopSec=, because the
  // data of a large mount takes minutes to write.
  void Stopping(std::string_view status);

 private:
  ServiceNotifier() = default;
  void Send(std::string_view message) const;
  void EndExtension();

  UniqueFd socket_;  // connected
  UniqueFd wake_;    // eventfd that stops the thread
  std::thread extender_;
};

}  // namespace weightfs::cli
