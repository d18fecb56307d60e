// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/scheduled_clients.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

namespace weightfs {
namespace {

using Action = ConcurrentHistory::Action;
using Kind = ClientStep::Kind;
constexpr size_t kCellSize = ConcurrentHistory::kCellSize, kCells = ConcurrentHistory::kCells;

constexpr std::array<std::string_view, ClientStep::kKinds> kKindNames = {
    "save",        "write",      "read",      "sync", "truncate", "punch",  "unlink", "link",     "move",  "replace",
    "write lease", "read lease", "save many", "mark", "publish",  "recall", "forget", "sync all", "pause",
};
// Of a hundred steps.
constexpr std::array<int, ClientStep::kKinds> kWeights = {14, 12, 10, 8, 5, 4, 9, 5, 6, 6, 5, 4, 2, 5, 6, 4, 2, 2, 2};

constexpr std::string_view kMark = "user.mark";

// Its attribute, or 0; an error: it has no inode any more, or cannot be read.
Result<uint64_t> ReadMark(TestStore& store, InodeId ino) {
  const auto mark = store->names().GetExtendedAttribute(ino, kMark);
  if (!mark) return mark.error().code == ErrorCode::kNoAttribute ? Result<uint64_t>(0) : mark.error();
  return std::stoull(*mark);
}

Result<uint64_t> ReadPublished(TestStore& store) {
  ASSIGN_OR_RETURN(const InodeId directory, store.Resolve(ScheduledClient::kPublishedDirectory));
  const auto record = store->names().GetPublication(directory);
  if (!record) return record.error().code == ErrorCode::kNoAttribute ? Result<uint64_t>(0) : record.error();
  return 1;
}

Result<uint64_t> ReadRegister(TestStore& store, const std::string& name) {
  return name == ConcurrentHistory::kPublished ? ReadPublished(store)
                                               : ReadMark(store, InodeId{std::stoull(name.substr(1))});
}

}  // namespace

std::string ToText(const ClientStep& step) {
  return fmt::format("client {}: {} {} {} {}", step.client, kKindNames[static_cast<size_t>(step.kind)], step.a, step.b,
                     step.c);
}

std::vector<ClientStep> RandomSteps(uint64_t seed) {
  std::mt19937_64 random(seed);
  const size_t clients = 2 + random() % (kScheduledClients - 1);
  const size_t count = clients * (random() % 16 == 0 ? 40 : 3 + random() % 10);
  std::discrete_distribution<size_t> kind(kWeights.begin(), kWeights.end());
  std::vector<ClientStep> steps;
  for (size_t index = 0; index < count; ++index) {
    const auto number = [&] { return static_cast<uint32_t>(random() % 100); };
    ClientStep step{random() % clients, static_cast<Kind>(kind(random)), 0, 0, 0};
    step.a = number();
    step.b = number();
    step.c = number();
    steps.push_back(step);
  }
  return steps;
}

const std::vector<std::string>& ScheduledClient::SharedNames() {
  static const std::vector<std::string> names = {"n0", "n1", "d/n2", "e/n3"};
  return names;
}

void ScheduledClient::Run(const std::vector<ClientStep>& steps) {
  for (const ClientStep& step : steps) {
    if (step.client != number_) continue;
    if (store_->read_only() || !complaint_.empty()) return;
    Take(step);
    if (conditions_.forgets) Forget();
  }
}

void ScheduledClient::Take(const ClientStep& step) {
  switch (step.kind) {
    case Kind::kSave: return Save(step);
    case Kind::kUnlink: return Unlink(step);
    case Kind::kLink: return Link(step);
    case Kind::kMove: return Move(step);
    case Kind::kReplace: return Replace(step);
    case Kind::kWriteLease: return WriteLease(step);
    case Kind::kSaveMany: return SaveMany(step);
    case Kind::kMark: return Mark(step);
    case Kind::kPublish: return Publish(step);
    case Kind::kRecall: return Recall();
    case Kind::kForget: return Forget();
    case Kind::kTruncate:
    case Kind::kPunch: return ChangeRange(step);
    case Kind::kPause: return std::this_thread::sleep_for(std::chrono::milliseconds(step.a));
    case Kind::kSyncAll: {
      const Action action = history_.Begin();
      if (Finish(action, store_->SyncAll())) history_.Sync(action, std::nullopt);
      return;
    }
    case Kind::kWrite:
    case Kind::kRead:
    case Kind::kReadLease:
    case Kind::kSync: break;
  }
  const bool writes = step.kind == Kind::kWrite;
  const Opened opened = Open(SharedName(step.a), writes);
  if (opened.inode == nullptr) return;
  if (writes) {
    const size_t first = step.b % (kCells - 6);
    if (Write(opened, first, 1 + step.c % 6) && step.c % 4 == 0) Sync(opened);
  } else if (step.kind == Kind::kSync) {
    Sync(opened);
  } else {
    CheckBytes(opened, step.kind == Kind::kReadLease);
  }
  Close(opened);
}

ScheduledClient::Place ScheduledClient::PlaceOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {kRootInode, path};
  const auto directory = store_.Resolve(path.substr(0, slash));
  return {directory ? *directory : InodeId{0}, path.substr(slash + 1)};
}

