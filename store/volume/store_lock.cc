// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstring>
#include <thread>

#include "common/guarded_directory.h"
#include "common/printable.h"
#include "common/processes.h"
#include "common/system_calls.h"
#include "store/volume/store_directory.h"

namespace weightfs {
namespace {

constexpr std::chrono::seconds kLookLimit{1};
constexpr std::chrono::milliseconds kLookPoll{1};

constexpr std::string_view kServingWord = "serving ", kClosingWord = "closing", kErrorWord = "error: ";

// The content is advisory, so failures are ignored. But an empty file says that the store was closed, so it is never
// empty in between, and keeps its old text after a failure.
void Rewrite(int descriptor, const std::string& text) {
  if (!WriteFully(descriptor, std::as_bytes(std::span(text)), 0)) return;
  [[maybe_unused]] const int cut = ftruncate(descriptor, static_cast<off_t>(text.size()));
}

// Takes a shared lock for a moment.
bool IsHeld(int descriptor) {
  if (flock(descriptor, LOCK_SH | LOCK_NB) != 0) return errno == EWOULDBLOCK;
  flock(descriptor, LOCK_UN);
  return false;
}

// False when the path refers to another file, or to none.
bool IsNamed(const std::string& path, int descriptor) {
  struct stat opened = {}, named = {};
  return fstat(descriptor, &opened) == 0 && lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

std::string ReadNote(int descriptor) {
  std::string text(3 * PATH_MAX, '\0');  // two paths and two short lines
  const ssize_t got = ReadFully(descriptor, std::as_writable_bytes(std::span(text)), 0);
  if (got < 0) return fmt::format("{}{} cannot be read: {}\n", kErrorWord, kLockName, std::strerror(errno));
  text.resize(static_cast<size_t>(got));
  return text;
}

// Parses the format in docs/FORMAT.md, "Locks".
StoreHolder ParseNote(std::string_view text) {
  StoreHolder holder;
  const size_t end = text.find('\n');
  const std::string_view first = text.substr(0, end);
  if (first.starts_with(kErrorWord)) {
    holder.error = first.substr(kErrorWord.size());
    return holder;
  }
  const auto parsed = std::from_chars(first.data(), first.data() + first.size(), holder.noted);
  if (parsed.ec != std::errc() || holder.noted <= 0) return {};
  std::string_view second = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  if (second.starts_with(kClosingWord)) holder.state = StoreHolder::State::kClosing;
  const size_t blank = second.find(' ', kServingWord.size());
  // Both paths may contain newlines; the source ends at the last one.
  if (!second.starts_with(kServingWord) || blank == std::string_view::npos || !second.ends_with('\n')) return holder;
  holder.state = StoreHolder::State::kServing;
  holder.filesystem.device = second.substr(kServingWord.size(), blank - kServingWord.size());
  second.remove_suffix(1);
  const size_t directory_end = second.find('\0', blank);
  holder.directory = second.substr(blank + 1, directory_end - (blank + 1));
  if (directory_end != std::string_view::npos) holder.filesystem.source = second.substr(directory_end + 1);
  return holder;
}

Error OpenError(const GuardedDirectory& store, const Error& error) {
  if (error.code == ErrorCode::kPermission) return error;  // the message is complete
  return {error.code, fmt::format("{}; check the directory of the store, its owner and its free space",
                                  error.what.empty() ? store.PathOf(kLockName) : error.what)};
}

}  // namespace

bool StoreHolder::IsEnding() const {
  return held && (state == State::kClosing || (process > 0 && weightfs::IsEnding(process)));
}

StoreHolder ReadStoreHolder(const std::string& directory) {
  const auto file = StoreLock::OpenToWatch(directory);
  return file.has_value() ? ReadStoreHolder(*file) : StoreHolder();
}

StoreHolder ReadStoreHolder(const UniqueFd& lock) {
  const bool held = IsHeld(lock.get());
  StoreHolder holder = ParseNote(ReadNote(lock.get()));
  if (held) holder.process = FindLockHolder(lock.get(), holder.noted);
  // A holder that was not found may have just ended.
  holder.held = held && (holder.process > 0 || IsHeld(lock.get()));
  return holder;
}

std::chrono::milliseconds DeviceLockWait(const StoreLock& lock) {
  return lock.holder_was_killed() ? kAfterKill : std::chrono::seconds(0);
}

Result<StoreLock> StoreLock::Acquire(const StoreLocation& location) {
  ASSIGN_OR_RETURN(const GuardedDirectory store, GuardedDirectory::Open(location.directory));
  const std::string path = store.PathOf(kLockName);
  const auto deadline = std::chrono::steady_clock::now() + kLookLimit;
  while (true) {
    auto file = store.OpenFile(kLockName, O_RDWR | O_CREAT);
    // A store on a read-only filesystem can be locked too, without a name in the file.
    if (!file.has_value() && file.error().code == ErrorCode::kReadOnly) file = store.OpenFile(kLockName, O_RDONLY);
    if (!file.has_value()) return OpenError(store, file.error());
    StoreLock lock(std::move(*file));
    if (flock(lock.file_.get(), LOCK_EX | LOCK_NB) == 0) {
      if (!IsNamed(path, lock.file_.get())) continue;  // removed by a failed format since the open
      lock.holder_was_killed_ = ParseNote(ReadNote(lock.file_.get())).noted > 0;
      return lock;
    }
    if (errno != EWOULDBLOCK) return SystemError(path, "cannot be locked");
    const StoreHolder holder = ReadStoreHolder(lock.file_);
    // If there is no holder, another process is only inspecting the lock, and shares it for a moment.
    if (holder.held || std::chrono::steady_clock::now() >= deadline) {
      return Error{
          ErrorCode::kBusy,
          fmt::format("{}: the store is in use by {}; {}", location.name, DescribeProcess(holder.process),
                      holder.state == StoreHolder::State::kServing ? "unmount it first" : "wait for it to end")};
    }
    std::this_thread::sleep_for(kLookPoll);
  }
}

StoreLock::~StoreLock() {
  if (claimed_ && !holder_was_killed_) Clear();
}

Result<UniqueFd> StoreLock::OpenToWatch(const std::string& directory) {
  ASSIGN_OR_RETURN(const GuardedDirectory store, GuardedDirectory::Open(directory));
  return store.OpenFile(kLockName, O_RDONLY);
}

Result<UniqueFd> StoreLock::Duplicate() const {
  UniqueFd copy(fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return SystemError(kLockName, "cannot duplicate the descriptor of the lock");
  return copy;
}

void StoreLock::Claim() {
  claimed_ = true;
  if (file_) Rewrite(file_.get(), fmt::format("{}\n", getpid()));
}

void StoreLock::NoteServing(const MountedFilesystem& filesystem, const std::string& directory) {
  if (!file_) return;
  std::string text = fmt::format("{}\n{}{} {}", getpid(), kServingWord, filesystem.device, directory);
  if (!filesystem.source.empty()) text += '\0' + filesystem.source;
  Rewrite(file_.get(), text + "\n");
}

void StoreLock::NoteClosing() {
  if (file_) Rewrite(file_.get(), fmt::format("{}\n{}\n", getpid(), kClosingWord));
}

void StoreLock::Clear(const std::string& note) {
  claimed_ = false;
  if (!file_) return;
  if (!note.empty()) return Rewrite(file_.get(), fmt::format("{}{}\n", kErrorWord, Printable(note)));
  if (ftruncate(file_.get(), 0) != 0) Rewrite(file_.get(), "0\n");
}

}  // namespace weightfs
