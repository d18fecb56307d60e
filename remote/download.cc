// SPDX-License-Identifier: Apache-2.0
#include "remote/download.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <list>
#include <thread>

#include "common/checksum.h"
#include "common/mutex.h"
#include "common/start_thread.h"
#include "remote/pages.h"

namespace weightfs::remote {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr size_t kVerifiers = 4;  // threads beside those that wait for the service
constexpr uint64_t kSmallestPart = 1 << 20;
constexpr milliseconds kPoll{100};
// Several parts are under way, and files are downloaded in the order of their checksums.
constexpr size_t kKeptSlices = 4;
// Of a slice, the first one included.
constexpr int kFetches = 4;

// The checksums of a version, fetched when they are needed: those of a version of 1 TiB have 1 GiB.
// Keeps the slices that were used last, and verifies each with the SHA-256 in the manifest. Thread-safe. The series,
// the manifest and the bucket must outlive it.
class ChecksumSlices {
 public:
  ChecksumSlices(const Series& series, const Manifest& manifest, const s3::Bucket& bucket)
      : series_(series), manifest_(manifest), bucket_(bucket) {}

  // Compares blocks with their checksums; `first` is the number of the first block in the version. Returns the index in
  // `blocks` of the first block that differs, or none. Fetches missing slices. Errors are one full line: those of
  // s3::Client, and kCorrupt for a slice that differs from its hash also when it is fetched again.
  Result<std::optional<size_t>> FindDamage(uint64_t first, std::span<const std::byte> blocks) EXCLUDES(mutex_) {
    std::vector<uint32_t> sums(blocks.size() / kBlockSize);
    Crc32cBlocks(blocks, sums.data());
    for (size_t at = 0; at < sums.size();) {
      const uint64_t block = first + at;
      ASSIGN_OR_RETURN(const auto slice, Get(block / kSliceBlocks));
      const size_t in_slice = block % kSliceBlocks;
      if (in_slice >= slice->size()) return Error{ErrorCode::kInvalid, "the block is not in the version"};
      const size_t count = std::min(sums.size() - at, slice->size() - in_slice);
      const auto begin = sums.begin() + static_cast<ptrdiff_t>(at);
      const auto [differs, _] = std::mismatch(begin, begin + static_cast<ptrdiff_t>(count),
                                              slice->begin() + static_cast<ptrdiff_t>(in_slice));
      at = static_cast<size_t>(differs - sums.begin());
      if (differs != begin + static_cast<ptrdiff_t>(count)) return at;
    }
    return std::optional<size_t>();
  }

 private:
  using Slice = std::vector<uint32_t>;
  struct Entry {
    size_t index = 0;
    std::shared_ptr<const Slice> slice = {};  // null while a thread fetches it
  };

  Result<std::shared_ptr<const Slice>> Get(size_t index) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      for (;;) {
        const auto found = FindLocked(index);
        if (found == entries_.end()) break;
        if (found->slice != nullptr) {
          entries_.splice(entries_.begin(), entries_, found);
          return found->slice;
        }
        fetched_.wait(lock.native());
      }
      entries_.push_front({index});
      EvictLocked();
    }
    auto slice = Fetch(index);
    MutexLock lock(mutex_);
    const auto entry = FindLocked(index);
    if (slice) {
      entry->slice = *slice;
    } else {
      entries_.erase(entry);
    }
    fetched_.notify_all();
    return slice;
  }

  std::list<Entry>::iterator FindLocked(size_t index) REQUIRES(mutex_) {
    return std::ranges::find_if(entries_, [&](const Entry& entry) { return entry.index == index; });
  }

  void EvictLocked() REQUIRES(mutex_) {
    while (entries_.size() > kKeptSlices) {
      const auto idle =
          std::find_if(entries_.rbegin(), entries_.rend(), [](const Entry& entry) { return entry.slice != nullptr; });
      if (idle == entries_.rend()) return;
      entries_.erase(std::prev(idle.base()));
    }
  }

  Result<std::shared_ptr<const Slice>> Fetch(size_t index) const {
    const std::string key = series_.SliceKey(manifest_.version, index);
    const uint64_t blocks = std::min(kSliceBlocks, manifest_.blocks() - index * kSliceBlocks);
    for (int fetch = 1; fetch <= kFetches; ++fetch) {
      const auto found = bucket_.GetObject(key, kSliceBytes);
      if (!found && found.error().code != ErrorCode::kTooLarge) {
        return Error{found.error().code, found.error().what, key};
      }
      if (!found || found->body.size() != blocks * kSumBytes) continue;
      if (Sha256Of(found->body) != manifest_.slices.at(index)) continue;
      auto slice = std::make_shared<Slice>(blocks);
      std::memcpy(slice->data(), found->body.data(), found->body.size());
      return std::shared_ptr<const Slice>(std::move(slice));
    }
    return Error{
        ErrorCode::kCorrupt,
        fmt::format("{}: these checksums differ from their SHA-256 in the manifest in each of {} downloads, from "
                    "offset 0: use another version, or push this one again",
                    s3::ToString({bucket_.name(), key}), kFetches),
        key, 0};
  }

  const Series& series_;
  const Manifest& manifest_;
  const s3::Bucket& bucket_;
  Mutex mutex_;
  std::condition_variable fetched_;
  std::list<Entry> entries_ GUARDED_BY(mutex_);  // the last used first
};