std::string ScheduledClient::NewName() { return fmt::format("d/p{}-{}", number_, ++names_); }

void ScheduledClient::Complain(std::string text) {
  if (complaint_.empty()) complaint_ = std::move(text);
}

bool ScheduledClient::Finish(Action action, const Result<void>& result) {
  if (result) {
    history_.End(action);
    return true;
  }
  const ErrorCode code = result.error().code;
  const bool raced = code == ErrorCode::kNotFound || code == ErrorCode::kExists || code == ErrorCode::kStale;
  if (raced) {
    history_.Cancel(action);
  } else if (code == ErrorCode::kPermission) {
    history_.Cancel(action);
    if (std::string wrong = history_.CheckRefused(action); !wrong.empty()) Complain("refused: " + std::move(wrong));
  } else if (conditions_.faults) {
    history_.Fail(action);
  } else if (code != ErrorCode::kNoSpace || !conditions_.full) {
    Complain(fmt::format("action {}: {}", action, weightfs::ToString(result.error())));
  }
  return false;
}

std::optional<InodeId> ScheduledClient::Lookup(const std::string& path) {
  const Place place = PlaceOf(path);
  const Action read = history_.Begin();
  const auto found = store_->names().Lookup(place.directory, place.name);
  if (!found && found.error().code != ErrorCode::kNotFound) {
    Finish(read, found.error());
    return std::nullopt;
  }
  if (found) {
    store_->inodes().AddLookups(found->ino, 1);
    known_.push_back(found->ino);
  }
  const InodeId ino = found ? found->ino : InodeId{0};
  if (std::string wrong = history_.CheckName(read, path, ino); !wrong.empty()) Complain(std::move(wrong));
  if (!found) return std::nullopt;
  return ino;
}

ScheduledClient::Opened ScheduledClient::Open(const std::string& path, bool writes) {
  const auto ino = Lookup(path);
  if (!ino) return {};
  if (writes) history_.AddWriter(*ino, /*replaces=*/false);
  const Action action = history_.Begin();
  auto inode = store_->OpenFile(*ino, false, writes);
  if (!inode) {
    Finish(action, inode.error());
    if (writes) history_.RemoveWriter(*ino);
    return {};
  }
  recallable_ = *ino;
  return {*inode, *ino, writes};
}

void ScheduledClient::Close(const Opened& opened) {
  store_->CloseFile(opened.inode, 0, opened.writes);
  if (opened.writes) history_.RemoveWriter(opened.ino);
}

void ScheduledClient::CheckBytes(const Opened& opened, bool leased) {
  const Action read = history_.Begin();
  const size_t most = (kCells + 1) * kCellSize;
  const auto found = leased ? store_.ReadDirect(opened.inode, 0, most) : store_.ReadAt(opened.inode, 0, most);
  if (!found) {
    // A lease of a range that others write all the time.
    if (!leased || found.error().code != ErrorCode::kAgain) Finish(read, found.error());
  } else if (std::string wrong = history_.CheckContent(read, opened.ino, *found); !wrong.empty()) {
    Complain(std::move(wrong));
  }
}

