// SPDX-License-Identifier: Apache-2.0
// torch, safetensors, numpy, and handles as DeepNVMe's, each in a Python process that has imported them before.
#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bench/suite/clients_text.h"
#include "bench/suite/groups.h"
#include "bench/suite/process.h"

namespace weightfs::bench {
namespace {

using Json = nlohmann::json;
using Samples = Result<std::vector<Sample>>;

constexpr const char* kMemory = "/dev/shm";

// One library in one process.
class Client {
 public:
  static Result<std::shared_ptr<Client>> Start(Lab& lab) {
    ASSIGN_OR_RETURN(Worker worker, Worker::Start({FindPython(lab.options()), "-c", kClientsText}));
    return std::make_shared<Client>(lab, std::move(worker));
  }
  Client(Lab& lab, Worker worker) : lab_(lab), worker_(std::move(worker)) {}

  // "" and the version, or why the library cannot be used.
  Result<std::string> Prepare(std::string_view library) {
    ASSIGN_OR_RETURN(const Json answer, Ask({{"do", "prepare"}, {"library", library}, {"bytes", lab_.size()}}));
    return answer.value("missing", std::string());
  }

  Result<Sample> Do(const char* what, Place& place, const std::string& path, bool check) {
    const Stopwatch watch(place);
    ASSIGN_OR_RETURN(const Json answer, Ask({{"do", what}, {"path", path}, {"check", check}}));
    Sample sample = watch.Stop(0, lab_.size());
    sample.seconds = answer.value("seconds", 0.0);
    sample.client_cpu = answer.value("cpu", 0.0);
    sample.rate = static_cast<double>(lab_.size()) / std::max(sample.seconds, 1e-9);
    return sample;
  }

 private:
  static std::string FindPython(const SuiteOptions& options) {
    if (!options.python.empty()) return options.python;
    const char* environment = std::getenv("VIRTUAL_ENV");
    for (const std::string& candidate :
         {environment == nullptr ? std::string() : std::string(environment) + "/bin/python",
          std::string(".venv/bin/python")}) {
      if (!candidate.empty() && access(candidate.c_str(), X_OK) == 0) return candidate;
    }
    return "python3";
  }

  Result<Json> Ask(const Json& job) {
    ASSIGN_OR_RETURN(const std::string line, worker_.Ask(job.dump(), lab_.cancel()));
    Json answer = Json::parse(line, nullptr, false);
    if (answer.is_discarded() || !answer.is_object())
      return Error{ErrorCode::kIo, "the Python worker answers nonsense"};
    if (answer.contains("error")) return Error{ErrorCode::kIo, answer.value("error", "")};
    return answer;
  }

