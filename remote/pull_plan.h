// SPDX-License-Identifier: Apache-2.0
// What a pull writes, and which bytes it needs for that.
#pragma once

#include "remote/download.h"
#include "remote/safetensors_slice.h"

namespace weightfs::remote {

// Some tensors of some files.
struct SliceRequest {
  std::string path;     // fnmatch(3) on the paths of files
  std::string pattern;  // fnmatch(3) on the names of tensors
};

struct PlannedFile {
  const FileEntry* entry = nullptr;
  std::optional<SafetensorsSlice> slice = {};  // none: the whole file

  uint64_t size() const { return slice ? slice->size() : entry->size; }
};

// Points into the manifest. Immutable.
struct PullPlan {
  std::vector<const DirectoryEntry*> directories;  // parents come first
  std::vector<PlannedFile> files;                  // in the order of the manifest
  std::vector<const LinkEntry*> links;

  uint64_t bytes() const;  // of all files
  // What to download, one job for each file, in the same order.
  std::vector<DownloadJob> Jobs() const;
};

// Plans a pull of the files and links whose paths match `files`, and of slices. Without either it has everything. A
// file that `slices` name is never pulled as a whole. Reads the headers of sliced files. Errors are one full line:
// kNotFound for a pattern that matches nothing, kInvalid for a file that is no safetensors file, and those of Download.
Result<PullPlan> PlanPull(const Series& series, const Manifest& manifest, const std::vector<std::string>& files,
                          const std::vector<SliceRequest>& slices);

}  // namespace weightfs::remote
