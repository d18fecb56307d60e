// SPDX-License-Identifier: Apache-2.0
#include "remote/download.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "common/checksum.h"
#include "common/start_thread.h"
#include "remote/checksum_slices.h"
#include "remote/pages.h"

namespace weightfs::remote {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr unsigned kWorkers = 4;  // threads that verify parts and give them to the sink
constexpr uint64_t kSmallestPart = 1 << 20;
constexpr milliseconds kPoll{100};

struct Part {
  size_t job = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
  ReadAttempts attempts = {};
};

// A buffer, and the part for which it is used.
struct Slot {
  std::byte* memory = nullptr;
  Part part = {};
  bool in_flight = false;                            // guarded by the mutex of the engine
  s3::RequestId request = {};                        // used by the calling thread only
  std::optional<Result<s3::RangeInfo>> answer = {};  // written by the client, then read by a worker
};

// Cuts the ranges of the jobs into parts.
class PartCutter {
 public:
  PartCutter(std::span<const DownloadJob> jobs, uint64_t part_size) : jobs_(jobs), part_size_(part_size) {}
  std::optional<Part> Next() {
    while (job_ < jobs_.size() && range_ == jobs_[job_].ranges.size()) {
      ++job_;
      range_ = 0;
    }
    if (job_ == jobs_.size()) return std::nullopt;
    const client::ByteRange& range = jobs_[job_].ranges[range_];
    const Part part{job_, range.offset + done_, std::min(range.size - done_, part_size_)};
    done_ += part.size;
    if (done_ == range.size) {
      ++range_;
      done_ = 0;
    }
    return part;
  }

 private:
  const std::span<const DownloadJob> jobs_;
  const uint64_t part_size_;
  size_t job_ = 0, range_ = 0;
  uint64_t done_ = 0;  // of the range
};

// One call of Download. The calling thread starts requests, reports progress and waits. The client's thread passes
// answers to the workers, which verify them, call the sink and free the buffers.
class Engine {
 public:
  Engine(const Series& series, const Manifest& manifest, std::span<const DownloadJob> jobs, const DownloadSink& sink,
         const client::Progress& progress, std::shared_ptr<std::byte> memory, size_t slots, uint64_t part_size)
      : series_(series),
        manifest_(manifest),
        jobs_(jobs),
        sink_(sink),
        progress_(progress),
        memory_(std::move(memory)),
        slots_(slots),
        sums_(series, manifest, [this] { return stopped_.load(); }),
        cutter_(jobs, part_size),
        etags_(jobs.size()) {
    for (size_t index = 0; index < slots_.size(); ++index) {
      slots_[index].memory = memory_.get() + index * part_size;
      free_.push_back(&slots_[index]);
    }
    for (const DownloadJob& job : jobs) {
      for (const auto& range : job.ranges) total_ += range.size;
    }
  }

  Result<DownloadReport> Run() {
    Result<void> started = StartWorkers();
    if (!started) Fail(started.error());
    while (!stopped_) {
      StartRequests();
      if (!WaitForChange()) break;
      CallBack();
    }
    End();
    {
      MutexLock lock(mutex_);
      if (error_) return *error_;
    }
    if (progress_) progress_(total_, total_);
    return report_;
  }

 private:
  Result<void> StartWorkers() {
    for (unsigned count = 0; count < kWorkers; ++count) {
      auto worker = StartThread("wfs-download", [this] { Work(); });
      if (!worker && workers_.empty()) return worker.error();
      if (worker) workers_.push_back(std::move(*worker));
    }
    return {};
  }

  void Fail(Error error) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    // Later errors are consequences of the first one.
    if (!error_) error_ = std::move(error);
    stopped_ = true;
    changed_.notify_all();
    answered_.notify_all();
  }

  void StartRequests() EXCLUDES(mutex_) {
    for (;;) {
      Slot* slot = nullptr;
      s3::ObjectRange range;
      {
        MutexLock lock(mutex_);
        if (stopped_ || free_.empty() || in_flight_ >= series_.bucket().client().settings().connections) return;
        const auto part = NextPartLocked();
        if (!part) return;
        slot = free_.back();
        free_.pop_back();
        slot->part = *part;
        slot->in_flight = true;
        ++in_flight_;
        range = {KeyOf(*part), part->offset, etags_[part->job]};
      }
      slot->request = series_.bucket().StartGetRange(
          range, {slot->memory, slot->part.size},
          [this, slot](Result<s3::RangeInfo> answer) { Answered(slot, std::move(answer)); });
    }
  }

