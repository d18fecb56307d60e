// SPDX-License-Identifier: Apache-2.0
// cuFile (libcufile.so.0), NVIDIA's library for transfers between files and GPU memory. It is loaded when a program
// asks for it; WEIGHTFS_CUFILE_LIBRARY names another library.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/result.h"

namespace weightfs::client {

// Immutable and thread-safe.
class Cufile : public std::enable_shared_from_this<Cufile> {
 public:
  // Loads cuFile and opens its driver, for the rest of the process. `path` is tried if the loader does not find the
  // library. ENOENT without the library; ENODEV and others if it refuses to work.
  static Result<std::shared_ptr<const Cufile>> Load(const std::string& path);

  // "1.20", or "of an unknown version".
  std::string version() const;
  // direct() is true if any filesystem at all is accessed without a copy in host memory; DirectWay() names which of
  // NVIDIA's two mechanisms does so. Otherwise cuFile works in compatibility mode: ordinary reads and copies, inside
  // the library.
  bool direct() const { return kinds_ != 0; }
  std::string DirectWay() const;
  // Like direct(), for the filesystem or device of an open file.
  bool DirectFor(int descriptor) const;

  // An open file that is registered with cuFile. The descriptor must stay open.
  class File {
   public:
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    // Transfer between the file at `offset` and the memory at `base` + `at`, which must belong to the GPU whose context
    // is current on the thread. `base` is the start of pinned memory, or any address. Return the number of bytes done,
    // which may be fewer than `size`; 0 means the end of the file.
    Result<uint64_t> Read(uint64_t base, uint64_t at, uint64_t size, uint64_t offset) const;
    Result<uint64_t> Write(uint64_t base, uint64_t at, uint64_t size, uint64_t offset) const;

   private:
    friend class Cufile;
    File(std::shared_ptr<const Cufile> cufile, void* handle) : cufile_(std::move(cufile)), handle_(handle) {}
    const std::shared_ptr<const Cufile> cufile_;
    void* const handle_;
  };
  Result<std::unique_ptr<const File>> Open(int descriptor) const;

  // Keeps GPU memory prepared for transfers until its last copy is gone. The context of the GPU must be current in
  // PinMemory. ENOMEM and others if cuFile refuses.
  using Pin = std::shared_ptr<const void>;
  Result<Pin> PinMemory(uint64_t address, uint64_t size) const;

 private:
  struct Functions;
  struct Status;
  explicit Cufile(std::shared_ptr<const Functions> functions) : functions_(std::move(functions)) {}
  Result<void> Start();
  static Error Failed(const char* action, int64_t code);
  Result<void> Check(const char* action, const Status& status) const;
  static Result<uint64_t> Outcome(const char* action, int64_t result, int error_number);

  const std::shared_ptr<const Functions> functions_;
  int version_ = 0;     // 1200 means 1.20; 0 means unknown
  unsigned kinds_ = 0;  // one bit per kind of filesystem that is accessed directly, in cuFile's numbering
  bool nvidia_fs_ = false;
};

}  // namespace weightfs::client
