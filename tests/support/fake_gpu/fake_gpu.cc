#include "tests/support/fake_gpu/fake_gpu.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

// CUDA's and cuFile's numbers.
constexpr int kInvalidValue = 1;
constexpr int kNoDevice = 100;
constexpr int kInvalidContext = 201;
constexpr int kNotReady = 600;
constexpr int kMemoryType = 2;
constexpr int kDeviceOrdinal = 9;
constexpr int kCufileInvalidValue = 5022;
constexpr int kCufilePinnedAlready = 5023;
constexpr int kCufileNotPinned = 5024;
constexpr int kCufileVersion = 1200;
constexpr int kCudaVersion = 13000;

constexpr uint64_t kPage = 4096;

struct Allocation {
  size_t size = 0;
  size_t mapped = 0;
  int ordinal = 0;
  std::byte* hidden = nullptr;
};

// Carries out what is put into it, in order, on a thread of its own, which ends with the last reference.
class Stream {
 public:
  Stream() : state_(std::make_shared<State>()) {
    std::thread([state = state_] { Run(*state); }).detach();
  }
  ~Stream() {
    const std::lock_guard lock(state_->mutex);
    state_->ended = true;
    state_->changed.notify_all();
  }

  // How far the stream is when all that is in it now is done.
  uint64_t end() {
    const std::lock_guard lock(state_->mutex);
    return state_->put;
  }
  void Put(std::function<int()> work) {
    const std::lock_guard lock(state_->mutex);
    state_->work.push_back(std::move(work));
    ++state_->put;
    state_->changed.notify_all();
  }
  bool Reached(uint64_t point) {
    const std::lock_guard lock(state_->mutex);
    return state_->done >= point;
  }
  void Wait(uint64_t point) {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->done >= point; });
  }
  // Of the work so far: the first that failed.
  int status() {
    const std::lock_guard lock(state_->mutex);
    return state_->status;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<int()>> work;
    uint64_t put = 0;
    uint64_t done = 0;
    int status = 0;
    bool ended = false;
  };
  static void Run(State& state) {
    std::unique_lock lock(state.mutex);
    for (;;) {
      state.changed.wait(lock, [&] { return !state.work.empty() || state.ended; });
      if (state.work.empty()) return;
      const auto work = std::move(state.work.front());
      state.work.pop_front();
      lock.unlock();
      const int status = work();
      lock.lock();
      if (state.status == 0) state.status = status;
      ++state.done;
      state.changed.notify_all();
    }
  }
  const std::shared_ptr<State> state_;
};

struct Event {
  std::shared_ptr<Stream> stream;
  uint64_t point = 0;
};
struct Context {
  int ordinal;
};
struct File {
  int descriptor;
};

struct Failure {
  int after = 0;
  int times = 0;
  int status = 0;
};

constexpr int kDevices = 2;

struct Fake {
  std::mutex mutex;
  std::condition_variable released;
  std::map<uint64_t, Allocation> allocations;
  std::map<std::string, Failure> failures;
  Failure copy_failure;
  std::map<uint64_t, size_t> locked;  // host memory
  std::map<uint64_t, size_t> pinned;
  std::map<Stream*, std::shared_ptr<Stream>> streams;
  std::set<Event*> events;
  std::set<File*> files;
  Context contexts[kDevices]{{0}, {1}};
  std::shared_ptr<Stream> default_streams[kDevices];
  int retained = 0;
  int devices = 1;
  unsigned kinds = 0;
  size_t limit = 0;
  bool held = false;
  uint64_t copies = 0;  // under way
  FakeGpuCounts counts{};

