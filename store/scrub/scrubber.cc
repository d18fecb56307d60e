// SPDX-License-Identifier: Apache-2.0
#include "store/scrub/scrubber.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/printable.h"
#include "common/start_thread.h"
#include "common/utc_time.h"
#include "meta/keys.h"
#include "meta/records.h"
#include "store/scrub/replica_check.h"

namespace weightfs {
namespace {

constexpr std::chrono::seconds kSaveInterval{60};
constexpr uint64_t kMostLines = 100;  // logged by one scrub
constexpr uint64_t kMostPaths = 32;   // each is a scan of all names
constexpr int kDeepest = 2048;        // directories of the longest path

int64_t Nanoseconds(std::chrono::milliseconds duration) { return std::chrono::nanoseconds(duration).count(); }

// Reads of this thread give way to all others, where the block layer has priorities. Failure is harmless.
void LowerPriority() {
  // Constants of linux/ioprio.h, which some kernels' versions of it keep from C++: they name a parameter `class`.
  constexpr int kThread = 1;      // IOPRIO_WHO_PROCESS, which means one thread
  constexpr int kIdle = 3 << 13;  // IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0)
  static_cast<void>(syscall(SYS_ioprio_set, kThread, 0, kIdle));
}

std::string_view Describe(DamagedRun::Problem problem) {
  switch (problem) {
    case DamagedRun::Problem::kMismatch: return "differ from their checksums";
    case DamagedRun::Problem::kUnreadable: return "cannot be read";
    case DamagedRun::Problem::kNoChecksum: return "have no checksums";
  }
  return "";
}

struct Name {
  InodeId parent;
  std::string name;
};

// The first name of the inode in a part of the catalog's entries.
std::optional<Name> FindName(KvStore& catalog, const std::string& prefix, InodeId ino,
                             const std::function<bool()>& stop) {
  const auto entries = catalog.NewIterator(prefix);
  for (uint64_t count = 1; entries->Valid(); entries->Next(), ++count) {
    if (count % 1024 == 0 && stop()) break;
    const auto entry = EntryRecord::Decode(entries->value());
    if (!entry || entry->ino != ino) continue;
    const auto key = keys::ParseNamed(entries->key());
    if (key) return Name{key->ino, std::string(key->name)};
  }
  return std::nullopt;
}

}  // namespace

Result<std::unique_ptr<Scrubber>> Scrubber::Create(Services services, const ScrubOptions& options) {
  std::unique_ptr<Scrubber> scrubber(new Scrubber(std::move(services), options));
  // A state that cannot be read is replaced: the scrub begins anew.
  const auto bytes = scrubber->services_.catalog.Get(keys::Store(kScrubFact));
  if (bytes && *bytes) {
    if (auto state = DecodeScrubState(**bytes)) {
      MutexLock lock(scrubber->mutex_);
      scrubber->state_ = std::move(*state);
    }
  }
  if (options.period.count() == 0 || !options.own_thread) return scrubber;
  ASSIGN_OR_RETURN(scrubber->thread_, StartThread("weightfs-scrub", [raw = scrubber.get()] { raw->Run(); }));
  return scrubber;
}

Scrubber::~Scrubber() { Stop(); }

void Scrubber::Stop() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopping_, true)) return;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  MutexLock lock(mutex_);
  const bool running = state_.running();
  lock.Unlock();
  if (running && options_.period.count() > 0) Save();
}

bool Scrubber::stopping() const {
  MutexLock lock(mutex_);
  return stopping_;
}

ScrubReport Scrubber::report() const {
  MutexLock lock(mutex_);
  ScrubReport report{.period = options_.period, .state = state_};
  if (options_.period.count() == 0) return report;
  if (!state_.running()) {
    report.next_ns = NextLocked();
    return report;
  }
  report.rate = rate_;
  const uint64_t left = state_.total_bytes - std::min(state_.total_bytes, state_.checked_bytes);
  if (rate_.value > 0) {
    report.remaining_ns = static_cast<int64_t>(static_cast<double>(left) / static_cast<double>(rate_.value) * 1e9);
  }
  return report;
}

