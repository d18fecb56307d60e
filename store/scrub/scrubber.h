// SPDX-License-Identifier: Apache-2.0
// Reads everything that a store keeps once a period, beside its other work: the tables of the index, the log of
// the catalog, and the data of all files.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/mutex.h"
#include "common/result.h"
#include "common/units.h"
#include "engine/device_set.h"
#include "engine/superblock.h"
#include "meta/kv_store.h"
#include "store/scrub/data_scrub.h"
#include "store/scrub/scrub_state.h"
#include "store/space/space_manager.h"

namespace weightfs {

// Thread-safe, except Step. Damage is logged with the next step and kept in the state; nothing is changed. The state is
// written to the catalog when the scrub begins and ends, about once a minute, and by Stop. A crash repeats at most that
// minute.
class Scrubber {
 public:
  struct Services {
    KvStore& catalog;
    DeviceSet& devices;
    SpaceManager& space;
    std::vector<BlockDevice*> device_list;       // in index order, for the log
    std::function<uint64_t()> foreground_bytes;  // transferred by all others so far
    std::optional<Uuid> replica_of;              // the store whose devices have a log; nullopt: they have none
    std::function<bool()> replica_expected;      // whether it should be there now
    std::function<void()> renew_replica;         // writes a new one; empty: nobody can
    bool read_only = false;                      // keep the state in memory
  };

  // Reads the state. Starts a thread if the options ask for scrubs.
  static Result<std::unique_ptr<Scrubber>> Create(Services services, const ScrubOptions& options);
  ~Scrubber();

  // Ends the read in progress and the thread, and writes the state. Does not wait for a table of the catalog to end
  // that is larger than 64 MiB, because there is none. Later calls do nothing.
  void Stop() EXCLUDES(mutex_);

  ScrubReport report() const EXCLUDES(mutex_);
  uint64_t device_bytes() const { return device_bytes_; }  // read from the devices by this object

  // Takes the next step of the scrub in progress; begins one if there is none. Returns false when the scrub is complete
  // or stopped. Without a thread of our own only (ScrubOptions::own_thread), and from one thread.
  bool Step() EXCLUDES(mutex_);

 private:
  using Clock = std::chrono::steady_clock;

  Scrubber(Services services, const ScrubOptions& options) : services_(std::move(services)), options_(options) {}
  void Run();
  bool WaitUntilDue() EXCLUDES(mutex_);
  // Accounts for a read, and waits as the pace demands. Returns false when the scrub must stop.
  bool Pace(ByteCount size) EXCLUDES(mutex_);
  bool stopping() const EXCLUDES(mutex_);

  void Begin() EXCLUDES(mutex_);
  void Finish() EXCLUDES(mutex_);
  bool CheckCatalog();
  bool CheckReplica();
  bool CheckData();
  void EnterPhase(ScrubPhase phase) EXCLUDES(mutex_);
  void ReportCatalog(const std::string& what) EXCLUDES(mutex_);
  void ReportRun(const DamagedRun& run) EXCLUDES(mutex_);
  void FindPaths(std::vector<DamagedFile> files, bool running) EXCLUDES(mutex_);
  void Save() EXCLUDES(mutex_);
  int64_t NextLocked() const REQUIRES(mutex_);

  const Services services_;
  const ScrubOptions options_;

  // Of the thread that steps.
  std::unique_ptr<DataScrub> data_;
  std::optional<ScrubPace> pace_;
  Clock::time_point saved_at_{};
  InodeId damaged_file_;      // the file of the last damaged run
  uint64_t reported_ = 0;     // lines logged by this scrub
  uint64_t found_paths_ = 0;  // searched for by this scrub
  bool save_failed_ = false;

  std::atomic<uint64_t> device_bytes_{0};

  mutable Mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  ScrubState state_ GUARDED_BY(mutex_);
  ByteCount rate_ GUARDED_BY(mutex_);
  std::thread thread_;
};

// Returns a path of the inode from the root, without a leading slash; empty when it has none, or when the catalog
// cannot be read. Scans all names, because files do not record their directories; `stop` ends the scan early.
std::string FindPath(KvStore& catalog, InodeId ino, const std::function<bool()>& stop);

}  // namespace weightfs
