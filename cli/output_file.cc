// SPDX-License-Identifier: Apache-2.0
#include "cli/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cli/output.h"

namespace weightfs::cli {
namespace {

Error CannotBeWritten(const std::string& path, int error) {
  const ErrorCode code = error == ENOSPC || error == EDQUOT ? ErrorCode::kNoSpace : ErrorCode::kIo;
  return {code, fmt::format("{}: cannot be written: {}; give another file", path, std::strerror(error))};
}

}  // namespace

Result<OutputFile> OutputFile::Open(const std::string& path) {
  if (path == "-") return OutputFile(path, UniqueFd(), /*created=*/false);
  constexpr int kFlags = O_WRONLY | O_CLOEXEC | O_NOCTTY;
  UniqueFd made(open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0666));
  if (made.get() >= 0) return OutputFile(path, std::move(made), /*created=*/true);
  // Without O_TRUNC, because the old content must stay until there is new content.
  UniqueFd file(errno == EEXIST ? open(path.c_str(), kFlags | O_CREAT, 0666) : -1);
  if (file.get() < 0) return CannotBeWritten(path, errno);
  return OutputFile(path, std::move(file), /*created=*/false);
}

OutputFile::~OutputFile() {
  if (created_ && file_.get() >= 0) unlink(path_.c_str());
}

Result<void> OutputFile::Write(std::string_view text) {
  if (is_standard_output()) {
    Print(stdout, std::string(text) + "\n");
    return {};
  }
  std::string content(text);
  content += '\n';
  struct stat status = {};
  if (fstat(file_.get(), &status) != 0) return CannotBeWritten(path_, errno);
  const bool regular = S_ISREG(status.st_mode);
  if (regular && fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(content.size())) != 0 &&
      (errno == ENOSPC || errno == EDQUOT)) {
    return CannotBeWritten(path_, errno);
  }
  for (size_t done = 0; done < content.size();) {
    const ssize_t wrote = write(file_.get(), content.data() + done, content.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return CannotBeWritten(path_, errno);
    done += static_cast<size_t>(wrote);
  }
  if (regular && ftruncate(file_.get(), static_cast<off_t>(content.size())) != 0) return CannotBeWritten(path_, errno);
  if (file_.Close() != 0) return CannotBeWritten(path_, errno);
  created_ = false;
  return {};
}

bool OutputFile::IsSameFile(const OutputFile& other) const {
  if (is_standard_output() || other.is_standard_output()) return path_ == other.path_;
  struct stat ours = {}, theirs{};
  return fstat(file_.get(), &ours) == 0 && fstat(other.file_.get(), &theirs) == 0 && S_ISREG(ours.st_mode) &&
         ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

}  // namespace weightfs::cli
