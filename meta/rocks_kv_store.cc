// SPDX-License-Identifier: Apache-2.0
#include "meta/rocks_kv_store.h"

#include <fmt/format.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/perf_level.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <sys/stat.h>
#if __has_include(<rocksdb/advanced_cache.h>)
// RocksDB 8 moved the definition of Cache to this header; its cache.h only declares the class.
#include <rocksdb/advanced_cache.h>
#endif

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <system_error>

#include "common/assert.h"
#include "common/checksum.h"
#include "common/log.h"
#include "common/mutex.h"
#include "meta/catalog_space.h"
#include "meta/keys.h"
#include "meta/rocks_file_system.h"

namespace weightfs {
namespace {

constexpr int kOpenTables = 512;
constexpr int kUnlimited = 1 << 20;
// Full memtables, and tables of level 0, at which writers wait.
constexpr uint64_t kMostSealed = 2, kMostTables = 36;
constexpr int kReadOnlyAttempts = 16;
constexpr size_t kScanReadAhead = 2 * kMiB;
constexpr size_t kVerifyReadAhead = kMiB;
constexpr size_t kBatchHeaderSize = 12;
constexpr size_t kChangeOverhead = 11;  // per change in a RocksDB batch: tag and two lengths

rocksdb::Slice ToSlice(std::string_view text) { return {text.data(), text.size()}; }

// RocksDB counts each key comparison per thread unless the thread disables it. Counting takes a tenth of the time.
void CountNothing() { rocksdb::SetPerfLevel(rocksdb::PerfLevel::kDisable); }

ErrorCode CodeOf(const rocksdb::Status& status) {
  if (status.IsNotFound()) return ErrorCode::kNotFound;
  if (status.IsBusy()) return ErrorCode::kBusy;
  if (status.IsCorruption()) return ErrorCode::kCorrupt;
  if (IsFull(status)) return ErrorCode::kNoSpace;
  return ErrorCode::kIo;
}

// The error state of the store: whether it may still be written. Shared with RocksDB's background threads.
class Health {
 public:
  explicit Health(std::string directory) : directory_(std::move(directory)) {}

  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // What RocksDB reports from now on follows from its end.
  void Close() { failed_ = true; }

  // Stops all writing. Logs only the first failure, because the others follow from it.
  Error Fail(std::string_view what, const rocksdb::Status& status) {
    Error error{CodeOf(status), fmt::format("{}: {} failed: {}; the catalog is read-only until the next mount",
                                            directory_, what, status.ToString())};
    if (!failed_.exchange(true)) spdlog::error("{}", error.what);
    return error;
  }

 private:
  const std::string directory_;
  std::atomic<bool> failed_{false};
};

std::string_view NameOf(rocksdb::BackgroundErrorReason reason) {
  switch (reason) {
    case rocksdb::BackgroundErrorReason::kFlush: return "flushing the catalog's memory";
    case rocksdb::BackgroundErrorReason::kCompaction: return "compacting the catalog";
    default: return "writing the catalog";
  }
}

// Announces flushes, and the ends of flushes and compactions, reports failed ones, and keeps RocksDB from automatic
// recovery: after a failed write only the next open examines what is on disk.
class FailureListener final : public rocksdb::EventListener {
 public:
  FailureListener(std::shared_ptr<Health> health, CatalogSpace* space, std::function<void()> before_flush)
      : health_(std::move(health)), space_(space), before_flush_(std::move(before_flush)) {}

  void OnFlushBegin(rocksdb::DB*, const rocksdb::FlushJobInfo&) override {
    if (before_flush_) before_flush_();
  }
  void OnFlushCompleted(rocksdb::DB*, const rocksdb::FlushJobInfo&) override {
    if (space_ != nullptr) space_->NoteProgress();
  }
  void OnCompactionCompleted(rocksdb::DB*, const rocksdb::CompactionJobInfo&) override {
    if (space_ != nullptr) space_->NoteProgress();
  }
  void OnBackgroundError(rocksdb::BackgroundErrorReason reason, rocksdb::Status* status) override {
    if (status->ok() || status->IsShutdownInProgress()) return;
    health_->Fail(NameOf(reason), *status);
    if (space_ != nullptr) space_->NoteProgress();
  }
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status, bool* auto_recovery) override {
    *auto_recovery = false;
  }

