// SPDX-License-Identifier: Apache-2.0
// The free extents of one allocation group: a treap ordered by offset, in which every node stores a summary of its
// subtree. Every query of the allocator is therefore one walk down the tree, however fragmented the space is.
// BlueStore's aligned searches over misaligned chunks, which took 70 to 100 ms each, cannot happen here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace weightfs {

// Block numbers relative to the start of the group.
struct FreeExtent {
  uint32_t start;
  uint32_t length;
  constexpr uint32_t end() const { return start + length; }
  constexpr bool operator==(const FreeExtent&) const = default;
};

// Externally synchronized. Extents are disjoint and never adjacent, because neighbors are merged.
//
// An extent is *large* when it contains a whole aligned unit of `alignment` blocks, else *small*. The class of a small
// extent is the power of two of its length. The class of a large extent is the power of two of the length that is
// usable from its first aligned block on. `slack` is the number of blocks that can be allocated without breaking an
// aligned unit: a whole small extent, or the longer of the unaligned head and tail of a large one.
class FreeExtentTree {
 public:
  // The largest alignment whose classes fit in the 32-bit masks.
  static constexpr uint32_t kMaxAlignment = 1u << 16;

  // The maximum over the extents of a set, in blocks, and the classes that occur.
  struct Summary {
    uint32_t longest = 0;
    uint32_t longest_aligned = 0;
    uint32_t longest_slack = 0;
    uint32_t classes = 0;
    constexpr bool operator==(const Summary&) const = default;
  };

  // `alignment` is a power of two, at most kMaxAlignment; the end of the last block must fit in 32 bits.
  explicit FreeExtentTree(uint32_t alignment);

  // True when every block, or no block, of `extent` is free.
  bool AllFree(FreeExtent extent) const;
  bool NoneFree(FreeExtent extent) const;

  // Adds blocks that must not be free, or removes blocks that must be free. Returns false, and changes nothing,
  // otherwise.
  [[nodiscard]] bool Add(FreeExtent extent);
  [[nodiscard]] bool Remove(FreeExtent extent);

  // The part of the free extent that contains `offset`, from `offset` on.
  std::optional<FreeExtent> From(uint32_t offset) const;

  // Finds an extent with `count` aligned blocks: one of the class of `count` if the bounded search finds one;
  // otherwise, unless `tight`, one of the next higher class that occurs.
  std::optional<FreeExtent> FindAligned(uint32_t count, bool tight) const;

  // Finds an extent from which `count` blocks can be allocated without breaking an aligned unit; small extents first.
  std::optional<FreeExtent> FindSlack(uint32_t count) const;

  // Finds an extent of at least `count` blocks; prefers low classes.
  std::optional<FreeExtent> FindPlain(uint32_t count) const;

  // The first aligned block from `offset` on, and the aligned part of `extent` (may be empty).
  uint32_t AlignUp(uint32_t offset) const { return (offset + alignment_ - 1) & ~(alignment_ - 1); }
  FreeExtent AlignedPart(FreeExtent extent) const;

  const Summary& summary() const { return At(root_).subtree; }
  uint64_t size() const { return size_; }
  uint64_t memory() const;

  // Verifies order, heap property, merging and every summary. Visits all nodes; for tests.
  bool IsConsistent() const;

  // The class bit of extents of exactly `count` aligned blocks; 0 when they contain no aligned unit.
  static uint32_t AlignedClassBit(uint32_t count, uint32_t alignment);

 private:
  using Index = uint32_t;  // in the pool; node 0 is the empty subtree, with a zero summary

  struct alignas(32) Node {
    FreeExtent extent;
    Index left;
    Index right;
    Summary subtree;
  };
  static_assert(sizeof(Node) == 32, "the promise is at most 40 bytes a free extent");

  // Nodes live in chunks, so growing the pool never copies nodes and never leaves half of the memory unused.
  static constexpr uint32_t kChunkBits = 8;
  static constexpr uint32_t kChunkNodes = 1u << kChunkBits;
  // The number of nodes that a search within one class may visit before it continues with a higher class.
  static constexpr int kClassSearchNodes = 64;

  struct ConsistencyCheck;

  Node& At(Index index) { return chunks_[index >> kChunkBits][index & (kChunkNodes - 1)]; }
  const Node& At(Index index) const { return chunks_[index >> kChunkBits][index & (kChunkNodes - 1)]; }

  Index NewNode(FreeExtent extent);
  void DropNode(Index index);

  unsigned ClassOf(FreeExtent extent) const;
  Summary Describe(FreeExtent extent) const;
  Summary Combine(const Node& node) const;
  void Refresh(Index index) { At(index).subtree = Combine(At(index)); }

  // One more than the depth in path_ of the last node that starts at or before an offset, and of the first one after
  // it; 0 when there is none.
  struct Neighbors {
    size_t before;
    size_t after;
  };
  // Walks down to the position of a node that starts at `offset`, whether it exists or not; path_ stores the nodes
  // passed.
  Neighbors Descend(uint32_t offset);
  // Recomputes the summaries of the first `depth` nodes of path_, when only the last of them or its subtree has
  // changed.
  void RefreshPath(size_t depth);
  Index& LinkAt(size_t depth, uint32_t offset);
  // Both use path_ as Descend left it, at the position of the extent or down to the node.
  void InsertAtPath(FreeExtent extent);
  void EraseAtPath(size_t depth);
  void Split(Index tree, uint32_t offset, Index& below, Index& above);
  Index Merge(Index below, Index above);

  Index Floor(uint32_t offset) const;
  Index SearchClass(Index index, unsigned extent_class, uint32_t count, int& nodes_left) const;
  template <typename Has>
  std::optional<FreeExtent> First(const Has& has) const;
  std::optional<FreeExtent> FirstOfLowest(uint32_t classes) const;
  template <uint32_t Summary::*kMeasure>
  std::optional<FreeExtent> FirstWith(uint32_t count) const;

  const uint32_t alignment_;
  const unsigned small_classes_;  // classes below this one are small
  Index root_ = 0;
  Index unused_ = 0;  // list of free nodes, linked by `left`
  uint32_t nodes_made_ = 1;
  uint64_t size_ = 0;
  std::vector<std::unique_ptr<Node[]>> chunks_;
  std::vector<Index> path_;  // of the change in progress, from the root on
};

}  // namespace weightfs
