// SPDX-License-Identifier: Apache-2.0
#include "bench/worker.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "client/handle.h"
#include "client/random_reader.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "common/units.h"
#include "lease/ioctl.h"

namespace weightfs::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;
using Outcome = Result<Json>;  // the answer of a job; kCorrupt if bytes differ from the content
using client::MemoryView;

// The memory of a tensor or of the calls.
enum class Alignment : unsigned char {
  kHuge,        // huge pages
  kUnaligned,   // begins 32 bytes into a page, like the memory of a Python object
  kSmallPages,  // 4 KiB pages, like the memory of a program without special allocation
};
constexpr uint64_t kUnalignment = 32;

struct Job {
  std::string path;                // the file, or the directory of many
  std::vector<std::string> paths;  // cold
  uint64_t bytes = 0;              // prepare: the size of the large file
  bool warm = false;               // prepare: touch the machine's free memory first
  uint64_t size = 0;               // of each file; 0: of the large file
  uint64_t call = kMiB;            // bytes of each call
  unsigned count = 0;              // of files
  Alignment alignment = Alignment::kHuge;
  bool sync = true;       // fsync a written file before it is closed
  bool direct = false;    // tensor-*: require a lease
  bool on_mount = false;  // cold
  bool check = false;     // compare the data that was read; never set while timed
  unsigned depth = 1;     // reader
  double duration = 0;    // reader: seconds
  uint64_t seed = 0;      // reader
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Job, path, paths, bytes, warm, size, call, count, alignment, sync,
                                                direct, on_mount, check, depth, duration, seed)

// Memory that begins on a huge page. All its pages have been touched, because in a virtual machine the first touch
// takes four times as long as later ones and must not be timed.
struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

// The bytes of a file: `data`, repeated.
struct Content {
  const std::byte* data = nullptr;
  uint64_t period = 0;  // bytes at `data`; a multiple of every call's size, or larger than the file
  const std::byte* At(uint64_t offset) const { return data + offset % period; }
};

struct File {
  std::string path;
  uint64_t size, call;  // bytes of the file, and of each call
  Content content;
  std::byte* into;  // destination of reads: `call` bytes
  bool check, sync;
};

// The name of one of many small files in a directory.
std::string SmallName(unsigned index) { return fmt::format("file-{:06}", index); }

Json Moved(uint64_t amount, uint64_t bytes) { return {{"amount", amount}, {"bytes", bytes}}; }

// Returns the sum of the 8-byte words, like a program that accesses every byte. `size` is a multiple of 8.
uint64_t SumWords(const std::byte* data, uint64_t size) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  return std::accumulate(words, words + size / sizeof(uint64_t), uint64_t{0});
}

Error WrongBytes(const std::string& path, uint64_t offset) {
  return {ErrorCode::kCorrupt,
          fmt::format("{}: wrong bytes at {}: the benchmark measures nothing that is not right", path, offset)};
}

Result<void> Compare(const std::string& path, uint64_t offset, const std::byte* read, const std::byte* expected,
                     uint64_t size) {
  if (std::memcmp(read, expected, size) != 0) return WrongBytes(path, offset);
  return {};
}

// With O_CLOEXEC and mode 0644.
Result<UniqueFd> OpenFile(const std::string& path, int flags) {
  UniqueFd file(open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!file) return SystemError(path, "cannot be opened");
  return file;
}

// close(2) may report the failure of an earlier write.
Result<void> Close(UniqueFd& file, const std::string& path) {
  if (file.Close() != 0) return SystemError(path, "close");
  return {};
}

Result<void> Sync(const UniqueFd& file, const std::string& path) {
  if (fsync(file.get()) != 0) return SystemError(path, "fsync");
  return {};
}

Result<void> MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0755) == 0 || errno == EEXIST) return {};
  return SystemError(path, "cannot be made");
}

Result<Memory> AllocateTouched(uint64_t size, bool huge = true) {
  constexpr uint64_t kHugePage = 2 * kMiB;
  const uint64_t length = RoundUp(size, kHugePage);
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(kHugePage, length)));
  if (memory == nullptr) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("no memory for a buffer of {} MiB; give a smaller --size", size / kMiB)};
  }
  madvise(memory.get(), length, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  std::memset(memory.get(), 1, length);
  return memory;
}

// File operations of typical programs. Each one opens, works and closes.

