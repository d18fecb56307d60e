// SPDX-License-Identifier: Apache-2.0
#include "client/memory_view.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <numeric>

#include "tests/unit/client/files.h"

namespace weightfs::client {
namespace {

// A reference implementation that gathers element by element.
Bytes GatherSlowly(const std::byte* base, size_t item, const std::vector<int64_t>& shape,
                   const std::vector<int64_t>& strides, size_t dimension = 0) {
  if (dimension == shape.size()) return {base, base + item};
  Bytes all;
  for (int64_t i = 0; i < shape[dimension]; ++i) {
    const Bytes part = GatherSlowly(base + i * strides[dimension], item, shape, strides, dimension + 1);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

struct Layout {
  const char* name;
  size_t base;
  size_t item;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

const Layout kLayouts[] = {
    {"transposed matrix", 0, 4, {16, 32}, {4, 64}},
    {"every second column", 8, 8, {10, 12}, {192, 16}},
    {"rows with gaps", 0, 1, {9, 100}, {128, 1}},
    {"backwards", 4095, 1, {4096}, {-1}},
    {"permuted in three dimensions", 0, 2, {3, 5, 7}, {2, 42, 6}},
    {"a dimension of one", 16, 4, {4, 1, 8}, {128, 9999, 8}},
    {"elements of 3 bytes", 1, 3, {11, 13}, {3, 33}},
    {"mergeable outside, strided inside", 0, 4, {4, 4, 8}, {256, 64, 8}},
};

TEST(MemoryViewTest, EveryRangeIsGatheredAsTheIndicesSay) {
  const Bytes memory = RandomBytes(8192);
  for (const auto& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    const Bytes expected = GatherSlowly(memory.data() + layout.base, layout.item, layout.shape, layout.strides);
    const auto view = MemoryView::Strided(const_cast<std::byte*>(memory.data()) + layout.base, layout.item,
                                          layout.shape, layout.strides);
    ASSERT_TRUE(view.has_value());
    ASSERT_EQ(view->size(), expected.size());
    for (size_t begin = 0; begin < expected.size(); begin += 1 + begin / 7) {
      for (const size_t length : {size_t{1}, size_t{5}, layout.item * 3, expected.size() / 2, expected.size()}) {
        if (begin + length > expected.size()) continue;
        Bytes out(length);
        view->Gather(begin, out);
        ASSERT_EQ(out, Bytes(expected.begin() + static_cast<long>(begin),
                             expected.begin() + static_cast<long>(begin + length)))
            << begin << " + " << length;
        if (const std::byte* direct = view->Direct(begin, length); direct != nullptr) {
          ASSERT_EQ(Bytes(direct, direct + length), out);
        }
      }
    }
  }
}

TEST(MemoryViewTest, ScatterReversesGatherAndChangesNothingElse) {
  const Bytes before = RandomBytes(8192, 3);
  for (const auto& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    Bytes memory = before;
    const auto view =
        MemoryView::Strided(memory.data() + layout.base, layout.item, layout.shape, layout.strides).value();
    EXPECT_FALSE(view.may_overlap());
    const Bytes values = RandomBytes(view.size(), 4);
    for (size_t at = 0; at < values.size(); at += 37) {
      view.Scatter(at, std::span(values).subspan(at, std::min<size_t>(37, values.size() - at)));
    }
    EXPECT_EQ(GatherSlowly(memory.data() + layout.base, layout.item, layout.shape, layout.strides), values);
    // After the elements are written back, nothing differs.
    const auto was = MemoryView::Strided(const_cast<std::byte*>(before.data()) + layout.base, layout.item, layout.shape,
                                         layout.strides)
                         .value();
    Bytes original(view.size());
    was.Gather(0, original);
    view.Scatter(0, original);
    EXPECT_EQ(memory, before);
  }
}

TEST(MemoryViewTest, LargeCopiesAreExactAtEveryAlignment) {
  constexpr size_t kSize = 70'000;
  Bytes memory = RandomBytes(kSize + 256, 5);
  for (const size_t from : {0, 1, 17, 64}) {
    for (const size_t to : {1, 15, 63, 64}) {
      for (const size_t length : {kSize, kSize - 1, kSize - 63}) {
        Bytes out(kSize + 256, std::byte{0x5a});
        MemoryView(std::span<std::byte>(memory).subspan(from, kSize)).Gather(0, std::span(out).subspan(to, length));
        ASSERT_EQ(std::memcmp(out.data() + to, memory.data() + from, length), 0);
        ASSERT_EQ(out[to - 1], std::byte{0x5a});
        ASSERT_EQ(out[to + length], std::byte{0x5a});
      }
    }
  }
}

TEST(MemoryViewTest, ContiguousStridesAreOneRun) {
  Bytes memory(1000);
  const auto view =
      MemoryView::Strided(memory.data(), 4, std::vector<int64_t>{5, 1, 50}, std::vector<int64_t>{200, 7, 4});
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->Direct(3, 900), memory.data() + 3);
}

TEST(MemoryViewTest, SharedElementsAreNoticed) {
  Bytes memory(100);
  const auto overlaps = [&](std::vector<int64_t> shape, std::vector<int64_t> strides) {
    return MemoryView::Strided(memory.data(), 4, shape, strides).value().may_overlap();
  };
  EXPECT_TRUE(overlaps({3, 4}, {0, 4}));
  EXPECT_TRUE(overlaps({3}, {2}));
  EXPECT_TRUE(overlaps({3, 4}, {8, 4}));
  EXPECT_FALSE(overlaps({3, 4}, {16, 4}));
  EXPECT_FALSE(overlaps({4, 3}, {4, 16}));
}

TEST(MemoryViewTest, ImpossibleShapesAreRefused) {
  Bytes memory(100);
  const auto refused = [&](size_t item, std::vector<int64_t> shape, std::vector<int64_t> strides) {
    const auto view = MemoryView::Strided(memory.data(), item, shape, strides);
    return !view.has_value() && view.error().error_number() == EINVAL;
  };
  EXPECT_TRUE(refused(0, {1}, {1}));
  EXPECT_TRUE(refused(4, {-1}, {4}));
  EXPECT_TRUE(refused(4, {1, 2}, {4}));
  EXPECT_TRUE(refused(4, {INT64_MAX, INT64_MAX}, {4, 4}));
  EXPECT_TRUE(refused(1, {int64_t{1} << 32, int64_t{1} << 32}, {0, 0}));  // 2^64 bytes
  EXPECT_TRUE(refused(1, {int64_t{1} << 32, int64_t{1} << 31}, {0, 0}));  // 2^63
  EXPECT_TRUE(refused(1, {INT64_MIN}, {1}));
  // Strides that leave the address space on either side.
  EXPECT_TRUE(refused(1, {2}, {INT64_MIN}));
  EXPECT_TRUE(refused(1, {2}, {-INT64_MAX}));
  EXPECT_TRUE(refused(1, {3}, {INT64_MAX}));
  EXPECT_TRUE(refused(1, {2, 2, 2}, {INT64_MAX, INT64_MAX, INT64_MAX}));
  EXPECT_TRUE(refused(8, {int64_t{1} << 40}, {int64_t{1} << 40}));
  const auto repeated =
      MemoryView::Strided(memory.data(), 1, std::vector<int64_t>{int64_t{1} << 40, 4}, std::vector<int64_t>{0, 1});
  ASSERT_TRUE(repeated.has_value());
  EXPECT_EQ(repeated->size(), uint64_t{1} << 42);
  EXPECT_EQ(repeated->Direct((uint64_t{1} << 42) - 2, 2), memory.data() + 2);
  EXPECT_EQ(MemoryView::Strided(memory.data(), 4, std::vector<int64_t>{INT64_MAX, 0, INT64_MAX},
                                std::vector<int64_t>{1, 1, 1})
                ->size(),
            0U);
  EXPECT_EQ(MemoryView::Strided(memory.data(), 4, std::vector<int64_t>{0, 5}, std::vector<int64_t>{4, 4})->size(), 0U);
}

TEST(MemoryViewTest, JoinedViewsHaveZerosBetweenThem) {
  Bytes first = RandomBytes(100, 1);
  Bytes matrix = RandomBytes(60, 2);
  const std::vector<int64_t> shape{6, 10};
  const std::vector<int64_t> strides{1, 6};
  const auto transposed = MemoryView::Strided(matrix.data(), 1, shape, strides).value();
  std::vector<MemoryView::Part> parts;
  parts.push_back({0, MemoryView(std::span<std::byte>(first))});
  parts.push_back({128, MemoryView(std::span<std::byte>())});
  parts.push_back({128, transposed});
  const auto joined = MemoryView::Joined(parts, 256);
  Bytes expected(256);
  std::copy(first.begin(), first.end(), expected.begin());
  transposed.Gather(0, std::span(expected).subspan(128, 60));
  for (const size_t begin : {size_t{0}, size_t{99}, size_t{100}, size_t{110}, size_t{150}, size_t{200}}) {
    for (const size_t end : {size_t{201}, size_t{256}}) {
      Bytes out(end - begin, std::byte{0x5a});
      joined.Gather(begin, out);
      EXPECT_TRUE(std::equal(out.begin(), out.end(), expected.begin() + static_cast<long>(begin))) << begin;
    }
  }
  EXPECT_EQ(joined.Direct(10, 90), first.data() + 10);
  EXPECT_EQ(joined.Direct(10, 91), nullptr);
  EXPECT_EQ(joined.Direct(100, 1), nullptr);
  EXPECT_EQ(joined.Direct(128, 60), nullptr);  // strided
  const Bytes before = expected;
  std::fill(first.begin(), first.end(), std::byte{0});
  std::fill(matrix.begin(), matrix.end(), std::byte{0});
  joined.Scatter(0, std::span(before).first(140));
  joined.Scatter(140, std::span(before).subspan(140));
  Bytes again(256);
  joined.Gather(0, again);
  EXPECT_EQ(again, before);
  EXPECT_FALSE(joined.may_overlap());
}

}  // namespace
}  // namespace weightfs::client
