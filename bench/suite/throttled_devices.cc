// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/throttled_devices.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "bench/suite/basics.h"
#include "bench/suite/process.h"

namespace weightfs::bench {
namespace {

constexpr const char* kUnified = "/sys/fs/cgroup";
constexpr const char* kLegacy = "/sys/fs/cgroup/blkio";

Error NotPossible(std::string why) { return {ErrorCode::kNotSupported, std::move(why)}; }

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

Result<void> WriteKnob(const std::string& path, const std::string& text) {
  ASSIGN_OR_RETURN(File file, File::Open(path, O_WRONLY));
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return SystemError(path, "cannot be set");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ThrottledDevices>> ThrottledDevices::Create(const Options& options, const Keeper& keeper) {
  if (geteuid() != 0) return NotPossible("needs root, for loop devices and a cgroup");
  if (FindProgram("losetup").empty()) return NotPossible("losetup is not installed (package util-linux)");
  std::unique_ptr<ThrottledDevices> devices(new ThrottledDevices(keeper));
  RETURN_IF_ERROR(devices->MakeCgroup());
  for (unsigned made = 0; made < options.count; ++made) RETURN_IF_ERROR(devices->Attach(options));
  return devices;
}

Result<void> ThrottledDevices::MakeCgroup() {
  unified_ = Contents(fmt::format("{}/cgroup.controllers", kUnified)).find("io") != std::string::npos;
  if (!unified_ && access(fmt::format("{}/blkio.throttle.read_bps_device", kLegacy).c_str(), W_OK) != 0) {
    return NotPossible("this machine has no cgroup that limits I/O (controller io or blkio)");
  }
  if (unified_ && !WriteKnob(fmt::format("{}/cgroup.subtree_control", kUnified), "+io").has_value()) {
    return NotPossible("the cgroup controller io cannot be handed to a child (not in the root cgroup?)");
  }
  const std::string path = fmt::format("{}/weightfs-bench-{}", unified_ ? kUnified : kLegacy, getpid());
  if (mkdir(path.c_str(), 0755) != 0) return NotPossible(SystemError(path, "cannot be made").what);
  keeper_.Note(Kept::kCgroup, path);
  cgroup_ = path;
  return {};
}

Result<void> ThrottledDevices::Attach(const Options& options) {
  const std::string file = fmt::format("{}/device-{}", options.directory, paths_.size());
  {
    ASSIGN_OR_RETURN(const File made, File::Open(file, O_RDWR | O_CREAT | O_TRUNC));
    if (const int failed = posix_fallocate(made.get(), 0, static_cast<off_t>(options.size)); failed != 0) {
      errno = failed;
      const Error error = SystemError(file, "cannot be allocated");
      return failed == ENOSPC ? NotPossible(error.what) : error;
    }
  }
  Command attach{{"losetup", "--find", "--show", file}, {}, nullptr};
  if (options.direct) attach.words.insert(attach.words.begin() + 1, "--direct-io=on");
  auto path = RunCommand(attach);
  if (!path.has_value()) return NotPossible(path.error().what);
  path->erase(path->find_last_not_of('\n') + 1);
  keeper_.Note(Kept::kLoopDevice, *path);
  paths_.push_back(*path);
  return Limit(*path, options.rate);
}

Result<void> ThrottledDevices::Limit(const std::string& path, uint64_t rate) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return SystemError(path, "stat");
  const std::string number = fmt::format("{}:{}", major(status.st_rdev), minor(status.st_rdev));
  if (unified_) return WriteKnob(cgroup_ + "/io.max", fmt::format("{} rbps={} wbps={}", number, rate, rate));
  for (const char* direction : {"read", "write"}) {
    RETURN_IF_ERROR(WriteKnob(fmt::format("{}/blkio.throttle.{}_bps_device", cgroup_, direction),
                              fmt::format("{} {}", number, rate)));
  }
  return {};
}

ThrottledDevices::~ThrottledDevices() {
  for (const auto& path : paths_) {
    if (RunCommand({{"losetup", "--detach", path}, {}, nullptr}).has_value()) keeper_.Forget(Kept::kLoopDevice, path);
  }
  if (cgroup_.empty()) return;
  RemoveCgroup(cgroup_);
  keeper_.Forget(Kept::kCgroup, cgroup_);
}

}  // namespace weightfs::bench
