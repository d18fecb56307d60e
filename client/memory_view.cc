// SPDX-License-Identifier: Apache-2.0
#include "client/memory_view.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace weightfs::client {
namespace {

#if defined(__SSE2__)

// The C library uses non-temporal stores only above some tens of megabytes, but our pieces are smaller and many. With
// tensors in unaligned memory this gains a tenth of the total throughput.
constexpr size_t kStreamFrom = 64 * 1024;
constexpr size_t kLine = 64;
constexpr size_t kAhead = 8 * kLine;

void CopyLine(std::byte* to, const std::byte* from) {
  const auto* source = reinterpret_cast<const __m128i*>(from);
  auto* target = reinterpret_cast<__m128i*>(to);
  const __m128i first = _mm_loadu_si128(source);
  const __m128i second = _mm_loadu_si128(source + 1);
  const __m128i third = _mm_loadu_si128(source + 2);
  const __m128i fourth = _mm_loadu_si128(source + 3);
  _mm_stream_si128(target, first);
  _mm_stream_si128(target + 1, second);
  _mm_stream_si128(target + 2, third);
  _mm_stream_si128(target + 3, fourth);
}

// Like std::memcpy, for large pieces that are not read soon afterwards. The copy bypasses the cache, so the destination
// is not read first.
void StreamCopy(std::byte* to, const std::byte* from, size_t size) {
  if (size < kStreamFrom) {
    std::memcpy(to, from, size);
    return;
  }
  // Only whole cache lines can bypass the cache.
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  to += head;
  from += head;
  size -= head;
  for (; size >= kLine; size -= kLine, to += kLine, from += kLine) {
    // Only a hint: the address need not exist.
    _mm_prefetch(reinterpret_cast<const char*>(from) + kAhead, _MM_HINT_NTA);
    CopyLine(to, from);
  }
  // Non-temporal stores are not ordered with others. After the fence, the device or another thread may read the data.
  _mm_sfence();
  std::memcpy(to, from, size);
}

#else

void StreamCopy(std::byte* to, const std::byte* from, size_t size) { std::memcpy(to, from, size); }

#endif

// Copies runs whose size the compiler knows, so that each copy is a move instruction instead of a call.
template <bool kGather, size_t kRun>
void CopyRuns(std::byte* memory, int64_t stride, int64_t count, std::byte* other) {
  for (int64_t i = 0; i < count; ++i, memory += stride, other += kRun) {
    if constexpr (kGather) {
      std::memcpy(other, memory, kRun);
    } else {
      std::memcpy(memory, other, kRun);
    }
  }
}

template <bool kGather>
void CopyRuns(std::byte* memory, size_t run, int64_t stride, int64_t count, std::byte* other) {
  switch (run) {
    case 1: return CopyRuns<kGather, 1>(memory, stride, count, other);
    case 2: return CopyRuns<kGather, 2>(memory, stride, count, other);
    case 4: return CopyRuns<kGather, 4>(memory, stride, count, other);
    case 8: return CopyRuns<kGather, 8>(memory, stride, count, other);
    case 16: return CopyRuns<kGather, 16>(memory, stride, count, other);
    default: break;
  }
  for (int64_t i = 0; i < count; ++i, memory += stride, other += run) {
    std::memcpy(kGather ? other : memory, kGather ? memory : other, run);
  }
}

constexpr size_t kMostBytes = INT64_MAX;

// True if all elements lie at valid addresses, with strides in both directions.
bool IsReachable(uintptr_t base, size_t item_size, std::span<const int64_t> shape, std::span<const int64_t> strides) {
  int64_t below = 0, above = 0;  // offset of the lowest and of the highest element, in bytes
  for (size_t i = 0; i < shape.size(); ++i) {
    int64_t reach = 0;
    int64_t& side = strides[i] < 0 ? below : above;
    if (strides[i] == INT64_MIN || __builtin_mul_overflow(shape[i] - 1, strides[i], &reach) ||
        __builtin_add_overflow(side, reach, &side)) {
      return false;
    }
  }
  uintptr_t end = 0;
  return below != INT64_MIN && static_cast<uintptr_t>(-below) <= base &&
         !__builtin_add_overflow(base, static_cast<uintptr_t>(above), &end) &&
         !__builtin_add_overflow(end, static_cast<uintptr_t>(item_size), &end);
}

// True when the outer dimension continues where the inner one ends.
bool Continues(int64_t outer_stride, int64_t inner_stride, int64_t inner_count) {
  int64_t reach = 0;
  return !__builtin_mul_overflow(inner_stride, inner_count, &reach) && outer_stride == reach;
}

}  // namespace

