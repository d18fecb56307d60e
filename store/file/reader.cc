// SPDX-License-Identifier: Apache-2.0
#include "store/file/reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/checksum.h"
#include "common/log.h"

namespace weightfs {
namespace {

constexpr int kReadAttempts = 4;               // the first and three more after a mismatch
constexpr uint64_t kStreamBytes = 256 * kKiB;  // read in sequence before read-ahead begins in mid-file
constexpr uint64_t kStreamSlack = 4 * kMiB;    // requests of one stream arrive this far out of order
constexpr uint64_t kEdgeRead = 128 * kKiB;     // reads up to this size keep the file's first and last chunk
constexpr uint64_t kLargestReadAhead = 32;     // chunks
constexpr uint64_t kChunkBlocks = kChunkBytes / kBlockSize;
constexpr uint64_t kZeroBytes = kMiB;

// What holes read as. Never written.
alignas(kBlockSize) std::byte zeros[kZeroBytes];

}  // namespace

// One call of Read: the view is laid out at once, then waits for what is still loading.
class Reader::Request {
 public:
  explicit Request(ReadDone done) : done_(std::move(done)) {}

  void AddMemory(const std::byte* data, uint64_t size, Buffer hold) {
    view_.pieces.push_back({const_cast<std::byte*>(data), size});
    view_.size += ByteCount{size};
    if (hold) view_.holds.push_back(std::move(hold));
  }
  void AddZeros(uint64_t size) {
    for (; size > 0; size -= std::min(size, kZeroBytes)) AddMemory(zeros, std::min(size, kZeroBytes), {});
  }
  void Expect() { ++pending_; }
  void Arrive(const Result<void>& result) {
    if (!result) {
      MutexLock lock(mutex_);
      if (!error_) error_ = result.error();
    }
    if (--pending_ > 0) return;
    if (error_) {
      done_(std::move(*error_));
    } else {
      done_(std::move(view_));
    }
  }

 private:
  ReadDone done_;
  ReadView view_;
  std::atomic<int> pending_{1};  // one is the planner's
  Mutex mutex_;
  std::optional<Error> error_;
};

// One device run on its way into memory.
class Reader::Transfer final : public IoRequest {
 public:
  Transfer(Reader& owner, std::shared_ptr<Load> group) : reader(owner), load(std::move(group)) {}
  void OnComplete(Result<void> result) override;
  bool Verify();

  Reader& reader;
  std::shared_ptr<Load> load;  // released when done: breaks the cycle
  DeviceId device;
  FileBlock first;
  std::vector<uint32_t> expected;
  int attempts = 0;
};

// Transfers that end together.
class Reader::Load {
 public:
  using Bad = std::vector<std::span<const std::byte>>;  // memory that could not be filled
  using LoadDone = std::function<void(Result<void>, Bad)>;
  Load(Reader& owner, InodeId of, LoadDone done)
      : reader(owner), ino(of), ticket_(owner.space_.EnterRead()), done_(std::move(done)) {}

  Transfer* Add(std::shared_ptr<Load> self) {
    ++pending_;
    transfers_.push_back(std::make_unique<Transfer>(reader, std::move(self)));
    return transfers_.back().get();
  }
  void Arrive() {
    if (--pending_ > 0) return;
    reader.space_.LeaveRead(ticket_);
    done_(error_ ? Result<void>(*error_) : Result<void>(), std::move(bad_));
  }
  // `memory` could not be filled; the other transfers go on.
  void Fail(const Error& error, std::span<const std::byte> memory) {
    MutexLock lock(mutex_);
    if (!error_) error_ = error;
    bad_.push_back(memory);
  }

  Reader& reader;
  const InodeId ino;

 private:
  const uint64_t ticket_;
  LoadDone done_;
  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::atomic<int> pending_{1};  // one is the planner's
  Mutex mutex_;
  std::optional<Error> error_;
  Bad bad_;
};

// Loads planned under an inode's mutex, to begin when it is released.
struct Reader::Stage {
  explicit Stage(DeviceSet& devices) : batch(devices) {}

  void Begin() {
    batch.Submit();
    for (auto& load : std::exchange(loads, {})) load->Arrive();
  }

  IoBatch batch;
  std::vector<std::shared_ptr<Load>> loads;
};

// What was planned for one request.
struct Reader::Plan {
  explicit Plan(DeviceSet& devices) : needed(devices), ahead(devices) {}

  void Begin() {
    needed.Begin();
    ahead.Begin();
  }

