// SPDX-License-Identifier: Apache-2.0
// The checksums of a version, fetched when they are needed: those of a version of 1 TiB have 1 GiB.
#pragma once

#include <list>

#include "common/mutex.h"
#include "remote/series.h"

namespace weightfs::remote {

// Keeps the slices that were used last, and verifies each with the SHA-256 in the manifest. Thread-safe. The series and
// the manifest must outlive it.
class ChecksumSlices {
 public:
  // `interrupted` ends waits for the service; it is called on the threads that call FindDamage.
  ChecksumSlices(const Series& series, const Manifest& manifest, s3::Interrupted interrupted)
      : series_(series),
        manifest_(manifest),
        bucket_(series.bucket().client(), series.bucket().name(), std::move(interrupted)) {}

  // Compares blocks with their checksums; `first` is the number of the first block in the version. Returns the index in
  // `blocks` of the first block that differs, or none. Fetches missing slices. Errors are one full line: those of
  // s3::Client, and kCorrupt for a slice that differs from its hash also when it is fetched again.
  Result<std::optional<size_t>> FindDamage(uint64_t first, std::span<const std::byte> blocks) EXCLUDES(mutex_);

 private:
  using Slice = std::vector<uint32_t>;
  struct Entry {
    size_t index = 0;
    std::shared_ptr<const Slice> slice = {};  // null while a thread fetches it
  };

  Result<std::shared_ptr<const Slice>> Get(size_t index) EXCLUDES(mutex_);
  std::list<Entry>::iterator FindLocked(size_t index) REQUIRES(mutex_);
  void EvictLocked() REQUIRES(mutex_);
  Result<std::shared_ptr<const Slice>> Fetch(size_t index) const;

  const Series& series_;
  const Manifest& manifest_;
  const s3::Bucket bucket_;
  Mutex mutex_;
  std::condition_variable fetched_;
  std::list<Entry> entries_ GUARDED_BY(mutex_);  // the last used first
};

}  // namespace weightfs::remote
