// SPDX-License-Identifier: Apache-2.0
// A disk that lies or fails below a daemon, which loads this library by LD_PRELOAD. The file that LYING_DISK names has
// a Control; the test changes it meanwhile. Transfers of libaio lie, which are those of data, and writes of pwrite(2)
// that have the marker: single small ones.
#include <fcntl.h>
#include <libaio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

enum Lie : uint64_t {
  kNone,
  kLostWrite,
  kMisdirectedWrite,
  kTornWrite,
  kFlippedWrite,
  kFailedWrite,
  kMisdirectedRead,
  kFlippedRead,
  kShortRead,
  kFailedRead,
  kStaleRead,
  kSlow,
  kHang,
};

// As tests/mount/test_lying_disk.py has it.
struct Control {
  std::atomic<uint64_t> lie;
  std::atomic<uint64_t> left;    // so many transfers lie
  std::atomic<uint64_t> told;    // lies
  std::atomic<uint64_t> marker;  // not 0: only writes that begin with it
  std::atomic<uint64_t> device;  // not 0: only transfers of the file with this inode number
};

constexpr uint64_t kElsewhere = 64 * 1024;
constexpr uint64_t kSector = 512;
constexpr auto kPoll = std::chrono::milliseconds(5);  // of a hang that may be over

Control* control = nullptr;
int nowhere = -1;  // a file for what is not written

__attribute__((constructor)) void Map() {
  const char* path = std::getenv("LYING_DISK");
  const int file = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  void* mapped = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return;
  control = static_cast<Control*>(mapped);
  nowhere = memfd_create("nowhere", MFD_CLOEXEC);
}

bool IsOfDevice(const iocb& transfer) {
  const uint64_t device = control->device.load();
  struct stat status = {};
  return device == 0 || (fstat(transfer.aio_fildes, &status) == 0 && status.st_ino == device);
}

// True if this transfer is to lie.
bool Take(const iocb& transfer) {
  if (transfer.aio_lio_opcode == IO_CMD_POLL || !IsOfDevice(transfer)) return false;
  uint64_t left = control->left.load();
  while (left > 0) {
    if (control->left.compare_exchange_weak(left, left - 1)) {
      ++control->told;
      return true;
    }
  }
  return false;
}

bool IsMarked(const iocb& transfer) {
  const uint64_t marker = control->marker.load();
  return marker == 0 || (transfer.u.c.nbytes >= sizeof(marker) &&
                         std::memcmp(transfer.u.c.buf, &marker, sizeof(marker)) == 0);
}

void* CopyOf(const iocb& transfer) {
  void* copy = std::aligned_alloc(4096, (transfer.u.c.nbytes + 4095) / 4096 * 4096);  // kept: the write is asynchronous
  return std::memcpy(copy, transfer.u.c.buf, transfer.u.c.nbytes);
}

void Write(iocb& transfer, uint64_t lie) {
  if (!IsMarked(transfer) || !Take(transfer)) return;
  auto& bytes = transfer.u.c;
  if (lie == kMisdirectedWrite) {
    bytes.offset += static_cast<long long>(kElsewhere);
  } else if (lie == kFlippedWrite) {
    bytes.buf = CopyOf(transfer);
    static_cast<unsigned char*>(bytes.buf)[bytes.nbytes / 2] ^= 1;
  } else {
    if (lie == kTornWrite && syscall(SYS_pwrite64, transfer.aio_fildes, bytes.buf, bytes.nbytes / 2 / kSector * kSector,
                                     bytes.offset) < 0) {
      std::abort();
    }
    transfer.aio_fildes = nowhere;
    bytes.offset = 0;
  }
}

void Read(iocb& transfer, uint64_t lie) {
  if (lie == kMisdirectedRead && Take(transfer)) {
    transfer.u.c.offset = std::abs(transfer.u.c.offset - static_cast<long long>(kElsewhere));
  }
}

// The test has copied the file of the device to this path.
void ReadStale(const iocb& transfer, size_t size) {
  std::string path(4096, '\0');
  const std::string self = "/proc/self/fd/" + std::to_string(transfer.aio_fildes);
  path.resize(static_cast<size_t>(std::max<ssize_t>(readlink(self.c_str(), path.data(), path.size()), 0)));
  const int copy = open((path + ".stale").c_str(), O_RDONLY | O_CLOEXEC);
  if (copy < 0 || pread(copy, transfer.u.c.buf, size, transfer.u.c.offset) != static_cast<ssize_t>(size)) std::abort();
  close(copy);
}

void Finish(io_event& event, uint64_t lie) {
  const iocb& transfer = *event.obj;
  if (transfer.aio_lio_opcode != (lie == kFailedWrite ? IO_CMD_PWRITE : IO_CMD_PREAD)) return;
  if (lie == kFailedWrite && !IsMarked(transfer)) return;
  const auto moved = static_cast<int64_t>(event.res);
  if (moved <= 0 || (lie == kShortRead && moved <= 4096) || !Take(transfer)) return;
  if (lie == kFlippedRead) {
    static_cast<unsigned char*>(transfer.u.c.buf)[moved / 2] ^= 1;
  } else if (lie == kStaleRead) {
    ReadStale(transfer, static_cast<size_t>(moved));
  } else {
    event.res = static_cast<unsigned long>(lie == kShortRead ? 4096 : -EIO);
  }
}

