// SPDX-License-Identifier: Apache-2.0
#include "s3/open_sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace weightfs::s3 {

void OpenSockets::Watch(CURL* easy) {
  curl_easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, &OnCreated);
  curl_easy_setopt(easy, CURLOPT_SOCKOPTDATA, this);
  curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, &OnClosed);
  curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, this);
}

void OpenSockets::Acknowledge() const {
  const int on = 1;
  for (const curl_socket_t socket : sockets_) {
    setsockopt(socket, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);  // a hint
  }
}

// The programs that this process starts must not keep its connections open.
int OpenSockets::OnCreated(void* self, curl_socket_t socket, curlsocktype) {
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  static_cast<OpenSockets*>(self)->sockets_.insert(socket);
  return CURL_SOCKOPT_OK;
}

int OpenSockets::OnClosed(void* self, curl_socket_t socket) {
  static_cast<OpenSockets*>(self)->sockets_.erase(socket);
  return close(socket);
}

}  // namespace weightfs::s3