 private:
  const std::shared_ptr<Health> health_;
  CatalogSpace* const space_;  // null if read-only
  const std::function<void()> before_flush_;
};

// Sends RocksDB's messages to our log. A log file of RocksDB's own would change a directory that is only inspected, and
// RocksDB aborts when it cannot write that file. Messages are logged at info level at most, because each fatal error
// has a line of ours, and these add detail. Only the first warning of each kind is logged, because under heavy writing
// RocksDB warns many times per second that it waits for a flush.
class Messages final : public rocksdb::Logger {
 public:
  Messages(std::string directory, std::shared_ptr<Health> health)
      : Logger(rocksdb::InfoLogLevel::WARN_LEVEL), directory_(std::move(directory)), health_(std::move(health)) {}

  using Logger::Logv;
  void Logv(const char*, va_list) override {}  // messages without a level are informational
  void Logv(const rocksdb::InfoLogLevel level, const char* format, va_list arguments) override {
    if (level < rocksdb::InfoLogLevel::WARN_LEVEL || level >= rocksdb::InfoLogLevel::HEADER_LEVEL) return;
    if (health_->failed()) return;
    const bool warning = level == rocksdb::InfoLogLevel::WARN_LEVEL;
    if (warning && !IsNew(format)) return;
    char text[1024];
    std::vsnprintf(text, sizeof(text), format, arguments);
    spdlog::info("{}: RocksDB {}: {}", directory_, warning ? "warns" : "reports an error", text);
  }

 private:
  // RocksDB's formats are constants, so the address identifies the format.
  bool IsNew(const char* format) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return warned_.insert(format).second;
  }

  const std::string directory_;
  const std::shared_ptr<Health> health_;
  Mutex mutex_;
  std::set<const char*> warned_ GUARDED_BY(mutex_);
};

// The open database. It outlives the store while an iterator exists.
struct Database {
  explicit Database(const std::string& path) : directory(path), health(std::make_shared<Health>(path)) {}
  ~Database() {
    if (db == nullptr) return;
    const bool complete = !health->failed();
    health->Close();
    if (!read_only) space->Close();
    // Close repeats the error that stopped the writing; that error was logged then.
    if (const auto status = db->Close(); !status.ok() && complete) {
      spdlog::warn("{}: closing the catalog failed: {}", directory, status.ToString());
    }
  }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  Error ReadError(const rocksdb::Status& status) const {
    const char* advice = status.IsCorruption() ? "; unmount and mount the store again, which rebuilds the index" : "";
    return {CodeOf(status), fmt::format("{}: reading the catalog failed: {}{}", directory, status.ToString(), advice)};
  }

  const std::string directory;
  const std::shared_ptr<Health> health;
  std::shared_ptr<rocksdb::Cache> cache;
  bool read_only = false;
  std::unique_ptr<CatalogSpace> space;  // null if read-only
  std::unique_ptr<rocksdb::Env> env;    // null if read-only: RocksDB's own
  std::unique_ptr<rocksdb::DB> db;
};

std::shared_ptr<rocksdb::Cache> MakeCache(ByteCount size) {
  rocksdb::LRUCacheOptions options;
  options.capacity = size.value;
  // Use few shards, so that an index block is small relative to a shard. No strict limit, because it would fail reads:
  // blocks in use may exceed the capacity by those that open iterators hold.
  options.num_shard_bits = 2;
  options.strict_capacity_limit = false;
  return rocksdb::NewLRUCache(options);
}

rocksdb::BlockBasedTableOptions TableOptions(std::shared_ptr<rocksdb::Cache> cache) {
  rocksdb::BlockBasedTableOptions options;
  options.block_cache = std::move(cache);
  options.cache_index_and_filter_blocks = true;
  options.pin_l0_filter_and_index_blocks_in_cache = true;
  options.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  options.whole_key_filtering = true;
  options.format_version = 5;  // the newest that all supported versions can read
  return options;
}

