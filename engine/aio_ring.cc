// SPDX-License-Identifier: Apache-2.0
#include "engine/aio_ring.h"

#include <fmt/format.h>
#include <libaio.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "common/log.h"
#include "common/mutex.h"

namespace weightfs {
namespace {

constexpr size_t kBatch = 64;  // iocbs in one io_submit, events in one io_getevents

// One request in the kernel or on its way there.
struct Slot {
  iocb control{};
  IoRequest* request = nullptr;
  uint64_t done = 0;  // bytes transferred by earlier rounds
};

const char* NameOf(const IoRequest& request) {
  return request.operation == IoRequest::Operation::kRead ? "read" : "write";
}

std::string ReadSysctl(const char* path) {
  std::ifstream file(path);
  std::string value;
  return std::getline(file, value) ? value : "unknown";
}

Error SetupError(const AioRing::Options& options, int error_number) {
  if (error_number != EAGAIN) {
    return {ErrorCode::kIo, fmt::format("{}: io_setup for {} requests failed: {}; check that the kernel has libaio",
                                        options.path, options.queue_depth, std::strerror(error_number))};
  }
  return {ErrorCode::kAgain,
          fmt::format("{}: no room for {} asynchronous requests: fs.aio-max-nr is {} and {} are taken; raise it with "
                      "'sysctl -w fs.aio-max-nr=1048576' or lower the queue depth",
                      options.path, options.queue_depth, ReadSysctl("/proc/sys/fs/aio-max-nr"),
                      ReadSysctl("/proc/sys/fs/aio-nr"))};
}

}  // namespace

ErrorCode ReportIoError(const char* operation, ByteOffset offset, ByteCount size, const std::string& path,
                        int error_number) {
  spdlog::error("{} of {} bytes at offset {} of {} failed: {}", operation, size.value, offset.value, path,
                std::strerror(error_number));
  return error_number == ENOSPC || error_number == EDQUOT ? ErrorCode::kNoSpace : ErrorCode::kIo;
}

// A request moves through waiting_ (no slot yet), ready_ (has a slot, not in the kernel), the kernel (counted
// by in_kernel_) and a local list of the thread that completes it; outstanding_ counts it on the whole way.
//
// Somebody always sends what is ready: the submitter, or the thread after each reaping. When io_submit
// refuses (EAGAIN) the next completion tries again; when nothing is in the kernel none would come, so the
// thread is woken and tries again with a pause of kRetryPause until the kernel takes something.
class AioRing::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)) {}
  ~Impl();

  Result<void> Start();
  void Submit(std::span<IoRequest* const> requests) EXCLUDES(mutex_);
  void Reject(IoRequest* request, ErrorCode code) EXCLUDES(mutex_);
  void Drain() EXCLUDES(mutex_);
  uint64_t submitted() const EXCLUDES(mutex_);

 private:
  struct Completion {
    IoRequest* request;
    Result<void> result;
  };
  static constexpr timespec kRetryPause{0, 1'000'000};

  void Send() EXCLUDES(mutex_);
  size_t TakeBatchLocked(std::array<iocb*, kBatch>& batch) REQUIRES(mutex_);
  // What io_submit left of a batch. False when the kernel takes nothing for now.
  bool TakeBackLocked(std::span<iocb* const> left, int error_number) REQUIRES(mutex_);
  void PrepareLocked(Slot& slot) REQUIRES(mutex_);
  void ReapLocked(Slot& slot, int64_t transferred) REQUIRES(mutex_);
  void FinishLocked(Slot& slot, Result<void> result) REQUIRES(mutex_);

  void Run() EXCLUDES(mutex_);
  size_t WaitForEvents(std::span<io_event> events) EXCLUDES(mutex_);
  // Makes the completion thread return from io_getevents.
  void Wake();
  bool ArmWake();

  const Options options_;
  io_context_t context_ = nullptr;
  int wake_descriptor_ = -1;  // an eventfd that a poll iocb of the ring watches
  iocb wake_control_{};
  bool wake_armed_ = false;  // of the thread, and of Start before it

  mutable Mutex mutex_;
  std::vector<Slot> slots_;  // never resized after Start: the kernel's events point into it
  std::vector<Slot*> free_ GUARDED_BY(mutex_);
  std::deque<IoRequest*> waiting_ GUARDED_BY(mutex_);
  std::deque<Slot*> ready_ GUARDED_BY(mutex_);
  std::vector<Completion> finished_ GUARDED_BY(mutex_);  // for the thread to report
  size_t in_kernel_ GUARDED_BY(mutex_) = 0;
  size_t outstanding_ GUARDED_BY(mutex_) = 0;
  uint64_t submitted_ GUARDED_BY(mutex_) = 0;
  std::condition_variable drained_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

