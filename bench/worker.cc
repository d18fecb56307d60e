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
#include <string_view>
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
using Amount = Result<uint64_t>;  // of work done: bytes, rows or files; kCorrupt if bytes differ from the content

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

struct FileJob {
  std::string path;
  uint64_t size, call;  // bytes of the file, and of each call
  Content content;
  std::byte* into;  // destination of reads: `call` bytes
  bool check;       // verify the data read; never set while timed
  bool sync;        // write: fsync before the close
};

// Many small files in one directory. Each has different content from its neighbors.
struct SmallFiles {
  std::string directory;  // created by CreateAll, and never removed
  unsigned count = 0;
  Content content;
  uint64_t size = 0;     // of each
  bool durable = false;  // fsync each file
  bool check = false;    // verify the data read; never set while timed

  static std::string Name(unsigned index) { return fmt::format("file-{:06}", index); }
  std::string Path(unsigned index) const { return directory + "/" + Name(index); }
  const std::byte* Bytes(unsigned index) const { return content.At(index % (content.period / size) * size); }
};

// close(2) may report the failure of an earlier write.
Result<void> Close(UniqueFd& file, std::string_view path) {
  if (file.Close() != 0) return SystemError(path, "close");
  return {};
}

// Returns the sum of the 8-byte words, like a program that accesses every byte. `size` is a multiple of 8.
uint64_t SumWords(const std::byte* data, uint64_t size) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  return std::accumulate(words, words + size / sizeof(uint64_t), uint64_t{0});
}

Error WrongBytes(const std::string& path, uint64_t offset) {
  return {ErrorCode::kCorrupt,
          fmt::format("{}: wrong bytes at {}: the benchmark measures nothing that is not right", path, offset)};
}

// With O_CLOEXEC and mode 0644.
Result<UniqueFd> OpenFile(const std::string& path, int flags) {
  UniqueFd file(open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!file) return SystemError(path, "cannot be opened");
  return file;
}

Result<void> Sync(const UniqueFd& file, std::string_view path) {
  if (fsync(file.get()) != 0) return SystemError(path, "fsync");
  return {};
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

Amount ReadFile(const FileJob& job) {
  ASSIGN_OR_RETURN(UniqueFd file, OpenFile(job.path, O_RDONLY));
  // A call for the whole file continues where the kernel stopped (at 2 GiB less a page); all others start at `into`.
  for (uint64_t at = 0; at < job.size;) {
    const uint64_t in_call = at % job.call;
    const ssize_t got = read(file.get(), job.into + in_call, std::min(job.call - in_call, job.size - at));
    if (got < 0) return SystemError(job.path, "cannot be read");
    if (got == 0) return Error{ErrorCode::kIo, fmt::format("{}: ends before {} bytes", job.path, job.size)};
    if (job.check && std::memcmp(job.into + in_call, job.content.At(at), static_cast<size_t>(got)) != 0) {
      return WrongBytes(job.path, at);
    }
    at += static_cast<uint64_t>(got);
  }
  RETURN_IF_ERROR(Close(file, job.path));
  return job.size;
}

Amount WriteFile(const FileJob& job) {
  ASSIGN_OR_RETURN(UniqueFd file, OpenFile(job.path, O_WRONLY | O_CREAT | O_TRUNC));
  for (uint64_t at = 0; at < job.size;) {
    const ssize_t put = write(file.get(), job.content.At(at), std::min(job.call - at % job.call, job.size - at));
    if (put <= 0) return SystemError(job.path, "cannot be written");
    at += static_cast<uint64_t>(put);
  }
  if (job.sync) RETURN_IF_ERROR(Sync(file, job.path));
  RETURN_IF_ERROR(Close(file, job.path));
  return job.size;
}

Amount MapFile(const FileJob& job) {
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
  RETURN_IF_ERROR(Close(file, job.path));
  return job.size;
}

template <typename Work>
Amount ForEach(const SmallFiles& files, const Work& work) {
  for (unsigned index = 0; index < files.count; ++index) RETURN_IF_ERROR(work(index, files.Path(index)));
  return files.count;
}

Result<void> MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0755) == 0 || errno == EEXIST) return {};
  return SystemError(path, "cannot be made");
}

Amount CreateAll(const SmallFiles& files) {
  RETURN_IF_ERROR(MakeDirectory(files.directory));
  return ForEach(files, [&](unsigned index, const std::string& path) -> Result<void> {
    ASSIGN_OR_RETURN(UniqueFd file, OpenFile(path, O_WRONLY | O_CREAT | O_EXCL));
    if (write(file.get(), files.Bytes(index), files.size) != static_cast<ssize_t>(files.size)) {
      return SystemError(path, "cannot be written");
    }
    if (files.durable) RETURN_IF_ERROR(Sync(file, path));
    return Close(file, path);
  });
}

Amount StatAll(const SmallFiles& files) {
  return ForEach(files, [&](unsigned, const std::string& path) -> Result<void> {
    struct stat status = {};
    if (stat(path.c_str(), &status) != 0) return SystemError(path, "stat");
    if (static_cast<uint64_t>(status.st_size) == files.size) return {};
    return Error{ErrorCode::kCorrupt, fmt::format("{}: has {} bytes, not {}", path, status.st_size, files.size)};
  });
}

