# SPDX-License-Identifier: Apache-2.0
"""The measurement of weightfs-io and weightfs-tune: each process repeatedly writes or reads one file."""

import dataclasses
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

from weightfs.tools._torch import torch

import weightfs
import weightfs.torch
from weightfs import deepnvme
from weightfs.bench.program import be_a_worker, next_answer, raise_first

GB = 1024 ** 3
ENGINES = ("aio_handle", "aio_basic", "torch_io", "torch_fastio")
NO_GPU = "no GPU: torch.cuda.is_available() is false here; omit --gpu, --use_gds, --gds and " \
         "--use_accelerator_pin_memory"
_START_LIMIT_S = 300
_END_LIMIT_S = 30


@dataclasses.dataclass
class Settings:
    """One measurement. Sizes are in bytes. `folders` has one entry per process. So has `gpus`, with the number of the
    GPU that holds the process's tensor; if it is empty, tensors are on the CPU."""

    folders: list
    io_size: int
    read: bool
    block_size: int = 1 << 20
    queue_depth: int = 32
    io_parallel: int = 1
    single_submit: bool = False
    sequential_requests: bool = False
    validate: bool = False
    engine: str = "aio_handle"
    loops: int = 3
    warmup_loops: int = 1
    different_file_each_iteration: bool = False
    gpus: list = dataclasses.field(default_factory=list)
    use_gds: bool = False
    include_warmup_time: bool = False
    torch_legacy_save: bool = False
    use_accelerator_pin_memory: bool = False
    slow_bounce_buffer: bool = False

    @property
    def options(self):
        """The arguments of a handle."""
        return {"block_size": self.block_size, "queue_depth": self.queue_depth, "single_submit": self.single_submit,
                "overlap_events": not self.sequential_requests, "intra_op_parallelism": self.io_parallel}


@dataclasses.dataclass
class Result:
    """Speeds are in GB (1024^3 bytes) per second."""

    task_latency_s: float
    e2e_latency_s: float
    total_bytes: int

    @property
    def task_speed(self):
        return self.total_bytes / self.task_latency_s / GB

    @property
    def e2e_speed(self):
        return self.total_bytes / self.e2e_latency_s / GB


class Progress:
    """The repetitions that the processes of one measurement have finished. It is in shared memory, so that recording a
    repetition does not delay the next one."""

    _FIELDS = 3   # per process: number of counted repetitions, and their seconds alone and together

    def __init__(self, settings):
        self._settings = settings
        self._values = multiprocessing.get_context("forkserver").RawArray("d", self._FIELDS * len(settings.folders))

    def note(self, index, task_s, e2e_s):
        """Called by process `index` after each counted repetition, with the total seconds so far."""
        at = index * self._FIELDS
        self._values[at + 1:at + self._FIELDS] = [task_s, e2e_s]
        self._values[at] += 1

    def result(self):
        """The Result of the repetitions that every process has finished; None before the first counted one."""
        rows = list(zip(*[iter(self._values)] * self._FIELDS))
        least = min(count for count, _, _ in rows)
        if least == 0:
            return None
        # A process may be one repetition ahead, so its seconds are scaled.
        return Result(task_latency_s=max(task * least / count for count, task, _ in rows),
                      e2e_latency_s=max(e2e * least / count for count, _, e2e in rows),
                      total_bytes=int(least) * self._settings.io_size * len(rows))


def measure(settings, progress=None):
    """Runs a measurement and returns the Result. RuntimeError if a process failed. `progress` is updated meanwhile."""
    progress = progress or Progress(settings)
    count = len(settings.folders)
    # Processes are forked from one that has imported torch, but has no handles or threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["weightfs.tools._measure"])
    barrier, queue = context.Barrier(count), context.Queue()
    processes = [context.Process(target=_work, args=(settings, i, barrier, queue, progress), daemon=True)
                 for i in range(count)]
    try:
        for process in processes:
            process.start()
        failures = [failure for failure in (next_answer(processes, queue) for _ in processes) if failure]
        for process in processes:
            process.join(_END_LIMIT_S)
    finally:
        for index, process in enumerate(processes):
            if process.pid is not None:
                _end(process, index, settings)
    raise_first(failures)
    return progress.result()


def _end(process, index, settings):
    """Ends a process and removes its files, whatever it waits for: a killed process may have held a lock of the
    barrier."""
    process.terminate()
    process.join(_END_LIMIT_S)
    process.kill()
    process.join()
    for path in Path(settings.folders[index]).glob(f"{_file_name(process.pid, index)}*"):
        path.unlink(missing_ok=True)