Result<void> ReadFile(const File& job) {
  ASSIGN_OR_RETURN(UniqueFd file, OpenFile(job.path, O_RDONLY));
  // A call for the whole file continues where the kernel stopped (at 2 GiB less a page); all others start at `into`.
  for (uint64_t at = 0; at < job.size;) {
    const uint64_t in_call = at % job.call;
    const ssize_t got = read(file.get(), job.into + in_call, std::min(job.call - in_call, job.size - at));
    if (got < 0) return SystemError(job.path, "cannot be read");
    if (got == 0) return Error{ErrorCode::kIo, fmt::format("{}: ends before {} bytes", job.path, job.size)};
    if (job.check) RETURN_IF_ERROR(Compare(job.path, at, job.into + in_call, job.content.At(at), got));
    at += static_cast<uint64_t>(got);
  }
  return Close(file, job.path);
}

Result<void> WriteFile(const File& job) {
  ASSIGN_OR_RETURN(UniqueFd file, OpenFile(job.path, O_WRONLY | O_CREAT | O_TRUNC));
  for (uint64_t at = 0; at < job.size;) {
    const ssize_t put = write(file.get(), job.content.At(at), std::min(job.call - at % job.call, job.size - at));
    if (put <= 0) return SystemError(job.path, "cannot be written");
    at += static_cast<uint64_t>(put);
  }
  if (job.sync) RETURN_IF_ERROR(Sync(file, job.path));
  return Close(file, job.path);
}

Result<void> MapFile(const File& job) {
  ASSIGN_OR_RETURN(UniqueFd file, OpenFile(job.path, O_RDONLY));
  void* const mapped = mmap(nullptr, job.size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return SystemError(job.path, "cannot be mapped");
  uint64_t sum = 0, expected = 0;
  for (uint64_t at = 0; at < job.size; at += job.call) {
    const uint64_t length = std::min(job.call, job.size - at);
    sum += SumWords(static_cast<const std::byte*>(mapped) + at, length);
    if (job.check) expected += SumWords(job.content.At(at), length);
  }
  munmap(mapped, job.size);
  // Prevents the compiler from removing the unused sum.
  [[maybe_unused]] volatile const uint64_t used = sum;
  if (job.check && sum != expected) return WrongBytes(job.path, 0);
  return Close(file, job.path);
}

Result<void> StatFile(const File& job) {
  struct stat status = {};
  if (stat(job.path.c_str(), &status) != 0) return SystemError(job.path, "stat");
  if (static_cast<uint64_t>(status.st_size) == job.size) return {};
  return Error{ErrorCode::kCorrupt, fmt::format("{}: has {} bytes, not {}", job.path, status.st_size, job.size)};
}

Result<void> UnlinkFile(const File& job) {
  if (unlink(job.path.c_str()) != 0) return SystemError(job.path, "cannot be removed");
  return {};
}

// As programs do that save atomically.
Result<void> ReplaceFile(const File& job) {
  File written = job;
  written.path += ".tmp";
  RETURN_IF_ERROR(WriteFile(written));
  if (rename(written.path.c_str(), job.path.c_str()) != 0) return SystemError(job.path, "cannot be replaced");
  return {};
}

// {"path", "count"}
Outcome ListDirectory(const Job& job) {
  DIR* const directory = opendir(job.path.c_str());
  if (directory == nullptr) return SystemError(job.path, "cannot be listed");
  unsigned count = 0;
  while (const dirent* entry = readdir(directory)) count += entry->d_name[0] == '.' ? 0 : 1;
  closedir(directory);
  if (count == job.count) return Moved(count, 0);
  return Error{ErrorCode::kCorrupt, fmt::format("{}: lists {} files of {}", job.path, count, job.count)};
}

// {"paths", "on_mount"}: writes dirty data and drops the pages from the kernel's and the daemon's caches.
Outcome MakeCold(const Job& job) {
  for (const std::string& path : job.paths) {
    ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(path, O_RDONLY));
    RETURN_IF_ERROR(Sync(file, path));
    posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    if (job.on_mount && ioctl(file.get(), WEIGHTFS_IOC_DROP_CACHE) != 0) {
      return SystemError(path, "its cache cannot be dropped");
    }
  }
  return Moved(job.paths.size(), 0);
}

