// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "bench/suite/basics.h"
#include "bench/suite/file_work.h"

namespace weightfs::bench {
namespace {

template <typename Work>
Result<void> ForEach(const SmallFiles& files, const Work& work) {
  for (unsigned index = 0; index < files.count; ++index) {
    if (IsSet(files.cancel)) return Interrupted();
    RETURN_IF_ERROR(work(index, fmt::format("{}/{}", files.directory, NameOf(index))));
  }
  return {};
}

}  // namespace

std::string NameOf(unsigned index) { return fmt::format("file-{:06}", index); }

const std::byte* BytesOf(const SmallFiles& files, unsigned index) {
  return files.content.At(uint64_t{index} % (files.content.period / files.size) * files.size);
}

Result<void> CreateAll(const SmallFiles& files) {
  if (mkdir(files.directory.c_str(), 0755) != 0 && errno != EEXIST) {
    return SystemError(files.directory, "cannot be made");
  }
  return ForEach(files, [&](unsigned index, const std::string& path) -> Result<void> {
    ASSIGN_OR_RETURN(File file, File::Open(path, O_WRONLY | O_CREAT | O_EXCL));
    if (write(file.get(), BytesOf(files, index), files.size) != static_cast<ssize_t>(files.size)) {
      return SystemError(path, "cannot be written");
    }
    if (files.durable && fsync(file.get()) != 0) return SystemError(path, "fsync");
    return file.Close(path);
  });
}

Result<void> StatAll(const SmallFiles& files) {
  return ForEach(files, [&](unsigned, const std::string& path) -> Result<void> {
    struct stat status = {};
    if (stat(path.c_str(), &status) != 0) return SystemError(path, "stat");
    if (static_cast<uint64_t>(status.st_size) == files.size) return {};
    return Error{ErrorCode::kCorrupt, fmt::format("{}: has {} bytes, not {}", path, status.st_size, files.size)};
  });
}

Result<void> ListAll(const SmallFiles& files) {
  DIR* const directory = opendir(files.directory.c_str());
  if (directory == nullptr) return SystemError(files.directory, "cannot be listed");
  unsigned count = 0;
  while (const dirent* entry = readdir(directory)) count += entry->d_name[0] == '.' ? 0 : 1;
  closedir(directory);
  if (count == files.count) return {};
  return Error{ErrorCode::kCorrupt, fmt::format("{}: lists {} files of {}", files.directory, count, files.count)};
}

Result<void> ReadAll(const SmallFiles& files) {
  std::vector<std::byte> bytes(files.size);
  return ForEach(files, [&](unsigned index, const std::string& path) -> Result<void> {
    ASSIGN_OR_RETURN(const File file, File::Open(path, O_RDONLY));
    if (read(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      return SystemError(path, "cannot be read");
    }
    if (std::memcmp(bytes.data(), BytesOf(files, index), bytes.size()) == 0) return {};
    return Error{ErrorCode::kCorrupt, fmt::format("{}: holds wrong bytes", path)};
  });
}

Result<void> RemoveAll(const SmallFiles& files) {
  return ForEach(files, [](unsigned, const std::string& path) -> Result<void> {
    if (unlink(path.c_str()) != 0) return SystemError(path, "cannot be removed");
    return {};
  });
}

}  // namespace weightfs::bench
