// SPDX-License-Identifier: Apache-2.0
#include "client/gpu/cufile.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "client/gpu/shared_library.h"
#include "common/result.h"

namespace weightfs::client {
namespace {

// Constants of cuFile's interface.
constexpr int kFileTypeDescriptor = 1;
constexpr int kDriverAlreadyOpen = 5026;
constexpr int kCudaError = 5011;
constexpr int kNotRegistered = 5027;
constexpr int kInternalError = 5030;
constexpr int64_t kFirstError = 5000;
constexpr int kNvidiaFsDevices = 16;
constexpr int kVersion116 = 1160;

// Bits of the kinds of storage that cuFile may access directly.
constexpr unsigned kLustre = 1U << 0;
constexpr unsigned kNfs = 1U << 2;
constexpr unsigned kGpfs = 1U << 3;
constexpr unsigned kBeegfs = 1U << 9;
// NVMe, NVMe over fabrics, NVMesh, and the bit that an older version used for NVMe without nvidia-fs.
constexpr unsigned kNvme = 1U << 4 | 1U << 5 | 1U << 8 | 1U << 11;
constexpr unsigned kScsi = 1U << 6;
constexpr unsigned kScaleFlux = 1U << 7;
// All others: cuFile has no bit for them; the tests use this one.
constexpr unsigned kOther = 1U << 31;

struct Kind {
  long magic;  // f_type of statfs(2)
  unsigned bit;
};
constexpr std::array<Kind, 4> kKinds{
    {{0x0BD00BD0, kLustre}, {NFS_SUPER_MAGIC, kNfs}, {0x47504653, kGpfs}, {0x19830326, kBeegfs}}};

struct Meaning {
  int64_t code;
  int error_number;
  const char* text;
};
constexpr std::array<Meaning, 25> kMeanings{{
    {5001, EOPNOTSUPP, "the nvidia-fs module is not loaded, and compatibility mode is off"},
    {5004, EOPNOTSUPP, "cuFile and the nvidia-fs module are of different versions"},
    {5006, ESHUTDOWN, "cuFile's driver is being closed"},
    {5007, EOPNOTSUPP, "not supported on this platform"},
    {5008, EOPNOTSUPP, "not supported for this file"},
    {5009, EOPNOTSUPP, "not supported by this GPU"},
    {5011, EIO, "the CUDA driver failed"},
    {5012, EINVAL, "no memory of a GPU"},
    {5013, EINVAL, "memory of another kind than a GPU's"},
    {5015, EINVAL, "the memory belongs to another CUDA context than the GPU's primary one"},
    {5016, ENOMEM, "more memory than cuFile may pin"},
    {5018, EOPNOTSUPP, "not supported for this kind of file"},
    {5019, EOPNOTSUPP, "the file is open with a flag that cuFile refuses, such as O_APPEND or O_NONBLOCK"},
    {5020, EOPNOTSUPP, "the file is not open for direct I/O"},
    {5022, EINVAL, "an argument that is not possible"},
    {5023, EEXIST, "the memory is pinned already"},
    {5025, EACCES, "permission denied"},
    {5027, EOPNOTSUPP, "cuFile cannot find out what the file's filesystem and device can do"},
    {5028, EEXIST, "the descriptor is registered with cuFile already"},
    {5030, EIO, "an internal error of cuFile"},
    {5031, EMFILE, "cuFile cannot duplicate the descriptor"},
    {5033, EOPNOTSUPP, "the nvidia-fs module cannot be set up"},
    {5034, EOPNOTSUPP, "cufile.json turns GPUDirect Storage off for this file"},
    {5036, ENOMEM, "the GPU's memory cannot be pinned"},
    {5043, ENOMEM, "out of memory"},
}};

// cuFile's layout on 64-bit machines. Later versions may write more properties behind these.
struct Properties {
  unsigned driver_major;
  unsigned driver_minor;
  size_t poll_threshold;
  size_t max_direct_io;
  unsigned direct_kinds;
  unsigned control_flags;
  unsigned features;
  unsigned limits[5];
  unsigned room[32];
};
static_assert(offsetof(Properties, direct_kinds) == 24 && offsetof(Properties, limits) == 36);

struct FileDescription {
  int type;
  union {
    int descriptor;
    void* handle;
  };
  const void* operations;
};
static_assert(sizeof(FileDescription) == 24 && offsetof(FileDescription, descriptor) == 8);

// The storage kinds of the block device described by a sysfs directory. For a RAID or a mapping, the kinds that all of
// its parts have in common.
unsigned KindsOfDevice(const std::filesystem::path& folder) {
  std::error_code error;
  const auto place = std::filesystem::canonical(folder, error);
  if (error) return kOther;
  const std::string text = place.string();
  const auto has = [&text](const char* part) { return text.find(part) != std::string::npos; };
  if (has("/nvme")) return kNvme;
  if (has("/sfd")) return kScaleFlux;
  if (has("/target")) return kScsi;
  unsigned kinds = 0;
  for (const auto& part : std::filesystem::directory_iterator(place / "slaves", error)) {
    const unsigned of_part = KindsOfDevice(part.path());
    kinds = kinds == 0 ? of_part : kinds & of_part;
    if (kinds == 0) return 0;
  }
  return kinds == 0 ? kOther : kinds;
}

unsigned KindsOfDevice(dev_t number) {
  return KindsOfDevice(fmt::format("/sys/dev/block/{}:{}", major(number), minor(number)));
}

unsigned KindsOfFile(int descriptor) {
  struct stat status {};
  struct statfs filesystem {};
  if (fstat(descriptor, &status) != 0 || fstatfs(descriptor, &filesystem) != 0) return 0;
  if (S_ISBLK(status.st_mode)) return KindsOfDevice(status.st_rdev);
  const auto magic = static_cast<long>(filesystem.f_type);
  if (magic == EXT4_SUPER_MAGIC || magic == XFS_SUPER_MAGIC) return KindsOfDevice(status.st_dev);
  const auto* kind =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const Kind& known) { return known.magic == magic; });
  return kind == kKinds.end() ? kOther : kind->bit;
}

