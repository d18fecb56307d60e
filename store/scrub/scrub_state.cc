// SPDX-License-Identifier: Apache-2.0
#include "store/scrub/scrub_state.h"

#include <algorithm>

#include "common/bytes.h"

namespace weightfs {
namespace {

constexpr uint8_t kStateFormat = 1;
constexpr uint8_t kCatalogFlag = 1, kReplicaFlag = 2;

void AppendFindings(std::string& bytes, const ScrubFindings& findings) {
  AppendLittle(bytes, findings.blocks);
  AppendLittle(bytes, findings.files);
  AppendLittle(bytes,
               static_cast<uint8_t>((findings.catalog ? kCatalogFlag : 0) | (findings.replica ? kReplicaFlag : 0)));
  const size_t listed = std::min(findings.listed.size(), ScrubFindings::kListed);
  AppendLittle(bytes, static_cast<uint8_t>(listed));
  for (size_t i = 0; i < listed; ++i) {
    AppendLittle(bytes, findings.listed[i].ino.value);
    AppendLittle(bytes, findings.listed[i].offset);
    AppendLittle(bytes, findings.listed[i].blocks);
  }
}

ScrubFindings ReadFindings(Decoder& decoder) {
  ScrubFindings findings;
  findings.blocks = decoder.Little<uint64_t>();
  findings.files = decoder.Little<uint64_t>();
  const auto flags = decoder.Little<uint8_t>();
  findings.catalog = (flags & kCatalogFlag) != 0;
  findings.replica = (flags & kReplicaFlag) != 0;
  const auto listed = decoder.Little<uint8_t>();
  for (uint8_t i = 0; i < listed && decoder.ok(); ++i) {
    DamagedFile file;
    file.ino.value = decoder.Little<uint64_t>();
    file.offset = decoder.Little<uint64_t>();
    file.blocks = decoder.Little<uint64_t>();
    findings.listed.push_back(std::move(file));
  }
  return findings;
}

constexpr ByteCount kLeastQuiet{16 * kMiB}, kLeastBusy{2 * kMiB};  // per second

}  // namespace

std::string EncodeScrubState(const ScrubState& state) {
  std::string bytes;
  AppendLittle(bytes, kStateFormat);
  AppendLittle(bytes, static_cast<uint8_t>(state.phase));
  AppendLittle(bytes, state.started_ns);
  AppendLittle(bytes, state.position.ino.value);
  AppendLittle(bytes, state.position.block.value);
  AppendLittle(bytes, state.checked_bytes);
  AppendLittle(bytes, state.total_bytes);
  AppendLittle(bytes, state.last_started_ns);
  AppendLittle(bytes, state.last_completed_ns);
  AppendFindings(bytes, state.found);
  AppendFindings(bytes, state.last_found);
  return bytes;
}

std::optional<ScrubState> DecodeScrubState(std::string_view bytes) {
  Decoder decoder(bytes);
  if (decoder.Little<uint8_t>() != kStateFormat) return std::nullopt;
  ScrubState state;
  const auto phase = decoder.Little<uint8_t>();
  state.phase = static_cast<ScrubPhase>(phase);
  state.started_ns = decoder.Little<int64_t>();
  state.position.ino.value = decoder.Little<uint64_t>();
  state.position.block.value = decoder.Little<uint64_t>();
  state.checked_bytes = decoder.Little<uint64_t>();
  state.total_bytes = decoder.Little<uint64_t>();
  state.last_started_ns = decoder.Little<int64_t>();
  state.last_completed_ns = decoder.Little<int64_t>();
  state.found = ReadFindings(decoder);
  state.last_found = ReadFindings(decoder);
  if (!decoder.Done() || phase > static_cast<uint8_t>(ScrubPhase::kData)) return std::nullopt;
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
