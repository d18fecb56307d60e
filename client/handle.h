// SPDX-License-Identifier: Apache-2.0
// Reads and writes whole tensors: any size, file offset and memory, a GPU's too, at the speed of the device.
//
// Aligned parts go by libaio and O_DIRECT straight between the device and the caller's memory. Memory that
// O_DIRECT cannot use passes through a few small buffers while other transfers are under way; partial blocks
// at the ends, and files of filesystems without O_DIRECT, go by ordinary reads and writes. On a weightfs mount large
// operations go past it, straight to the devices of the store, and every block read is checked against its checksum
// here. What was reported as done was done to the last byte.
//
// Memory of a GPU is reached by cuFile, or through page-locked buffers that are copied while other transfers are under
// way (GpuMode). NVIDIA's libraries are looked for at run time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/export.h"
#include "client/gpu/gpu_mode.h"
#include "client/memory_view.h"
#include "client/operation.h"
#include "common/error.h"

namespace weightfs::client {

// Whether transfers bypass the mount of a weightfs, by a lease of its blocks. A lease has 512 GiB at most. For more
// kAuto goes through the mount, and kRequire is an error: write or read such a file in parts, by offsets.
enum class Direct : unsigned char {
  kAuto,     // operations of at least 4 MiB, where the mount gives leases; the others through the mount
  kNever,    // everything through the mount
  kRequire,  // all that has any bytes, of whatever size; what cannot go so is an error that says why
};

struct HandleOptions {
  uint64_t block_size = 1 << 20;      // bytes of one transfer; less than the device's block counts as one block
  unsigned queue_depth = 128;         // transfers in the kernel at once, for each of the intra_op_parallelism rings
  bool single_submit = false;         // each transfer in a system call of its own
  bool overlap_events = false;        // refill after each completion; else in batches of queue_depth
  unsigned intra_op_parallelism = 1;  // slices that an operation is cut into, each with a thread and a ring
  Direct direct = Direct::kAuto;
  GpuMode gpu = GpuMode::kOnDemand;  // how memory of GPUs is reached
  std::string cufile_library = {};   // a path of cuFile's library, for where the loader finds none
};

// A file by its path, or by an open descriptor, which the caller keeps and may close as soon as the call
// returns.
struct FileName {
  FileName(std::string name) : path(std::move(name)) {}  // NOLINT(google-explicit-constructor)
  FileName(const char* name) : path(name) {}             // NOLINT(google-explicit-constructor)
  FileName(int number) : descriptor(number) {}           // NOLINT(google-explicit-constructor)
  std::string path;
  int descriptor = -1;
};

// Called with the bytes done and the bytes in all, about a hundred times and when all are done, from the
// thread that does the I/O: it must be quick.
using Progress = std::function<void(uint64_t done, uint64_t total)>;

// Called every 100 ms by a thread that waits. It returns true to end the wait.
using Interrupted = std::function<bool()>;

struct ReadOptions {
  uint64_t offset = 0;
  Progress progress = {};
  bool own_errors = false;       // see Handle::Wait
  Interrupted interrupted = {};  // of Read: it is cancelled then
  // Fails with EIO for bytes that are not those written. On a weightfs mount that is always so; elsewhere it takes a
  // whole file that was written with `checksum` and not changed since, otherwise ENODATA.
  bool verify = false;
};

struct WriteOptions {
  // Without: a path is written as a whole file, and a longer old content is cut off after success; a
  // descriptor is written from 0 on (one of O_APPEND: at its end), and what lies behind stays. With: the
  // bytes at this offset alone are replaced, so that several writers may write the parts of one file in any
  // order.
  std::optional<uint64_t> offset = std::nullopt;
  bool durable = false;  // fsync before success: data, size, and the name of a new file
  // Written beside the file and renamed over it: others see the old or the new one. It has the old one's mode, and
  // owner where that may be given; not its extended attributes and other names.
  bool atomic = false;
  Progress progress = {};
  bool own_errors = false;       // see Handle::Wait
  Interrupted interrupted = {};  // of Write: it is cancelled then
  // Keeps checksums of a whole file for `verify`, in its extended attribute user.weightfs.crc32c; not needed, and not
  // done, on a weightfs mount.
  bool checksum = false;
};

// A tensor, and the name of its file in a directory.
struct NamedMemory {
  std::string name;
  MemoryView memory;
};

struct SaveManyOptions {
  bool durable = true;     // on the device, names too, before success
  uint32_t mode = 0600;    // permission bits of the files
  Progress progress = {};  // its bytes are those on the device
  // Nothing is changed then, and the error is ECANCELED; not looked at any more once files are renamed.
  Interrupted interrupted = {};
  bool checksum = false;  // as in WriteOptions
  // Called with why there is no lease, before the files are written one by one instead; not with Direct::kNever.
  std::function<void(const Error& why)> on_fallback = {};
};

struct LoadManyOptions {
  Progress progress = {};
  Interrupted interrupted = {};  // the error is ECANCELED then, and the memory may hold a part
  bool verify = false;           // as in ReadOptions
};

// An error of the file of that name.
struct NamedError {
  std::string name;
  Error error;
};

// Thread-safe; one handle may serve many threads. The destructor waits for what the kernel is doing and
// cancels the rest; it may run at any time, in a callback too, but for those that a Read or Write of the handle calls.
// After that of a progress no memory is touched any more, and the operations are done once the progress has returned.
// After fork() the child cannot use the handle of its parent. Callbacks must not throw.
class WEIGHTFS_EXPORT Handle {
 public:
  class Impl;  // the library's own

