// SPDX-License-Identifier: Apache-2.0
// A disk that lies or fails below a daemon, which loads this library by LD_PRELOAD. The file that LYING_DISK names has
// a Control; the test changes it meanwhile. Only transfers of libaio lie, which are those of data and of the log.
#include <fcntl.h>
#include <libaio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

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
  kSlow,
};

// As tests/mount/test_lying_disk.py has it.
struct Control {
  std::atomic<uint64_t> lie;
  std::atomic<uint64_t> left;    // so many transfers lie
  std::atomic<uint64_t> told;    // lies
  std::atomic<uint64_t> marker;  // not 0: only writes that begin with it
};

constexpr uint64_t kElsewhere = 64 * 1024;
constexpr uint64_t kSector = 512;

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

// True if this transfer is to lie.
bool Take() {
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
  if (!IsMarked(transfer) || !Take()) return;
  auto& bytes = transfer.u.c;
  if (lie == kMisdirectedWrite) {
    bytes.offset += static_cast<long long>(kElsewhere);
  } else if (lie == kFlippedWrite) {
    bytes.buf = CopyOf(transfer);
    static_cast<unsigned char*>(bytes.buf)[bytes.nbytes / 2] ^= 1;
  } else {
    if (lie == kTornWrite && pwrite(transfer.aio_fildes, bytes.buf, bytes.nbytes / 2 / kSector * kSector,
                                    bytes.offset) < 0) {
      std::abort();
    }
    transfer.aio_fildes = nowhere;
    bytes.offset = 0;
  }
}

void Read(iocb& transfer, uint64_t lie) {
  if (lie == kMisdirectedRead && Take()) {
    transfer.u.c.offset = std::abs(transfer.u.c.offset - static_cast<long long>(kElsewhere));
  }
}

void Finish(io_event& event, uint64_t lie) {
  const iocb& transfer = *event.obj;
  if (transfer.aio_lio_opcode != (lie == kFailedWrite ? IO_CMD_PWRITE : IO_CMD_PREAD)) return;
  if (lie == kFailedWrite && !IsMarked(transfer)) return;
  const auto moved = static_cast<int64_t>(event.res);
  if (moved <= 0 || (lie == kShortRead && moved <= 4096) || !Take()) return;
  if (lie == kFlippedRead) {
    static_cast<unsigned char*>(transfer.u.c.buf)[moved / 2] ^= 1;
  } else {
    event.res = static_cast<unsigned long>(lie == kShortRead ? 4096 : -EIO);
  }
}

// As libaio does, which may be loaded where dlsym(RTLD_NEXT) does not see it.
int Answer(long result) { return result < 0 ? -errno : static_cast<int>(result); }

}  // namespace

extern "C" int io_submit(io_context_t context, long count, iocb* transfers[]) {
  const uint64_t lie = control == nullptr ? kNone : control->lie.load();
  for (long i = 0; i < count && lie != kNone; ++i) {
    iocb& transfer = *transfers[i];
    const bool write = transfer.aio_lio_opcode == IO_CMD_PWRITE;
    if (lie == kSlow && transfer.aio_lio_opcode != IO_CMD_POLL && Take()) usleep(200'000);
    if (write && lie >= kLostWrite && lie <= kFlippedWrite) Write(transfer, lie);
    if (transfer.aio_lio_opcode == IO_CMD_PREAD) Read(transfer, lie);
  }
  return Answer(syscall(SYS_io_submit, context, count, transfers));
}

extern "C" int io_getevents(io_context_t context, long minimum, long count, io_event* events, timespec* limit) {
  const int got = Answer(syscall(SYS_io_getevents, context, minimum, count, events, limit));
  const uint64_t lie = control == nullptr ? kNone : control->lie.load();
  const bool later = lie == kFailedWrite || lie == kFlippedRead || lie == kShortRead || lie == kFailedRead;
  for (int i = 0; i < got && later; ++i) Finish(events[i], lie);
  return got;
}