  Allocation* FindLocked(uint64_t address, size_t size, uint64_t* begin) {
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin()) return nullptr;
    auto& [start, allocation] = *std::prev(after);
    if (address - start > allocation.size || size > allocation.size - (address - start)) return nullptr;
    *begin = start;
    return &allocation;
  }
  // The hidden place; null, and a mistake, when it is not all in one allocation.
  std::byte* Hidden(uint64_t address, size_t size) {
    const std::lock_guard lock(mutex);
    uint64_t begin = 0;
    Allocation* allocation = FindLocked(address, size, &begin);
    if (allocation == nullptr) {
      ++counts.mistakes;
      return nullptr;
    }
    return allocation->hidden + (address - begin);
  }
  static bool Take(Failure& failure) {
    if (failure.times == 0) return false;
    if (failure.after > 0) {
      --failure.after;
      return false;
    }
    --failure.times;
    return true;
  }
  // What the function has to answer; 0: nothing special.
  int Wish(const char* function) {
    const std::lock_guard lock(mutex);
    const auto found = failures.find(function);
    return found != failures.end() && Take(found->second) ? found->second.status : 0;
  }
  void Mistake() {
    const std::lock_guard lock(mutex);
    ++counts.mistakes;
  }
};

Fake& TheFake() {
  // Never destroyed: threads of streams may outlive main.
  static auto* fake = new Fake;
  return *fake;
}

thread_local std::vector<Context*> stack;

// The wish, or invalid context, or 0.
int Enter(const char* function) {
  if (stack.empty()) {
    TheFake().Mistake();
    return kInvalidContext;
  }
  return TheFake().Wish(function);
}

std::shared_ptr<Stream> StreamOf(Stream* handle) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  // 1 and 2 are CUDA's names of the default stream, the older and that of each thread.
  if (reinterpret_cast<uintptr_t>(handle) <= 2) {
    auto& stream = fake.default_streams[stack.back()->ordinal];
    if (stream == nullptr) stream = std::make_shared<Stream>();
    return stream;
  }
  const auto found = fake.streams.find(handle);
  if (found != fake.streams.end()) return found->second;
  ++fake.counts.mistakes;
  return nullptr;
}

bool Known(Event* event) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  if (fake.events.count(event) != 0) return true;
  ++fake.counts.mistakes;
  return false;
}

int Copy(const char* function, bool to_gpu, uint64_t address, std::byte* host, size_t size, Stream* handle) {
  Fake& fake = TheFake();
  if (const int status = Enter(function); status != 0) return status;
  std::byte* hidden = fake.Hidden(address, size);
  const auto stream = StreamOf(handle);
  if (hidden == nullptr || stream == nullptr) return kInvalidValue;
  {
    const std::lock_guard lock(fake.mutex);
    ++(to_gpu ? fake.counts.copies_to_gpu : fake.counts.copies_to_host);
    const auto begin = reinterpret_cast<uint64_t>(host);
    const auto after = fake.locked.upper_bound(begin);
    const bool locked =
        after != fake.locked.begin() && begin + size <= std::prev(after)->first + std::prev(after)->second;
    if (!locked) ++fake.counts.copies_of_unlocked_memory;
    fake.counts.most_copies_at_once = std::max(fake.counts.most_copies_at_once, ++fake.copies);
  }
  stream->Put([&fake, to_gpu, hidden, host, size] {
    bool fails = false;
    {
      const std::lock_guard lock(fake.mutex);
      fails = Fake::Take(fake.copy_failure);
    }
    if (!fails) std::memcpy(to_gpu ? hidden : host, to_gpu ? host : hidden, size);
    const std::lock_guard lock(fake.mutex);
    --fake.copies;
    return fails ? fake.copy_failure.status : 0;
  });
  return 0;
}

}  // namespace

// --- CUDA's driver ---

