// SPDX-License-Identifier: Apache-2.0
#include "client/handle.h"

#include <cerrno>
#include <string>
#include <utility>

#include "client/gathered_target.h"
#include "client/handle_impl.h"
#include "common/result.h"

namespace weightfs::client {
namespace {

constexpr unsigned kMaxDepth = 65'536;
constexpr unsigned kMaxParallelism = 1'024;

Result<void> Check(const HandleOptions& options) {
  const auto wrong = [](const char* what) { return Error{ErrorCode::kInvalid, std::string("a handle needs ") + what}; };
  if (options.block_size == 0) return wrong("a block_size of at least 1 byte");
  if (options.queue_depth == 0 || options.queue_depth > kMaxDepth) return wrong("a queue_depth from 1 to 65536");
  if (options.intra_op_parallelism == 0 || options.intra_op_parallelism > kMaxParallelism) {
    return wrong("an intra_op_parallelism from 1 to 1024");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Handle>> Handle::Create(const HandleOptions& options) {
  RETURN_IF_ERROR(Check(options));
  auto impl = std::make_unique<Impl>();
  RETURN_IF_ERROR(impl->Start(options));
  return std::unique_ptr<Handle>(new Handle(options, std::move(impl)));
}

Handle::Handle(const HandleOptions& options, std::unique_ptr<Impl> impl) : options_(options), impl_(std::move(impl)) {}

Handle::~Handle() {
  // A forked child has neither the threads nor the aio contexts, so there is nothing to stop.
  if (impl_->forked()) [[maybe_unused]]
    auto* left = impl_.release();
}

Result<std::shared_ptr<Operation>> Handle::StartRead(const FileName& file, const MemoryView& memory,
                                                     const ReadOptions& options) {
  ASSIGN_OR_RETURN(auto request, Impl::MakeReadRequest(file, memory, options));
  request.counted = true;
  return impl_->Begin(std::move(request), nullptr);
}

Result<std::shared_ptr<Operation>> Handle::StartWrite(const FileName& file, const MemoryView& memory,
                                                      const WriteOptions& options) {
  auto request = Impl::MakeWriteRequest(file, memory, options);
  request.counted = true;
  return impl_->Begin(std::move(request), nullptr);
}

Result<void> Handle::Read(const FileName& file, const MemoryView& memory, const ReadOptions& options) {
  ASSIGN_OR_RETURN(auto request, Impl::MakeReadRequest(file, memory, options));
  return impl_->BeginAndHelp(std::move(request));
}

Result<void> Handle::ReadRanges(const FileName& file, std::span<const ByteRange> ranges, const MemoryView& memory,
                                const Interrupted& interrupted) {
  if (const char* why = memory.WhyNotReadable(); why != nullptr) return Error{ErrorCode::kInvalid, why, file.path};
  auto gathered = GatheredBlocks::Create(ranges, memory);
  if (!gathered.has_value()) {
    Error error = std::move(gathered).error();
    error.path = file.path;
    return error;
  }
  const auto blocks = std::make_shared<const GatheredBlocks>(std::move(*gathered));
  ASSIGN_OR_RETURN(auto request, Impl::MakeReadRequest(file, blocks->memory(),
                                                       {.offset = blocks->begin(), .interrupted = interrupted}));
  request.file.gathered = blocks;
  return impl_->BeginAndHelp(std::move(request));
}

Result<void> Handle::Write(const FileName& file, const MemoryView& memory, const WriteOptions& options) {
  return impl_->BeginAndHelp(Impl::MakeWriteRequest(file, memory, options));
}

Handle::Completed Handle::Wait(const Interrupted& interrupted) { return impl_->Wait(interrupted); }

size_t Handle::pending() const { return impl_->pending(); }

std::optional<GpuFacts> Handle::gpu() const {
  const auto gpu = impl_->known_gpu();
  if (gpu == nullptr) return std::nullopt;
  return gpu->facts();
}

Result<void> Handle::PinDevice(const MemoryView& memory) {
  ASSIGN_OR_RETURN(const auto gpu, impl_->TheGpu());
  return gpu->Pin(memory);
}

bool Handle::UnpinDevice(uint64_t address) {
  const auto gpu = impl_->known_gpu();
  return gpu != nullptr && gpu->Unpin(address);
}

bool Handle::IsDevicePinned(const MemoryView& memory) const {
  const auto gpu = impl_->known_gpu();
  return gpu != nullptr && gpu->IsPinned(memory.device_address(), memory.size());
}

Result<void> Handle::CopyOut(const MemoryView& memory, std::span<std::byte> host) {
  ASSIGN_OR_RETURN(const auto gpu, impl_->TheGpu());
  return gpu->CopyOut(memory, host);
}

uint64_t Handle::direct_operations() const { return impl_->direct_operations(); }

}  // namespace weightfs::client