struct FilesystemName {
  long magic;
  const char* name;
};
constexpr std::array<FilesystemName, 3> kSinceCufile116{
    {{0x794C7630, "overlayfs"}, {TMPFS_MAGIC, "tmpfs"}, {FUSE_SUPER_MAGIC, "a FUSE mount, such as one of weightfs"}}};

// What makes cuFile refuse files that the host itself reads: it asks udev for a file's device, and its versions before
// 1.16 know few filesystems (found by trying 1.11 to 1.20).
std::string CauseOfRefusal(int descriptor, int version) {
  struct statfs filesystem {};
  if (fstatfs(descriptor, &filesystem) != 0) return "";
  for (const FilesystemName& known : kSinceCufile116) {
    if (version < kVersion116 && static_cast<long>(filesystem.f_type) == known.magic) {
      return fmt::format("; the file is on {}, which cuFile takes from version 1.16 on", known.name);
    }
  }
  if (access("/run/udev/data", F_OK) == 0) return "; cufile.log has the details (CUFILE_LOGFILE_PATH)";
  return "; /run/udev is missing, where cuFile looks the device up: a container needs its host's "
         "(docker run -v /run/udev:/run/udev:ro)";
}

// In these states of the machine cuFile would not return, or would close a descriptor of the program.
Result<void> CheckMachine() {
  const char* named = std::getenv("WEIGHTFS_PROC_MODULES");
  const std::string path = named != nullptr && *named != '\0' ? named : "/proc/modules";
  std::ifstream modules(path);
  if (!modules) {
    return Error{ErrorCode::kNotSupported,
                 fmt::format("cuFile is not used: it would wait forever for {}, which cannot be read here", path)};
  }
  for (std::string line; std::getline(modules, line);) {
    if (!line.starts_with("nvidia_fs ")) continue;
    for (int i = 0; i < kNvidiaFsDevices; ++i) {
      if (access(fmt::format("/dev/nvidia-fs{}", i).c_str(), F_OK) == 0) return {};
    }
    return Error{ErrorCode::kNotSupported,
                 "cuFile is not used: the nvidia-fs module is loaded, but /dev/nvidia-fs* is missing; a container needs"
                 " these devices of its host"};
  }
  return {};
}

void* Pointer(uint64_t address) {
  // cuFile takes GPU addresses as pointers; they are never dereferenced here.
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

struct Cufile::Status {
  int error;  // 0, or one of cuFile's errors
  int cuda;   // CUDA's error, if `error` is kCudaError
};

struct Cufile::Functions {
  Status (*open_driver)();
  Status (*properties)(Properties* properties);
  Status (*version)(int* version);  // null in old versions
  Status (*open)(void** handle, FileDescription* description);
  void (*close)(void* handle);
  Status (*pin)(const void* address, size_t size, int flags);
  Status (*unpin)(const void* address);
  ssize_t (*read)(void* handle, void* base, size_t size, off_t offset, off_t at);
  ssize_t (*write)(void* handle, const void* base, size_t size, off_t offset, off_t at);

  Result<void> Resolve(const SharedLibrary& library) {
    const bool all = library.Find("cuFileDriverOpen", &open_driver) &&
                     library.Find("cuFileDriverGetProperties", &properties) &&
                     library.Find("cuFileHandleRegister", &open) && library.Find("cuFileHandleDeregister", &close) &&
                     library.Find("cuFileBufRegister", &pin) && library.Find("cuFileBufDeregister", &unpin) &&
                     library.Find("cuFileRead", &read) && library.Find("cuFileWrite", &write);
    library.Find("cuFileGetVersion", &version);
    if (all) return {};
    return Error{ErrorCode::kNotFound,
                 fmt::format("{} lacks functions of cuFile; install another version", library.name())};
  }
};

Result<std::shared_ptr<const Cufile>> Cufile::Load(const std::string& path) {
  RETURN_IF_ERROR(CheckMachine());
  const char* named = std::getenv("WEIGHTFS_CUFILE_LIBRARY");
  std::vector<std::string> names{"libcufile.so.0"};
  if (!path.empty()) names.push_back(path);
  if (named != nullptr && *named != '\0') names = {named};
  const auto library = SharedLibrary::Open(names);
  if (!library.has_value()) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("cuFile cannot be loaded ({}); install it with CUDA or the Python package "
                             "nvidia-cufile, or name it in WEIGHTFS_CUFILE_LIBRARY",
                             library.error().what)};
  }
  auto functions = std::make_shared<Functions>();
  RETURN_IF_ERROR(functions->Resolve(*library));
  std::shared_ptr<Cufile> cufile(new Cufile(functions));
  RETURN_IF_ERROR(cufile->Start());
  return cufile;
}

