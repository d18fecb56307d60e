// SPDX-License-Identifier: Apache-2.0
#include "store/file/hot_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "common/assert.h"

namespace weightfs {
namespace {

constexpr uint64_t kMostFiles = 16384;
constexpr uint64_t kLargest = 64;  // times the chunks of all hot memory: a larger file would need large tables

uint64_t MostFiles() {
  rlimit descriptors{};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return kMostFiles;
  return std::min<uint64_t>(kMostFiles, descriptors.rlim_cur / 8);
}

}  // namespace

HotFiles::HotFiles(std::unique_ptr<SharedPages> pages, ByteCount limit)
    : pages_(std::move(pages)), limit_(limit), most_files_(MostFiles()) {}

Result<HotFilePtr> HotFiles::Make(InodeId ino, uint64_t size) {
  const uint64_t chunks = size / kChunkBytes + (size % kChunkBytes != 0);
  if (chunks > kLargest * most()) {
    return Error{ErrorCode::kNoMemory, fmt::format("a file of {} bytes is too large for {} bytes of hot memory", size,
                                                   limit_.value)};
  }
  Freed freed;  // unmapped after the mutex is released
  const auto memory = std::make_shared<HotFile::Memory>();
  memory->reserved.resize(chunks);
  MutexLock lock(mutex_);
  if (!MakeRoomLocked(&freed, [this]() REQUIRES(mutex_) { return memories_.size() + making_ < most_files_; })) {
    return Error{ErrorCode::kNoMemory, "too many hot files are in use"};
  }
  ++making_;
  lock.Unlock();
  auto made = pages_->Make(ByteCount{size});
  lock.Lock();
  --making_;
  if (!made) return made.error();
  memory->file = std::move(*made);
  memories_.emplace(ino, memory);
  return HotFilePtr(new HotFile(++made_, ino, size, memory));
}

Result<void> HotFiles::Reserve(const HotFile& file, uint64_t first, uint64_t last) {
  HotFile::Memory& memory = *file.memory_;
  Freed freed;
  MutexLock lock(mutex_);
  uint64_t lacking = 0;
  for (uint64_t index = first; index < last; ++index) lacking += memory.reserved[index] ? 0 : 1;
  if (lacking == 0) return {};  // also while programs have touched more than the limit
  if (reserved_ + lacking > most()) FreeLocked(&freed);
  uint64_t idle = 0;
  for (auto other = files_.begin(); other != files_.end() && reserved_ + lacking > most() + idle; ++other) {
    if (!IsInUse(*other)) idle += (*other)->memory_->counted();
  }
  if (reserved_ + lacking > most() + idle) {
    return Error{ErrorCode::kNoMemory, fmt::format("{} chunks of 2 MiB do not fit into the {} bytes of hot memory that "
                                                   "are not in use", lacking, limit_.value)};
  }
  if (!MakeRoomLocked(&freed, [&]() REQUIRES(mutex_) { return reserved_ + lacking <= most(); })) {
    return ErrorCode::kNoMemory;  // used since
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

// Gives the memory of contents that are gone back to the machine.
void HotFiles::FreeLocked(Freed* freed) {
  std::erase_if(memories_, [&](const auto& entry) REQUIRES(mutex_) {
    const MemoryPtr& memory = entry.second;
    if (memory.use_count() > 1 || memory->file->IsShared()) return false;
    reserved_ -= memory->counted();
    freed->push_back(memory);
    return true;
  });
}

// True if somebody loads, reads or maps the content, which is in files_.
bool HotFiles::IsInUse(const HotFilePtr& file) {
  const auto in_use = [](const ChunkPtr& chunk) { return chunk != nullptr && chunk.use_count() > 1; };
  return file.use_count() > 1 || std::ranges::any_of(file->chunks_, in_use) ||
         file->memory_->file->IsShared();
}

// Frees what is gone, and then drops contents that are not in use, those that were used longest ago first, until there
// is enough room. Takes a time proportional to the number of contents.
template <typename Enough>
bool HotFiles::MakeRoomLocked(Freed* freed, Enough enough) {
  if (enough()) return true;
  FreeLocked(freed);
  for (auto next = files_.begin(); !enough() && next != files_.end();) {
    const auto file = next++;
    if (!IsInUse(*file)) EvictLocked(file, freed);
  }
  return enough();
}

void HotFiles::EvictLocked(Files::iterator file, Freed* freed) {
  const InodeId ino = (*file)->ino_;
  const MemoryPtr memory = (*file)->memory_;
  RemoveLocked(file);
  ++counters_.evictions;
  if (memory.use_count() > 2) return;  // beside memories_; FreeLocked finds it later
  const auto [begin, end] = memories_.equal_range(ino);
  reserved_ -= memory->counted();
  freed->push_back(memory);
  memories_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == memory; }));
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
    if (!MakeRoomLocked(freed, [this]() REQUIRES(mutex_) { return reserved_ < most(); })) return nullptr;
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
  MakeRoomLocked(&freed, [this]() REQUIRES(mutex_) { return reserved_ <= most(); });
}

void HotFiles::Shrink(uint64_t bytes) {
  Freed freed;
  MutexLock lock(mutex_);
  MakeRoomLocked(&freed, [&]() REQUIRES(mutex_) { return reserved_ * kChunkBytes <= bytes; });
}

uint64_t HotFiles::used_bytes() const {
  MutexLock lock(mutex_);
  return reserved_ * kChunkBytes;
}

}  // namespace weightfs