  std::optional<Part> NextPartLocked() REQUIRES(mutex_) {
    if (again_.empty()) {
      const auto part = cutter_.Next();
      all_cut_ = !part;
      return part;
    }
    const Part part = again_.front();
    again_.pop_front();
    return part;
  }

  void Answered(Slot* slot, Result<s3::RangeInfo> answer) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    slot->answer = std::move(answer);
    slot->in_flight = false;
    --in_flight_;
    queue_.push_back(slot);
    answered_.notify_one();
    changed_.notify_one();
  }

  // Returns false when all parts are done or one has failed.
  bool WaitForChange() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (all_cut_ && again_.empty() && free_.size() == slots_.size()) return false;
    if (!stopped_) changed_.wait_for(lock.native(), kPoll);
    return !stopped_;
  }

  // Ends everything that uses this object.
  void End() EXCLUDES(mutex_) {
    stopped_ = true;
    std::vector<s3::RequestId> requests;
    {
      MutexLock lock(mutex_);
      for (const Slot& slot : slots_) {
        if (slot.in_flight) requests.push_back(slot.request);
      }
    }
    for (const s3::RequestId request : requests) series_.bucket().client().Cancel(request);
    {
      MutexLock lock(mutex_);
      while (in_flight_ > 0) changed_.wait(lock.native());
      answered_.notify_all();
    }
    for (std::thread& worker : workers_) worker.join();
  }

  void Work() EXCLUDES(mutex_) {
    for (;;) {
      Slot* slot = nullptr;
      {
        MutexLock lock(mutex_);
        while (queue_.empty() && !stopped_) answered_.wait(lock.native());
        if (stopped_) return;
        slot = queue_.front();
        queue_.pop_front();
      }
      auto accepted = Accept(slot);
      if (!accepted) return Fail(std::move(accepted).error());
      MutexLock lock(mutex_);
      if (*accepted) {
        report_.bytes += slot->part.size;
      } else {
        again_.push_back(slot->part);
        ++report_.fetched_again;
      }
      free_.push_back(slot);
      changed_.notify_one();
    }
  }

  // Returns false if the part must be fetched again.
  Result<bool> Accept(Slot* slot) EXCLUDES(mutex_) {
    const Part& part = slot->part;
    const FileEntry& file = *jobs_[part.job].file;
    if (!*slot->answer) return Explain(part, std::move(*slot->answer).error());
    RETURN_IF_ERROR(CheckObject(part, **slot->answer));
    const uint64_t filled = RoundUp(part.size, kBlockSize);
    std::memset(slot->memory + part.size, 0, filled - part.size);
    ASSIGN_OR_RETURN(const auto damaged,
                     sums_.FindDamage(file.first_block + part.offset / kBlockSize, {slot->memory, filled}));
    if (damaged && slot->part.attempts.ReadAgain()) return false;
    if (damaged) {
      const uint64_t offset = part.offset + *damaged * kBlockSize;
      return Error{
          ErrorCode::kCorrupt,
          fmt::format("{}: the block at offset {} differs from its checksum in each of {} downloads: the object "
                      "is damaged; use another version, or push this one again with --verify",
                      UrlOf(part), offset, ReadAttempts::kMost),
          KeyOf(part), offset};
    }
    RETURN_IF_ERROR(sink_({part.job, part.offset, {slot->memory, part.size}}));
    return true;
  }

  Error Explain(const Part& part, Error error) const {
    error.path = KeyOf(part);
    if (error.code == ErrorCode::kNotFound) {
      error.what += " (the version was removed meanwhile, or is damaged: then push it again with --verify)";
    }
    if (error.code != ErrorCode::kRange) return error;
    error.what += "; it was replaced: use another version, or push this one again with --verify";
    return {ErrorCode::kCorrupt, std::move(error.what), std::move(error.path), part.offset};
  }

  // All parts must be of one state of the object.
  Result<void> CheckObject(const Part& part, const s3::RangeInfo& info) EXCLUDES(mutex_) {
    const FileEntry& file = *jobs_[part.job].file;
    if (info.object_size != file.size) {
      return Error{
          ErrorCode::kCorrupt,
          fmt::format("{}: the object has {} bytes instead of {}: it was replaced; use another version, or push "
                      "this one again with --verify",
                      UrlOf(part), info.object_size, file.size),
          KeyOf(part), std::min(info.object_size, file.size)};
    }
    MutexLock lock(mutex_);
    std::string& etag = etags_[part.job];
    if (etag.empty()) etag = info.etag;
    if (etag == info.etag || info.etag.empty()) return {};
    return MakeError(ErrorCode::kStale, "{}: the object was replaced during the download; try again", UrlOf(part));
  }

  // Calls the functions of the caller, ten times per second.
  void CallBack() EXCLUDES(mutex_) {
    const auto now = Clock::now();
    if (now - called_back_ < kPoll) return;
    called_back_ = now;
    uint64_t done = 0;
    {
      MutexLock lock(mutex_);
      done = report_.bytes;
    }
    if (progress_) progress_(done, total_);
    if (series_.bucket().is_interrupted()) {
      Fail({ErrorCode::kCancelled, series_.url(manifest_.version) + ": the download was interrupted"});
    }
  }

  std::string KeyOf(const Part& part) const { return series_.Key(manifest_.version, jobs_[part.job].file->path); }
  std::string UrlOf(const Part& part) const { return s3::ToString({series_.bucket().name(), KeyOf(part)}); }

  const Series& series_;
  const Manifest& manifest_;
  const std::span<const DownloadJob> jobs_;
  const DownloadSink& sink_;
  const client::Progress& progress_;
  const std::shared_ptr<std::byte> memory_;  // of all slots
  std::vector<Slot> slots_;
  std::atomic<bool> stopped_ = false;  // no part is started or accepted any more
  ChecksumSlices sums_;
  std::vector<std::thread> workers_;
  uint64_t total_ = 0;
  Clock::time_point called_back_ = {};

  Mutex mutex_;
  std::condition_variable changed_;   // for the calling thread
  std::condition_variable answered_;  // for the workers
  PartCutter cutter_ GUARDED_BY(mutex_);
  bool all_cut_ GUARDED_BY(mutex_) = false;
  std::vector<Slot*> free_ GUARDED_BY(mutex_);
  std::deque<Slot*> queue_ GUARDED_BY(mutex_);  // answered
  std::deque<Part> again_ GUARDED_BY(mutex_);
  std::vector<std::string> etags_ GUARDED_BY(mutex_);  // of the objects; empty: unknown
  unsigned in_flight_ GUARDED_BY(mutex_) = 0;
  DownloadReport report_;  // guarded by the mutex until the workers have ended
  std::optional<Error> error_ GUARDED_BY(mutex_);
};

