// SPDX-License-Identifier: Apache-2.0
#include "engine/threaded_ring.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "common/log.h"
#include "common/start_thread.h"

namespace weightfs {
namespace {

constexpr uint64_t kPieceSize = kMiB;
constexpr size_t kQueuedAtOnce = 16;  // transfers

}  // namespace

ErrorCode ReportIoError(const char* operation, ByteOffset offset, ByteCount size, const std::string& path,
                        int error_number) {
  spdlog::error("{} of {} bytes at offset {} of {} failed: {}", operation, size.value, offset.value, path,
                std::strerror(error_number));
  return error_number == ENOSPC || error_number == EDQUOT ? ErrorCode::kNoSpace : ErrorCode::kIo;
}

Result<std::unique_ptr<ThreadedRing>> ThreadedRing::Create(Options options) {
  auto ring = IoRing::Create({.depth = options.queue_depth, .wakeable = true});
  if (!ring.has_value()) {
    return Error{ring.error().code, fmt::format("{}: {}", options.path, ring.error().what)};
  }
  std::unique_ptr<ThreadedRing> made(new ThreadedRing(std::move(options), std::move(*ring)));
  ASSIGN_OR_RETURN(made->thread_, StartThread("weightfs-aio", [raw = made.get()] { raw->Run(); }));
  return made;
}

ThreadedRing::ThreadedRing(Options options, std::unique_ptr<IoRing> ring)
    : options_(std::move(options)), ring_(std::move(ring)) {}

void ThreadedRing::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  ring_->Wake();
  if (thread_.joinable()) thread_.join();
}

void ThreadedRing::Submit(std::span<IoRequest* const> requests) {
  if (requests.empty()) return;
  {
    MutexLock lock(mutex_);
    outstanding_ += requests.size();
  }
  std::array<IoRing::Transfer, kQueuedAtOnce> transfers;
  size_t count = 0;
  for (IoRequest* request : requests) {
    const uint64_t size = request->size.value;
    const size_t pieces = std::max<uint64_t>(RoundUp(size, kPieceSize) / kPieceSize, 1);
    request->pieces_left = pieces;
    request->error.reset();
    for (size_t piece = 0; piece < pieces; ++piece) {
      const uint64_t at = piece * kPieceSize;
      transfers[count++] = {.write = request->operation == IoRequest::Operation::kWrite,
                            .descriptor = options_.descriptor,
                            .data = request->data + at,
                            .size = std::min(size - at, kPieceSize),
                            .offset = request->offset.value + at,
                            .unit = kBlockSize,
                            .owner = request};
      if (count < transfers.size()) continue;
      ring_->Queue(transfers);
      count = 0;
    }
  }
  ring_->Queue(std::span(transfers).first(count));
  ring_->Submit();
}

void ThreadedRing::Reject(IoRequest* request, ErrorCode code) {
  {
    MutexLock lock(mutex_);
    ++outstanding_;
    rejected_.push_back({request, code});
  }
  ring_->Wake();
}

std::optional<ErrorCode> ThreadedRing::ErrorOf(const IoRing::Completion& completion) const {
  const IoRing::Transfer& transfer = completion.transfer;
  if (completion.error_number == 0 && completion.done == transfer.size) return std::nullopt;
  const char* name = transfer.write ? "write" : "read";
  const uint64_t whole = RoundDown(completion.done, kBlockSize);
  const ByteOffset at{transfer.offset + whole};
  const ByteCount left{transfer.size - whole};
  if (completion.error_number != 0) return ReportIoError(name, at, left, options_.path, completion.error_number);
  spdlog::error("{} of {} bytes at offset {} of {} stopped after {} bytes: is the device truncated?", name, left.value,
                at.value, options_.path, completion.done - whole);
  return ErrorCode::kIo;
}

void ThreadedRing::Run() {
  std::array<IoRing::Completion, IoRing::kMaxBatch> completions;
  std::vector<Rejected> rejected;
  for (;;) {
    const size_t count = ring_->Reap(completions, 1);
    // Submit more work to the device before reporting results to callers.
    ring_->Submit();
    size_t completed = 0;
    for (const auto& completion : std::span(completions).first(count)) {
      IoRequest& request = *static_cast<IoRequest*>(completion.transfer.owner);
      const auto error = ErrorOf(completion);
      if (!request.error) request.error = error;
      if (--request.pieces_left > 0) continue;
      ++completed;
      request.OnComplete(request.error ? Result<void>(*request.error) : Result<void>());
    }
    MutexLock lock(mutex_);
    outstanding_ -= completed;
    if (!rejected_.empty()) {
      rejected.swap(rejected_);
      lock.Unlock();
      for (const auto& [request, code] : rejected) request->OnComplete(code);
      lock.Lock();
      outstanding_ -= rejected.size();
      rejected.clear();
    }
    if (stopping_ && outstanding_ == 0) return;
  }
}

}  // namespace weightfs