extern "C" {

int cuInit(unsigned) { return TheFake().Wish("cuInit"); }
int cuDriverGetVersion(int* version) {
  *version = kCudaVersion;
  return TheFake().Wish("cuDriverGetVersion");
}
int cuDeviceGetCount(int* count) {
  *count = TheFake().devices;
  return TheFake().Wish("cuDeviceGetCount");
}
int cuDeviceGet(int* handle, int ordinal) {
  *handle = ordinal;
  return ordinal < TheFake().devices ? TheFake().Wish("cuDeviceGet") : kNoDevice;
}
int cuDeviceGetName(char* name, int size, int handle) {
  std::snprintf(name, static_cast<size_t>(size), "Fake GPU %d", handle);
  return TheFake().Wish("cuDeviceGetName");
}
int cuDevicePrimaryCtxRetain(Context** context, int handle) {
  Fake& fake = TheFake();
  if (const int status = fake.Wish("cuDevicePrimaryCtxRetain"); status != 0) return status;
  const std::lock_guard lock(fake.mutex);
  ++fake.retained;
  *context = &fake.contexts[handle];
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  --fake.retained;
  return 0;
}
int cuCtxPushCurrent_v2(Context* context) {
  if (const int status = TheFake().Wish("cuCtxPushCurrent"); status != 0) return status;
  stack.push_back(context);
  return 0;
}
int cuCtxPopCurrent_v2(Context** context) {
  if (stack.empty()) {
    TheFake().Mistake();
    return kInvalidContext;
  }
  *context = stack.back();
  stack.pop_back();
  return 0;
}
int cuPointerGetAttribute(void* value, int attribute, uint64_t address) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  uint64_t begin = 0;
  const Allocation* allocation = fake.FindLocked(address, 1, &begin);
  if (allocation == nullptr) return kInvalidValue;
  if (attribute == kMemoryType) *static_cast<unsigned*>(value) = 2;
  if (attribute == kDeviceOrdinal) *static_cast<int*>(value) = allocation->ordinal;
  return attribute == kMemoryType || attribute == kDeviceOrdinal ? 0 : kInvalidValue;
}
int cuStreamCreate(Stream** handle, unsigned) {
  if (const int status = Enter("cuStreamCreate"); status != 0) return status;
  Fake& fake = TheFake();
  auto stream = std::make_shared<Stream>();
  *handle = stream.get();
  const std::lock_guard lock(fake.mutex);
  fake.streams[stream.get()] = std::move(stream);
  return 0;
}
int cuStreamDestroy_v2(Stream* handle) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  if (fake.streams.erase(handle) == 0) ++fake.counts.mistakes;
  return 0;
}
int cuEventCreate(Event** event, unsigned) {
  if (const int status = Enter("cuEventCreate"); status != 0) return status;
  Fake& fake = TheFake();
  *event = new Event;
  const std::lock_guard lock(fake.mutex);
  fake.events.insert(*event);
  return 0;
}
int cuEventDestroy_v2(Event* event) {
  if (!Known(event)) return kInvalidValue;
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.events.erase(event);
  delete event;
  return 0;
}
int cuEventRecord(Event* event, Stream* handle) {
  if (const int status = Enter("cuEventRecord"); status != 0) return status;
  const auto stream = StreamOf(handle);
  if (stream == nullptr || !Known(event)) return kInvalidValue;
  event->stream = stream;
  event->point = stream->end();
  return 0;
}
int cuEventQuery(Event* event) {
  if (const int status = Enter("cuEventQuery"); status != 0) return status;
  if (!Known(event)) return kInvalidValue;
  if (event->stream == nullptr) return 0;
  return event->stream->Reached(event->point) ? event->stream->status() : kNotReady;
}
int cuEventSynchronize(Event* event) {
  if (const int status = Enter("cuEventSynchronize"); status != 0) return status;
  if (!Known(event)) return kInvalidValue;
  if (event->stream == nullptr) return 0;
  event->stream->Wait(event->point);
  return event->stream->status();
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t size, Stream* stream) {
  // The one function behind both directions only reads `from`.
  return Copy("cuMemcpyHtoDAsync", true, to, static_cast<std::byte*>(const_cast<void*>(from)), size, stream);
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t size, Stream* stream) {
  return Copy("cuMemcpyDtoHAsync", false, from, static_cast<std::byte*>(to), size, stream);
}
int cuMemHostRegister_v2(void* memory, size_t size, unsigned) {
  if (const int status = Enter("cuMemHostRegister"); status != 0) return status;
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.locked[reinterpret_cast<uint64_t>(memory)] = size;
  return 0;
}
int cuMemHostUnregister(void* memory) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  if (fake.locked.erase(reinterpret_cast<uint64_t>(memory)) == 0) ++fake.counts.mistakes;
  return 0;
}
int cuGetErrorName(int, const char** name) {
  *name = "FAKE_ERROR";
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "a fake error";
  return 0;
}

// --- cuFile ---

