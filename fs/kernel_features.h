// SPDX-License-Identifier: Apache-2.0
// The kernel's capabilities for a mount: the flags of the INIT request, masked by `without=`, and the flags in use. The
// numbers are the kernel's ABI (uapi linux/fuse.h). They are defined here because the header of an older distribution
// lacks the newer ones. Immutable values, no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace weightfs {

namespace kernel_flag {
inline constexpr uint64_t kAsyncRead = uint64_t{1} << 0;
inline constexpr uint64_t kAtomicTruncate = uint64_t{1} << 3;
inline constexpr uint64_t kBigWrites = uint64_t{1} << 5;
inline constexpr uint64_t kDontMask = uint64_t{1} << 6;
inline constexpr uint64_t kAutoInvalidate = uint64_t{1} << 12;
inline constexpr uint64_t kReaddirPlus = uint64_t{1} << 13;
inline constexpr uint64_t kAsyncDirectIo = uint64_t{1} << 15;
inline constexpr uint64_t kWritebackCache = uint64_t{1} << 16;
inline constexpr uint64_t kParallelDirectoryOps = uint64_t{1} << 18;
inline constexpr uint64_t kPosixAcl = uint64_t{1} << 20;
inline constexpr uint64_t kMaxPages = uint64_t{1} << 22;
inline constexpr uint64_t kCacheSymlinks = uint64_t{1} << 23;
inline constexpr uint64_t kInitExt = uint64_t{1} << 30;  // the second word of flags is present
inline constexpr uint64_t kDirectIoAllowMmap = uint64_t{1} << 36;
inline constexpr uint64_t kPassthrough = uint64_t{1} << 37;
inline constexpr uint64_t kOverIoUring = uint64_t{1} << 41;
}  // namespace kernel_flag

inline constexpr uint32_t kMinimumMinor = 31;         // protocol 7.31: Linux 5.4
inline constexpr uint32_t kParallelWritesMinor = 38;  // has FOPEN_PARALLEL_DIRECT_WRITES: Linux 6.2
inline constexpr uint32_t kOpenParallelDirectWrites = 1u << 6;

// Features to disable with `without=`. Some are not INIT flags.
struct FeatureMask {
  uint64_t flags = 0;                   // INIT flags to hide
  bool parallel_direct_writes = false;  // true: do not use it
  bool max_pages_limit = false;         // true: limit requests to 1 MiB even if the kernel allows more
  bool read_ahead = false;              // true: do not raise the kernel's read-ahead
};

// The names that `without=` accepts, in the order of the kernel's numbers.
std::vector<std::string_view> KnownFeatures();

// Parses feature names. Returns kInvalid with a full line that lists the known names.
Result<FeatureMask> ParseFeatureMask(const std::vector<std::string>& names);

// The fields of an INIT request that weightfs reads.
struct KernelOffer {
  uint32_t major = 0, minor = 0;
  uint32_t max_readahead = 0;
  uint64_t flags = 0;
};

// Reads the offer from a whole request (header included). Returns kInvalid when it is not an INIT request or too short.
Result<KernelOffer> ReadOffer(std::span<const std::byte> request);

// Clears the masked flags in the request itself, so that libfuse sees the older kernel that the mask simulates. The
// request must have passed ReadOffer.
void MaskOffer(std::span<std::byte> request, const FeatureMask& mask);

// The features of an offer that weightfs uses.
struct UsedFeatures {
  uint32_t minor = 0;
  uint64_t flags = 0;
  bool direct_io_allow_mmap = false;  // every open is direct I/O, and mappings work
  bool parallel_direct_writes = false;
  uint32_t max_write = 0;  // maximum bytes per request
};

// Chooses features from a masked offer. `max_pages_limit` is the kernel's limit of pages per request (sysctl
// fs.fuse.max_pages_limit, 256 if it does not exist).
UsedFeatures ChooseFeatures(const KernelOffer& offer, const FeatureMask& mask, uint32_t max_pages_limit);

// Returns the value of the sysctl, or 256.
uint32_t MaxPagesLimit();

// Returns one line per feature, in the order of the kernel's numbers: "async_dio: used", "passthrough: offered, not
// used".
std::vector<std::string> DescribeFeatures(const KernelOffer& offer, const UsedFeatures& used, const FeatureMask& mask);

}  // namespace weightfs
