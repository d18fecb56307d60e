// SPDX-License-Identifier: Apache-2.0
// Reads and writes whole tensors of any size, at any file offset, in host or GPU memory, at the speed of the device.
//
// Aligned parts are transferred by libaio and O_DIRECT directly between the device and the caller's memory. Memory that
// O_DIRECT cannot use is copied through a few small buffers, concurrently with other transfers. Partial blocks at the
// ends, and files of filesystems without O_DIRECT, are transferred by ordinary reads and writes. On a weightfs mount,
// large operations bypass the mount and access the devices of the store directly; the library then verifies the
// checksum of every block that it reads. A successful operation has transferred every byte.
//
// GPU memory is accessed through cuFile or through page-locked bounce buffers (see GpuMode). NVIDIA's libraries are
// loaded at run time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/export.h"
#include "client/memory_view.h"
#include "client/operation.h"
#include "common/error.h"

namespace weightfs::client {

// Operations of at least this many bytes use a lease by default. For smaller ones it would cost more than it saves.
inline constexpr uint64_t kLeaseFrom = 1 << 20;

// Whether transfers bypass a weightfs mount by a lease of the file's blocks. A lease covers at most 512 GiB. For a
// larger operation kAuto goes through the mount and kRequire fails; read or write such a file in parts, by offsets.
enum class Direct : unsigned char {
  kAuto,     // operations of at least kLeaseFrom bypass the mount if it grants a lease; all others go through the mount
  kNever,    // everything goes through the mount
  kRequire,  // every operation that is not empty bypasses the mount, or fails with an error that says why it cannot
};

// How a handle accesses GPU memory.
enum class GpuMode : unsigned char {
  kOnDemand,  // like kBounce, but GPUs are not initialized before the first GPU tensor is used
  kAuto,      // cuFile if it avoids a copy in host memory; otherwise bounce buffers
  kCufile,    // cuFile, even in its compatibility mode
  kBounce,    // our own page-locked bounce buffers, copied concurrently with other transfers
};

// The mode in use, and why.
struct GpuFacts {
  int count = 0;
  std::string name;           // of the first GPU
  std::string cuda;           // CUDA version that the driver supports: "13.0"
  std::string cufile;         // version of cuFile; empty: not loaded, or not found
  GpuMode mode;               // the mode in use: kCufile or kBounce
  std::string why;            // the reason for the mode
  std::string refusal;        // mode kAuto: why the first operation that cuFile does not carry out goes another way
  uint64_t cufile_bytes = 0;  // bytes transferred so far by cuFile
  uint64_t bounce_bytes = 0;  // bytes transferred so far through bounce buffers; includes partial blocks in mode
                              // kCufile
};

struct HandleOptions {
  uint64_t block_size = 1 << 20;      // bytes per transfer; rounded up to the block size of the device
  unsigned queue_depth = 128;         // maximum number of transfers in the kernel, per ring
  bool single_submit = false;         // submit each transfer in a system call of its own
  bool overlap_events = false;        // refill the queue after each completion; if false, submit in batches of
                                      // queue_depth
  unsigned intra_op_parallelism = 1;  // number of slices per operation; each slice has its own thread and ring
  Direct direct = Direct::kAuto;
  GpuMode gpu = GpuMode::kOnDemand;  // how GPU memory is accessed
  std::string cufile_library = {};   // path of cuFile's library, tried if the loader does not find it
  // With kAuto: called once, with GpuFacts::refusal, by the thread that starts the operation. Must not use the handle.
  std::function<void(const std::string& why)> on_gpu_refusal = {};
};

// A file, given by its path or by an open descriptor. The caller keeps the descriptor and may close it as soon as the
// call returns. With a descriptor, the path is only a name for messages.
struct FileName {
  FileName(std::string name) : path(std::move(name)) {}  // NOLINT(google-explicit-constructor)
  FileName(const char* name) : path(name) {}             // NOLINT(google-explicit-constructor)
  FileName(int number) : descriptor(number) {}           // NOLINT(google-explicit-constructor)
  std::string path;
  int descriptor = -1;
};

// Called with the number of bytes done and the total, about a hundred times and, after success, once when all bytes are
// transferred, before the file is finished (fsync, rename). A callback delays no transfer and no operation
// but its own, as far as threads can be started. The other callbacks of its ring (HandleOptions::intra_op_parallelism)
// wait until it returns. If it destroys the handle, they run later, and must not use the handle.
using Progress = std::function<void(uint64_t done, uint64_t total)>;

// Called every 100 ms by a waiting thread. Return true to end the wait.
using Interrupted = std::function<bool()>;

struct ReadOptions {
  uint64_t offset = 0;
  Progress progress = {};
  bool own_errors = false;       // see Handle::Wait
  Interrupted interrupted = {};  // by Read only: true cancels the operation
  // Fails with EIO if the bytes differ from those that were written. A weightfs mount always verifies. On any other
  // filesystem the file must have been written with `checksum`, must not have changed since, and must be read as a
  // whole; otherwise the read fails with ENODATA.
  bool verify = false;
};

struct WriteOptions {
  // Without an offset, a path is written as a whole file, and longer old content is truncated after success; a
  // descriptor is written from offset 0 (with O_APPEND, at the end), and content beyond the written range is kept. With
  // an offset, only the bytes of that range are replaced, so several writers may write parts of one file in any order.
  std::optional<uint64_t> offset = std::nullopt;
  bool durable = false;  // fsync data, size, and the name of a new file before success
  // Writes a temporary file and renames it over the target, so that other programs see either the old file or the new
  // one. The new file gets the mode of the old one, and its owner if the process may set it, but not its extended
  // attributes or its other hard links.
  bool atomic = false;
  Progress progress = {};
  bool own_errors = false;       // see Handle::Wait
  Interrupted interrupted = {};  // by Write only: true cancels the operation
  // Stores the checksums of a whole file for `verify` in its extended attribute user.weightfs.crc32c. It has no effect
  // on a weightfs mount, which keeps its own checksums.
  bool checksum = false;
  // Nobody changes the memory until the operation is done. It is then sent without a copy, if O_DIRECT can use it. If
  // somebody does change it, blocks of the file may be unreadable (EIO).
  bool stable = false;
};

// A part of a file.
struct ByteRange {
  uint64_t offset = 0;
  uint64_t size = 0;
};

// A tensor and the name of its file in a directory.
struct NamedMemory {
  std::string name;
  MemoryView memory;
};

struct SaveManyOptions {
  bool durable = true;     // data and names are on the device before success
  // Permission bits of the files. Empty: a new file has 0666 minus the umask, and a file that replaces another regular
  // file has its mode, and its owner and group as far as the process may set them.
  std::optional<uint32_t> mode = std::nullopt;
  Progress progress = {};  // counts bytes written to the device
  // Returning true cancels the call: it fails with ECANCELED and changes nothing. Not called once renaming has begun.
  Interrupted interrupted = {};
  bool checksum = false;  // see WriteOptions
  // Called with the reason if there is no lease, before the files are written one by one. Never called with
  // Direct::kNever.
  std::function<void(const Error& why)> on_fallback = {};
};

struct LoadManyOptions {
  Progress progress = {};
  Interrupted interrupted = {};  // true cancels the call: it fails with ECANCELED, and the memory may be partly filled
  bool verify = false;           // see ReadOptions
};

// An error, and the name of the file it belongs to.
struct NamedError {
  std::string name;
  Error error;
};

// Thread-safe; many threads may share one handle. The destructor waits for the transfers in the kernel, for files that
// are being opened or finished, and for callbacks, and cancels everything else. It may run at any time, even in a
// callback, except in a callback that a Read or Write of this handle calls. If it runs in a callback, no memory is
// accessed after it returns; callbacks behind that one, and the end of its operation, follow when it has returned.
// After fork() the child must not use its parent's handle. Callbacks must not throw.
//
// A file is opened by the thread that begins the operation. The handle's own threads open it again where the operation
// had to wait, finish it (fsync, rename, or the rollback of a failed write) and run the callbacks. All of them have the
// user, groups and capabilities of the thread that created the handle. A program whose threads have different ones
// (setfsuid(2)) makes a handle for each.
class WEIGHTFS_EXPORT Handle {
 public:
  class Impl;  // internal

