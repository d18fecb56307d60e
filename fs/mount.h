// SPDX-License-Identifier: Apache-2.0
// A mounted store.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/mounts.h"
#include "common/result.h"
#include "fs/mount_options.h"
#include "store/store.h"

namespace weightfs {

class Filesystem;
class MemoryPressure;
class MetricsServer;
struct MetricsSource;
class Session;

// Thread-safe as follows: any thread or signal handler may call Stop; all other calls come from one thread.
//
// Order of shutdown: Run returns, then Store::Close, then ~Mount, then ~Store. Until it is closed, the store keeps
// memory of the mount (data of writes); destroying the mount earlier aborts the program.
class Mount {
 public:
  // Mounts and negotiates the protocol with the kernel; requests wait until Run. Errors are full lines, and after an
  // error nothing is mounted. `store` must outlive the mount.
  static Result<std::unique_ptr<Mount>> Create(Store& store, MountOptions options);
  ~Mount();
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;

  // Serves until the filesystem is unmounted or Stop is called. Then every request has been answered, every handle is
  // closed, and nothing is mounted. Returns an error when the connection to the kernel failed.
  Result<void> Run();

  // Makes Run unmount and return even if files are open; their programs get ENOTCONN from then on. First fetches from
  // the kernel what shared mappings have written. Async-signal-safe; may be called before Run and more than once.
  void Stop();

  // How the mount tables name the mounted filesystem.
  const MountedFilesystem& identity() const;

  // The features negotiated with the kernel, one line each, for the log.
  std::vector<std::string> Features() const;

 private:
  Mount();
  MetricsSource Measure() const;

  MountOptions options_;
  std::unique_ptr<Filesystem> filesystem_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<MetricsServer> metrics_;    // null without -o metrics=
  std::unique_ptr<MemoryPressure> pressure_;  // null without hot files
};

// Returns the features that this kernel offers, one line each ("direct_io_allow_mmap: used", "passthrough: offered, not
// used"), for `doctor`. Mounts on a temporary directory for a moment; returns a full-line error when that fails.
Result<std::vector<std::string>> ProbeKernelFeatures(const std::vector<std::string>& without);

// The hot files of a mount that this process would make, for `doctor`: their limit without cache_memory=, 0 if it could
// have none, and SharedPages::on_tmpfs.
HotStatistics ProbeHotFiles();

}  // namespace weightfs
