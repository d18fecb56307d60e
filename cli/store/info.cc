// SPDX-License-Identifier: Apache-2.0
// weightfs info: what a store, a mount or a file is made of.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <type_traits>

#include "cli/commands.h"
#include "cli/mount_table.h"
#include "cli/output.h"
#include "cli/scrub_report.h"
#include "cli/store_look.h"
#include "common/printable.h"
#include "common/processes.h"
#include "common/shell_quote.h"
#include "common/size_text.h"
#include "lease/ioctl.h"
#include "store/volume/device_contents.h"
#include "store/volume/disk_partition.h"

namespace weightfs::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  std::string path;
  bool json = false, udev = false;
};

std::string Bytes(uint64_t bytes) { return FormatSize(ByteCount{bytes}); }

Uuid UuidOf(const weightfs_info& info) {
  Uuid id;
  std::copy(std::begin(info.store_id), std::end(info.store_id), id.begin());
  return id;
}

void AddSpace(Json* json, const Space& space) {
  (*json)["total_bytes"] = space.total;
  (*json)["free_bytes"] = space.free;
  (*json)["available_bytes"] = space.available;
}

std::string SpaceLine(const Space& space) {
  return fmt::format("{} total, {} used, {} available", Bytes(space.total), Bytes(space.total - space.free),
                     Bytes(space.available));
}

std::string NotMounted(const Result<StoreLook>& look) {
  if (look.has_value() && !look->lost.empty()) return "no; " + look->lost;
  const bool unclean = look.has_value() && look->clean_unmount == false;
  return unclean ? "no, and was not unmounted cleanly: the next mount recovers its last commit" : "no";
}

std::string MountedOn(const std::optional<MountEntry>& mount, const StoreHolder& holder, const Keepers& keepers,
                      const Result<StoreLook>& look) {
  if (mount.has_value()) return mount->directory;
  if (!holder.held) return NotMounted(look);
  const std::string process = DescribeProcess(holder.process);
  switch (holder.state) {
    case StoreHolder::State::kServing:
      return fmt::format("not here; still served by {}: {}", process, DescribeKeepers(keepers));
    case StoreHolder::State::kClosing: return fmt::format("no; {} is closing it", process);
    case StoreHolder::State::kWorking: return fmt::format("no; in use by {}", process);
  }
  return {};
}

Result<int> ShowStore(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const StoreLocation named, FindStore(arguments.path));
  const StoreLocation store = FindServed(named);
  ASSIGN_OR_RETURN(const auto description, Describe(store));
  const StoreView view = ViewStore(store);
  const auto& [holder, mount, stale, keepers, look] = view;
  const std::string dead =
      stale.empty() ? ""
                    : fmt::format("         the mount on {} is stale: weightfs umount {}\n", Printable(stale),
                                  Printable(ShellQuote(stale)));
  const bool counted = look.has_value() && look->space.has_value();
  if (arguments.json) {
    Json json = Json::parse(ToJson(description));
    if (store.described) json["index"] = store.directory;
    json["mounted_on"] = mount.has_value() ? Json(mount->directory) : Json();
    if (!mount.has_value() && view.served()) {
      json["served_by"] = holder.process > 0 ? Json(holder.process) : Json();
    }
    if (look.has_value()) json["clean_unmount"] = look->clean_unmount.has_value() ? Json(*look->clean_unmount) : Json();
    if (counted) AddSpace(&json, *look->space);
    if (look.has_value() && look->scrubs.has_value()) json["scrub"] = ScrubJson(*look->scrubs);
    ShowJson(json);
  } else {
    const std::string index = store.described ? fmt::format("index    {}\n", Printable(store.directory)) : "";
    Print(stdout, "store    {}\nid       {}\n{}format   {}\ncreated  {}\nmounted  {}\n{}", Printable(arguments.path),
          ToString(description.id), index, description.format, Printable(description.created),
          Printable(MountedOn(mount, holder, keepers, look)), dead);
    if (counted) Print(stdout, "space    {}\n", SpaceLine(*look->space));
    if (look.has_value() && look->scrubs.has_value()) Print(stdout, ScrubLines(*look->scrubs));
    Table table({{"device", true}, {"size", true}, {"path"}, {"id"}});
    for (const auto& device : description.devices) {
      table.Add({fmt::format("{}", device.index.value), FormatSize(device.size),
                 Printable(DevicePath(store.directory, device)), ToString(device.id)});
    }
    Print(stdout, table.ToString());
  }
  RETURN_IF_ERROR(look);
  return kSuccess;
}