struct FakeCufileStatus {
  int error;
  int cuda;
};
struct FakeCufileDescription {
  int type;
  union {
    int descriptor;
    void* handle;
  };
  const void* operations;
};
struct FakeCufileProperties {
  unsigned major, minor;
  size_t poll, most;
  unsigned kinds, control, features, limits[5];
};

FakeCufileStatus cuFileDriverOpen() { return {TheFake().Wish("cuFileDriverOpen"), 0}; }
FakeCufileStatus cuFileDriverGetProperties(FakeCufileProperties* properties) {
  const unsigned kinds = TheFake().kinds;
  *properties = {kinds != 0 ? 2U : 0, kinds != 0 ? 26U : 0, 4096, 16 << 20, kinds, 0, 0, {}};
  return {TheFake().Wish("cuFileDriverGetProperties"), 0};
}
FakeCufileStatus cuFileGetVersion(int* version) {
  *version = kCufileVersion;
  return {0, 0};
}
FakeCufileStatus cuFileHandleRegister(File** handle, FakeCufileDescription* description) {
  Fake& fake = TheFake();
  if (const int status = fake.Wish("cuFileHandleRegister"); status != 0) return {status, 0};
  if (description->type != 1 || fcntl(description->descriptor, F_GETFD) < 0) return {kCufileInvalidValue, 0};
  *handle = new File{description->descriptor};
  const std::lock_guard lock(fake.mutex);
  fake.files.insert(*handle);
  return {0, 0};
}
void cuFileHandleDeregister(File* file) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  // The descriptor must still be open.
  if (fake.files.erase(file) == 0 || fcntl(file->descriptor, F_GETFD) < 0) ++fake.counts.mistakes;
  delete file;
}
FakeCufileStatus cuFileBufRegister(const void* address, size_t size, int) {
  Fake& fake = TheFake();
  if (const int status = Enter("cuFileBufRegister"); status != 0) return {status, 0};
  if (fake.Hidden(reinterpret_cast<uint64_t>(address), size) == nullptr) return {kCufileInvalidValue, 0};
  const std::lock_guard lock(fake.mutex);
  const bool added = fake.pinned.try_emplace(reinterpret_cast<uint64_t>(address), size).second;
  return {added ? 0 : kCufilePinnedAlready, 0};
}
FakeCufileStatus cuFileBufDeregister(const void* address) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  return {fake.pinned.erase(reinterpret_cast<uint64_t>(address)) != 0 ? 0 : kCufileNotPinned, 0};
}

