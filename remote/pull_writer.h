// SPDX-License-Identifier: Apache-2.0
// Writes downloaded parts to the files of a pull.
#pragma once

#include <memory>

#include "client/handle.h"
#include "common/result.h"
#include "remote/download.h"
#include "remote/pull_directory.h"
#include "remote/pull_plan.h"

namespace weightfs::remote {

// Creates each file before its first part, reserves its space, and gives it its attributes after its last part. Large
// parts are written by a client::Handle, which bypasses a weightfs mount. Errors are full lines that name the file. The
// directory, whose directories exist, and the plan must outlive the writer.
class PullWriter {
 public:
  static Result<std::unique_ptr<PullWriter>> Create(PullDirectory& directory, const PullPlan& plan);
  ~PullWriter();

  // Writes the files that have no parts. Must be called once.
  Result<void> WriteSmallest();
  // A sink for the jobs of the plan. Thread-safe.
  Result<void> Write(const DownloadedPart& part);

 private:
  struct File;
  PullWriter(PullDirectory& directory, const PullPlan& plan, std::unique_ptr<client::Handle> handle);
  Result<void> Open(size_t index);
  Result<void> Reserve(const PlannedFile& planned, const File& file) const;
  Result<void> WriteBytes(const File& file, std::string_view path, uint64_t offset,
                          std::span<const std::byte> bytes) const;
  Result<void> WritePieces(const PlannedFile& planned, const File& file, const DownloadedPart& part,
                           uint64_t* written) const;

  PullDirectory& directory_;
  const PullPlan& plan_;
  const std::unique_ptr<client::Handle> handle_;
  const std::unique_ptr<File[]> files_;  // one for each file of the plan
};

}  // namespace weightfs::remote