rocksdb::Options DatabaseOptions(const RocksKvStore::Options& wanted, const Database& database) {
  rocksdb::Options options;
  if (database.env != nullptr) options.env = database.env.get();
  options.create_if_missing = wanted.create;
  options.error_if_exists = wanted.create;

  // Of the log of an older version, recovery returns a prefix. Any other damage is an error.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  options.paranoid_checks = true;
  options.track_and_verify_wals_in_manifest = true;
  options.max_bgerror_resume_count = 0;
  // The last step of an opening writes a file that only tools read. A compaction may wait for space by then, and a
  // database that fails to open would wait for the compaction. Newer versions of RocksDB have another default.
  options.fail_if_options_file_error = false;
  options.listeners.push_back(
      std::make_shared<FailureListener>(database.health, database.space.get(), wanted.before_flush));

  // Bound memory, files and threads.
  options.write_buffer_size = wanted.write_buffer.value;
  // RocksDB never delays a writer, because deletions go on while files wait for space. CatalogSpace delays them.
  options.max_write_buffer_number = kUnlimited;
  options.level0_slowdown_writes_trigger = options.level0_stop_writes_trigger = kUnlimited;
  options.avoid_flush_during_shutdown = true;    // Sync stores what counts
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(TableOptions(database.cache)));
  options.max_open_files = kOpenTables;
  options.max_background_jobs = 2;
  options.max_file_opening_threads = 1;  // RocksDB ends the process if it cannot start the others
  // A compaction needs at most 176 MiB beside its input: one table of 16 MiB, and ten that overlap it
  // (CatalogSpace::kLargestNeed).
  options.target_file_size_base = 16 * kMiB;
  options.max_bytes_for_level_base = 64 * kMiB;
  options.max_compaction_bytes = 128 * kMiB;
  options.skip_stats_update_on_db_open = true;

  // Most bytes here are checksums, which do not compress.
  options.compression = rocksdb::kNoCompression;
  options.level_compaction_dynamic_level_bytes = true;

  options.info_log = std::make_shared<Messages>(database.directory, database.health);
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  if (wanted.damaged_too) {
    options.paranoid_checks = false;
    options.skip_checking_sst_file_sizes_on_db_open = true;
    return options;  // tables are opened when they are read
  }
  if (wanted.read_only) options.max_open_files = -1;  // open all now: a concurrent mount may delete them
  return options;
}

Error OpenError(const std::string& directory, const rocksdb::Status& status) {
  const std::string text = status.ToString();
  // RocksDB has no status code for its lock.
  if (status.IsBusy() || text.find("lock hold by") != std::string::npos ||
      text.find("While lock file") != std::string::npos) {
    return {ErrorCode::kBusy, fmt::format("{}: the catalog is in use: {}; unmount the store first", directory, text)};
  }
  // CURRENT existed a moment ago, so a file that it refers to is missing.
  if (status.IsCorruption() || status.IsPathNotFound()) {
    return {ErrorCode::kCorrupt,
            fmt::format("{}: the catalog is damaged: {}", directory, text)};
  }
  if (IsFull(status)) {
    return {ErrorCode::kNoSpace,
            fmt::format("{}: the filesystem of the catalog is full: {}; make some space there (nothing is lost; until "
                        "then the store can be mounted with -o ro)",
                        directory, text)};
  }
  for (const int lack : {EMFILE, ENFILE, ENOMEM, EAGAIN}) {  // of descriptors, memory or threads
    if (!Mentions(status, lack)) continue;
    return {ErrorCode::kAgain,
            fmt::format("{}: cannot open the catalog: {}; raise that limit (ulimit -a)", directory, text)};
  }
  return {CodeOf(status), fmt::format("{}: cannot open the catalog: {}; check that filesystem and its device (dmesg)",
                                      directory, text)};
}