static ssize_t Transfer(const char* function, File* file, void* base, size_t size, off_t offset, off_t at) {
  Fake& fake = TheFake();
  const bool write = std::strcmp(function, "cuFileWrite") == 0;
  if (const int status = Enter(function); status != 0) {
    errno = EIO;
    return status < 0 ? status : -status;
  }
  const auto begin = reinterpret_cast<uint64_t>(base);
  std::byte* hidden = fake.Hidden(begin + static_cast<uint64_t>(at), size);
  if (hidden == nullptr) return -kCufileInvalidValue;
  {
    const std::lock_guard lock(fake.mutex);
    if (fake.files.count(file) == 0) {
      ++fake.counts.mistakes;
      return -kCufileInvalidValue;
    }
    if (fake.pinned.count(begin) != 0) ++fake.counts.pinned_transfers;
    if (fake.limit != 0) size = std::min(size, fake.limit);
    ++(write ? fake.counts.cufile_writes : fake.counts.cufile_reads);
  }
  // What is not whole blocks cuFile transfers too.
  const std::string again = "/proc/self/fd/" + std::to_string(file->descriptor);
  const int descriptor = open(again.c_str(), (write ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
  if (descriptor < 0) return -1;
  const ssize_t done = write ? pwrite(descriptor, hidden, size, offset) : pread(descriptor, hidden, size, offset);
  // Others read past the page cache.
  if (write) fdatasync(descriptor);
  close(descriptor);
  return done;
}
ssize_t cuFileRead(File* file, void* base, size_t size, off_t offset, off_t at) {
  return Transfer("cuFileRead", file, base, size, offset, at);
}
ssize_t cuFileWrite(File* file, const void* base, size_t size, off_t offset, off_t at) {
  // The one function behind both directions only reads `base`.
  return Transfer("cuFileWrite", file, const_cast<void*>(base), size, offset, at);
}

// --- For the tests ---

uint64_t fake_gpu_allocate(size_t size, int ordinal) {
  Allocation allocation{.size = size, .mapped = (size + kPage - 1) / kPage * kPage + kPage, .ordinal = ordinal};
  const int memory = memfd_create("fake-gpu", MFD_CLOEXEC);
  if (memory < 0 || ftruncate(memory, static_cast<off_t>(allocation.mapped)) != 0) std::abort();
  void* shown = mmap(nullptr, allocation.mapped, PROT_NONE, MAP_SHARED, memory, 0);
  void* hidden = mmap(nullptr, allocation.mapped, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (shown == MAP_FAILED || hidden == MAP_FAILED) std::abort();
  close(memory);
  allocation.hidden = static_cast<std::byte*>(hidden);
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.allocations[reinterpret_cast<uint64_t>(shown)] = allocation;
  return reinterpret_cast<uint64_t>(shown);
}
void fake_gpu_free(uint64_t address) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  const auto found = fake.allocations.find(address);
  if (found == fake.allocations.end()) std::abort();
  munmap(reinterpret_cast<void*>(address), found->second.mapped);
  munmap(found->second.hidden, found->second.mapped);
  fake.allocations.erase(found);
}
void fake_gpu_poke(uint64_t address, const void* bytes, size_t size) {
  std::memcpy(TheFake().Hidden(address, size), bytes, size);
}
void fake_gpu_peek(uint64_t address, void* bytes, size_t size) {
  std::memcpy(bytes, TheFake().Hidden(address, size), size);
}
void fake_gpu_fail(const char* function, int after, int times, int status) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.failures[function] = {after, times, status};
}
void fake_gpu_fail_copy(int after, int status) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.copy_failure = {after, 1, status};
}
void fake_gpu_limit_transfers(size_t bytes) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.limit = bytes;
}
void fake_gpu_set_kinds(unsigned kinds) { TheFake().kinds = kinds; }
void fake_gpu_set_devices(int count) { TheFake().devices = count; }
void fake_gpu_hold_default_stream(int ordinal, uint64_t address, const void* bytes, size_t size) {
  Fake& fake = TheFake();
  stack.push_back(&fake.contexts[ordinal]);
  const auto stream = StreamOf(nullptr);
  stack.pop_back();
  const auto* begin = static_cast<const std::byte*>(bytes);
  std::vector<std::byte> copy(begin, begin + size);
  std::byte* hidden = fake.Hidden(address, size);
  const std::lock_guard lock(fake.mutex);
  fake.held = true;
  stream->Put([&fake, hidden, copy = std::move(copy)] {
    {
      std::unique_lock held(fake.mutex);
      fake.released.wait(held, [&] { return !fake.held; });
    }
    std::memcpy(hidden, copy.data(), copy.size());
    return 0;
  });
}
void fake_gpu_release(void) {
  Fake& fake = TheFake();
  std::vector<std::shared_ptr<Stream>> streams;
  {
    const std::lock_guard lock(fake.mutex);
    fake.held = false;
    fake.released.notify_all();
    for (const auto& stream : fake.default_streams) {
      if (stream != nullptr) streams.push_back(stream);
    }
  }
  for (const auto& stream : streams) stream->Wait(stream->end());
}
void fake_gpu_reset(void) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  fake.failures.clear();
  fake.copy_failure = {};
  fake.limit = 0;
  fake.kinds = 0;
  fake.devices = 1;
  fake.held = false;
  fake.released.notify_all();
  fake.counts = {};
}
void fake_gpu_count(FakeGpuCounts* counts) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  *counts = fake.counts;
  counts->contexts = static_cast<uint64_t>(fake.retained);
  counts->streams = fake.streams.size();
  counts->events = fake.events.size();
  counts->page_locks = fake.locked.size();
  counts->files = fake.files.size();
  counts->pins = fake.pinned.size();
}
int fake_gpu_context_depth(void) { return static_cast<int>(stack.size()); }

}  // extern "C"
