// SPDX-License-Identifier: Apache-2.0
// Whole tensors by the client library: past the mount, by leases of the store's blocks, and the same handle on the
// host's files; and thousands of small tensors in one commit.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bench/suite/groups.h"
#include "client/handle.h"

namespace weightfs::bench {
namespace {

using client::Handle;
using client::MemoryView;
using Samples = Result<std::vector<Sample>>;

constexpr unsigned kDepth = 32;  // that of the reference
constexpr uint64_t kSmallTensor = 64 * kKiB;
constexpr const char* kName = "tensor";
constexpr const char* kManyName = "tensors";

enum class Memory : unsigned char {
  kHuge,        // as that of the reference
  kUnaligned,   // begins 32 bytes into a page, as that of a Python object
  kSmallPages,  // of 4 KiB, as that of a program that asks for nothing special
};
struct Form {
  std::string_view read, write;
  Memory memory;
};
constexpr Form kForms[] = {{"direct-read", "direct-write", Memory::kHuge},
                           {"direct-read-unaligned", "direct-write-unaligned", Memory::kUnaligned},
                           {"direct-read-4k-pages", "direct-write-4k-pages", Memory::kSmallPages}};

// The handles, and the memory that they read into and write from.
class Tensors {
 public:
  static Result<std::shared_ptr<Tensors>> Create(Lab& lab) {
    auto tensors = std::make_shared<Tensors>(lab);
    ASSIGN_OR_RETURN(tensors->small_pages_, Pages::Create(lab.size(), Pages::Kind::kSmall));
    // What is read into it later is the same.
    std::memcpy(tensors->small_pages_.data(), lab.content().data, lab.size());
    ASSIGN_OR_RETURN(tensors->direct_, tensors->Open(client::Direct::kRequire));
    ASSIGN_OR_RETURN(tensors->plain_, tensors->Open(client::Direct::kNever));
    return tensors;
  }
  explicit Tensors(Lab& lab) : lab_(lab) {}

  Result<void> Read(const Place& place, const std::string& path, Memory memory) {
    const MemoryView view(std::span(Into(memory), lab_.size()));
    return Outcome(HandleOf(place).Read(path, view, {.interrupted = Cancelled()}));
  }
  Result<void> Write(const Place& place, const std::string& path, Memory memory) {
    const MemoryView view(std::span(From(memory), lab_.size()));
    return Outcome(HandleOf(place).Write(path, view, {.durable = true, .interrupted = Cancelled()}));
  }
  void Forget(Memory memory) { std::memset(Into(memory), 0, lab_.size()); }
  Result<void> Compare(const std::string& path, Memory memory) {
    if (std::memcmp(Into(memory), lab_.content().data, lab_.size()) == 0) return {};
    return Error{ErrorCode::kCorrupt, fmt::format("{}: holds wrong bytes", path)};
  }

  Result<void> SaveMany(const SmallFiles& files) {
    std::vector<client::NamedMemory> tensors;
    for (unsigned index = 0; index < files.count; ++index) {
      tensors.push_back({NameOf(index), MemoryView(std::span(BytesOf(files, index), files.size))});
    }
    return Outcome(direct_->SaveMany(files.directory, tensors));
  }
  Result<void> LoadMany(const SmallFiles& files) {
    std::vector<client::NamedMemory> tensors;
    for (unsigned index = 0; index < files.count; ++index) {
      tensors.push_back({NameOf(index), MemoryView(std::span(Into(Memory::kHuge) + index * files.size, files.size))});
    }
    auto loaded = direct_->LoadMany(files.directory, tensors);
    if (!loaded.has_value()) return Outcome(std::move(loaded).error());
    if (!loaded->empty()) return Outcome(loaded->front().error);
    return {};
  }
  Result<void> CompareMany(const SmallFiles& files) {
    for (unsigned index = 0; index < files.count; ++index) {
      if (std::memcmp(Into(Memory::kHuge) + index * files.size, BytesOf(files, index), files.size) != 0) {
        return Error{ErrorCode::kCorrupt,
                     fmt::format("{}/{}: was read with wrong bytes", files.directory, NameOf(index))};
      }
    }
    return {};
  }

  // Why there are no leases of the mount; empty where there are.
  std::string WhyNotDirect() {
    const std::string path = lab_.weightfs().Path(kName);
    const auto written = direct_->Write(path, MemoryView(std::span(From(Memory::kHuge), kMiB)));
    return written.has_value() ? "" : written.error().what;
  }

 private:
  Result<std::unique_ptr<Handle>> Open(client::Direct direct) {
    auto handle = Handle::Create({.queue_depth = kDepth, .overlap_events = true, .direct = direct});
    if (!handle.has_value()) return Error{ErrorCode::kIo, handle.error().what};
    return std::move(*handle);
  }
  Handle& HandleOf(const Place& place) { return place.is_weightfs() ? *direct_ : *plain_; }
  std::byte* Into(Memory memory) const {
    if (memory == Memory::kSmallPages) return small_pages_.data();
    return lab_.into() + (memory == Memory::kUnaligned ? Lab::kUnalignment : 0);
  }
  const std::byte* From(Memory memory) const {
    if (memory == Memory::kSmallPages) return small_pages_.data();
    return memory == Memory::kUnaligned ? lab_.unaligned().data : lab_.content().data;
  }
  client::Interrupted Cancelled() const {
    return [cancel = lab_.cancel()] { return IsSet(cancel); };
  }
  Result<void> Outcome(const client::IoResult<void>& result) const {
    if (result.has_value()) return {};
    if (IsSet(lab_.cancel())) return Interrupted();
    return Error{ErrorCode::kIo, result.error().what};
  }

