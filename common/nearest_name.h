// SPDX-License-Identifier: Apache-2.0
// The names that a user meant by a misspelled one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace weightfs {

// The smallest number of insertions, deletions, substitutions and swaps of neighbors that turn `a` into `b`, where no
// part is edited twice (the restricted Damerau-Levenshtein distance).
size_t EditDistance(std::string_view a, std::string_view b);

// The element of `known` that `word` probably means: it begins with at least three letters that are `word`, or its
// distance is at most 2, and 1 for a short word. Empty if no element does. A view into `known`, which must outlive it.
std::string_view NearestName(std::string_view word, std::span<const std::string> known);

}  // namespace weightfs
