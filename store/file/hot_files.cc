// SPDX-License-Identifier: Apache-2.0
#include "store/file/hot_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include "common/assert.h"

namespace weightfs {
namespace {

constexpr uint64_t kMostSlots = 16384;
// At contents in use. Each takes some microseconds, during which all reads wait.
constexpr uint64_t kLooksOfRequest = 8, kMostLooks = 1024;
constexpr std::chrono::minutes kForgotten{10};  // a load that has not gone on; those of other programs may come first

uint64_t MostSlots() {
  rlimit descriptors{};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return kMostSlots;
  return std::min<uint64_t>(kMostSlots, descriptors.rlim_cur / 8);
}

// What a content takes of the descriptors, mappings and addresses of this process.
uint64_t SlotsOf(uint64_t size) { return 1 + size / (4 * kGiB); }

}  // namespace

HotFiles::HotFiles(std::unique_ptr<SharedPages> pages, ByteCount limit)
    : pages_(std::move(pages)), limit_(limit), most_slots_(MostSlots()) {}

Result<HotFilePtr> HotFiles::Make(InodeId ino, uint64_t size, uint64_t chunks) {
  const uint64_t slots = SlotsOf(size);
  Freed freed;  // unmapped after the mutex is released
  MutexLock lock(mutex_);
  if (!MakeRoomLocked(chunks, slots, &freed)) {
    return Error{ErrorCode::kNoMemory, fmt::format("{} chunks of 2 MiB do not fit into the {} bytes of hot memory that "
                                                   "are not in use", chunks, limit_.value)};
  }
  slots_ += slots;
  lock.Unlock();
  auto made = pages_->Make(ByteCount{size});
  lock.Lock();
  if (!made) {
    slots_ -= slots;
    return made.error();
  }
  const HotFilePtr file(new HotFile(++made_, ino, size, *std::move(made)));
  file->position_ = files_.insert(files_.end(), file);
  return file;
}

Result<void> HotFiles::Reserve(HotFile& file, uint64_t first, uint64_t last, Time now) {
  Freed freed;
  MutexLock lock(mutex_);
  const auto load = file.loads_.find(last);
  const bool goes_on = load != file.loads_.end() && load->second.first <= first;
  if (!goes_on && !ReserveLocked(file, first, last, &freed)) return ErrorCode::kNoMemory;
  file.loads_[last] = {goes_on ? load->second.first : first, now};
  return {};
}

bool HotFiles::ReserveLocked(HotFile& file, uint64_t first, uint64_t last, Freed* freed) {
  auto next = file.chunks_.lower_bound(last);
  const uint64_t lacking = last - first - static_cast<uint64_t>(std::distance(file.chunks_.lower_bound(first), next));
  // Nothing may lack also while programs have touched more than the limit.
  if (lacking > 0 && !MakeRoomLocked(lacking, 0, freed)) return false;
  reserved_ -= file.counted();
  for (uint64_t index = last; index-- > first;) next = file.chunks_.try_emplace(next, index);
  reserved_ += file.counted();
  return true;
}

Result<void> HotFiles::Provide(HotFile& file, uint64_t index) {
  {
    Freed freed;
    MutexLock lock(mutex_);
    if (!ReserveLocked(file, index, index + 1, &freed)) return ErrorCode::kNoMemory;
  }
  return file.memory_->Populate(index * kChunkBytes, kChunkBytes);
}

// True if somebody loads, reads or maps the content.
bool HotFiles::IsInUse(const HotFilePtr& file) {
  if (file.use_count() > 1 || file->memory_->IsShared()) return true;
  long known = 1;  // who have the memory
  for (const auto& [index, chunk] : file->chunks_) {
    if (chunk.use_count() > 1) return true;
    if (chunk != nullptr) ++known;
  }
  return file->memory_.use_count() > known;
}

// Drops contents that are not in use, those that were used longest ago first, until there is space for so much more.
// Drops nothing, and returns false, if there is not, or not without a long search: each call may look at a few contents
// in use, and at as many more as earlier calls did not look at. Those that it finds are looked at last by the next one.
bool HotFiles::MakeRoomLocked(uint64_t chunks, uint64_t slots, Freed* freed) {
  std::vector<HotFilePtr*> idle;
  uint64_t idle_chunks = 0, idle_slots = 0;
  const auto enough = [&]() REQUIRES(mutex_) {
    return (chunks == 0 || reserved_ + chunks <= most() + idle_chunks) && slots_ + slots <= most_slots_ + idle_slots;
  };
  looks_ = std::min(looks_ + kLooksOfRequest, kMostLooks);
  if (chunks > most() || slots > most_slots_) return false;
  auto next = files_.begin();
  for (uint64_t left = files_.size(); left > 0 && looks_ > 0 && !enough(); --left) {
    HotFilePtr& file = *next++;
    if (IsInUse(file)) {
      files_.splice(files_.end(), files_, file->position_);
      --looks_;
      continue;
    }
    idle.push_back(&file);
    idle_chunks += file->counted();
    idle_slots += SlotsOf(file->size_);
  }
  if (!enough()) return false;
  for (const HotFilePtr* file : idle) EvictLocked(HotFilePtr(*file), freed);
  return true;
}

// Drops contents that were replaced, and others until so many chunks are left, unless they are in use. Takes a time
// proportional to their number.
void HotFiles::ShrinkLocked(uint64_t chunks, Freed* freed) {
  for (auto next = files_.begin(); next != files_.end();) {
    const auto file = next++;
    if (((*file)->current_ && reserved_ <= chunks) || IsInUse(*file)) continue;
    EvictLocked(HotFilePtr(*file), freed);
  }
}

void HotFiles::EvictLocked(const HotFilePtr& file, Freed* freed) {
  if (file->current_) ++counters_.evictions;
  const auto [begin, end] = by_inode_.equal_range(file->ino_);
  const auto found = std::find_if(begin, end, [&](const auto& entry) { return entry.second == file.get(); });
  if (found != end) by_inode_.erase(found);
  reserved_ -= file->counted();
  slots_ -= SlotsOf(file->size_);
  files_.erase(file->position_);
  freed->push_back(file);
}

HotFilePtr HotFiles::Find(InodeId ino) {
  MutexLock lock(mutex_);
  return FindLocked(ino);
}

HotFilePtr HotFiles::FindLocked(InodeId ino) {
  auto found = by_inode_.upper_bound(ino);
  if (found == by_inode_.begin() || (--found)->first != ino || !found->second->current_) return nullptr;
  const auto position = found->second->position_;
  files_.splice(files_.end(), files_, position);
  return *position;
}

void HotFiles::Begin(const HotFilePtr& file) {
  MutexLock lock(mutex_);
  ForgetLocked(file->ino_);
  file->current_ = true;
  by_inode_.emplace(file->ino_, file.get());
}

void HotFiles::Forget(InodeId ino) {
  MutexLock lock(mutex_);
  ForgetLocked(ino);
}

void HotFiles::ForgetLocked(InodeId ino) {
  const HotFilePtr file = FindLocked(ino);
  if (file == nullptr) return;
  file->current_ = false;
  files_.splice(files_.begin(), files_, file->position_);
}

bool HotFiles::IsCurrent(const HotFile& file) const {
  MutexLock lock(mutex_);
  return file.current_;
}

ChunkPtr HotFiles::FindChunk(const HotFile& file, uint64_t index) const {
  MutexLock lock(mutex_);
  const auto found = file.chunks_.find(index);
  return found == file.chunks_.end() ? nullptr : found->second;
}

ChunkPtr HotFiles::FindChunk(InodeId ino, uint64_t index) {
  MutexLock lock(mutex_);
  const HotFilePtr file = FindLocked(ino);
  if (file == nullptr) return nullptr;
  const auto found = file->chunks_.find(index);
  return found == file->chunks_.end() ? nullptr : found->second;
}

ChunkPtr HotFiles::BeginChunk(HotFile& file, uint64_t index) {
  MutexLock lock(mutex_);
  if (const auto failed = file.failed_.find(index); failed != file.failed_.end()) {
    if (!failed->second.expired()) return nullptr;
    file.failed_.erase(failed);
  }
  const auto part = file.chunks_.find(index);
  if (part == file.chunks_.end()) return nullptr;
  ChunkPtr& chunk = part->second;
  WEIGHTFS_ASSERT(chunk == nullptr);
  const std::span<std::byte> bytes(file.memory_->data() + index * kChunkBytes, kChunkBytes);
  return chunk = std::make_shared<ReadChunk>(Buffer::Of(file.memory_, bytes));
}

void HotFiles::Fail(HotFile& file, uint64_t index) {
  MutexLock lock(mutex_);
  file.failed_[index] = std::exchange(file.chunks_[index], nullptr);
}

Result<UniqueFd> HotFiles::OpenForReading(HotFile& file, uint64_t last, Time now) {
  MutexLock lock(mutex_);
  if (const auto load = file.loads_.find(last); load != file.loads_.end()) load->second.asked_at = now;
  if (!file.current_) return ErrorCode::kAgain;
  return file.memory_->OpenForReading();
}

Result<UniqueFd> HotFiles::OpenLoaded(InodeId ino, uint64_t first, uint64_t last) {
  MutexLock lock(mutex_);
  const HotFilePtr file = FindLocked(ino);
  if (file == nullptr) return UniqueFd();
  if (!file->whole_) {
    auto chunk = file->chunks_.lower_bound(first);
    for (uint64_t index = first; index < last; ++index, ++chunk) {
      if (chunk == file->chunks_.end() || chunk->first != index) return UniqueFd();
      if (chunk->second == nullptr || !chunk->second->ready()) return UniqueFd();
    }
    file->whole_ = first == 0 && last * kChunkBytes >= file->size_;
  }
  return file->memory_->OpenForReading();
}

void HotFiles::Pass(HotFile& file, int passes) {
  MutexLock lock(mutex_);
  file.passes_ += passes;
}

bool HotFiles::IsPassed(InodeId ino) const {
  MutexLock lock(mutex_);
  const auto [begin, end] = by_inode_.equal_range(ino);
  return std::any_of(begin, end, [](const auto& entry) {
    return entry.second->passes_ > 0 && entry.second->memory_->IsShared();
  });
}

void HotFiles::Count(Time now) {
  Freed freed;
  MutexLock lock(mutex_);
  for (const HotFilePtr& file : files_) {
    reserved_ -= file->counted();
    if (file.use_count() == 1) ForgetLoadsLocked(*file, now);
    file->touched_ = file->memory_->memory().value / kChunkBytes;
    reserved_ += file->counted();
  }
  ShrinkLocked(most(), &freed);
}

// Gives the memory back that was reserved for loads which have not gone on, unless others go on with it.
void HotFiles::ForgetLoadsLocked(HotFile& file, Time now) {
  std::erase_if(file.loads_, [now](const auto& load) { return now - load.second.asked_at > kForgotten; });
  std::erase_if(file.chunks_, [&file](const auto& entry) {
    const auto& [index, chunk] = entry;
    const auto covers = [index](const auto& load) { return load.second.first <= index; };
    return chunk == nullptr && std::none_of(file.loads_.upper_bound(index), file.loads_.end(), covers);
  });
}

void HotFiles::Shrink(uint64_t bytes) {
  Freed freed;
  MutexLock lock(mutex_);
  ShrinkLocked(bytes / kChunkBytes, &freed);
}

uint64_t HotFiles::used_bytes() const {
  MutexLock lock(mutex_);
  return reserved_ * kChunkBytes;
}

}  // namespace weightfs
