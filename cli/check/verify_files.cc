// SPDX-License-Identifier: Apache-2.0
// Reads files of mounts, which verify every block that they read, and reports those whose checksums differ. Of a whole
// mount, the daemon also checks the catalog.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "cli/check/verify.h"
#include "cli/mount_table.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "common/json.h"
#include "common/printable.h"
#include "common/size_text.h"
#include "lease/ioctl.h"

namespace weightfs::cli {
namespace {

namespace fs = std::filesystem;

// What an interrupted check may have to repeat: the state is written after this many bytes.
constexpr uint64_t kStateInterval = 256 * kMiB;
// The default of --rate leaves most drives to the other work of a mount.
constexpr const char* kDirectoryRate = "200M";

constexpr uint64_t kStep = kMiB;                 // the largest request of the kernel to a mount
constexpr std::chrono::milliseconds kTick{100};  // between checks for an interrupt
constexpr size_t kListedBlocks = 16;

struct DamagedFile {
  std::string path;
  std::vector<uint64_t> offsets;  // bytes; of the first unreadable blocks, at most kListedBlocks
  uint64_t blocks = 0;            // all unreadable blocks
};

// The catalog of a whole mount.
struct CheckedCatalog {
  std::string path;  // of the mount
  uint64_t bytes = 0;
  std::string damage;       // empty: none
  std::string not_checked;  // why; empty: it was checked
};

struct Report {
  uint64_t files = 0, bytes = 0;
  std::vector<CheckedCatalog> catalogs;
  std::vector<DamagedFile> damaged;
  std::vector<std::string> failures;  // files that could not be checked, with the reason
  bool interrupted = false;

  bool catalog_damaged() const {
    return std::ranges::any_of(catalogs, [](const CheckedCatalog& catalog) { return !catalog.damage.empty(); });
  }
  int ExitCode() const {
    return (damaged.empty() && !catalog_damaged() ? kSuccess : kFsckUncorrected) |
           (failures.empty() ? 0 : kFsckOperationalError) | (interrupted ? kFsckCancelled : 0);
  }
};

// JSON has no text that is not UTF-8: such a path is the list of its bytes.
nlohmann::ordered_json JsonOf(const std::string& path) {
  if (IsUtf8(path)) return path;
  return std::vector<uint8_t>(path.begin(), path.end());
}

std::optional<std::string> PathOf(const nlohmann::json& json) {
  if (json.is_string()) return json.get<std::string>();
  const auto is_byte = [](const nlohmann::json& value) {
    return value.is_number_unsigned() && value.get<uint64_t>() < 256;
  };
  if (!json.is_array() || !std::ranges::all_of(json, is_byte)) return std::nullopt;
  const auto bytes = json.get<std::vector<uint8_t>>();
  return std::string(bytes.begin(), bytes.end());
}

// Reads files and collects what it finds.
class Verifier {
 public:
  // `rate`: bytes per second, 0: unlimited. `state`: see VerifyArguments.
  Verifier(uint64_t total, ByteCount rate, std::string state)
      : total_(total),
        rate_(rate),
        state_(std::move(state)),
        cancel_(CatchInterrupts()),
        memory_(kStep / kBlockSize) {}

  // Lets the daemon read the catalog of the mount whose root is `path`. Returns false once the check is interrupted.
  Result<bool> ReadCatalog(const std::string& path) {
    bar_.Update({.step = "reading the catalog"});
    ASSIGN_OR_RETURN(const UniqueFd root, OpenOnMount(path));
    weightfs_catalog_check check = {};
    check.version = WEIGHTFS_IOC_VERSION;
    CheckedCatalog catalog{.path = path};
    int result = -1;
    do {
      result = ioctl(root.get(), WEIGHTFS_IOC_CHECK_CATALOG, &check);
    } while (result != 0 && errno == EINTR && !cancel_);  // a stop and its continuation interrupt it, too
    if (result == 0) {
      catalog.bytes = check.bytes;
      if (check.damaged != 0) catalog.damage = std::string(check.damage, strnlen(check.damage, sizeof(check.damage)));
    } else if (errno == EINTR) {
      report_.interrupted = true;
      return false;
    } else if (errno == EPERM) {
      catalog.not_checked = "only root and the user of the mount may check it";
    } else if (errno == EBUSY) {
      catalog.not_checked = "another check of it is in progress";
    } else if (errno == ENOTTY) {
      catalog.not_checked = "the mount is of an older version";
    } else {
      return SystemError(path, "its catalog cannot be checked");
    }
    report_.catalogs.push_back(std::move(catalog));
    return true;
  }

