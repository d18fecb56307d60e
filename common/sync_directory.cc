// SPDX-License-Identifier: Apache-2.0
#include "common/sync_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/result.h"
#include "common/system_calls.h"
#include "common/unique_fd.h"

namespace weightfs {

Result<void> SyncDirectory(const std::string& directory) {
  const UniqueFd opened(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened) return SystemError(directory, "cannot be opened");
  if (RepeatInterrupted([&] { return fsync(opened.get()); }) == 0) return {};
  return SystemError(directory, "cannot be made durable");
}

Result<void> SyncParentDirectory(const std::string& path) {
  const size_t slash = path.rfind('/');
  return SyncDirectory(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

}  // namespace weightfs