  // Errors: EAGAIN with the values of fs.aio-max-nr; EINVAL for invalid options; EAGAIN if no thread can be created;
  // ENODEV if there is no GPU and the mode is not kOnDemand; the errors of cuFile in mode kCufile.
  static Result<std::unique_ptr<Handle>> Create(const HandleOptions& options);
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  const HandleOptions& options() const { return options_; }

  // Opens the file and starts the operation. If this call fails, nothing was started and no byte was changed. The
  // memory must stay valid until the operation is done. A program may change the memory during a write (unless it is
  // `stable`): the file then contains any mixture of old and new bytes, and reading it succeeds, also with `verify`.
  // If an operation overlaps an earlier one of this handle on the same file and either of them writes, it begins when
  // the earlier one is done. It then opens the file again, on a thread of the handle, and sees the file as of that
  // time, so an error may appear only then. Two operations are on the same file if they share its inode or its path; an
  // `atomic` write is identified by its path alone. ECANCELED while the handle is being destroyed.
  Result<std::shared_ptr<Operation>> StartRead(const FileName& file, const MemoryView& memory,
                                               const ReadOptions& options = {});
  Result<std::shared_ptr<Operation>> StartWrite(const FileName& file, const MemoryView& memory,
                                                const WriteOptions& options = {});

  // Return when the operation is done. The calling thread does the work if it can. Not allowed in callbacks (EDEADLK).
  Result<void> Read(const FileName& file, const MemoryView& memory, const ReadOptions& options = {});
  Result<void> Write(const FileName& file, const MemoryView& memory, const WriteOptions& options = {});

