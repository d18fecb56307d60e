// SPDX-License-Identifier: Apache-2.0
// The functions of the C library at which threads wait or measure time. Threads of a run wait in the scheduler; for
// others these forward to the library. A lock is always the library's own, taken with its try function, so that it is
// right for every thread.
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdint>
#include <span>

#include "tests/schedule/scheduler.h"

namespace schedule = weightfs::schedule;

namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr time_t kEpoch = 1'700'000'000;  // the real time at the start of a run

// The library's function. Conditions have an older version, which dlsym may find.
template <typename Function>
Function* Library(Function*, const char* name, const char* version = nullptr) {
  void* found = version == nullptr ? nullptr : dlvsym(RTLD_NEXT, name, version);
  if (found == nullptr) found = dlsym(RTLD_NEXT, name);
  return reinterpret_cast<Function*>(found);
}
#define LIBRARY(name, ...) ([] { static auto* const found = Library(&::name, #name __VA_OPT__(,) __VA_ARGS__); \
                                 return found; }())
constexpr char kConditions[] = "GLIBC_2.3.2";

int64_t Nanoseconds(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

// The virtual time of an absolute one.
int64_t Deadline(clockid_t clock, const timespec* time) {
  return Nanoseconds(*time) - (clock == CLOCK_REALTIME ? kEpoch * kSecond : kSecond);
}

timespec VirtualTime(clockid_t clock) {
  const int64_t now = schedule::Now();
  return {(clock == CLOCK_REALTIME ? kEpoch : 1) + now / kSecond, now % kSecond};
}

// `attempt` takes the lock, or returns `busy`, because others have it.
template <typename Attempt>
int Lock(void* lock, const char* what, const Attempt& attempt, int64_t deadline = schedule::kNever) {
  schedule::Point();
  while (true) {
    const int result = attempt();
    if (result == 0) schedule::Acquired(lock);
    if (result != EBUSY) return result;
    if (!schedule::Block(lock, what, deadline)) return ETIMEDOUT;
  }
}

void Unlocked(void* lock) {
  schedule::Released(lock);
  schedule::Wake(lock);
}

int WaitForCondition(pthread_cond_t* condition, pthread_mutex_t* mutex, int64_t deadline = schedule::kNever) {
  schedule::Point();  // between the caller's look at its condition and the wait
  LIBRARY(pthread_mutex_unlock)(mutex);
  Unlocked(mutex);
  const bool woken = schedule::Block(condition, "condition", deadline);
  Lock(mutex, "mutex", [&] { return LIBRARY(pthread_mutex_trylock)(mutex); });
  return woken ? 0 : ETIMEDOUT;
}

struct Creation {
  pthread_t* thread;
  const pthread_attr_t* attributes;
};

int Create(void* (*start)(void*), void* argument, void* context) {
  const Creation& creation = *static_cast<Creation*>(context);
  return LIBRARY(pthread_create)(creation.thread, creation.attributes, start, argument);
}

long WaitForFutex(const uint32_t* word, int operation, uint32_t value, const timespec* timeout) {
  const int command = operation & FUTEX_CMD_MASK;
  schedule::Point();
  if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) {
    errno = EAGAIN;
    return -1;
  }
  int64_t deadline = schedule::kNever;
  if (timeout != nullptr && command == FUTEX_WAIT) deadline = schedule::Now() + Nanoseconds(*timeout);
  if (timeout != nullptr && command == FUTEX_WAIT_BITSET) {
    deadline = Deadline((operation & FUTEX_CLOCK_REALTIME) != 0 ? CLOCK_REALTIME : CLOCK_MONOTONIC, timeout);
  }
  if (schedule::Block(word, "futex", deadline)) return 0;
  errno = ETIMEDOUT;
  return -1;
}

}  // namespace

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) noexcept {
  if (!schedule::IsScheduled()) return LIBRARY(pthread_create)(thread, attributes, start, argument);
  Creation creation{thread, attributes};
  int result = 0;
  const int slot = schedule::StartThread(Create, &creation, start, argument, &result);
  if (slot >= 0) schedule::Name(slot, *thread);
  schedule::Point();
  return result;
}

int pthread_join(pthread_t thread, void** result) {
  if (schedule::IsScheduled()) {
    if (const int slot = schedule::Find(thread); slot >= 0) schedule::AwaitEnd(slot);
  }
  return LIBRARY(pthread_join)(thread, result);
}

int pthread_detach(pthread_t thread) noexcept {
  if (schedule::IsScheduled()) {
    if (const int slot = schedule::Find(thread); slot >= 0) schedule::Detach(slot);
  }
  return LIBRARY(pthread_detach)(thread);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (!schedule::IsScheduled()) return LIBRARY(pthread_mutex_lock)(mutex);
  return Lock(mutex, "mutex", [&] { return LIBRARY(pthread_mutex_trylock)(mutex); });
}

int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const timespec* time) noexcept {
  if (!schedule::IsScheduled()) return LIBRARY(pthread_mutex_clocklock)(mutex, clock, time);
  return Lock(mutex, "mutex", [&] { return LIBRARY(pthread_mutex_trylock)(mutex); }, Deadline(clock, time));
}