// {"path"}: the counters of its mount; nothing if the mount does not provide them.
Outcome ReadCounters(const Job& job) {
  ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(job.path, O_RDONLY));
  weightfs_stats stats{};
  stats.version = WEIGHTFS_IOC_VERSION;
  if (ioctl(file.get(), WEIGHTFS_IOC_STATS, &stats) != 0) return Json::object();
  return Json{{"device_read_bytes", stats.device_read_bytes}, {"buffer_capacity", stats.buffer_capacity}};
}

// Of all threads of this process.
double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

double SecondsSince(Clock::time_point begin) {
  return std::max(std::chrono::duration<double>(Clock::now() - begin).count(), 1e-9);
}

class Worker {
 public:
  Json Answer(const Json& line) {
    const double cpu = CpuSeconds();
    const auto begin = Clock::now();
    Outcome outcome = Do(line.at("do").get<std::string>(), line.get<Job>());
    const double seconds = SecondsSince(begin);
    if (!outcome.has_value()) return {{"error", outcome.error().what}};
    outcome->emplace("cpu", CpuSeconds() - cpu);
    outcome->emplace("seconds", seconds);  // unless the job has its own
    return *outcome;
  }

 private:
  Outcome Do(const std::string& name, const Job& job) {
    static const std::map<std::string, Result<void> (*)(const File&)> kWhole = {
        {"read", ReadFile}, {"write", WriteFile}, {"map", MapFile}};
    static const std::map<std::string, Result<void> (*)(const File&)> kMany = {
        {"create", WriteFile},  {"replace", ReplaceFile}, {"stat", StatFile},
        {"read-all", ReadFile}, {"unlink", UnlinkFile}};
    if (name == "prepare") return Prepare(job);
    if (name == "cold") return MakeCold(job);
    if (name == "counters") return ReadCounters(job);
    if (name == "list") return ListDirectory(job);
    if (const auto found = kWhole.find(name); found != kWhole.end()) {
      const File file = FileOf(job);
      RETURN_IF_ERROR(found->second(file));
      return Moved(file.size, file.size);
    }
    if (const auto found = kMany.find(name); found != kMany.end()) {
      if (name == "create") RETURN_IF_ERROR(MakeDirectory(job.path));
      for (unsigned index = 0; index < job.count; ++index) RETURN_IF_ERROR(found->second(SmallFileOf(job, index)));
      return Moved(job.count, name == "stat" || name == "unlink" ? 0 : job.count * job.size);
    }
    if (name == "reader") return ReadRows(job);
    RETURN_IF_ERROR(CreateHandles());
    if (name == "save-many" || name == "load-many") return MoveMany(job, name == "save-many");
    if (name == "tensor-write" || name == "tensor-read") return MoveTensor(job, name == "tensor-write");
    return Error{ErrorCode::kInvalid, fmt::format("{}: no job of bench-worker", name)};
  }

  // {"bytes", "warm"}
  Outcome Prepare(const Job& job) {
    struct sysinfo machine = {};
    if (job.warm && sysinfo(&machine) == 0) {  // so that the hypervisor has allocated it
      (void)AllocateTouched(std::min(machine.freeram * machine.mem_unit / 2, 6 * kGiB));
    }
    ASSIGN_OR_RETURN(source_, AllocateTouched(job.bytes + kMiB));
    ASSIGN_OR_RETURN(into_, AllocateTouched(std::max(job.bytes + kMiB, 128 * kMiB)));
    // Random words, which no device or hypervisor can compress or deduplicate.
    std::mt19937_64 random(1);
    std::generate_n(reinterpret_cast<uint64_t*>(source_.get()), (job.bytes + kMiB) / sizeof(uint64_t),
                    std::ref(random));
    content_ = {source_.get(), job.bytes};
    return Moved(job.bytes, 0);
  }

  File FileOf(const Job& job) const {
    Content content = content_;
    if (job.alignment == Alignment::kUnaligned) content.data += kUnalignment;
    return {job.path, job.size != 0 ? job.size : content.period, job.call, content, into_.get(), job.check, job.sync};
  }

  // The content of a small file differs from that of its neighbors.
  const std::byte* SmallContent(const Job& job, unsigned index) const {
    return content_.At(index % (content_.period / job.size) * job.size);
  }

  File SmallFileOf(const Job& job, unsigned index) const {
    return {job.path + "/" + SmallName(index), job.size,  job.size, {SmallContent(job, index), content_.period},
            into_.get(),                       job.check, job.sync};
  }