  // Returns false once the check is interrupted.
  bool Read(const std::string& path) {
    DamagedFile damaged;
    const auto read = ReadFile(path, &damaged);
    if (damaged.blocks > 0) report_.damaged.push_back(std::move(damaged));
    if (read.has_value()) {
      ++report_.files;
    } else if (read.error().code == ErrorCode::kShutdown) {
      report_.interrupted = true;
    } else if (read.error().code != ErrorCode::kNotFound) {  // deleted meanwhile
      report_.failures.push_back(ToString(read.error()));
    }
    return !report_.interrupted;
  }

  // Reads all files of a directory, from the saved position on, and those below it on the same filesystem. Returns
  // false once the check is interrupted.
  Result<bool> ReadDirectory(const fs::path& root) {
    ASSIGN_OR_RETURN(last_, ReadPosition(root));
    struct stat status = {};
    if (lstat(root.c_str(), &status) != 0) return SystemError(root.string(), "cannot be accessed");
    ASSIGN_OR_RETURN(const bool whole, ReadTree(root, status.st_dev, {}, fs::path(last_)));
    if (!whole) return false;
    // Without its mount, the rest of the tree looks empty.
    struct stat now = {};
    const auto opened = OpenOnMount(root.string());
    if (!opened.has_value() || fstat(opened->get(), &now) != 0 || now.st_dev != status.st_dev) {
      RETURN_IF_ERROR(WritePosition(root));
      return MakeError(ErrorCode::kIo, "{}: the mount ended during the check", root.string());
    }
    // A position that stays would make the next check begin at the end.
    if (!state_.empty() && unlink(state_.c_str()) != 0 && errno != ENOENT) {
      return SystemError(state_, "cannot be removed");
    }
    return true;
  }

  Report& report() { return report_; }

 private:
  struct alignas(kBlockSize) Block {
    std::byte bytes[kBlockSize];
  };

  // The file with the position has the last path that was read completely, relative to the directory. Returns the path
  // to continue after; empty: from the beginning. A position in another directory is an error.
  Result<fs::path> ReadPosition(const fs::path& root) const {
    if (state_.empty()) return fs::path();
    if (access(state_.c_str(), F_OK) != 0) {
      if (errno == ENOENT) return fs::path();
      return SystemError(state_, "cannot be read");
    }
    std::ifstream stream(state_);
    std::string text(JsonLimits().bytes + 1, '\0');
    text.resize(static_cast<size_t>(stream.read(text.data(), static_cast<std::streamsize>(text.size())).gcount()));
    const auto json = ParseJson(text);
    const auto value_of = [&](const char* name) {
      return json && json->is_object() ? json->value(name, nlohmann::json()) : nlohmann::json();
    };
    const auto after = PathOf(value_of("after"));
    if (PathOf(value_of("directory")) != root.string() || !after) {
      return MakeError(ErrorCode::kInvalid, "{}: not the state of a check of {}; delete it, or name another file",
                       state_, root.string());
    }
    return fs::path(*after);
  }

  Result<void> WritePosition(const fs::path& root) const {
    if (state_.empty()) return {};
    const std::string temporary = state_ + ".new";
    std::ofstream stream(temporary, std::ios::trunc);
    stream << JsonText({{"directory", JsonOf(root.string())}, {"after", JsonOf(last_.string())}}) << std::flush;
    if (!stream || rename(temporary.c_str(), state_.c_str()) != 0) return SystemError(state_, "cannot be written");
    return {};
  }

