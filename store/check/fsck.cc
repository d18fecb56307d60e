// SPDX-License-Identifier: Apache-2.0
// The sequence of a check, and functions that its passes share.
#include "store/check/fsck.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "store/check/fsck_internal.h"
#include "store/names/namespace_internal.h"

namespace weightfs {
namespace fsck {
namespace {

struct Kind {
  std::string_view name;
  FindingSeverity severity;
};

// By FindingKind.
constexpr Kind kKinds[] = {
    {"damaged key", FindingSeverity::kMajor},
    {"damaged record", FindingSeverity::kMajor},
    {"lost inode", FindingSeverity::kMajor},
    {"dangling entry", FindingSeverity::kMajor},
    {"wrong entry type", FindingSeverity::kMajor},
    {"wrong link count", FindingSeverity::kMinor},
    {"wrong parent", FindingSeverity::kMinor},
    {"second entry", FindingSeverity::kMajor},
    {"unreachable directory", FindingSeverity::kMajor},
    {"wrong orphan", FindingSeverity::kMinor},
    {"extent outside", FindingSeverity::kMajor},
    {"extent overlap", FindingSeverity::kMajor},
    {"stray record", FindingSeverity::kMinor},
    {"wrong block count", FindingSeverity::kMinor},
    {"missing extents", FindingSeverity::kMajor},
    {"wrong flags", FindingSeverity::kMinor},
    {"missing checksums", FindingSeverity::kMajor},
    {"wrong fact", FindingSeverity::kMinor},
    {"data mismatch", FindingSeverity::kMajor},
    {"data unreadable", FindingSeverity::kMajor},
};
static_assert(std::size(kKinds) == static_cast<size_t>(FindingKind::kDataUnreadable) + 1);

const Kind& KindOf(FindingKind kind) { return kKinds[static_cast<size_t>(kind)]; }

bool IsRepairable(FindingKind kind) {
  return kind != FindingKind::kDataMismatch && kind != FindingKind::kDataUnreadable;
}

}  // namespace

std::string Quoted(std::string_view name) {
  std::string out = "'";
  for (const char c : name) out.push_back(static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c);
  return out + "'";
}

Result<FsckReport> Checker::Run() {
  uint64_t catalog_size = 0;
  for (const char kind :
       {keys::kInode, keys::kOrphan, keys::kEntry, keys::kExtent, keys::kAttribute, keys::kChecksums}) {
    catalog_size += catalog_.EstimateSize(keys::KindPrefix(kind));
  }
  StartPass(Progress::Unit::kBytes, catalog_size);
  RETURN_IF_ERROR(ScanInodes());
  RETURN_IF_ERROR(ScanOrphans());
  RETURN_IF_ERROR(ScanEntries());
  RETURN_IF_ERROR(CheckTree());
  RETURN_IF_ERROR(ScanExtents());
  CheckOverlaps();
  RETURN_IF_ERROR(ScanAttributes());
  RETURN_IF_ERROR(ScanPublishing());
  CheckCounts();
  RETURN_IF_ERROR(ScanChecksums());
  RETURN_IF_ERROR(CheckFacts());
  if (options_.verify_data) RETURN_IF_ERROR(VerifyData());
  FinishTexts();
  if (options_.repair && report_.repaired > 0) {
    if (options_.before_repair) RETURN_IF_ERROR(options_.before_repair());
    RETURN_IF_ERROR(Repair());
    for (Finding& finding : report_.findings) finding.repaired = IsRepairable(finding.kind);
  } else {
    report_.repaired = 0;
  }
  return std::move(report_);
}

void Checker::StartPass(Progress::Unit unit, uint64_t total) {
  const unsigned passes = 1 + (options_.verify_data ? 1 : 0) + (options_.repair ? 1 : 0);
  progress_ = {.total = total, .unit = unit, .items = "repairs", .pass = ++pass_, .passes = passes};
}

void Checker::ShowProgress(std::string_view step) const {
  if (!options_.progress) return;
  Progress progress = progress_;
  progress.step = step;
  options_.progress(progress);
}

Result<void> Checker::CheckCancelled() const {
  if (options_.cancel == nullptr || !options_.cancel->load()) return {};
  return Error{ErrorCode::kShutdown, "the check was interrupted before any repair"};
}

void Checker::Report(FindingKind kind, uint64_t ino, std::string what) {
  ++report_.problems;
  if (IsRepairable(kind)) ++report_.repaired;  // Run resets the count when nothing is repaired
  if (report_.findings.size() >= FsckReport::kMaximumFindings) return;
  report_.findings.push_back({kind, KindOf(kind).severity, std::move(what)});
  subjects_.push_back(ino);
}

Node* Checker::Find(uint64_t ino) {
  const auto found = std::lower_bound(nodes_.begin(), nodes_.end(), ino,
                                      [](const Node& node, uint64_t value) { return node.ino < value; });
  return found == nodes_.end() || found->ino != ino ? nullptr : &*found;
}

Result<Checker::Names> Checker::NamesIn(uint64_t directory, const std::set<uint64_t>& inodes) {
  Names names;
  const auto entries = catalog_.NewIterator(keys::EntryPrefix(InodeId{directory}));
  for (; entries->Valid() && names.size() < inodes.size(); entries->Next()) {
    const auto key = keys::ParseNamed(entries->key());
    const auto entry = EntryRecord::Decode(entries->value());
    const bool possible = key && CheckName(key->name) && !IsDots(key->name);  // other entries are dropped
    if (possible && entry && inodes.contains(entry->ino.value)) names.try_emplace(entry->ino.value, key->name);
  }
  RETURN_IF_ERROR(entries->status());
  return names;
}

Result<std::optional<std::string>> Checker::NameIn(uint64_t directory, uint64_t ino) {
  ASSIGN_OR_RETURN(Names names, NamesIn(directory, {ino}));
  return names.empty() ? std::optional<std::string>() : std::move(names.begin()->second);
}

// Finds what PathOf needs for all findings, and searches each directory once.
void Checker::FindNames() {
  std::map<uint64_t, std::set<uint64_t>> wanted;  // by directory
  for (uint64_t ino : subjects_) {
    while (ino != kRootInode.value) {
      const Node* node = Find(ino);
      if (node == nullptr || node->place == 0 || node->lost || !wanted[node->place].insert(ino).second) break;
      ino = node->place;
    }
  }
  for (const auto& [directory, inodes] : wanted) {
    if (auto names = NamesIn(directory, inodes)) names_.merge(*names);
  }
}

// Returns "/a/b", or an empty string when no path is known.
std::string Checker::PathOf(uint64_t ino) {
  if (ino == kRootInode.value) return "/";
  std::string path;
  for (size_t depth = 0; ino != kRootInode.value && depth <= nodes_.size(); ++depth) {
    const auto name = names_.find(ino);
    if (name == names_.end()) return {};
    path.insert(0, "/" + name->second);
    ino = Find(ino)->place;
  }
  return path;
}

void Checker::FinishTexts() {
  FindNames();
  for (size_t i = 0; i < report_.findings.size(); ++i) {
    const uint64_t ino = subjects_[i];
    if (ino == 0) continue;
    const std::string path = PathOf(ino);
    std::string& text = report_.findings[i].text;
    text = path.empty() ? fmt::format("inode {}: {}", ino, text)
                        : fmt::format("{} (inode {}): {}", Quoted(path), ino, text);
  }
}

}  // namespace fsck

std::string_view FindingKindName(FindingKind kind) { return fsck::KindOf(kind).name; }

Result<FsckReport> CheckStore(KvStore& catalog, std::span<BlockDevice* const> devices, const FsckOptions& options) {
  return fsck::Checker(catalog, devices, options).Run();
}

}  // namespace weightfs