rocksdb::Status OpenDatabase(const std::string& directory, const rocksdb::Options& options, bool read_only,
                             std::unique_ptr<rocksdb::DB>* out) {
  rocksdb::DB* db = nullptr;
  rocksdb::Status status;
  // A concurrent mount may delete a log or a table after we read the manifest and before we open that file, which looks
  // like damage. Real damage persists across attempts.
  try {
    for (int attempt = 0; attempt < (read_only ? kReadOnlyAttempts : 1); ++attempt) {
      status = read_only ? rocksdb::DB::OpenForReadOnly(options, directory, &db)
                         : rocksdb::DB::Open(options, directory, &db);
      if (status.ok()) break;
    }
  } catch (const std::system_error& error) {
    return rocksdb::Status::IOError("a thread cannot be started", error.code().message());
  }
  out->reset(db);
  return status;
}

class Iterator final : public KvIterator {
 public:
  Iterator(std::shared_ptr<const Database> database, std::string_view prefix, std::string_view first, KvScan scan)
      : database_(std::move(database)), prefix_(prefix), end_(keys::PrefixEnd(prefix_)), upper_bound_(ToSlice(end_)) {
    rocksdb::ReadOptions options;
    if (!end_.empty()) options.iterate_upper_bound = &upper_bound_;
    // A whole kind is scanned once from end to end: read ahead, and bypass the cache that other readers need.
    if (prefix_.size() <= 1) {
      options.readahead_size = kScanReadAhead;
      options.fill_cache = false;
    }
    options.pin_data = scan == KvScan::kFew;
    // The iterator pins the current sequence number, as a snapshot would.
    CountNothing();
    iterator_.reset(database_->db->NewIterator(options));
    Seek(first);
  }
  Iterator(const Iterator&) = delete;
  Iterator& operator=(const Iterator&) = delete;

  bool Valid() const override { return iterator_->Valid(); }
  void Next() override {
    if (iterator_->Valid()) iterator_->Next();
  }
  void Seek(std::string_view key) final {
    iterator_->Seek(ToSlice(key < std::string_view(prefix_) ? std::string_view(prefix_) : key));
  }
  std::string_view key() const override { return iterator_->key().ToStringView(); }
  std::string_view value() const override { return iterator_->value().ToStringView(); }
  Result<void> status() const override {
    if (const auto status = iterator_->status(); !status.ok()) return database_->ReadError(status);
    return {};
  }

 private:
  const std::shared_ptr<const Database> database_;  // outlives iterator_
  const std::string prefix_;
  const std::string end_;
  const rocksdb::Slice upper_bound_;  // RocksDB keeps a pointer to it
  std::unique_ptr<rocksdb::Iterator> iterator_;
};

Result<void> Translate(const KvBatch& from, rocksdb::WriteBatch* to) {
  for (const auto& change : from.changes()) {
    rocksdb::Status status;
    switch (change.kind) {
      case KvBatch::Change::Kind::kPut: status = to->Put(change.key, change.value); break;
      case KvBatch::Change::Kind::kDelete: status = to->Delete(change.key); break;
      case KvBatch::Change::Kind::kDeleteRange:
        // An empty range needs no work. RocksDB reports an error for a range that ends before it begins.
        if (change.key < change.value) status = to->DeleteRange(change.key, change.value);
        break;
    }
    if (!status.ok()) return Error{ErrorCode::kInvalid, "catalog batch: " + status.ToString()};
  }
  return {};
}

// Reads a table from the disk and not from the page cache, which may hold better bytes, where the filesystem can.
rocksdb::Status VerifyTable(const std::string& path) {
  rocksdb::Options options;
  options.use_direct_reads = true;
  auto table = std::make_unique<rocksdb::SstFileReader>(options);
  if (auto status = table->Open(path); !status.ok()) {
    options.use_direct_reads = false;
    table = std::make_unique<rocksdb::SstFileReader>(options);
    status = table->Open(path);
    if (!status.ok()) return status;
  }
  rocksdb::ReadOptions reading;
  reading.readahead_size = kVerifyReadAhead;
  reading.fill_cache = false;
  return table->VerifyChecksum(reading);
}

uint64_t PropertyOf(rocksdb::DB& db, const std::string& name) {
  uint64_t value = 0;
  return db.GetIntProperty(name, &value) ? value : 0;
}