  // Aligned reads of {"call"} bytes at random offsets through a reader with a lease, for {"duration"} seconds: one at a
  // time with {"depth"} 1, otherwise in batches. The time is that of the reads, without opening the file.
  Outcome ReadRows(const Job& job) {
    constexpr size_t kBatch = 1024;
    const File file = FileOf(job);
    ASSIGN_OR_RETURN(const auto reader, client::RandomReader::Open(file.path, {.queue_depth = job.depth,
                                                                               .direct = client::Direct::kRequire}));
    std::mt19937_64 random(job.seed);
    std::vector<uint64_t> offsets(job.depth == 1 ? 1 : kBatch);
    const MemoryView memory(std::span(file.into, offsets.size() * file.call));
    const std::chrono::duration<double> limit(job.duration);
    const auto begin = Clock::now();
    uint64_t done = 0;
    for (; Clock::now() - begin < limit; done += offsets.size()) {
      for (uint64_t& offset : offsets) offset = random() % (file.size / file.call) * file.call;
      RETURN_IF_ERROR(reader->ReadRows(offsets, file.call, memory));
      for (size_t i = 0; file.check && i < offsets.size(); ++i) {
        RETURN_IF_ERROR(
            Compare(file.path, offsets[i], file.into + i * file.call, content_.At(offsets[i]), file.call));
      }
    }
    Json answer = Moved(done, done * file.call);
    answer["seconds"] = SecondsSince(begin);
    return answer;
  }

  // On first use: a handle that requires a lease, one without, and memory of small pages with the content.
  Result<void> CreateHandles() {
    if (direct_ != nullptr) return {};
    ASSIGN_OR_RETURN(small_pages_, AllocateTouched(content_.period, /*huge=*/false));
    std::memcpy(small_pages_.get(), content_.data, content_.period);
    for (const auto& [direct, handle] :
         {std::pair{client::Direct::kNever, &plain_}, {client::Direct::kRequire, &direct_}}) {
      ASSIGN_OR_RETURN(*handle,
                       client::Handle::Create({.queue_depth = 32, .overlap_events = true, .direct = direct}));
    }
    return {};
  }

  // {"path", "direct", "alignment", "check"}: one tensor of the content's size. Writes are durable.
  Outcome MoveTensor(const Job& job, bool write) {
    std::byte* memory = write ? source_.get() : into_.get();
    if (job.alignment == Alignment::kUnaligned) memory += kUnalignment;
    if (job.alignment == Alignment::kSmallPages) memory = small_pages_.get();
    if (job.check) std::memset(memory, 0, content_.period);
    client::Handle& handle = job.direct ? *direct_ : *plain_;
    const MemoryView view(std::span(memory, content_.period));
    RETURN_IF_ERROR(write ? handle.Write(job.path, view, {.durable = true}) : handle.Read(job.path, view));
    if (job.check) RETURN_IF_ERROR(Compare(job.path, 0, memory, content_.data, content_.period));
    return Moved(content_.period, content_.period);
  }

  // {"path", "count", "size", "check"}: many small tensors through leases of the mount, in one durable commit or in one
  // read.
  Outcome MoveMany(const Job& job, bool save) {
    if (save) RETURN_IF_ERROR(MakeDirectory(job.path));
    std::vector<client::NamedMemory> tensors;
    for (unsigned index = 0; index < job.count; ++index) {
      auto* const memory =
          save ? const_cast<std::byte*>(SmallContent(job, index)) : into_.get() + index * job.size;
      tensors.push_back({SmallName(index), MemoryView(std::span(memory, job.size))});
    }
    if (save) {
      RETURN_IF_ERROR(direct_->SaveMany(job.path, tensors));
      return Moved(job.count, job.count * job.size);
    }
    ASSIGN_OR_RETURN(const auto failed, direct_->LoadMany(job.path, tensors));
    if (!failed.empty()) return failed.front().error;
    for (unsigned index = 0; job.check && index < job.count; ++index) {
      RETURN_IF_ERROR(Compare(job.path + "/" + SmallName(index), 0, into_.get() + index * job.size,
                              SmallContent(job, index), job.size));
    }
    return Moved(job.count, job.count * job.size);
  }

  Content content_;
  Memory source_, into_, small_pages_;
  std::unique_ptr<client::Handle> direct_, plain_;
};

}  // namespace

int RunWorker() {
  Worker worker;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << worker.Answer(Json::parse(line)).dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}

}  // namespace weightfs::bench
