// SPDX-License-Identifier: Apache-2.0
// Several requests per call (HDF5's vector I/O). Contiguous requests form one operation, and operations run
// concurrently.

#include "common/result.h"
#include "hdf5/file.h"
#include "hdf5/gpu_memory.h"

namespace weightfs::hdf5 {
namespace {

// Calls visit(run) for each run of contiguous requests.
template <typename Request, typename Visit>
Result<void> ForEachRun(std::vector<Request>& requests, Visit visit) {
  for (size_t begin = 0; begin < requests.size();) {
    size_t end = begin + 1;
    while (end < requests.size() &&
           requests[end - 1].offset + requests[end - 1].memory.size() == requests[end].offset) {
      ++end;
    }
    RETURN_IF_ERROR(visit(std::span<Request>(requests).subspan(begin, end - begin)));
    begin = end;
  }
  return {};
}

// The ends of all requests must be valid offsets.
template <typename Request>
bool MustRunSerially(const std::vector<Request>& requests) {
  for (size_t i = 0; i < requests.size(); ++i) {
    // The result of overlapping requests depends on their order.
    if (i > 0 && requests[i - 1].offset + requests[i - 1].memory.size() > requests[i].offset) return true;
    if (IsGpuMemory(requests[i].memory.data())) return true;
  }
  return false;
}

template <typename Request>
std::vector<Request> SortedWithoutEmpty(std::span<const Request> requests) {
  std::vector<Request> sorted;
  for (const auto& request : requests) {
    if (!request.memory.empty()) sorted.push_back(request);
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return sorted;
}

template <typename Request>
client::MemoryView Join(std::span<const Request> run) {
  if (run.size() == 1) return client::MemoryView(run[0].memory);
  const uint64_t begin = run.front().offset;
  std::vector<client::MemoryView::Part> parts;
  for (const auto& request : run) {
    parts.push_back({.at = request.offset - begin, .view = client::MemoryView(request.memory)});
  }
  return client::MemoryView::Joined(std::move(parts), run.back().offset + run.back().memory.size() - begin);
}

// Waits for all operations, because they access the caller's memory. Returns the first error.
Result<void> WaitForAll(const std::vector<std::shared_ptr<client::Operation>>& operations) {
  std::optional<Error> first;
  for (const auto& operation : operations) {
    operation->Wait();
    auto error = operation->error();
    if (error && !first) first = std::move(error);
  }
  if (first) return *std::move(first);
  return {};
}

}  // namespace

template <typename Request>
Result<void> File::CheckRanges(const char* action, std::span<const Request> requests) const {
  for (const auto& request : requests) RETURN_IF_ERROR(CheckRange(action, request.offset, request.memory.size()));
  return {};
}

Result<void> File::ReadMany(std::span<const ReadRequest> requests) {
  RETURN_IF_ERROR(CheckRanges("read", requests));
  auto sorted = SortedWithoutEmpty(requests);
  if (sorted.size() == 1) return Read(sorted[0].content, sorted[0].offset, sorted[0].memory);
  if (options_.shared_reader || MustRunSerially(sorted)) {
    for (const auto& request : requests) RETURN_IF_ERROR(Read(request.content, request.offset, request.memory));
    return {};
  }
  std::vector<std::shared_ptr<client::Operation>> operations;
  std::vector<ReadRequest> started;
  const auto read = ForEachRun(sorted, [&](std::span<ReadRequest> run) -> Result<void> {
    const uint64_t begin = run.front().offset;
    const uint64_t end = run.back().offset + run.back().memory.size();
    if (end - begin < settings_.direct_size || end > file_size_ || IsInPageCache(begin, end - begin)) {
      for (const auto& request : run) RETURN_IF_ERROR(Read(request.content, request.offset, request.memory));
      return {};
    }
    ASSIGN_OR_RETURN(const auto handle, GetHandle());
    ASSIGN_OR_RETURN(auto operation, handle->StartRead(TransferDescriptor(), Join(std::span<const ReadRequest>(run)),
                                                       {.offset = begin, .own_errors = true}));
    operations.push_back(std::move(operation));
    started.insert(started.end(), run.begin(), run.end());
    return {};
  });
  const auto waited = WaitForAll(operations);
  RETURN_IF_ERROR(WithPath(read));
  RETURN_IF_ERROR(WithPath(waited));
  for (const auto& request : started) writes_.Overlay(request.offset, request.memory);
  return {};
}

Result<void> File::WriteMany(std::span<const WriteRequest> requests) {
  RETURN_IF_ERROR(CheckRanges("write", requests));
  auto sorted = SortedWithoutEmpty(requests);
  if (sorted.size() == 1) return Write(sorted[0].content, sorted[0].offset, sorted[0].memory);
  // With concurrent readers, which a superblock in this call may start, writes must reach the file in the order given.
  const bool in_order = write_through_ || std::any_of(requests.begin(), requests.end(), [](const auto& request) {
                          return StartsSwmr(request.content, request.memory);
                        });
  if (in_order || !options_.write || IsForked() || MustRunSerially(sorted)) {
    for (const auto& request : requests) RETURN_IF_ERROR(Write(request.content, request.offset, request.memory));
    return {};
  }
  std::vector<std::shared_ptr<client::Operation>> operations;
  uint64_t written = 0;
  const auto result = ForEachRun(sorted, [&](std::span<WriteRequest> run) -> Result<void> {
    const uint64_t begin = run.front().offset;
    const uint64_t end = run.back().offset + run.back().memory.size();
    const bool raw = std::all_of(run.begin(), run.end(), [](const auto& one) { return one.content == Content::kRaw; });
    if (end - begin < settings_.direct_size || !raw) {
      for (const auto& request : run) RETURN_IF_ERROR(Write(request.content, request.offset, request.memory));
      return {};
    }
    ASSIGN_OR_RETURN(const auto handle, GetHandle());
    unsynced_ = true;
    RETURN_IF_ERROR(DiscardBuffered(begin, end));
    cache_.Drop(begin, end);
    ASSIGN_OR_RETURN(auto operation, handle->StartWrite(TransferDescriptor(), Join(std::span<const WriteRequest>(run)),
                                                        {.offset = begin, .own_errors = true}));
    operations.push_back(std::move(operation));
    written = std::max(written, end);
    return {};
  });
  auto waited = WaitForAll(operations);
  if (!operations.empty()) waited = NoteWrite(std::move(waited), written);
  RETURN_IF_ERROR(WithPath(result));
  return waited;
}

}  // namespace weightfs::hdf5