// A scrub whose start lies in the future was noted under another clock.
int64_t Scrubber::NextLocked() const {
  const int64_t now = UtcNowNs();
  if (state_.last_started_ns == 0 || state_.last_started_ns > now) return now;
  return std::max(now, state_.last_started_ns + Nanoseconds(options_.period));
}

void Scrubber::Run() {
  LowerPriority();
  {
    // Files of earlier scrubs may have been renamed since.
    MutexLock lock(mutex_);
    auto last = state_.last_found.listed, found = state_.found.listed;
    lock.Unlock();
    FindPaths(std::move(last), false);
    FindPaths(std::move(found), true);
  }
  while (WaitUntilDue()) {
    while (Step()) {
    }
  }
}

bool Scrubber::WaitUntilDue() {
  MutexLock lock(mutex_);
  while (!stopping_ && !state_.running()) {
    const int64_t left = NextLocked() - UtcNowNs();
    if (left <= 0) break;
    // Not longer than an hour, because the clock may be set meanwhile.
    wake_.wait_for(lock.native(),
                   std::min(std::chrono::nanoseconds(left), std::chrono::nanoseconds(std::chrono::hours(1))));
  }
  return !stopping_;
}

bool Scrubber::Pace(ByteCount size) {
  MutexLock lock(mutex_);
  state_.checked_bytes += size.value;
  if (!options_.own_thread) return !stopping_;
  const auto next = pace_->NextRead(size, services_.foreground_bytes(), Clock::now());
  rate_ = pace_->rate();
  while (!stopping_ && Clock::now() < next) wake_.wait_until(lock.native(), next);
  return !stopping_;
}

bool Scrubber::Step() {
  if (stopping()) return false;
  ScrubPhase phase;
  {
    MutexLock lock(mutex_);
    phase = state_.phase;
  }
  if (phase == ScrubPhase::kIdle || !pace_) Begin();
  switch (phase) {
    case ScrubPhase::kIdle: return true;
    case ScrubPhase::kCatalog: return CheckCatalog();
    case ScrubPhase::kReplica: return CheckReplica();
    case ScrubPhase::kData: return CheckData();
  }
  return false;
}

// Begins a scrub, or continues the one of an earlier mount.
void Scrubber::Begin() {
  const SpaceStatistics space = services_.space.Statistics();
  const uint64_t used = ToBytes(space.total - std::min(space.total, space.free)).value;
  uint64_t catalog = 0;
  for (const char kind : {keys::kInode, keys::kEntry, keys::kExtent, keys::kChecksums, keys::kAttribute}) {
    catalog += services_.catalog.EstimateSize(keys::KindPrefix(kind));
  }
  reported_ = found_paths_ = 0;
  damaged_file_ = {};
  bool resumed;
  {
    MutexLock lock(mutex_);
    resumed = state_.running();
    if (!resumed) {
      state_.phase = ScrubPhase::kCatalog;
      state_.started_ns = UtcNowNs();
      state_.position = {};
      state_.found = {};
    } else if (!state_.found.listed.empty() && state_.found.files == state_.found.listed.size()) {
      damaged_file_ = state_.found.listed.back().ino;
    }
    if (state_.phase != ScrubPhase::kData) state_.checked_bytes = 0;
    state_.total_bytes = used + catalog;
    const ScrubRates rates = ChooseScrubRates(ByteCount{state_.total_bytes}, options_.period, options_.rate);
    pace_.emplace(rates);
    rate_ = rates.quiet;
  }
  spdlog::info("scrub: {} at up to {} MiB/s", resumed ? "continues" : "begins", pace_->rate().value / kMiB);
  Save();
}

