// SPDX-License-Identifier: Apache-2.0
#include "client/gpu/cufile_threads.h"

#include "common/result.h"
#include "common/start_thread.h"

namespace weightfs::client {

Result<std::unique_ptr<CufileThreads>> CufileThreads::Create(size_t count) {
  std::unique_ptr<CufileThreads> threads(new CufileThreads);
  for (size_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(auto thread, StartThread("weightfs-io", [self = threads.get()] { self->Run(); }));
    threads->threads_.push_back(std::move(thread));
  }
  return threads;
}

CufileThreads::~CufileThreads() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  started_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void CufileThreads::Start(Transfer transfer) {
  {
    const MutexLock lock(mutex_);
    waiting_.push_back(std::move(transfer));
    ++under_way_;
  }
  started_.notify_one();
}

void CufileThreads::Collect(std::vector<Ended>* ended, std::chrono::microseconds wait) {
  MutexLock lock(mutex_);
  if (ended_.empty() && under_way_ > 0 && wait.count() > 0) done_.wait_for(lock.native(), wait);
  under_way_ -= ended_.size();
  for (Ended& one : ended_) ended->push_back(std::move(one));
  ended_.clear();
}

size_t CufileThreads::under_way() const {
  const MutexLock lock(mutex_);
  return under_way_;
}

void CufileThreads::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    while (waiting_.empty() && !stopping_) started_.wait(lock.native());
    if (waiting_.empty()) return;
    Transfer transfer = std::move(waiting_.front());
    waiting_.pop_front();
    lock.Unlock();
    auto outcome = CarryOut(transfer);
    Piece* piece = transfer.piece;
    transfer = {};
    lock.Lock();
    ended_.push_back({piece, std::move(outcome)});
    done_.notify_one();
  }
}

Result<uint64_t> CufileThreads::CarryOut(const Transfer& transfer) {
  const GpuMemory& memory = *transfer.memory;
  const CudaDevice::Current current(*memory.device());
  RETURN_IF_ERROR(current.result());
  const uint64_t at = memory.lead() + transfer.at;
  return transfer.write ? transfer.file->Write(memory.base(), at, transfer.size, transfer.offset)
                        : transfer.file->Read(memory.base(), at, transfer.size, transfer.offset);
}

}  // namespace weightfs::client