Result<int> ShowMount(const Arguments& arguments, int descriptor, const weightfs_info& info) {
  const auto mount = FindMountAbove(arguments.path);
  ASSIGN_OR_RETURN(const Space space, SpaceOfMount(arguments.path));
  weightfs_stats stats{};
  stats.version = WEIGHTFS_IOC_VERSION;
  const bool counted =
      (info.features & WEIGHTFS_FEATURE_STATS) != 0 && ioctl(descriptor, WEIGHTFS_IOC_STATS, &stats) == 0;
  std::optional<weightfs_hot> hot(std::in_place);
  if (ioctl(descriptor, WEIGHTFS_IOC_HOT, &*hot) != 0) hot.reset();
  const auto scrubs = AskForScrubs(descriptor);
  if (arguments.json) {
    Json json = {{"mount", mount.has_value() ? Json(mount->directory) : Json()},
                 {"store", mount.has_value() ? Json(mount->source) : Json()},
                 {"id", ToString(UuidOf(info))},
                 {"format", info.format},
                 {"read_only", (info.features & WEIGHTFS_FEATURE_READ_ONLY) != 0}};
    AddSpace(&json, space);
    if (counted) {
      json["statistics"] = {{"requests", stats.requests},
                            {"read_bytes", stats.read_bytes},
                            {"written_bytes", stats.written_bytes},
                            {"device_read_bytes", stats.device_read_bytes},
                            {"device_written_bytes", stats.device_written_bytes},
                            {"commits", stats.commits},
                            {"flushes", stats.flushes},
                            {"checksum_errors", stats.checksum_errors},
                            {"buffer_capacity", stats.buffer_capacity},
                            {"buffer_in_use", stats.buffer_in_use},
                            {"write_buffers", stats.write_buffers},
                            {"write_buffers_in_use", stats.write_buffers_in_use},
                            {"dirty_bytes", stats.dirty_bytes},
                            {"resident_inodes", stats.resident_inodes},
                            {"leases", stats.leases},
                            {"pinned_bytes", stats.pinned_bytes},
                            {"granted_bytes", stats.granted_bytes},
                            {"leased_read_bytes", stats.leased_read_bytes},
                            {"leased_written_bytes", stats.leased_written_bytes},
                            {"log_bytes", stats.log_bytes},
                            {"log_intact", stats.log_intact != 0}};
    }
    if (hot) {
      json["hot"] = {{"limit", hot->limit}, {"used", hot->used}, {"mapped", hot->mapped},
                     {"loaded", hot->loaded}, {"evictions", hot->evictions}};
    }
    if (scrubs.has_value()) json["scrub"] = ScrubJson(*scrubs);
    return ShowJson(json);
  }
  Print(stdout, "mount    {}{}\nstore    {}\nid       {}\nspace    {}\n",
        mount.has_value() ? mount->directory : arguments.path,
        (info.features & WEIGHTFS_FEATURE_READ_ONLY) != 0 ? " (read-only)" : "",
        mount.has_value() ? mount->source : "unknown", ToString(UuidOf(info)), SpaceLine(space));
  if (counted) {
    Print(stdout,
          "read     {} by programs, {} from the devices ({} of it by leases)\n"
          "written  {} by programs, {} to the devices ({} of it by leases), {} commits\n"
          "memory   {} of {} buffers in use, {} not yet written\nleases   {}, of {} to read and {} to write\n"
          "log      {} on the devices{}\nerrors   {} checksum mismatches\n",
          Bytes(stats.read_bytes), Bytes(stats.device_read_bytes), Bytes(stats.leased_read_bytes),
          Bytes(stats.written_bytes), Bytes(stats.device_written_bytes), Bytes(stats.leased_written_bytes),
          stats.commits, Bytes(stats.buffer_in_use), Bytes(stats.buffer_capacity), Bytes(stats.dirty_bytes),
          stats.leases, Bytes(stats.pinned_bytes), Bytes(stats.granted_bytes), Bytes(stats.log_bytes),
          stats.log_intact != 0 ? "" : ", not intact", stats.checksum_errors);
  }
  if (hot) {
    Print(stdout, "hot      {} of {} in use, {} mapped or read by programs, {} read from the devices for that\n",
          Bytes(hot->used), Bytes(hot->limit), Bytes(hot->mapped), Bytes(hot->loaded));
  }
  if (scrubs.has_value()) Print(stdout, ScrubLines(*scrubs));
  return kSuccess;
}

