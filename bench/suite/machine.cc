// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/machine.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/size_text.h"

namespace weightfs::bench {
namespace {

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// The mount that a path lies on: the longest mountpoint that leads to it. "ext4 on /dev/vda".
std::string FilesystemOf(const std::string& path) {
  std::error_code error;
  const std::string real = std::filesystem::canonical(path, error).string();
  std::ifstream mounts("/proc/self/mounts");
  std::string best, text = "unknown";
  for (std::string source, point, type, rest; mounts >> source >> point >> type && std::getline(mounts, rest);) {
    const bool above = point == "/" || real == point || real.starts_with(point + "/");
    if (above && point.size() >= best.size()) best = point, text = fmt::format("{} on {}", type, source);
  }
  return text;
}

std::string HugePages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  std::getline(file, line);
  const size_t begin = line.find('['), end = line.find(']');
  return begin == std::string::npos ? "unknown" : line.substr(begin + 1, end - begin - 1);
}

// Whether the machine is a guest that tells its host of free memory (VIRTIO_BALLOON_F_REPORTING), which then takes it
// back: memory that was free for a moment costs a fault in the host when it is touched again.
bool GivesMemoryBack() {
  constexpr const char* kBalloon = "0x0005";
  constexpr size_t kReporting = 5;  // a bit of `features`, written as a digit each
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator("/sys/bus/virtio/devices", error)) {
    std::ifstream kind(device.path() / "device"), bits(device.path() / "features");
    std::string id, features;
    if (!(kind >> id && bits >> features) || id != kBalloon || features.size() <= kReporting) continue;
    if (features[kReporting] == '1') return true;
  }
  return false;
}

}  // namespace

ProcessorTimes ReadProcessorTimes() {
  std::ifstream file("/proc/stat");
  std::string name;
  file >> name;
  ProcessorTimes times;
  uint64_t value = 0;
  // user nice system idle iowait irq softirq steal; what follows is counted in user already.
  for (int field = 0; field < 8 && file >> value; ++field) {
    times.total += value;
    if (field == 3 || field == 4) times.idle += value;
    if (field == 7) times.steal = value;
  }
  return times;
}

double StealBetween(const ProcessorTimes& before, const ProcessorTimes& after) {
  const auto total = static_cast<double>(after.total - before.total);
  return total > 0 ? static_cast<double>(after.steal - before.steal) / total : 0;
}

double BusyBetween(const ProcessorTimes& before, const ProcessorTimes& after) {
  const auto total = static_cast<double>(after.total - before.total);
  return total > 0 ? 1 - static_cast<double>(after.idle - before.idle) / total : 0;
}

double LoadAverage() {
  double averages[1] = {};
  return getloadavg(averages, 1) == 1 ? averages[0] : 0;
}

std::vector<std::pair<std::string, std::string>> FactsOf(Lab& lab) {
  utsname system{};
  uname(&system);
  const SuiteOptions& options = lab.options();
  const auto size = [](uint64_t bytes) { return FormatSize(ByteCount{bytes}); };
  std::string command = fmt::format("--size {}M --rounds {}", lab.size() / kMiB, options.rounds);
  command += fmt::format(" --seed {}", options.seed);
  if (options.quick) command += " --quick";
  if (options.drop_caches) command += " --drop-caches";
  if (options.scaling) command += fmt::format(" --scaling --files {}", options.many_files);
  if (options.large_size > 0) command += fmt::format(" --large-size {}M", options.large_size / kMiB);
  for (const auto& row : options.only) command += " --only " + row;
  return {{"weightfs", WEIGHTFS_VERSION},
          {"time", fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr)))},
          {"kernel", fmt::format("{} {}", system.sysname, system.release)},
          {"processors", fmt::format("{} × {}", get_nprocs(), ProcessorName())},
          {"memory", size(KernelFigure(0, "MemTotal"))},
          {"free memory", GivesMemoryBack() ? "goes back to the host machine: slow when touched again" : "is kept"},
          {"huge pages", HugePages()},
          {"host's filesystem", FilesystemOf(lab.host().directory())},
          {"store", lab.has_own_store() ? "made for this run" : lab.store()},
          {"mount options", options.mount_options.empty() ? "defaults" : options.mount_options},
          {"size of the file", size(lab.size())},
          {"run", command}};
}

void ResetPeakMemory(pid_t pid) {
  const auto file = File::Open(fmt::format("/proc/{}/clear_refs", pid), O_WRONLY);
  if (file.has_value() && write(file->get(), "5", 1) != 1) return;  // then the peak is that since the mount
}

DaemonMemory MemoryOf(const Place& place) {
  constexpr uint64_t kBeside = 64 * kMiB;
  DaemonMemory memory;
  memory.peak = KernelFigure(place.daemon(), "VmHWM");
  memory.now = KernelFigure(place.daemon(), "VmRSS");
  const auto counters = place.Counters();
  if (counters.has_value() && counters->buffer_capacity > 0) memory.limit = counters->buffer_capacity + kBeside;
  return memory;
}

}  // namespace weightfs::bench
