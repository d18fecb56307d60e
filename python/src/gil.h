// SPDX-License-Identifier: Apache-2.0
// The GIL, given up and taken by threads that may find the interpreter gone when they come back.
//
// Until 3.13 Python ends such a thread by pthread_exit, which unwinds its stack and may not pass a destructor; from
// 3.14 on it stands still. Here it stands still in all versions: the process is about to end.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace weightfs::client {

[[noreturn]] inline void ParkForEver() {
  for (;;) pause();
}

// False when Python's objects must not be touched any more, by a thread that does not have the GIL.
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

// Any thread; one that gave it up, too.
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

// Whether a signal's handler, which runs here, raised an exception: it is set then.
inline bool SignalRaised() {
  const AcquireGil gil;
  return PyErr_CheckSignals() != 0;
}

}  // namespace weightfs::client
