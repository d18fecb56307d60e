// SPDX-License-Identifier: Apache-2.0
// A store on two devices beside one on a single device; each device gives the same few bytes a second.
#include <fmt/format.h>

#include "bench/suite/groups.h"
#include "bench/suite/throttled_devices.h"

namespace weightfs::bench {
namespace {

using Samples = Result<std::vector<Sample>>;

// A device that has been idle for a tenth of a second gets as much again at once, unthrottled (20 MB at our rate). Two
// devices get it twice, so for a short file they would look many times as fast as one. A lead-in uses it up.
constexpr uint64_t kLeadIn = kThrottledDevices * 32 * kMiB;
static_assert(kLeadIn > kThrottledDevices * kThrottledRate / 10);

// The stores, and below them their devices; taken away in that order.
class Stores {
 public:
  static Result<std::shared_ptr<Stores>> Create(Lab& lab) {
    auto stores = std::make_shared<Stores>(lab);
    ThrottledDevices::Options options;
    options.directory = lab.host().directory();
    options.count = 1 + kThrottledDevices;
    options.size = 2 * (stores->size_ + kLeadIn) + 256 * kMiB;
    options.rate = kThrottledRate;
    options.direct = !lab.in_memory();
    ASSIGN_OR_RETURN(stores->devices_, ThrottledDevices::Create(options, lab.scratch().keeper()));
    const auto& paths = stores->devices_->paths();
    lab.ShowProgress("devices: making stores");
    ASSIGN_OR_RETURN(stores->one_, stores->Mount("one", {paths[0]}));
    ASSIGN_OR_RETURN(stores->two_, stores->Mount("two", {paths[1], paths[2]}));
    return stores;
  }
  explicit Stores(Lab& lab) : lab_(lab), size_(lab.options().quick ? 32 * kMiB : 512 * kMiB) {}
  ~Stores() {
    for (Place* place : {&one_, &two_}) {
      const std::string mount = place->directory();
      *place = Place();
      if (!mount.empty()) (void)lab_.scratch().Unmount(mount);
    }
    devices_.reset();
    for (unsigned index = 0; index < 1 + kThrottledDevices; ++index) {
      (void)lab_.host().Remove(lab_.host().Path(fmt::format("device-{}", index)));
    }
  }
  Stores(const Stores&) = delete;
  Stores& operator=(const Stores&) = delete;

  Place& Of(Way way) { return way == Way::kOneDevice ? one_ : two_; }
  FileJob Job(Place& place, const char* name, const Turn& turn) const { return Job(place, name, turn, size_); }
  // Runs directly before the measured job, untimed.
  FileJob LeadIn(Place& place, const Turn& turn) const { return Job(place, "lead-in", turn, kLeadIn); }

 private:
  FileJob Job(Place& place, const char* name, const Turn& turn, uint64_t size) const {
    FileJob job = lab_.Job(place.Path(name), kMiB, turn);
    job.size = size;
    return job;
  }
  Result<Place> Mount(const std::string& name, std::vector<std::string> devices) {
    return lab_.scratch().Mount(
        {lab_.base() + "/" + name, 0, std::move(devices), lab_.options().mount_options, devices_->cgroup()});
  }
  Lab& lab_;
  const uint64_t size_;
  std::unique_ptr<ThrottledDevices> devices_;
  Place one_, two_;
};

Case Read(std::shared_ptr<Stores> stores, Way way) {
  return {way, {"devices-read"}, [stores, way](const Turn& turn) -> Samples {
            Place& place = stores->Of(way);
            const FileJob job = stores->Job(place, "read", turn), lead_in = stores->LeadIn(place, turn);
            RETURN_IF_ERROR(place.MakeCold(job.path));
            RETURN_IF_ERROR(place.MakeCold(lead_in.path));
            RETURN_IF_ERROR(ReadFile(lead_in));
            const Stopwatch watch(place);
            RETURN_IF_ERROR(ReadFile(job));
            return One(watch.Stop(job.size, job.size));
          }};
}

Case Write(std::shared_ptr<Stores> stores, Way way) {
  return {way, {"devices-write"}, [stores, way](const Turn& turn) -> Samples {
            Place& place = stores->Of(way);
            const FileJob job = stores->Job(place, "written", turn);
            RETURN_IF_ERROR(place.Remove(job.path));
            RETURN_IF_ERROR(WriteFile(stores->LeadIn(place, turn)));
            const Stopwatch watch(place);
            RETURN_IF_ERROR(WriteFile(job));
            return One(watch.Stop(job.size, job.size));
          }};
}

Result<std::vector<Case>> Prepare(Lab& lab) {
  std::vector<Case> cases;
  const auto leave_out = [&](const std::string& why) {
    for (const auto row : {"devices-read", "devices-write"}) lab.NotMeasured(row, Way::kWeightfs, why);
    return cases;
  };
  if (!lab.has_own_store()) return leave_out("needs stores of its own: give a directory outside of a mount");
  auto stores = Stores::Create(lab);
  if (!stores.has_value() && stores.error().code == ErrorCode::kNotSupported) return leave_out(stores.error().what);
  if (!stores.has_value()) return stores.error();
  for (const Way way : {Way::kWeightfs, Way::kOneDevice}) {
    Place& place = (*stores)->Of(way);
    RETURN_IF_ERROR(WriteFile((*stores)->LeadIn(place, {})));
    RETURN_IF_ERROR(WriteFile((*stores)->Job(place, "read", {})));
    cases.push_back(Read(*stores, way));
    cases.push_back(Write(*stores, way));
  }
  return cases;
}

}  // namespace

Group DeviceGroup() { return {"devices", Prepare}; }

}  // namespace weightfs::bench