bool ScheduledClient::Write(const Opened& opened, size_t first, size_t count) {
  const Action action = history_.Begin();
  history_.SetCells(action, opened.ino, first, count);
  const std::string bytes = ConcurrentHistory::Bytes(action, first, count);
  return Finish(action, store_.WriteAt(opened.inode, first * kCellSize, bytes));
}

void ScheduledClient::Sync(const Opened& opened) {
  const Action action = history_.Begin();
  if (Finish(action, store_->Sync(opened.inode))) history_.Sync(action, opened.ino);
}

// `from` is a name that no other client uses.
void ScheduledClient::Rename(const std::string& from, const std::string& to, InodeId ino) {
  const Place old_place = PlaceOf(from), new_place = PlaceOf(to);
  const Action action = history_.Begin();
  history_.SetName(action, from, InodeId{0});
  history_.SetName(action, to, ino);
  history_.Publish(action, ino);
  const auto done = store_->names().Rename(old_place.directory, old_place.name, new_place.directory, new_place.name,
                                           RenameMode::kReplace);
  // Two names of one file: a rename does nothing.
  if (done && store_->names().Lookup(old_place.directory, old_place.name)) return history_.Cancel(action);
  if (Finish(action, done)) CheckChanged(action, to);
}

void ScheduledClient::CheckChanged(Action action, const std::string& path) {
  if (!path.starts_with(kPublishedDirectory)) return;
  if (std::string wrong = history_.CheckChanged(action); !wrong.empty()) Complain("changed: " + std::move(wrong));
}

void ScheduledClient::Save(const ClientStep& step) {
  const std::string name = NewName();
  const Place place = PlaceOf(name);
  CreateRequest request;
  request.mode = S_IFREG | 0644;
  const Action action = history_.Begin();
  const auto created = store_->names().Create(place.directory, place.name, request);
  if (!created) return static_cast<void>(Finish(action, created.error()));
  history_.SetName(action, name, created->ino);
  history_.End(action);
  const Opened opened = Open(name, true);
  if (opened.inode == nullptr) return;
  const bool written = step.b % 16 == 0 || Write(opened, 0, step.b % 16);
  if (written && step.c % 3 == 0) Sync(opened);
  Close(opened);
  if (written) Rename(name, SharedName(step.a), opened.ino);
}

void ScheduledClient::Unlink(const ClientStep& step) {
  const std::string path = SharedName(step.a);
  const Place place = PlaceOf(path);
  const Action action = history_.Begin();
  history_.SetName(action, path, InodeId{0});
  const auto done = store_->names().Unlink(place.directory, place.name);
  if (Finish(action, done)) CheckChanged(action, path);
  if (done || done.error().code != ErrorCode::kNotFound) return;
  if (std::string wrong = history_.CheckName(action, path, InodeId{0}); !wrong.empty()) Complain(std::move(wrong));
}

void ScheduledClient::Link(const ClientStep& step) {
  const auto ino = Lookup(SharedName(step.a));
  if (!ino) return;
  const std::string path = SharedName(step.b);
  const Place place = PlaceOf(path);
  const Action action = history_.Begin();
  history_.SetName(action, path, *ino);
  history_.Publish(action, *ino);
  const auto linked = store_->names().Link(*ino, place.directory, place.name);
  if (Finish(action, linked ? Result<void>() : linked.error())) CheckChanged(action, path);
}