struct Part {
  size_t job = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
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

// One call of Download. Each thread fetches one part after the other, verifies it and calls the sink. The calling
// thread reports progress and waits.
class Engine {
 public:
  Engine(const Series& series, const Manifest& manifest, std::span<const DownloadJob> jobs, const DownloadSink& sink,
         const client::Progress& progress, uint64_t part_size)
      : series_(series),
        manifest_(manifest),
        jobs_(jobs),
        sink_(sink),
        progress_(progress),
        bucket_(series.bucket(), [this] { return stopped_.load(); }),
        sums_(series, manifest, bucket_),
        cutter_(jobs, part_size),
        etags_(jobs.size()) {
    for (const DownloadJob& job : jobs) {
      for (const auto& range : job.ranges) total_ += range.size;
    }
  }

  // `memory` has the part of each thread.
  Result<DownloadReport> Run(std::byte* memory, size_t threads, uint64_t part_size) {
    std::vector<std::thread> workers;
    for (size_t index = 0; index < threads; ++index) {
      auto worker = StartThread("wfs-download", [this, part = memory + index * part_size] { Work(part); });
      if (!worker && workers.empty()) return worker.error();
      if (worker) workers.push_back(std::move(*worker));
    }
    for (bool ended = false; !ended; CallBack()) {
      MutexLock lock(mutex_);
      if (ended_ < workers.size()) changed_.wait_for(lock.native(), kPoll);
      ended = ended_ == workers.size();
    }
    for (std::thread& worker : workers) worker.join();
    MutexLock lock(mutex_);
    if (error_) return *error_;
    lock.Unlock();
    if (progress_) progress_(total_, total_);
    return report_;
  }

 private:
  void Work(std::byte* memory) EXCLUDES(mutex_) {
    while (const auto part = NextPart()) {
      auto fetched = Fetch(*part, memory);
      MutexLock lock(mutex_);
      if (fetched) {
        report_.bytes += part->size;
      } else {
        FailLocked(std::move(fetched).error());
      }
    }
    MutexLock lock(mutex_);
    ++ended_;
    changed_.notify_one();
  }

  std::optional<Part> NextPart() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return stopped_ ? std::nullopt : cutter_.Next();
  }

  void FailLocked(Error error) REQUIRES(mutex_) {
    // Later errors are consequences of the first one.
    if (!error_) error_ = std::move(error);
    stopped_ = true;
  }

  // Fetches a part until it matches its checksums, and passes it on.
  Result<void> Fetch(const Part& part, std::byte* memory) EXCLUDES(mutex_) {
    const uint64_t first_block = jobs_[part.job].file->first_block + part.offset / kBlockSize;
    const uint64_t filled = RoundUp(part.size, kBlockSize);
    for (ReadAttempts attempts;;) {
      auto info = bucket_.GetRange({KeyOf(part), part.offset, EtagOf(part)}, {memory, part.size});
      if (!info) return Explain(part, std::move(info).error());
      RETURN_IF_ERROR(CheckObject(part, *info));
      std::memset(memory + part.size, 0, filled - part.size);
      ASSIGN_OR_RETURN(const auto damaged, sums_.FindDamage(first_block, {memory, filled}));
      if (!damaged) return sink_({part.job, part.offset, {memory, part.size}});
      const uint64_t offset = part.offset + *damaged * kBlockSize;
      if (!attempts.ReadAgain()) {
        return Error{
            ErrorCode::kCorrupt,
            fmt::format("{}: the block at offset {} differs from its checksum in each of {} downloads: the object "
                        "is damaged; use another version, or push this one again with --verify",
                        UrlOf(part), offset, ReadAttempts::kMost),
            KeyOf(part), offset};
      }
      MutexLock lock(mutex_);
      ++report_.fetched_again;
    }
  }

  std::string EtagOf(const Part& part) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return etags_[part.job];
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
    if (!series_.bucket().is_interrupted()) return;
    MutexLock lock(mutex_);
    FailLocked({ErrorCode::kCancelled, series_.url(manifest_.version) + ": the download was interrupted"});
  }

  std::string KeyOf(const Part& part) const { return series_.Key(manifest_.version, jobs_[part.job].file->path); }
  std::string UrlOf(const Part& part) const { return s3::ToString({series_.bucket().name(), KeyOf(part)}); }

  const Series& series_;
  const Manifest& manifest_;
  const std::span<const DownloadJob> jobs_;
  const DownloadSink& sink_;
  const client::Progress& progress_;
  std::atomic<bool> stopped_ = false;  // no part is fetched or accepted any more
  const s3::Bucket bucket_;
  ChecksumSlices sums_;
  uint64_t total_ = 0;
  Clock::time_point called_back_ = {};

  Mutex mutex_;
  std::condition_variable changed_;
  PartCutter cutter_ GUARDED_BY(mutex_);
  size_t ended_ GUARDED_BY(mutex_) = 0;                // threads
  std::vector<std::string> etags_ GUARDED_BY(mutex_);  // of the objects; empty: unknown
  DownloadReport report_;                              // guarded by the mutex until the threads have ended
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
  const size_t connections = series.bucket().client().settings().connections;
  const uint64_t share = RoundDown(kTransferMemory / connections, kSmallestPart);
  const uint64_t part_size = std::clamp(share, kSmallestPart, kDownloadPart);
  size_t parts = 0;
  for (const DownloadJob& job : jobs) {
    for (const auto& range : job.ranges) parts += (range.size + part_size - 1) / part_size;
  }
  const size_t threads = std::min({connections + kVerifiers, kTransferMemory / part_size, parts});
  ASSIGN_OR_RETURN(const auto memory, AllocatePages(std::max<size_t>(threads, 1) * part_size));
  return Engine(series, manifest, jobs, sink, progress, part_size).Run(memory.get(), threads, part_size);
}

}  // namespace weightfs::remote
