// SPDX-License-Identifier: Apache-2.0
// The parts of the native module. Each function adds classes and functions to it.
#pragma once

#include <pybind11/pybind11.h>

namespace weightfs::client {

void BindHandle(pybind11::module_& module);  // Handle
void BindReader(pybind11::module_& module);  // Reader
void BindMemory(pybind11::module_& module);  // LockedMemory, ZipCrc32Thread and functions for memory
void BindFiles(pybind11::module_& module);   // functions for replacing a file

}  // namespace weightfs::client
