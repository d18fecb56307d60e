// SPDX-License-Identifier: Apache-2.0
#include "cli/check/machine_checks.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "cli/output.h"
#include "cli/scrub_report.h"
#include "cli/store_look.h"
#include "client/gpu/gpu.h"
#include "common/printable.h"
#include "common/processes.h"
#include "common/shell_quote.h"
#include "common/size_text.h"
#include "common/unique_fd.h"
#include "common/utc_time.h"
#include "fs/kernel_features.h"
#include "fs/mount.h"
#include "fs/mountpoint.h"

namespace weightfs::cli {
namespace {

using State = Check::State;

// In-flight requests that one device of a mount sets aside (FileDevice::Options), and the poll that wakes its thread.
constexpr uint64_t kAioForOneDevice = 257;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<uint64_t> Number(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The version in the file name of a shared library this process runs with: libfuse3.so.3.14.0.
std::string LoadedVersion(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t at = line.find("/" + library + ".so.");
    if (at != std::string::npos) return line.substr(at + library.size() + 5);
  }
  return "unknown";
}

// A check that recommends a step unless it is `good`.
Check Expect(bool good, std::string name, std::string found, std::string next, State otherwise = State::kWouldHelp) {
  return {std::move(name), std::move(found), good ? State::kUsed : otherwise, good ? "" : std::move(next)};
}

Check CheckKernel() {
  utsname name{};
  uname(&name);
  unsigned major = 0, minor = 0;
  const bool known = std::sscanf(name.release, "%u.%u", &major, &minor) == 2;
  const bool modern = known && (major > 6 || (major == 6 && minor >= 6));
  return Expect(modern, "kernel", name.release, "Linux 6.6 or newer supports mappings together with direct I/O");
}

Check CheckDevFuse() {
  const UniqueFd device(open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (device.get() >= 0) return {"/dev/fuse", "can be opened", State::kUsed, ""};
  const int error = errno;
  return {
      "/dev/fuse", std::strerror(error), State::kMissing,
      error == EACCES ? FuseDeviceAdvice() : "modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN"};
}

Check CheckFusermount() {
  const std::string path = FindProgram("fusermount3");
  struct stat status = {};
  if (path.empty()) {
    return {"fusermount3", "not found", geteuid() == 0 ? State::kNotUsed : State::kMissing,
            "install the package fuse3 to mount as a user other than root"};
  }
  const bool setuid = stat(path.c_str(), &status) == 0 && (status.st_mode & S_ISUID) != 0;
  return {"fusermount3", path + (setuid ? "" : ", not setuid root"),
          geteuid() == 0 ? State::kNotUsed
          : setuid       ? State::kUsed
                         : State::kMissing,
          setuid ? "" : "chmod u+s " + path + ", to mount as a user other than root"};
}

Check CheckAllowOther() {
  if (UsersMayAllowOthers()) return {"user_allow_other", "set in /etc/fuse.conf", State::kUsed, ""};
  return {"user_allow_other", "not set in /etc/fuse.conf", geteuid() == 0 ? State::kNotUsed : State::kWouldHelp,
          "add the line so that users other than root can mount with -o allow_other"};
}

Check CheckMaxPages() {
  const auto limit = Number("/proc/sys/fs/fuse/max_pages_limit");
  if (!limit.has_value()) {
    return {"fs.fuse.max_pages_limit", "not available: requests of 1 MiB", State::kWouldHelp,
            "Linux 6.13 or newer allows requests of 4 MiB"};
  }
  return Expect(*limit >= 1024, "fs.fuse.max_pages_limit", fmt::format("{}", *limit),
                "sysctl fs.fuse.max_pages_limit=1024, before the mount: requests of 4 MiB, for storage above 6 GB/s");
}

Check CheckAio() {
  const auto limit = Number("/proc/sys/fs/aio-max-nr"), taken = Number("/proc/sys/fs/aio-nr");
  if (!limit.has_value() || !taken.has_value()) {
    return {"fs.aio-max-nr", "unknown", State::kMissing, "the kernel needs CONFIG_AIO"};
  }
  const uint64_t devices = (*limit - std::min(*taken, *limit)) / kAioForOneDevice;
  return Expect(devices > 0, "fs.aio-max-nr",
                fmt::format("{}, {} taken: enough for {} more devices of stores", *limit, *taken, devices),
                fmt::format("sysctl fs.aio-max-nr={}", *limit + 65536), State::kMissing);
}

// What leases (-o direct=) send long lists of extents and checksums in.
Check CheckSealedMemory() {
  const UniqueFd file(memfd_create("weightfs-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool there = file.get() >= 0;
  return Expect(there, "sealed memory", there ? "memfd_create" : std::strerror(errno),
                "allow memfd_create: direct access to the devices needs it (mount -o direct=)");
}

Check CheckHugePages() {
  const std::string modes = FirstLine("/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t open = modes.find('['), close = modes.find(']');
  const std::string mode =
      open == std::string::npos || close == std::string::npos ? "unknown" : modes.substr(open + 1, close - open - 1);
  return Expect(mode == "always" || mode == "madvise", "transparent huge pages", mode,
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; up to 3 times faster transfers");
}

// Where mounts of this user keep hot files.
Check CheckHotFiles() {
  const HotStatistics hot = ProbeHotFiles();
  if (hot.limit == 0) return {"hot files", "none", State::kWouldHelp, "sysctl fs.leases-enable=1, and more memory"};
  return Expect(hot.on_tmpfs, "hot files",
                fmt::format("{} unless cache_memory= says otherwise, in {}", FormatSize(ByteCount{hot.limit}),
                            hot.on_tmpfs ? "a tmpfs of the mount's own" : "memfds"),
                "mounts of root have huge pages, and published files at the speed of memory",
                geteuid() == 0 ? State::kWouldHelp : State::kNotUsed);
}

std::string LimitText(rlim_t value, bool bytes) {
  if (value == RLIM_INFINITY) return "unlimited";
  return bytes ? FormatSize(ByteCount{value}) : fmt::format("{}", value);
}

Check CheckMemoryLock() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return {"locked memory", LimitText(limit.rlim_cur, true), State::kNotUsed, ""};
}

Check CheckDescriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return Expect(limit.rlim_max >= 4096, "open files", LimitText(limit.rlim_max, false), "ulimit -Hn 65536");
}

std::string WordBefore(const std::string& line, char separator) { return line.substr(0, line.find(separator)); }

// What a feature of FUSE that the kernel lacks would give.
std::string FeatureAdvice(const std::string& name) {
  if (name == "direct_io_allow_mmap") return "Linux 6.6 or newer";
  if (name == "parallel_direct_writes") return "Linux 6.2 or newer";
  if (name == "passthrough" || name == "over_io_uring" || name == "writeback_cache") return {};
  return "a newer kernel";
}

// The first check is that of the protocol, the last one that of the request size.
Check FoldFeatures(std::span<const Check> checks) {
  const auto features = checks.subspan(1, checks.size() - 2);
  const auto used = std::ranges::count_if(features, [](const Check& feature) { return feature.state == State::kUsed; });
  Check sum{"FUSE",
            fmt::format("protocol {}, requests of {}, {} of {} features in use (--all lists them)",
                        checks.front().found, checks.back().found, used, features.size()),
            State::kUsed, ""};
  for (const Check& feature : features) {
    if (feature.state != State::kWouldHelp) continue;
    sum.state = State::kWouldHelp;
    sum.next += fmt::format("{}{} needs {}", sum.next.empty() ? "" : ", ", feature.name.substr(5), feature.next);
  }
  return sum;
}

}  // namespace

std::string StateName(State state) {
  switch (state) {
    case State::kUsed: return "used";
    case State::kNotUsed: return "not used";
    case State::kWouldHelp: return "would help";
    case State::kMissing: return "missing";
  }
  return "unknown";
}

std::vector<Check> CheckMachine() {
  return {CheckKernel(),
          CheckDevFuse(),
          {"libfuse", fmt::format("{}, built with {}", LoadedVersion("libfuse3"), WEIGHTFS_LIBFUSE_BUILT), State::kUsed,
           ""},
          {"RocksDB", fmt::format("{}, built with {}", LoadedVersion("librocksdb"), WEIGHTFS_ROCKSDB_BUILT),
           State::kUsed, ""},
          CheckFusermount(),
          CheckAllowOther(),
          CheckMaxPages(),
          CheckAio(),
          CheckSealedMemory(),
          CheckHugePages(),
          CheckHotFiles(),
          CheckMemoryLock(),
          CheckDescriptors()};
}

std::vector<Check> CheckFuseFeatures(bool each) {
  const auto lines = ProbeKernelFeatures({});
  if (!lines.has_value()) {
    return {{"FUSE", Line(lines.error()), State::kMissing, "the other FUSE checks need a mount"}};
  }
  std::vector<Check> checks;
  for (const std::string& line : *lines) {
    const std::string name = WordBefore(line, ':');
    const std::string found = line.size() > name.size() + 2 ? line.substr(name.size() + 2) : "";
    Check check{"FUSE " + name, found, State::kUsed, ""};
    if (found == "not offered") {
      check.next = FeatureAdvice(name);
      check.state = check.next.empty() ? State::kNotUsed : State::kWouldHelp;
    } else if (found == "offered, not used" || found == "masked") {
      check.state = State::kNotUsed;
    } else if (found == "used") {
      check.found = "offered";
    }
    checks.push_back(std::move(check));
  }
  return each ? checks : std::vector<Check>{FoldFeatures(checks)};
}

Check CheckStore(const StoreLocation& store) {
  constexpr uint64_t kMuchUsed = 90;             // percent
  constexpr uint64_t kLittleSpace = 512 * kMiB;  // of the catalog's filesystem: twice its largest need
  constexpr int64_t kLong = 31 * 86400 * int64_t{1'000'000'000};  // between scrubs, in nanoseconds
  const StoreView view = ViewStore(store);
  if (!view.look.has_value()) {
    return {kStoreCheck, Line(view.look.error()), State::kMissing, ""};
  }
  const StoreLook& look = *view.look;
  Check check{kStoreCheck, "", State::kUsed, ""};
  const auto add = [](std::string* list, const std::string& text) { *list += (list->empty() ? "" : ", ") + text; };
  // `next`: empty if all is well.
  const auto find = [&](const std::string& found, const std::string& next) {
    add(&check.found, found);
    if (next.empty()) return;
    add(&check.next, next);
    check.state = State::kWouldHelp;
  };
  if (look.space && look.space->total > 0) {
    const uint64_t percent = 100 - look.space->available * 100 / look.space->total;
    find(fmt::format("{} % of {} used", percent, FormatSize(ByteCount{look.space->total})),
         percent >= kMuchUsed ? "delete files or use larger devices" : "");
  }
  if (view.mount) {
    find("mounted on " + Printable(view.mount->directory), "");
  } else if (view.holder.held) {
    find("in use by " + DescribeProcess(view.holder.process), "");
  } else if (!look.lost.empty()) {
    find(look.lost, fmt::format("weightfs verify {} --repair", ShellQuote(store.name)));
  } else if (look.clean_unmount == false) {
    find("not unmounted cleanly", "mount it: the mount recovers its last commit");
  } else {
    find("unmounted cleanly", "");
  }
  if (look.scrubs) {
    const ScrubState& scrub = look.scrubs->state;
    const int64_t age = UtcNowNs() - scrub.last_completed_ns;
    const bool never = scrub.last_completed_ns == 0;  // a store may be new
    find(never ? "never scrubbed" : fmt::format("scrubbed {} ago", DurationText(age)),
         !never && age > kLong ? "mount it with -o scrub=7" : "");
    if (!scrub.found.clean() || !scrub.last_found.clean()) find("damage was found", "weightfs info shows it");
  }
  struct statvfs catalog = {};
  if (statvfs((store.directory + "/" + kCatalogName).c_str(), &catalog) == 0) {
    const uint64_t free = uint64_t{catalog.f_bavail} * catalog.f_frsize;
    find(fmt::format("{} free for its catalog", FormatSize(ByteCount{free})),
         free < kLittleSpace ? "free space on the filesystem of the catalog" : "");
  }
  return check;
}

std::vector<Check> CheckDevice(const std::string& name, const std::string& path) {
  struct statx status = {};
  const int descriptor = AT_FDCWD;
  unsigned wanted = STATX_BASIC_STATS;
#ifdef STATX_DIOALIGN
  wanted |= STATX_DIOALIGN;
#endif
  if (statx(descriptor, path.c_str(), 0, wanted, &status) != 0) {
    return {{name, fmt::format("{}: {}", path, std::strerror(errno)), State::kMissing, "check the path"}};
  }
  std::vector<Check> checks;
#ifdef STATX_DIOALIGN
  if ((status.stx_mask & STATX_DIOALIGN) != 0) {
    const bool direct = status.stx_dio_offset_align != 0 && status.stx_dio_offset_align <= kBlockSize;
    checks.push_back(Expect(direct, name + " direct I/O",
                            direct ? fmt::format("aligned to {} on the device, {} in memory",
                                                 status.stx_dio_offset_align, status.stx_dio_mem_align)
                                   : "not possible",
                            "use ext4, XFS or a raw device; here all data passes through the page cache"));
  }
#endif
  const bool block = S_ISBLK(status.stx_mode);
  const std::string queue = fmt::format("/sys/dev/block/{}:{}/", block ? status.stx_rdev_major : status.stx_dev_major,
                                        block ? status.stx_rdev_minor : status.stx_dev_minor);
  std::string base = queue + "queue/";
  // A partition's queue is its disk's.
  if (access(base.c_str(), F_OK) != 0) base = queue + "../queue/";
  const auto logical = Number(base + "logical_block_size");
  if (!logical.has_value()) return checks;
  checks.push_back(Expect(*logical <= kBlockSize, name + " disk",
                          fmt::format("blocks of {}, requests up to {} KiB, {} deep, scheduler {}", *logical,
                                      Number(base + "max_sectors_kb").value_or(0),
                                      Number(base + "nr_requests").value_or(0), FirstLine(base + "scheduler")),
                          "weightfs writes blocks of 4096 bytes; format the disk with that size", State::kMissing));
  return checks;
}

std::vector<Check> CheckGpus() {
  const auto gpu = client::Gpu::Open({.gpu = client::GpuMode::kAuto});
  if (!gpu.has_value()) return {{"GPU", gpu.error().what, State::kNotUsed, ""}};
  const client::GpuFacts facts = (*gpu)->facts();
  const std::string found =
      fmt::format("{}{}, CUDA {}", facts.count > 1 ? fmt::format("{} x ", facts.count) : "", facts.name, facts.cuda);
  const bool direct = facts.mode == client::GpuMode::kCufile;
  return {{"GPU", found, State::kUsed, ""},
          Expect(direct, "GPUDirect Storage",
                 direct ? fmt::format("cuFile {}: {}", facts.cufile, facts.why) : "bounce buffers: " + facts.why,
                 "cuFile with the nvidia-fs module or PCI P2PDMA avoids host memory; WEIGHTFS_CUFILE_LIBRARY names the "
                 "library of a Python package")};
}

}  // namespace weightfs::cli
