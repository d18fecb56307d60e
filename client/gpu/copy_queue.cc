// SPDX-License-Identifier: Apache-2.0
#include "client/gpu/copy_queue.h"

#include <utility>

#include "common/result.h"

namespace weightfs::client {

Result<std::unique_ptr<CopyQueue>> CopyQueue::Create(const std::shared_ptr<const CudaDevice>& device) {
  std::vector<Direction> directions;
  for (int i = 0; i < 2; ++i) {
    ASSIGN_OR_RETURN(auto stream, CudaStream::Create(device));
    directions.push_back({std::move(stream)});
  }
  return std::unique_ptr<CopyQueue>(new CopyQueue(device, std::move(directions)));
}

Result<CudaEvent> CopyQueue::Begin(const Copy& copy) {
  // The event must exist first: a copy whose end cannot be detected must not begin.
  if (unused_events_.empty()) {
    ASSIGN_OR_RETURN(auto made, CudaEvent::Create(device_));
    unused_events_.push_back(std::move(made));
  }
  const CudaStream& stream = directions_[copy.to_device ? 1 : 0].stream;
  if (copy.to_device) {
    RETURN_IF_ERROR(stream.CopyToDevice(copy.address, copy.host));
  } else {
    RETURN_IF_ERROR(stream.CopyToHost(copy.host, copy.address));
  }
  RETURN_IF_ERROR(stream.Record(unused_events_.back()));
  CudaEvent end = std::move(unused_events_.back());
  unused_events_.pop_back();
  return end;
}

Result<void> CopyQueue::Start(const Copy& copy) {
  ASSIGN_OR_RETURN(auto end, Begin(copy));
  directions_[copy.to_device ? 1 : 0].copies.push_back({copy.piece, std::move(end)});
  return {};
}

void CopyQueue::Collect(std::vector<Ended>* ended) {
  for (Direction& direction : directions_) {
    for (auto& copies = direction.copies; !copies.empty(); copies.pop_front()) {
      auto reached = copies.front().end.Reached();
      if (reached.has_value() && !*reached) break;
      Result<void> outcome;
      if (!reached.has_value()) outcome = std::move(reached).error();
      ended->push_back({copies.front().piece, std::move(outcome)});
      unused_events_.push_back(std::move(copies.front().end));
    }
  }
}

Result<void> CopyQueue::Run(const Copy& copy) {
  ASSIGN_OR_RETURN(auto end, Begin(copy));
  auto result = end.Wait();
  unused_events_.push_back(std::move(end));
  return result;
}

}  // namespace weightfs::client