struct FileMap {
  std::vector<weightfs_extent> runs;  // records that go on where the last one ended, in the file and on the device
  std::optional<uint64_t> pending;    // bytes that the mount has in memory alone; nullopt: unknown
};

// Appends all extents. Returns false, with errno, when the ioctl fails.
template <typename List>
bool AppendExtents(int descriptor, unsigned long command, FileMap* map) {
  List page{};
  constexpr size_t kMost = std::extent_v<decltype(page.extents)>;
  do {
    page.version = WEIGHTFS_IOC_VERSION;
    if (ioctl(descriptor, command, &page) != 0) return false;
    for (size_t index = 0; index < std::min<size_t>(page.count, kMost); ++index) {
      const weightfs_extent& next = page.extents[index];
      if (!map->runs.empty()) {
        weightfs_extent& last = map->runs.back();
        if (last.first + last.length == next.first && last.physical + last.length == next.physical &&
            last.device == next.device && last.flags == next.flags) {
          last.length += next.length;
          continue;
        }
      }
      map->runs.push_back(next);
    }
  } while (page.count == kMost);
  if constexpr (requires { page.pending; }) map->pending = page.pending;
  return true;
}

// Writes nothing out: that would commit half of a replacement of the file.
Result<FileMap> ReadExtents(int descriptor, const std::string& path) {
  FileMap map;
  if (AppendExtents<weightfs_extent_list>(descriptor, WEIGHTFS_IOC_EXTENT_LIST, &map)) return map;
  // The mount may be of version 0.2 or older.
  if (errno == ENOTTY && AppendExtents<weightfs_extents>(descriptor, WEIGHTFS_IOC_EXTENTS, &map)) return map;
  return MakeError(ErrorCode::kIo, "{}: its extents cannot be read: {}", path, std::strerror(errno));
}

// The greatest power of two that divides the place on the device.
uint64_t Alignment(const weightfs_extent& extent) {
  return extent.physical == 0 ? kBlockSize : uint64_t{1} << std::countr_zero(extent.physical);
}

std::string ExtentNotes(const weightfs_extent& extent) {
  std::string notes;
  if ((extent.flags & WEIGHTFS_EXTENT_UNWRITTEN) != 0) notes = "unwritten";
  if ((extent.flags & WEIGHTFS_EXTENT_SHARED) != 0) notes += notes.empty() ? "shared" : ", shared";
  return notes;
}

void PrintExtents(const Arguments& arguments, const struct stat& status, const FileMap& map, uint64_t mapped) {
  const auto& extents = map.runs;
  const auto size = static_cast<uint64_t>(status.st_size);
  const uint64_t covered = RoundUp(size, kBlockSize), pending = map.pending.value_or(0), located = mapped + pending;
  Print(stdout, "{}: {} ({} bytes), inode {}\n", Paint(Tone::kBold, Printable(arguments.path)), Bytes(size), size,
        status.st_ino);
  Print(stdout, "{} run{} on the device, {} mapped{}{}\n", extents.size(), extents.size() == 1 ? "" : "s",
        Bytes(mapped), pending > 0 ? fmt::format(", {} not yet written (fsync writes it)", Bytes(pending)) : "",
        located < covered
            ? fmt::format(", {} of holes{}", Bytes(covered - located), map.pending ? "" : " or not yet written")
            : "");
  if (extents.empty()) return;
  Table table({{"logical", true}, {"length", true}, {"device", true}, {"physical", true}, {"aligned to", true}, {""}});
  for (const weightfs_extent& extent : extents) {
    table.Add({fmt::format("{}", extent.first), Bytes(extent.length), fmt::format("{}", extent.device),
               fmt::format("{}", extent.physical), Bytes(Alignment(extent)), ExtentNotes(extent)});
  }
  Print(stdout, table.ToString());
}

