// SPDX-License-Identifier: Apache-2.0
// What a crash may leave of a program's files: repeats the system calls of the program in a store, once for each call
// with a commit behind it, as a timer would start it; cuts the power after every event; and writes each different tree
// that the store then has into a directory. tests/harness/trace.py records the calls and runs this.
//
// Usage: trace_states CALLS FOLDER
//   CALLS   a file with one JSON object in each line; everything before {"call": "start"} is durable
//   FOLDER  receives a directory 0, 1, … for each state; the standard output has a line for each: its number, 1 if the
//           program had ended, and the number of the event before the cut
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "tests/support/one_processor.h"
#include "tests/support/test_store.h"
#include "tests/support/whole_directory.h"

namespace weightfs {
namespace {

using Json = nlohmann::json;
using Tree = std::map<std::string, std::string>;  // a directory's path ends in '/', a link's content is "-> TARGET"

[[noreturn]] void Fail(const std::string& what) {
  fmt::print(stderr, "trace_states: {}\n", what);
  std::exit(2);
}

template <typename T>
T Need(Result<T> result, const Json& call) {
  if (!result) Fail(call.dump().substr(0, 200) + ": " + ToString(result.error()));
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

TestStoreOptions Options() {
  TestStoreOptions options;
  options.device_size = ByteCount{64 * kMiB};
  options.store.memory = ByteCount{32 * kMiB};
  options.store.commit_interval = options.store.close_delay = std::chrono::hours(1);
  return options;
}

// Repeats the calls. A file is known by its path, whatever descriptor a program uses.
class Program {
 public:
  explicit Program(TestStore& store) : store_(store) {}

  void Call(const Json& call) {
    const std::string name = call["call"], path = call.value("path", "");
    if (name == "open") return Open(call, path);
    if (name == "write") return Write(call, path);
    if (name == "truncate") return Need(store_->files().Truncate(Opened(call, path), call["size"]), call);
    if (name == "allocate") return Allocate(call, path);
    if (name == "sync") return Need(store_->Sync(Opened(call, path)), call);
    if (name == "close") return Close(path);
    if (name == "mkdir") return Make(call, path, S_IFDIR | 0755, {});
    if (name == "symlink") return Make(call, path, S_IFLNK | 0777, call["target"].get<std::string>());
    const auto [parent, last] = Place(call, path);
    if (name == "unlink") return Need(store_->names().Unlink(parent, last), call);
    if (name == "rmdir") return Need(store_->names().RemoveDirectory(parent, last), call);
    const std::string to = call.value("to", "");
    const auto [new_parent, new_last] = Place(call, to);
    if (name == "link") {
      Need(store_->names().Link(Need(store_.Resolve(path), call), new_parent, new_last), call);
    } else if (name == "rename") {
      Need(store_->names().Rename(parent, last, new_parent, new_last, RenameMode::kReplace), call);
      Moved(path, to);
    } else {
      Fail("unknown call " + name);
    }
  }

  void CloseAll() {
    while (!open_.empty()) Close(open_.begin()->first);
  }

 private:
  struct Opening {
    InodePtr inode;
    std::vector<bool> writes;  // of each open
  };

  std::pair<InodeId, std::string> Place(const Json& call, const std::string& path) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return {kRootInode, path};
    return {Need(store_.Resolve(path.substr(0, slash)), call), path.substr(slash + 1)};
  }

  void Open(const Json& call, const std::string& path) {
    const bool writes = call["writes"];
    auto ino = store_.Resolve(path);
    if (!ino && call["creates"].get<bool>()) {
      const auto [parent, name] = Place(call, path);
      CreateRequest request;
      request.mode = S_IFREG | 0644;
      ino = Need(store_->names().Create(parent, name, request), call).ino;
    }
    Opening& opening = open_[path];
    opening.inode = Need(store_->OpenFile(Need(std::move(ino), call), call["truncates"], writes), call);
    opening.writes.push_back(writes);
  }

  InodePtr Opened(const Json& call, const std::string& path) {
    const auto found = open_.find(path);
    if (found != open_.end()) return found->second.inode;
    return Need(store_->inodes().Get(Need(store_.Resolve(path), call)), call);  // a directory
  }

  void Write(const Json& call, const std::string& path) {
    const InodePtr inode = Opened(call, path);
    std::string data;
    const std::string hex = call["data"];
    for (size_t at = 0; at < hex.size(); at += 2) data += static_cast<char>(std::stoi(hex.substr(at, 2), nullptr, 16));
    if (call.contains("at")) return Need(store_.WriteAt(inode, call["at"], data), call);
    Need(store_->files().Append(inode, AsBytes(data)), call);
  }

  void Allocate(const Json& call, const std::string& path) {
    const auto mode = call["keeps_size"].get<bool>() ? FallocateMode::kAllocateKeepSize : FallocateMode::kAllocate;
    Need(store_->files().Fallocate(Opened(call, path), mode, call["at"], call["size"]), call);
  }

  void Make(const Json& call, const std::string& path, uint32_t mode, const std::string& target) {
    const auto [parent, name] = Place(call, path);
    CreateRequest request;
    request.mode = mode;
    request.symlink = target;
    Need(store_->names().Create(parent, name, request), call);
  }

  void Close(const std::string& path) {
    const auto found = open_.find(path);
    if (found == open_.end()) return;  // a directory
    const auto reported = std::make_shared<std::atomic<uint64_t>>(0);
    store_->Flush(found->second.inode, reported.get(), [reported](const Result<void>&) {});
    store_->CloseFile(found->second.inode, 0, found->second.writes.back());
    found->second.writes.pop_back();
    if (found->second.writes.empty()) open_.erase(found);
  }

  void Moved(const std::string& from, const std::string& to) {
    std::map<std::string, Opening> moved;
    for (auto& [path, opening] : open_) {
      const bool below = path == from || path.starts_with(from + "/");
      moved[below ? to + path.substr(from.size()) : path] = std::move(opening);
    }
    open_ = std::move(moved);
  }

  TestStore& store_;
  std::map<std::string, Opening> open_;
};

void ReadTree(TestStore& store, InodeId directory, const std::string& prefix, Tree* tree) {
  for (const auto& entry : Need(ReadDirectory(store->names(), directory), prefix)) {
    if (entry.name == "." || entry.name == "..") continue;
    const std::string path = prefix + entry.name;
    if (S_ISDIR(entry.type)) {
      (*tree)[path + "/"];
      ReadTree(store, entry.ino, path + "/", tree);
    } else if (S_ISLNK(entry.type)) {
      (*tree)[path] = "-> " + Need(store->names().ReadLink(entry.ino), path);
    } else {
      (*tree)[path] = Need(store.ReadPath(path), path);
    }
  }
}

void WriteTree(const Tree& tree, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (const auto& [path, content] : tree) {
    if (path.ends_with('/')) {
      std::filesystem::create_directories(folder / path);
    } else if (content.starts_with("-> ")) {
      std::filesystem::create_symlink(content.substr(3), folder / path);
    } else {
      std::ofstream(folder / path, std::ios::binary) << content;
    }
  }
}

class States {
 public:
  explicit States(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // `committed`: the number of the call behind which everything is committed.
  void Add(const std::vector<Json>& calls, size_t committed) {
    TestStore store(Options());
    Program program(store);
    size_t begin = 0;
    for (size_t number = 0; number < calls.size(); ++number) {
      if (calls[number]["call"] == "start") {
        Need(store->SyncAll(), calls[number]);
        begin = store.journal().size();
      } else {
        program.Call(calls[number]);
      }
      if (number == committed) Need(store->SyncAll(), calls[number]);
    }
    const size_t ended = store.journal().size();
    program.CloseAll();
    Need(store->SyncAll(), "the end");
    for (size_t cut = begin; cut <= store.journal().size(); ++cut) {
      for (const double survival : {0.0, 0.5, 1.0}) {
        const CrashOptions crash{.seed = cut, .device_survival = survival, .kv_survival = 0};
        const CrashImage image = store.journal().ImageAt(cut, crash);
        if (!images_.emplace(image.Fingerprint(), cut >= ended).second) continue;
        TestStore after(image, Options());
        Need(Result<void>(after.opened()), "a crash");
        Tree tree;
        ReadTree(after, kRootInode, "", &tree);
        if (!seen_.emplace(tree, cut >= ended).second) continue;
        WriteTree(tree, folder_ / std::to_string(seen_.size() - 1));
        fmt::print("{} {} {}\n", seen_.size() - 1, cut >= ended ? 1 : 0, cut);
      }
    }
  }

 private:
  const std::filesystem::path folder_;
  std::set<std::pair<uint64_t, bool>> images_;  // fingerprints, with whether the program had ended
  std::set<std::pair<Tree, bool>> seen_;
};

}  // namespace
}  // namespace weightfs

int main(int argc, char** argv) {
  using namespace weightfs;
  if (argc != 3) Fail("usage: trace_states CALLS FOLDER");
  std::vector<Json> calls;
  std::ifstream file(argv[1]);
  for (std::string line; std::getline(file, line);) calls.push_back(Json::parse(line));
  if (calls.empty()) Fail(std::string(argv[1]) + " has no calls");
  spdlog::set_level(spdlog::level::off);
  const OneProcessor pinned;
  States states(argv[2]);
  const auto is_start = [](const Json& call) { return call["call"] == "start"; };
  const auto start = std::find_if(calls.begin(), calls.end(), is_start);
  if (start == calls.end()) Fail(std::string(argv[1]) + " has no call \"start\"");
  for (size_t committed = start - calls.begin(); committed <= calls.size(); ++committed) states.Add(calls, committed);
}
