// SPDX-License-Identifier: Apache-2.0
// A mounted store. The one header of fs/ that the rest of the program needs, with mount_options.h and ioctl.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "fs/mount_options.h"
#include "store/store.h"

namespace weightfs {

class Filesystem;
class Session;

// Thread-safe: Stop may come from any thread or signal handler, the rest from one thread.
//
// Order of the end: Run returns, then Store::Close, then ~Mount, then ~Store. The store keeps memory of the mount (data
// of writes) until it is closed; a mount destroyed before that aborts the program.
class Mount {
 public:
  // Mounts and agrees on the protocol with the kernel; requests wait until Run. On an error nothing is mounted, and the
  // error is a full line. `store` must outlive the mount.
  static Result<std::unique_ptr<Mount>> Create(Store& store, MountOptions options);
  ~Mount();
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;

  // Serves until the filesystem is unmounted or Stop is called; then every request is answered, every handle closed,
  // and nothing is mounted. An error when the connection to the kernel failed.
  Result<void> Run();

  // Makes Run unmount and return, also when files are open: their programs see ENOTCONN from then on. What shared
  // mappings wrote is fetched from the kernel before. Async-signal-safe; may come before Run and more than once.
  void Stop();

  // "MAJOR:MINOR": st_dev of the files of the mount.
  const std::string& device() const;

  // What was agreed with the kernel, one line a feature, for the log.
  std::vector<std::string> Features() const;

 private:
  Mount();

  MountOptions options_;
  std::unique_ptr<Filesystem> filesystem_;
  std::unique_ptr<Session> session_;
};

// What this kernel offers, one line a feature ("direct_io_allow_mmap: used", "passthrough: offered, not used"), for
// `doctor`. Mounts on a temporary directory for a moment; a full-line error when that is not possible.
Result<std::vector<std::string>> ProbeKernelFeatures(const std::vector<std::string>& without);

}  // namespace weightfs