  // Read-ahead costs the request nothing: it comes after the answer where all of that is in memory.
  void Answer(const std::shared_ptr<Request>& request) {
    needed.Begin();
    for (auto& [chunk, memory] : chunks) {
      chunk->WhenReady([request, chunk = chunk, memory = memory] { request->Arrive(chunk->Check(memory)); });
    }
    request->Arrive({});
    ahead.Begin();
  }

  Stage needed, ahead;
  // The request waits for these, and needs these bytes of each.
  std::vector<std::pair<ChunkPtr, std::span<const std::byte>>> chunks;
};

// A piece of the answer: memory, zeros (neither memory nor device), or blocks to be read from a device.
struct Reader::Part {
  uint64_t bytes = 0;
  const std::byte* memory = nullptr;
  Buffer hold;
  ChunkPtr chunk;
  bool device = false;
  FileBlock first;
  BlockCount count;
  uint64_t skip = 0;  // bytes before the answer in the first block
};

void Reader::Transfer::OnComplete(Result<void> result) {
  if (!result) {
    spdlog::error("read failed: inode {}, file offset {}, device {}, device offset {}: {}", load->ino.value,
                  first.value * kBlockSize, device.value, offset.value, ToString(result.error()));
    load->Fail(result.error(), {data, size.value});
  } else if (reader.verify_ && !Verify()) {
    return;  // Being read again.
  }
  const auto keep = std::exchange(load, nullptr);  // The load owns this transfer.
  keep->Arrive();
}

// Checks every block; false when a mismatch has the transfer read again. What stays wrong is marked bad.
bool Reader::Transfer::Verify() {
  const auto matches = [this](size_t block) {
    return Crc32c({data + block * kBlockSize, kBlockSize}) == expected[block];
  };
  size_t bad = 0;
  while (bad < expected.size() && matches(bad)) ++bad;
  if (bad == expected.size()) return true;
  ++reader.counters_.checksum_errors;
  const bool again = ++attempts < kReadAttempts;
  for (; bad < expected.size(); ++bad) {
    if (matches(bad)) continue;
    spdlog::error("checksum mismatch: inode {}, file offset {}, device {}, device offset {}{}", load->ino.value,
                  (first.value + bad) * kBlockSize, device.value, offset.value + bad * kBlockSize,
                  again ? "; reading again" : "; giving up: reads of it fail with EIO");
    if (again) break;
    load->Fail(Error{ErrorCode::kCorrupt}, {data + bad * kBlockSize, kBlockSize});
  }
  if (!again) return true;
  IoRequest* request = this;
  reader.devices_[device].Submit({&request, 1});
  return false;
}

// Adds the transfers that fill `memory` with the blocks of the range; holes and unwritten blocks are zeroed.
void Reader::PlanTransfers(const InodePtr& inode, FileBlock first, BlockCount count, std::byte* memory,
                           const std::shared_ptr<Load>& load, Stage* stage) {
  FileState& file = *inode->file;
  while (count.value > 0) {
    const auto piece = file.extents.Lookup(first, count);
    const uint64_t bytes = ToBytes(piece.count).value;
    if (!piece.IsWritten()) {
      std::memset(memory, 0, bytes);
    } else {
      std::vector<uint32_t> expected(piece.count.value);
      if (verify_) {
        if (auto found = file.checksums.Get(catalog_, inode->id, first, expected); !found) {
          spdlog::error("inode {}: checksums of {} blocks from file block {}: {}; run weightfs fsck", inode->id.value,
                        piece.count.value, first.value, ToString(found.error()));
          load->Fail(found.error(), {memory, ToBytes(count).value});
          return;
        }
      }
      Transfer* transfer = load->Add(load);
      transfer->operation = IoRequest::Operation::kRead;
      transfer->device = piece.extent->device;
      transfer->offset = ToBytes(piece.extent->start);
      transfer->data = memory;
      transfer->size = ByteCount{bytes};
      transfer->first = first;
      transfer->expected = std::move(expected);
      stage->batch.Add(transfer->device, transfer);
      counters_.device_bytes += bytes;
    }
    memory += bytes;
    first += piece.count;
    count -= piece.count;
  }
}

// Streams at several places share the memory: what one brought in must not push out what another is about to read.
uint64_t Reader::ReadAheadChunks(uint64_t run, uint64_t places) const {
  const uint64_t capacity = pools_.chunks.capacity();
  const uint64_t share = std::max<uint64_t>(1, capacity * 3 / 4 / places);
  const uint64_t most = std::min({kLargestReadAhead, capacity / 2, share});
  return std::min(most, std::max<uint64_t>(4, 4 * run / kChunkBytes));
}

// Whether the chunk of `offset` is worth reading whole: for a stream, and for small reads at either end of the file
// (zip directories, safetensors headers, HDF5 metadata).
bool Reader::UsesChunks(const Inode& inode, uint64_t offset, uint64_t size, uint64_t run) const {
  if (run >= kStreamBytes || (offset == 0 && size >= kEdgeRead)) return true;
  const uint64_t last = (inode.attributes.size - 1) / kChunkBytes;
  return size <= kEdgeRead && (offset / kChunkBytes == 0 || offset / kChunkBytes == last);
}

// Begins to load chunk `index`; null when part of it is dirty, none of it is on a device, or memory is short.
ChunkPtr Reader::StartChunk(const InodePtr& inode, uint64_t index, ReadCache::Purpose purpose, Stage* stage) {
  FileState& file = *inode->file;
  const FileBlock first{index * kChunkBlocks};
  const uint64_t blocks = BlocksFor(ByteCount{inode->attributes.size}).value;
  if (first.value >= blocks) return nullptr;
  const BlockCount count{std::min(kChunkBlocks, blocks - first.value)};
  if (file.dirty.Overlaps(first, count)) return nullptr;
  const auto whole = file.extents.Lookup(first, count);
  if (!whole.extent && whole.count == count) return nullptr;
  ChunkPtr chunk = cache_.Begin(inode->id, index, purpose);
  if (!chunk) return nullptr;
  auto load = std::make_shared<Load>(
      *this, inode->id, [this, ino = inode->id, index, chunk](Result<void> result, Load::Bad bad) {
        if (!result) cache_.Drop(ino, index, chunk.get());  // Those who wait take what is good of it.
        chunk->Finish(std::move(result), std::move(bad));
      });
  PlanTransfers(inode, first, count, chunk->buffer().data(), load, stage);
  stage->loads.push_back(std::move(load));
  return chunk;
}

// Lays out a range without chunks: dirty memory as it is, holes as zeros, the rest as runs to be read.
void Reader::LayOutDirect(const InodePtr& inode, uint64_t offset, uint64_t end, std::vector<Part>* parts) {
  FileState& file = *inode->file;
  while (offset < end) {
    const FileBlock block{offset / kBlockSize};
    const uint64_t skip = offset % kBlockSize;
    Part part;
    const auto at = file.dirty.FirstFrom(block);
    const bool found = at != file.dirty.spans().end();
    if (found && at->first <= block.value) {
      part.bytes = std::min((at->first + at->second.count.value) * kBlockSize, end) - offset;
      part.memory = at->second.memory(block.value) + skip;
      part.hold = at->second.buffer;
    } else {
      const uint64_t last = (end + kBlockSize - 1) / kBlockSize;
      const BlockCount clean{(found ? std::min(last, at->first) : last) - block.value};
      const auto piece = file.extents.Lookup(block, clean);
      part.bytes = std::min((block.value + piece.count.value) * kBlockSize, end) - offset;
      if (piece.IsWritten()) {
        part.device = true;
        part.first = block;
        part.count = piece.count;
        part.skip = skip;
      }
    }
    offset += part.bytes;
    parts->push_back(std::move(part));
  }
}

// Lays out the whole range, starting the chunks it needs and those ahead of a stream.
std::vector<Reader::Part> Reader::LayOut(const InodePtr& inode, uint64_t offset, uint64_t end, uint64_t run,
                                         Plan* plan) {
  std::vector<Part> parts;
  uint64_t last_chunk = offset / kChunkBytes;
  bool streaming = false;
  while (offset < end) {
    const uint64_t index = offset / kChunkBytes;
    const uint64_t step = std::min(end, (index + 1) * kChunkBytes) - offset;
    ChunkPtr chunk = cache_.Find(inode->id, index);
    const bool wanted = UsesChunks(*inode, offset, end - offset, run);
    if (!chunk && wanted) chunk = StartChunk(inode, index, ReadCache::Purpose::kNeeded, &plan->needed);
    if (chunk) {
      const uint64_t chunk_end = std::min((index + 1) * kChunkBytes, inode->attributes.size);
      if (offset + step == chunk_end) cache_.NoteRead(inode->id, index);
      Part part;
      part.bytes = step;
      part.memory = chunk->buffer().data() + offset % kChunkBytes;
      part.hold = chunk->buffer();
      part.chunk = std::move(chunk);
      parts.push_back(std::move(part));
    } else {
      LayOutDirect(inode, offset, offset + step, &parts);
    }
    streaming = wanted && (run >= kStreamBytes || run >= kEdgeRead);
    last_chunk = index;
    offset += step;
  }
  if (streaming) {
    const uint64_t chunks = (inode->attributes.size + kChunkBytes - 1) / kChunkBytes;
    const uint64_t places = streams_.Note(inode->id, offset);
    const uint64_t ahead = std::min(chunks, last_chunk + 1 + ReadAheadChunks(run, places));
    for (uint64_t index = last_chunk + 1; index < ahead; ++index) {
      if (!cache_.Find(inode->id, index)) StartChunk(inode, index, ReadCache::Purpose::kAhead, &plan->ahead);
    }
  }
  return parts;
}

// Gives every part its memory, and reads what is on the device into `buffers`, which are large enough together.
void Reader::Assemble(const InodePtr& inode, std::vector<Part>& parts, const std::vector<Buffer>& buffers,
                      const std::shared_ptr<Request>& request, Plan* plan) {
  std::shared_ptr<Load> load;
  size_t buffer = 0;
  uint64_t used = 0;
  for (Part& part : parts) {
    if (part.chunk) {
      request->Expect();
      plan->chunks.emplace_back(std::move(part.chunk), std::span(part.memory, part.bytes));
    }
    if (!part.device) {
      if (part.memory != nullptr) {
        request->AddMemory(part.memory, part.bytes, std::move(part.hold));
      } else {
        request->AddZeros(part.bytes);
      }
      continue;
    }
    if (!load) {
      request->Expect();
      load = std::make_shared<Load>(*this, inode->id,
                                    [request](const Result<void>& done, const Load::Bad&) { request->Arrive(done); });
      plan->needed.loads.push_back(load);
    }
    while (part.count.value > 0) {
      if (used == buffers[buffer].size().value) ++buffer, used = 0;
      const uint64_t room = (buffers[buffer].size().value - used) / kBlockSize;
      const BlockCount step{std::min(room, part.count.value)};
      std::byte* memory = buffers[buffer].data() + used;
      PlanTransfers(inode, part.first, step, memory, load, &plan->needed);
      const uint64_t bytes = std::min(ToBytes(step).value - part.skip, part.bytes);
      request->AddMemory(memory + part.skip, bytes, buffers[buffer]);
      used += ToBytes(step).value;
      part.bytes -= bytes;
      part.first += step;
      part.count -= step;
      part.skip = 0;
    }
  }
}

void Reader::Read(const InodePtr& inode, ByteOffset offset, ByteCount size, ReadStream* stream, ReadDone done) {
  auto request = std::make_shared<Request>(std::move(done));
  std::vector<Buffer> buffers;
  uint64_t run = 0;
  if (stream != nullptr) run = Advance(stream, offset.value, size.value);
  while (true) {
    Plan plan(devices_);
    MutexLock lock(inode->mutex);
    const uint64_t file_size = inode->attributes.size;
    const uint64_t end = std::min(file_size, offset.value + size.value);
    std::vector<Part> parts;
    if (offset.value < end) parts = LayOut(inode, offset.value, end, run, &plan);
    uint64_t needed = 0, held = 0;
    for (const Part& part : parts) needed += part.device ? ToBytes(part.count).value : 0;
    for (const Buffer& buffer : buffers) held += buffer.size().value;
    while (held < needed) {
      BufferPool& pool = PoolFor(needed - held);
      Buffer buffer = pool.TryAllocate();
      if (!buffer) break;
      held += buffer.size().value;
      buffers.push_back(std::move(buffer));
    }
    if (held >= needed) {
      Assemble(inode, parts, buffers, request, &plan);
      lock.Unlock();
      plan.Answer(request);
      return;
    }
    // Wait for memory without the lock, then look again: the file may have changed.
    lock.Unlock();
    plan.Begin();
    buffers.push_back(PoolFor(needed - held).Allocate());
  }
}

BufferPool& Reader::PoolFor(uint64_t bytes) const {
  return bytes <= pools_.small.buffer_size().value ? pools_.small : pools_.large;
}

// Notes a read of the handle; how many bytes were read in sequence up to its end, 0 when it is no stream.
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
  counters_.read_bytes += size;
  return stream->run;
}

Result<void> Reader::ReadBlock(InodeId ino, const ExtentRecord& extent, uint32_t checksum, std::span<std::byte> out) {
  for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
    RETURN_IF_ERROR(devices_[extent.device].Read(ToBytes(extent.start), out));
    if (!verify_ || Crc32c(out) == checksum) return {};
    ++counters_.checksum_errors;
    spdlog::error("checksum mismatch: inode {}, device {}, device offset {}", ino.value, extent.device.value,
                  ToBytes(extent.start).value);
  }
  return ErrorCode::kCorrupt;
}

}  // namespace weightfs
