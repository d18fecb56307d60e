// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_store.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>

#include "common/checksum.h"
#include "store/volume/store_directory.h"
#include "store/wal/logged_kv_store.h"
#include "store/wal/wal_reader.h"
#include "tests/support/aligned_memory.h"

namespace weightfs {
namespace {

void Require(const Result<void>& result, const char* what) {
  if (result) return;
  std::fprintf(stderr, "test store: %s: %s\n", what, ToString(result.error()).c_str());
  std::abort();
}

}  // namespace

TestStore::TestStore(const TestStoreOptions& options) : options_(options), journal_(std::make_shared<Journal>()) {
  std::vector<std::unique_ptr<FaultDevice>> devices;
  for (size_t index = 0; index < options.devices; ++index) {
    devices.push_back(std::make_unique<FaultDevice>(journal_, options.device_size, options.device));
  }
  auto kv = std::make_unique<MemoryKvStore>(journal_);
  Require(Namespace::Initialize(*kv, 0, 0), "initialising the catalog");
  Require(kv->Sync(), "syncing the catalog");
  opened_ = OpenStore(std::move(kv), std::move(devices));
  Require(opened_, "opening");
}

TestStore::TestStore(const CrashImage& image, const TestStoreOptions& options) : options_(options) {
  Restarted restarted = Restart(image);
  journal_ = restarted.journal;
  opened_ = OpenStore(std::move(restarted.kv), std::move(restarted.devices));
}

TestStore::~TestStore() = default;

Result<void> TestStore::OpenStore(std::unique_ptr<MemoryKvStore> kv,
                                  std::vector<std::unique_ptr<FaultDevice>> devices) {
  devices_.clear();
  std::vector<std::unique_ptr<BlockDevice>> bases;
  for (auto& device : devices) {
    devices_.push_back(device.get());
    bases.push_back(std::move(device));
  }
  StoreOptions options = options_.store;
  ASSIGN_OR_RETURN(options.log, CatchUp(&kv, Borrow(bases)));
  if (!options_.replaced.empty()) {
    options.log->root.reset();
    options.log->replaced = options_.replaced;
  }
  kv_ = kv.get();
  auto store = Store::Open(std::move(kv), std::move(bases), options);
  if (!store) return store.error();
  store_ = std::move(*store);
  return {};
}

Result<wal::WriterOptions> TestStore::CatchUp(std::unique_ptr<MemoryKvStore>* kv,
                                              std::span<BlockDevice* const> devices) {
  wal::WriterOptions log;
  log.description = std::string(1500, ' ');  // as of a store with several devices, so that a root has several sectors
  log.largest_root = options_.largest_root;
  ASSIGN_OR_RETURN(log.root, wal::FindRoot(devices, std::nullopt));
  const auto version = wal::ReadVersion(**kv);
  if (!log.root && !version) return version.error();
  log.tail.version = version.value_or(wal::Version{.sequence = UINT64_MAX});  // no log has that
  if (!log.root) return log;
  for (BlockDevice* device : devices) RETURN_IF_ERROR(device->Flush());
  if (log.root->newer_lost) return Error{ErrorCode::kCorrupt, "all copies of the newest root are damaged"};
  log.root_sequence = log.root->sequence;
  RETURN_IF_ERROR(wal::LoadSegments(devices, &*log.root));
  wal::Version from = log.tail.version;
  ASSIGN_OR_RETURN(log.tail, wal::FindDurableTail(devices, *log.root, from));
  if (!log.tail.continues) {
    from = log.root->checkpoint;
    ASSIGN_OR_RETURN(log.tail, wal::FindDurableTail(devices, *log.root, from));
    index_was_ahead_ = version && version->sequence > log.tail.version.sequence;
    *kv = std::make_unique<MemoryKvStore>(journal_);
    ASSIGN_OR_RETURN(const uint64_t damaged, wal::ReplayCheckpoint(devices, *log.root, [&](const wal::Entry& part) {
                       return (*kv)->Write(part.batch);
                     }));
    if (damaged > 0) return Error{ErrorCode::kCorrupt, "the checkpoint is damaged"};
    RETURN_IF_ERROR((*kv)->Write(wal::WithVersion({}, from)));
  }
  if (log.tail.damaged) return Error{ErrorCode::kCorrupt, "the log is damaged"};
  RETURN_IF_ERROR(wal::CatchUp(devices, *log.root, from, log.tail,
                               [&](KvBatch batch) { return (*kv)->Write(std::move(batch)); }));
  return log;
}

Result<void> TestStore::Remount() {
  RETURN_IF_ERROR(store_->Close());
  const CrashImage image = journal_->ImageAt(journal_->size(), {.kind = CrashOptions::Kind::kProcessKill});
  store_.reset();
  Restarted restarted = Restart(image);
  journal_ = restarted.journal;
  return OpenStore(std::move(restarted.kv), std::move(restarted.devices));
}

Result<InodeId> TestStore::Resolve(std::string_view path) {
  InodeId at = kRootInode;
  while (!path.empty()) {
    const size_t slash = path.find('/');
    ASSIGN_OR_RETURN(const auto found, store_->names().Lookup(at, path.substr(0, slash)));
    at = found.ino;
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
  }
  return at;
}

Result<InodePtr> TestStore::Create(std::string_view path) {
  const size_t slash = path.rfind('/');
  const std::string_view parent = slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
  const std::string_view name = slash == std::string_view::npos ? path : path.substr(slash + 1);
  ASSIGN_OR_RETURN(const InodeId directory, Resolve(parent));
  CreateRequest request;
  request.mode = S_IFREG | 0644;
  ASSIGN_OR_RETURN(const auto created, store_->names().Create(directory, name, request));
  return store_->OpenFile(created.ino, false);
}

Result<InodePtr> TestStore::OpenPath(std::string_view path, bool truncate) {
  ASSIGN_OR_RETURN(const InodeId ino, Resolve(path));
  return store_->OpenFile(ino, truncate, /*writes=*/truncate);
}

Result<std::string> TestStore::ReadAt(const InodePtr& inode, uint64_t offset, uint64_t size) {
  constexpr uint64_t kStep = 4 * kMiB;  // as the kernel's largest requests
  std::string text, step;
  do {
    const ByteCount bytes{std::min(size - text.size(), kStep)};
    ASSIGN_OR_RETURN(const ReadView view, store_->files().Read(inode, ByteOffset{offset + text.size()}, bytes));
    step = ToText(view);
    text += step;
  } while (step.size() == kStep && text.size() < size);
  return text;
}

Result<std::string> TestStore::ReadAll(const InodePtr& inode) {
  std::string text;
  while (true) {
    ASSIGN_OR_RETURN(const std::string part, ReadAt(inode, text.size(), kMiB));
    if (part.empty()) return text;
    text += part;
  }
}

Result<std::string> TestStore::ReadPath(std::string_view path) {
  ASSIGN_OR_RETURN(const InodePtr inode, OpenPath(path));
  auto text = ReadAll(inode);
  store_->CloseFile(inode);
  return text;
}

Result<void> TestStore::WriteAt(const InodePtr& inode, uint64_t offset, std::string_view data) {
  return store_->files().Write(inode, ByteOffset{offset}, AsBytes(data));
}

Result<void> TestStore::WriteFile(std::string_view path, std::string_view data) {
  auto inode = OpenPath(path, true);
  const bool writer = inode.has_value();
  if (!inode) inode = Create(path);
  if (!inode) return inode.error();
  const auto written = WriteAt(*inode, 0, data);
  const auto told = std::make_shared<std::atomic<uint64_t>>(0);
  store_->Flush(*inode, told.get(), [told](Result<void>) {});
  store_->CloseFile(*inode, 0, writer);
  return written;
}

uint64_t TestStore::SizeOf(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  return inode->attributes.size;
}

Result<TestStore::Filled> TestStore::Fill(const InodePtr& inode, FileBlock first, std::string_view data) {
  Filled filled;
  const BlockCount count = BlocksFor(ByteCount{data.size()});
  ASSIGN_OR_RETURN(filled.grant, store_->files().Reserve(inode, first, std::max(count, BlockCount{1})));
  if (count.value == 0) return filled;
  const AlignedMemory memory(ToBytes(count).value);
  std::copy_n(AsBytes(data).data(), data.size(), memory.data());
  filled.checksums.resize(count.value);
  Crc32cBlocks(memory.bytes(), filled.checksums.data());
  uint64_t at = 0;
  for (const DeviceRun& run : filled.grant.runs()) {
    const uint64_t bytes = ToBytes(run.run.count).value;
    RETURN_IF_ERROR(devices_[run.device.value]->Write(ToBytes(run.run.start), memory.bytes().subspan(at, bytes)));
    at += bytes;
  }
  return filled;
}

Result<void> TestStore::WriteDirect(const InodePtr& inode, uint64_t offset, std::string_view data,
                                    std::optional<uint64_t> new_size) {
  ASSIGN_OR_RETURN(Filled filled, Fill(inode, FileBlock{offset / kBlockSize}, data));
  const DirectWrite write{offset, data.size(), new_size, filled.checksums};
  return store_->files().CommitDirect(inode, write, std::move(filled.grant));
}

Result<std::string> TestStore::ReadLeased(const ReadLease& lease) {
  std::string text(ToBytes(lease.count).value, '\0');
  for (const FileExtent& extent : lease.extents) {
    const AlignedMemory memory(ToBytes(extent.count).value);
    RETURN_IF_ERROR(devices_[extent.device.value]->Read(ToBytes(extent.start), memory.bytes()));
    std::vector<uint32_t> checksums(extent.count.value);
    Crc32cBlocks(memory.bytes(), checksums.data());
    const BlockCount at = extent.first - lease.first;
    if (!std::equal(checksums.begin(), checksums.end(), lease.checksums.begin() + static_cast<ptrdiff_t>(at.value))) {
      return Error{ErrorCode::kCorrupt, "a checksum of the lease is not that of its block"};
    }
    text.replace(ToBytes(at).value, memory.size(), reinterpret_cast<const char*>(memory.data()), memory.size());
  }
  return text;
}

Result<std::string> TestStore::ReadDirect(const InodePtr& inode, uint64_t offset, uint64_t length) {
  ASSIGN_OR_RETURN(const ReadLease lease, store_->files().LeaseRead(inode, offset, length));
  ASSIGN_OR_RETURN(std::string text, ReadLeased(lease));
  const uint64_t end = std::min(lease.file_size, length > UINT64_MAX - offset ? UINT64_MAX : offset + length);
  if (offset >= end) return std::string();
  return text.substr(offset - ToBytes(lease.first).value, end - offset);
}

Result<void> TestStore::CreateMany(std::string_view directory, const std::vector<NamedFile>& files) {
  ASSIGN_OR_RETURN(const InodeId ino, Resolve(directory));
  ASSIGN_OR_RETURN(const InodePtr inode, store_->inodes().Get(ino));
  std::string all;
  std::vector<DirectFile> named;
  for (const NamedFile& file : files) {
    all += file.data;
    all.resize(RoundUp(all.size(), kBlockSize), '\0');
    named.push_back({file.name, file.data.size()});
  }
  ASSIGN_OR_RETURN(Filled filled, Fill(inode, FileBlock{0}, all));
  size_t failed = 0;
  RETURN_IF_ERROR(store_->CreateMany(inode, {}, {0644}, named, filled.checksums, std::move(filled.grant), &failed));
  return {};
}

std::span<const std::byte> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string ToText(const ReadView& view) {
  std::string text;
  for (const iovec& piece : view.pieces) text.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
  return text;
}

std::string Pattern(uint64_t seed, size_t size) {
  std::mt19937_64 random(seed);
  std::string text(size, '\0');
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    text.replace(at, std::min(sizeof(word), size - at), reinterpret_cast<const char*>(&word),
                 std::min(sizeof(word), size - at));
  }
  return text;
}

}  // namespace weightfs
