// SPDX-License-Identifier: Apache-2.0
#include "common/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace weightfs {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> two_above(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  std::iota(above.begin(), above.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1), above[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], two_above[j - 2] + 1);
    }
    std::swap(two_above, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string_view NearestName(std::string_view word, std::span<const std::string> known) {
  constexpr size_t kShortest = 3, kShort = 4;
  if (word.size() < kShortest) return {};
  std::string_view best;
  size_t limit = word.size() <= kShort ? 1 : 2;
  for (const std::string& one : known) {
    // The difference of the lengths is a lower bound of the distance, and a word may be long.
    if (word.size() > one.size() + limit) continue;
    // A prefix of a long name is taken for an abbreviation.
    const size_t distance = one.starts_with(word) ? 0 : EditDistance(word, one);
    if (distance > limit || (!best.empty() && distance == limit)) continue;
    best = one;
    limit = distance;
  }
  return best;
}

}  // namespace weightfs
