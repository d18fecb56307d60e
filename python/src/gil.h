// SPDX-License-Identifier: Apache-2.0
// Releases and acquires the GIL in threads that may return after the interpreter has ended.
//
// Before 3.14 Python ends such a thread by pthread_exit, whose unwinding must not pass a destructor; from 3.14 on it
// blocks the thread forever. Here the thread blocks in all versions, because the process is about to exit.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace weightfs::client {

[[noreturn]] inline void ParkForEver() {
  for (;;) pause();
}

// Returns false if Python objects must not be accessed any more. For threads that do not hold the GIL.
inline bool InterpreterRuns() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() != 0 && Py_IsFinalizing() == 0;
#else
  return Py_IsInitialized() != 0 && _Py_IsFinalizing() == 0;
#endif
}

class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      ParkForEver();
    }
  }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* const state_;
};

// Calls `call` with the GIL released, and returns its result.
template <typename Call>
auto WithoutGil(Call call) {
  const ReleaseGil nogil;
  return call();
}

// For any thread, including one that has released the GIL.
class AcquireGil {
 public:
  AcquireGil() : state_(Take()) {}
  ~AcquireGil() { PyGILState_Release(state_); }
  AcquireGil(const AcquireGil&) = delete;
  AcquireGil& operator=(const AcquireGil&) = delete;

 private:
  static PyGILState_STATE Take() {
    try {
      return PyGILState_Ensure();
    } catch (abi::__forced_unwind&) {
      ParkForEver();
    }
  }

  const PyGILState_STATE state_;
};

// Runs the pending signal handlers. True if one of them raised an exception, which is then set.
inline bool SignalRaised() {
  const AcquireGil gil;
  return PyErr_CheckSignals() != 0;
}

}  // namespace weightfs::client