  // EAGAIN with the numbers of fs.aio-max-nr, EINVAL for options that are not possible, EAGAIN when there are
  // no threads, ENODEV without a GPU in another mode than kOnDemand, cuFile's errors in mode kCufile.
  static Result<std::unique_ptr<Handle>> Create(const HandleOptions& options);
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  const HandleOptions& options() const { return options_; }

  // Opens the file and starts. An error here: nothing was started, no byte is changed. The memory must stay
  // where it is until the operation is done. A program may change it during a write: the file then holds old and new
  // bytes in any mixture, and it reads back, also with `verify`. An operation that overlaps another of this handle on
  // the same file, of which one writes, begins when that is done, and sees what the file is then: only then an error
  // may show. A file is the same by its inode and by its path; one that `atomic` makes by its path alone.
  Result<std::shared_ptr<Operation>> StartRead(const FileName& file, const MemoryView& memory,
                                               const ReadOptions& options = {});
  Result<std::shared_ptr<Operation>> StartWrite(const FileName& file, const MemoryView& memory,
                                                const WriteOptions& options = {});

  // Return when it is done. The calling thread does the work where it can. Not for callbacks (EDEADLK).
  Result<void> Read(const FileName& file, const MemoryView& memory, const ReadOptions& options = {});
  Result<void> Write(const FileName& file, const MemoryView& memory, const WriteOptions& options = {});

  // Many tensors, each in a file of its own in the directory: for thousands of small ones. Files that have these names
  // are replaced. By a lease all of them are there at once, also after a crash, or none; EINVAL for more than 131,072
  // files, or 1 GiB of names and checksums (about 1 TiB of files).
  //
  // Where there is no lease (Direct::kNever, no weightfs mount or its option direct= says no, tensors of a GPU, a full
  // store, more than a lease takes, a pool file beyond the process's RLIMIT_FSIZE) the files are written into a
  // directory beside, `.weightfs-*`, and then renamed one after the other: each is complete, and another program, or a
  // crash, may see some new and some old. An error before the first rename leaves everything as it was; that is so for
  // all that can be known then: what a directory, a mount or a sticky directory keeps, and permissions.
  // Direct::kRequire refuses instead.
  //
  // EINVAL for a name that is none of a file, or that is there twice; EROFS and EACCES where no files can be made.
  Result<void> SaveMany(const std::string& directory, std::span<const NamedMemory> files,
                        const SaveManyOptions& options = {});
  // The reverse: each file must be as large as its memory. Files that could not be read are in the result, the others
  // are loaded. Each file is as it was at one time; the set of them is no snapshot: while another program saves them,
  // some may be of one SaveMany and some of the next. What has no lease of its own (a symbolic link, say) is read
  // through the mount; with Direct::kRequire it is an error.
  Result<std::vector<NamedError>> LoadMany(const std::string& directory, std::span<const NamedMemory> files,
                                           const LoadManyOptions& options = {});

  struct Completed {
    size_t count = 0;                // operations that succeeded
    size_t failed = 0;               // that did not
    std::vector<Error> errors = {};  // of these, the first kMaxErrors
  };
  static constexpr size_t kMaxErrors = 64;
  // Waits for every operation started before the call, and reports those that ended since the last Wait. Not those
  // with own_errors, whose callers look at the operation; nor Read and Write. When it was interrupted it reports
  // nothing, and the next Wait does. As the one error EPERM in a forked child, and EDEADLK in a callback.
  Completed Wait(const Interrupted& interrupted = {});
  // Started, and not done.
  size_t pending() const;
  // How many were started by a lease; of SaveMany and LoadMany each batch is one.
  uint64_t direct_operations() const;

  // Facts about the GPUs; none with kOnDemand before the first memory of one.
  std::optional<GpuFacts> gpu() const;
  // Readies memory of a GPU for transfers of this handle: with cuFile it need not be done for each. EEXIST when it is.
  Result<void> PinDevice(const MemoryView& memory);
  // False when nothing is pinned at that address.
  bool UnpinDevice(uint64_t address);
  bool IsDevicePinned(const MemoryView& memory) const;
  // Copies memory of a GPU into the host's, as much as that holds, and waits for it.
  Result<void> CopyOut(const MemoryView& memory, std::span<std::byte> host);

 private:
  Handle(const HandleOptions& options, std::unique_ptr<Impl> impl);
  const HandleOptions options_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weightfs::client
