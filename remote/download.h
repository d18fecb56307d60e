// SPDX-License-Identifier: Apache-2.0
// Downloads files of a version, or parts of them, and verifies every block.
#pragma once

#include "client/handle.h"
#include "remote/series.h"

namespace weightfs::remote {

inline constexpr uint64_t kDownloadPart = uint64_t{16} << 20;  // maximum bytes of one request

// What to download of a file of the manifest.
struct DownloadJob {
  const FileEntry* file = nullptr;
  // Not empty, in ascending order, without overlap. Each begins at a block of 4 KiB, and ends at one or at the end of
  // the file. A file without ranges makes no request.
  std::vector<client::ByteRange> ranges = {};
};

// Bytes that match their checksums. They belong to the receiver until it returns. The memory is page-aligned, and is
// filled up with zeros to a whole block.
struct DownloadedPart {
  size_t job = 0;       // index of the job
  uint64_t offset = 0;  // in the file
  std::span<const std::byte> bytes;
};

// Receives each part exactly once, in any order, on several threads at once. While it works, fewer requests are made.
// An error ends the download.
using DownloadSink = std::function<Result<void>(const DownloadedPart& part)>;

struct DownloadReport {
  uint64_t bytes = 0;          // that the sink has received
  uint64_t fetched_again = 0;  // parts that differed from their checksums
};

// Downloads all jobs and returns when no thread uses the sink any more, also after an error. `progress` counts verified
// bytes that the sink has accepted; it is called on the calling thread. A part that differs from its checksums is
// fetched again up to three times. All parts of one object come from the same state of the object, if the service gives
// ETags. Uses kTransferMemory. Errors are one full line: those of s3::Client and of the sink; kStale if an object was
// replaced meanwhile; kCorrupt, with key and offset, for a block that differs in all downloads, an object of another
// size, and damaged checksums. Error::path then has the key, and Error::offset the offset.
Result<DownloadReport> Download(const Series& series, const Manifest& manifest, std::span<const DownloadJob> jobs,
                                const DownloadSink& sink, const client::Progress& progress = {});

}  // namespace weightfs::remote
