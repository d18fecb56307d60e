// SPDX-License-Identifier: Apache-2.0
// Shows a process the files under the folder WEIGHTFS_FAKE_MACHINE instead of /proc/modules and /run/udev.
// Otherwise the declaration of open has the name open64.
#undef _FILE_OFFSET_BITS

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

std::string Shown(const char* path) {
  const char* folder = std::getenv("WEIGHTFS_FAKE_MACHINE");
  const std::string_view text = path == nullptr ? "" : path;
  const bool hidden = text == "/proc/modules" || text == "/run/udev" || text.starts_with("/run/udev/");
  return std::string(folder != nullptr && hidden ? folder : "") + std::string(text);
}

// The next definition of a function, which is the C library's.
template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int OpenShown(const char* name, const char* path, int flags, mode_t mode) {
  return Next<int (*)(const char*, int, ...)>(name)(Shown(path).c_str(), flags, mode);
}

FILE* OpenStream(const char* name, const char* path, const char* mode) {
  return Next<FILE* (*)(const char*, const char*)>(name)(Shown(path).c_str(), mode);
}

mode_t ModeOf(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return OpenShown("open", path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return OpenShown("open64", path, flags, mode);
}
int openat(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return Next<int (*)(int, const char*, int, ...)>("openat")(directory, Shown(path).c_str(), flags, mode);
}
FILE* fopen(const char* path, const char* mode) { return OpenStream("fopen", path, mode); }
FILE* fopen64(const char* path, const char* mode) { return OpenStream("fopen64", path, mode); }
int access(const char* path, int mode) {
  return Next<int (*)(const char*, int)>("access")(Shown(path).c_str(), mode);
}

}  // extern "C"
