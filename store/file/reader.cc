// SPDX-License-Identifier: Apache-2.0
#include "store/file/reader.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "common/assert.h"
#include "common/log.h"
#include "common/sync_wait.h"

namespace weightfs {
namespace {

constexpr uint64_t kStreamBytes = 256 * kKiB;  // bytes in sequence before read-ahead begins in mid-file
constexpr uint64_t kStreamSlack = 4 * kMiB;    // maximum reordering of requests within one stream
constexpr uint64_t kEdgeRead = 128 * kKiB;     // reads up to this size load the file's first or last chunk whole
constexpr uint64_t kLargestReadAhead = 32;     // chunks
constexpr uint64_t kHotStep = 16;              // chunks that are submitted together
constexpr uint64_t kLeastHot = kMiB;           // smaller files stay in the kernel's page cache
constexpr uint64_t kHotRead = 512 * kKiB;      // reads from this size on load hot files whole, in any order
constexpr uint64_t kChunkBlocks = kChunkBytes / kBlockSize;
constexpr uint64_t kZeroBytes = kMiB;

// The content of holes. Never written.
alignas(kBlockSize) std::byte zeros[kZeroBytes];

}  // namespace

// One call of Read: lays out the view at once, then waits for pending loads.
class Reader::Request {
 public:
  Request(ReadDone done, std::atomic<uint64_t>& read_bytes) : done_(std::move(done)), read_bytes_(read_bytes) {}

  void AddMemory(const std::byte* data, uint64_t size, Buffer hold) {
    view_.pieces.push_back({const_cast<std::byte*>(data), size});
    view_.size += ByteCount{size};
    if (hold) view_.holds.push_back(std::move(hold));
  }
  void AddZeros(uint64_t size) {
    for (; size > 0; size -= std::min(size, kZeroBytes)) AddMemory(zeros, std::min(size, kZeroBytes), {});
  }
  // Call this only before the first Expect.
  void Fail(const Error& error) { Complete(error); }
  void Expect() { ++pending_; }
  // Ends one of the expected loads.
  void Complete(const Result<void>& result) {
    if (!result) {
      MutexLock lock(mutex_);
      if (!error_) error_ = result.error();
    }
    if (--pending_ > 0) return;
    if (error_) {
      done_(std::move(*error_));
    } else {
      read_bytes_ += view_.size.value;
      done_(std::move(view_));
    }
  }

