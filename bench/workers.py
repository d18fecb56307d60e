# SPDX-License-Identifier: Apache-2.0
"""Processes that measure together."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing import connection

from .program import leave

_TRIES, _BETWEEN_TRIES_S, _END_LIMIT_S = 100, 0.1, 30


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


def _work(sender, work, barrier, job):
    be_a_worker()
    try:
        with contextlib.closing(work(barrier, *job)) as values:
            for value in values:
                sender.send((value, None))
        answer = None, ""
    except BaseException as error:
        barrier.abort()
        answer = None, f"{type(error).__name__}: {error}"
    with contextlib.suppress(OSError):   # the parent may have ended
        sender.send(answer)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def together(work, jobs, note, preload):
    """Calls the generator work(barrier, *job) for each job in a process of its own, and note(number of the job, value)
    for each of its values. RuntimeError if a process failed. All of them have ended at the end, also after an
    exception; what they sent until then has been noted. preload: the modules that they need."""
    # Processes are forked from one that has imported these, but has no threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(preload)
    barrier, workers, waiting, failures = context.Barrier(len(jobs)), [], {}, []
    try:
        for number, job in enumerate(jobs):
            receiver, sender = context.Pipe(duplex=False)
            workers.append(context.Process(target=_work, args=(sender, work, barrier, job), daemon=True))
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
