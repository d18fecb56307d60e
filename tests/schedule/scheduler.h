// SPDX-License-Identifier: Apache-2.0
// Runs threads one at a time, in an order that a seed determines. A program that links this library has its functions
// of pthreads, futexes and clocks replaced (interposed.cc). They are the usual ones, except in RunSeed: there a thread
// goes on only when the scheduler has chosen it, and the next choice is at its next lock, wait, notification, sleep or
// start of a thread. So a seed repeats the whole interleaving.
//
// What the scheduler does not choose: the order of accesses to memory between two such points. ThreadSanitizer finds
// races there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace weightfs::schedule {

struct Trace {
  uint64_t steps = 0;     // choices
  uint64_t switches = 0;  // to another thread
  uint64_t hash = 0;      // of all choices, and of what Note got
};

// Runs `body` and the threads that it starts, directly or not, which it must join. Half of the seeds choose at random,
// with a probability of a switch that depends on the seed. The others give each thread a random priority, and lower
// that of the running thread at a few random steps: a bug that needs d such orders is found with a known probability
// (Burckhardt, Kothari, Musuvathi, Nagarakatte, "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs",
// ASPLOS 2010).
//
// Time is virtual: each step takes a moment, and when every thread waits, the clock jumps to the next deadline. If
// there is none either, the threads and what they wait for are printed, and the process ends with kDeadlock. Same for
// a run that does not end.
//
// Memory that the threads allocate with `new` has the same addresses in each run. It must be freed in the run, because
// the next one uses it again. With AddressSanitizer the addresses are the usual ones, so that a container that is
// ordered by addresses may have another order in another process.
//
// One run at a time, and no other threads of the process meanwhile.
Trace RunSeed(uint64_t seed, const std::function<void()>& body);
inline constexpr int kDeadlock = 70;

// For the trace of the run.
void Note(uint64_t value);
// Whether addresses are the same in each process.
bool FixesAddresses();

// The rest is for the functions that replace others.

// True for a thread of a run.
bool IsScheduled();
// Another thread may go on here.
void Point();
// Same, and prefers others.
void Yield();
// Waits until Wake of the same address, or until the virtual time `deadline`. Returns false if that came first.
inline constexpr int64_t kNever = INT64_MAX;
bool Block(const void* on, const char* what, int64_t deadline_ns = kNever);
// Wakes up to `most` of the threads that wait for the address, in random order. They go on once they are chosen.
size_t Wake(const void* on, size_t most = SIZE_MAX);
// For reports: who holds a lock that others wait for.
void Acquired(const void* lock);
void Released(const void* lock);
// Nanoseconds since the start of the run; a call takes a moment.
int64_t Now();
uint64_t Random();

// Slots of threads; -1 if there is no such thread in the run.
int StartThread(int (*create)(void* (*start)(void*), void* argument, void* context), void* context,
                void* (*start)(void*), void* argument, int* result);
void Name(int slot, uint64_t thread);
int Find(uint64_t thread);
void AwaitEnd(int slot);
void Detach(int slot);

// Of memory with fixed addresses (memory.cc).
void ResetMemory();
size_t LiveAllocations();

}  // namespace weightfs::schedule
