# SPDX-License-Identifier: Apache-2.0
"""The measurement of weightfs-io and weightfs-tune: each process repeatedly writes or reads one file."""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing import connection
from pathlib import Path

from weightfs.tools._torch import torch

import weightfs
import weightfs.torch
from weightfs import deepnvme
from weightfs.bench.program import leave, number_from, size

GB = 1024 ** 3
ENGINES = ("aio_handle", "aio_basic", "torch_io", "torch_fastio")
NO_GPU = "no GPU: torch.cuda.is_available() is false here; omit --gpu, --use_gds, --gds and " \
         "--use_accelerator_pin_memory"
_START_LIMIT_S = 300
_TRIES, _BETWEEN_TRIES_S, _END_LIMIT_S = 100, 0.1, 30


def _option(default, meaning, kind=None, **more):
    """A setting that is an option of weightfs-io, of a type of arguments, or a flag."""
    argument = ({"type": kind, "default": default, "help": f"{meaning} (default {default})"} if kind else
                {"action": "store_true", "help": meaning})
    return dataclasses.field(default=kind(str(default)) if kind else default, metadata=argument | more)


@dataclasses.dataclass
class Settings:
    """One measurement. `folders` has one entry per process. So has `gpus`, with the number of the GPU that holds the
    process's tensor; if it is empty, tensors are on the CPU."""

    folders: list
    io_size: int = _option("400M", "bytes of each file: a number with K, M or G", size)
    block_size: int = _option("1M", "bytes of one transfer", size)
    fast_io_size: int = _option("64M", "no effect: ds_io's buffer for torch_fastio, which needs none here", size)
    queue_depth: int = _option(32, "transfers in the kernel at once", number_from(1))
    io_parallel: int = _option(1, "slices of each operation", number_from(1))
    loops: int = _option(3, "measured repetitions", number_from(1))
    warmup_loops: int = _option(1, "warm-up repetitions", number_from(0))
    multi_process: int = _option(1, "processes for each folder", number_from(1))
    engine: str = _option("aio_handle", "aio_basic: a handle for each operation; torch_io: torch.save and load; "
                          "torch_fastio: those of weightfs.torch", str, choices=ENGINES)
    read: bool = _option(False, "measure reads (default: writes)")
    validate: bool = _option(False, "compare the data that was written or read")
    single_submit: bool = _option(False, "one transfer in each system call")
    sequential_requests: bool = _option(False, "one batch of queue_depth after the other, without overlap")
    include_warmup_time: bool = _option(False, "include the warm-up repetitions")
    different_file_each_iteration: bool = _option(False, "a new file for each repetition")
    gpu: bool = _option(False, "transfer tensors of a GPU")
    use_gds: bool = _option(False, "transfer tensors of a GPU with a gds_handle (implies --gpu; its mode: "
                            "WEIGHTFS_GDS_MODE)")
    slow_bounce_buffer: bool = _option(False, "with --gpu: lock new bounce buffers in each repetition")
    use_accelerator_pin_memory: bool = _option(False, "page-lock the host's tensors with CUDA, not with the handle")
    torch_legacy_save: bool = _option(False, "torch's format before zip files")
    gpus: list = dataclasses.field(default_factory=list)

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
    """The counted repetitions that each process of a measurement has finished: their seconds alone and together."""

    def __init__(self, settings):
        self.settings, self.seconds = settings, [[] for _ in settings.folders]

    def result(self):
        """The Result of the repetitions that every process has finished; None before the first counted one."""
        least = min(map(len, self.seconds))
        if least == 0:
            return None
        task_s, e2e_s = (max(sum(pair[kind] for pair in each[:least]) for each in self.seconds) for kind in (0, 1))
        return Result(task_s, e2e_s, least * self.settings.io_size * len(self.seconds))