  Lab& lab_;
  Worker worker_;
};

struct Library {
  std::string_view name, save, load;
  const char* file;
};
constexpr Library kTorch{"torch", "torch-save", "torch-load", "model.pt"};
constexpr Library kSafetensors{"safetensors", "safetensors-save", "safetensors-load", "model.safetensors"};
constexpr Library kNumpy{"numpy", "numpy-save", "numpy-load", "array.npy"};

constexpr Library kDeepspeed{"deepspeed", "deepspeed-write", "deepspeed-read", "swapped.bin"};
constexpr Library kHandle{"weightfs", "aio-handle-write", "aio-handle-read", "tensor.bin"};

using Shared = std::shared_ptr<Client>;

Case Save(Lab& lab, Place& place, Way way, const Library& library, Shared client) {
  return {way, {library.save}, [&lab, &place, library, client](const Turn& turn) -> Samples {
            const std::string path = place.Path(fmt::format("saved-{}", library.file));
            RETURN_IF_ERROR(place.Remove(path));
            ASSIGN_OR_RETURN(Sample sample, client->Do("save", place, path, false));
            if (turn.warm_up) {
              RETURN_IF_ERROR(place.MakeCold(path));
              RETURN_IF_ERROR(client->Do("load", place, path, true));
            }
            RETURN_IF_ERROR(place.Remove(path));
            return One(sample);
          }};
}

Case Load(Place& place, Way way, const Library& library, Shared client) {
  return {way, {library.load}, [&place, library, client](const Turn& turn) -> Samples {
            const std::string path = place.Path(library.file);
            RETURN_IF_ERROR(place.MakeCold(path));
            ASSIGN_OR_RETURN(Sample sample, client->Do("load", place, path, turn.warm_up));
            return One(sample);
          }};
}

// A directory in memory with room for one file, or nothing where there is none.
Result<std::shared_ptr<Place>> MemoryPlace(Lab& lab) {
  struct statvfs status = {};
  const bool there = statvfs(kMemory, &status) == 0 && access(kMemory, W_OK) == 0;
  const uint64_t needed = lab.size() + lab.size() / 4;
  if (!there || uint64_t{status.f_bavail} * status.f_frsize < needed || KernelFigure(0, "MemAvailable") < 3 * needed) {
    return std::shared_ptr<Place>();
  }
  ASSIGN_OR_RETURN(std::string directory, lab.MemoryDirectory());
  ASSIGN_OR_RETURN(Place place, Place::Open({std::move(directory)}));
  return std::make_shared<Place>(std::move(place));
}

void NotMeasured(Lab& lab, const Library& library, const std::string& why) {
  for (const auto row : {library.save, library.load}) lab.NotMeasured(row, Way::kWeightfs, why);
}

Result<void> AddCases(Lab& lab, const Library& library, std::vector<Case>* cases) {
  auto client = Client::Start(lab);
  if (!client.has_value()) return client.error();
  const auto missing = (*client)->Prepare(library.name);
  if (!missing.has_value() && missing.error().code == ErrorCode::kShutdown) return missing.error();
  if (!missing.has_value() || !missing->empty()) {
    NotMeasured(lab, library,
                fmt::format("{}; --python names a Python that has {}",
                            missing.has_value() ? *missing : missing.error().what, library.name));
    return {};
  }
  for (const auto& [place, way] : {std::pair{&lab.weightfs(), Way::kWeightfs}, {&lab.host(), Way::kHost}}) {
    RETURN_IF_ERROR((*client)->Do("save", *place, place->Path(library.file), false));
    cases->push_back(Save(lab, *place, way, library, *client));
    cases->push_back(Load(*place, way, library, *client));
  }
  ASSIGN_OR_RETURN(const auto memory, MemoryPlace(lab));
  if (memory == nullptr) {
    lab.NotMeasured(library.load, Way::kMemory, "/dev/shm has no room for the file");
    return {};
  }
  RETURN_IF_ERROR((*client)->Do("save", *memory, memory->Path(library.file), false));
  Case load = Load(*memory, Way::kMemory, library, *client);
  load.run = [memory, run = std::move(load.run)](const Turn& turn) { return run(turn); };  // keeps the place
  cases->push_back(std::move(load));
  return {};
}

// Libraries that are compared with each other are measured in the same rounds.
Group GroupOf(std::string_view name, std::vector<Library> libraries) {
  const auto prepare = [libraries](Lab& lab) -> Result<std::vector<Case>> {
    std::vector<Case> cases;
    for (const Library& library : libraries) RETURN_IF_ERROR(AddCases(lab, library, &cases));
    return cases;
  };
  const auto finish = [libraries](Lab& lab) -> Result<void> {
    for (const Library& library : libraries) {
      for (Place* place : {&lab.weightfs(), &lab.host()}) RETURN_IF_ERROR(place->Remove(place->Path(library.file)));
    }
    return lab.EmptyMemoryDirectory();
  };
  return {name, prepare, finish};
}

}  // namespace

Group TorchGroup() { return GroupOf("torch", {kTorch}); }
Group SafetensorsGroup() { return GroupOf("safetensors", {kSafetensors}); }
Group NumpyGroup() { return GroupOf("numpy", {kNumpy}); }
Group HandlesGroup() { return GroupOf("handles", {kDeepspeed, kHandle}); }

}  // namespace weightfs::bench
