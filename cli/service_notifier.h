// SPDX-License-Identifier: Apache-2.0
// The protocol of sd_notify(3), by which a service of Type=notify reports its state to systemd.
#pragma once

#include <memory>
#include <string_view>
#include <thread>

#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::cli {

// Externally synchronized. Reports that cannot be sent are lost: the mount does not depend on them.
class ServiceNotifier {
 public:
  // Reports to the datagram socket `address`, which is a path, or an abstract name after '@'; an empty address means
  // nobody. Returns an error, as a complete message, if the address is neither.
  static Result<std::unique_ptr<ServiceNotifier>> Connect(std::string_view address);
  ~ServiceNotifier();
  ServiceNotifier(const ServiceNotifier&) = delete;
  ServiceNotifier& operator=(const ServiceNotifier&) = delete;

  // The service works. `status` is one line for `systemctl status`.
  void Ready(std::string_view status);
  // The service ends. Until this object is destroyed, asks repeatedly for more time than TimeoutStopSec=, because the
  // data of a large mount takes minutes to write.
  void Stopping(std::string_view status);

 private:
  ServiceNotifier() = default;
  void Send(std::string_view message) const;

  UniqueFd socket_;  // connected
  UniqueFd wake_;    // eventfd by which the destructor stops the thread
  std::thread extender_;
};

}  // namespace weightfs::cli