  Lab& lab_;
  Pages small_pages_;
  std::unique_ptr<Handle> direct_, plain_;
};
using Shared = std::shared_ptr<Tensors>;

Case Read(Lab& lab, Place& place, Way way, const Form& form, const Shared& tensors) {
  return {way, {form.read}, [&lab, &place, form, tensors](const Turn& turn) -> Samples {
            ASSIGN_OR_RETURN(const std::string path, lab.BigFile(place));
            RETURN_IF_ERROR(place.MakeCold(path));
            if (turn.warm_up) tensors->Forget(form.memory);
            const Stopwatch watch(place);
            RETURN_IF_ERROR(tensors->Read(place, path, form.memory));
            const Sample sample = watch.Stop(lab.size(), lab.size());
            if (turn.warm_up) RETURN_IF_ERROR(tensors->Compare(path, form.memory));
            return One(sample);
          }};
}

// Over the same file again and again, as a program swaps a tensor out; and as the reference does.
Case Write(Lab& lab, Place& place, Way way, const Form& form, const Shared& tensors) {
  return {way, {form.write}, [&lab, &place, form, tensors](const Turn& turn) -> Samples {
            const std::string path = place.Path(kName);
            const Stopwatch watch(place);
            RETURN_IF_ERROR(tensors->Write(place, path, form.memory));
            const Sample sample = watch.Stop(lab.size(), lab.size());
            if (turn.warm_up) {
              RETURN_IF_ERROR(place.MakeCold(path));
              FileJob reading = lab.Job(path, kMiB, turn);
              if (form.memory == Memory::kUnaligned) reading.content = lab.unaligned();
              RETURN_IF_ERROR(ReadFile(reading));
            }
            return One(sample);
          }};
}

// Saved under new names, loaded, and removed outside the time. On the host each is a file of its own: written with an
// fsync, and read.
Case Many(Lab& lab, Place& place, Way way, const Shared& tensors) {
  return {way, {"save-many", "load-many"}, [&lab, &place, way, tensors](const Turn& turn) -> Samples {
            const unsigned most = lab.options().quick ? 200 : 4000;
            const SmallFiles files{.directory = place.Path(kManyName),
                                   .count = static_cast<unsigned>(std::min<uint64_t>(most, lab.size() / kSmallTensor)),
                                   .content = lab.content(),
                                   .size = kSmallTensor,
                                   .cancel = lab.cancel(),
                                   .durable = true};
            if (mkdir(files.directory.c_str(), 0755) != 0 && errno != EEXIST) {
              return SystemError(files.directory, "cannot be made");
            }
            std::vector<Sample> samples;
            const bool direct = way == Way::kWeightfs;
            const Stopwatch saving(place);
            RETURN_IF_ERROR(direct ? tensors->SaveMany(files) : CreateAll(files));
            samples.push_back(saving.Stop(files.count, files.count * files.size));
            for (unsigned index = 0; index < files.count; ++index) {
              RETURN_IF_ERROR(place.MakeCold(fmt::format("{}/{}", files.directory, NameOf(index))));
            }
            const Stopwatch loading(place);
            RETURN_IF_ERROR(direct ? tensors->LoadMany(files) : ReadAll(files));
            samples.push_back(loading.Stop(files.count, files.count * files.size));
            if (direct && turn.warm_up) RETURN_IF_ERROR(tensors->CompareMany(files));
            RETURN_IF_ERROR(RemoveAll(files));
            return samples;
          }};
}

void NotMeasured(Lab& lab, Way way, const std::string& why) {
  for (const RowSpec& row : Rows()) {
    if (row.group == "direct") lab.NotMeasured(row.id, way, why);
  }
}

Result<std::vector<Case>> Prepare(Lab& lab) {
  std::vector<Case> cases;
  ASSIGN_OR_RETURN(const Shared tensors, Tensors::Create(lab));
  AddRawRead(lab, &cases, kDirectReadReference);
  AddRawWrite(lab, &cases, kDirectWriteReference);
  const std::string why = tensors->WhyNotDirect();
  if (!why.empty()) NotMeasured(lab, Way::kWeightfs, why);
  for (const auto& [place, way] : {std::pair{&lab.weightfs(), Way::kWeightfs}, {&lab.host(), Way::kHost}}) {
    if (way == Way::kWeightfs && !why.empty()) continue;
    for (const Form& form : kForms) {
      cases.push_back(Read(lab, *place, way, form, tensors));
      cases.push_back(Write(lab, *place, way, form, tensors));
    }
    cases.push_back(Many(lab, *place, way, tensors));
  }
  AddFio(lab, &cases, "direct-read", {.mode = "read", .call = kMiB, .depth = kDepth, .aio_in_memory = true});
  AddFio(lab, &cases, "direct-write", {.mode = "write", .call = kMiB, .depth = kDepth, .aio_in_memory = true});
  return cases;
}

Result<void> Finish(Lab& lab) {
  for (Place* place : {&lab.weightfs(), &lab.host()}) {
    RETURN_IF_ERROR(place->Remove(place->Path(kName)));
    const std::string many = place->Path(kManyName);
    if (rmdir(many.c_str()) != 0 && errno != ENOENT) return SystemError(many, "cannot be removed");
  }
  return {};
}

}  // namespace

Group DirectGroup() { return {"direct", Prepare, Finish}; }

}  // namespace weightfs::bench