// By a name of its own, which shows what has moved.
void ScheduledClient::Move(const ClientStep& step) {
  const std::string from = SharedName(step.a), name = NewName();
  const Place old_place = PlaceOf(from), new_place = PlaceOf(name);
  const Action action = history_.Begin();
  history_.SetName(action, from, InodeId{0});
  const auto moved = store_->names().Rename(old_place.directory, old_place.name, new_place.directory, new_place.name,
                                            RenameMode::kReplace);
  if (moved || conditions_.faults) {
    const auto found = store_->names().Lookup(new_place.directory, new_place.name);
    if (found) {
      history_.SetName(action, name, found->ino);
      history_.Publish(action, found->ino);
    } else if (moved && !conditions_.faults) {
      Complain(fmt::format("action {}: {} is missing after a rename", action, name));
    }
  }
  if (!Finish(action, moved)) return;
  CheckChanged(action, from);
  if (const auto ino = Lookup(name)) Rename(name, SharedName(step.b), *ino);
}

void ScheduledClient::Replace(const ClientStep& step) {
  const auto ino = Lookup(SharedName(step.a));
  if (!ino) return;
  history_.AddWriter(*ino, /*replaces=*/true);
  const Action action = history_.Begin();
  history_.ClearCells(action, *ino, 0, kCells);
  const auto inode = store_->OpenFile(*ino, true, true);
  if (!Finish(action, inode ? Result<void>() : inode.error())) return history_.RemoveWriter(*ino);
  const Opened opened{*inode, *ino, true};
  if (Write(opened, 0, 1 + step.b % 12) && step.c % 3 == 0) Sync(opened);
  Close(opened);
}

void ScheduledClient::WriteLease(const ClientStep& step) {
  const Opened opened = Open(SharedName(step.a), true);
  if (opened.inode == nullptr) return;
  constexpr size_t kCellsOfBlock = kBlockSize / kCellSize;
  const size_t first = step.b % 8 * kCellsOfBlock, count = (1 + step.c % 4) * kCellsOfBlock;
  const Action action = history_.Begin();
  history_.SetCells(action, opened.ino, first, count);
  const std::string bytes = ConcurrentHistory::Bytes(action, first, count);
  if (Finish(action, store_.WriteDirect(opened.inode, first * kCellSize, bytes, std::nullopt)) && step.c % 5 == 0) {
    Sync(opened);
  }
  Close(opened);
}

void ScheduledClient::SaveMany(const ClientStep& step) {
  const std::array<std::string, 2> paths = {NewName(), NewName()};
  const Action action = history_.Begin();
  std::vector<TestStore::NamedFile> files;
  const size_t cells = 2 * (step.b % 4);
  for (const std::string& path : paths) {
    files.push_back({path.substr(2), ConcurrentHistory::Bytes(action, 0, cells)});
  }
  if (!Finish(action, store_.CreateMany("d", files))) return;
  std::vector<InodeId> inos;
  for (const std::string& path : paths) {
    const auto found = store_.Resolve(path);
    if (!found) {
      if (!conditions_.faults) Complain(path + " is missing after its creation");
      return;
    }
    history_.SetName(action, path, *found);
    history_.SetCells(action, *found, 0, cells);
    inos.push_back(*found);
  }
  Rename(paths[0], SharedName(step.a), inos[0]);
}

void ScheduledClient::Mark(const ClientStep& step) {
  const auto ino = Lookup(SharedName(step.a));
  if (!ino) return;
  const std::string name = ConcurrentHistory::AttributeOf(*ino);
  const Action action = history_.Begin();
  history_.SetName(action, name, InodeId{action});
  const auto marked = store_->names().SetExtendedAttribute(*ino, kMark, std::to_string(action), AttributeWrite::kAny);
  if (Finish(action, marked)) CheckRegister(name);
}