AioRing::Impl::~Impl() {
  if (thread_.joinable()) {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    Wake();
    thread_.join();
  }
  // Cancels the poll of the eventfd, which is all that can be left.
  if (context_ != nullptr) io_destroy(context_);
  if (wake_descriptor_ >= 0) close(wake_descriptor_);
}

Result<void> AioRing::Impl::Start() {
  // One more for the poll.
  if (const int rc = io_setup(static_cast<int>(options_.queue_depth + 1), &context_); rc < 0) {
    return SetupError(options_, -rc);
  }
  wake_descriptor_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_descriptor_ < 0 || !ArmWake()) {
    return Error{ErrorCode::kIo, fmt::format("{}: cannot watch an eventfd: {}; Linux 4.18 or newer is needed",
                                             options_.path, std::strerror(errno))};
  }
  slots_ = std::vector<Slot>(options_.queue_depth);
  {
    MutexLock lock(mutex_);
    for (Slot& slot : slots_) free_.push_back(&slot);
  }
  // Signals are for the threads of the program.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "weightfs-aio");
  return {};
}

void AioRing::Impl::Submit(std::span<IoRequest* const> requests) {
  {
    MutexLock lock(mutex_);
    waiting_.insert(waiting_.end(), requests.begin(), requests.end());
    outstanding_ += requests.size();
    submitted_ += requests.size();
  }
  Send();
}

void AioRing::Impl::Reject(IoRequest* request, ErrorCode code) {
  {
    MutexLock lock(mutex_);
    finished_.push_back({request, code});
    ++outstanding_;
    ++submitted_;
  }
  Wake();
}

void AioRing::Impl::Drain() {
  MutexLock lock(mutex_);
  while (outstanding_ > 0) drained_.wait(lock.native());
}

uint64_t AioRing::Impl::submitted() const {
  MutexLock lock(mutex_);
  return submitted_;
}

void AioRing::Impl::Send() {
  std::array<iocb*, kBatch> batch;
  for (;;) {
    size_t count = 0;
    {
      MutexLock lock(mutex_);
      count = TakeBatchLocked(batch);
    }
    if (count == 0) return;
    // Without the lock: it may take a while, and completions go on meanwhile.
    const int rc = io_submit(context_, static_cast<long>(count), batch.data());
    const size_t accepted = rc > 0 ? static_cast<size_t>(rc) : 0;
    if (accepted == count) continue;
    MutexLock lock(mutex_);
    // A prefix was accepted: the next round tells what is wrong with the first of the rest, if anything.
    if (!TakeBackLocked(std::span(batch).subspan(accepted, count - accepted), rc < 0 ? -rc : 0)) return;
  }
}

size_t AioRing::Impl::TakeBatchLocked(std::array<iocb*, kBatch>& batch) {
  while (!waiting_.empty() && !free_.empty()) {
    Slot* slot = free_.back();
    free_.pop_back();
    slot->request = waiting_.front();
    slot->done = 0;
    waiting_.pop_front();
    PrepareLocked(*slot);
    ready_.push_back(slot);
  }
  const size_t count = std::min(ready_.size(), batch.size());
  for (size_t i = 0; i < count; ++i) batch[i] = &ready_[i]->control;
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count));
  in_kernel_ += count;
  return count;
}

bool AioRing::Impl::TakeBackLocked(std::span<iocb* const> left, int error_number) {
  in_kernel_ -= left.size();
  // Any other error is about the first iocb alone; its request fails, from the thread.
  const bool first_failed = error_number != 0 && error_number != EAGAIN && error_number != EINTR;
  for (size_t i = left.size(); i > (first_failed ? 1 : 0); --i) {
    ready_.push_front(static_cast<Slot*>(left[i - 1]->data));
  }
  if (first_failed) {
    Slot& slot = *static_cast<Slot*>(left[0]->data);
    const IoRequest& request = *slot.request;
    FinishLocked(slot, ReportIoError(NameOf(request), request.offset, request.size, options_.path, error_number));
    Wake();
  }
  if (error_number != EAGAIN) return true;
  if (in_kernel_ == 0) Wake();
  return false;
}

void AioRing::Impl::PrepareLocked(Slot& slot) {
  const IoRequest& request = *slot.request;
  std::byte* data = request.data + slot.done;
  const size_t size = request.size.value - slot.done;
  const auto offset = static_cast<long long>(request.offset.value + slot.done);
  if (request.operation == IoRequest::Operation::kRead) {
    io_prep_pread(&slot.control, options_.descriptor, data, size, offset);
  } else {
    io_prep_pwrite(&slot.control, options_.descriptor, data, size, offset);
  }
  slot.control.data = &slot;
}

