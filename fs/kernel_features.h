// SPDX-License-Identifier: Apache-2.0
// What the kernel can do for a mount: the flags of the INIT request, masked by `without=`, and which of them are used.
// The numbers are the kernel's ABI (uapi linux/fuse.h), written out here because the header of an older distribution
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
inline constexpr uint64_t kReaddirPlusAuto = uint64_t{1} << 14;
inline constexpr uint64_t kAsyncDirectIo = uint64_t{1} << 15;
inline constexpr uint64_t kWritebackCache = uint64_t{1} << 16;
inline constexpr uint64_t kParallelDirectoryOps = uint64_t{1} << 18;
inline constexpr uint64_t kPosixAcl = uint64_t{1} << 20;
inline constexpr uint64_t kMaxPages = uint64_t{1} << 22;
inline constexpr uint64_t kCacheSymlinks = uint64_t{1} << 23;
inline constexpr uint64_t kInitExt = uint64_t{1} << 30;  // the second word of flags is there
inline constexpr uint64_t kDirectIoAllowMmap = uint64_t{1} << 36;
inline constexpr uint64_t kPassthrough = uint64_t{1} << 37;
inline constexpr uint64_t kOverIoUring = uint64_t{1} << 41;
}  // namespace kernel_flag

inline constexpr uint32_t kFuseInit = 26;             // opcode
inline constexpr uint32_t kMinimumMinor = 31;         // protocol 7.31: Linux 5.4
inline constexpr uint32_t kParallelWritesMinor = 38;  // has FOPEN_PARALLEL_DIRECT_WRITES: Linux 6.2
inline constexpr uint32_t kOpenParallelDirectWrites = 1u << 6;

// Features that `without=` takes away besides those of the INIT flags.
struct FeatureMask {
  uint64_t flags = 0;                   // INIT flags to hide
  bool parallel_direct_writes = false;  // true: not used
  bool max_pages_limit = false;         // true: requests stay at 1 MiB where the kernel allows more
  bool read_ahead = false;              // true: the kernel's read-ahead is not raised
};

// What `without=` knows, sorted as the kernel numbers them.
std::vector<std::string_view> KnownFeatures();

// Parses names of features. kInvalid with a full line that lists the known ones.
Result<FeatureMask> ParseFeatureMask(const std::vector<std::string>& names);

// An INIT request as far as weightfs reads it.
struct KernelOffer {
  uint32_t major = 0, minor = 0;
  uint32_t max_readahead = 0;
  uint64_t flags = 0;
};

// Reads the offer from a whole request (header included). kInvalid when it is not an INIT request or too short.
Result<KernelOffer> ReadOffer(std::span<const std::byte> request);

// Clears the masked flags in the request itself, so that libfuse sees the older kernel that the mask pretends. The
// request must have passed ReadOffer.
void MaskOffer(std::span<std::byte> request, const FeatureMask& mask);

// What is used of an offer.
struct UsedFeatures {
  uint32_t minor = 0;
  uint64_t flags = 0;
  bool direct_io_allow_mmap = false;  // every open is direct I/O, mappings work
  bool parallel_direct_writes = false;
  uint32_t max_write = 0;  // bytes of one request
};

// Chooses from a masked offer. `max_pages_limit` is the kernel's limit in pages of one request (sysctl
// fs.fuse.max_pages_limit, 256 where there is none).
UsedFeatures ChooseFeatures(const KernelOffer& offer, const FeatureMask& mask, uint32_t max_pages_limit);

// The sysctl, or 256.
uint32_t MaxPagesLimit();

// One line a feature, sorted as the kernel numbers them: "async_dio: used", "passthrough: offered, not used".
std::vector<std::string> DescribeFeatures(const KernelOffer& offer, const UsedFeatures& used, const FeatureMask& mask);

}  // namespace weightfs