Result<MemoryView> MemoryView::Strided(void* base, size_t item_size, std::span<const int64_t> shape,
                                       std::span<const int64_t> strides) {
  if (item_size == 0 || shape.size() != strides.size()) {
    return Error{ErrorCode::kInvalid, "a tensor needs elements of at least one byte, and a stride for each dimension"};
  }
  MemoryView view;
  view.base_ = static_cast<std::byte*>(base);
  view.size_ = item_size;
  view.run_ = item_size;
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  for (const int64_t count : shape) {
    size_t product = 0;
    // With an empty dimension the size is 0, so the other dimensions may have any value.
    if (count < 0 || (!empty && (__builtin_mul_overflow(view.size_, static_cast<size_t>(count), &product) ||
                                 product > kMostBytes))) {
      return Error{ErrorCode::kInvalid, "a tensor's dimension is negative, or it has more than 2^63 - 1 bytes"};
    }
    view.size_ = product;
  }
  if (view.size_ == 0) return MemoryView(std::span(view.base_, 0));
  if (!IsReachable(reinterpret_cast<uintptr_t>(base), item_size, shape, strides)) {
    return Error{ErrorCode::kInvalid, "a tensor's strides lead outside of the memory that addresses reach"};
  }
  // From the innermost dimension outward: a dimension that continues the run is merged into the run; one that continues
  // the next inner dimension is merged into that dimension.
  for (size_t i = shape.size(); i > 0; --i) {
    const Dimension next{shape[i - 1], strides[i - 1]};
    auto& outer = view.dimensions_;
    if (next.count == 1) continue;
    if (outer.empty() && next.stride == static_cast<int64_t>(view.run_)) {
      view.run_ *= static_cast<size_t>(next.count);
    } else if (!outer.empty() && Continues(next.stride, outer.back().stride, outer.back().count)) {
      outer.back().count *= next.count;
    } else {
      outer.push_back(next);
    }
  }
  std::reverse(view.dimensions_.begin(), view.dimensions_.end());
  view.may_overlap_ = view.MayOverlap();
  return view;
}

MemoryView MemoryView::OnDevice(uint64_t address, size_t size, std::optional<uintptr_t> stream) {
  // Stored as a pointer but never dereferenced.
  MemoryView view(std::span(reinterpret_cast<std::byte*>(address), size));  // NOLINT(performance-no-int-to-ptr)
  view.on_device_ = true;
  view.stream_ = stream;
  return view;
}

MemoryView MemoryView::Joined(std::vector<Part> parts, size_t size) {
  MemoryView view;
  view.size_ = size;
  view.may_overlap_ = std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.view.may_overlap(); });
  view.constant_ = std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.view.constant_; });
  view.parts_ = std::make_shared<const std::vector<Part>>(std::move(parts));
  return view;
}

template <typename Visit>
void MemoryView::ForEachPart(size_t offset, size_t length, Visit visit) const {
  const size_t end = offset + length;
  auto part = std::partition_point(parts_->begin(), parts_->end(),
                                   [&](const Part& p) { return p.at + p.view.size() <= offset; });
  for (; part != parts_->end() && part->at < end; ++part) {
    const size_t begin = std::max(offset, part->at);
    const size_t size = std::min(end, part->at + part->view.size()) - begin;
    if (size > 0) visit(*part, begin, size);
  }
}

