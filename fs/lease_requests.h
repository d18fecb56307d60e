// SPDX-License-Identifier: Apache-2.0
// The handlers of the requests in lease/protocol.h, one function per request. Private to fs/.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "fs/lease_connection.h"
#include "fs/lease_tickets.h"
#include "fs/reply.h"
#include "lease/channel.h"
#include "store/store.h"

namespace weightfs {

class Filesystem;

// One request's share of the memory limit for all answers. Released on destruction.
class AnswerMemory {
 public:
  // `taken` is the total of all requests; it must outlive this object.
  explicit AnswerMemory(std::atomic<uint64_t>& taken) : taken_(taken) {}
  ~AnswerMemory() { taken_ -= own_; }
  AnswerMemory(const AnswerMemory&) = delete;
  AnswerMemory& operator=(const AnswerMemory&) = delete;

  // Adds the checksums of `blocks` blocks. Returns kFileTooBig for more than a lease may cover, kAgain when too little
  // memory is left.
  Result<void> Add(BlockCount blocks);

 private:
  std::atomic<uint64_t>& taken_;  // bytes
  uint64_t own_ = 0;
};

// Thread-safe.
class LeaseRequests {
 public:
  // Who sent a request: as the kernel attests it for a message, or by an ioctl, which has checked the user.
  struct Sender {
    pid_t process = 0;
    Credentials user;
    bool checked = false;
  };
  // Called once per request after its answer was sent, or with false when it could not be sent.
  using Answered = std::function<void(const LeaseConnectionPtr&, bool sent)>;

  // `filesystem` and `tickets` must outlive this object.
  LeaseRequests(Filesystem& filesystem, LeaseTickets& tickets, Answered answered)
      : filesystem_(filesystem), tickets_(tickets), answered_(std::move(answered)) {}

  // Handles the request and answers it, now or from a thread of the store. May wait for devices.
  void Handle(const LeaseConnectionPtr& connection, lease::Kind kind, std::span<const std::byte> body,
              const Sender& sender);

  RequestCounter& open() { return open_; }

  // Waits until every request has been answered, and closes the devices. The caller makes no new requests.
  void Stop() EXCLUDES(mutex_);

 private:
  using Body = std::vector<std::span<const std::byte>>;
  struct Request {
    LeaseConnectionPtr connection;
    lease::Kind kind{};
    Sender sender;
    int error = 0;                      // an errno without an ErrorCode; overrides the error's own
    uint64_t failed = lease::kNoEntry;  // kCommitMany: index of the entry at fault
    Credentials who;                    // the peer, with the capabilities of its ticket
    RequestOrigin origin;
  };

  // Each handler answers, or returns the error to answer with.
  Result<void> Identify(Request& request, lease::BodyReader body);
  Result<void> Read(Request& request, lease::BodyReader body);
  Result<void> Map(Request& request, lease::BodyReader body);
  Result<void> ReadMany(Request& request, lease::BodyReader body);
  Result<void> Reserve(Request& request, lease::BodyReader body);
  Result<void> Commit(Request& request, lease::BodyReader body);
  Result<void> CommitMany(Request& request, lease::BodyReader body);
  Result<BlockReservation> ReserveInPlace(const Request& request, const InodePtr& inode, BlockCount count);
  template <typename Change>
  Result<void> ChangeWithoutPages(const InodePtr& inode, const Change& change);
  Result<void> Dispatch(Request& request, lease::BodyReader body);

  // Records bytes that the request leased or committed.
  void Note(const Request& request, RequestKind kind, InodeId inode, uint64_t bytes);
  // Sends the answer and ends the request.
  void Send(const Request& request, int error, const Body& body, std::span<const int> descriptors = {});
  void Fail(const Request& request, const Error& error);
  void SendDone(const Request& request, const Result<void>& result);
  void SendWhenDurable(const Request& request, const InodePtr& inode, bool durable);

  Result<std::shared_ptr<FileHandle>> FileOf(Request& request, const lease::Token& token, bool write);
  // A directory that will be changed needs a permit of its handle (EROFS).
  Result<InodePtr> DirectoryOf(Request& request, const lease::Token& token, bool change);
  Result<LeaseTickets::Opened> OpenedBy(Request& request, const lease::Token& token);
  Result<ReadLease> LeaseFile(const InodePtr& inode, uint64_t offset, uint64_t length, AnswerMemory* memory,
                              bool from_memory = false);
  Result<ReadLease> LeaseNamed(const InodePtr& directory, const Credentials& peer, std::string_view name,
                               AnswerMemory* memory);
  Result<void> CheckTrust(Request& request);
  Result<LeaseDevicesPtr> ReadersDevices(Request& request) EXCLUDES(mutex_);
  Result<LeaseDevicesPtr> WritersDevices(Request& request, uint64_t writer);
  Result<LeaseDevicesPtr> OpenDevices(bool write, uint64_t writer);

  Filesystem& filesystem_;
  LeaseTickets& tickets_;
  const Answered answered_;
  RequestCounter open_;
  std::atomic<uint64_t> answers_{0};  // bytes of checksums that all requests hold in memory
  std::atomic<uint64_t> writers_{0};  // number of writer ids assigned
  Mutex mutex_;
  LeaseDevicesPtr readers_ GUARDED_BY(mutex_);  // from the first read lease to Stop
};

}  // namespace weightfs
