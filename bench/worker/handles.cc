// SPDX-License-Identifier: Apache-2.0
#include "bench/worker/handles.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "client/random_reader.h"

namespace weightfs::bench {
namespace {

using client::MemoryView;

Result<void> Convert(const Result<void>& result) {
  if (result.has_value()) return {};
  return Error{ErrorCode::kIo, result.error().what};
}

Error WrongBytes(const std::string& path) {
  return {ErrorCode::kCorrupt, fmt::format("{}: was read with wrong bytes", path)};
}

}  // namespace

Result<std::unique_ptr<Tensors>> Tensors::Create(const Content& content, std::byte* into) {
  constexpr unsigned kDepth = 32;  // same as the reference
  std::unique_ptr<Tensors> tensors(new Tensors(content, into));
  ASSIGN_OR_RETURN(tensors->small_pages_, AllocateTouched(content.period, PageSize::kSmall));
  std::memcpy(tensors->small_pages_.get(), content.data, content.period);
  for (const auto& [direct, handle] :
       {std::pair{client::Direct::kRequire, &tensors->direct_}, {client::Direct::kNever, &tensors->plain_}}) {
    auto made = client::Handle::Create({.queue_depth = kDepth, .overlap_events = true, .direct = direct});
    if (!made.has_value()) return Error{ErrorCode::kIo, made.error().what};
    *handle = std::move(*made);
  }
  return tensors;
}

Amount Tensors::Read(const std::string& path, Alignment alignment, bool direct, bool check) {
  std::byte* const into = Into(alignment);
  if (check) std::memset(into, 0, content_.period);
  RETURN_IF_ERROR(Convert((direct ? direct_ : plain_)->Read(path, MemoryView(std::span(into, content_.period)))));
  if (check && std::memcmp(into, content_.data, content_.period) != 0) return WrongBytes(path);
  return content_.period;
}

Amount Tensors::Write(const std::string& path, Alignment alignment, bool direct) {
  const MemoryView from(std::span(From(alignment), content_.period));
  RETURN_IF_ERROR(Convert((direct ? direct_ : plain_)->Write(path, from, {.durable = true})));
  return content_.period;
}

Amount Tensors::SaveMany(const SmallFiles& files) {
  if (mkdir(files.directory.c_str(), 0755) != 0 && errno != EEXIST) {
    return SystemError(files.directory, "cannot be made");
  }
  std::vector<client::NamedMemory> tensors;
  for (unsigned index = 0; index < files.count; ++index) {
    tensors.push_back({SmallFiles::Name(index), MemoryView(std::span(files.Bytes(index), files.size))});
  }
  RETURN_IF_ERROR(Convert(direct_->SaveMany(files.directory, tensors)));
  return files.count;
}

Amount Tensors::LoadMany(const SmallFiles& files) {
  std::vector<client::NamedMemory> tensors;
  for (unsigned index = 0; index < files.count; ++index) {
    tensors.push_back({SmallFiles::Name(index), MemoryView(std::span(into_ + index * files.size, files.size))});
  }
  auto loaded = direct_->LoadMany(files.directory, tensors);
  if (!loaded.has_value()) return Error{ErrorCode::kIo, loaded.error().what};
  if (!loaded->empty()) return Error{ErrorCode::kIo, loaded->front().error.what};
  for (unsigned index = 0; files.check && index < files.count; ++index) {
    if (std::memcmp(into_ + index * files.size, files.Bytes(index), files.size) != 0) {
      return WrongBytes(files.Path(index));
    }
  }
  return files.count;
}

Amount Tensors::ReadRows(const std::string& path, uint64_t row, unsigned depth, uint64_t seed, bool check,
                         double* seconds) const {
  using Clock = std::chrono::steady_clock;
  constexpr size_t kBatch = 1024;
  auto reader = client::RandomReader::Open(path, {.queue_depth = depth, .direct = client::Direct::kRequire});
  if (!reader.has_value()) return Error{ErrorCode::kIo, reader.error().what};
  std::mt19937_64 random(seed);
  std::vector<uint64_t> offsets(depth == 1 ? 1 : kBatch);
  const MemoryView memory(std::span(into_, offsets.size() * row));
  const auto begin = Clock::now(), end = begin + std::chrono::nanoseconds(static_cast<int64_t>(*seconds * 1e9));
  uint64_t done = 0;
  for (; Clock::now() < end; done += offsets.size()) {
    for (uint64_t& offset : offsets) offset = random() % (content_.period / row) * row;
    const auto read = (*reader)->ReadRows(offsets, row, memory);
    if (!read.has_value()) return Error{ErrorCode::kIo, read.error().what};
    for (size_t i = 0; check && i < offsets.size(); ++i) {
      if (std::memcmp(into_ + i * row, content_.At(offsets[i]), row) != 0) return WrongBytes(path);
    }
  }
  *seconds = std::max(std::chrono::duration<double>(Clock::now() - begin).count(), 1e-9);
  return done;
}

std::byte* Tensors::Into(Alignment alignment) const {
  if (alignment == Alignment::kSmallPages) return small_pages_.get();
  return into_ + (alignment == Alignment::kUnaligned ? kUnalignment : 0);
}

const std::byte* Tensors::From(Alignment alignment) const {
  if (alignment == Alignment::kSmallPages) return small_pages_.get();
  return content_.data + (alignment == Alignment::kUnaligned ? kUnalignment : 0);
}

}  // namespace weightfs::bench
