// SPDX-License-Identifier: Apache-2.0
// Lets user-mode Linux run on processors whose register state is larger than its buffer (AVX-512, AMX). UML 6.1 sets
// the registers of its processes from a buffer of fixed size, which the kernel refuses when the state is larger. This
// library, loaded by LD_PRELOAD, adds the rest of the state as it is.
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static long SetFullState(pid_t pid, void* kind, const struct iovec* given) {
  static __thread char state[32768] __attribute__((aligned(64)));
  struct iovec full = {state, sizeof(state)};
  if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, kind, &full) != 0) return -1;
  memcpy(state, given->iov_base, given->iov_len < full.iov_len ? given->iov_len : full.iov_len);
  return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, kind, &full);
}

long ptrace(enum __ptrace_request request, ...) {
  va_list arguments;
  va_start(arguments, request);
  const pid_t pid = va_arg(arguments, pid_t);
  void* const address = va_arg(arguments, void*);
  void* const data = va_arg(arguments, void*);
  va_end(arguments);
  if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) return SetFullState(pid, address, data);
  if (request != PTRACE_PEEKTEXT && request != PTRACE_PEEKDATA && request != PTRACE_PEEKUSER) {
    return syscall(SYS_ptrace, request, pid, address, data);
  }
  // As in the C library, the result is the value that the system call stores.
  long value = 0;
  if (syscall(SYS_ptrace, request, pid, address, &value) < 0) return -1;
  errno = 0;
  return value;
}