void Scrubber::EnterPhase(ScrubPhase phase) {
  MutexLock lock(mutex_);
  state_.phase = phase;
}

bool Scrubber::CheckCatalog() {
  const auto verified = services_.catalog.Verify([this](ByteCount size) { return Pace(size); });
  if (stopping()) return false;
  if (!verified && verified.error().code != ErrorCode::kCorrupt) {
    spdlog::warn("scrub: the tables of the catalog cannot be checked: {}", ToString(verified.error()));
  } else if (!verified) {
    ReportCatalog(ToString(verified.error()));
  }
  EnterPhase(ScrubPhase::kReplica);
  return true;
}

bool Scrubber::CheckReplica() {
  if (services_.replica_of) {
    const auto checked = wal::CheckReplica(services_.device_list, services_.replica_of, services_.replica_expected,
                                               [this](ByteCount size) {
                                                 device_bytes_ += size.value;
                                                 return Pace(size);
                                               });
    if (stopping()) return false;
    if (!checked) spdlog::warn("scrub: the log of the catalog cannot be checked: {}", ToString(checked.error()));
    if (checked && checked->damage) {
      spdlog::error(
          "scrub: the log of the catalog on the devices is damaged: {}; the index and all files are not affected; {}",
          *checked->damage,
          services_.renew_replica ? "a new checkpoint is being written" : "mount the store for writing, with scrub=");
      if (services_.renew_replica) services_.renew_replica();
      MutexLock lock(mutex_);
      state_.found.replica = true;
    }
  }
  EnterPhase(ScrubPhase::kData);
  return true;
}

bool Scrubber::CheckData() {
  if (data_ == nullptr) {
    auto created = DataScrub::Create(services_.catalog, services_.devices, services_.space);
    if (!created) {
      spdlog::warn("scrub: {}; trying again with the next one", ToString(created.error()));
      Finish();
      return false;
    }
    data_ = std::move(*created);
  }
  ScrubPosition position;
  {
    MutexLock lock(mutex_);
    position = state_.position;
  }
  const auto step = data_->Next(position);
  if (!step) {
    ReportCatalog(ToString(step.error()));
    Finish();
    return false;
  }
  device_bytes_ += step->read.value;
  if (step->record) ReportCatalog(fmt::format("{} is damaged", *step->record));
  for (const DamagedRun& run : step->damaged) ReportRun(run);
  if (step->end) {
    Finish();
    return false;
  }
  {
    MutexLock lock(mutex_);
    state_.position = step->next;
  }
  if (Clock::now() - saved_at_ >= kSaveInterval) Save();
  return Pace(step->read);
}

void Scrubber::Finish() {
  data_.reset();
  pace_.reset();
  ScrubState done;
  {
    MutexLock lock(mutex_);
    state_.phase = ScrubPhase::kIdle;
    state_.last_started_ns = state_.started_ns;
    state_.last_completed_ns = UtcNowNs();
    state_.last_found = std::exchange(state_.found, {});
    done = state_;
  }
  const double seconds = static_cast<double>(done.last_completed_ns - done.last_started_ns) / 1e9;
  spdlog::info("scrub: complete after {:.0f} s: {} MiB were checked, {} blocks of {} files are damaged{}{}", seconds,
               done.checked_bytes / kMiB, done.last_found.blocks, done.last_found.files,
               done.last_found.catalog ? ", the index of the catalog is damaged" : "",
               done.last_found.replica ? ", the log of the catalog was damaged" : "");
  Save();
}

// Once a scrub, because the damage of one table shows in many places.
void Scrubber::ReportCatalog(const std::string& what) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(state_.found.catalog, true)) return;
  }
  spdlog::error(
      "scrub: the index of the catalog is damaged: {}; unmount the store and mount it again, which rebuilds the index; "
      "the data of the files is not affected",
      what);
}

