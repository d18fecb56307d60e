// SPDX-License-Identifier: Apache-2.0
#include "client/lease/lease_windows.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "client/operation.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

// Blocks. More checksums do not fit into an answer.
constexpr uint64_t kLargestLease = lease::kMaximumBody / sizeof(uint32_t) / 2;

}  // namespace

// Transfers blocks of windows, which stay leased until Finish or the destructor, to memory. Externally synchronized.
class LeaseWindows::Pinned final : public Access, public Layout {
 public:
  // `windows` are ascending, by index.
  Pinned(std::shared_ptr<LeaseWindows> owner, std::vector<WindowPtr> windows)
      : path_(owner->opened_->path()),
        size_(owner->file_size()),
        owner_(std::move(owner)),
        windows_(std::move(windows)) {}
  ~Pinned() override { Unpin(); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  const std::string& path() const override { return path_; }
  const Layout& layout() const override { return *this; }
  bool leased() const override { return true; }
  int Buffered(int* error_number) const override {
    *error_number = EIO;  // the pipeline reads leased blocks through the devices only
    return -1;
  }
  Result<uint64_t> Size() const override { return size_; }
  Result<void> CheckRead(uint64_t offset, std::span<const std::byte> blocks, bool last) const override;
  Result<void> Finish(bool success) override;

  Run Locate(uint64_t offset, uint64_t length) const override;
  DirectAlignment alignment() const override { return windows_.front()->blocks.alignment(); }

 private:
  Result<void> CheckMount() const;
  // The window of an offset in the file, which must be one of them.
  const Window& Find(uint64_t offset) const;
  void Unpin() {
    if (const auto owner = std::exchange(owner_, nullptr)) owner->Unpin(std::move(windows_));
  }

  const std::string path_;
  const uint64_t size_;
  std::shared_ptr<LeaseWindows> owner_;
  std::vector<WindowPtr> windows_;
};

Result<void> LeaseWindows::Pinned::CheckMount() const {
  for (const auto& window : windows_) RETURN_IF_ERROR(CheckLease(*window->lease, path_));
  return {};
}

Result<void> LeaseWindows::Pinned::CheckRead(uint64_t offset, std::span<const std::byte> blocks, bool last) const {
  const auto damage = Find(offset).blocks.FindDamage(offset, blocks);
  if (!damage) return {};
  if (last) RETURN_IF_ERROR(CheckMount());
  return DamagedRead(path_, damage->block * kBlockSize, damage->what);
}

// The blocks kept their content during the transfers if the leases outlived them.
Result<void> LeaseWindows::Pinned::Finish(bool success) {
  Result<void> result;
  if (success) result = CheckMount();
  Unpin();
  return result;
}

const LeaseWindows::Window& LeaseWindows::Pinned::Find(uint64_t offset) const {
  if (windows_.size() == 1) return *windows_.front();
  const uint64_t index = offset / owner_->window_size();
  return **std::partition_point(windows_.begin(), windows_.end(),
                                [index](const WindowPtr& window) { return window->index < index; });
}

Layout::Run LeaseWindows::Pinned::Locate(uint64_t offset, uint64_t length) const {
  const uint64_t size = owner_->window_size();
  return Find(offset).blocks.Locate(offset, std::min(length, size - offset % size));
}

Result<std::shared_ptr<LeaseWindows>> LeaseWindows::Open(std::shared_ptr<const Access> file,
                                                         std::shared_ptr<LeaseConnections> connections,
                                                         uint64_t memory) {
  std::shared_ptr<LeaseWindows> made(new LeaseWindows(std::move(file), std::move(connections)));
  RETURN_IF_ERROR(made->TakeFirst(memory));
  return made;
}

Result<LeaseWindows::Version> LeaseWindows::CurrentVersion() const {
  struct statx status {};
  if (statx(opened_->any(), "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_SIZE | STATX_CTIME, &status) != 0) {
    return Error{ErrorCode{errno},
                 fmt::format("{}: cannot look at the file: {}", opened_->path(), std::strerror(errno)),
                 opened_->path()};
  }
  return Version{status.stx_size, status.stx_ctime.tv_sec, status.stx_ctime.tv_nsec};
}

// In the version of Open, or ESTALE. Called after a lease: a change before the lease has another version by now.
Result<void> LeaseWindows::CheckUnchanged(uint64_t leased_size) const {
  ASSIGN_OR_RETURN(const Version now, CurrentVersion());
  if (now == file_ && leased_size == file_.size) return {};
  return Error{ErrorCode::kStale,
               fmt::format("{}: the file was changed after the reader had opened it, and not all of it was leased: "
                           "refresh the reader, or give it memory for all checksums of the file",
                           opened_->path()),
               opened_->path()};
}

Result<void> LeaseWindows::TakeFirst(uint64_t memory) {
  const uint64_t blocks = std::max<uint64_t>(memory / sizeof(uint32_t), kMost);
  const uint64_t whole = std::min(blocks, kLargestLease) * kBlockSize;
  ASSIGN_OR_RETURN(file_, CurrentVersion());
  const bool one = file_.size <= whole;
  window_size_ = one ? whole : std::min(blocks / kMost, kLargestLease) * kBlockSize;
  uint64_t size = 0;
  ASSIGN_OR_RETURN(WindowPtr first, Take(0, &size));
  // One lease of everything is of one state, whatever was changed before it.
  if (!one || size > whole) RETURN_IF_ERROR(CheckUnchanged(size));
  file_.size = size;
  MutexLock lock(mutex_);
  kept_.push_back(std::move(first));
  return {};
}

Result<LeaseWindows::WindowPtr> LeaseWindows::Take(uint64_t index, uint64_t* file_size) const {
  auto window = std::make_shared<Window>();
  window->index = index;
  const uint64_t offset = index * window_size_;
  ASSIGN_OR_RETURN(auto begun, Lease::Begin(connections_, opened_->any(), lease::Kind::kRead, offset, window_size_));
  window->lease = std::move(begun.lease);
  ASSIGN_OR_RETURN(*file_size, window->blocks.TakeReadAnswer(std::move(begun.answer), offset, window_size_));
  return WindowPtr(std::move(window));
}

std::vector<LeaseWindows::WindowPtr> LeaseWindows::FindLocked(std::span<const uint64_t> indices) {
  std::vector<WindowPtr> found(indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    const auto at =
        std::find_if(kept_.begin(), kept_.end(), [&](const WindowPtr& window) { return window->index == indices[i]; });
    if (at == kept_.end()) continue;
    found[i] = *at;
    std::rotate(at, std::next(at), kept_.end());
  }
  return found;
}

bool LeaseWindows::MakeSpaceLocked(size_t more, std::vector<WindowPtr>* dropped) {
  const auto unused = [](const WindowPtr& window) { return window.use_count() == 1; };
  const auto droppable = static_cast<size_t>(std::count_if(kept_.begin(), kept_.end(), unused));
  if (kept_.size() + more > kMost + droppable) return false;
  while (kept_.size() + more > kMost) {
    const auto window = std::find_if(kept_.begin(), kept_.end(), unused);
    dropped->push_back(std::move(*window));
    kept_.erase(window);
  }
  return true;
}

Result<std::unique_ptr<Access>> LeaseWindows::Pin(std::span<const uint64_t> indices) {
  const auto pinned = [this](std::vector<WindowPtr>&& windows) {
    return std::unique_ptr<Access>(new Pinned(shared_from_this(), std::move(windows)));
  };
  std::vector<WindowPtr> windows;
  std::vector<WindowPtr> dropped;  // their leases end when no lock is held
  size_t missing = 0;
  {
    MutexLock lock(mutex_);
    for (;;) {
      windows = FindLocked(indices);
      missing = static_cast<size_t>(std::count(windows.begin(), windows.end(), nullptr));
      if (missing == 0) return pinned(std::move(windows));
      if (!leasing_ && MakeSpaceLocked(missing, &dropped)) break;
      windows.clear();  // while this thread waits, others may need their space
      if (Operation::CallbackScope::active()) {
        return Error{ErrorCode::kAgain,
                     fmt::format("{}: operations that have not ended use all {} leases of the reader, and a callback "
                                 "may not wait for them",
                                 opened_->path(), kMost),
                     opened_->path()};
      }
      changed_.wait(lock.native());
    }
    leasing_ = true;
  }
  dropped.clear();
  auto taken = TakeMissing(indices, windows);
  {
    MutexLock lock(mutex_);
    leasing_ = false;
    // Also those that were leased before an error.
    for (size_t i = 0; i < windows.size(); ++i) {
      const bool is_new = windows[i] != nullptr && std::find(kept_.begin(), kept_.end(), windows[i]) == kept_.end();
      if (is_new) kept_.push_back(windows[i]);
    }
  }
  changed_.notify_all();
  auto access = pinned(std::move(windows));
  RETURN_IF_ERROR(taken);
  return access;
}

Result<void> LeaseWindows::TakeMissing(std::span<const uint64_t> indices, std::vector<WindowPtr>& windows) const {
  for (size_t i = 0; i < indices.size(); ++i) {
    if (windows[i] != nullptr) continue;
    uint64_t size = 0;
    ASSIGN_OR_RETURN(auto window, Take(indices[i], &size));
    RETURN_IF_ERROR(CheckUnchanged(size));
    windows[i] = std::move(window);
  }
  return {};
}

void LeaseWindows::Unpin(std::vector<WindowPtr> windows) {
  {
    MutexLock lock(mutex_);
    windows.clear();  // none of them is the last reference: kept_ has another
  }
  changed_.notify_all();
}

}  // namespace weightfs::client