// Transfers that the kernel has completed and the disk has not.
class Hanging {
 public:
  // Removes those that hang from events of the context, and returns the number of the others. `lies`: more may hang.
  int Hold(io_context_t context, io_event* events, int count, bool lies) {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(std::remove_if(events, events + count, [&](const io_event& event) {
      const bool hangs = lies && Take(*event.obj);
      if (hangs) held_.emplace_back(context, event);
      return hangs;
    }) - events);
  }

  // Moves at most `room` events of the context there, and returns their number.
  int Release(io_context_t context, io_event* events, long room) {
    const std::lock_guard lock(mutex_);
    int count = 0;
    std::erase_if(held_, [&](const std::pair<io_context_t, io_event>& held) {
      if (held.first != context || count == room) return false;
      events[count++] = held.second;
      return true;
    });
    return count;
  }

  bool HasAny(io_context_t context) {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(held_, [&](const auto& held) { return held.first == context; });
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<io_context_t, io_event>> held_;
};

Hanging& hanging = *new Hanging;  // used until the last thread ends

// As libaio does, which may be loaded where dlsym(RTLD_NEXT) does not see it.
int Answer(long result) { return result < 0 ? -errno : static_cast<int>(result); }

int WaitInKernel(io_context_t context, long minimum, long count, io_event* events, timespec* limit) {
  return Answer(syscall(SYS_io_getevents, context, minimum, count, events, limit));
}

// Waits in steps while something hangs, because the kernel does not know when that is over.
int Wait(io_context_t context, long minimum, long count, io_event* events, const timespec* limit) {
  const auto start = Clock::now();
  const auto most = limit == nullptr ? Clock::duration::max()
                                     : std::chrono::seconds(limit->tv_sec) + std::chrono::nanoseconds(limit->tv_nsec);
  for (;;) {
    const int released = control->lie.load() == kHang ? 0 : hanging.Release(context, events, count);
    if (released > 0) return released;
    const auto left = most - std::min(most, Clock::now() - start);
    const bool steps = hanging.HasAny(context);
    const auto step = std::chrono::nanoseconds(steps ? std::min<Clock::duration>(left, kPoll) : left);
    timespec pause = {step.count() / 1'000'000'000, step.count() % 1'000'000'000};
    const int got = WaitInKernel(context, minimum, count, events, limit == nullptr && !steps ? nullptr : &pause);
    if (got < 0) return got;
    const int done = hanging.Hold(context, events, got, control->lie.load() == kHang);
    if (done > 0 || minimum == 0 || (got == 0 && left <= Clock::duration::zero())) return done;
  }
}

}  // namespace

extern "C" int io_submit(io_context_t context, long count, iocb* transfers[]) {
  const uint64_t lie = control == nullptr ? kNone : control->lie.load();
  for (long i = 0; i < count && lie != kNone; ++i) {
    iocb& transfer = *transfers[i];
    const bool write = transfer.aio_lio_opcode == IO_CMD_PWRITE;
    if (lie == kSlow && Take(transfer)) usleep(200'000);
    if (write && lie >= kLostWrite && lie <= kFlippedWrite) Write(transfer, lie);
    if (transfer.aio_lio_opcode == IO_CMD_PREAD) Read(transfer, lie);
  }
  return Answer(syscall(SYS_io_submit, context, count, transfers));
}

extern "C" ssize_t pwrite64(int file, const void* buffer, size_t size, off64_t offset) {
  iocb transfer = {};
  io_prep_pwrite(&transfer, file, const_cast<void*>(buffer), size, offset);
  const uint64_t lie = control == nullptr || control->marker.load() == 0 ? kNone : control->lie.load();
  if (lie >= kLostWrite && lie <= kFlippedWrite) Write(transfer, lie);
  if (lie == kFailedWrite && IsMarked(transfer) && Take(transfer)) {
    errno = EIO;
    return -1;
  }
  const auto& bytes = transfer.u.c;
  return syscall(SYS_pwrite64, transfer.aio_fildes, bytes.buf, bytes.nbytes, bytes.offset);
}

extern "C" int io_getevents(io_context_t context, long minimum, long count, io_event* events, timespec* limit) {
  if (control == nullptr) return WaitInKernel(context, minimum, count, events, limit);
  const int got = Wait(context, minimum, count, events, limit);
  const uint64_t lie = control->lie.load();
  const bool later = lie == kFailedWrite || lie == kFlippedRead || lie == kShortRead || lie == kFailedRead ||
                     lie == kStaleRead;
  for (int i = 0; i < got && later; ++i) Finish(events[i], lie);
  return got;
}
