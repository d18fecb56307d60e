// SPDX-License-Identifier: Apache-2.0
// Where files are measured: a mount of weightfs, or the host's filesystem beside it.
#pragma once

#include <optional>
#include <string>

#include "bench/suite/basics.h"
#include "common/result.h"

namespace weightfs::bench {

// Counters of a mount, or nothing where it does not tell.
struct MountCounters {
  uint64_t device_read_bytes = 0, device_written_bytes = 0;
  uint64_t buffer_capacity = 0;  // memory of the daemon for data
};

// A directory to measure in. Not thread-safe.
class Place {
 public:
  struct Options {
    std::string directory;
    pid_t daemon = 0;          // of a mount of weightfs; 0 for the host's filesystem
    bool drop_caches = false;  // whether the whole machine's caches may be dropped
  };
  Place() = default;  // nowhere yet
  static Result<Place> Open(Options options);

  const std::string& directory() const { return options_.directory; }
  std::string Path(std::string_view name) const { return options_.directory + "/" + std::string(name); }
  pid_t daemon() const { return options_.daemon; }
  bool is_weightfs() const { return options_.daemon > 0; }
  // Memory is the only medium: nothing is ever cold.
  bool is_tmpfs() const { return is_tmpfs_; }
  std::optional<MountCounters> Counters() const;

  // Makes a file cold: its dirty data written, the kernel's pages and the daemon's chunks of it dropped. Where the
  // mount has no way to drop its chunks, another file as large as its memory is read, which pushes them out.
  Result<void> MakeCold(const std::string& path);

  // Deletes a file, where there is one, and waits until the filesystem has done with it.
  Result<void> Remove(const std::string& path);

  double CpuSeconds() const { return is_weightfs() ? CpuSecondsOf(options_.daemon) : 0; }

 private:
  Result<void> PushOut();

  Options options_;
  File handle_;  // of the directory
  bool is_tmpfs_ = false;
  bool can_drop_ = true;
};

}  // namespace weightfs::bench