Result<void> CheckJobs(std::span<const DownloadJob> jobs) {
  for (const DownloadJob& job : jobs) {
    uint64_t end = 0;
    for (const client::ByteRange& range : job.ranges) {
      const bool inside = range.offset >= end && range.offset <= job.file->size &&
                          range.size <= job.file->size - range.offset && range.size > 0;
      end = range.offset + range.size;
      if (inside && range.offset % kBlockSize == 0 && (end % kBlockSize == 0 || end == job.file->size)) continue;
      return MakeError(ErrorCode::kInvalid, "{}: ranges must consist of whole blocks", job.file->path);
    }
  }
  return {};
}

}  // namespace

Result<DownloadReport> Download(const Series& series, const Manifest& manifest, std::span<const DownloadJob> jobs,
                                const DownloadSink& sink, const client::Progress& progress) {
  RETURN_IF_ERROR(CheckJobs(jobs));
  // Many connections share the memory in smaller parts.
  const uint64_t share = RoundDown(kTransferMemory / series.bucket().client().settings().connections, kSmallestPart);
  const uint64_t part_size = std::clamp(share, kSmallestPart, kDownloadPart);
  const size_t slots = kTransferMemory / part_size;
  ASSIGN_OR_RETURN(auto memory, AllocatePages(slots * part_size));
  Engine engine(series, manifest, jobs, sink, progress, std::move(memory), slots, part_size);
  return engine.Run();
}

}  // namespace weightfs::remote