Amount ListAll(const SmallFiles& files) {
  DIR* const directory = opendir(files.directory.c_str());
  if (directory == nullptr) return SystemError(files.directory, "cannot be listed");
  unsigned count = 0;
  while (const dirent* entry = readdir(directory)) count += entry->d_name[0] == '.' ? 0 : 1;
  closedir(directory);
  if (count == files.count) return count;
  return Error{ErrorCode::kCorrupt, fmt::format("{}: lists {} files of {}", files.directory, count, files.count)};
}

Amount ReadAll(const SmallFiles& files) {
  std::vector<std::byte> bytes(files.size);
  return ForEach(files, [&](unsigned index, const std::string& path) -> Result<void> {
    ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(path, O_RDONLY));
    if (read(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      return SystemError(path, "cannot be read");
    }
    if (files.check && std::memcmp(bytes.data(), files.Bytes(index), bytes.size()) != 0) return WrongBytes(path, 0);
    return {};
  });
}

Amount RemoveAll(const SmallFiles& files) {
  return ForEach(files, [](unsigned, const std::string& path) -> Result<void> {
    if (unlink(path.c_str()) != 0) return SystemError(path, "cannot be removed");
    return {};
  });
}

using Json = nlohmann::json;
using client::MemoryView;

const std::map<std::string, Amount (*)(const FileJob&)> kFileJobs = {
    {"read", ReadFile}, {"write", WriteFile}, {"map", MapFile}};
const std::map<std::string, Amount (*)(const SmallFiles&)> kSmallFileJobs = {
    {"create", CreateAll}, {"stat", StatAll}, {"list", ListAll}, {"read-all", ReadAll}, {"unlink", RemoveAll}};

// The memory of a tensor.
enum class Alignment : unsigned char {
  kHuge,        // huge pages
  kUnaligned,   // begins 32 bytes into a page, like the memory of a Python object
  kSmallPages,  // 4 KiB pages, like the memory of a program without special allocation
};
constexpr uint64_t kUnalignment = 32;

// Of all threads of this process.
double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Writes a file's dirty data and drops its pages from the kernel's and the daemon's caches.
Result<void> MakeCold(const std::string& path, bool on_mount) {
  ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(path, O_RDONLY));
  RETURN_IF_ERROR(Sync(file, path));
  posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (!on_mount || ioctl(file.get(), WEIGHTFS_IOC_DROP_CACHE) == 0) return {};
  return SystemError(path, "its cache cannot be dropped");
}

class Worker {
 public:
  Json Answer(const Json& job) {
    Json answer = Json::object();
    const double cpu = CpuSeconds();
    const auto begin = Clock::now();
    const Amount amount = Do(job, &answer);
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    if (!amount.has_value()) return {{"error", amount.error().what}};
    answer["amount"] = *amount;
    answer["cpu"] = CpuSeconds() - cpu;
    if (!answer.contains("seconds")) answer["seconds"] = std::max(seconds.count(), 1e-9);
    return answer;
  }

 private:
  Amount Do(const Json& job, Json* answer) {
    const auto name = job.at("do").get<std::string>();
    if (name == "prepare") return Prepare(job);
    if (name == "cold") return MakeAllCold(job);
    if (name == "counters") return ReadCounters(job, answer);
    if (const auto found = kFileJobs.find(name); found != kFileJobs.end()) return found->second(FileJobOf(job));
    if (const auto found = kSmallFileJobs.find(name); found != kSmallFileJobs.end()) {
      return found->second(SmallFilesOf(job));
    }
    if (name == "reader") return ReadRows(job, answer);
    RETURN_IF_ERROR(CreateHandles());
    if (name == "save-many" || name == "load-many") return MoveMany(SmallFilesOf(job), name == "save-many");
    if (name == "tensor-write" || name == "tensor-read") return MoveTensor(job, name == "tensor-write");
    return Error{ErrorCode::kInvalid, fmt::format("{}: no job of bench-worker", name)};
  }

  // {"bytes", "warm"}: the size of the large file.
  Amount Prepare(const Json& job) {
    const auto size = job.at("bytes").get<uint64_t>();
    struct sysinfo machine = {};
    if (job.at("warm").get<bool>() && sysinfo(&machine) == 0) {  // so that the hypervisor has allocated it
      (void)AllocateTouched(std::min(machine.freeram * machine.mem_unit / 2, 6 * kGiB));
    }
    ASSIGN_OR_RETURN(source_, AllocateTouched(size + kMiB));
    ASSIGN_OR_RETURN(into_, AllocateTouched(std::max(size + kMiB, 128 * kMiB)));
    // Random words, which no device or hypervisor can compress or deduplicate.
    std::mt19937_64 random(1);
    std::generate_n(reinterpret_cast<uint64_t*>(source_.get()), (size + kMiB) / sizeof(uint64_t), std::ref(random));
    content_ = {source_.get(), size};
    return size;
  }

