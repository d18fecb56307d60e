// SPDX-License-Identifier: Apache-2.0
// An ordinary file of any filesystem, opened for one operation by path or by a descriptor of the caller.
//
// Aligned ranges go through O_DIRECT. Partial blocks at the head and tail, small unaligned transfers, and everything on
// a filesystem without O_DIRECT go through a buffered descriptor of the same file. Linux keeps the two coherent as long
// as they do not access one page at the same time, so no page is accessed both ways.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "client/checksum_attribute.h"
#include "client/operation.h"
#include "client/target.h"
#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::client {

struct GatheredBlocks;

// Its states: open ──Prepare──→ prepared ──Finish──→ finished. Open changes nothing but the name of a new file. A file
// that is dropped before it is finished is rolled back like a failed write.
class OpenedFile final : public Access, public Layout {
 public:
  struct Options {
    Operation::Direction direction = Operation::Direction::kRead;
    std::string path = {};   // as given by the caller
    std::string where = {};  // the absolute path, because the working directory may change; empty: same as `path`
    int descriptor = -1;     // used instead of the path; the caller keeps it and may close it at once
    uint64_t offset = 0;
    bool appends = false;  // used instead of the offset: write at the end of the file as of Prepare
    uint64_t size = 0;
    // The file will contain exactly the written bytes. Requires a path and offset 0. Longer old content is truncated
    // after success, and a file that a failed write created is removed. If false, the rest of the file is kept.
    bool whole_file = false;
    bool atomic = false;       // with whole_file: write a temporary file, then rename it over the target
    bool durable = false;      // fsync before success is reported
    bool durable_name = true;  // with durable: also fsync the directory if the write creates the file
    // A read of several ranges of [offset, offset + size); null: all of it is read.
    std::shared_ptr<const GatheredBlocks> gathered = nullptr;
    std::shared_ptr<ChecksumAttribute> checksums = nullptr;  // stored by a write, compared by a read; may be null

    bool writes() const { return direction == Operation::Direction::kWrite; }
  };

  // A smaller unaligned transfer is one buffered call: opening two descriptors would cost more than O_DIRECT saves.
  static constexpr uint64_t kSmallTransfer = 64 * 1024;

  // Opens the file. A missing file is created with mode 0666 minus the umask, or the call fails with ENOENT if
  // `may_create` is false. Nothing else is changed. Errors are the errnos of the system calls, and EINVAL for an
  // impossible combination of options.
  static Result<std::unique_ptr<OpenedFile>> Open(const Options& options, bool may_create = true);
  ~OpenedFile() override;

  // Empty if operations on this file need no order.
  std::optional<FileId> id() const;
  // Announces that the operation will open the file again at its turn: Finish and the destructor leave it unchanged.
  void KeepOnFailure() { keep_on_failure_ = !options_.atomic; }  // an atomic write owns its temporary file
  // Announces that the file has none of the bytes until the write is complete.
  void WriteElsewhere() { writes_elsewhere_ = true; }
  // Must be called before the first transfer, when no overlapping operation is pending any more. Does everything that
  // depends on the state of the file at that time: it checks that the file contains all bytes of a read (ENODATA).
  // Returns the file offset at which the operation begins. ESTALE: the path names another file by now.
  Result<uint64_t> Prepare();
  // Reserves the blocks of a write to the file, after Prepare and before the first transfer. ENOSPC.
  Result<void> Reserve();

  const std::string& path() const override { return options_.path; }
  const Layout& layout() const override { return *this; }
  Run Locate(uint64_t offset, uint64_t length) const override { return {direct_.get(), offset, length}; }
  DirectAlignment alignment() const override { return alignment_; }
  // The descriptor that never changes after Open.
  int any() const override { return direct_ ? direct_.get() : buffered_.get(); }
  int Buffered(int* error_number) const override EXCLUDES(mutex_);
  Result<uint64_t> Size() const override;
  bool needs_checksums() const override {
    return options_.checksums != nullptr && options_.checksums->needs_checksums();
  }
  void NoteWritten(uint64_t offset, std::span<const std::byte> bytes) const override {
    options_.checksums->NoteWritten(offset, bytes);
  }
  Result<void> Finish(bool success) override;
  bool FinishesAtOnce() const override {
    return options_.checksums == nullptr && !options_.durable && !options_.atomic && (!writes() || !cuts_off());
  }

 private:
  enum class State : unsigned char { kOpen, kPrepared, kFinished };

  OpenedFile(Options options, bool may_create) : options_(std::move(options)), may_create_(may_create) {}
  bool writes() const { return options_.writes(); }
  int access() const { return (writes() ? O_WRONLY : O_RDONLY) | O_CLOEXEC; }
  Error Failed(const char* action, int error_number) const;
  // True if longer old content is behind the written bytes.
  bool cuts_off() const { return options_.whole_file && static_cast<uint64_t>(status_.st_size) > options_.size; }
  const std::string& where() const { return options_.where.empty() ? options_.path : options_.where; }

  Result<void> Open();
  Result<void> OpenPath();
  Result<int> OpenOrCreate(int flags);
  Result<void> OpenTemporary();
  Result<bool> FindReplaced(struct stat* old);
  Result<void> AdoptDescriptor();
  Result<void> Examine();
  Result<void> CheckLimit() const;
  bool WasRemoved() const;
  Result<void> LearnAlignment();
  Result<void> MakeFinal();
  void Rollback();

  Options options_;           // the offset is final after Prepare
  const bool may_create_;     // ignored for a temporary file, which is always created
  State state_ = State::kOpen;
  std::string written_path_;  // the file that is written: the path, the file it links to, or the temporary file
  std::string final_path_;    // with `atomic`: the file that is replaced
  bool created_ = false;
  bool keep_on_failure_ = false;  // leave the existing file in place
  bool writes_elsewhere_ = false;
  bool owns_flags_ = false;       // any() is an open file of ours, not a duplicate of the caller's
  struct stat status_ {};         // as of Open, then as of Prepare
  UniqueFd direct_;
  mutable Mutex mutex_;        // Buffered() is called by several threads
  mutable UniqueFd buffered_;  // opened when the first partial block needs it
  DirectAlignment alignment_;
};

// Returns the error "read of 10 bytes at offset 20 of PATH: only 5 bytes there".
Error PastTheEnd(const std::string& path, uint64_t size, uint64_t offset, uint64_t file_size);

}  // namespace weightfs::client