def _file_name(pid, index):
    return f"_weightfs_io_{pid}_{index}"


def _work(settings, index, barrier, queue, progress):
    be_a_worker()
    try:
        _repeat(settings, index, barrier, progress)
        queue.put(None)
    except BaseException as error:
        barrier.abort()
        queue.put(f"{type(error).__name__}: {error}")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _repeat(settings, index, barrier, progress):
    task = _Task(settings, index)
    try:
        task_s = e2e_s = 0.0
        for loop in range(settings.warmup_loops + settings.loops):
            task.prepare(loop)
            barrier.wait(_START_LIMIT_S)
            start = time.perf_counter()
            task.run(loop)
            ended = time.perf_counter()
            barrier.wait()
            together = time.perf_counter()
            if settings.validate:
                task.validate(loop)
            if settings.include_warmup_time or loop >= settings.warmup_loops:
                task_s += ended - start
                e2e_s += together - start
                progress.note(index, task_s, e2e_s)
    finally:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)   # it is already ending
        finally:
            task.close()


class _Task:
    """The file and the tensor of one process."""

    def __init__(self, settings, index):
        self.settings, self.made = settings, set()
        self.base = Path(settings.folders[index]) / _file_name(os.getpid(), index)
        self.handle = self._new_handle()
        if settings.use_gds and index == 0:
            print(f"gds_handle: mode {self.handle.mode}: {self.handle.mode_reason}", file=sys.stderr, flush=True)
        self.tensor = self._new_tensor(index)
        self.tensor.random_(0, 256)
        self.expected = self.tensor.clone() if settings.validate else None

    def _new_handle(self):
        return (weightfs.gds_handle if self.settings.use_gds else weightfs.aio_handle)(**self.settings.options)

    def _new_tensor(self, index):
        size = self.settings.io_size
        if not self.settings.gpus:
            if self.settings.use_accelerator_pin_memory:
                return torch.empty(size, dtype=torch.uint8, pin_memory=True)
            return self.handle.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
        torch.cuda.set_device(self.settings.gpus[index])
        example = torch.empty(0, dtype=torch.uint8, device="cuda")
        return self.handle.new_pinned_device_tensor(size, example) if self.settings.use_gds else example.new_empty(size)

    def path(self, loop):
        name = f"{self.base}_{loop}" if self.settings.different_file_each_iteration else str(self.base)
        self.made.add(name)
        return name

    def prepare(self, loop):
        path = self.path(loop)
        if not self.settings.read:
            return
        if not os.path.exists(path):
            self._write(path)
        if self.settings.validate:
            self.tensor.zero_()

    def run(self, loop):
        if self.settings.slow_bounce_buffer:
            self.handle.close()
            self.handle = self._new_handle()   # allocate the buffers now, because they are locked on first use
        self._read(self.path(loop)) if self.settings.read else self._write(self.path(loop))
        if self.settings.gpus:
            torch.cuda.synchronize()   # torch's own initialization may still be running

    def validate(self, loop):
        if not self.settings.read:
            self.tensor.zero_()
            self._read(self.path(loop))
        if not torch.equal(self.tensor, self.expected):
            raise RuntimeError(f"validation failed: {self.path(loop)} is not what was written")

    def _write(self, path):
        engine, old = self.settings.engine, {"_use_new_zipfile_serialization": not self.settings.torch_legacy_save}
        if engine == "aio_handle":
            self.handle.write_from(self.tensor, path)
        elif engine == "aio_basic":
            self._basic(deepnvme.aio_write, path)
        elif engine == "torch_io":
            torch.save(self.tensor, path, **old)
        else:
            weightfs.torch.save(self.tensor, path, handle=self.handle, **old)

    def _read(self, path):
        engine = self.settings.engine
        if engine == "aio_handle":
            self.handle.read_into(self.tensor, path)
        elif engine == "aio_basic":
            self._basic(deepnvme.aio_read, path)
        else:
            self.tensor = torch.load(path) if engine == "torch_io" else weightfs.torch.load(path, handle=self.handle)

    def _basic(self, function, path):
        block_size, depth, single, overlap, _ = self.settings.options.values()
        if function(self.tensor, path, block_size, depth, single, overlap, False) != 0:
            raise RuntimeError(f"{path}: the operation failed; the line above says why")

    def close(self):
        self.handle.close()
        for name in self.made:
            Path(name).unlink(missing_ok=True)
