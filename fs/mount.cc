// SPDX-License-Identifier: Apache-2.0
#include "fs/mount.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "common/log.h"
#include "common/machine_memory.h"
#include "common/processes.h"
#include "fs/filesystem.h"
#include "fs/memory_pressure.h"
#include "fs/metrics_server.h"
#include "fs/mountpoint.h"
#include "fs/session.h"
#include "io/shared_pages.h"

namespace weightfs {

Mount::Mount() = default;

Result<std::unique_ptr<Mount>> Mount::Create(Store& store, MountOptions options) {
  std::unique_ptr<Mount> mount(new Mount);
  mount->options_ = std::move(options);
  if (store.read_only()) mount->options_.read_only = true;
  mount->filesystem_ = std::make_unique<Filesystem>(store, mount->options_);
  RETURN_IF_ERROR(mount->filesystem_->Start());
  ASSIGN_OR_RETURN(mount->session_, Session::Create(*mount->filesystem_, mount->options_));
  RETURN_IF_ERROR(mount->filesystem_->StartLeases());
  if (!mount->options_.metrics.empty()) {
    ASSIGN_OR_RETURN(mount->metrics_, MetricsServer::Listen(mount->options_.metrics));
  }
  RETURN_IF_ERROR(mount->session_->Mount());
  RETURN_IF_ERROR(mount->session_->Negotiate());
  if (mount->metrics_ != nullptr) {
    RETURN_IF_ERROR(mount->metrics_->Start(
        [raw = mount.get()](MetricsFormat format) { return MetricsText(raw->Measure(), format); }));
  }
  if (store.Hot().limit > 0) {
    const auto relieve = [&store] {
      if (MayBeShortOfMemory()) store.ShrinkHot();
    };
    ASSIGN_OR_RETURN(mount->pressure_, MemoryPressure::Watch(relieve, [&store] { store.CountHot(); }));
  }
  for (const std::string& line : mount->Features()) spdlog::debug("kernel: {}", line);
  return mount;
}

// The session ends first, because it unmounts and uses the filesystem.
Mount::~Mount() {
  metrics_.reset();
  pressure_.reset();
  session_.reset();
}

Result<void> Mount::Run() {
  if (const auto mounted = session_->FindOwnMount(); mounted.has_value() && !session_->mask().read_ahead)
    RaiseReadAhead(*mounted, options_.read_ahead);
  auto served = session_->Run();
  metrics_.reset();  // the store is closed next
  pressure_.reset();
  return served;
}

namespace {

// In seconds since the epoch; field 22 of /proc/self/stat counts clock ticks since the boot.
double StartOfProcess() {
  const std::string text = ReadProcFile("self/stat").value_or("");
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double ticks = 0;
  fields >> ticks;
  const auto seconds = [](clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
  };
  return seconds(CLOCK_REALTIME) - seconds(CLOCK_BOOTTIME) + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// nullopt where nobody has mounted fusectl. `device` is "MAJOR:MINOR".
std::optional<uint64_t> KernelRequests(const std::string& device) {
  std::ifstream file("/sys/fs/fuse/connections/" + device.substr(device.find(':') + 1) + "/waiting");
  uint64_t count = 0;
  return file >> count ? std::optional(count) : std::nullopt;
}

}  // namespace

MetricsSource Mount::Measure() const {
  MetricsSource source;
  source.stats = filesystem_->Stats();
  source.requests = filesystem_->metrics().Totals();
  source.scrub = filesystem_->store().Scrub();
  source.hot = filesystem_->store().Hot();
  source.catalog_free = filesystem_->store().CatalogFreeSpace();
  source.log_age = filesystem_->store().LogAge();
  source.kernel_requests = KernelRequests(session_->identity().device);
  source.store = options_.source;
  static const double start = StartOfProcess();  // a clock that is set must not change it
  source.start_seconds = start;
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  for (const timeval& time : {usage.ru_utime, usage.ru_stime}) {
    source.processor_seconds += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  }
  uint64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  source.resident_bytes = resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return source;
}

void Mount::Stop() { session_->Stop(); }

const MountedFilesystem& Mount::identity() const { return session_->identity(); }

std::vector<std::string> Mount::Features() const {
  return DescribeFeatures(session_->offer(), filesystem_->features, session_->mask());
}

Result<std::vector<std::string>> ProbeKernelFeatures(const std::vector<std::string>& without) {
  ASSIGN_OR_RETURN(const FeatureMask mask, ParseFeatureMask(without));
  std::string directory = "/tmp/weightfs-probe-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) return SystemError(directory, "cannot be made");
  const auto probed = ProbeOffer(directory);
  rmdir(directory.c_str());
  ASSIGN_OR_RETURN(const KernelOffer offer, probed);
  return DescribeFeatures(offer, ChooseFeatures(offer, mask, MaxPagesLimit()), mask);
}

HotStatistics ProbeHotFiles() {
  const auto pages = SharedPages::Create();
  if (pages == nullptr) return {};
  return {.limit = DefaultHotMemory({}, {}).value, .on_tmpfs = pages->on_tmpfs()};
}

}  // namespace weightfs