CatalogSpace::Usage UsageOf(rocksdb::DB& db) {
  using Properties = rocksdb::DB::Properties;
  std::string tables;
  const bool known = db.GetProperty(Properties::kNumFilesAtLevelPrefix + "0", &tables);
  return {.stored = PropertyOf(db, Properties::kLiveSstFilesSize),
          .memory = PropertyOf(db, Properties::kCurSizeAllMemTables),
          .behind = PropertyOf(db, Properties::kNumImmutableMemTable) >= kMostSealed ||
                    (known && std::stoull(tables) >= kMostTables)};
}

// Stores everything in tables. Compacting gives the space of removed records back to the filesystem; those of a large
// catalog are left to the threads of RocksDB.
Result<void> Persist(Database& database, CatalogSpace::Work work) {
  constexpr uint64_t kSmallCatalog = kGiB;
  rocksdb::DB& db = *database.db;
  if (const auto status = db.Flush(rocksdb::FlushOptions()); !status.ok()) {
    return database.health->Fail("writing the catalog's tables", status);
  }
  if (work == CatalogSpace::Work::kFlush || UsageOf(db).stored > kSmallCatalog) return {};
  rocksdb::CompactRangeOptions all;
  all.exclusive_manual_compaction = false;
  if (const auto status = db.CompactRange(all, nullptr, nullptr); !status.ok() && !database.health->failed()) {
    spdlog::warn("{}: freeing space of the catalog failed: {}", database.directory, status.ToString());
  }
  return {};
}

Result<void> StartSpace(Database& database) {
  return database.space->Start({
      .usage = [db = database.db.get()] { return UsageOf(*db); },
      .work = [raw = &database](CatalogSpace::Work work) { return Persist(*raw, work); },
      .failed = [health = database.health] { return health->failed(); },
  });
}

size_t SizeOf(const KvBatch& batch) {
  size_t size = kBatchHeaderSize;
  for (const auto& change : batch.changes()) size += kChangeOverhead + change.key.size() + change.value.size();
  return size;
}

}  // namespace

class RocksKvStore::Impl {
 public:
  explicit Impl(std::shared_ptr<Database> opened) : database(std::move(opened)) {}

  // One thread may write the batches of several. ThreadSanitizer does not see the hand-over in RocksDB, which is built
  // without it. As a separate function, this one keeps its caller in the stack traces that tests/tsan.supp matches.
  [[gnu::noinline]] rocksdb::Status Apply(rocksdb::WriteBatch* changes) {
    CountNothing();
    rocksdb::WriteOptions options;
    options.disableWAL = true;
    return database->db->Write(options, changes);
  }
  bool writable() const { return !database->read_only && !database->health->failed(); }

  const std::shared_ptr<Database> database;
};

RocksKvStore::RocksKvStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RocksKvStore::~RocksKvStore() = default;

Result<std::unique_ptr<RocksKvStore>> RocksKvStore::Open(const std::string& directory, const Options& options) {
  if (options.create && options.read_only) {
    return Error{ErrorCode::kInvalid, fmt::format("{}: a new catalog cannot be opened read-only", directory)};
  }
  // RocksDB creates its files with mode 0644, from its own threads and at any time.
  if (!options.read_only) umask(S_IRWXG | S_IRWXO);
  ASSIGN_OR_RETURN(const GuardedDirectory prepared,
                   PrepareCatalogDirectory(directory, options.create, options.read_only));
  auto database = std::make_shared<Database>(directory);
  database->cache = MakeCache(options.cache);
  database->read_only = options.read_only;
  if (!options.read_only) {
    ASSIGN_OR_RETURN(database->space, CatalogSpace::Open(directory, options.awaits_space));
    database->env = MakeCatalogEnv(prepared, *database->space, options.may_write);
  }
  const auto status = OpenDatabase(directory, DatabaseOptions(options, *database), options.read_only, &database->db);
  if (!status.ok()) return OpenError(directory, status);
  if (!options.read_only) {
    TakePermissionsOfOthers(prepared);  // from files that older versions made
    RETURN_IF_ERROR(StartSpace(*database));
  }
  return std::unique_ptr<RocksKvStore>(new RocksKvStore(std::make_unique<Impl>(std::move(database))));
}

