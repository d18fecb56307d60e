# SPDX-License-Identifier: Apache-2.0
"""The types of arguments that several functions take. A buffer is Any: a torch tensor on the CPU or a GPU, a numpy
array, or an object that supports __cuda_array_interface__, DLPack or the buffer protocol."""

import os
from typing import Callable, Iterable, Literal, Optional, Union

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
File = Union[Path, int]            # a path or an open descriptor
Files = Union[Path, Iterable[Path]]
Progress = Optional[Callable[[int, int], object]]
Direct = Literal["auto", "never", "require"]
Mode = Literal["auto", "cufile", "bounce"]