  // Reads several ranges of a file into contiguous host memory, one behind the other: one operation, and with a lease
  // one lease, which reads the blocks of these ranges (and short gaps between them). The ranges are in ascending order
  // and do not overlap; together they have the size of the memory. EINVAL otherwise. Returns and fails as Read does.
  Result<void> ReadRanges(const FileName& file, std::span<const ByteRange> ranges, const MemoryView& memory,
                          const Interrupted& interrupted = {});

  // Returns a descriptor of memory that programs share, in which a weightfs mount has the bytes [offset, offset +
  // length) of the open file, at the same offsets. The memory is for reading and for private mappings; it keeps these
  // bytes, whatever happens to the file or the mount. EOPNOTSUPP with Direct::kNever; ENOTTY on another filesystem;
  // ENOMEM if the mount has no room (option cache_memory=); EIO for damage, which a Read locates; ENODATA if the file
  // is shorter; EINVAL for no bytes; ECANCELED if `interrupted` has returned true. `load`: false for what other loads
  // have put there; ENOMEM if that is not all of it.
  Result<int> Map(int descriptor, uint64_t offset, uint64_t length, bool load = true,
                  const Interrupted& interrupted = {});

  // Writes many tensors, each to its own file in the directory, replacing files of the same names. Intended for
  // thousands of small tensors. With a lease all files appear at once or not at all, even after a crash. EINVAL for
  // more than 131,072 files, or for more than 1 GiB of names and checksums (about 1 TiB of data).
  //
  // Without a lease the files are written to a temporary directory `.weightfs-*` beside them and then renamed one after
  // the other. Each file is complete, but another program, or a crash, may see some new and some old files. A lease is
  // not possible with Direct::kNever, on another filesystem, if the mount's option direct= refuses it, for GPU tensors,
  // if the store is full, if the request exceeds the limits of a lease, or if a pool file extends beyond the process's
  // RLIMIT_FSIZE. With Direct::kRequire the call fails instead. An error before the first rename changes nothing. All
  // errors that can be detected by then are: names that are directories, mount points or protected by a sticky
  // directory, and permissions.
  //
  // EINVAL for a name that is not a valid file name, or that occurs twice; EROFS and EACCES if no files can be created.
  //
  // SaveMany and LoadMany have their files until they return. A call of this handle that `interrupted` makes meanwhile,
  // directly or in a signal handler, and that would wait for one of them fails with EDEADLK. Callbacks of the two are
  // callbacks of an operation.
  Result<void> SaveMany(const std::string& directory, std::span<const NamedMemory> files,
                        const SaveManyOptions& options = {});
  // Loads many files into memory. Each file must be as large as its memory. Memories that overlap get a mixture of
  // their files, or an error. Returns the errors of the files that could not be read; all other files are loaded. Each
  // file is a consistent snapshot, but the set is not: while another program saves the files, some may come from one
  // SaveMany and some from the next. A file that cannot be leased (a symbolic link, for example) is read through the
  // mount; with Direct::kRequire it is an error.
  Result<std::vector<NamedError>> LoadMany(const std::string& directory, std::span<const NamedMemory> files,
                                           const LoadManyOptions& options = {});

  struct Completed {
    size_t count = 0;                // number of operations that succeeded
    size_t failed = 0;               // number of operations that failed
    std::vector<Error> errors = {};  // the first kMaxErrors of their errors
    bool refused = false;            // Wait has not waited; `errors` has the reason alone
  };
  static constexpr size_t kMaxErrors = 64;
  // Waits for every operation started before the call, and reports those that ended since the last Wait. Read, Write
  // and operations with own_errors are not reported; the caller of the latter checks the operation itself. If it is
  // interrupted, Wait reports nothing, and the next Wait reports everything. Refuses with EPERM in a forked
  // child, and with EDEADLK in a callback, or if an operation waits for a SaveMany or LoadMany that a signal handler on
  // this thread has interrupted.
  Completed Wait(const Interrupted& interrupted = {});
  // Number of operations started but not done.
  size_t pending() const;
  // Number of operations started with a lease, and of maps. Each batch of a SaveMany or LoadMany counts as one.
  uint64_t direct_operations() const;

  // Facts about the GPUs. Empty in mode kOnDemand until GPU memory is first used.
  std::optional<GpuFacts> gpu() const;
  // Prepares GPU memory for transfers of this handle, so that cuFile need not prepare it for each one. EEXIST if the
  // memory is pinned already.
  Result<void> PinDevice(const MemoryView& memory);
  // Returns false if nothing is pinned at that address.
  bool UnpinDevice(uint64_t address);
  bool IsDevicePinned(const MemoryView& memory) const;
  // Copies GPU memory into host memory and waits for the copy. The size of `host` limits how much is copied.
  Result<void> CopyOut(const MemoryView& memory, std::span<std::byte> host);

 private:
  Handle(const HandleOptions& options, std::unique_ptr<Impl> impl);
  const HandleOptions options_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weightfs::client