Result<int> ShowFile(const Arguments& arguments, int descriptor, const struct stat& status) {
  ASSIGN_OR_RETURN(const FileMap map, ReadExtents(descriptor, arguments.path));
  uint64_t mapped = 0;
  for (const weightfs_extent& extent : map.runs) mapped += extent.length;
  if (!arguments.json) {
    PrintExtents(arguments, status, map, mapped);
    return kSuccess;
  }
  Json json = {{"file", arguments.path}, {"inode", status.st_ino},   {"size", status.st_size},
               {"mapped_bytes", mapped}, {"extents", Json::array()}};
  json["pending_bytes"] = map.pending ? Json(*map.pending) : Json();
  for (const weightfs_extent& extent : map.runs) {
    json["extents"].push_back({{"logical", extent.first},
                               {"length", extent.length},
                               {"device", extent.device},
                               {"physical", extent.physical},
                               {"alignment", Alignment(extent)},
                               {"unwritten", (extent.flags & WEIGHTFS_EXTENT_UNWRITTEN) != 0},
                               {"shared", (extent.flags & WEIGHTFS_EXTENT_SHARED) != 0}});
  }
  return ShowJson(json);
}

// The names of values are those of udev's blkid. A filesystem on several devices has one UUID, and one UUID_SUB each.
Result<int> ShowUdevProperties(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto device, OpenToExamine(arguments.path));
  ASSIGN_OR_RETURN(const Superblock found, ReadSuperblock(*device));
  const std::string id = ToString(found.store_id), part = ToString(found.device_id);
  const std::string label = PartitionName(found.store_id, found.device_index.value);
  Print(stdout,
        "ID_FS_TYPE=weightfs\nID_FS_USAGE=other\nID_FS_VERSION={}\nID_FS_UUID={}\n"
        "ID_FS_UUID_ENC={}\nID_FS_UUID_SUB={}\nID_FS_UUID_SUB_ENC={}\nID_FS_LABEL={}\n"
        "ID_FS_LABEL_ENC={}\n",
        kFormatVersion, id, id, part, part, label, label);
  return kSuccess;
}

Result<int> Run(const Arguments& arguments) {
  if (arguments.udev) return ShowUdevProperties(arguments);
  if (NamesDevices(arguments.path)) return ShowStore(arguments);
  struct stat status = {};
  if (stat(arguments.path.c_str(), &status) != 0) return AccessError(arguments.path, "cannot be accessed");
  if (S_ISDIR(status.st_mode) && (HoldsStore(arguments.path) || FindDamage(arguments.path))) {
    return ShowStore(arguments);
  }
  if (!S_ISDIR(status.st_mode) && !S_ISREG(status.st_mode)) {
    return Error{ErrorCode::kInvalid, arguments.path + ": neither a directory nor a regular file"};
  }
  const UniqueFd file(open(arguments.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return SystemError(arguments.path, "cannot be opened");
  weightfs_info info{};
  if (ioctl(file.get(), WEIGHTFS_IOC_INFO, &info) != 0 || info.version == 0) {
    return MakeError(ErrorCode::kInvalid,
                     "{}: neither a store nor in a mount of weightfs; 'findmnt -t fuse.weightfs' lists the mounts",
                     arguments.path);
  }
  return S_ISDIR(status.st_mode) ? ShowMount(arguments, file.get(), info) : ShowFile(arguments, file.get(), status);
}

}  // namespace

Command InfoCommand() {
  auto arguments = std::make_shared<Arguments>();
  Command command("info", "Show the properties of a store, a mount or a file");
  command.Add("PATH", &arguments->path, "A store's directory or devices, a mounted directory, or a file in one");
  command.Add("--json", &arguments->json, "Print JSON: bytes, never rounded");
  command.Add("--udev", &arguments->udev,
              "PATH is a device of a store: print what it is for rules of udev, so that lsblk -f shows it");
  command.footer =
      "For a file, info lists its extents: the offset in the file, the device, the offset there and its "
      "alignment.\n\n"
      "Examples:\n"
      "  weightfs info /srv/tensors\n"
      "  weightfs info /dev/disk/by-id/nvme-A\n"
      "  weightfs info /mnt/tensors\n"
      "  weightfs info /mnt/tensors/model.pt";
  command.run = [arguments] { return Run(*arguments); };
  return command;
}

}  // namespace weightfs::cli
