// SPDX-License-Identifier: Apache-2.0
#include "remote/pull_plan.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "common/make_error.h"
#include "common/printable.h"

namespace weightfs::remote {
namespace {

// Tensors that are this close to each other are fetched together: another request takes longer.
constexpr uint64_t kSkippedGap = 256 * kKiB;
// Most headers of safetensors files are smaller.
constexpr uint64_t kFirstHead = 256 * kKiB;
// Limits the headers that are read at once (unless one is larger), and those of all slices together.
constexpr uint64_t kHeadMemory = 128 * kMiB, kMaximumHeads = 1024 * kMiB;

bool Matches(const std::string& pattern, const std::string& path) {
  return fnmatch(pattern.c_str(), path.c_str(), 0) == 0;
}

// The patterns of tensors of each sliced file, by its index in the manifest.
using SlicedFiles = std::map<size_t, std::vector<std::string>>;

Error MatchesNothing(const Series& series, const Manifest& manifest, const char* option, const std::string& pattern) {
  return MakeError(ErrorCode::kNotFound, "{}: {} '{}' matches no file of the version", series.url(manifest.version),
                   option, Printable(pattern));
}

Result<SlicedFiles> FindSliced(const Series& series, const Manifest& manifest,
                               const std::vector<SliceRequest>& slices) {
  SlicedFiles sliced;
  for (const SliceRequest& slice : slices) {
    bool found = false;
    for (size_t index = 0; index < manifest.files.size(); ++index) {
      if (!Matches(slice.path, manifest.files[index].path)) continue;
      sliced[index].push_back(slice.pattern);
      found = true;
    }
    if (!found) return MatchesNothing(series, manifest, "--slice", slice.path);
  }
  return sliced;
}

// Adds the directories that lead to a path.
void AddParents(std::string_view path, std::set<std::string_view>* directories) {
  for (size_t slash = path.rfind('/'); slash != path.npos; slash = path.rfind('/')) {
    path = path.substr(0, slash);
    directories->insert(path);
  }
}

struct SlicedFile {
  const FileEntry* entry = nullptr;
  const std::vector<std::string>* patterns = nullptr;
  uint64_t head = kFirstHead;  // first bytes of the file that are needed
};

// Passes on the first bytes of each file, which are read in batches.
Result<void> ReadHeads(const Series& series, const Manifest& manifest, const std::vector<SlicedFile>& files,
                       const std::function<Result<void>(const SlicedFile& file, std::string_view head)>& take) {
  for (size_t begin = 0, end = 0; begin < files.size(); begin = end) {
    std::vector<std::string> heads;
    std::vector<DownloadJob> jobs;
    for (uint64_t bytes = 0; end < files.size(); ++end) {
      const SlicedFile& file = files[end];
      const uint64_t size = std::min(RoundUp(file.head, kBlockSize), file.entry->size);
      bytes += size;
      if (end > begin && bytes > kHeadMemory) break;
      heads.emplace_back(size, '\0');
      jobs.push_back({file.entry, {}});
      if (size > 0) jobs.back().ranges.push_back({0, size});
    }
    const auto copy = [&](const DownloadedPart& part) -> Result<void> {
      std::memcpy(heads[part.job].data() + part.offset, part.bytes.data(), part.bytes.size());
      return {};
    };
    RETURN_IF_ERROR(Download(series, manifest, jobs, copy));
    for (size_t at = 0; at < heads.size(); ++at) RETURN_IF_ERROR(take(files[begin + at], heads[at]));
  }
  return {};
}

Result<void> PlanSlices(const Series& series, const Manifest& manifest, const SlicedFiles& sliced, PullPlan* plan) {
  if (sliced.empty()) return {};
  std::vector<SlicedFile> files, longer;
  for (const auto& [index, patterns] : sliced) files.push_back({&manifest.files[index], &patterns});
  size_t tensors = 0;
  uint64_t heads = 0;
  const auto take = [&](const SlicedFile& file, std::string_view head) -> Result<void> {
    const auto named = [&](const Error& error) {
      return Error{error.code, series.url(manifest.version) + "/" + Printable(file.entry->path) + ": " + error.what};
    };
    const auto size = SafetensorsHeaderSize(head.substr(0, kSafetensorsPrefix), file.entry->size);
    if (!size) return named(size.error());
    if (*size > head.size()) {
      longer.push_back({file.entry, file.patterns, *size});
      return {};
    }
    auto slice = SliceSafetensors(head.substr(0, *size), file.entry->size, *file.patterns);
    if (!slice) return named(slice.error());
    if (slice->tensors == 0) return {};
    tensors += slice->tensors;
    heads += slice->head.size();
    if (heads > kMaximumHeads) {
      return named({ErrorCode::kTooLarge, fmt::format("the headers of the slices up to this one have more than {} MiB; "
                                                      "pull fewer files at once",
                                                      kMaximumHeads >> 20)});
    }
    plan->files.push_back({file.entry, std::move(*slice)});
    return {};
  };
  RETURN_IF_ERROR(ReadHeads(series, manifest, files, take));
  RETURN_IF_ERROR(ReadHeads(series, manifest, std::exchange(longer, {}), take));
  if (tensors > 0) return {};
  return MakeError(ErrorCode::kNotFound, "{}: no name of a tensor matches --slice", series.url(manifest.version));
}

// Whole blocks with all pieces.
std::vector<client::ByteRange> BlocksOf(const std::vector<SlicePiece>& pieces, uint64_t file_size) {
  std::vector<client::ByteRange> ranges;
  for (const SlicePiece& piece : pieces) {
    const uint64_t begin = RoundDown(piece.from, kBlockSize);
    const uint64_t end = std::min(RoundUp(piece.from + piece.size, kBlockSize), file_size);
    if (!ranges.empty() && begin <= ranges.back().offset + ranges.back().size + kSkippedGap) {
      ranges.back().size = end - ranges.back().offset;
    } else {
      ranges.push_back({begin, end - begin});
    }
  }
  return ranges;
}

}  // namespace

uint64_t PullPlan::bytes() const {
  return std::accumulate(files.begin(), files.end(), uint64_t{0},
                         [](uint64_t sum, const PlannedFile& file) { return sum + file.size(); });
}

std::vector<DownloadJob> PullPlan::Jobs() const {
  std::vector<DownloadJob> jobs;
  for (const PlannedFile& file : files) {
    DownloadJob job{file.entry, {}};
    if (file.slice) {
      job.ranges = BlocksOf(file.slice->pieces, file.entry->size);
    } else if (file.entry->size > 0) {
      job.ranges.push_back({0, file.entry->size});
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

Result<PullPlan> PlanPull(const Series& series, const Manifest& manifest, const std::vector<std::string>& files,
                          const std::vector<SliceRequest>& slices) {
  ASSIGN_OR_RETURN(const SlicedFiles sliced, FindSliced(series, manifest, slices));
  const bool everything = files.empty() && slices.empty();
  std::vector<bool> used(files.size(), false);
  const auto selected = [&](const std::string& path) {
    bool found = everything;
    for (size_t at = 0; at < files.size(); ++at) {
      if (!Matches(files[at], path)) continue;
      used[at] = true;
      found = true;
    }
    return found;
  };
  PullPlan plan;
  for (size_t index = 0; index < manifest.files.size(); ++index) {
    const FileEntry& file = manifest.files[index];
    if (selected(file.path) && !sliced.contains(index)) plan.files.push_back({&file});
  }
  for (const LinkEntry& link : manifest.links) {
    if (selected(link.path)) plan.links.push_back(&link);
  }
  for (size_t at = 0; at < files.size(); ++at) {
    if (!used[at]) return MatchesNothing(series, manifest, "--files", files[at]);
  }
  RETURN_IF_ERROR(PlanSlices(series, manifest, sliced, &plan));
  std::ranges::sort(plan.files, {}, [](const PlannedFile& file) { return file.entry->first_block; });
  std::set<std::string_view> needed = {""};
  for (const PlannedFile& file : plan.files) AddParents(file.entry->path, &needed);
  for (const LinkEntry* link : plan.links) AddParents(link->path, &needed);
  for (const DirectoryEntry& directory : manifest.directories) {
    if (everything || needed.contains(directory.path)) plan.directories.push_back(&directory);
  }
  return plan;
}

}  // namespace weightfs::remote
