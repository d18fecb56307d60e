// SPDX-License-Identifier: Apache-2.0
#include "store/store.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/sync_wait.h"
#include "engine/file_device.h"
#include "engine/superblock.h"
#include "store/commit/committer.h"
#include "store/commit/recovery.h"
#include "store/file/file.h"
#include "store/file/reader.h"
#include "store/file/write_back.h"
#include "store/scrub/scrubber.h"
#include "store/space/space_manager.h"
#include "store/wal/logged_kv_store.h"

namespace weightfs {
namespace {

// The mapping of a file of so many blocks is read quickly, however fragmented it is.
constexpr uint64_t kSmallMapping = 64 * kMiB / kBlockSize;

constexpr ByteCount kLargeBuffer = kStripeStaging, kSmallBuffer = kSmallStaging;

// The space of an empty file with a short name in the catalog: its two records, in a table and in the log.
constexpr uint64_t kBytesOfInode = 512;

// The division of a store's memory. Every pool is large enough for its threads to make progress one after another.
struct PoolCounts {
  size_t chunks, large_reads, small_reads, stripes, small_writes;
  explicit constexpr PoolCounts(ByteCount memory) {
    const uint64_t large = memory.value / kLargeBuffer.value, small = memory.value / kSmallBuffer.value;
    chunks = std::max<uint64_t>(8, large / 2);
    large_reads = std::max<uint64_t>(8, large / 8);
    stripes = std::max<uint64_t>(12, large / 5);
    small_writes = std::max<uint64_t>(64, small / 12);
    small_reads = std::max<uint64_t>(64, small / 24);
  }
  constexpr ByteCount total() const {
    return ByteCount{(chunks + large_reads + stripes) * kLargeBuffer.value +
                     (small_writes + small_reads) * kSmallBuffer.value};
  }
};
// From this size on, the requested memory is an upper bound.
static_assert(PoolCounts(kLeastMemory).total() <= kLeastMemory);
static_assert(PoolCounts(ByteCount{128 * kMiB}).total() <= ByteCount{128 * kMiB});

// True when anybody has a descriptor of this writer. Also true when that cannot be determined.
bool HasWriter(const std::vector<std::unique_ptr<BlockDevice>>& devices, uint64_t writer) {
  return std::any_of(devices.begin(), devices.end(), [&](const std::unique_ptr<BlockDevice>& device) {
    const auto* file = dynamic_cast<const FileDevice*>(device.get());
    if (file == nullptr) return false;
    const Result<bool> has = file->HasWriter(writer);
    if (!has) spdlog::error("{}", ToString(has.error()));
    return has.value_or(true);
  });
}

// Marks the blocks of the run that no file has, and adds them to `marked`.
void MarkFreePart(SpaceManager& space, const DeviceRun& run, std::vector<wal::Segment>* marked) {
  if (space.MarkUsed(run)) return marked->push_back({.run = run});
  if (run.run.count.value <= 1) return;
  const BlockCount half{run.run.count.value / 2};
  MarkFreePart(space, {run.device, {run.run.start, half}}, marked);
  MarkFreePart(space, {run.device, {run.run.start + half, run.run.count - half}}, marked);
}

}  // namespace

// Everything under a Store in the order of construction; destroyed in reverse.
struct Store::Parts {
  std::unique_ptr<KvStore> catalog;
  wal::LoggedKvStore* logged = nullptr;  // the catalog, if it has a log
  std::vector<std::unique_ptr<BlockDevice>> devices;
  std::unique_ptr<BufferPool> chunks, large_reads, small_reads, stripes, small_writes;
  std::unique_ptr<DeviceSet> device_set;
  std::unique_ptr<SpaceManager> space;
  std::unique_ptr<wal::LogWriter> log;  // null if read-only
  std::unique_ptr<HotFiles> hot;  // null: none
  std::unique_ptr<ReadCache> cache;
  std::unique_ptr<InodeTable> inodes;
  std::unique_ptr<WriteBack> write_back;
  std::unique_ptr<Reader> reader;
  std::unique_ptr<Committer> committer;
  std::unique_ptr<FileIo> files;
  std::unique_ptr<Namespace> names;
  std::unique_ptr<Scrubber> scrubber;
  StoreOptions options;
  bool read_only = false;
  wal::Version stored;
};

Store::Store(std::unique_ptr<Parts> parts) : p_(std::move(parts)) {}

Result<std::unique_ptr<Store>> Store::Open(std::unique_ptr<KvStore> catalog,
                                           std::vector<std::unique_ptr<BlockDevice>> devices,
                                           const StoreOptions& options) {
  auto parts = std::make_unique<Parts>();
  parts->options = options;
  parts->read_only = options.read_only;
  const PoolCounts counts(options.memory);
  const auto pool = [](ByteCount size, size_t count, const char* name) {
    return BufferPool::Create({.buffer_size = size, .count = count, .name = name});
  };
  ASSIGN_OR_RETURN(parts->chunks, pool(kLargeBuffer, counts.chunks, "read-ahead"));
  ASSIGN_OR_RETURN(parts->large_reads, pool(kLargeBuffer, counts.large_reads, "large reads"));
  ASSIGN_OR_RETURN(parts->small_reads, pool(kSmallBuffer, counts.small_reads, "small reads"));
  ASSIGN_OR_RETURN(parts->stripes, pool(kLargeBuffer, counts.stripes, "write stripes"));
  ASSIGN_OR_RETURN(parts->small_writes, pool(kSmallBuffer, counts.small_writes, "small writes"));

  std::vector<BlockRun> spaces;
  std::vector<BlockDevice*> pointers;
  for (const auto& device : devices) {
    const DeviceBlock first{kDataOffset / kBlockSize};
    ByteCount size = device->size();
    if (spaces.size() < options.device_sizes.size()) size = std::min(size, options.device_sizes[spaces.size()]);
    const DeviceBlock end{size.value / kBlockSize};
    if (end <= first) return Error{ErrorCode::kCorrupt, std::string(device->path()) + " has no space for data"};
    spaces.push_back({first, end - first});
    pointers.push_back(device.get());
  }
  ASSIGN_OR_RETURN(parts->space, SpaceManager::Create(spaces));
  parts->device_set = std::make_unique<DeviceSet>(std::move(pointers));
  parts->catalog = std::move(catalog);
  if (options.log) {
    auto logged = std::make_unique<wal::LoggedKvStore>(std::move(parts->catalog), options.log->tail.version);
    parts->logged = logged.get();
    parts->catalog = std::move(logged);
  }
  parts->devices = std::move(devices);
  parts->space->AskForWriters([raw = parts.get()](uint64_t writer) { return HasWriter(raw->devices, writer); });
  if (options.verify && options.hot_memory.value >= kChunkBytes) {  // what programs map has been verified
    auto pages = SharedPages::Create();
    if (pages != nullptr) parts->hot = std::make_unique<HotFiles>(std::move(pages), options.hot_memory);
  }
  parts->cache = std::make_unique<ReadCache>(*parts->chunks, parts->hot.get());
  const FileServices services{*parts->space, *parts->cache, std::make_shared<ExtentMemory>()};
  parts->inodes = std::make_unique<InodeTable>(*parts->catalog, services, options.resident_inodes);

  const auto damaged = RecoverSpace(*parts->catalog, *parts->space);
  if (!damaged && damaged.error().code != ErrorCode::kCorrupt) return damaged.error();
  if (!damaged) {
    // The free space is unknown, but every file whose own records can be read can be served.
    spdlog::error("{}; serving the store read-only: files with lost records fail with EIO", damaged.error().what);
    parts->read_only = true;
  } else if (*damaged > 0) {
    spdlog::error("{} extent records are damaged or overlap: serving the store read-only; run weightfs verify --repair",
                  *damaged);
    parts->read_only = true;
  }
  RETURN_IF_ERROR(StartLog(*parts));
  parts->write_back = std::make_unique<WriteBack>(*parts->device_set);
  parts->reader = std::make_unique<Reader>(*parts->catalog, *parts->device_set, *parts->space, *parts->cache,
                                           Reader::Pools{*parts->large_reads, *parts->small_reads}, options.verify,
                                           options.read_only);
  Committer::Options commit;
  commit.interval = options.commit_interval;
  commit.close_delay = options.close_delay;
  commit.retire = [log = parts->log.get()](std::vector<DeviceRun> runs) {
    if (log != nullptr) log->Retire(std::move(runs));  // otherwise nothing is written
  };
  if (parts->log != nullptr) commit.release_freed = [log = parts->log.get()] { log->ReleaseRetired(); };
  commit.freed = [memory = services.extent_memory](size_t extents) { memory->Freed(extents); };
  parts->committer =
      std::make_unique<Committer>(*parts->catalog, *parts->device_set, *parts->space, *parts->write_back, commit);
  RETURN_IF_ERROR(parts->committer->Start());
  parts->files =
      std::make_unique<FileIo>(FileIo::Services{*parts->catalog, *parts->device_set, *parts->space, *parts->write_back,
                                             *parts->committer, *parts->reader, *parts->stripes, *parts->small_writes,
                                             *parts->cache, options.commit_interval, options.space_wait,
                                             parts->read_only});
  parts->names = std::make_unique<Namespace>(*parts->catalog, *parts->inodes, *parts->files);
  RETURN_IF_ERROR(parts->names->Recover(parts->read_only));
  RETURN_IF_ERROR(StartScrubs(*parts));
  return std::unique_ptr<Store>(new Store(std::move(parts)));
}

// Marks the blocks of the log as used, and starts its writer before anything changes the catalog.
Result<void> Store::StartLog(Parts& parts) {
  if (!parts.options.log) return {};
  wal::WriterOptions options = *parts.options.log;
  for (const wal::Segment& segment : options.root ? wal::SegmentsOf(*options.root) : std::vector<wal::Segment>()) {
    if (parts.space->MarkUsed(segment.run)) continue;
    spdlog::error("the log of the catalog overlaps files: serving the store read-only; run weightfs verify --repair");
    parts.read_only = true;
    break;
  }
  // An index that is older than the replaced log may still have files in blocks that this log took later.
  std::vector<wal::Segment> free;
  for (const wal::Segment& segment : options.replaced) MarkFreePart(*parts.space, segment.run, &free);
  options.replaced = std::move(free);
  if (parts.read_only) return {};
  options.commit_interval = parts.options.commit_interval;
  ASSIGN_OR_RETURN(parts.log, wal::LogWriter::Start(parts.logged->index(), *parts.device_set, *parts.space,
                                                    std::move(options)));
  parts.logged->Attach(parts.log.get());
  return {};
}

Result<void> Store::StartScrubs(Parts& parts) {
  Parts* raw = &parts;
  Scrubber::Services scrub{.catalog = *parts.catalog, .devices = *parts.device_set, .space = *parts.space};
  for (const auto& device : parts.devices) scrub.device_list.push_back(device.get());
  scrub.foreground_bytes = [raw] { return raw->reader->counters().device_bytes + raw->write_back->written_bytes(); };
  if (parts.options.log) {
    scrub.replica_of = parts.options.log->store_id;
    scrub.replica_expected = [raw] {
      return raw->log != nullptr ? raw->log->statistics().intact : raw->options.log->root.has_value();
    };
    if (parts.log != nullptr) scrub.renew_replica = [raw] { raw->log->Renew(); };
  }
  scrub.read_only = parts.read_only;
  ASSIGN_OR_RETURN(parts.scrubber, Scrubber::Create(std::move(scrub), parts.options.scrub));
  return {};
}

Store::~Store() {
  if (auto closed = Close(); !closed) spdlog::error("closing the store: {}", ToString(closed.error()));
  // A device waits for its requests, and their completions use everything else.
  p_->devices.clear();
}

Result<void> Store::Close() {
  if (!p_->files->Close()) return {};
  p_->scrubber->Stop();
  auto stopped = p_->committer->Stop();
  static_cast<void>(p_->names->StoreCount().has_value());  // without it, the next mount counts
  if (p_->log == nullptr) return stopped;
  const auto ended = p_->log->Stop();
  p_->logged->Attach(nullptr);
  // An index that cannot store everything is caught up by the next mount.
  if (ended && p_->logged->index().Sync()) p_->stored = p_->logged->version();
  return stopped ? ended : stopped;
}

wal::Version Store::StoredVersion() const { return p_->stored; }

Namespace& Store::names() { return *p_->names; }
FileIo& Store::files() { return *p_->files; }
InodeTable& Store::inodes() { return *p_->inodes; }

bool Store::read_only() const { return p_->read_only || p_->committer->failed(); }
bool Store::verifies() const { return p_->options.verify; }

Result<Attributes> Store::SetAttributes(InodeId ino, const AttributeChange& change) {
  RETURN_IF_ERROR(p_->files->CheckWritable(change.size ? KvChange::kRemove : KvChange::kUpdate));
  if (!change.size) return p_->names->SetAttributes(ino, change);
  // While it is open, an unlink leaves its records.
  ASSIGN_OR_RETURN(const InodePtr inode, p_->names->Open(ino));
  auto attributes = [&]() -> Result<Attributes> {
    RETURN_IF_ERROR(p_->files->Truncate(inode, *change.size));
    return p_->names->SetAttributes(ino, change);
  }();
  p_->names->Close(inode);
  return attributes;
}

bool Store::OpensSlowly(InodeId ino) {
  const InodePtr inode = p_->inodes->Find(ino);
  if (inode == nullptr) return true;  // perhaps
  MutexLock lock(inode->mutex);
  return inode->file && !inode->file->loaded() && inode->committed.blocks > kSmallMapping;
}

bool Store::WaitsToTruncate(InodeId ino) {
  const InodePtr inode = p_->inodes->Find(ino);
  return inode != nullptr && p_->files->IsOverdue(*inode);
}

bool Store::WaitsToWrite(ByteCount size) const {
  const BlockCount blocks = BlocksFor(size) + BlockCount{1};  // it may begin inside a block
  return (p_->log != nullptr && !p_->log->grows_now()) || !p_->space->WouldFit(blocks, {}, /*privileged=*/false);
}

Result<PublicationRecord> Store::PublishTree(Namespace::PublishCall* call) {
  // Taken first: an error must not follow the publication.
  ASSIGN_OR_RETURN(const InodePtr directory, p_->inodes->Get(call->directory()));
  ASSIGN_OR_RETURN(const PublicationRecord publication, p_->names->PublishTree(call));
  RETURN_IF_ERROR(Sync(directory));  // the data is in the catalog already
  return publication;
}

Result<void> Store::UnpublishTree(InodeId directory, const Credentials& who, std::string* failed) {
  ASSIGN_OR_RETURN(const InodePtr inode, p_->inodes->Get(directory));
  RETURN_IF_ERROR(p_->names->UnpublishTree(directory, who, failed));
  return Sync(inode);
}

Result<InodePtr> Store::OpenFile(InodeId ino, bool truncate, bool writes) {
  if (truncate) RETURN_IF_ERROR(p_->files->CheckWritable(KvChange::kRemove));
  ASSIGN_OR_RETURN(InodePtr inode, p_->names->Open(ino, writes));
  // The reads and writes of a damaged file report its error.
  if (OpensSlowly(ino)) static_cast<void>(p_->files->Load(inode).has_value());
  if (truncate) {
    if (auto truncated = p_->files->Truncate(inode, 0, /*replace=*/writes); !truncated) {
      p_->names->Close(inode, writes);
      return truncated.error();
    }
  }
  return inode;
}

void Store::Flush(const InodePtr& inode, std::atomic<uint64_t>* reported_failure, Done done) {
  {
    MutexLock lock(inode->mutex);
    const File* file = inode->file.get();
    if (file == nullptr || inode->deleted) {
      lock.Unlock();
      return done({});
    }
    if (file->write_error().error()) {
      Error error = *file->write_error().error();
      *reported_failure = file->write_error().failures();
      lock.Unlock();
      return done(std::move(error));
    }
  }
  if (!p_->options.sync_on_close || p_->read_only) return done({});
  // A clean file may still wait for the sync of its last commit.
  const auto finish = [inode, reported_failure, done = std::move(done)](Result<void> result) {
    if (!result) {
      MutexLock lock(inode->mutex);
      *reported_failure = inode->file->write_error().failures();
    }
    done(std::move(result));
  };
  p_->committer->Commit(inode, CommitLevel::kDurable, finish, {.kept = true});
}

void Store::CloseFile(const InodePtr& inode, uint64_t reported_failure, bool writes) {
  p_->names->Close(inode, writes);
  bool commit = false, last = false;
  {
    MutexLock lock(inode->mutex);
    last = !inode->has_writers();
    if (File* file = inode->file.get()) {
      if (reported_failure != 0) {
        file->write_error().Report(reported_failure);
        p_->committer->ForgetError(inode);
      }
      if (last) file->Settle();  // before that, the new content of a file being replaced is not complete
      commit = !inode->deleted && file->commit().changed() && !file->commit().replacing();
    }
  }
  if (last) p_->space->ReleasePreallocation(inode->id);  // otherwise a remaining writer continues in it
  if (commit) p_->committer->CommitSoon(inode, last);
}

bool Store::CommitsSlowly(InodeId ino) {
  const InodePtr inode = p_->inodes->Find(ino);
  if (inode == nullptr) return false;
  MutexLock lock(inode->mutex);
  const File* file = inode->file.get();
  return file != nullptr && file->Uncommitted() && (file->commit().committing() || inode->attributes.size > kMiB);
}

// True if a sync of the file has nothing to do: the log has its content, and everything in the log is durable.
bool Store::IsDurable(const InodePtr& inode) const {
  {
    MutexLock lock(inode->mutex);
    if (inode->file && inode->file->Uncommitted()) return false;
  }
  if (p_->log == nullptr || p_->files->closed() || p_->committer->failed()) return false;
  return p_->log->age().count() == 0;
}

void Store::Sync(const InodePtr& inode, Done done, bool kept) {
  if (p_->read_only || IsDurable(inode)) return done({});
  p_->committer->StartEarly(inode);
  p_->committer->Commit(inode, CommitLevel::kDurable, std::move(done), {.kept = kept});
}

void Store::SyncAll(Done done) {
  if (p_->read_only) return done({});
  p_->committer->CommitAll(CommitLevel::kDurable, std::move(done));
}

Result<std::vector<InodeId>> Store::CreateMany(const InodePtr& directory, const Credentials& who,
                                               const NewFileMode& mode, std::span<const DirectFile> files,
                                               std::span<const uint32_t> checksums, BlockReservation grant,
                                               size_t* failed) {
  *failed = files.size();
  RETURN_IF_ERROR(p_->files->CheckWritable(KvChange::kGrow));
  BlockCount blocks;
  const BlockCount granted = grant.count();
  for (const DirectFile& file : files) {
    if (file.size > kMaximumFileSize) return ErrorCode::kFileTooBig;
    const BlockCount more = BlocksFor(ByteCount{file.size});
    if (more > granted - blocks) return ErrorCode::kInvalid;
    blocks += more;
  }
  if (blocks.value != checksums.size()) return ErrorCode::kInvalid;
  const ByteCount records{files.size() * kBytesOfInode + checksums.size_bytes()};
  ASSIGN_OR_RETURN(const KvClaim claim, p_->catalog->ClaimSpace(records));
  // The catalog may be synced at any time, so the content must be durable before the catalog refers to it.
  for (const DeviceRun& run : grant.runs()) p_->device_set->NoteWrite(run.device);
  RETURN_IF_ERROR(SyncWait([&](Done done) { p_->committer->FlushDevices(std::move(done)); }));
  auto replaced = p_->names->CreateMany(directory->id, who, mode, files, grant.runs(), checksums, failed);
  if (!replaced) {
    // The next mount may find the batch, and then these blocks belong to files.
    if (p_->catalog->failed()) grant.Forget();
    return std::move(replaced).error();
  }
  grant.Take(blocks);
  p_->space->AddUsed(static_cast<int64_t>(blocks.value));
  uint64_t bytes = 0;
  for (const DirectFile& file : files) bytes += file.size;
  p_->files->NoteDirectWrite(bytes, blocks);
  return replaced;
}

Result<UniqueFd> Store::OpenDevice(DeviceId device, bool write, uint64_t writer) {
  // In-memory devices of tests have no descriptors.
  const auto* file = dynamic_cast<const FileDevice*>(p_->devices[device.value].get());
  if (file == nullptr) return ErrorCode::kNotSupported;
  return file->OpenAgain(write, writer);
}

bool Store::CollectOrphanedReservations() { return p_->space->CollectOrphanedReservations(); }

size_t Store::device_count() const { return p_->devices.size(); }

void Store::OnReverted(std::function<void(InodeId)> notify) { p_->committer->OnReverted(std::move(notify)); }

Result<void> Store::Sync(const InodePtr& inode) {
  return SyncWait([&](Done done) { Sync(inode, std::move(done)); });
}

Result<void> Store::SyncAll() {
  return SyncWait([&](Done done) { SyncAll(std::move(done)); });
}

ScrubReport Store::Scrub() const { return p_->scrubber->report(); }

Scrubber& Store::scrubber() { return *p_->scrubber; }

SpaceStatistics Store::Space() const {
  SpaceStatistics statistics = p_->space->Statistics();
  statistics.inodes = p_->names->inode_count();
  const auto catalog = CatalogFreeSpace();
  statistics.free_inodes = catalog ? *catalog / kBytesOfInode : statistics.available.value;
  if (p_->log && !p_->log->has_space()) statistics.free_inodes = 0;
  return statistics;
}

std::optional<uint64_t> Store::CatalogFreeSpace() const { return p_->catalog->FreeSpace(); }

Result<void> Store::VerifyCatalog(const std::function<bool(ByteCount)>& next) { return p_->catalog->Verify(next); }

std::chrono::nanoseconds Store::LogAge() const { return p_->log ? p_->log->age() : std::chrono::nanoseconds(0); }

StoreStatistics Store::statistics() const {
  StoreStatistics statistics;
  const FileIo::LeaseCounters& leased = p_->files->leased();
  statistics.leased_read_bytes = leased.device_read_bytes;
  statistics.leased_written_bytes = leased.device_written_bytes;
  statistics.read_bytes = p_->reader->counters().read_bytes + leased.read_bytes;
  statistics.written_bytes = p_->files->written_bytes() + leased.written_bytes;
  statistics.device_read_bytes =
      p_->reader->counters().device_bytes + statistics.leased_read_bytes + p_->scrubber->device_bytes();
  statistics.device_written_bytes = p_->write_back->written_bytes() + statistics.leased_written_bytes;
  statistics.commits = p_->committer->commits();
  statistics.flushes = p_->device_set->flushes();
  statistics.checksum_errors = p_->reader->counters().checksum_errors;
  for (const BufferPool* pool :
       {p_->chunks.get(), p_->large_reads.get(), p_->small_reads.get(), p_->stripes.get(), p_->small_writes.get()}) {
    statistics.buffer_capacity += pool->capacity() * pool->buffer_size().value;
    statistics.buffer_in_use += pool->in_use() * pool->buffer_size().value;
  }
  statistics.dirty_bytes = p_->stripes->in_use() * p_->stripes->buffer_size().value +
                           p_->small_writes->in_use() * p_->small_writes->buffer_size().value;
  statistics.resident_inodes = p_->inodes->size();
  statistics.device_requests = p_->device_set->outstanding();
  statistics.pinned_bytes = ToBytes(p_->space->pinned()).value;
  statistics.granted_bytes = ToBytes(p_->space->granted()).value;
  if (p_->log) statistics.log = p_->log->statistics();
  statistics.read_only = read_only();
  return statistics;
}

HotStatistics Store::Hot() const {
  if (p_->hot == nullptr) return {};
  const HotFiles::Counters& counters = p_->hot->counters();
  return {p_->hot->limit().value, p_->hot->used_bytes(), counters.mapped_bytes, counters.loaded_bytes,
          counters.evictions, p_->hot->on_tmpfs()};
}

void Store::UsePassthrough(bool use) {
  if (p_->hot != nullptr) p_->hot->UsePassthrough(use);
}

void Store::ShrinkHot() {
  if (p_->hot != nullptr) p_->hot->Shrink(p_->hot->used_bytes() / 4 * 3);
}

void Store::CountHot() {
  if (p_->hot != nullptr) p_->hot->Count();
}

}  // namespace weightfs
