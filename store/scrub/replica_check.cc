// SPDX-License-Identifier: Apache-2.0
#include "store/scrub/replica_check.h"

#include <fmt/format.h>

#include <utility>

namespace weightfs::wal {
namespace {

// The number of roots that are followed before the check gives up without a result.
constexpr int kCheckAttempts = 8;

std::string Where(const Stream& stream, const FrameReader::Position& position, Devices devices) {
  if (position.segment >= stream.segments.size()) return "at its end";
  const DeviceRun& run = stream.segments[position.segment].run;
  const std::string_view path = run.device.value < devices.size() ? devices[run.device.value]->path() : "missing";
  return fmt::format("at device {} ({}), byte {}", run.device.value, path,
                     ToBytes(run.run.start + position.block).value);
}

// One pass over the checkpoint and the log of one root.
class Pass {
 public:
  Pass(Devices devices, const Root& root, const std::function<bool(ByteCount)>& next)
      : devices_(devices), root_(root), next_(next) {}

  Result<CheckResult> Run() {
    RETURN_IF_ERROR(CheckLists());
    if (!result_.stopped && !result_.damage) RETURN_IF_ERROR(CheckCheckpoint());
    if (!result_.stopped && !result_.damage) RETURN_IF_ERROR(CheckLog());
    return std::move(result_);
  }

 private:
  Result<void> CheckLists() {
    for (const Stream& list : root_.lists) {
      ASSIGN_OR_RETURN(const auto bytes, ReadList(devices_, root_, list));
      if (!bytes) result_.damage = "a list of its segments is damaged";
      if (!Continue(root_.list_size)) return {};
    }
    return {};
  }

  Result<void> CheckCheckpoint() {
    ASSIGN_OR_RETURN(auto frames, FrameReader::Create(devices_, root_.store_id, root_.checkpoint_stream));
    while (true) {
      ASSIGN_OR_RETURN(const auto frame, frames.Next());
      if (!frame) break;
      if (!Continue(frame->payload.size())) return {};
    }
    if (frames.position().frame >= root_.checkpoint_frames) return {};
    result_.damage =
        "its checkpoint differs from its checksums " + Where(root_.checkpoint_stream, frames.position(), devices_);
    return {};
  }

  // The log ends where no frame follows. Entries before the checkpoint have no meaning any more.
  Result<void> CheckLog() {
    ASSIGN_OR_RETURN(auto frames, FrameReader::Create(devices_, root_.store_id, root_.log));
    EntryReader entries(std::move(frames));
    std::optional<FrameReader::Position> gap;
    uint64_t frame = entries.position().frame;
    while (true) {
      ASSIGN_OR_RETURN(const auto entry, entries.Next());
      if (entry) {
        if (gap && entry->version.sequence > root_.checkpoint.sequence + 1) {
          result_.damage = "its log differs from its checksums " + Where(root_.log, *gap, devices_);
          return {};
        }
        gap.reset();
        if (std::exchange(frame, entries.position().frame) != frame && !Continue(kMiB)) return {};
        continue;
      }
      gap = entries.position();
      ASSIGN_OR_RETURN(const bool more, entries.SkipDamage());
      if (!more) return {};
      // Written between the two reads: there is no gap.
      if (entries.position().frame == gap->frame) gap.reset();
    }
  }

  bool Continue(uint64_t bytes) {
    result_.stopped = !next_(ByteCount{bytes});
    return !result_.stopped;
  }

  const Devices devices_;
  const Root& root_;
  const std::function<bool(ByteCount)>& next_;
  CheckResult result_;
};

}  // namespace

Result<CheckResult> CheckReplica(Devices devices, const std::optional<Uuid>& store_id,
                                 const std::function<bool()>& expected, const std::function<bool(ByteCount)>& next) {
  std::optional<uint64_t> damaged_root;  // the sequence of the root of the last pass, if that found damage
  for (int attempt = 0; attempt < kCheckAttempts; ++attempt) {
    auto found = FindRoot(devices, store_id);
    if (!found && found.error().code != ErrorCode::kIo) return found.error();
    auto root = found ? *std::move(found) : std::nullopt;
    if (!root && !expected()) return CheckResult{};
    CheckResult result{.damage = "no valid root can be read from any device"};
    if (root) {
      const auto loaded = LoadSegments(devices, &*root);
      if (!loaded && loaded.error().code != ErrorCode::kCorrupt) return loaded.error();
      if (loaded) {
        ASSIGN_OR_RETURN(result, Pass(devices, *root, next).Run());
      } else {
        result.damage = "the lists of its segments are damaged";
      }
    }
    if (root && root->newer_lost) result.damage = "all copies of its newest root are damaged";
    const uint64_t sequence = root ? root->sequence : 0;
    if (result.stopped || !result.damage || damaged_root == sequence) return result;
    damaged_root = sequence;
  }
  return CheckResult{};
}

}  // namespace weightfs::wal
