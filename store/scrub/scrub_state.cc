// SPDX-License-Identifier: Apache-2.0
#include "store/scrub/scrub_state.h"

#include <algorithm>

#include "common/bytes.h"

namespace weightfs {
namespace {

constexpr uint8_t kStateFormat = 1;
constexpr uint8_t kCatalogFlag = 1, kReplicaFlag = 2;

// These functions state the layout for both directions (common/bytes.h).
template <typename Coder>
void CodeFindings(Coder& coder, ScrubFindings& findings) {
  auto flags = static_cast<uint8_t>((findings.catalog ? kCatalogFlag : 0) | (findings.replica ? kReplicaFlag : 0));
  auto listed = static_cast<uint8_t>(std::min(findings.listed.size(), ScrubFindings::kListed));
  coder.Fields(findings.blocks, findings.files, flags, listed);
  findings.catalog = (flags & kCatalogFlag) != 0;
  findings.replica = (flags & kReplicaFlag) != 0;
  findings.listed.resize(listed);
  for (DamagedFile& file : findings.listed) coder.Fields(file.ino.value, file.offset, file.blocks);
}

template <typename Coder>
void CodeState(Coder& coder, ScrubState& state) {
  coder.Fields(state.phase, state.started_ns, state.position.ino.value, state.position.block.value);
  coder.Fields(state.checked_bytes, state.total_bytes, state.last_started_ns, state.last_completed_ns);
  CodeFindings(coder, state.found);
  CodeFindings(coder, state.last_found);
}

constexpr ByteCount kLeastQuiet{16 * kMiB}, kLeastBusy{2 * kMiB};  // per second

}  // namespace

std::string EncodeScrubState(ScrubState state) {
  std::string bytes;
  AppendLittle(bytes, kStateFormat);
  Encoder encoder(bytes);
  CodeState(encoder, state);
  return bytes;
}

std::optional<ScrubState> DecodeScrubState(std::string_view bytes) {
  Decoder decoder(bytes);
  if (decoder.Little<uint8_t>() != kStateFormat) return std::nullopt;
  ScrubState state;
  CodeState(decoder, state);
  if (!decoder.Done() || state.phase > ScrubPhase::kData) return std::nullopt;
  return state;
}

ScrubRates ChooseScrubRates(ByteCount total, std::chrono::milliseconds period, ByteCount most) {
  const double seconds = std::max(0.001, std::chrono::duration<double>(period).count());
  // Bounded before the conversion, which is undefined for values that do not fit.
  const double needed = std::min(static_cast<double>(total.value) / seconds, 1e15);
  const auto bounded = [&](double rate, ByteCount least) {
    return std::min(std::max(ByteCount{static_cast<uint64_t>(rate)}, least), most);
  };
  return {bounded(needed * 4, kLeastQuiet), bounded(needed * 1.25, kLeastBusy)};
}

ScrubPace::Time ScrubPace::NextRead(ByteCount size, uint64_t others, Time now) {
  NoteOthers(others, now);
  const double cost = static_cast<double>(std::max(size, kLeastRead).value);
  const std::chrono::duration<double> took(cost / static_cast<double>(std::max<uint64_t>(rate().value, 1)));
  next_ = std::max(next_, now - kLongestBurst) + std::chrono::duration_cast<Time::duration>(took);
  return next_;
}

void ScrubPace::NoteOthers(uint64_t others, Time now) {
  if (measured_at_ == Time{}) {
    measured_at_ = now;
    measured_ = others;
    return;
  }
  if (now - measured_at_ < kInterval) return;
  const double seconds = std::chrono::duration<double>(now - measured_at_).count();
  busy_ = static_cast<double>(others - measured_) > static_cast<double>(kBusy.value) * seconds;
  measured_at_ = now;
  measured_ = others;
}

}  // namespace weightfs
