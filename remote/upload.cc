// SPDX-License-Identifier: Apache-2.0
#include "remote/upload.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "common/bytes.h"
#include "common/checksum.h"
#include "common/printable.h"
#include "common/start_thread.h"
#include "common/unique_fd.h"
#include "remote/pages.h"

namespace weightfs::remote {
namespace {

constexpr uint64_t kMostPartsWanted = 9000;      // of 10,000
constexpr uint64_t kReaderFrom = 1 << 20;        // smaller files are read by read(2)
constexpr uint64_t kRateSeconds = 2;             // of the parts in flight
constexpr size_t kMostRequests = 64;             // of small files, in progress and waiting for a connection
constexpr std::chrono::milliseconds kLook{100};  // between two looks for an interruption

// Bytes that are read or sent at once. Parts share a rate, so few of them are in flight then: each is complete soon,
// and a push that is killed again and again makes progress. 0: no rate.
uint64_t TransferMemoryOf(uint64_t rate) {
  if (rate == 0 || rate > kTransferMemory / kRateSeconds) return kTransferMemory;
  return std::max(rate * kRateSeconds, kPartSize);
}

// A file that has become shorter.
bool IsChange(const Error& error) { return error.code == ErrorCode{ENODATA} || error.code == ErrorCode::kStale; }

// Reads a file whose size must not change.
class PlainSource {
 public:
  static Result<PlainSource> Open(const LocalTree& tree, const FileEntry& file) {
    ASSIGN_OR_RETURN(UniqueFd opened, tree.Open(file, /*direct=*/false));
    return PlainSource(std::move(opened), tree.PathOf(file));
  }
  Result<void> Read(uint64_t offset, std::span<std::byte> to) {
    for (size_t done = 0; done < to.size();) {
      const ssize_t count = pread(file_.get(), to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return SystemError(path_, fmt::format("cannot be read at byte {}", offset + done));
      if (count == 0) return ChangedDuringPush(path_);
      done += static_cast<size_t>(count);
    }
    return {};
  }

 private:
  PlainSource(UniqueFd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  UniqueFd file_;
  std::string path_;
};

// Reads through a lease where there is one: one state of the file, with verified blocks.
class LeasedSource {
 public:
  // Uses the reader for this file, or makes one if it is null.
  static Result<LeasedSource> Open(const LocalTree& tree, const FileEntry& file,
                                   std::unique_ptr<client::RandomReader>& reader) {
    ASSIGN_OR_RETURN(const UniqueFd descriptor, tree.Open(file, /*direct=*/true));
    client::FileName name(descriptor.get());
    name.path = tree.PathOf(file);
    Result<void> opened;
    if (reader) {
      opened = reader->Reopen(name);
    } else if (auto made = client::RandomReader::Open(name)) {
      reader = std::move(*made);
    } else {
      opened = made.error();
    }
    if (!opened && IsChange(opened.error())) return ChangedDuringPush(name.path);
    if (!opened) return Error{opened.error().code, Printable(name.path) + ": " + ToString(opened.error())};
    if (reader->file_size() != file.size) return ChangedDuringPush(name.path);
    return LeasedSource(*reader, name.path);
  }
  Result<void> Read(uint64_t offset, std::span<std::byte> to) {
    auto done = reader_.Read(offset, client::MemoryView(to));
    if (done) return {};
    if (IsChange(done.error())) return ChangedDuringPush(path_);
    return Error{done.error().code, Printable(path_) + ": " + ToString(done.error())};
  }

 private:
  LeasedSource(client::RandomReader& reader, std::string path) : reader_(reader), path_(std::move(path)) {}
  client::RandomReader& reader_;
  std::string path_;
};

}  // namespace

uint64_t PartSizeOf(uint64_t file_size) {
  const uint64_t needed = (file_size + kMostPartsWanted - 1) / kMostPartsWanted;
  return std::max(kPartSize, RoundUp(needed, kMiB));
}

// A multipart upload. The parts are filled in by callbacks; the last of them queues it for completion.
struct Uploader::Upload {
  s3::UploadInfo info;
  uint64_t size = 0;
  std::vector<s3::PartInfo> parts;  // by number; written by one callback each
  std::atomic<size_t> missing{0};   // parts, and 1 until all are started
};

Uploader::Uploader(const Series& series, uint64_t version, const LocalTree& tree, Leftovers leftovers, Options options)
    : series_(series),
      version_(version),
      tree_(tree),
      leftovers_(std::move(leftovers)),
      transfer_memory_(TransferMemoryOf(series.bucket().client().settings().upload_rate)),
      options_(std::move(options)) {}

Uploader::~Uploader() {
  MutexLock lock(mutex_);
  while (!requests_.empty()) changed_.wait(lock.native());
  ends_ = true;
  changed_.notify_all();
  lock.Unlock();
  if (completer_.joinable()) completer_.join();
}

Result<std::vector<Sha256>> Uploader::Run() {
  ASSIGN_OR_RETURN(completer_, StartThread("wfs-complete", [this] { CompleteUploads(); }));
  if (auto sent = SendFiles(); !sent) Fail(sent.error());
  RETURN_IF_ERROR(WaitForAll());
  return slices_;
}

// A slice is sent only if it is whole: another push of the same source may have completed the version.
Result<void> Uploader::SendFiles() {
  for (const FileEntry& file : tree_.manifest.files) {
    const std::string key = series_.Key(version_, file.path);
    RETURN_IF_ERROR(file.size <= kPartSize ? SendWhole(file, key) : SendParts(file, key));
  }
  return slice_.empty() ? Result<void>() : SendSlice();
}

template <typename Source>
Result<void> Uploader::Read(Source& source, uint64_t offset, std::span<std::byte> to) {
  RETURN_IF_ERROR(source.Read(offset, to));
  return AddSums(to);
}

// The buffers have whole pages, so the last block can be filled up in place.
Result<void> Uploader::AddSums(std::span<const std::byte> data) {
  std::vector<uint32_t> sums((data.size() + kBlockSize - 1) / kBlockSize);
  const size_t rest = data.size() % kBlockSize;
  if (rest != 0) std::memset(const_cast<std::byte*>(data.data()) + data.size(), 0, kBlockSize - rest);
  Crc32cBlocks({data.data(), sums.size() * kBlockSize}, sums.data());
  for (const uint32_t sum : sums) {
    AppendLittle(slice_, sum);
    if (slice_.size() == kSliceBytes) RETURN_IF_ERROR(SendSlice());
  }
  return {};
}

Result<void> Uploader::SendSlice() {
  const auto body = std::make_shared<std::string>(std::exchange(slice_, {}));
  const std::string key = series_.SliceKey(version_, slices_.size());
  slices_.push_back(Sha256Of(*body));
  const uint64_t request = BeginRequest();
  NoteId(request,
         series_.bucket().StartPut(key, std::as_bytes(std::span(*body)), {.guard = options_.guard},
                                   [this, request, body, key](const Result<std::string>& result) {
                                     if (result) NoteEtag(key, *result);
                                     EndRequest(request, result);
                                   }));
  return CheckFailure();
}

Result<void> Uploader::SendWhole(const FileEntry& file, const std::string& key) {
  const auto found = leftovers_.objects.find(key);
  const bool present = found != leftovers_.objects.end() && found->second.size == file.size;
  if (present) NoteEtag(key, found->second.etag);
  if (present && file.size == 0) return {};
  ASSIGN_OR_RETURN(auto buffer, TakeBuffer(std::max<uint64_t>(file.size, 1)));
  const std::span<std::byte> data(buffer.get(), file.size);
  if (file.size >= kReaderFrom) {
    ASSIGN_OR_RETURN(auto source, LeasedSource::Open(tree_, file, reader_));
    RETURN_IF_ERROR(Read(source, 0, data));
  } else if (file.size > 0) {
    ASSIGN_OR_RETURN(auto source, PlainSource::Open(tree_, file));
    RETURN_IF_ERROR(Read(source, 0, data));
  }
  if (present) {
    done_bytes_ += file.size;
    return {};
  }
  const uint64_t request = BeginRequest();
  NoteId(request, series_.bucket().StartPut(
                      key, data, {.guard = options_.guard, .storage_class = options_.storage_class},
                      [this, request, buffer, key, size = file.size](const Result<std::string>& result) mutable {
                        if (result) {
                          done_bytes_ += size;
                          sent_bytes_ += size;
                          NoteEtag(key, *result);
                        }
                        buffer.reset();
                        EndRequest(request, result);
                      }));
  return CheckFailure();
}

// Continues the upload that has the most parts. There may be empty ones: the answer to the request that began them was
// lost. Others may be those of a second push of the same source, so they stay.
Result<Uploader::UploadPtr> Uploader::BeginParts(const FileEntry& file, const std::string& key) {
  auto upload = std::make_shared<Upload>();
  upload->info.key = key;
  upload->size = file.size;
  std::vector<s3::PartInfo> sent;
  const auto found = leftovers_.uploads.find(key);
  for (const std::string& id : found == leftovers_.uploads.end() ? std::vector<std::string>() : found->second) {
    auto parts = series_.bucket().ListParts({.key = key, .upload_id = id});
    if (!parts && parts.error().code == ErrorCode::kNotFound) continue;
    if (!parts) return parts.error();
    if (!upload->info.upload_id.empty() && parts->parts.size() <= sent.size()) continue;
    upload->info.upload_id = id;
    upload->info.crc32c = parts->crc32c;
    sent = std::move(parts->parts);
  }
  const uint64_t part_size = PartSizeOf(file.size);
  upload->parts.resize((file.size + part_size - 1) / part_size);
  for (const s3::PartInfo& part : sent) {
    if (part.number == 0 || part.number > upload->parts.size()) continue;
    const uint64_t begin = (part.number - 1) * part_size;
    const bool complete = part.size == std::min(part_size, file.size - begin);
    if (complete && part.crc32c.empty() != upload->info.crc32c) upload->parts[part.number - 1] = part;
  }
  if (upload->info.upload_id.empty()) {
    ASSIGN_OR_RETURN(upload->info, series_.bucket().CreateMultipartUpload(
                                       key, {.guard = options_.guard, .storage_class = options_.storage_class}));
  }
  return upload;
}

Result<void> Uploader::SendParts(const FileEntry& file, const std::string& key) {
  const auto found = leftovers_.objects.find(key);
  const bool present = found != leftovers_.objects.end() && found->second.size == file.size;
  UploadPtr upload;
  if (present) {
    NoteEtag(key, found->second.etag);
  } else {
    ASSIGN_OR_RETURN(upload, BeginParts(file, key));
    upload->missing = 1;
  }
  ASSIGN_OR_RETURN(auto source, LeasedSource::Open(tree_, file, reader_));
  const uint64_t part_size = PartSizeOf(file.size);
  for (uint64_t begin = 0; begin < file.size; begin += part_size) {
    const uint64_t size = std::min(part_size, file.size - begin);
    const auto number = static_cast<unsigned>(begin / part_size + 1);
    ASSIGN_OR_RETURN(auto buffer, TakeBuffer(part_size));
    const std::span<std::byte> data(buffer.get(), size);
    RETURN_IF_ERROR(Read(source, begin, data));
    if (present || !upload->parts[number - 1].etag.empty()) {
      done_bytes_ += size;
      continue;
    }
    ++upload->missing;
    const uint64_t request = BeginRequest();
    NoteId(request, series_.bucket().StartUploadPart(
                        upload->info, number, data,
                        [this, request, upload, number, size, buffer](Result<s3::PartInfo> result) mutable {
                          if (result) {
                            upload->parts[number - 1] = *result;
                            done_bytes_ += size;
                            sent_bytes_ += size;
                            if (--upload->missing == 0) Complete(upload);
                          }
                          buffer.reset();
                          EndRequest(request, result);
                        }));
    RETURN_IF_ERROR(CheckFailure());
  }
  if (!present && --upload->missing == 0) Complete(upload);
  return {};
}

void Uploader::Complete(UploadPtr upload) {
  MutexLock lock(mutex_);
  ++completing_;
  complete_.push_back(std::move(upload));
  changed_.notify_all();
}

void Uploader::CompleteUploads() {
  MutexLock lock(mutex_);
  while (true) {
    while (complete_.empty() && !ends_) changed_.wait(lock.native());
    if (complete_.empty()) return;
    const UploadPtr upload = std::move(complete_.front());
    complete_.pop_front();
    const bool skip = failure_.has_value();
    lock.Unlock();
    const auto done = skip ? Result<void>() : CompleteUpload(*upload);
    lock.Lock();
    if (!done && !failure_) failure_ = done.error();
    --completing_;
    changed_.notify_all();
  }
}

// The answer to an attempt may have been lost, so that the next one finds no upload. A service that answers, but does
// not complete an upload, will complete another one: for ten minutes, Ceph keeps the lock of a gateway that was killed
// in the middle.
Result<void> Uploader::CompleteUpload(const Upload& upload) {
  const auto completed = series_.bucket().CompleteMultipartUpload(upload.info, upload.parts, options_.guard);
  if (completed) {
    NoteEtag(upload.info.key, *completed);
    return {};
  }
  const ErrorCode code = completed.error().code;
  if (code != ErrorCode::kNotFound && code != ErrorCode::kIo) return completed.error();
  const auto object = series_.bucket().HeadObject(upload.info.key);
  if (object && object->size == upload.size) {
    NoteEtag(upload.info.key, object->etag);
    return {};
  }
  if (code == ErrorCode::kNotFound || object || object.error().code != ErrorCode::kNotFound) return completed.error();
  {
    MutexLock lock(mutex_);
    abandoned_.insert(upload.info.upload_id);
  }
  // If this fails, too, `weightfs prune` removes it with the version.
  static_cast<void>(series_.bucket().AbortMultipartUpload(upload.info).has_value());
  return Error{ErrorCode::kAgain, completed.error().what};
}

std::set<std::string> Uploader::abandoned() {
  MutexLock lock(mutex_);
  return abandoned_;
}

bool SentObject::Is(uint64_t wanted, std::string_view of) const {
  const auto bare = [](std::string_view text) {
    if (text.starts_with('"')) text.remove_prefix(1);
    if (text.ends_with('"')) text.remove_suffix(1);
    return text;
  };
  return size == wanted && (etag.empty() || of.empty() || bare(etag) == bare(of));
}

void Uploader::NoteEtag(const std::string& key, const std::string& etag) {
  MutexLock lock(mutex_);
  if (!etag.empty()) etags_[key] = etag;
}

std::map<std::string, std::string> Uploader::etags() {
  MutexLock lock(mutex_);
  return etags_;
}

uint64_t Uploader::BeginRequest() {
  MutexLock lock(mutex_);
  requests_.emplace(++last_request_, std::nullopt);
  return last_request_;
}

// The request may have ended already.
void Uploader::NoteId(uint64_t request, s3::RequestId id) {
  MutexLock lock(mutex_);
  if (const auto found = requests_.find(request); found != requests_.end()) found->second = id;
}

template <typename T>
void Uploader::EndRequest(uint64_t request, const Result<T>& result) {
  MutexLock lock(mutex_);
  if (!result && !failure_) failure_ = result.error();
  requests_.erase(request);
  changed_.notify_all();
}

// Waits until there is memory, and until few enough requests wait. Spare buffers count as memory.
Result<std::shared_ptr<std::byte>> Uploader::TakeBuffer(uint64_t size) {
  size = RoundUp(size, kBlockSize);
  MutexLock lock(mutex_);
  while (!failure_ && (requests_.size() >= kMostRequests || (memory_ > 0 && memory_ + size > transfer_memory_))) {
    changed_.wait_for(lock.native(), kLook);
    lock.Unlock();
    RETURN_IF_ERROR(CheckFailure());
    lock.Lock();
  }
  if (failure_) return *failure_;
  std::shared_ptr<std::byte> memory;
  memory_ += size;
  if (size == kPartSize && !spare_.empty()) {
    memory = std::move(spare_.back());
    spare_.pop_back();
  }
  while (!spare_.empty() && memory_ + spare_.size() * kPartSize > transfer_memory_) spare_.pop_back();
  lock.Unlock();
  if (memory == nullptr) {
    auto fresh = AllocatePages(size);
    if (!fresh) {
      lock.Lock();
      memory_ -= size;
      return fresh.error();
    }
    memory = std::move(*fresh);
  }
  return std::shared_ptr<std::byte>(memory.get(), [this, memory, size](std::byte*) {
    MutexLock again(mutex_);
    memory_ -= size;
    if (size == kPartSize) spare_.push_back(memory);
    changed_.notify_all();
  });
}

Result<void> Uploader::CheckFailure() {
  if (options_.progress) options_.progress(done_bytes_.load());
  {
    MutexLock lock(mutex_);
    if (failure_) return *failure_;
  }
  if (series_.bucket().is_interrupted()) return ErrorCode::kCancelled;
  return options_.check ? options_.check() : Result<void>();
}

void Uploader::Fail(Error error) {
  std::vector<s3::RequestId> ids;
  {
    MutexLock lock(mutex_);
    if (!failure_) failure_ = std::move(error);
    for (const auto& [request, id] : requests_) {
      if (id) ids.push_back(*id);
    }
  }
  for (const s3::RequestId id : ids) series_.bucket().client().Cancel(id);
}

// After a failure only the requests in progress are waited for.
Result<void> Uploader::WaitForAll() {
  if (auto failed = CheckFailure(); !failed) Fail(failed.error());
  MutexLock lock(mutex_);
  while (!requests_.empty() || completing_ > 0) {
    changed_.wait_for(lock.native(), kLook);
    lock.Unlock();
    if (auto failed = CheckFailure(); !failed) Fail(failed.error());
    lock.Lock();
  }
  if (failure_) return *failure_;
  return {};
}

}  // namespace weightfs::remote
