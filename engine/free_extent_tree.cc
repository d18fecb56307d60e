// SPDX-License-Identifier: Apache-2.0
#include "engine/free_extent_tree.h"

#include <algorithm>
#include <bit>

#include "common/assert.h"

namespace weightfs {
namespace {

constexpr unsigned kClasses = 32;

unsigned Log2(uint32_t value) { return static_cast<unsigned>(std::bit_width(value)) - 1; }

// The heap order of the treap needs no memory in the node: a bijective mix of the index is as good as a random number,
// because node indexes are unrelated to offsets once the pool is in use.
uint32_t Priority(uint32_t index) {
  index ^= index >> 16;
  index *= 0x7feb352dU;
  index ^= index >> 15;
  index *= 0x846ca68bU;
  index ^= index >> 16;
  return index;
}

}  // namespace

FreeExtentTree::FreeExtentTree(uint32_t alignment) : alignment_(alignment), small_classes_(Log2(alignment) + 1) {
  WEIGHTFS_ASSERT(std::has_single_bit(alignment) && alignment <= kMaxAlignment);
  chunks_.push_back(std::make_unique<Node[]>(kChunkNodes));
}

uint64_t FreeExtentTree::memory() const {
  return sizeof(*this) + chunks_.size() * kChunkNodes * sizeof(Node) + chunks_.capacity() * sizeof(chunks_[0]) +
         path_.capacity() * sizeof(Index);
}

// --- Nodes and their summaries ---

FreeExtentTree::Index FreeExtentTree::NewNode(FreeExtent extent) {
  Index index = unused_;
  if (index != 0) {
    unused_ = At(index).left;
  } else {
    index = nodes_made_++;
    if ((index >> kChunkBits) == chunks_.size()) chunks_.push_back(std::make_unique<Node[]>(kChunkNodes));
  }
  At(index) = Node{extent, 0, 0, Describe(extent)};
  ++size_;
  return index;
}

void FreeExtentTree::DropNode(Index index) {
  At(index).left = unused_;
  unused_ = index;
  --size_;
}

FreeExtent FreeExtentTree::AlignedPart(FreeExtent extent) const {
  const uint32_t start = AlignUp(extent.start);
  return {start, extent.end() > start ? extent.end() - start : 0};
}

unsigned FreeExtentTree::ClassOf(FreeExtent extent) const {
  const uint32_t windows = AlignedPart(extent).length / alignment_;
  if (windows == 0) return Log2(extent.length);
  return std::min(small_classes_ + Log2(windows), kClasses - 1);
}

uint32_t FreeExtentTree::AlignedClassBit(uint32_t count, uint32_t alignment) {
  const uint32_t windows = count / alignment;
  if (windows == 0) return 0;
  return 1u << std::min(Log2(alignment) + 1 + Log2(windows), kClasses - 1);
}

FreeExtentTree::Summary FreeExtentTree::Describe(FreeExtent extent) const {
  const FreeExtent aligned = AlignedPart(extent);
  uint32_t slack = extent.length;
  if (aligned.length >= alignment_) slack = std::max(aligned.start - extent.start, extent.end() & (alignment_ - 1));
  return {extent.length, aligned.length, slack, 1u << ClassOf(extent)};
}

FreeExtentTree::Summary FreeExtentTree::Combine(const Node& node) const {
  const Summary own = Describe(node.extent);
  const Summary& left = At(node.left).subtree;
  const Summary& right = At(node.right).subtree;
  return {std::max({own.longest, left.longest, right.longest}),
          std::max({own.longest_aligned, left.longest_aligned, right.longest_aligned}),
          std::max({own.longest_slack, left.longest_slack, right.longest_slack}),
          own.classes | left.classes | right.classes};
}

// --- Changes ---

FreeExtentTree::Neighbors FreeExtentTree::Descend(uint32_t offset) {
  path_.clear();
  Neighbors neighbors{0, 0};
  for (Index index = root_; index != 0;) {
    path_.push_back(index);
    const Node& node = At(index);
    // The way back up reads the summaries of both children.
    __builtin_prefetch(&At(node.left));
    __builtin_prefetch(&At(node.right));
    if (node.extent.start <= offset) {
      neighbors.before = path_.size();
      index = node.right;
    } else {
      neighbors.after = path_.size();
      index = node.left;
    }
  }
  return neighbors;
}

// Once the summary of a subtree is unchanged, so are those of all its ancestors.
void FreeExtentTree::RefreshPath(size_t depth) {
  while (depth-- > 0) {
    Node& node = At(path_[depth]);
    const Summary now = Combine(node);
    if (now == node.subtree) return;
    node.subtree = now;
  }
}

// The link below path_[depth - 1], or the root, on the path to `offset`.
FreeExtentTree::Index& FreeExtentTree::LinkAt(size_t depth, uint32_t offset) {
  if (depth == 0) return root_;
  Node& parent = At(path_[depth - 1]);
  return offset < parent.extent.start ? parent.left : parent.right;
}

void FreeExtentTree::Split(Index tree, uint32_t offset, Index& below, Index& above) {
  if (tree == 0) {
    below = above = 0;
    return;
  }
  Node& node = At(tree);
  if (node.extent.start < offset) {
    below = tree;
    Split(node.right, offset, node.right, above);
  } else {
    above = tree;
    Split(node.left, offset, below, node.left);
  }
  Refresh(tree);
}

FreeExtentTree::Index FreeExtentTree::Merge(Index below, Index above) {
  if (below == 0 || above == 0) return below | above;
  if (Priority(below) > Priority(above)) {
    At(below).right = Merge(At(below).right, above);
    Refresh(below);
    return below;
  }
  At(above).left = Merge(below, At(above).left);
  Refresh(above);
  return above;
}

void FreeExtentTree::InsertAtPath(FreeExtent extent) {
  const Index fresh = NewNode(extent);
  const uint32_t priority = Priority(fresh);
  size_t depth = 0;
  while (depth < path_.size() && Priority(path_[depth]) > priority) ++depth;
  Index& link = LinkAt(depth, extent.start);
  const Index displaced = link;
  link = fresh;
  Split(displaced, extent.start, At(fresh).left, At(fresh).right);
  Refresh(fresh);
  RefreshPath(depth);
}

void FreeExtentTree::EraseAtPath(size_t depth) {
  const Index index = path_[depth - 1];
  Index& link = LinkAt(depth - 1, At(index).extent.start);
  link = Merge(At(index).left, At(index).right);
  DropNode(index);
  RefreshPath(depth - 1);
}

bool FreeExtentTree::Add(FreeExtent extent) {
  WEIGHTFS_ASSERT(extent.length > 0);
  const auto [before, after] = Descend(extent.start);
  FreeExtent* previous = before > 0 ? &At(path_[before - 1]).extent : nullptr;
  FreeExtent* next = after > 0 ? &At(path_[after - 1]).extent : nullptr;
  if (previous != nullptr && previous->end() > extent.start) return false;
  if (next != nullptr && next->start < extent.end()) return false;
  if (previous != nullptr && previous->end() != extent.start) previous = nullptr;
  if (next != nullptr && next->start != extent.end()) next = nullptr;
  if (previous != nullptr && next != nullptr) {
    // One of two neighbors is an ancestor of the other. The lower one is erased, and the upper one takes its blocks.
    const FreeExtent merged{previous->start, previous->length + extent.length + next->length};
    EraseAtPath(std::max(before, after));
    At(path_[std::min(before, after) - 1]).extent = merged;
    RefreshPath(std::min(before, after));
  } else if (previous != nullptr) {
    previous->length += extent.length;
    RefreshPath(before);
  } else if (next != nullptr) {
    *next = {extent.start, extent.length + next->length};
    RefreshPath(after);
  } else {
    InsertAtPath(extent);
  }
  return true;
}

bool FreeExtentTree::Remove(FreeExtent extent) {
  WEIGHTFS_ASSERT(extent.length > 0);
  const size_t depth = Descend(extent.start).before;
  if (depth == 0) return false;
  FreeExtent& whole = At(path_[depth - 1]).extent;
  if (whole.end() < extent.end()) return false;
  const FreeExtent before{whole.start, extent.start - whole.start};
  const FreeExtent after{extent.end(), whole.end() - extent.end()};
  if (before.length == 0 && after.length == 0) {
    EraseAtPath(depth);
    return true;
  }
  whole = before.length > 0 ? before : after;
  RefreshPath(depth);
  // No node starts between the two, so the path also leads to the position of the second.
  if (before.length > 0 && after.length > 0) InsertAtPath(after);
  return true;
}

// --- Queries ---

// The last node that starts at or before `offset`.
FreeExtentTree::Index FreeExtentTree::Floor(uint32_t offset) const {
  Index found = 0;
  for (Index index = root_; index != 0;) {
    const Node& node = At(index);
    if (node.extent.start > offset) {
      index = node.left;
      continue;
    }
    found = index;
    if (node.extent.start == offset) break;
    index = node.right;
  }
  return found;
}

std::optional<FreeExtent> FreeExtentTree::From(uint32_t offset) const {
  const Index index = Floor(offset);
  if (index == 0 || At(index).extent.end() <= offset) return std::nullopt;
  return FreeExtent{offset, At(index).extent.end() - offset};
}

bool FreeExtentTree::AllFree(FreeExtent extent) const {
  const auto rest = From(extent.start);
  return rest && rest->length >= extent.length;
}

bool FreeExtentTree::NoneFree(FreeExtent extent) const {
  const Index index = Floor(extent.end() - 1);
  return index == 0 || At(index).extent.end() <= extent.start;
}

// The leftmost node of class `extent_class` in the subtree with `count` usable blocks, within `nodes_left` visits.
FreeExtentTree::Index FreeExtentTree::SearchClass(Index index, unsigned extent_class, uint32_t count,
                                                  int& nodes_left) const {
  const Node& node = At(index);
  const bool small = extent_class < small_classes_;
  const uint32_t best = small ? node.subtree.longest_slack : node.subtree.longest_aligned;
  if ((node.subtree.classes >> extent_class & 1) == 0 || best < count || nodes_left-- <= 0) return 0;
  if (const Index found = SearchClass(node.left, extent_class, count, nodes_left)) return found;
  if (ClassOf(node.extent) == extent_class) {
    const uint32_t usable = small ? node.extent.length : AlignedPart(node.extent).length;
    if (usable >= count) return index;
  }
  return SearchClass(node.right, extent_class, count, nodes_left);
}

// The leftmost node whose summary satisfies the predicate, as that of a subtree does if and only if one of its nodes
// does.
template <typename Has>
std::optional<FreeExtent> FreeExtentTree::First(const Has& has) const {
  if (!has(summary())) return std::nullopt;
  for (Index index = root_;;) {
    const Node& node = At(index);
    if (has(At(node.left).subtree)) {
      index = node.left;
    } else if (has(Describe(node.extent))) {
      return node.extent;
    } else {
      index = node.right;
    }
  }
}

std::optional<FreeExtent> FreeExtentTree::FirstOfLowest(uint32_t classes) const {
  const uint32_t lowest = classes & (0 - classes);
  return First([lowest](const Summary& summary) { return (summary.classes & lowest) != 0; });
}

template <uint32_t FreeExtentTree::Summary::*kMeasure>
std::optional<FreeExtent> FreeExtentTree::FirstWith(uint32_t count) const {
  return First([count](const Summary& summary) { return summary.*kMeasure >= count; });
}

std::optional<FreeExtent> FreeExtentTree::FindAligned(uint32_t count, bool tight) const {
  if (summary().longest_aligned < count) return std::nullopt;
  if (const uint32_t bit = AlignedClassBit(count, alignment_); bit != 0) {
    int nodes_left = kClassSearchNodes;
    if (const Index index = SearchClass(root_, Log2(bit), count, nodes_left)) return At(index).extent;
    // Every member of a higher class contains `count` blocks.
    const uint32_t higher = summary().classes & ~(bit | (bit - 1));
    if (!tight && higher != 0) return FirstOfLowest(higher);
  }
  if (tight) return std::nullopt;
  return FirstWith<&Summary::longest_aligned>(count);
}

std::optional<FreeExtent> FreeExtentTree::FindSlack(uint32_t count) const {
  if (summary().longest_slack < count) return std::nullopt;
  if (const unsigned extent_class = Log2(count); extent_class < small_classes_) {
    int nodes_left = kClassSearchNodes;
    if (const Index index = SearchClass(root_, extent_class, count, nodes_left)) return At(index).extent;
    const uint32_t small = (1u << small_classes_) - 1;
    const uint32_t higher = summary().classes & small & ~((2u << extent_class) - 1);
    if (higher != 0) return FirstOfLowest(higher);
  }
  return FirstWith<&Summary::longest_slack>(count);
}

std::optional<FreeExtent> FreeExtentTree::FindPlain(uint32_t count) const {
  if (const auto slack = FindSlack(count)) return slack;
  // For less than one aligned unit, split the smallest large extent.
  if (const auto aligned = FindAligned(std::max(count, alignment_), false)) return aligned;
  return FirstWith<&Summary::longest>(count);
}

// --- For tests ---

struct FreeExtentTree::ConsistencyCheck {
  const FreeExtentTree& tree;
  uint64_t seen = 0;
  uint64_t end_of_last = 0;
  bool first = true;

  bool Visit(Index index) {
    if (index == 0) return true;
    const Node& node = tree.At(index);
    for (const Index child : {node.left, node.right})
      if (child != 0 && Priority(child) > Priority(index)) return false;
    if (!Visit(node.left)) return false;
    if (node.extent.length == 0 || (!first && node.extent.start <= end_of_last)) return false;
    first = false;
    end_of_last = node.extent.end();
    ++seen;
    return Visit(node.right) && tree.Combine(node) == node.subtree;
  }
};

bool FreeExtentTree::IsConsistent() const {
  ConsistencyCheck check{*this};
  return At(0).subtree == Summary{} && check.Visit(root_) && check.seen == size_;
}

}  // namespace weightfs
