// SPDX-License-Identifier: Apache-2.0
// A file that a command opens when it starts and writes when it ends, so that problems show before the work is done.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::cli {

// Not thread-safe.
class OutputFile {
 public:
  // "-" means standard output. Any other path is created if it does not exist; an existing file keeps its content until
  // Write. Errors are complete messages that name the path.
  static Result<OutputFile> Open(const std::string& path);
  OutputFile(OutputFile&&) = default;
  OutputFile& operator=(OutputFile&&) = delete;
  // Removes the file if Open created it and Write was not called.
  ~OutputFile();

  // Replaces the content by `text` and a newline. On kNoSpace the old content is kept if the filesystem can reserve
  // space. Must be called at most once. For standard output, FlushOutput reports a failure.
  Result<void> Write(std::string_view text);

  bool is_standard_output() const { return path_ == "-"; }
  // True if both are the same file, under any names.
  bool IsSameFile(const OutputFile& other) const;

 private:
  OutputFile(std::string path, UniqueFd file, bool created)
      : path_(std::move(path)), file_(std::move(file)), created_(created) {}

  std::string path_;
  UniqueFd file_;  // empty for standard output
  bool created_;
};

}  // namespace weightfs::cli