Result<std::optional<std::string>> RocksKvStore::Get(std::string_view key) {
  WEIGHTFS_ASSERT(Mutex::MayReadCatalog());
  std::string value;
  CountNothing();
  const auto status = impl_->database->db->Get(rocksdb::ReadOptions(), ToSlice(key), &value);
  if (status.IsNotFound()) return std::optional<std::string>();
  if (!status.ok()) return impl_->database->ReadError(status);
  return std::optional<std::string>(std::move(value));
}

bool RocksKvStore::failed() const { return impl_->database->health->failed(); }

Result<void> RocksKvStore::Write(KvBatch batch) {
  if (!impl_->writable()) return ErrorCode::kReadOnly;
  if (batch.empty()) return {};
  const size_t size = SizeOf(batch);
  rocksdb::WriteBatch changes(size);
  RETURN_IF_ERROR(Translate(batch, &changes));
  if (const auto status = impl_->Apply(&changes); !status.ok()) {
    return impl_->database->health->Fail("writing the catalog", status);
  }
  impl_->database->space->NoteWrite(size);
  return {};
}

Result<void> RocksKvStore::CheckSpace(KvChange change) {
  if (!impl_->writable()) return ErrorCode::kReadOnly;
  return impl_->database->space->Check(change);
}

Result<KvClaim> RocksKvStore::ClaimSpace(ByteCount added) {
  if (!impl_->writable()) return ErrorCode::kReadOnly;
  return impl_->database->space->Claim(added.value);
}

std::optional<uint64_t> RocksKvStore::FreeSpace() {
  if (impl_->database->space == nullptr) return std::nullopt;
  return impl_->database->space->FreeSpace();
}

Result<void> RocksKvStore::Sync() {
  if (failed()) return ErrorCode::kReadOnly;
  return impl_->database->read_only ? Result<void>() : impl_->database->space->Flush();
}

std::unique_ptr<KvIterator> RocksKvStore::NewIterator(std::string_view prefix, std::string_view first, KvScan scan) {
  WEIGHTFS_ASSERT(Mutex::MayReadCatalog());
  return std::make_unique<Iterator>(impl_->database, prefix, first, scan);
}

uint64_t RocksKvStore::EstimateSize(std::string_view prefix) const {
  const std::string end = keys::PrefixEnd(std::string(prefix));
  rocksdb::SizeApproximationOptions options;
  options.include_memtables = true;
  rocksdb::DB& db = *impl_->database->db;
  const rocksdb::Range range(ToSlice(prefix), end);
  uint64_t size = 0;
  const auto status = db.GetApproximateSizes(options, db.DefaultColumnFamily(), &range, 1, &size);
  return status.ok() ? size : 0;
}

Result<void> RocksKvStore::Verify(const std::function<bool(ByteCount)>& next) {
  rocksdb::DB& db = *impl_->database->db;
  std::vector<rocksdb::LiveFileMetaData> tables;
  db.GetLiveFilesMetaData(&tables);
  for (const auto& table : tables) {
    CountNothing();
    rocksdb::Status status;
    ReadAttempts attempts;
    do {
      status = VerifyTable(table.db_path + table.name);
    } while (!status.ok() && attempts.ReadAgain());
    if (!status.ok()) {
      // A compaction may have deleted the table meanwhile.
      std::vector<rocksdb::LiveFileMetaData> now;
      db.GetLiveFilesMetaData(&now);
      const auto is_same = [&](const rocksdb::LiveFileMetaData& other) { return other.name == table.name; };
      if (std::any_of(now.begin(), now.end(), is_same)) {
        const std::string text = status.ToString();
        const bool damaged = status.IsCorruption() || text.find(std::strerror(EIO)) != std::string::npos;
        return Error{damaged ? ErrorCode::kCorrupt : ErrorCode::kIo,
                     fmt::format("{}{}: {}", table.db_path, table.name, text)};
      }
    }
    if (!next(ByteCount{table.size})) return {};
  }
  return {};
}

}  // namespace weightfs