void ScheduledClient::Publish(const ClientStep& step) {
  const auto directory = store_.Resolve(kPublishedDirectory);
  if (!directory) return;
  const bool publishes = step.b % 2 == 0;
  const Action action = history_.Begin();
  history_.SetName(action, ConcurrentHistory::kPublished, InodeId{publishes ? 1U : 0U});
  history_.MayRefuse(action);
  Namespace::PublishCall call(*directory, {}, std::nullopt);
  std::string failed;
  Result<void> done = ErrorCode::kAgain;
  while (!done && done.error().code == ErrorCode::kAgain) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto published = publishes ? store_->PublishTree(&call) : Result<PublicationRecord>(PublicationRecord());
    done = !publishes ? store_->UnpublishTree(*directory, {}, &failed)
                      : published ? Result<void>() : published.error();
  }
  // Somebody writes, publishes, or has another name of a file; or there is no publication to revert.
  constexpr std::array kRefusals = {ErrorCode{ETXTBSY}, ErrorCode::kBusy, ErrorCode::kTooManyLinks,
                                    ErrorCode::kNoAttribute};
  if (!done && std::ranges::find(kRefusals, done.error().code) != kRefusals.end()) {
    history_.End(action);
    return history_.Cancel(action);
  }
  if (Finish(action, done)) CheckRegister(ConcurrentHistory::kPublished);
}

// The attribute of an inode, or the publication.
void ScheduledClient::CheckRegister(const std::string& name) {
  const Action read = history_.Begin();
  const auto value = ReadRegister(store_, name);
  if (!value) return static_cast<void>(Finish(read, value.error()));
  if (std::string wrong = history_.CheckName(read, name, InodeId{*value}); !wrong.empty()) Complain(std::move(wrong));
}

void ScheduledClient::Recall() {
  if (!recallable_) return;
  const Action action = history_.Begin();
  const auto inode = store_->OpenFile(*recallable_, false, false);
  if (!inode) {
    if (!conditions_.faults) {
      Complain(fmt::format("action {}: inode {} is known but cannot be opened: {}", action, recallable_->value,
                           weightfs::ToString(inode.error())));
    }
    return;
  }
  const Opened opened{*inode, *recallable_, false};
  CheckBytes(opened, false);
  Close(opened);
}

void ScheduledClient::Forget() {
  for (const InodeId ino : std::exchange(known_, {})) store_->names().Forget(ino, 1);
  recallable_.reset();
}

void ScheduledClient::ChangeRange(const ClientStep& step) {
  const Opened opened = Open(SharedName(step.a), true);
  if (opened.inode == nullptr) return;
  const bool truncates = step.kind == Kind::kTruncate;
  const size_t first = step.b % (kCells - 4), count = truncates ? kCells - first : 1 + step.c % 4;
  const Action action = history_.Begin();
  history_.ClearCells(action, opened.ino, first, count);
  const uint64_t offset = first * kCellSize;
  Finish(action, truncates ? store_->files().Truncate(opened.inode, offset)
                           : store_->files().Fallocate(opened.inode, FallocateMode::kPunchHole, offset,
                                                       count * kCellSize));
  Close(opened);
}

void ScheduledClient::CheckAll() {
  for (const std::string& name : history_.Names()) {
    if (!ConcurrentHistory::IsFile(name)) {
      CheckRegister(name);
      continue;
    }
    const Opened opened = Open(name, false);
    if (opened.inode == nullptr) continue;
    CheckBytes(opened, false);
    Close(opened);
  }
}

ConcurrentHistory::Tree ScheduledClient::ReadTree(TestStore& store, const std::set<std::string>& names,
                                                  std::string* error) {
  ConcurrentHistory::Tree tree;
  for (const std::string& name : names) {
    if (!ConcurrentHistory::IsFile(name)) {
      const auto value = ReadRegister(store, name);
      if (value) {
        tree.names[name] = InodeId{*value};
      } else if (value.error().code == ErrorCode::kNotFound || value.error().code == ErrorCode::kStale) {
        tree.unknown.insert(name);
      } else {
        *error = fmt::format("{}: {}", name, weightfs::ToString(value.error()));
      }
      continue;
    }
    const auto ino = store.Resolve(name);
    if (!ino && ino.error().code == ErrorCode::kNotFound) continue;
    const auto content = ino ? store.ReadPath(name) : Result<std::string>(ino.error());
    if (!content) {
      *error = fmt::format("{}: {}", name, weightfs::ToString(content.error()));
      break;
    }
    tree.names[name] = *ino;
    tree.content[*ino] = *content;
  }
  return tree;
}

}  // namespace weightfs
