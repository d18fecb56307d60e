// SPDX-License-Identifier: Apache-2.0
// A lane moves pieces: FileLane between memory and files, DeviceLane to and from the memory of GPUs.
#pragma once

#include <optional>

#include "client/error.h"

namespace weightfs::client {

struct Piece;

// Externally synchronised. A piece that was started must stay until Next has returned it.
class Lane {
 public:
  struct Ended {
    Piece* piece = nullptr;
    // An errno of 0 stands for the end of the file in a read; without `what` the errno says all.
    std::optional<IoError> error = {};
    bool withdrawn = false;  // not carried out, because its operation was stopped
  };

  virtual ~Lane() = default;
  // Begins the piece's step. Its failure, too, comes by Next.
  virtual void Start(Piece& piece) = 0;
  // A piece whose step has ended; none, as far as the lane has looked.
  virtual std::optional<Ended> Next() = 0;
  // True when every piece that was started has been returned by Next.
  virtual bool idle() const = 0;
};

}  // namespace weightfs::client
