// SPDX-License-Identifier: Apache-2.0
// A file that a command writes at its end and opens at its start: an obstacle is found before the work, not after it.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::cli {

// Not thread-safe.
class OutputFile {
 public:
  // "-" is standard output; any other path is created where it does not exist, and keeps its content until Write.
  // Full-line errors that name the path.
  static Result<OutputFile> Open(const std::string& path);
  OutputFile(OutputFile&&) = default;
  OutputFile& operator=(OutputFile&&) = delete;
  // Removes a file that Open created and Write has not written.
  ~OutputFile();

  // Replaces the content by `text` and a newline. kNoSpace leaves the old content where the filesystem can reserve
  // space. Called once. Of standard output FlushOutput reports a failure.
  Result<void> Write(std::string_view text);

  bool is_standard_output() const { return path_ == "-"; }
  // True for two names of one file.
  bool IsSameFile(const OutputFile& other) const;

 private:
  OutputFile(std::string path, UniqueFd file, bool created)
      : path_(std::move(path)), file_(std::move(file)), created_(created) {}

  std::string path_;
  UniqueFd file_;  // none of standard output
  bool created_;
};

}  // namespace weightfs::cli
