// SPDX-License-Identifier: Apache-2.0
// The tensor store: a POSIX-like interface over the catalog, the devices and the write protocol. Independent of FUSE.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "engine/block_device.h"
#include "meta/kv_store.h"
#include "store/file/file_io.h"
#include "store/names/namespace.h"
#include "store/scrub/scrub_state.h"
#include "store/types.h"
#include "store/wal/log_writer.h"

namespace weightfs {

// The minimum of StoreOptions::memory. With it every buffer pool is large enough that no thread waits forever for a
// buffer.
inline constexpr ByteCount kLeastMemory{112 * kMiB};

struct StoreOptions {
  bool read_only = false;
  std::chrono::milliseconds commit_interval{5000};  // maximum data loss after a crash
  std::chrono::milliseconds close_delay{1000};      // maximum time from a close to the start of its commit
  // Maximum wait of a request for space that reads in progress hold.
  std::chrono::milliseconds space_wait{2000};
  bool sync_on_close = false;
  ByteCount memory{384 * kMiB};  // size of all I/O buffers together, at least kLeastMemory
  ByteCount hot_memory{0};       // maximum memory of hot files; 0: none
  bool verify = true;            // verify checksums on read; false for measurements only
  size_t resident_inodes = 16384;
  // The bytes of each device that belong to the store, from its superblock; empty: all of them. A device may have
  // grown.
  std::vector<ByteCount> device_sizes = {};
  // The log on the devices. The catalog has every entry of it. nullopt: a catalog in memory, without a log (tests).
  std::optional<wal::WriterOptions> log = {};
  ScrubOptions scrub = {};
};

class Scrubber;

// Counters since Open, and gauges. Units are bytes unless the name says otherwise.
struct StoreStatistics {
  uint64_t read_bytes = 0, written_bytes = 0;                // requested by callers and by lease holders
  uint64_t device_read_bytes = 0, device_written_bytes = 0;  // whole blocks, leases and scrubs included
  uint64_t leased_read_bytes = 0, leased_written_bytes = 0;  // whole blocks of read leases; of committed writes
  uint64_t commits = 0, flushes = 0, checksum_errors = 0;
  uint64_t buffer_capacity = 0, buffer_in_use = 0, dirty_bytes = 0;  // dirty: in staging buffers, without adopted ones
  uint64_t resident_inodes = 0;
  uint64_t device_requests = 0;  // in flight
  uint64_t pinned_bytes = 0, granted_bytes = 0;  // by read leases; by write leases
  wal::LogStatistics log;
  bool read_only = false;
};

// In bytes unless the name says otherwise; the last three since Open.
struct HotStatistics {
  uint64_t limit = 0, used = 0, mapped = 0, loaded = 0, evictions = 0;
  bool on_tmpfs = false;  // SharedPages::on_tmpfs
};

// Thread-safe. An asynchronous call completes on a completion or committer thread, or before the call returns. Its
// callback must not block on the store.
class Store {
 public:
  // Opens a store on the catalog and the devices (in index order): recovers orphans and free space, and starts the
  // committer. A damaged or overlapping extent record makes the store read-only and is logged. Returns kCorrupt when
  // the store cannot be served at all.
  static Result<std::unique_ptr<Store>> Open(std::unique_ptr<KvStore> catalog,
                                             std::vector<std::unique_ptr<BlockDevice>> devices,
                                             const StoreOptions& options);
  // Commits everything and stops. Call Close first to get its error.
  ~Store();

  // Makes everything durable that SyncAll does, and stops. Returns the first error, also of an earlier write that no
  // call has returned. Later calls return kShutdown.
  Result<void> Close();
  // After Close: the version that the index has stored, which is the last one; 0 if it could not.
  wal::Version StoredVersion() const;

  // Names and attributes, and the data of files.
  Namespace& names();
  FileIo& files();
  // Namespace::PublishTree and UnpublishTree, durable on return.
  Result<PublicationRecord> PublishTree(Namespace::PublishCall* call);
  Result<void> UnpublishTree(InodeId directory, const Credentials& who, std::string* failed);
  InodeTable& inodes();
  // Applies all members of `change`; truncates first when it has a size.
  Result<Attributes> SetAttributes(InodeId ino, const AttributeChange& change);

