// SPDX-License-Identifier: Apache-2.0
// The room that the cases of the benchmark work in: places, memory, the big files; and how cases are written down.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/suite/file_work.h"
#include "bench/suite/place.h"
#include "bench/suite/scratch.h"
#include "bench/suite/suite.h"

namespace weightfs::bench {

// Takes the time and the costs from its making to Stop.
class Stopwatch {
 public:
  explicit Stopwatch(const Place& place);
  // `amount` in the row's unit; `bytes` moved.
  Sample Stop(uint64_t amount, uint64_t bytes) const;

 private:
  const Place& place_;
  std::optional<MountCounters> counters_;
  double daemon_cpu_, client_cpu_, begin_;
};

// One turn of a case.
struct Turn {
  bool warm_up = false;  // not counted; what is read is compared
  uint64_t seed = 0;     // another one for each case and round
};

// What is run in one piece, and gives one sample for each of `rows`.
struct Case {
  Way way = Way::kWeightfs;
  std::vector<std::string_view> rows;
  std::function<Result<std::vector<Sample>>(const Turn&)> run;
};

class Lab;

// Rows that are measured together: prepared once, their cases shuffled in each round.
struct Group {
  std::string_view name;
  std::function<Result<std::vector<Case>>(Lab&)> prepare;
  std::function<Result<void>(Lab&)> finish = {};
};

class Lab {
 public:
  static Result<std::unique_ptr<Lab>> Create(const SuiteOptions& options);
  Lab(const Lab&) = delete;
  Lab& operator=(const Lab&) = delete;

  const SuiteOptions& options() const { return options_; }
  const std::atomic<bool>* cancel() const { return options_.cancel; }
  uint64_t size() const { return options_.size; }
  Scratch& scratch() { return scratch_; }
  // Takes everything away; after it the lab is of no use.
  Result<void> Close();
  Place& weightfs() { return weightfs_; }
  Place& host() { return host_; }
  bool has_own_store() const { return options_.store.empty(); }
  const std::string& store() const { return store_; }
  const std::string& base() const { return base_; }  // the directory on the host that everything lies in
  bool in_memory() const { return host_.is_tmpfs() && pool_device_.empty(); }
  const Content& content() const { return content_; }
  // The same bytes in memory that begins 32 bytes into a page, as those of a Python object do.
  const Content& unaligned() const { return unaligned_; }
  static constexpr uint64_t kUnalignment = 32;
  // Memory to read into: `size()` bytes and a MiB, and never less than 128 MiB.
  std::byte* into() const { return sink_.data(); }

  // A second mount, of a store of its own, that checks no checksums. Null in a mount that was there before.
  Result<Place*> NoVerify();

  // The big file of a place, and the reference's, made when they are first asked for. Their paths.
  Result<std::string> BigFile(Place& place);
  Result<std::string> RawFile();
  // What the reference reads: that file, or where the pool is a block device, the big file's own blocks on it.
  Result<FileJob> RawRead(uint64_t call, const Turn& turn);
  // Why there is no reference for reads, or writes; empty where there is one.
  const std::string& no_raw_reads() const { return no_raw_reads_; }
  const std::string& no_raw_writes() const { return no_raw_writes_; }
  // The same of fio, which reads and writes the reference's file.
  std::string WhyNoFio() const;
  void ForgetRawFile() { raw_ready_ = false; }

  // A directory in memory, made when it is first asked for.
  Result<std::string> MemoryDirectory();
  Result<void> EmptyMemoryDirectory();

  // Reading or writing `size()` bytes, or what is given.
  FileJob Job(std::string path, uint64_t call, const Turn& turn) const;

  bool IsSelected(std::string_view row) const;
  void NotMeasured(std::string_view row, Way way, std::string why) {
    not_measured_[{std::string(row), way}] = std::move(why);
  }
  void Note(std::string_view row, std::string note) { notes_.emplace(std::string(row), std::move(note)); }
  // The progress of the run: phases of so many parts each, one after the other.
  static constexpr uint64_t kPartsOfRow = 100;  // in one round
  void PlanProgress(uint64_t parts) { parts_ = parts; }
  void StartPhase(uint64_t parts);
  // Shows the step under way; `done` of `total` is how much of the phase is done. Without them that stays as it was.
  void ShowProgress(std::string_view step, uint64_t done, uint64_t total);
  void ShowProgress(std::string_view step) const;

  const std::map<std::pair<std::string, Way>, std::string>& not_measured() const { return not_measured_; }
  const std::multimap<std::string, std::string>& notes() const { return notes_; }

 private:
  Lab(const SuiteOptions& options);
  Result<void> ChooseSize();
  // Disks below a hypervisor, and thin ones, take the first data to reach a place at a third of the speed of the next:
  // the zeros of a new pool are no data to them.
  Result<void> WriteOverPool();
  Result<void> MakePlaces();
  Result<void> MakeMemory();
  Result<void> LookAtPool();

  SuiteOptions options_;
  Scratch scratch_;
  std::string store_, base_;
  Place weightfs_, host_;
  std::unique_ptr<Place> no_verify_;
  Pages source_, sink_;
  Content content_, unaligned_;
  std::string memory_directory_;
  std::string pool_device_;       // a block device; empty where the reference has a file of its own
  std::vector<uint64_t> places_;  // of the big file's MiBs on it
  std::string no_raw_reads_, no_raw_writes_;
  bool raw_ready_ = false;
  uint64_t parts_ = 0;                          // of the whole run
  uint64_t phase_begin_ = 0, phase_parts_ = 0;  // of the phase under way
  uint64_t parts_done_ = 0;
  std::map<std::pair<std::string, Way>, std::string> not_measured_;
  std::multimap<std::string, std::string> notes_;
};

// One sample as the answer of a case.
inline Result<std::vector<Sample>> One(Sample sample) { return std::vector<Sample>{std::move(sample)}; }

}  // namespace weightfs::bench
