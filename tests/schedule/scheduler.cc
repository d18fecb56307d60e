// SPDX-License-Identifier: Apache-2.0
#include "tests/schedule/scheduler.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <random>

#include "tests/support/one_processor.h"

namespace weightfs::schedule {
namespace {

constexpr size_t kMaxThreads = 512, kMaxHeld = 16, kMaxChanges = 4;
constexpr uint64_t kMaxSteps = 4'000'000;
constexpr int64_t kLongestJump = 100'000'000;  // ns that the clock may jump although a thread could go on

enum class State : unsigned char { kUnused, kReady, kBlocked, kEnded };

struct Thread {
  State state = State::kUnused;
  std::atomic<uint32_t> chosen{0};
  const void* on = nullptr;
  const char* what = "";
  int64_t deadline = kNever;
  bool woken = false, detached = false;
  int64_t priority = 0;
  uint64_t thread = 0;  // pthread_t
  std::array<const void*, kMaxHeld> held = {};
  void* (*start)(void*) = nullptr;
  void* argument = nullptr;
};

constexpr uint32_t kGoOn = 1, kReport = 2;

std::array<Thread, kMaxThreads> threads;
size_t used = 0;  // slots
std::mt19937_64 random_numbers;
bool by_priority = false;
uint64_t switch_one_in = 2;
std::array<uint64_t, kMaxChanges> changes = {};
int64_t lowest_priority = 0;
int64_t now_ns = 0, step_ns = 0;
Trace trace;
constinit thread_local Thread* self = nullptr;

int SlotOf(const Thread& thread) { return static_cast<int>(&thread - threads.data()); }

// Not through the function that this library replaces.
long Futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  static const auto call = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
  return call(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

void PrintStack() {
  std::array<void*, 48> frames;
  const int count = backtrace(frames.data(), frames.size());
  backtrace_symbols_fd(frames.data() + 3, std::max(count - 3, 0), STDERR_FILENO);
}

void Tell(Thread& thread, uint32_t what) {
  thread.chosen.store(what, std::memory_order_release);
  Futex(thread.chosen, FUTEX_WAKE, 1);
}

std::atomic<uint32_t> reported{0};

void AwaitChoice(Thread& thread) {
  while (true) {
    const uint32_t chosen = thread.chosen.load(std::memory_order_acquire);
    if (chosen == kGoOn) break;
    if (chosen == kReport) {
      thread.chosen.store(0);
      PrintStack();
      reported.store(1);
      Futex(reported, FUTEX_WAKE, 1);
    } else {
      Futex(thread.chosen, FUTEX_WAIT, 0);
    }
  }
  thread.chosen.store(0, std::memory_order_relaxed);
}

int HolderOf(const void* lock) {
  for (size_t slot = 0; slot < used; ++slot) {
    const auto& held = threads[slot].held;
    if (lock != nullptr && std::find(held.begin(), held.end(), lock) != held.end()) return static_cast<int>(slot);
  }
  return -1;
}

[[noreturn]] void GiveUp(const char* why) {
  std::fprintf(stderr, "schedule: %s after %lu steps\n", why, trace.steps);
  for (size_t slot = 0; slot < used; ++slot) {
    Thread& thread = threads[slot];
    if (thread.state != State::kReady && thread.state != State::kBlocked) continue;
    std::fprintf(stderr, "thread %zu: %s", slot, thread.state == State::kReady ? "could go on" : "waits for a ");
    if (thread.state == State::kBlocked) std::fprintf(stderr, "%s at %p", thread.what, thread.on);
    if (const int holder = HolderOf(thread.on); holder >= 0) std::fprintf(stderr, ", which thread %d holds", holder);
    std::fputc('\n', stderr);
    if (&thread == self) {
      PrintStack();
      continue;
    }
    reported.store(0);
    Tell(thread, kReport);
    while (reported.load() == 0) Futex(reported, FUTEX_WAIT, 0);
  }
  _exit(kDeadlock);
}

void Mix(uint64_t value) { trace.hash = (trace.hash ^ value) * 0x9E37'79B9'7F4A'7C15ULL + (trace.hash >> 29); }

int64_t NextDeadline() {
  int64_t next = kNever;
  for (size_t slot = 0; slot < used; ++slot) {
    if (threads[slot].state == State::kBlocked) next = std::min(next, threads[slot].deadline);
  }
  return next;
}

void WakeOverdue() {
  for (size_t slot = 0; slot < used; ++slot) {
    Thread& thread = threads[slot];
    if (thread.state == State::kBlocked && thread.deadline <= now_ns) thread.state = State::kReady;
  }
}

// The thread that goes on: perhaps the running one.
Thread& Choose() {
  WakeOverdue();
  std::array<Thread*, kMaxThreads> ready;
  size_t count = 0;
  while (true) {
    for (size_t slot = 0; slot < used; ++slot) {
      if (threads[slot].state == State::kReady) ready[count++] = &threads[slot];
    }
    if (count > 0) break;
    const int64_t next = NextDeadline();
    if (next == kNever) GiveUp("deadlock");
    now_ns = next;
    WakeOverdue();
  }
  if (by_priority) {
    return **std::max_element(ready.begin(), ready.begin() + count,
                              [](const Thread* a, const Thread* b) { return a->priority < b->priority; });
  }
  if (self->state == State::kReady && random_numbers() % switch_one_in != 0) return *self;
  return *ready[random_numbers() % count];
}

void Step() {
  if (++trace.steps > kMaxSteps) GiveUp("no end");
  now_ns += step_ns;
  if (by_priority && std::find(changes.begin(), changes.end(), trace.steps) != changes.end()) {
    self->priority = --lowest_priority;
  }
  if (random_numbers() % 512 == 0) {
    const int64_t next = NextDeadline();
    if (next != kNever && next - now_ns < kLongestJump) now_ns = std::max(now_ns, next);
  }
}

void SwitchTo(Thread& next) {
  Mix(static_cast<uint64_t>(SlotOf(next)));
  if (&next == self) return;
  ++trace.switches;
  Thread& own = *self;
  Tell(next, kGoOn);
  if (own.state != State::kEnded) AwaitChoice(own);
}

Thread& NewThread() {
  size_t slot = 0;
  while (slot < used && threads[slot].state != State::kUnused) ++slot;
  if (slot == kMaxThreads) GiveUp("too many threads");
  used = std::max(used, slot + 1);
  Thread& thread = threads[slot];
  thread.state = State::kReady;
  thread.on = nullptr;
  thread.deadline = kNever;
  thread.detached = false;
  thread.held = {};
  thread.priority = static_cast<int64_t>(random_numbers() >> 2);
  return thread;
}

void* RunThread(void* argument) {
  Thread& thread = *static_cast<Thread*>(argument);
  AwaitChoice(thread);
  self = &thread;
  void* const result = thread.start(thread.argument);
  thread.state = thread.detached ? State::kUnused : State::kEnded;
  Wake(&thread);
  const bool reused = thread.detached;
  Step();
  Thread& next = Choose();
  self = nullptr;
  Mix(static_cast<uint64_t>(SlotOf(next)) + (reused ? 1000 : 2000));
  ++trace.switches;
  Tell(next, kGoOn);
  return result;
}

void Seed(uint64_t seed) {
  random_numbers.seed(seed * 0x9E37'79B9'7F4A'7C15ULL + 1);
  trace = {};
  used = 0;
  now_ns = 0;
  constexpr std::array<int64_t, 4> kSteps = {200, 1'000, 5'000, 50'000};
  step_ns = kSteps[random_numbers() % kSteps.size()];
  by_priority = random_numbers() % 2 == 0;
  constexpr std::array<uint64_t, 4> kOneIn = {1, 3, 10, 40};
  switch_one_in = kOneIn[random_numbers() % kOneIn.size()];
  lowest_priority = 0;
  const uint64_t horizon = uint64_t{300} << (random_numbers() % 6);
  for (uint64_t& change : changes) change = 1 + random_numbers() % horizon;
}

}  // namespace

Trace RunSeed(uint64_t seed, const std::function<void()>& body) {
  const OneProcessor pinned;
  Seed(seed);
  self = &NewThread();
  body();
  for (size_t slot = 1; slot < used; ++slot) {
    if (threads[slot].state == State::kReady || threads[slot].state == State::kBlocked) {
      GiveUp("a thread was not joined");
    }
  }
  threads[0].state = State::kUnused;
  self = nullptr;
  if (LiveAllocations() > 0) {
    std::fprintf(stderr, "schedule: %zu allocations outlive the run\n", LiveAllocations());
    _exit(kDeadlock);
  }
  ResetMemory();
  return trace;
}

void Note(uint64_t value) { Mix(value); }

bool IsScheduled() { return self != nullptr; }

void Point() {
  Step();
  SwitchTo(Choose());
}

void Yield() {
  self->priority = --lowest_priority;
  Point();
}

bool Block(const void* on, const char* what, int64_t deadline_ns) {
  Thread& own = *self;
  own.state = State::kBlocked;
  own.on = on;
  own.what = what;
  own.deadline = deadline_ns;
  own.woken = false;
  Step();
  SwitchTo(Choose());
  own.on = nullptr;
  return own.woken;
}

size_t Wake(const void* on, size_t most) {
  std::array<Thread*, kMaxThreads> waiting;
  size_t count = 0;
  for (size_t slot = 0; slot < used; ++slot) {
    if (threads[slot].state == State::kBlocked && threads[slot].on == on) waiting[count++] = &threads[slot];
  }
  const size_t woken = std::min(most, count);
  for (size_t index = 0; index < woken; ++index) {
    if (woken < count) std::swap(waiting[index], waiting[index + random_numbers() % (count - index)]);
    waiting[index]->state = State::kReady;
    waiting[index]->woken = true;
  }
  return woken;
}

void Acquired(const void* lock) {
  const auto free = std::find(self->held.begin(), self->held.end(), nullptr);
  if (free != self->held.end()) *free = lock;
}

void Released(const void* lock) {
  const auto found = std::find(self->held.begin(), self->held.end(), lock);
  if (found != self->held.end()) *found = nullptr;
}

int64_t Now() {
  now_ns += std::min<int64_t>(step_ns, 1000);
  return now_ns;
}

uint64_t Random() { return random_numbers(); }

int StartThread(int (*create)(void* (*start)(void*), void* argument, void* context), void* context,
                void* (*start)(void*), void* argument, int* result) {
  Thread& thread = NewThread();
  thread.start = start;
  thread.argument = argument;
  *result = create(RunThread, &thread, context);
  if (*result == 0) return SlotOf(thread);
  thread.state = State::kUnused;
  return -1;
}

void Name(int slot, uint64_t thread) { threads[slot].thread = thread; }

int Find(uint64_t thread) {
  for (size_t slot = 1; slot < used; ++slot) {
    if (threads[slot].state != State::kUnused && threads[slot].thread == thread) return static_cast<int>(slot);
  }
  return -1;
}

void AwaitEnd(int slot) {
  while (threads[slot].state != State::kEnded) Block(&threads[slot], "thread");
  threads[slot].state = State::kUnused;
}

void Detach(int slot) {
  threads[slot].detached = true;
  if (threads[slot].state == State::kEnded) threads[slot].state = State::kUnused;
}

}  // namespace weightfs::schedule
