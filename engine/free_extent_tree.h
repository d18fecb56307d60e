// SPDX-License-Identifier: Apache-2.0
// The free extents of one allocation group: a treap by offset in which every node also carries what its subtree
// holds. Every question the allocator asks is thus one walk down the tree, however fragmented the space is:
// BlueStore's aligned searches over misaligned chunks, 70 to 100 ms each, cannot happen here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace weightfs {

// Blocks counted from the start of the group.
struct FreeExtent {
  uint32_t start;
  uint32_t length;
  constexpr uint32_t end() const { return start + length; }
  constexpr bool operator==(const FreeExtent&) const = default;
};

// Externally synchronized. Extents are disjoint and never adjacent: neighbors are merged.
//
// An extent is *large* when a whole aligned window of `alignment` blocks lies in it, else *small*. The class of a
// small one is the power of two of its length, the class of a large one that of its windows: what may be used
// from the first aligned block on. `slack` is the room that can be taken without breaking a window: all of a
// small extent, the longer of the unaligned head and tail of a large one.
class FreeExtentTree {
 public:
  // The largest alignment for which the classes fit the 32-bit masks.
  static constexpr uint32_t kMaxAlignment = 1u << 16;

  // What the best extent of a set offers, in blocks, and which classes occur.
  struct Summary {
    uint32_t longest = 0;
    uint32_t longest_aligned = 0;
    uint32_t longest_slack = 0;
    uint32_t classes = 0;
    constexpr bool operator==(const Summary&) const = default;
  };

  // `alignment` is a power of two of at most kMaxAlignment; the end of the last block fits 32 bits.
  explicit FreeExtentTree(uint32_t alignment);

  // Whether every block, or no block, of `extent` is free.
  bool AllFree(FreeExtent extent) const;
  bool NoneFree(FreeExtent extent) const;

  // Adds blocks of which none is free, or takes blocks that all are; false, and no change, when that is not so.
  [[nodiscard]] bool Add(FreeExtent extent);
  [[nodiscard]] bool Remove(FreeExtent extent);

  // The rest of the free extent that covers `offset`, from `offset` on.
  std::optional<FreeExtent> From(uint32_t offset) const;

  // An extent with `count` aligned blocks: of the class of `count` if the bounded search finds one. Failing that,
  // and unless `tight`, one of the next higher class that occurs.
  std::optional<FreeExtent> FindAligned(uint32_t count, bool tight) const;

  // An extent from which `count` blocks can be taken without breaking an aligned window; small extents first.
  std::optional<FreeExtent> FindSlack(uint32_t count) const;

  // An extent of at least `count` blocks, of a low class where there is a choice.
  std::optional<FreeExtent> FindPlain(uint32_t count) const;

  // The first block from which an aligned run can begin, and the aligned run of `extent` (maybe empty).
  uint32_t AlignUp(uint32_t offset) const { return (offset + alignment_ - 1) & ~(alignment_ - 1); }
  FreeExtent AlignedPart(FreeExtent extent) const;

  const Summary& summary() const { return At(root_).subtree; }
  uint64_t size() const { return size_; }
  uint64_t memory() const;

  // Whether order, heap, merging and every summary are as they must be; visits all nodes, for tests.
  bool IsConsistent() const;

  // The class bit of extents of just `count` aligned blocks; 0 when no window lies in them.
  static uint32_t AlignedClassBit(uint32_t count, uint32_t alignment);

 private:
  using Index = uint32_t;  // in the pool; node 0 is the empty subtree, with a summary of zeros

  struct alignas(32) Node {
    FreeExtent extent;
    Index left;
    Index right;
    Summary subtree;
  };
  static_assert(sizeof(Node) == 32, "the promise is at most 40 bytes a free extent");

  // Nodes live in chunks, so that growing the pool never copies nor leaves half of it unused.
  static constexpr uint32_t kChunkBits = 8;
  static constexpr uint32_t kChunkNodes = 1u << kChunkBits;
  // Nodes that a search within the class of a request may visit before it goes on with a higher class.
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

  // The depth + 1 in path_ of the last node that starts at or before an offset, and of the first one behind it;
  // 0 when there is none.
  struct Neighbours {
    size_t before;
    size_t after;
  };
  // Walks all the way down to where a node that starts at `offset` is, or would be; path_ keeps the nodes passed.
  Neighbours Descend(uint32_t offset);
  // Makes good the summaries of the first `depth` nodes of path_, when only the last of them or what is below it
  // has changed.
  void RefreshPath(size_t depth);
  Index& LinkAt(size_t depth, uint32_t offset);
  // Both want path_ as Descend leaves it, at the place of the extent or down to the node.
  void InsertAtPath(FreeExtent extent);
  void EraseAtPath(size_t depth);
  void Split(Index tree, uint32_t offset, Index& below, Index& above);
  Index Merge(Index below, Index above);

  Index Floor(uint32_t offset) const;
  Index SearchClass(Index index, unsigned extent_class, uint32_t count, int& nodes_left) const;
  Index FirstOfClass(unsigned extent_class) const;
  template <uint32_t Summary::*kMeasure>
  Index FirstWith(uint32_t count) const;
  std::optional<FreeExtent> ExtentOf(Index index) const;

  const uint32_t alignment_;
  const unsigned small_classes_;  // classes below this number are small
  Index root_ = 0;
  Index unused_ = 0;  // list of nodes to use again, linked by `left`
  uint32_t nodes_made_ = 1;
  uint64_t size_ = 0;
  std::vector<std::unique_ptr<Node[]>> chunks_;
  std::vector<Index> path_;  // of the change under way, from the root on
};

}  // namespace weightfs
