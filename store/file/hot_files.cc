// SPDX-License-Identifier: Apache-2.0
#include "store/file/hot_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "common/assert.h"

namespace weightfs {
namespace {

constexpr uint64_t kMostFiles = 16384;

uint64_t MostFiles() {
  rlimit descriptors{};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return kMostFiles;
  return std::min<uint64_t>(kMostFiles, descriptors.rlim_cur / 4);
}

}  // namespace

HotFiles::HotFiles(std::unique_ptr<SharedPages> pages, ByteCount limit)
    : pages_(std::move(pages)), limit_(limit), most_files_(MostFiles()) {}

Result<HotFilePtr> HotFiles::Make(InodeId ino, uint64_t size) {
  Freed freed;  // unmapped after the mutex is released
  const auto memory = std::make_shared<HotFile::Memory>();
  memory->reserved.resize((size + kChunkBytes - 1) / kChunkBytes);
  MutexLock lock(mutex_);
  while (memories_.size() >= most_files_) {
    if (!FreeLocked(&freed) && !EvictLocked()) return Error{ErrorCode::kNoMemory, "too many hot files are in use"};
  }
  const auto added = memories_.emplace(ino, memory);
  const uint64_t id = ++made_;
  lock.Unlock();
  auto made = pages_->Make(ByteCount{size});  // nobody else has this memory
  lock.Lock();
  if (made) {
    memory->file = std::move(*made);
    return HotFilePtr(new HotFile(id, ino, size, memory));
  }
  memories_.erase(added);
  return made.error();
}

Result<void> HotFiles::Reserve(const HotFile& file, uint64_t first, uint64_t last) {
  HotFile::Memory& memory = *file.memory_;
  Freed freed;
  MutexLock lock(mutex_);
  uint64_t lacking = 0;
  for (uint64_t index = first; index < last; ++index) lacking += memory.reserved[index] ? 0 : 1;
  if (reserved_ + lacking > most()) FreeLocked(&freed);
  uint64_t idle = 0;
  for (auto other = files_.begin(); other != files_.end() && reserved_ + lacking > most() + idle; ++other) {
    if (!IsInUse(*other)) idle += (*other)->memory_->counted();
  }
  if (reserved_ + lacking > most() + idle) {
    return Error{ErrorCode::kNoMemory, fmt::format("{} chunks of 2 MiB do not fit into the {} bytes of hot memory that "
                                                   "are not in use", lacking, limit_.value)};
  }
  while (reserved_ + lacking > most()) {
    if (!FreeLocked(&freed) && !EvictLocked()) return ErrorCode::kNoMemory;  // used since
  }
  for (uint64_t index = first; index < last; ++index) ReserveLocked(memory, index);
  return {};
}

void HotFiles::ReserveLocked(HotFile::Memory& memory, uint64_t index) {
  if (memory.reserved[index]) return;
  const uint64_t before = memory.counted();
  memory.reserved[index] = true;
  ++memory.count;
  reserved_ += memory.counted() - before;
}

// Gives the memory of contents that are gone back to the machine. Returns false if there is none.
bool HotFiles::FreeLocked(Freed* freed) {
  return std::erase_if(memories_, [&](const auto& entry) REQUIRES(mutex_) {
    const MemoryPtr& memory = entry.second;
    if (memory.use_count() > 1 || memory->file->IsShared()) return false;
    reserved_ -= memory->counted();
    freed->push_back(memory);
    return true;
  }) > 0;
}

// True if somebody loads, reads or maps the content, which is in files_.
bool HotFiles::IsInUse(const HotFilePtr& file) {
  const auto in_use = [](const ChunkPtr& chunk) { return chunk != nullptr && chunk.use_count() > 1; };
  return file.use_count() > 1 || std::ranges::any_of(file->chunks_, in_use) ||
         file->memory_->file->IsShared();
}

// Drops the content that is not in use and was used longest ago.
bool HotFiles::EvictLocked() {
  const auto file = std::ranges::find_if(files_, [](const HotFilePtr& each) { return !IsInUse(each); });
  if (file == files_.end()) return false;
  RemoveLocked(file);
  ++counters_.evictions;
  return true;
}

void HotFiles::RemoveLocked(Files::iterator file) {
  (*file)->current_ = false;
  by_inode_.erase((*file)->ino_);
  files_.erase(file);
}

HotFilePtr HotFiles::Find(InodeId ino) {
  MutexLock lock(mutex_);
  return FindLocked(ino);
}

HotFilePtr HotFiles::FindLocked(InodeId ino) {
  const auto found = by_inode_.find(ino);
  if (found == by_inode_.end()) return nullptr;
  files_.splice(files_.end(), files_, found->second);
  return *found->second;
}

void HotFiles::Begin(const HotFilePtr& file) {
  MutexLock lock(mutex_);
  if (const auto older = by_inode_.find(file->ino_); older != by_inode_.end()) RemoveLocked(older->second);
  file->current_ = true;
  by_inode_.emplace(file->ino_, files_.insert(files_.end(), file));
}

void HotFiles::Forget(InodeId ino) {
  HotFilePtr forgotten;  // destroyed after the mutex is released
  MutexLock lock(mutex_);
  const auto found = by_inode_.find(ino);
  if (found == by_inode_.end()) return;
  forgotten = *found->second;
  RemoveLocked(found->second);
}

bool HotFiles::IsCurrent(const HotFile& file) const {
  MutexLock lock(mutex_);
  return file.current_;
}

ChunkPtr HotFiles::FindChunk(const HotFile& file, uint64_t index) const {
  MutexLock lock(mutex_);
  return index < file.chunks_.size() ? file.chunks_[index] : nullptr;
}

ChunkPtr HotFiles::FindChunk(InodeId ino, uint64_t index) {
  MutexLock lock(mutex_);
  const HotFilePtr file = FindLocked(ino);
  return file != nullptr && index < file->chunks_.size() ? file->chunks_[index] : nullptr;
}

ChunkPtr HotFiles::BeginChunk(HotFile& file, uint64_t index, Freed* freed) {
  HotFile::Memory& memory = *file.memory_;
  MutexLock lock(mutex_);
  WEIGHTFS_ASSERT(file.chunks_[index] == nullptr);
  if (const auto failed = file.failed_.find(index); failed != file.failed_.end()) {
    if (!failed->second.expired()) return nullptr;
    file.failed_.erase(failed);
  }
  if (!memory.reserved[index]) {
    while (reserved_ >= most()) {
      if (!FreeLocked(freed) && !EvictLocked()) return nullptr;
    }
    ReserveLocked(memory, index);
  }
  const std::span<std::byte> bytes(memory.file->data() + index * kChunkBytes, kChunkBytes);
  file.chunks_[index] = std::make_shared<ReadChunk>(Buffer::Of(file.memory_, bytes));
  return file.chunks_[index];
}

void HotFiles::Fail(HotFile& file, uint64_t index) {
  MutexLock lock(mutex_);
  file.failed_[index] = std::exchange(file.chunks_[index], nullptr);
}

Result<UniqueFd> HotFiles::OpenForReading(const HotFile& file) {
  MutexLock lock(mutex_);
  if (!file.current_) return ErrorCode::kAgain;
  return file.memory_->file->OpenForReading();
}

Result<UniqueFd> HotFiles::OpenLoaded(InodeId ino, uint64_t first, uint64_t last, bool passes) {
  MutexLock lock(mutex_);
  const HotFilePtr file = FindLocked(ino);
  if (file == nullptr || last > file->chunks_.size()) return UniqueFd();
  if (!file->whole_) {
    const auto loaded = [](const ChunkPtr& chunk) { return chunk != nullptr && chunk->ready(); };
    if (!std::all_of(file->chunks_.begin() + first, file->chunks_.begin() + last, loaded)) return UniqueFd();
    file->whole_ = first == 0 && last == file->chunks_.size();
  }
  if (passes) file->memory_->passed = true;
  return file->memory_->file->OpenForReading();
}

bool HotFiles::IsPassed(InodeId ino) const {
  MutexLock lock(mutex_);
  const auto [begin, end] = memories_.equal_range(ino);
  return std::any_of(begin, end, [](const auto& entry) {
    return entry.second->passed && entry.second->file->IsShared();
  });
}

void HotFiles::Count() {
  Freed freed;
  MutexLock lock(mutex_);
  FreeLocked(&freed);
  for (const auto& [ino, memory] : memories_) {
    const uint64_t before = memory->counted();
    memory->touched = memory->file->memory().value / kChunkBytes;
    reserved_ += memory->counted() - before;
  }
  while (reserved_ > most() && EvictLocked()) FreeLocked(&freed);
}

void HotFiles::Shrink(uint64_t bytes) {
  Freed freed;
  MutexLock lock(mutex_);
  while (reserved_ * kChunkBytes > bytes && (FreeLocked(&freed) || EvictLocked())) {
  }
}

uint64_t HotFiles::used_bytes() const {
  MutexLock lock(mutex_);
  return reserved_ * kChunkBytes;
}

}  // namespace weightfs