Result<void> Cufile::Start() {
  const Status opened = functions_->open_driver();
  // The driver may already have been opened by another part of the program.
  if (opened.error != kDriverAlreadyOpen) RETURN_IF_ERROR(Check("cuFile's driver cannot be opened", opened));
  Properties properties{};
  RETURN_IF_ERROR(Check("cuFile's properties cannot be read", functions_->properties(&properties)));
  kinds_ = properties.direct_kinds;
  nvidia_fs_ = properties.driver_major != 0 || properties.driver_minor != 0;
  if (functions_->version != nullptr && functions_->version(&version_).error != 0) version_ = 0;
  return {};
}

std::string Cufile::version() const {
  return version_ == 0 ? "of an unknown version" : fmt::format("{}.{}", version_ / 1000, version_ % 1000 / 10);
}

std::string Cufile::DirectWay() const {
  if (!direct()) return "compatibility mode: neither nvidia-fs nor PCI P2PDMA serves a filesystem here";
  return nvidia_fs_ ? "nvidia-fs" : "PCI P2PDMA";
}

bool Cufile::DirectFor(int descriptor) const { return (kinds_ & KindsOfFile(descriptor)) != 0; }

Error Cufile::Failed(const char* action, int64_t code) {
  const auto* meaning =
      std::find_if(kMeanings.begin(), kMeanings.end(), [&](const Meaning& known) { return known.code == code; });
  if (meaning == kMeanings.end()) return {ErrorCode::kIo, fmt::format("{}: cuFile error {}", action, code)};
  return {ErrorCode{meaning->error_number}, fmt::format("{}: {} (cuFile error {})", action, meaning->text, code)};
}

Result<void> Cufile::Check(const char* action, const Status& status) const {
  if (status.error == 0) return {};
  Error error = Failed(action, status.error);
  if (status.error == kCudaError) error.what += fmt::format(", CUDA error {}", status.cuda);
  return error;
}

// Converts the result of a transfer: a number of bytes; -1 with errno; or the negative number of one of cuFile's own
// errors.
Result<uint64_t> Cufile::Outcome(const char* action, int64_t result, int error_number) {
  if (result >= 0) return static_cast<uint64_t>(result);
  if (-result > kFirstError) return Failed(action, -result);
  // Some versions return the negative errno itself.
  if (result < -1) error_number = static_cast<int>(-result);
  if (error_number == 0) error_number = EIO;
  return Error{ErrorCode{error_number}, fmt::format("{}: {}", action, std::strerror(error_number))};
}

Result<std::unique_ptr<const Cufile::File>> Cufile::Open(int descriptor) const {
  FileDescription description{};
  description.type = kFileTypeDescriptor;
  description.descriptor = descriptor;
  void* handle = nullptr;
  const Status status = functions_->open(&handle, &description);
  if (auto opened = Check("cuFile does not take the file", status); !opened.has_value()) {
    Error error = std::move(opened).error();
    if (status.error == kNotRegistered || status.error == kInternalError) {
      error = {ErrorCode::kNotSupported, error.what + CauseOfRefusal(descriptor, version_)};
    }
    return error;
  }
  return std::unique_ptr<const File>(new File(shared_from_this(), handle));
}

Cufile::File::~File() { cufile_->functions_->close(handle_); }

Result<uint64_t> Cufile::File::Read(uint64_t base, uint64_t at, uint64_t size, uint64_t offset) const {
  errno = 0;
  const ssize_t result =
      cufile_->functions_->read(handle_, Pointer(base), size, static_cast<off_t>(offset), static_cast<off_t>(at));
  return Outcome("cuFileRead", result, errno);
}

Result<uint64_t> Cufile::File::Write(uint64_t base, uint64_t at, uint64_t size, uint64_t offset) const {
  errno = 0;
  const ssize_t result =
      cufile_->functions_->write(handle_, Pointer(base), size, static_cast<off_t>(offset), static_cast<off_t>(at));
  return Outcome("cuFileWrite", result, errno);
}

Result<Cufile::Pin> Cufile::PinMemory(uint64_t address, uint64_t size) const {
  RETURN_IF_ERROR(Check("cuFile cannot pin the tensor", functions_->pin(Pointer(address), size, 0)));
  return Pin(Pointer(address), [cufile = shared_from_this()](const void* pinned) {
    // An error means that cuFile no longer knows the memory.
    [[maybe_unused]] const Status ignored = cufile->functions_->unpin(pinned);
  });
}

}  // namespace weightfs::client