int pthread_mutex_timedlock(pthread_mutex_t* mutex, const timespec* time) noexcept {
  return pthread_mutex_clocklock(mutex, CLOCK_REALTIME, time);
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  if (schedule::IsScheduled()) schedule::Point();
  const int result = LIBRARY(pthread_mutex_trylock)(mutex);
  if (schedule::IsScheduled() && result == 0) schedule::Acquired(mutex);
  return result;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  const int result = LIBRARY(pthread_mutex_unlock)(mutex);
  if (!schedule::IsScheduled()) return result;
  Unlocked(mutex);
  schedule::Point();
  return result;
}

int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  if (!schedule::IsScheduled()) return LIBRARY(pthread_rwlock_rdlock)(lock);
  return Lock(lock, "shared lock", [&] { return LIBRARY(pthread_rwlock_tryrdlock)(lock); });
}

int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  if (!schedule::IsScheduled()) return LIBRARY(pthread_rwlock_wrlock)(lock);
  return Lock(lock, "shared lock", [&] { return LIBRARY(pthread_rwlock_trywrlock)(lock); });
}

int pthread_rwlock_unlock(pthread_rwlock_t* lock) noexcept {
  const int result = LIBRARY(pthread_rwlock_unlock)(lock);
  if (!schedule::IsScheduled()) return result;
  Unlocked(lock);
  schedule::Point();
  return result;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  if (!schedule::IsScheduled()) return LIBRARY(pthread_cond_wait, kConditions)(condition, mutex);
  return WaitForCondition(condition, mutex);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* time) {
  if (!schedule::IsScheduled()) return LIBRARY(pthread_cond_clockwait)(condition, mutex, clock, time);
  return WaitForCondition(condition, mutex, Deadline(clock, time));
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* time) {
  if (!schedule::IsScheduled()) return LIBRARY(pthread_cond_timedwait, kConditions)(condition, mutex, time);
  return WaitForCondition(condition, mutex, Deadline(CLOCK_REALTIME, time));
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  if (!schedule::IsScheduled()) return LIBRARY(pthread_cond_signal, kConditions)(condition);
  schedule::Wake(condition, 1);
  schedule::Point();
  return 0;
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  if (!schedule::IsScheduled()) return LIBRARY(pthread_cond_broadcast, kConditions)(condition);
  schedule::Wake(condition);
  schedule::Point();
  return 0;
}

int sem_wait(sem_t* semaphore) {
  if (!schedule::IsScheduled()) return LIBRARY(sem_wait)(semaphore);
  schedule::Point();
  while (LIBRARY(sem_trywait)(semaphore) != 0) schedule::Block(semaphore, "semaphore");
  return 0;
}

int sem_post(sem_t* semaphore) noexcept {
  const int result = LIBRARY(sem_post)(semaphore);
  if (!schedule::IsScheduled()) return result;
  schedule::Wake(semaphore);
  schedule::Point();
  return result;
}

// Of futures and std::atomic::wait, which call it with up to six arguments.
long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  const auto& [first, second, third, fourth, fifth, sixth] = arguments;
  if (schedule::IsScheduled() && number == SYS_futex) {
    const auto* const word = reinterpret_cast<const uint32_t*>(first);
    const int command = static_cast<int>(second) & FUTEX_CMD_MASK;
    if (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET) {
      return WaitForFutex(word, static_cast<int>(second), static_cast<uint32_t>(third),
                          reinterpret_cast<const timespec*>(fourth));
    }
    if (command == FUTEX_WAKE || command == FUTEX_WAKE_BITSET) {
      const size_t woken = schedule::Wake(word, static_cast<size_t>(third));
      schedule::Point();
      return static_cast<long>(woken);
    }
  }
  return LIBRARY(syscall)(number, first, second, third, fourth, fifth, sixth);
}

int sched_yield() noexcept {
  if (!schedule::IsScheduled()) return LIBRARY(sched_yield)();
  schedule::Yield();
  return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  if (!schedule::IsScheduled()) return LIBRARY(clock_nanosleep)(clock, flags, time, left);
  const bool absolute = (flags & TIMER_ABSTIME) != 0;
  schedule::Block(nullptr, "time", absolute ? Deadline(clock, time) : schedule::Now() + Nanoseconds(*time));
  return 0;
}

int nanosleep(const timespec* time, timespec* left) {
  if (!schedule::IsScheduled()) return LIBRARY(nanosleep)(time, left);
  return clock_nanosleep(CLOCK_MONOTONIC, 0, time, left);
}

int usleep(useconds_t microseconds) {
  const timespec time{microseconds / 1'000'000, (microseconds % 1'000'000) * 1000L};
  return nanosleep(&time, nullptr);
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (!schedule::IsScheduled() || clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID) {
    return LIBRARY(clock_gettime)(clock, time);
  }
  *time = VirtualTime(clock);
  return 0;
}

// Of identifiers, which programs take at random.
ssize_t getrandom(void* out, size_t size, unsigned flags) {
  if (!schedule::IsScheduled()) return LIBRARY(getrandom)(out, size, flags);
  std::span bytes(static_cast<unsigned char*>(out), size);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(schedule::Random());
  return static_cast<ssize_t>(size);
}

}  // extern "C"
