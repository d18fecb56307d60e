// SPDX-License-Identifier: Apache-2.0
#include "store/file/hot_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/assert.h"

namespace weightfs {

Result<HotFilePtr> HotFiles::Make(InodeId ino, uint64_t size, bool whole) {
  const uint64_t chunks = (size + kChunkBytes - 1) / kChunkBytes;
  const auto lacking = [&](const MemoryPtr& memory) {
    return whole ? chunks - std::min(chunks, memory == nullptr ? 0 : memory->count) : 0;
  };
  std::vector<MemoryPtr> freed;  // unmapped after the mutex is released
  MutexLock lock(mutex_);
  MemoryPtr memory;
  while (true) {
    // A program that gets a part of a file must not see the bytes of another one behind it.
    if (memory == nullptr && whole) memory = FindSpareLocked(chunks);
    if (reserved_ + lacking(memory) <= most()) break;
    if (!FreeLocked(&freed) && !EvictLocked()) {
      return Error{ErrorCode::kNoMemory, fmt::format("{} bytes do not fit into the {} bytes of hot memory that are not "
                                                     "in use", size, limit_.value)};
    }
  }
  if (memory == nullptr) {
    memory = std::make_shared<HotFile::Memory>();
    memories_.push_back(memory);
  } else {
    memory->recycled = true;
  }
  for (uint64_t index = chunks; index < memory->reserved.size(); ++index) ReserveLocked(*memory, index, false);
  memory->reserved.resize(chunks);
  for (uint64_t index = 0; whole && index < chunks; ++index) ReserveLocked(*memory, index, true);
  const uint64_t id = ++made_;
  lock.Unlock();
  // Nobody else has this memory.
  Result<void> sized;
  if (memory->file == nullptr) {
    auto made = pages_->Make(ByteCount{size});
    if (made) memory->file = std::move(*made);
    if (!made) sized = made.error();
  } else {
    sized = memory->file->Resize(ByteCount{size});
  }
  if (sized) return HotFilePtr(new HotFile(id, ino, size, std::move(memory)));
  lock.Lock();
  reserved_ -= memory->count;
  std::erase(memories_, memory);
  return sized.error();
}

void HotFiles::ReserveLocked(HotFile::Memory& memory, uint64_t index, bool reserved) {
  if (memory.reserved[index] == reserved) return;
  memory.reserved[index] = reserved;
  memory.count += reserved ? 1 : -1;
  reserved_ += reserved ? 1 : -1;
}

// The memory that no content has, nobody maps, and that fits best: of the smallest that are large enough, or the
// largest.
HotFiles::MemoryPtr HotFiles::FindSpareLocked(uint64_t chunks) const {
  MemoryPtr best;
  for (const MemoryPtr& memory : memories_) {
    if (memory.use_count() > 1 || memory->file == nullptr || memory->file->IsShared()) continue;
    const bool larger = best == nullptr || memory->count > best->count;
    if (best == nullptr || best->count < chunks ? larger : memory->count >= chunks && !larger) best = memory;
  }
  return best;
}

// Gives the memory of one content that is gone back to the machine.
bool HotFiles::FreeLocked(std::vector<MemoryPtr>* freed) {
  const MemoryPtr spare = FindSpareLocked(1);
  if (spare == nullptr) return false;
  reserved_ -= spare->count;
  std::erase(memories_, spare);
  freed->push_back(spare);
  return true;
}

// Drops the content that nobody loads, reads or maps, and was used longest ago.
bool HotFiles::EvictLocked() {
  for (auto file = files_.begin(); file != files_.end(); ++file) {
    const auto in_use = [](const ChunkPtr& chunk) { return chunk != nullptr && chunk.use_count() > 1; };
    if (file->use_count() > 1 || std::ranges::any_of((*file)->chunks_, in_use)) continue;
    if ((*file)->memory_->file->IsShared()) continue;
    RemoveLocked(file);
    ++counters_.evictions;
    return true;
  }
  return false;
}

void HotFiles::RemoveLocked(Files::iterator file) {
  (*file)->current_ = false;
  by_inode_.erase((*file)->ino_);
  files_.erase(file);
}

HotFilePtr HotFiles::Find(InodeId ino) {
  MutexLock lock(mutex_);
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

ChunkPtr HotFiles::BeginChunk(HotFile& file, uint64_t index) {
  HotFile::Memory& memory = *file.memory_;
  std::vector<MemoryPtr> freed;
  MutexLock lock(mutex_);
  WEIGHTFS_ASSERT(file.chunks_[index] == nullptr);
  if (!memory.reserved[index]) {
    while (reserved_ == most()) {
      if (!FreeLocked(&freed) && !EvictLocked()) return nullptr;
    }
    ReserveLocked(memory, index, true);
  }
  const std::span<std::byte> bytes(memory.file->data() + index * kChunkBytes, kChunkBytes);
  file.chunks_[index] = std::make_shared<ReadChunk>(Buffer::Of(file.memory_, bytes));
  return file.chunks_[index];
}

void HotFiles::Fail(HotFile& file, uint64_t index) {
  MutexLock lock(mutex_);
  file.chunks_[index] = nullptr;
  // It stays reserved if the pages cannot be freed, and is then cleared again before anybody gets a descriptor.
  if (file.memory_->file->Free(ByteOffset{index * kChunkBytes}, ByteCount{kChunkBytes})) {
    ReserveLocked(*file.memory_, index, false);
  }
}

// Frees the pages of what is not loaded. Returns the chunks that are being loaded.
std::vector<ChunkPtr> HotFiles::ClearLocked(HotFile& file) {
  std::vector<ChunkPtr> loading;
  HotFile::Memory& memory = *file.memory_;
  for (uint64_t index = 0; index < file.chunks_.size(); ++index) {
    const ChunkPtr& chunk = file.chunks_[index];
    if (chunk != nullptr && !chunk->ready()) loading.push_back(chunk);
    if (chunk != nullptr || !memory.reserved[index]) continue;
    if (memory.file->Free(ByteOffset{index * kChunkBytes}, ByteCount{kChunkBytes})) ReserveLocked(memory, index, false);
  }
  return loading;
}

Result<UniqueFd> HotFiles::OpenForReading(HotFile& file) {
  while (file.memory_->recycled) {
    std::vector<ChunkPtr> loading;
    {
      MutexLock lock(mutex_);
      loading = ClearLocked(file);
      // Pages that could not be freed have bytes of another file.
      for (uint64_t index = 0; index < file.chunks_.size(); ++index) {
        if (file.chunks_[index] == nullptr && file.memory_->reserved[index]) return ErrorCode::kNoMemory;
      }
    }
    if (loading.empty()) break;
    for (const ChunkPtr& chunk : loading) (void)chunk->Wait();
  }
  return file.memory_->file->OpenForReading();
}

void HotFiles::Shrink(uint64_t bytes) {
  std::vector<MemoryPtr> freed;
  MutexLock lock(mutex_);
  while (reserved_ * kChunkBytes > bytes && (FreeLocked(&freed) || EvictLocked())) {
  }
}

uint64_t HotFiles::used_bytes() const {
  MutexLock lock(mutex_);
  return reserved_ * kChunkBytes;
}

}  // namespace weightfs
