// SPDX-License-Identifier: Apache-2.0
// The sockets that libcurl has open for a client.
#pragma once

#include <curl/curl.h>

#include <set>

namespace weightfs::s3 {

// Not thread-safe. Must outlive the multi handle that owns the connections.
class OpenSockets {
 public:
  // Makes libcurl report the sockets that it creates for this transfer.
  void Watch(CURL* easy);

  // Acknowledges what has arrived at all of them; libcurl does not tell which one serves a transfer. A service with
  // Nagle's algorithm (Ceph's gateway, by default) sends a short body only after the acknowledgement of the headers,
  // which the kernel would delay by 40 ms.
  void Acknowledge() const;

 private:
  static int OnCreated(void* self, curl_socket_t socket, curlsocktype);
  static int OnClosed(void* self, curl_socket_t socket);

  std::set<curl_socket_t> sockets_;
};

}  // namespace weightfs::s3