// With dimensions sorted by stride, each stride must be larger than the extent of all smaller dimensions.
bool MemoryView::MayOverlap() const {
  std::vector<Dimension> sorted = dimensions_;
  for (auto& dimension : sorted) dimension.stride = std::abs(dimension.stride);
  std::sort(sorted.begin(), sorted.end(), [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  // All of it is within the address space, so the sum does not overflow an unsigned 64-bit integer.
  uint64_t reach = run_;
  for (const auto& dimension : sorted) {
    const auto stride = static_cast<uint64_t>(dimension.stride);
    if (stride < reach) return true;
    reach += stride * static_cast<uint64_t>(dimension.count - 1);
  }
  return false;
}

std::byte* MemoryView::Direct(size_t offset, size_t length) const {
  if (on_device_) return nullptr;
  if (parts_ != nullptr) {
    std::byte* place = nullptr;
    ForEachPart(offset, length, [&](const Part& part, size_t begin, size_t size) {
      if (size == length) place = part.view.Direct(begin - part.at, size);
    });
    return place;
  }
  if (dimensions_.empty()) return base_ + offset;
  const size_t within = offset % run_;
  if (within + length > run_) return nullptr;
  auto index = static_cast<int64_t>(offset / run_);
  std::byte* place = base_ + within;
  for (size_t i = dimensions_.size(); i > 0; --i) {
    const Dimension& dimension = dimensions_[i - 1];
    place += index % dimension.count * dimension.stride;
    index /= dimension.count;
  }
  return place;
}

template <bool kGather>
void MemoryView::Copy(size_t offset, size_t length, std::byte* other) const {
  if (on_device_) {
    std::fprintf(stderr, "weightfs: memory of a GPU was to be copied as the host's\n");
    std::abort();
  }
  const auto move = [&](std::byte* memory, size_t size) {
    StreamCopy(kGather ? other : memory, kGather ? memory : other, size);
    other += size;
    offset += size;
    length -= size;
  };
  while (length > 0) {
    if (dimensions_.empty()) return move(base_ + offset, length);
    const size_t within = offset % run_;
    if (within != 0 || length < run_) {
      const size_t size = std::min(length, run_ - within);
      move(Direct(offset, size), size);
      continue;
    }
    // Whole runs, up to the end of the innermost dimension.
    const Dimension& inner = dimensions_.back();
    const auto at = static_cast<int64_t>(offset / run_) % inner.count;
    const int64_t count = std::min<int64_t>(inner.count - at, static_cast<int64_t>(length / run_));
    CopyRuns<kGather>(Direct(offset, run_), run_, inner.stride, count, other);
    const size_t size = static_cast<size_t>(count) * run_;
    other += size;
    offset += size;
    length -= size;
  }
}

void MemoryView::Gather(size_t offset, std::span<std::byte> out) const {
  if (parts_ != nullptr) {
    size_t done = offset;
    const auto pad = [&](size_t until) { std::memset(out.data() + (done - offset), 0, until - done); };
    ForEachPart(offset, out.size(), [&](const Part& part, size_t begin, size_t size) {
      pad(begin);
      part.view.Gather(begin - part.at, out.subspan(begin - offset, size));
      done = begin + size;
    });
    return pad(offset + out.size());
  }
  Copy<true>(offset, out.size(), out.data());
}

void MemoryView::Scatter(size_t offset, std::span<const std::byte> in) const {
  if (parts_ != nullptr) {
    return ForEachPart(offset, in.size(), [&](const Part& part, size_t begin, size_t size) {
      part.view.Scatter(begin - part.at, in.subspan(begin - offset, size));
    });
  }
  // The const_cast is safe, because Copy<false> only reads `in`.
  Copy<false>(offset, in.size(), const_cast<std::byte*>(in.data()));
}

}  // namespace weightfs::client