  // Lets the mount read all data of a regular file, without its holes, from the devices, and verify it. `damaged` stays
  // empty for an intact file. Returns errors of opening and reading other than EIO; kShutdown: interrupted.
  Result<void> ReadFile(const std::string& path, DamagedFile* damaged) {
    damaged->path = path;
    UniqueFd file(open(path.c_str(), O_RDONLY | O_DIRECT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file) return SystemError(path, "cannot be opened");
    struct stat status = {};
    if (fstat(file.get(), &status) != 0) return SystemError(path, "cannot be accessed");
    if (!S_ISREG(status.st_mode)) return {};
    const auto size = static_cast<uint64_t>(status.st_size);
    for (uint64_t at = 0; at < size;) {
      const off_t data = lseek(file.get(), static_cast<off_t>(at), SEEK_DATA);
      if (data < 0) return errno == ENXIO ? Result<void>() : SystemError(path, "cannot be searched for data");
      const off_t hole = lseek(file.get(), data, SEEK_HOLE);
      if (hole < 0) return errno == ENXIO ? Result<void>() : SystemError(path, "cannot be searched for data");
      at = static_cast<uint64_t>(hole);
      const uint64_t begin = RoundDown(static_cast<uint64_t>(data), kBlockSize);
      RETURN_IF_ERROR(ReadRange(file.get(), path, begin, at, damaged));
    }
    return {};
  }

  Result<void> ReadRange(int file, const std::string& path, uint64_t begin, uint64_t end, DamagedFile* damaged) {
    while (begin < end) {
      const uint64_t size = std::min(end - begin, kStep);
      const ssize_t done = Read(file, begin, size);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0 && errno != EIO) return SystemError(path, "cannot be read");
      if (done == 0) return {};  // the file was shortened meanwhile
      if (done < 0) FindDamage(file, begin, begin + size, damaged);
      const uint64_t step = done < 0 ? size : std::min<uint64_t>(size, static_cast<uint64_t>(done));
      RETURN_IF_ERROR(Account(ByteCount{step}));
      begin += step;
    }
    return {};
  }

  // Returns the number of bytes that are intact, 0 behind the end of the file; -1 and errno otherwise.
  ssize_t Read(int file, uint64_t begin, uint64_t size) {
    const weightfs_range_check range{.version = WEIGHTFS_IOC_VERSION, .reserved = 0, .offset = begin, .length = size};
    if (ioctl(file, WEIGHTFS_IOC_CHECK_RANGE, &range) == 0) {
      struct stat now{};
      if (fstat(file, &now) != 0) return -1;
      const auto end = static_cast<uint64_t>(now.st_size);
      return static_cast<ssize_t>(std::min(size, end - std::min(end, begin)));
    }
    if (errno != ENOTTY) return -1;
    // An older mount: it reads from the devices what is not in its memory.
    return pread(file, memory_.data(), RoundUp(size, kBlockSize), static_cast<off_t>(begin));
  }

  // Finds the unreadable blocks of a range that cannot be read as a whole.
  void FindDamage(int file, uint64_t begin, uint64_t end, DamagedFile* damaged) {
    for (uint64_t at = begin; at < end; at += kBlockSize) {
      if (Read(file, at, kBlockSize) >= 0 || errno != EIO) continue;
      if (damaged->offsets.size() < kListedBlocks) damaged->offsets.push_back(at);
      ++damaged->blocks;
    }
  }

  // Counts a transfer, and waits until the rate permits the next one.
  Result<void> Account(ByteCount size) {
    report_.bytes += size.value;
    bar_.Update({.step = "reading data", .done = report_.bytes, .total = std::max(total_, report_.bytes)});
    if (cancel_) return ErrorCode::kShutdown;
    if (rate_.value == 0) return {};
    const auto now = std::chrono::steady_clock::now();
    next_ = std::max(next_, now) + std::chrono::nanoseconds(size.value * 1'000'000'000 / rate_.value);
    while (std::chrono::steady_clock::now() < next_) {
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(next_ - std::chrono::steady_clock::now(), kTick));
      if (cancel_) return ErrorCode::kShutdown;
    }
    return {};
  }

