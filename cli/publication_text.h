// SPDX-License-Identifier: Apache-2.0
// Publications in the output of commands.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "client/publication.h"

namespace weightfs::cli {

// Members: directory, version, id, published (UTC), files, bytes.
nlohmann::ordered_json PublicationJson(const std::string& directory, const client::Publication& publication);

}  // namespace weightfs::cli