 private:
  ReadDone done_;
  std::atomic<uint64_t>& read_bytes_;
  ReadView view_;
  std::atomic<int> pending_{1};  // the planner holds one reference
  Mutex mutex_;
  std::optional<Error> error_;
};

// Blocks to fill from one device read, or with zeros.
struct Reader::BlockRead {
  FileBlock first;
  BlockCount count;
  std::optional<DeviceRun> run;  // nullopt: zeros
  std::vector<uint32_t> checksums;
  std::optional<Error> error;  // the checksums, and therefore the blocks, are unavailable
};

// A piece of the answer: memory, a chunk, zeros (none of the others), or blocks to read from a device.
struct Reader::Piece {
  uint64_t bytes = 0;
  const std::byte* memory = nullptr;
  Buffer hold;
  ChunkPtr chunk;
  std::optional<uint64_t> read_to_end;  // index of the chunk whose end this piece reaches
  std::optional<BlockRead> read;
  uint64_t skip = 0;  // bytes to skip in the first block of `read`
};

// The plan of one request, made in one hold of the inode's mutex.
struct Reader::Plan {
  std::vector<Piece> pieces;
  bool streaming = false, in_order = false;
  uint64_t device_bytes = 0;       // bytes that need buffers
  std::vector<uint64_t> chunks;    // chunks to load
  std::vector<uint64_t> segments;  // checksum segments to load
  bool lacks_memory = false;
  bool Lacks() const { return lacks_memory || !chunks.empty() || !segments.empty(); }
};

// The resources fetched for a request without the inode's mutex.
struct Reader::Supplies {
  std::vector<Buffer> buffers;
  std::set<uint64_t> tried;  // chunks requested already: if missing now, their blocks are read directly
  ChecksumSegments checksums;
  uint64_t buffer_bytes() const {
    uint64_t bytes = 0;
    for (const Buffer& buffer : buffers) bytes += buffer.size().value;
    return bytes;
  }
};

void Reader::Read(const InodePtr& inode, ByteOffset offset, ByteCount size, ReadStream* stream, ReadDone done,
                  bool from_devices) {
  const auto request = std::make_shared<Request>(std::move(done), counters_.read_bytes);
  const uint64_t sequence = stream != nullptr ? Advance(stream, offset.value, size.value) : 0;
  Supplies supplies;
  while (true) {
    if (auto loaded = LoadFile(catalog_, inode); !loaded) return request->Fail(loaded.error());
    std::shared_ptr<BlockReads> reads;
    Plan plan;
    uint64_t end;
    {
      MutexLock lock(inode->mutex);
      if (!inode->file->loaded()) continue;  // a failed write has unloaded the file
      end = std::min(inode->attributes.size, offset.value + size.value);
      plan = MakePlan(*inode, offset.value, end, sequence, from_devices, supplies);
      if (!plan.Lacks()) reads = Assemble(*inode, plan, supplies, request);
    }
    if (plan.Lacks()) {
      Fetch(inode, plan, &supplies);
      continue;
    }
    if (reads != nullptr) BlockReads::Submit({&reads, 1});
    for (Piece& piece : plan.pieces) {
      if (piece.chunk == nullptr) continue;
      const std::span<const std::byte> bytes(piece.memory, piece.bytes);
      piece.chunk->WhenReady([request, chunk = piece.chunk, bytes] { request->Complete(chunk->Check(bytes)); });
    }
    request->Complete({});
    // Read ahead after the request, so that it does not delay an answer that is in memory.
    if (plan.streaming) ReadAhead(inode, end, sequence);
    return;
  }
}

// Plans the whole range. Changes nothing except the eviction order of chunks.
Reader::Plan Reader::MakePlan(Inode& inode, uint64_t offset, uint64_t end, uint64_t sequence, bool from_devices,
                              Supplies& supplies) {
  Plan plan;
  while (offset < end) {
    const uint64_t index = offset / kChunkBytes;
    const uint64_t step = std::min(end, (index + 1) * kChunkBytes) - offset;
    ChunkPtr chunk = from_devices ? nullptr : cache_.Find(inode.id, index);
    const bool wanted = !from_devices && UsesChunks(inode, offset, end - offset, sequence);
    plan.in_order = plan.in_order || (!from_devices && IsInOrder(offset, end - offset, sequence));
    const bool again = wanted && plan.in_order && !supplies.tried.contains(index) && LacksHotChunk(inode, index);
    if (chunk != nullptr && !again) {
      Piece piece;
      piece.bytes = step;
      piece.memory = chunk->buffer().data() + offset % kChunkBytes;
      piece.hold = Buffer::Of(chunk, chunk->buffer().bytes());  // a damaged chunk is not loaded again meanwhile
      piece.chunk = std::move(chunk);
      if (offset + step == std::min((index + 1) * kChunkBytes, inode.attributes.size)) piece.read_to_end = index;
      plan.pieces.push_back(std::move(piece));
    } else if (wanted && !supplies.tried.contains(index) && CanLoadChunk(inode, index)) {
      plan.chunks.push_back(index);
    } else {
      PlanDirect(inode, offset, offset + step, supplies, &plan);
    }
    plan.streaming = wanted && sequence >= kEdgeRead;
    offset += step;
  }
  plan.lacks_memory =
      plan.Lacks() ? supplies.buffer_bytes() < plan.device_bytes : !TakeMemory(plan.device_bytes, &supplies);
  return plan;
}

// Plans a range without chunks: dirty memory as it is, holes as zeros, the rest as blocks to read.
void Reader::PlanDirect(Inode& inode, uint64_t offset, uint64_t end, Supplies& supplies, Plan* plan) {
  File& file = *inode.file;
  while (offset < end) {
    const FileBlock block = BlockOf(offset);
    const uint64_t skip = offset % kBlockSize;
    Piece piece;
    const auto at = file.dirty().FirstFrom(block);
    const bool found = at != file.dirty().ranges().end();
    if (found && at->first <= block.value) {
      piece.bytes = std::min(at->second.end * kBlockSize, end) - offset;
      piece.memory = at->second.value.memory(block.value) + skip;
      piece.hold = at->second.value.buffer;
    } else {
      const uint64_t last = BlockEnd(end).value;
      const BlockCount clean{(found ? std::min(last, at->first) : last) - block.value};
      const auto extent = file.extents().Lookup(block, clean);
      piece.bytes = std::min((block.value + extent.count.value) * kBlockSize, end) - offset;
      if (extent.IsWritten()) {
        piece.read = PlanPiece(file, inode.id, extent, supplies.checksums, &plan->segments);
        piece.skip = skip;
        plan->device_bytes += ToBytes(extent.count).value;
      }
    }
    offset += piece.bytes;
    plan->pieces.push_back(std::move(piece));
  }
}

// Returns the read for the blocks of a piece of the mapping, none of which is dirty.
Reader::BlockRead Reader::PlanPiece(File& file, InodeId ino, const ExtentMap::Piece& piece, ChecksumSegments& loaded,
                                    std::vector<uint64_t>* missing) {
  BlockRead read;
  read.first = piece.first;
  read.count = piece.count;
  if (!piece.IsWritten()) return read;
  read.run = DeviceRun{piece.extent->device, {piece.extent->start, piece.count}};
  if (file.write_error().failed()) {  // some of its blocks have no content until it is reverted
    read.error = *file.write_error().error();
    return read;
  }
  read.checksums.resize(piece.count.value);
  if (!reads_.verify) return read;
  if (const auto found = file.Checksums(piece.first, read.checksums, loaded, missing); !found) {
    spdlog::error("inode {}: checksums of {} blocks from file block {}: {}; run weightfs verify", ino.value,
                  piece.count.value, piece.first.value, ToString(found.error()));
    read.error = found.error();
  }
  return read;
}

// Takes free buffers for `bytes`. Returns true when the supplies are large enough.
bool Reader::TakeMemory(uint64_t bytes, Supplies* supplies) {
  for (uint64_t held = supplies->buffer_bytes(); held < bytes;) {
    Buffer buffer = PoolFor(bytes - held).TryAllocate();
    if (!buffer) return false;
    held += buffer.size().value;
    supplies->buffers.push_back(std::move(buffer));
  }
  return true;
}

// Fetches what the plan lacks: chunks begin to load, memory is waited for, checksums come from the catalog.
void Reader::Fetch(const InodePtr& inode, const Plan& plan, Supplies* supplies) {
  std::vector<std::shared_ptr<BlockReads>> loads;
  for (const uint64_t index : plan.chunks) {
    supplies->tried.insert(index);
    LoadChunk(inode, index, ReadCache::Purpose::kNeeded, plan.in_order, &loads);
  }
  BlockReads::Submit(loads);
  supplies->checksums.Load(catalog_, inode->id, plan.segments);
  if (TakeMemory(plan.device_bytes, supplies)) return;
  // A waiting reader holds no buffers and takes large ones before small ones, so readers cannot deadlock.
  supplies->buffers.clear();
  const uint64_t large = pools_.large.buffer_size().value, small = pools_.small.buffer_size().value;
  const uint64_t count = (plan.device_bytes + large - small - 1) / large;
  pools_.large.Fill(count, &supplies->buffers);
  if (count * large < plan.device_bytes) supplies->buffers.push_back(pools_.small.Allocate());
}

// Begins to load a chunk, unless it is cached or loading, part of it is dirty, or none of it is on a device. Appends
// its reads to `loads`, which the caller submits. Returns false when memory is short.
bool Reader::LoadChunk(const InodePtr& inode, uint64_t index, ReadCache::Purpose purpose, bool in_order,
                       std::vector<std::shared_ptr<BlockReads>>* loads) {
  const HotFilePtr hot = HotByReads(inode, in_order);
  if (hot != nullptr && LoadHotChunk(inode, hot, index, loads)) return true;
  Buffer buffer;
  ChecksumSegments checksums;
  while (true) {
    std::vector<uint64_t> missing;
    {
      MutexLock lock(inode->mutex);
      if (!CanLoadChunk(*inode, index) || cache_.Find(inode->id, index) != nullptr) return true;
      if (!buffer) buffer = cache_.TakeBuffer(purpose);
      if (!buffer) return false;
      const std::vector<BlockRead> planned = PlanChunk(*inode, index, checksums, &missing);
      if (missing.empty()) {
        const ChunkPtr chunk = cache_.Begin(inode->id, index, std::move(buffer));
        const auto drop = [this, ino = inode->id, index, raw = chunk.get()] { cache_.Drop(ino, index, raw); };
        loads->push_back(BeginChunk(*inode, chunk, drop, planned));
        return true;
      }
    }
    checksums.Load(catalog_, inode->id, missing);
  }
}

// The blocks of a chunk. Adds the checksum segments that must be loaded first to `missing`.
std::vector<Reader::BlockRead> Reader::PlanChunk(const Inode& inode, uint64_t index, ChecksumSegments& loaded,
                                                 std::vector<uint64_t>* missing) {
  const FileBlock first{index * kChunkBlocks};
  const FileBlock end = std::min(first + BlockCount{kChunkBlocks}, BlockEnd(inode.attributes.size));
  std::vector<BlockRead> planned;
  inode.file->extents().ForEachPiece(first, end, [&](const ExtentMap::Piece& piece) {
    planned.push_back(PlanPiece(*inode.file, inode.id, piece, loaded, missing));
    return true;
  });
  return planned;
}

std::shared_ptr<BlockReads> Reader::BeginChunk(const Inode& inode, const ChunkPtr& chunk, std::function<void()> drop,
                                               std::span<const BlockRead> planned) {
  std::byte* memory = chunk->buffer().data();
  auto finish = [drop = std::move(drop), chunk](Result<void> result, BlockReads::Failed failed) {
    if (!result) drop();  // readers use the good parts of the chunk
    chunk->Finish(std::move(result), std::move(failed));
  };
  auto reads = BlockReads::Create(reads_, inode.id, BlockReads::Use::kParts, std::move(finish));
  for (const BlockRead& read : planned) {
    Add(read, {}, read.count, memory, *reads);
    memory += ToBytes(read.count).value;
  }
  return reads;
}

// True if reads load the file into hot memory, so that the kernel serves later opens: its content is fixed, and it is
// neither small nor so large that it would take the memory of all others.
bool Reader::BecomesHot(const Inode& inode) const {
  const HotFiles* const files = cache_.hot();
  if (files == nullptr || !files->passthrough() || !(read_only_ || inode.IsPublished())) return false;
  return inode.attributes.size >= kLeastHot && inode.attributes.size <= files->limit().value / 2;
}

// The hot file that reads of the file load, or null. Only reads `in_order` make one: programs that look at the headers
// of many files must not evict models.
HotFilePtr Reader::HotByReads(const InodePtr& inode, bool in_order) {
  uint64_t size;
  {
    MutexLock lock(inode->mutex);
    if (!BecomesHot(*inode)) return nullptr;
    if (HotFilePtr hot = cache_.hot()->Find(inode->id); hot != nullptr || !in_order) return hot;
    size = inode->attributes.size;
  }
  const auto made = cache_.hot()->Make(inode->id, size, 1);
  return made ? BeginHot(inode, *made) : nullptr;
}

// True for a chunk that reads of a header or of the end have put in the read-ahead cache alone, if reads in order load
// the file into hot memory.
bool Reader::LacksHotChunk(const Inode& inode, uint64_t index) const {
  const bool end = index == 0 || index == (inode.attributes.size - 1) / kChunkBytes;
  return end && BecomesHot(inode) && cache_.hot()->FindChunk(inode.id, index) == nullptr;
}

// Makes a new content current, unless another one is. Returns the current one.
HotFilePtr Reader::BeginHot(const InodePtr& inode, HotFilePtr made) {
  HotFiles& files = *cache_.hot();
  MutexLock lock(inode->mutex);
  if (HotFilePtr other = files.Find(inode->id)) {
    made = std::move(other);
  } else {
    files.Begin(made);
  }
  if (inode->attributes.size != made->size()) files.Forget(inode->id);
  return made;
}

// The same for a chunk of a hot file, which may be without blocks. Returns it, also if it is loaded already.
Result<ChunkPtr> Reader::LoadHotChunk(const InodePtr& inode, const HotFilePtr& hot, uint64_t index,
                                      std::vector<std::shared_ptr<BlockReads>>* loads) {
  HotFiles& files = *cache_.hot();
  if (ChunkPtr chunk = files.FindChunk(*hot, index)) return chunk;
  RETURN_IF_ERROR(files.Provide(*hot, index));
  ChecksumSegments checksums;
  while (true) {
    std::vector<uint64_t> missing;
    {
      MutexLock lock(inode->mutex);
      const FileBlock first{index * kChunkBlocks};
      const bool changed = !files.IsCurrent(*hot) || index * kChunkBytes >= hot->size();
      if (changed || !inode->file->loaded()) return ErrorCode::kAgain;
      if (ChunkPtr chunk = files.FindChunk(*hot, index)) return chunk;
      if (inode->file->dirty().Overlaps(first, BlockCount{kChunkBlocks})) return ErrorCode::kAgain;
      const std::vector<BlockRead> planned = PlanChunk(*inode, index, checksums, &missing);
      if (missing.empty()) {
        const ChunkPtr chunk = files.BeginChunk(*hot, index);
        if (chunk == nullptr) return ErrorCode::kNoMemory;
        loads->push_back(BeginChunk(*inode, chunk, [&files, hot, index] { files.Fail(*hot, index); }, planned));
        files.counters().loaded_bytes += kChunkBytes;
        return chunk;
      }
    }
    checksums.Load(catalog_, inode->id, missing);
  }
}

Result<HotFilePtr> Reader::LoadHot(const InodePtr& inode, uint64_t size, uint64_t offset, uint64_t end,
                                   uint64_t later_end) {
  HotFiles& files = *cache_.hot();
  HotFilePtr hot;
  {
    MutexLock lock(inode->mutex);
    hot = files.Find(inode->id);
  }
  const uint64_t first = offset / kChunkBytes, later = (later_end + kChunkBytes - 1) / kChunkBytes;
  if (hot == nullptr) {
    auto made = files.Make(inode->id, size, later - first);
    // Another load of this file may have taken the memory.
    hot = made ? BeginHot(inode, *std::move(made)) : files.Find(inode->id);
    if (hot == nullptr) return made.error();
  }
  if (hot->size() != size) return ErrorCode::kAgain;
  RETURN_IF_ERROR(files.Reserve(*hot, first, later));
  const uint64_t last = (end + kChunkBytes - 1) / kChunkBytes;
  Result<void> result;
  std::deque<ChunkPtr> pending;
  const auto wait_for_first = [&] {
    const ChunkPtr chunk = std::move(pending.front());
    pending.pop_front();
    const Result<void> loaded = chunk->Wait();
    if (result) result = loaded;
  };
  for (uint64_t index = first; index < last && result;) {
    std::vector<std::shared_ptr<BlockReads>> loads;
    for (const uint64_t next = std::min(last, index + kHotStep); index < next && result; ++index) {
      auto chunk = LoadHotChunk(inode, hot, index, &loads);
      if (chunk) pending.push_back(std::move(*chunk));
      if (!chunk) result = chunk.error();
    }
    BlockReads::Submit(loads);
    while (pending.size() > kHotStep) wait_for_first();
  }
  while (!pending.empty()) wait_for_first();
  RETURN_IF_ERROR(result);
  if (!files.IsCurrent(*hot)) return ErrorCode::kAgain;
  return hot;
}

// Reads `count` blocks of `read`, after the first `skip`, into `memory`.
void Reader::Add(const BlockRead& read, BlockCount skip, BlockCount count, std::byte* memory, BlockReads& reads) {
  const uint64_t bytes = ToBytes(count).value;
  if (read.error) {
    reads.Fail(*read.error, {memory, bytes});
  } else if (!read.run) {
    reads.AddZeros({memory, bytes});
  } else {
    reads.Add(read.first + skip, {read.run->device, {read.run->run.start + skip, count}}, memory,
              std::span(read.checksums).subspan(skip.value, count.value));
    counters_.device_bytes += bytes;
  }
}

// Assigns memory to every piece. The supplies are large enough for all of them. Returns the device reads; null when
// there are none.
std::shared_ptr<BlockReads> Reader::Assemble(Inode& inode, Plan& plan, Supplies& supplies,
                                             const std::shared_ptr<Request>& request) {
  std::shared_ptr<BlockReads> reads;
  auto buffer = supplies.buffers.begin();
  uint64_t used = 0;
  for (Piece& piece : plan.pieces) {
    if (piece.chunk != nullptr) {
      request->Expect();
      if (piece.read_to_end) cache_.NoteRead(inode.id, *piece.read_to_end);
    }
    if (!piece.read) {
      if (piece.memory != nullptr) {
        request->AddMemory(piece.memory, piece.bytes, std::move(piece.hold));
      } else {
        request->AddZeros(piece.bytes);
      }
      continue;
    }
    if (reads == nullptr) {
      request->Expect();
      reads = BlockReads::Create(
          reads_, inode.id, BlockReads::Use::kWhole,
          [request](const Result<void>& result, const BlockReads::Failed&) { request->Complete(result); });
    }
    // Split a read at the end of a buffer.
    const BlockRead& whole = *piece.read;
    for (BlockCount done; done < whole.count;) {
      if (used == buffer->size().value) ++buffer, used = 0;
      WEIGHTFS_ASSERT(buffer != supplies.buffers.end());
      const BlockCount count = std::min(BlockCount{(buffer->size().value - used) / kBlockSize}, whole.count - done);
      std::byte* memory = buffer->data() + used;
      Add(whole, done, count, memory, *reads);
      const uint64_t skip = done.value == 0 ? piece.skip : 0;
      const uint64_t bytes = std::min(ToBytes(count).value - skip, piece.bytes);
      request->AddMemory(memory + skip, bytes, *buffer);
      used += ToBytes(count).value;
      piece.bytes -= bytes;
      done += count;
    }
  }
  return reads;
}

// Loads the chunks after `end`, the current position of a stream.
void Reader::ReadAhead(const InodePtr& inode, uint64_t end, uint64_t sequence) {
  uint64_t chunks;
  {
    MutexLock lock(inode->mutex);
    chunks = (inode->attributes.size + kChunkBytes - 1) / kChunkBytes;
  }
  const uint64_t next = (end - 1) / kChunkBytes + 1;
  const uint64_t ahead = std::min(chunks, next + ReadAheadChunks(sequence, streams_.Note(inode->id, end)));
  std::vector<std::shared_ptr<BlockReads>> loads;
  for (uint64_t index = next; index < ahead; ++index) {
    if (cache_.Find(inode->id, index) != nullptr) continue;
    if (!LoadChunk(inode, index, ReadCache::Purpose::kAhead, /*in_order=*/true, &loads)) break;
  }
  BlockReads::Submit(loads);
}

// Streams at several locations share the memory, so that one does not evict what another is about to read.
uint64_t Reader::ReadAheadChunks(uint64_t sequence, uint64_t places) const {
  const uint64_t capacity = cache_.capacity();
  const uint64_t share = std::max<uint64_t>(1, capacity * 3 / 4 / places);
  const uint64_t most = std::min({kLargestReadAhead, capacity / 2, share});
  return std::min(most, std::max<uint64_t>(4, 4 * sequence / kChunkBytes));
}

bool Reader::IsInOrder(uint64_t offset, uint64_t size, uint64_t sequence) {
  return sequence >= kStreamBytes || (offset == 0 && size >= kEdgeRead);
}

// True when the chunk of `offset` is worth reading whole: for a stream, and for small reads at either end of the file
// (zip directories, safetensors headers, HDF5 metadata). A request for all of a small file leaves nothing to read
// ahead, and its chunk would take the memory of a large file's.
bool Reader::UsesChunks(const Inode& inode, uint64_t offset, uint64_t size, uint64_t sequence) const {
  if (offset == 0 && size <= kEdgeRead && size == inode.attributes.size) return false;
  if (IsInOrder(offset, size, sequence)) return true;
  if (size >= kHotRead && BecomesHot(inode) && cache_.hot()->Find(inode.id) != nullptr) return true;
  const uint64_t last = (inode.attributes.size - 1) / kChunkBytes;
  return size <= kEdgeRead && (offset / kChunkBytes == 0 || offset / kChunkBytes == last);
}

// False when part of the chunk is dirty, or none of it is on a device.
bool Reader::CanLoadChunk(const Inode& inode, uint64_t index) const {
  const FileBlock first{index * kChunkBlocks};
  const uint64_t blocks = BlocksFor(ByteCount{inode.attributes.size}).value;
  if (!inode.file->loaded() || first.value >= blocks) return false;
  const BlockCount count{std::min(kChunkBlocks, blocks - first.value)};
  if (inode.file->dirty().Overlaps(first, count)) return false;
  const auto whole = inode.file->extents().Lookup(first, count);
  return whole.extent || whole.count < count;
}

BufferPool& Reader::PoolFor(uint64_t bytes) const {
  return bytes <= pools_.small.buffer_size().value ? pools_.small : pools_.large;
}

// Records a read of the handle. Returns the number of bytes read in sequence up to its end; 0 when it is not a stream.
uint64_t Reader::Advance(ReadStream* stream, uint64_t offset, uint64_t size) {
  MutexLock lock(stream->mutex);
  const uint64_t next = stream->next;
  const bool near = stream->run > 0 && offset < next + kStreamSlack && next < offset + kStreamSlack;
  if (offset == next || near) {
    stream->run += size;
    stream->next = std::max(next, offset + size);
  } else {
    stream->run = 0;
    stream->next = offset + size;
  }
  return stream->run;
}

Result<void> Reader::ReadBlock(InodeId ino, FileBlock block, const ExtentRecord& extent, uint32_t checksum,
                               std::span<std::byte> out) {
  return SyncWait([&](Done done) {
    const auto reads = BlockReads::Create(
        reads_, ino, BlockReads::Use::kWhole,
        [done = std::move(done)](Result<void> result, const BlockReads::Failed&) { done(std::move(result)); });
    reads->Add(block, DeviceRun{extent.device, {extent.start, BlockCount{1}}}, out.data(), {&checksum, 1});
    BlockReads::Submit({&reads, 1});
  });
}

}  // namespace weightfs
