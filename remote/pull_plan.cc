// SPDX-License-Identifier: Apache-2.0
#include "remote/pull_plan.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "common/printable.h"

namespace weightfs::remote {
namespace {

// Tensors that are this close to each other are fetched together: another request takes longer.
constexpr uint64_t kSkippedGap = 256 * kKiB;
// Most headers of safetensors files are smaller.
constexpr uint64_t kFirstHead = 256 * kKiB;

bool Matches(const std::string& pattern, const std::string& path) {
  return fnmatch(pattern.c_str(), path.c_str(), 0) == 0;
}

// The patterns of tensors of each sliced file, by its index in the manifest.
using SlicedFiles = std::map<size_t, std::vector<std::string>>;

Error MatchesNothing(const Series& series, const Manifest& manifest, const char* option, const std::string& pattern) {
  return {ErrorCode::kNotFound, fmt::format("{}: {} '{}' matches no file of the version", series.url(manifest.version),
                                            option, Printable(pattern))};
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

// Reads the first `sizes[i]` bytes of each file.
Result<std::vector<std::string>> ReadHeads(const Series& series, const Manifest& manifest,
                                           const std::vector<const FileEntry*>& files,
                                           const std::vector<uint64_t>& sizes, const DownloadOptions& options) {
  std::vector<std::string> heads(files.size());
  std::vector<DownloadJob> jobs;
  for (size_t at = 0; at < files.size(); ++at) {
    heads[at].resize(std::min(RoundUp(sizes[at], kBlockSize), files[at]->size));
    jobs.push_back({files[at], {}});
    if (!heads[at].empty()) jobs.back().ranges.push_back({0, heads[at].size()});
  }
  const auto copy = [&](const DownloadedPart& part) -> Result<void> {
    std::memcpy(heads[part.job].data() + part.offset, part.bytes.data(), part.bytes.size());
    return {};
  };
  RETURN_IF_ERROR(Download(series, manifest, jobs, copy, options));
  return heads;
}

Result<void> PlanSlices(const Series& series, const Manifest& manifest, const SlicedFiles& sliced,
                        const DownloadOptions& options, PullPlan* plan) {
  if (sliced.empty()) return {};
  std::vector<const FileEntry*> files;
  for (const auto& [index, _] : sliced) files.push_back(&manifest.files[index]);
  std::vector<uint64_t> sizes(files.size(), kFirstHead);
  ASSIGN_OR_RETURN(auto heads, ReadHeads(series, manifest, files, sizes, options));
  const auto named = [&](size_t at, const Error& error) {
    return Error{error.code, series.url(manifest.version) + "/" + Printable(files[at]->path) + ": " + error.what};
  };
  bool complete = true;
  for (size_t at = 0; at < files.size(); ++at) {
    auto size = SafetensorsHeaderSize(std::string_view(heads[at]).substr(0, kSafetensorsPrefix), files[at]->size);
    if (!size) return named(at, size.error());
    sizes[at] = *size;
    complete = complete && *size <= heads[at].size();
  }
  if (!complete) {
    ASSIGN_OR_RETURN(heads, ReadHeads(series, manifest, files, sizes, options));
  }
  size_t at = 0, tensors = 0;
  for (const auto& [index, patterns] : sliced) {
    auto slice = SliceSafetensors(std::string_view(heads[at]).substr(0, sizes[at]), files[at]->size, patterns);
    if (!slice) return named(at, slice.error());
    tensors += slice->tensors;
    if (slice->tensors > 0) plan->files.push_back({files[at], std::move(*slice)});
    ++at;
  }
  if (tensors > 0) return {};
  return Error{ErrorCode::kNotFound,
               fmt::format("{}: no name of a tensor matches --slice", series.url(manifest.version))};
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
                          const std::vector<SliceRequest>& slices, DownloadOptions download) {
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
  download.progress = {};
  RETURN_IF_ERROR(PlanSlices(series, manifest, sliced, download, &plan));
  std::sort(plan.files.begin(), plan.files.end(),
            [](const PlannedFile& a, const PlannedFile& b) { return a.entry->first_block < b.entry->first_block; });
  std::set<std::string_view> needed = {""};
  for (const PlannedFile& file : plan.files) AddParents(file.entry->path, &needed);
  for (const LinkEntry* link : plan.links) AddParents(link->path, &needed);
  for (const DirectoryEntry& directory : manifest.directories) {
    if (everything || needed.contains(directory.path)) plan.directories.push_back(&directory);
  }
  return plan;
}

}  // namespace weightfs::remote
