// SPDX-License-Identifier: Apache-2.0
#include "fs/mount.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/log.h"
#include "fs/filesystem.h"
#include "fs/mountpoint.h"
#include "fs/session.h"

namespace weightfs {

Mount::Mount() = default;

Result<std::unique_ptr<Mount>> Mount::Create(Store& store, MountOptions options) {
  std::unique_ptr<Mount> mount(new Mount);
  mount->options_ = std::move(options);
  if (store.read_only()) mount->options_.read_only = true;
  mount->filesystem_ = std::make_unique<Filesystem>(store, mount->options_);
  ASSIGN_OR_RETURN(mount->session_, Session::Create(*mount->filesystem_, mount->options_));
  RETURN_IF_ERROR(mount->filesystem_->StartLeases());
  RETURN_IF_ERROR(mount->session_->Mount());
  RETURN_IF_ERROR(mount->session_->Negotiate());
  for (const std::string& line : mount->Features()) spdlog::debug("kernel: {}", line);
  return mount;
}

// The session ends first, because it unmounts and uses the filesystem.
Mount::~Mount() { session_.reset(); }

Result<void> Mount::Run() {
  if (const auto mounted = session_->FindOwnMount(); mounted.has_value() && !session_->mask().read_ahead)
    RaiseReadAhead(*mounted, options_.read_ahead);
  return session_->Run();
}

void Mount::Stop() { session_->Stop(); }

const std::string& Mount::device() const { return session_->device(); }

std::vector<std::string> Mount::Features() const {
  return DescribeFeatures(session_->offer(), filesystem_->features, session_->mask());
}

namespace {

// A directory that is removed on destruction.
class TemporaryDirectory {
 public:
  TemporaryDirectory() { made_ = mkdtemp(path_.data()) != nullptr; }
  ~TemporaryDirectory() {
    if (made_) rmdir(path_.c_str());
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  bool made() const { return made_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/weightfs-probe-XXXXXX";
  bool made_ = false;
};

}  // namespace

Result<std::vector<std::string>> ProbeKernelFeatures(const std::vector<std::string>& without) {
  ASSIGN_OR_RETURN(const FeatureMask mask, ParseFeatureMask(without));
  TemporaryDirectory directory;
  if (!directory.made())
    return Error{ErrorCode::kAccess, fmt::format("{}: {}", directory.path(), std::strerror(errno))};
  ASSIGN_OR_RETURN(const KernelOffer offer, ProbeOffer(directory.path()));
  return DescribeFeatures(offer, ChooseFeatures(offer, mask, MaxPagesLimit()), mask);
}

}  // namespace weightfs