  // Reads everything below a directory of the tree in the order of names, from behind `after` on.
  Result<bool> ReadTree(const fs::path& root, dev_t device, const fs::path& below, const fs::path& after) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(root / below, error), end; !error && entry != end; entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (error && error != std::errc::no_such_file_or_directory) {
      report_.failures.push_back(fmt::format("{}: {}", (root / below).string(), error.message()));
    }
    std::ranges::sort(names);
    const std::string first = after.empty() ? std::string() : after.begin()->string();
    for (const std::string& name : names) {
      if (name < first) continue;
      const fs::path path = below / name;
      struct stat status = {};
      if (lstat((root / path).c_str(), &status) != 0) {
        const Error failed = SystemError((root / path).string(), "cannot be accessed");
        if (failed.code != ErrorCode::kNotFound) report_.failures.push_back(ToString(failed));
        continue;
      }
      if (status.st_dev != device) continue;
      if (S_ISDIR(status.st_mode)) {
        const fs::path rest = name == first ? after.lexically_relative(name) : fs::path();
        ASSIGN_OR_RETURN(const bool more, ReadTree(root, device, path, rest == "." ? fs::path() : rest));
        if (!more) return false;
        continue;
      }
      if (!S_ISREG(status.st_mode) || (name == first && after == fs::path(name))) continue;
      if (status.st_nlink > 1 && !linked_.emplace(status.st_dev, status.st_ino).second) continue;
      if (!Read((root / path).string())) {
        RETURN_IF_ERROR(WritePosition(root));
        return false;
      }
      last_ = path;
      if (report_.bytes - saved_ < kStateInterval) continue;
      saved_ = report_.bytes;
      RETURN_IF_ERROR(WritePosition(root));
    }
    return true;
  }