  // {"paths", "on_mount"}
  static Amount MakeAllCold(const Json& job) {
    const auto paths = job.at("paths").get<std::vector<std::string>>();
    for (const auto& path : paths) RETURN_IF_ERROR(MakeCold(path, job.at("on_mount").get<bool>()));
    return paths.size();
  }

  // {"path"}: the counters of its mount; nothing if the mount does not provide them.
  static Amount ReadCounters(const Json& job, Json* answer) {
    ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(job.at("path").get<std::string>(), O_RDONLY));
    weightfs_stats stats{};
    stats.version = WEIGHTFS_IOC_VERSION;
    if (ioctl(file.get(), WEIGHTFS_IOC_STATS, &stats) != 0) return 0;
    (*answer)["device_read_bytes"] = stats.device_read_bytes;
    (*answer)["buffer_capacity"] = stats.buffer_capacity;
    return 2;
  }

  // Aligned reads of {"call"} bytes at random offsets through a reader with a lease, for {"duration"} seconds: one at a
  // time with {"depth"} 1, otherwise in batches. The time is that of the reads, without opening the file.
  Amount ReadRows(const Json& job, Json* answer) {
    constexpr size_t kBatch = 1024;
    const FileJob file = FileJobOf(job);
    const unsigned depth = job.at("depth");
    ASSIGN_OR_RETURN(const auto reader,
                     client::RandomReader::Open(file.path, {.queue_depth = depth, .direct = client::Direct::kRequire}));
    std::mt19937_64 random(job.value("seed", uint64_t{0}));
    std::vector<uint64_t> offsets(depth == 1 ? 1 : kBatch);
    const MemoryView memory(std::span(file.into, offsets.size() * file.call));
    const std::chrono::duration<double> limit(job.at("duration").get<double>());
    const auto begin = Clock::now();
    uint64_t done = 0;
    for (; Clock::now() - begin < limit; done += offsets.size()) {
      for (uint64_t& offset : offsets) offset = random() % (file.size / file.call) * file.call;
      RETURN_IF_ERROR(reader->ReadRows(offsets, file.call, memory));
      for (size_t i = 0; file.check && i < offsets.size(); ++i) {
        const int different = std::memcmp(file.into + i * file.call, content_.At(offsets[i]), file.call);
        if (different != 0) return WrongBytes(file.path, offsets[i]);
      }
    }
    (*answer)["seconds"] = std::max(std::chrono::duration<double>(Clock::now() - begin).count(), 1e-9);
    return done;
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
  Amount MoveTensor(const Json& job, bool write) {
    const auto path = job.at("path").get<std::string>();
    const auto alignment = static_cast<Alignment>(job.value("alignment", 0));
    const uint64_t shift = alignment == Alignment::kUnaligned ? kUnalignment : 0;
    const bool check = job.value("check", false);
    std::byte* const memory = alignment == Alignment::kSmallPages ? small_pages_.get()
                              : write                            ? source_.get() + shift
                                                                 : into_.get() + shift;
    if (check) std::memset(memory, 0, content_.period);
    client::Handle& handle = job.at("direct").get<bool>() ? *direct_ : *plain_;
    const MemoryView view(std::span(memory, content_.period));
    RETURN_IF_ERROR(write ? handle.Write(path, view, {.durable = true}) : handle.Read(path, view));
    if (check && std::memcmp(memory, content_.data, content_.period) != 0) return WrongBytes(path, 0);
    return content_.period;
  }

  // Many small tensors through leases of the mount: in one durable commit, or in one read.
  Amount MoveMany(const SmallFiles& files, bool save) {
    if (save) RETURN_IF_ERROR(MakeDirectory(files.directory));
    std::vector<client::NamedMemory> tensors;
    for (unsigned index = 0; index < files.count; ++index) {
      auto* const memory = save ? const_cast<std::byte*>(files.Bytes(index)) : into_.get() + index * files.size;
      tensors.push_back({SmallFiles::Name(index), MemoryView(std::span(memory, files.size))});
    }
    if (save) {
      RETURN_IF_ERROR(direct_->SaveMany(files.directory, tensors));
      return files.count;
    }
    ASSIGN_OR_RETURN(const auto failed, direct_->LoadMany(files.directory, tensors));
    if (!failed.empty()) return failed.front().error;
    for (unsigned index = 0; files.check && index < files.count; ++index) {
      const int different = std::memcmp(into_.get() + index * files.size, files.Bytes(index), files.size);
      if (different != 0) return WrongBytes(files.Path(index), 0);
    }
    return files.count;
  }

  // {"path", "size", "call", "unaligned", "check", "sync"}
  FileJob FileJobOf(const Json& job) const {
    FileJob file{job.at("path"), job.value("size", content_.period), job.value("call", kMiB), content_, into_.get(),
                 job.value("check", false), job.value("sync", true)};
    if (job.value("unaligned", false)) file.content.data += kUnalignment;
    return file;
  }

  // {"path", "count", "size", "durable", "check"}
  SmallFiles SmallFilesOf(const Json& job) const {
    return {job.at("path").get<std::string>(), job.at("count").get<unsigned>(), content_,
            job.at("size").get<uint64_t>(),    job.value("durable", false),     job.value("check", false)};
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
