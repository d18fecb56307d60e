// SPDX-License-Identifier: Apache-2.0
#include "tests/support/block_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>

namespace weightfs {

void BlockImage::CheckRange(ByteOffset offset, size_t size) const {
  if (offset.value <= size_.value && size <= size_.value - offset.value) return;
  fmt::print(stderr, "BlockImage: {} bytes at {} lie outside the device of {} bytes\n", size, offset.value,
             size_.value);
  std::abort();
}

void BlockImage::Read(ByteOffset offset, std::span<std::byte> out) const {
  CheckRange(offset, out.size());
  for (size_t done = 0; done < out.size();) {
    const uint64_t at = offset.value + done;
    const uint64_t inside = at % kBlockSize;
    const size_t step = std::min<size_t>(kBlockSize - inside, out.size() - done);
    const auto found = blocks_.find(at / kBlockSize);
    if (found == blocks_.end()) {
      std::memset(out.data() + done, 0, step);
    } else {
      std::memcpy(out.data() + done, found->second.get() + inside, step);
    }
    done += step;
  }
}

void BlockImage::Write(ByteOffset offset, std::span<const std::byte> in) {
  CheckRange(offset, in.size());
  for (size_t done = 0; done < in.size();) {
    const uint64_t at = offset.value + done;
    const uint64_t inside = at % kBlockSize;
    const size_t step = std::min<size_t>(kBlockSize - inside, in.size() - done);
    // Other images may share the old block, so a change always allocates a new block.
    auto block = std::make_shared<std::vector<std::byte>>(kBlockSize);
    auto& slot = blocks_[at / kBlockSize];
    if (slot && step < kBlockSize) std::memcpy(block->data(), slot.get(), kBlockSize);
    std::memcpy(block->data() + inside, in.data() + done, step);
    slot = std::shared_ptr<const std::byte>(block, block->data());
    done += step;
  }
}

std::vector<uint64_t> BlockImage::blocks() const {
  std::vector<uint64_t> indexes;
  for (const auto& block : blocks_) indexes.push_back(block.first);
  std::sort(indexes.begin(), indexes.end());
  return indexes;
}

uint64_t BlockImage::Fingerprint() const {
  uint64_t sum = 0;
  for (const auto& [index, bytes] : blocks_) {
    const std::string_view block(reinterpret_cast<const char*>(bytes.get()), kBlockSize);
    const uint64_t hash = std::hash<std::string_view>()(block) + index * 0x9E37'79B9'7F4A'7C15ULL;
    sum += (hash ^ (hash >> 29)) * 0xBF58'476D'1CE4'E5B9ULL;
  }
  return sum;
}

void BlockImage::WriteShared(ByteOffset offset, const SharedBytes& in) {
  CheckRange(offset, in->size());
  for (size_t done = 0; done < in->size(); done += kBlockSize) {
    blocks_[(offset.value + done) / kBlockSize] = std::shared_ptr<const std::byte>(in, in->data() + done);
  }
}

}  // namespace weightfs
