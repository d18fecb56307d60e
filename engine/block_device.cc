// SPDX-License-Identifier: Apache-2.0
#include "engine/block_device.h"

namespace weightfs {
namespace {

Result<void> Transfer(BlockDevice& device, SynchronousRequest request) {
  IoRequest* const requests[] = {&request};
  device.Submit(requests);
  return request.Wait();
}

}  // namespace

void BlockDevice::Perform(IoRequest& request) {
  IoRequest* one = &request;
  Submit({&one, 1});
}

Result<void> BlockDevice::Read(ByteOffset offset, std::span<std::byte> out) {
  return Transfer(*this, {IoRequest::Operation::kRead, offset, out});
}

Result<void> BlockDevice::Write(ByteOffset offset, std::span<const std::byte> in) {
  return Transfer(*this, {IoRequest::Operation::kWrite, offset, in});
}

}  // namespace weightfs