  ProgressBar bar_{"verify"};
  const uint64_t total_;
  const ByteCount rate_;
  const std::string state_;  // the file with the position; empty: none
  const std::atomic<bool>& cancel_;
  std::vector<Block> memory_;                     // aligned for O_DIRECT
  std::chrono::steady_clock::time_point next_{};  // the earliest time of the next transfer
  Report report_;
  std::set<std::pair<dev_t, ino_t>> linked_;  // files with several names that were read
  fs::path last_;                             // the last file that was read completely
  uint64_t saved_ = 0;
};

int Show(bool as_json, const Report& report) {
  if (as_json) {
    nlohmann::ordered_json json = {{"files", report.files},
                                   {"bytes", report.bytes},
                                   {"interrupted", report.interrupted},
                                   {"catalogs", nlohmann::ordered_json::array()},
                                   {"damaged", nlohmann::ordered_json::array()},
                                   {"failures", report.failures}};
    for (const CheckedCatalog& catalog : report.catalogs) {
      json["catalogs"].push_back({{"path", catalog.path},
                                  {"bytes", catalog.bytes},
                                  {"damage", catalog.damage},
                                  {"not_checked", catalog.not_checked}});
    }
    for (const DamagedFile& file : report.damaged) {
      json["damaged"].push_back({{"path", file.path}, {"blocks", file.blocks}, {"offsets", file.offsets}});
    }
    ShowJson(json);
    return report.ExitCode();
  }
  std::string catalogs;
  for (const CheckedCatalog& catalog : report.catalogs) {
    const std::string path = Printable(catalog.path);
    if (!catalog.damage.empty()) {
      Print(stdout, Paint(Tone::kWarning, fmt::format("{}: the index of the catalog is damaged: {}; unmount the "
                                                      "store and mount it again",
                                                      path, Printable(catalog.damage))) +
                        "\n");
    } else if (!catalog.not_checked.empty()) {
      Print(stdout, "{}: the catalog was not checked: {}\n", path, catalog.not_checked);
    } else {
      catalogs += fmt::format(", catalog {}", FormatSize(ByteCount{catalog.bytes}));
    }
  }
  for (const DamagedFile& file : report.damaged) {
    Print(stdout, Paint(Tone::kWarning, fmt::format("{}: {} damaged blocks, the first at byte {}", Printable(file.path),
                                                    file.blocks, file.offsets.front())) +
                      "\n");
  }
  for (const std::string& failure : report.failures) Print(stdout, Printable(failure) + "\n");
  std::string result = report.catalog_damaged() ? "no file is damaged" : "no damage";
  if (!report.damaged.empty()) {
    result = fmt::format("{} files are damaged: restore them from a backup", report.damaged.size());
  }
  if (!report.failures.empty()) result += fmt::format("; {} could not be checked", report.failures.size());
  Print(stdout, "{} files, {} read{}: {}{}\n", report.files, FormatSize(ByteCount{report.bytes}), catalogs,
        report.ExitCode() == kSuccess ? Paint(Tone::kGood, result) : result, report.interrupted ? "; interrupted" : "");
  return report.ExitCode();
}

struct Target {
  std::string path;
  bool directory;
  bool root;       // of the mount
  uint64_t bytes;  // an upper bound
};

// Returns kInvalid if reads there are not compared with checksums.
Result<Target> Examine(const std::string& path) {
  Target target{.path = ResolvePath(path), .directory = false, .root = false, .bytes = 0};
  ASSIGN_OR_RETURN(const UniqueFd file, OpenOnMount(target.path));
  struct stat status = {};
  struct statvfs space = {};
  weightfs_info info = {};
  if (fstat(file.get(), &status) != 0 || fstatvfs(file.get(), &space) != 0 ||
      ioctl(file.get(), WEIGHTFS_IOC_INFO, &info) != 0) {
    return SystemError(path, "cannot be accessed");
  }
  if ((info.features & WEIGHTFS_FEATURE_UNVERIFIED) != 0) {
    return MakeError(ErrorCode::kInvalid, "{}: its mount has the option noverify; mount it without", path);
  }
  target.directory = S_ISDIR(status.st_mode);
  target.root = info.inode == kRootInode.value;
  target.bytes = target.directory ? uint64_t{space.f_blocks - space.f_bfree} * space.f_frsize
                                  : static_cast<uint64_t>(status.st_size);
  return target;
}

// Reads what it can; the report has the rest.
Report Read(const VerifyArguments& arguments, const std::vector<std::string>& paths) {
  uint64_t total = 0;
  bool has_directory = false;
  std::vector<Target> targets;
  std::vector<std::string> failures;
  for (const std::string& path : paths) {
    auto target = Examine(path);
    if (!target.has_value()) {
      failures.push_back(ToString(target.error()));
      continue;
    }
    has_directory |= target->directory;
    total += target->bytes;
    targets.push_back(std::move(*target));
  }
  const std::string rate = !arguments.rate.empty() ? arguments.rate : has_directory ? kDirectoryRate : "0";
  Verifier verifier(total, *ParseSize(rate), arguments.state);
  for (const Target& target : targets) {
    const auto checked = target.root ? verifier.ReadCatalog(target.path) : Result<bool>(true);
    if (!checked.has_value()) failures.push_back(ToString(checked.error()));
    if (checked.has_value() && !*checked) break;
    const auto more =
        target.directory ? verifier.ReadDirectory(target.path) : Result<bool>(verifier.Read(target.path));
    if (!more.has_value()) failures.push_back(ToString(more.error()));
    if (more.has_value() && !*more) break;
  }
  Report report = std::move(verifier.report());
  report.failures.insert(report.failures.end(), failures.begin(), failures.end());
  return report;
}

}  // namespace

int VerifyOnMounts(const VerifyArguments& arguments, const std::vector<std::string>& paths) {
  return Show(arguments.json, Read(arguments, paths));
}

}  // namespace weightfs::cli