def measure(settings, progress=None):
    """Runs a measurement and returns the Result. RuntimeError if a process failed. `progress` is updated meanwhile."""
    progress = progress or Progress(settings)
    try:
        _together(settings, lambda number, pair: progress.seconds[number].append(pair))
    finally:   # also the files of processes that were killed
        for folder in set(settings.folders):
            for path in Path(folder).glob(f"_weightfs_io_*_{os.getpid()}_*"):
                path.unlink(missing_ok=True)
    return progress.result()


def _repeat(barrier, settings, index, parent):
    task = _Task(settings, index, parent)
    try:
        for loop in range(settings.warmup_loops + settings.loops):
            task.prepare(loop)
            barrier.wait(_START_LIMIT_S)
            start = time.perf_counter()
            task.run(loop)
            ended = time.perf_counter()
            barrier.wait()
            together_s = time.perf_counter() - start
            if settings.validate:
                task.validate(loop)
            if settings.include_warmup_time or loop >= settings.warmup_loops:
                yield ended - start, together_s
    finally:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)   # it is already ending
        finally:
            task.close()


class _Task:
    """The file and the tensor of one process."""

    def __init__(self, settings, index, parent):
        self.settings, self.made = settings, set()
        self.base = Path(settings.folders[index]) / f"_weightfs_io_{os.getpid()}_{parent}_{index}"
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


# The processes

def be_a_worker():
    """Makes this process a worker: it ignores Ctrl-C, which its parent handles, and ends when its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, leave)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _end_with(parent):
    parent.join()
    # Repeated, because a signal that arrives right before the main thread waits for a lock does not wake it.
    for _ in range(_TRIES):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_BETWEEN_TRIES_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _work(sender, barrier, *job):
    be_a_worker()
    try:
        with contextlib.closing(_repeat(barrier, *job)) as values:
            for value in values:
                sender.send((value, None))
        answer = None, ""
    except BaseException as error:
        barrier.abort()
        answer = None, f"{type(error).__name__}: {error}"
    with contextlib.suppress(OSError):   # the parent may have ended
        sender.send(answer)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _together(settings, note):
    """Runs _repeat in a process for each folder, and note(number of the process, value) for each of its values.
    RuntimeError if a process failed. All of them have ended at the end, also after an exception; what they sent until
    then has been noted."""
    # Processes are forked from one that has imported this module, but has no threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["weightfs.tools._measure"])
    barrier, workers, waiting, failures = context.Barrier(len(settings.folders)), [], {}, []
    try:
        for number in range(len(settings.folders)):
            receiver, sender = context.Pipe(duplex=False)
            workers.append(context.Process(target=_work, args=(sender, barrier, settings, number, os.getpid()),
                                           daemon=True))
            workers[-1].start()
            sender.close()
            waiting[receiver] = number
        while waiting:
            for receiver in connection.wait(waiting):
                if (failure := _receive(receiver, waiting[receiver], workers, note)) is not None:
                    del waiting[receiver]
                    failures += [failure] * bool(failure)
    finally:
        _end(workers)
        for receiver, number in waiting.items():
            with contextlib.suppress(RuntimeError):
                while _receive(receiver, number, workers, note) is None:
                    pass
    if failures:   # the first failure breaks the barrier of the other workers
        raise RuntimeError(min(failures, key=lambda text: "BrokenBarrier" in text))


def _receive(receiver, number, workers, note):
    """Notes the next value of a worker. Returns None, or at its end the failure, which may be empty. RuntimeError if it
    was killed: the others may wait forever at the barrier."""
    try:
        value, failure = receiver.recv()
    except (EOFError, OSError):
        worker = workers[number]
        worker.join()
        how = (f"was killed by {signal.Signals(-worker.exitcode).name}" if worker.exitcode < 0 else
               f"ended with status {worker.exitcode}")
        raise RuntimeError(f"process {worker.pid} {how} and gave no result") from None
    if failure is None:
        note(number, value)
    return failure


def _end(workers):
    """Ends processes, whatever they wait for: a killed one may have held a lock of the barrier."""
    started = [worker for worker in workers if worker.pid is not None]
    for worker in started:
        worker.terminate()
    for worker in started:
        worker.join(_END_LIMIT_S)
        worker.kill()
        worker.join()
