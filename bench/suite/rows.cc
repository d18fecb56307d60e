// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/rows.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

namespace weightfs::bench {
namespace {

constexpr Target kSequentialRead{.reference = 0.95, .host = 1.0, .slow_host = 1.3, .in_memory = 0.6};
constexpr Target kSequentialWrite{.reference = 0.90, .host = 1.3, .in_memory = 0.6};
constexpr Target kHalfOfHost{.host = 0.5};
constexpr Target kDirect{.reference = 0.95, .host_to_reference = 0.95, .fio_in_memory = 1.0};
constexpr Target kUpstream{.beside = 1.0};
constexpr Target kOtherMemory{.beside = 0.90};

constexpr RowSpec kRows[] = {
    {"read-1m", "read", "sequential read, 1 MiB calls, cold", Unit::kBytes, kReadReference, kSequentialRead},
    {"read-whole", "read", "the whole file in one call, cold", Unit::kBytes, kReadReference, kSequentialRead},
    {"mmap", "read", "mmap, in order, cold", Unit::kBytes, kReadReference, {.reference = 0.70, .host = 0.8}},
    {"aio-1", "read", "libaio on the mount, 1 MiB, depth 1", Unit::kBytes, kReadReference, {}},
    {"aio-32", "read", "libaio on the mount, 1 MiB, depth 32", Unit::kBytes, kReadReference, {.reference = 0.90}},
    {"aio-128", "read", "libaio on the mount, 1 MiB, depth 128", Unit::kBytes, kReadReference, {.reference = 0.95}},
    {"reread", "read", "the third read in a row, 1 MiB calls", Unit::kBytes, {}, {.host = 0.8}},
    {"readers-8",
     "read",
     "eight processes read one cold file",
     Unit::kBytes,
     kReadReference,
     {.reference = 0.95, .host = 1.0}},
    {"write-1m", "write", "write + fsync, 1 MiB calls", Unit::kBytes, kWriteReference, kSequentialWrite},
    {"write-whole", "write", "write + fsync, one call", Unit::kBytes, kWriteReference, kSequentialWrite},
    {"write-unaligned", "write", "write + fsync, 1 MiB calls, unaligned memory", Unit::kBytes, kWriteReference,
     kSequentialWrite},
    {"write-whole-unaligned", "write", "write + fsync, one call, unaligned memory", Unit::kBytes, kWriteReference,
     kSequentialWrite},
    {"random-4k-1", "random", "random reads, 4 KiB, depth 1", Unit::kReads, "random-4k-1", {.reference = 0.70}},
    {"random-4k-32", "random", "random reads, 4 KiB, depth 32", Unit::kReads, "random-4k-32", {.reference = 0.95}},
    {"random-16k-1", "random", "random reads, 16 KiB, depth 1", Unit::kReads, "random-16k-1", {}},
    {"random-16k-32", "random", "random reads, 16 KiB, depth 32", Unit::kReads, "random-16k-32", {}},
    {"random-64k-1", "random", "random reads, 64 KiB, depth 1", Unit::kReads, "random-64k-1", {}},
    {"random-64k-32", "random", "random reads, 64 KiB, depth 32", Unit::kReads, "random-64k-32", {}},
    {"torch-save", "torch", "torch.save + fsync", Unit::kBytes, {}, {.host = 1.3}},
    {"torch-load", "torch", "torch.load, cold", Unit::kBytes, {}, {.host = 1.0}},
    {"safetensors-save", "safetensors", "safetensors save_file + fsync", Unit::kBytes, {}, {}},
    {"safetensors-load", "safetensors", "safetensors load_file, cold", Unit::kBytes, {}, {.host = 1.0}},
    {"numpy-save", "numpy", "np.save + fsync", Unit::kBytes, {}, {}},
    {"numpy-load", "numpy", "np.load, cold", Unit::kBytes, {}, {}},
    {"create", "small", "create, write 64 KiB, close", Unit::kFiles, {}, kHalfOfHost},
    {"stat", "small", "stat of what was just written", Unit::kFiles, {}, kHalfOfHost},
    {"stat-again", "small", "stat again", Unit::kFiles, {}, kHalfOfHost},
    {"list", "small", "list, for the first time since a change", Unit::kFiles, {}, kHalfOfHost},
    {"list-again", "small", "list again", Unit::kFiles, {}, kHalfOfHost},
    {"unlink", "small", "unlink", Unit::kFiles, {}, kHalfOfHost},
    {"direct-read", "direct", "a handle reads a tensor by a lease", Unit::kBytes, kDirectReadReference, kDirect},
    {"direct-read-unaligned", "direct", "the same into unaligned memory", Unit::kBytes, kDirectReadReference,
     kOtherMemory, "direct-read"},
    {"direct-read-4k-pages",
     "direct",
     "the same into scattered pages of 4 KiB",
     Unit::kBytes,
     kDirectReadReference,
     {},
     "direct-read"},
    {"direct-write", "direct", "a handle writes a tensor by a lease, durable", Unit::kBytes, kDirectWriteReference,
     kDirect},
    {"direct-write-unaligned", "direct", "the same from unaligned memory", Unit::kBytes, kDirectWriteReference,
     kOtherMemory, "direct-write"},
    {"direct-write-4k-pages",
     "direct",
     "the same from scattered pages of 4 KiB",
     Unit::kBytes,
     kDirectWriteReference,
     {},
     "direct-write"},
    {"save-many", "direct", "64 KiB tensors by one save_many, durable", Unit::kFiles, {}, {.disk_host = 10}},
    {"load-many", "direct", "the same by one load_many, cold", Unit::kFiles, {}, {}},
    {"deepspeed-write", "handles", "DeepSpeed's aio_handle + fsync", Unit::kBytes, {}, {}},
    {"deepspeed-read", "handles", "DeepSpeed's aio_handle, cold", Unit::kBytes, {}, {}},
    {"aio-handle-write", "handles", "weightfs' aio_handle + fsync", Unit::kBytes, {}, kUpstream, "deepspeed-write"},
    {"aio-handle-read", "handles", "weightfs' aio_handle, cold", Unit::kBytes, {}, kUpstream, "deepspeed-read"},
    {"devices-read", "devices", "read, two throttled devices", Unit::kBytes, {}, {.one_device = 1.9}},
    {"devices-write", "devices", "write + fsync, two throttled devices", Unit::kBytes, {}, {.one_device = 1.9}},
};

bool Matches(std::string_view text, const std::string& pattern) {
  return fnmatch(pattern.c_str(), std::string(text).c_str(), 0) == 0;
}

}  // namespace

std::string_view NameOf(Way way) {
  switch (way) {
    case Way::kWeightfs: return "weightfs";
    case Way::kReference: return "reference";
    case Way::kHost: return "host";
    case Way::kFio: return "fio";
    case Way::kNoVerify: return "noverify";
    case Way::kMemory: return "memory";
    case Way::kOneDevice: return "one device";
  }
  return "?";
}

std::string_view NameOf(Unit unit) {
  switch (unit) {
    case Unit::kBytes: return "GB/s";
    case Unit::kReads: return "reads/s";
    case Unit::kFiles: return "files/s";
  }
  return "?";
}

std::span<const RowSpec> Rows() { return kRows; }

const RowSpec* FindRow(std::string_view id) {
  const auto* found =
      std::find_if(std::begin(kRows), std::end(kRows), [id](const RowSpec& row) { return row.id == id; });
  return found == std::end(kRows) ? nullptr : found;
}

bool IsSelected(const RowSpec& row, const std::vector<std::string>& patterns) {
  return patterns.empty() || std::any_of(patterns.begin(), patterns.end(), [&row](const std::string& pattern) {
           return Matches(row.id, pattern) || Matches(row.group, pattern);
         });
}

std::string ReferenceTargetText(const RowSpec& row) {
  if (row.target.reference > 0) return fmt::format("≥ {:.2f}", row.target.reference);
  return row.reference.empty() ? "" : "shown";
}

std::string HostTargetText(const RowSpec& row) {
  if (row.target.one_device > 0) {
    return fmt::format("{:.1f} to {:.1f} × one device", row.target.one_device, kMostOfOneDevice);
  }
  if (row.target.slow_host > 0) {
    return fmt::format("≥ {:.1f}; ≥ {:.1f} where the host is slow", row.target.host, row.target.slow_host);
  }
  if (row.target.disk_host > 0) return fmt::format("≥ {:.1f} on a disk", row.target.disk_host);
  return row.target.host > 0 ? fmt::format("≥ {:.1f}", row.target.host) : "shown";
}

}  // namespace weightfs::bench