// Adds the run to the findings, and logs it.
void Scrubber::ReportRun(const DamagedRun& run) {
  std::optional<size_t> listed;
  bool first = false;
  {
    MutexLock lock(mutex_);
    ScrubFindings& found = state_.found;
    found.blocks += run.count.value;
    first = damaged_file_ != run.ino;
    if (first) {
      ++found.files;
      if (found.listed.size() < ScrubFindings::kListed) {
        found.listed.push_back({.ino = run.ino, .offset = ToBytes(run.first).value, .blocks = 0, .path = {}});
      }
    }
    if (!found.listed.empty() && found.listed.back().ino == run.ino) {
      found.listed.back().blocks += run.count.value;
      listed = found.listed.size() - 1;
    }
  }
  damaged_file_ = run.ino;
  std::string path;
  if (first && listed && found_paths_++ < kMostPaths) {
    path = FindPath(services_.catalog, run.ino, [this] { return stopping(); });
    MutexLock lock(mutex_);
    state_.found.listed[*listed].path = path;
  } else if (listed) {
    MutexLock lock(mutex_);
    path = state_.found.listed[*listed].path;
  }
  if (reported_ >= kMostLines) return;
  const uint64_t begin = ToBytes(run.first).value;
  const std::string name = path.empty() ? fmt::format("inode {}", run.ino.value)
                                        : fmt::format("{} (inode {})", Printable("/" + path), run.ino.value);
  spdlog::error(
      "scrub: {}: bytes {} to {} {} (device {}: {}, byte {}); reading them fails with EIO, and all other data "
      "can be read; restore the file from a backup, then check it with 'weightfs verify'",
      name, begin, begin + ToBytes(run.count).value - 1, Describe(run.problem), run.device.value,
      services_.devices[run.device].path(), ToBytes(run.start).value);
  if (++reported_ == kMostLines) spdlog::error("scrub: further damaged blocks are counted and not listed");
}

// Fills in the paths of files that were found before this mount.
void Scrubber::FindPaths(std::vector<DamagedFile> files, bool running) {
  for (size_t index = 0; index < files.size() && !stopping(); ++index) {
    std::string path = FindPath(services_.catalog, files[index].ino, [this] { return stopping(); });
    MutexLock lock(mutex_);
    auto& listed = running ? state_.found.listed : state_.last_found.listed;
    if (index < listed.size() && listed[index].ino == files[index].ino) listed[index].path = std::move(path);
  }
}

// Not synced: after a crash of the machine, the scrub repeats what it has done since the last commit of the store.
void Scrubber::Save() {
  saved_at_ = Clock::now();
  if (services_.read_only || save_failed_ || services_.catalog.failed()) return;
  KvBatch batch;
  {
    MutexLock lock(mutex_);
    batch.Put(keys::Store(kScrubFact), EncodeScrubState(state_));
  }
  // A catalog without space keeps what it has; the next save tries again.
  if (!services_.catalog.CheckSpace(KvChange::kUpdate)) return;
  const auto saved = services_.catalog.Write(std::move(batch));
  save_failed_ = !saved.has_value();
  if (save_failed_) spdlog::warn("scrub: its state cannot be kept: {}", ToString(saved.error()));
}

std::string FindPath(KvStore& catalog, InodeId ino, const std::function<bool()>& stop) {
  auto name = FindName(catalog, keys::KindPrefix(keys::kEntry), ino, stop);
  if (!name) return {};
  std::string path = name->name;
  for (int depth = 0; name->parent != kRootInode; ++depth) {
    const InodeId directory = name->parent;
    const auto bytes = catalog.Get(keys::Inode(directory));
    if (depth == kDeepest || !bytes || !*bytes) return {};
    const auto record = InodeRecord::Decode(**bytes);
    if (!record) return {};
    name = FindName(catalog, keys::EntryPrefix(InodeId{record->parent}), directory, stop);
    if (!name) return {};
    path = name->name + "/" + path;
  }
  return path;
}

}  // namespace weightfs
