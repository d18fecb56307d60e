// SPDX-License-Identifier: Apache-2.0
#include "fs/kernel_features.h"

#include <fmt/format.h>
#include <linux/fuse.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>

#include "common/units.h"

namespace weightfs {
namespace {

using namespace kernel_flag;

constexpr uint32_t kDefaultMaxPages = 256;
constexpr uint32_t kLargestMaxPages = 1024;  // 4 MiB: more gains nothing and costs memory per request
constexpr uint32_t kPagesWithoutFlag = 32;   // the limit of a kernel without MAX_PAGES

struct Feature {
  std::string_view name;
  uint64_t flag;
  bool wanted;
};

constexpr Feature kFeatures[] = {
    {"async_read", kAsyncRead, true},
    {"atomic_o_trunc", kAtomicTruncate, true},
    {"big_writes", kBigWrites, true},
    {"dont_mask", kDontMask, true},
    {"auto_inval_data", kAutoInvalidate, true},
    {"readdirplus", kReaddirPlus, true},
    {"async_dio", kAsyncDirectIo, true},
    {"writeback_cache", kWritebackCache, false},
    {"parallel_dirops", kParallelDirectoryOps, true},
    {"posix_acl", kPosixAcl, true},
    {"max_pages", kMaxPages, true},
    {"cache_symlinks", kCacheSymlinks, true},
    {"direct_io_allow_mmap", kDirectIoAllowMmap, true},
    {"passthrough", kPassthrough, true},
    {"over_io_uring", kOverIoUring, false},
};
constexpr std::string_view kParallelWritesName = "parallel_direct_writes";
constexpr std::string_view kMaxPagesLimitName = "max_pages_limit";
constexpr std::string_view kReadAheadName = "read_ahead";

struct InitRequest {
  fuse_in_header header;
  fuse_init_in init;
};
constexpr size_t kShortInit = sizeof(fuse_in_header) + offsetof(fuse_init_in, flags2);  // without that word

}  // namespace

std::vector<std::string_view> KnownFeatures() {
  std::vector<std::string_view> names;
  for (const Feature& feature : kFeatures) names.push_back(feature.name);
  names.insert(names.end(), {kParallelWritesName, kMaxPagesLimitName, kReadAheadName});
  return names;
}

Result<FeatureMask> ParseFeatureMask(const std::vector<std::string>& names) {
  FeatureMask mask;
  for (const std::string& name : names) {
    const auto* feature = std::find_if(std::begin(kFeatures), std::end(kFeatures),
                                       [&](const Feature& known) { return known.name == name; });
    if (feature != std::end(kFeatures)) {
      mask.flags |= feature->flag;
    } else if (name == kParallelWritesName) {
      mask.parallel_direct_writes = true;
    } else if (name == kMaxPagesLimitName) {
      mask.max_pages_limit = true;
    } else if (name == kReadAheadName) {
      mask.read_ahead = true;
    } else {
      return Error{ErrorCode::kInvalid,
                   fmt::format("without={}: no such feature; known are {}", name, fmt::join(KnownFeatures(), ", "))};
    }
  }
  return mask;
}

Result<KernelOffer> ReadOffer(std::span<const std::byte> request) {
  InitRequest offer{};
  if (request.size() < kShortInit) return Error{ErrorCode::kInvalid, "the kernel's first FUSE request is too short"};
  std::memcpy(&offer, request.data(), std::min(request.size(), sizeof(offer)));
  const auto& [header, init] = offer;
  if (header.opcode != FUSE_INIT)
    return Error{ErrorCode::kInvalid, fmt::format("the kernel's first FUSE request is {}, not INIT", header.opcode)};
  uint64_t flags = init.flags;
  if ((flags & kInitExt) != 0) flags |= uint64_t{init.flags2} << 32;
  return KernelOffer{init.major, init.minor, init.max_readahead, flags};
}

void MaskOffer(std::span<std::byte> request, const FeatureMask& mask) {
  InitRequest offer{};
  const size_t size = std::min(request.size(), sizeof(offer));
  std::memcpy(&offer, request.data(), size);
  offer.init.flags &= ~static_cast<uint32_t>(mask.flags);
  offer.init.flags2 &= ~static_cast<uint32_t>(mask.flags >> 32);
  std::memcpy(request.data(), &offer, size);
}

UsedFeatures ChooseFeatures(const KernelOffer& offer, const FeatureMask& mask, uint32_t max_pages_limit) {
  UsedFeatures used;
  used.minor = offer.minor;
  for (const Feature& feature : kFeatures) {
    if (feature.wanted) used.flags |= offer.flags & ~mask.flags & feature.flag;
  }
  used.direct_io_allow_mmap = (used.flags & kDirectIoAllowMmap) != 0;
  // With page-cache opens the daemon itself invalidates pages after direct writes (fs/page_cache.h). Comparing times as
  // well would drop the cache after every write of a program that reads its own output.
  if (!used.direct_io_allow_mmap) used.flags &= ~kAutoInvalidate;
  // ACLs need DONT_MASK, because an umask that the kernel applies takes effect before a default ACL.
  if ((used.flags & kDontMask) == 0) used.flags &= ~kPosixAcl;
  used.parallel_direct_writes = offer.minor >= kParallelWritesMinor && !mask.parallel_direct_writes;
  uint32_t pages = kPagesWithoutFlag;
  if ((used.flags & kMaxPages) != 0) {
    pages = mask.max_pages_limit ? kDefaultMaxPages : max_pages_limit;
    pages = std::clamp(pages, uint32_t{1}, kLargestMaxPages);
  }
  used.max_write = pages * kPageSize;
  return used;
}

uint32_t MaxPagesLimit() {
  std::ifstream file("/proc/sys/fs/fuse/max_pages_limit");
  uint32_t pages = 0;
  return file >> pages && pages > 0 ? pages : kDefaultMaxPages;
}

std::vector<std::string> DescribeFeatures(const KernelOffer& offer, const UsedFeatures& used, const FeatureMask& mask) {
  const auto state = [](bool offered, bool masked, bool is_used) {
    return !offered ? "not offered" : masked ? "masked" : is_used ? "used" : "offered, not used";
  };
  std::vector<std::string> lines;
  lines.push_back(fmt::format("protocol: {}.{}", offer.major, offer.minor));
  for (const Feature& feature : kFeatures) {
    lines.push_back(fmt::format(
        "{}: {}", feature.name,
        state((offer.flags & feature.flag) != 0, (mask.flags & feature.flag) != 0, (used.flags & feature.flag) != 0)));
  }
  lines.push_back(fmt::format(
      "{}: {}", kParallelWritesName,
      state(offer.minor >= kParallelWritesMinor, mask.parallel_direct_writes, used.parallel_direct_writes)));
  lines.push_back(fmt::format("request size: {} KiB", used.max_write / kKiB));
  return lines;
}

}  // namespace weightfs