  // True if OpenFile may read many records of the catalog: the mapping of a large file that is not in memory.
  bool OpensSlowly(InodeId ino);
  // True if a truncation by OpenFile waits for a commit (FileIo::IsOverdue).
  bool WaitsToTruncate(InodeId ino);
  // True if a write of so many bytes perhaps waits for space: for a checkpoint, or for the commit of other files.
  bool WaitsToWrite(ByteCount size) const;
  // Reads the mapping of a large file, so that no read or write has to. `truncate` implements O_TRUNC: the file is
  // emptied in memory. If the caller writes, its old content stays committed until the new content is committed (when
  // no writer has it open any more, at fsync, or after 30 s). `writes`: the caller may write; kPermission for an
  // immutable file, also with `truncate`.
  Result<InodePtr> OpenFile(InodeId ino, bool truncate, bool writes = false);
  // Called for each close(2) of a descriptor. Reports an error of earlier writes; with sync_on_close it also waits for
  // a commit. A process that exits or execs closes its copies of a descriptor without looking at the error. Therefore
  // the error stays pending until the CloseFile that gets `reported_failure`. The caller initializes that to 0 and
  // keeps it alive until then.
  void Flush(const InodePtr& inode, std::atomic<uint64_t>* reported_failure, Done done);
  // Ends one OpenFile with the same `writes`. The file is committed soon.
  void CloseFile(const InodePtr& inode, uint64_t reported_failure = 0, bool writes = false);

  // fsync(2): makes the data, the attributes and the name durable, and every namespace change before them. SyncAll
  // makes everything durable, except the content of files that are being replaced (CommitQueue::CommitAll). With
  // `kept`, an error of the file's earlier writes stays pending for the next caller.
  void Sync(const InodePtr& inode, Done done, bool kept = false);
  void SyncAll(Done done);
  Result<void> Sync(const InodePtr& inode);
  Result<void> SyncAll();

  // True if a rename or a link of the file may wait long for its data.
  bool CommitsSlowly(InodeId ino);

  // Makes the blocks of the reservation files of the directory (Namespace::CreateMany, which defines the result and
  // `failed`). First flushes the devices, so that the content is on stable storage.
  Result<std::vector<InodeId>> CreateMany(const InodePtr& directory, const Credentials& who, const NewFileMode& mode,
                                          std::span<const DirectFile> files, std::span<const uint32_t> checksums,
                                          BlockReservation grant, size_t* failed);
  // Opens a new descriptor of a device for a lease holder (FileDevice::OpenAgain). A writer has an id of its own,
  // passed here as `writer` and noted in its reservation (BlockReservation::BeginWrites).
  Result<UniqueFd> OpenDevice(DeviceId device, bool write, uint64_t writer = 0);
  // Frees the blocks of ended reservations whose writers are gone. Returns true when some writers remain.
  bool CollectOrphanedReservations();
  size_t device_count() const;

  // `notify` runs for each file that a failed write has reverted to its last commit. It runs on a thread of the store
  // and must not block. After a call with null returns, no notification is running, and none follows.
  void OnReverted(std::function<void(InodeId)> notify);

  SpaceStatistics Space() const;
  // Bytes by which the catalog may grow on its filesystem; nullopt: it does not change.
  std::optional<uint64_t> CatalogFreeSpace() const;
  std::chrono::nanoseconds LogAge() const;  // LogWriter::age; 0 without a writer
  StoreStatistics statistics() const;
  HotStatistics Hot() const;  // all 0 without hot files
  // Lets reads of files that nobody can change fill their hot memory, for passthrough (FileIo::Pass). False at first.
  void UsePassthrough(bool use);
  // Gives a part of their memory back to the machine.
  void ShrinkHot();
  void CountHot();  // HotFiles::Count
  // The scrub in progress, and the last complete one, also if this mount starts none.
  ScrubReport Scrub() const;
  // Reads the tables of the catalog past all caches (KvStore::Verify, which defines the result and `next`).
  Result<void> VerifyCatalog(const std::function<bool(ByteCount)>& next);
  // For tests that take the steps of scrubs themselves (ScrubOptions::own_thread).
  Scrubber& scrubber();
  bool read_only() const;
  bool verifies() const;  // StoreOptions::verify

 private:
  struct Parts;
  explicit Store(std::unique_ptr<Parts> parts);
  bool IsDurable(const InodePtr& inode) const;
  static Result<void> StartLog(Parts& parts);
  static Result<void> StartScrubs(Parts& parts);
  std::unique_ptr<Parts> p_;
};

}  // namespace weightfs