// One event of the kernel.
void AioRing::Impl::ReapLocked(Slot& slot, int64_t transferred) {
  --in_kernel_;
  const IoRequest& request = *slot.request;
  const ByteOffset at = request.offset + ByteCount{slot.done};
  const ByteCount wanted{request.size.value - slot.done};
  if (transferred < 0) {
    FinishLocked(slot, ReportIoError(NameOf(request), at, wanted, options_.path, static_cast<int>(-transferred)));
    return;
  }
  if (static_cast<uint64_t>(transferred) >= wanted.value) return FinishLocked(slot, {});
  // Short: the rest goes again from the last whole block on.
  const uint64_t progress = RoundDown(static_cast<uint64_t>(transferred), kBlockSize);
  if (progress == 0) {
    spdlog::error("{} of {} bytes at offset {} of {} stopped after {} bytes: is the device truncated?", NameOf(request),
                  wanted.value, at.value, options_.path, transferred);
    FinishLocked(slot, ErrorCode::kIo);
    return;
  }
  slot.done += progress;
  PrepareLocked(slot);
  ready_.push_back(&slot);
}

void AioRing::Impl::FinishLocked(Slot& slot, Result<void> result) {
  finished_.push_back({slot.request, std::move(result)});
  slot.request = nullptr;
  free_.push_back(&slot);
}

void AioRing::Impl::Run() {
  std::array<io_event, kBatch> events;
  std::vector<Completion> completions;
  for (;;) {
    const size_t count = WaitForEvents(events);
    {
      MutexLock lock(mutex_);
      for (size_t i = 0; i < count; ++i) {
        if (events[i].data == nullptr) {
          wake_armed_ = false;
        } else {
          // The kernel's result is a signed number in an unsigned field.
          ReapLocked(*static_cast<Slot*>(events[i].data), static_cast<int64_t>(events[i].res));
        }
      }
      completions.swap(finished_);
    }
    // Rearmed before finished_ and stopping_ are looked at again: a Wake after this look wakes.
    if (!wake_armed_) {
      uint64_t wakes = 0;
      // EAGAIN only says that nobody woke since: nothing to learn from it.
      [[maybe_unused]] const ssize_t drained = read(wake_descriptor_, &wakes, sizeof(wakes));
      ArmWake();
      MutexLock lock(mutex_);
      for (auto& completion : finished_) completions.push_back(std::move(completion));
      finished_.clear();
    }
    // First the device gets its next work, then the callers their results.
    Send();
    for (auto& completion : completions) completion.request->OnComplete(std::move(completion.result));
    MutexLock lock(mutex_);
    outstanding_ -= completions.size();
    completions.clear();
    if (outstanding_ == 0) drained_.notify_all();
    if (stopping_ && outstanding_ == 0) return;
  }
}

// Blocks until there is an event, or for kRetryPause when there is work that no event announces.
size_t AioRing::Impl::WaitForEvents(std::span<io_event> events) {
  bool pause = !wake_armed_;
  {
    MutexLock lock(mutex_);
    if (!finished_.empty()) return 0;
    pause = pause || (in_kernel_ == 0 && !ready_.empty());
  }
  timespec timeout = kRetryPause;
  const int rc = io_getevents(context_, 1, static_cast<long>(events.size()), events.data(), pause ? &timeout : nullptr);
  if (rc >= 0) return static_cast<size_t>(rc);
  if (rc != -EINTR) {
    // Only a context that is not ours fails so; without events no request would ever end.
    spdlog::critical("{}: io_getevents failed: {}", options_.path, std::strerror(-rc));
    std::abort();
  }
  return 0;
}

void AioRing::Impl::Wake() {
  // The counter of an eventfd cannot overflow by ones, so that writing it cannot fail.
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_descriptor_, &one, sizeof(one));
}

bool AioRing::Impl::ArmWake() {
  io_prep_poll(&wake_control_, wake_descriptor_, POLLIN);
  wake_control_.data = nullptr;
  iocb* control = &wake_control_;
  const int rc = io_submit(context_, 1, &control);
  wake_armed_ = rc == 1;
  if (rc < 0) errno = -rc;
  return wake_armed_;
}

Result<std::unique_ptr<AioRing>> AioRing::Create(Options options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<AioRing>(new AioRing(std::move(impl)));
}

AioRing::AioRing(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

AioRing::~AioRing() = default;

void AioRing::Submit(std::span<IoRequest* const> requests) { impl_->Submit(requests); }

void AioRing::Drain() { impl_->Drain(); }

uint64_t AioRing::submitted() const { return impl_->submitted(); }

void AioRing::Reject(IoRequest* request, ErrorCode code) { impl_->Reject(request, code); }

}  // namespace weightfs
