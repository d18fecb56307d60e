# SPDX-License-Identifier: Apache-2.0
"""weightfs.checkpoint.Manager: saving, publishing, loading, pruning, errors."""

import asyncio
import concurrent.futures
import errno
import fcntl
import gc
import io
import os
import signal
import threading

import pytest
import torch

import weightfs
import weightfs.torch
from checkpoint_run import same, state
from weightfs import checkpoint


def names(folder):
    return sorted(os.listdir(folder))


class Held:
    """A manager whose writes wait for `go`, or fail with `error`."""

    def __init__(self, folder, error=None, **options):
        self.begun, self.go = threading.Event(), threading.Event()
        self._error, self._handle = error, weightfs.aio_handle()
        self._write, self._handle.write_from = self._handle.write_from, self._held
        self.manager = checkpoint.Manager(folder, handle=self._handle, **options)

    def _held(self, *arguments, **options):
        self.begun.set()
        self.go.wait(100)
        if self._error is not None:
            raise self._error
        return self._write(*arguments, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.go.set()
        self.manager.close()
        self._handle.close()


def test_a_step_is_the_file_of_torch_save(folder):
    saved, theirs = state(7), io.BytesIO()
    weightfs.torch.save(saved, theirs, crc32=False)
    with checkpoint.Manager(folder / "run") as manager:
        path = manager.save(7, saved).result()
        assert path == str(folder / "run/step-00000007") and names(path) == ["state.pt"]
        assert (folder / "run/step-00000007/state.pt").read_bytes() == theirs.getvalue()
        loaded = manager.load()
    assert same(loaded, saved) and same(torch.load(path + "/state.pt", weights_only=True), saved)
    assert loaded["view"].untyped_storage().data_ptr() == loaded["weights"].untyped_storage().data_ptr()
    assert names(folder / "run") == ["step-00000007"]


def test_a_step_gets_its_name_when_it_is_complete_and_durable(local, monkeypatch):
    """After a power loss, a step with its name must be whole on filesystems that do not order data before names."""
    durable, renamed, rename = [], [], os.rename
    handle = weightfs.aio_handle()
    write = handle.write_from

    def writes(content, path, **options):
        written = write(content, path, **options)
        durable.append((path, options.get("durable")))
        return written

    def renames(source, target):
        file = os.path.join(source, "state.pt")
        assert durable == [(file, True)]
        assert same(torch.load(file, weights_only=True), state(7))
        renamed.append(target)
        rename(source, target)

    handle.write_from = writes
    monkeypatch.setattr(os, "rename", renames)
    with handle, checkpoint.Manager(local / "run", handle=handle) as manager:
        path = manager.save(7, state(7)).result()
    assert renamed == [path]


def test_objects_need_weights_only_false(local):
    with checkpoint.Manager(local) as manager:
        manager.save(1, {"error": ValueError("an object")}, wait=True)
        with pytest.raises(Exception, match="[Ww]eights"):
            manager.load()
        assert manager.load(weights_only=False)["error"].args == ("an object",)


def test_a_save_returns_a_future(local):
    with checkpoint.Manager(local) as manager:
        saving = manager.save(1, state(1))
        assert isinstance(saving, weightfs.Future)
        assert concurrent.futures.wait([saving], 60).done == {saving}
        assert (saving.step, saving.pushed, saving.cancel()) == (1, None, False)
        assert saving.result() == str(local / "step-00000001")


def test_the_mode_of_the_files_obeys_the_umask(local):
    before = os.umask(0o027)
    try:
        with checkpoint.Manager(local) as manager:
            manager.save(1, state(1), wait=True)
    finally:
        os.umask(before)
    assert (local / "step-00000001/state.pt").stat().st_mode & 0o777 == 0o640


def test_a_state_may_change_when_save_returns(folder):
    saved = state(1)
    with Held(folder) as held:
        saving = held.manager.save(1, saved)
        held.begun.wait()
        assert not saving.done() and held.manager.steps() == []
        saved["weights"].zero_()
        saved["flags"].clear()
        held.go.set()
        held.manager.wait()
        assert saving.done() and same(held.manager.load(), state(1))


def test_a_save_waits_for_the_one_before(local):
    with Held(local) as held:
        first = held.manager.save(1, state(1))
        second = []
        thread = threading.Thread(target=lambda: second.append((held.manager.save(2, state(2)), first.done())))
        thread.start()
        held.begun.wait()
        assert not second and not first.done()
        held.go.set()
        thread.join()
        assert second[0][1] and held.manager.latest() in (1, 2)
        second[0][0].result()
        assert held.manager.steps() == [1, 2]


def test_the_memory_of_a_save_is_used_again(local):
    with checkpoint.Manager(local) as manager:
        manager.save(1, state(1, scale=8), wait=True)
        memory, size = manager._snapshot._memory, len(manager._snapshot._memory)
        for step, scale in ((2, 8), (3, 1)):
            manager.save(step, state(step, scale), wait=True)
            assert manager._snapshot._memory is memory and len(memory) == size
            assert same(manager.load(), state(step, scale))


@pytest.mark.parametrize("ask", [None, "result", "exception"])
def test_the_error_of_a_save_is_raised_once(local, ask):
    error = OSError(errno.EIO, "the device is gone")
    with Held(local, error) as held:
        held.go.set()
        saving = held.manager.save(1, state(1))
        if ask == "exception":
            assert saving.exception() is error
        elif ask == "result":
            with pytest.raises(OSError, match="gone"):
                saving.result()
        else:
            with pytest.raises(OSError, match="gone"):
                held.manager.wait()
        held.manager.wait()
        assert names(local) == []


def test_an_error_nobody_asked_for_is_raised_by_the_next_save_and_by_close(local):
    for call in (lambda manager: manager.save(2, state(2)), lambda manager: manager.close()):
        held = Held(local, OSError(errno.EIO, "the device is gone"))
        held.go.set()
        held.manager.save(1, state(1))
        with pytest.raises(OSError, match="gone") as caught:
            call(held.manager)
        assert caught.value.filename == str(local / "step-00000001/state.pt")
        held.manager.close()
        held._handle.close()
    assert names(local) == []


def test_a_larger_state_after_a_failed_save_is_saved(local):
    held = Held(local, OSError(errno.EIO, "the device is gone"))
    held.go.set()
    failed = held.manager.save(1, state(1))
    assert failed.exception() is held._error
    held._error = None
    held.manager.save(2, state(2, scale=20), wait=True)
    assert same(held.manager.load(), state(2, scale=20))
    held.manager.close()


def test_a_save_can_be_awaited(local):
    async def run(manager):
        first = await manager.save(1, state(1))
        return first, await manager.save(2, state(2))

    with checkpoint.Manager(local) as manager:
        assert asyncio.run(run(manager)) == tuple(str(local / f"step-0000000{step}") for step in (1, 2))


def test_a_step_that_exists_is_replaced(folder):
    with checkpoint.Manager(folder) as manager:
        manager.save(5, state(1), wait=True)
        (folder / "step-00000005/notes").write_text("of the program")
        with open(folder / "step-00000005/state.pt", "rb") as old:
            manager.save(5, state(2), wait=True)
            assert same(torch.load(old), state(1))
        assert same(manager.load(5), state(2)) and manager.steps() == [5]
    assert names(folder) == ["step-00000005"] and names(folder / "step-00000005") == ["notes", "state.pt"]


def test_keep_removes_the_lowest_steps(folder):
    with checkpoint.Manager(folder, keep=2) as manager:
        for step in (10, 20, 30):
            manager.save(step, state(step), wait=True)
        assert manager.steps() == [20, 30]
        manager.save(5, state(5), wait=True)   # what was just saved stays
        assert manager.steps() == [5] and manager.latest() == 5
        assert same(manager.load(5), state(5))
    with checkpoint.Manager(folder, keep=1) as manager:
        manager.save(40, state(40), wait=True)
        assert manager.steps() == [40]
    assert names(folder) == ["step-00000040"]


def test_a_step_that_is_a_symbolic_link_is_removed_as_a_link(folder):
    with checkpoint.Manager(folder, keep=1) as manager:
        manager.save(1, state(1), wait=True)
        os.rename(folder / "step-00000001", folder / "elsewhere")
        os.symlink("elsewhere", folder / "step-00000001")
        assert manager.steps() == [1]
        manager.save(2, state(2), wait=True)
    assert names(folder) == ["elsewhere", "step-00000002"] and names(folder / "elsewhere") == ["state.pt"]


def test_a_directory_that_cannot_be_looked_at_is_named_with_the_reason(local, monkeypatch):
    seen = os.stat

    def of_another_user(path, *arguments, **options):   # as on a mount without allow_other
        if str(path).startswith(str(local)):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return seen(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", of_another_user)
    with pytest.raises(PermissionError) as caught:
        checkpoint.Manager(local / "run")
    assert caught.value.filename == str(local)


def test_what_killed_programs_left_is_removed_at_the_start(folder):
    mine, others = folder / ".step-00000001.weightfs-0123abcd", folder / ".step-00000002.weightfs-0123abcd"
    for path in (mine, others):
        path.mkdir()
        (path / "state.pt").write_bytes(b"part")
    (folder / ".step-notes").mkdir()
    living = os.open(others, os.O_RDONLY)
    fcntl.flock(living, fcntl.LOCK_EX)
    checkpoint.Manager(folder).close()
    assert names(folder) == [".step-00000002.weightfs-0123abcd", ".step-notes"]
    os.close(living)
    checkpoint.Manager(folder).close()
    assert names(folder) == [".step-notes"]


def test_a_second_manager_leaves_the_save_under_way_alone(folder):
    with Held(folder) as held:
        held.manager.save(1, state(1))
        held.begun.wait()
        checkpoint.Manager(folder).close()
        held.go.set()
        held.manager.wait()
        assert same(held.manager.load(), state(1))


def test_a_step_whose_lock_a_forked_child_has_inherited_is_removed_after_its_end(folder):
    with Held(folder, keep=1) as held:
        held.manager.save(1, state(1))
        held.begun.wait()
        child = os.fork()
        if child == 0:
            signal.pause()
        try:
            held.go.set()
            held.manager.save(2, state(2), wait=True)
            assert held.manager.steps() == [2] and len(names(folder)) == 2
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        held.manager.save(3, state(3), wait=True)
        assert names(folder) == ["step-00000003"]


def test_only_whole_steps_are_listed(local):
    for name in ("step-1", "step-000000001", "step-00000002x", ".step-00000003", "step-00000004"):
        (local / name).mkdir()
    (local / "step-00000005").write_text("a file")
    with checkpoint.Manager(local) as manager:
        assert manager.steps() == [] and manager.latest() is None
        for arguments in ((), (7,)):
            with pytest.raises(FileNotFoundError) as caught:
                manager.load(*arguments)
            assert caught.value.filename == str(local)
        manager.save(4, state(4), wait=True)   # an empty directory is replaced
        assert manager.steps() == [4]
        with pytest.raises(NotADirectoryError):
            manager.save(5, state(5), wait=True)


def test_a_damaged_step_is_an_error_or_the_next_lower_one_is_loaded(local, caplog):
    with checkpoint.Manager(local) as manager:
        for step in (1, 2, 3):
            manager.save(step, state(step), wait=True)
        os.truncate(local / "step-00000003/state.pt", 1000)
        (local / "step-00000002/state.pt").write_bytes(b"")
        with pytest.raises(RuntimeError):
            manager.load()
        assert same(manager.load(fallback=True), state(1))
        assert [record.args[0] for record in caplog.records] == [3, 2]
        os.truncate(local / "step-00000001/state.pt", 1000)
        with pytest.raises(RuntimeError):
            manager.load(fallback=True)
        with pytest.raises(FileNotFoundError):
            manager.load(9, fallback=True)


def test_a_state_beyond_max_memory_is_refused(local):
    with checkpoint.Manager(local, max_memory=2 << 20) as manager:
        manager.save(1, state(1), wait=True)
        with pytest.raises(MemoryError, match="max_memory=2097152"):
            manager.save(2, state(2, scale=4))
        manager.save(3, state(3), wait=True)
        assert manager.steps() == [1, 3]


def test_a_save_that_failed_does_not_reach_the_next_one(local):
    """torch's writer ends its archive when the exception, which refers to it, is deleted."""
    class Unpicklable:
        def __reduce__(self):
            raise ValueError("no")

    with Held(local, max_memory=2 << 20) as held:
        errors = []
        for wrong in (state(1, scale=4), {"a": torch.ones(200_000), "b": Unpicklable()}):
            with pytest.raises((MemoryError, ValueError)) as caught:
                held.manager.save(1, wrong)
            errors.append(caught)
        held.manager.save(2, state(2))
        held.begun.wait()
        del caught
        errors.clear()
        gc.collect()
        held.go.set()
        held.manager.wait()
        assert same(held.manager.load(), state(2)) and held.manager.steps() == [2]


def test_wrong_arguments_are_refused(local):
    for options in ({"keep": 0}, {"keep": -1}, {"max_memory": 0}):
        with pytest.raises(ValueError, match="must be from 1"):
            checkpoint.Manager(local, **options)
    with pytest.raises(TypeError, match="whole number"):
        checkpoint.Manager(local, keep=1.5)
    (local / "file").write_text("x")
    with pytest.raises(OSError):
        checkpoint.Manager(local / "file")
    with checkpoint.Manager(local) as manager:
        for step, error in ((-1, ValueError), (1.0, TypeError), ("1", TypeError), (1 << 63, ValueError)):
            with pytest.raises(error, match="step is"):
                manager.save(step, {})
        with pytest.raises((AttributeError, TypeError, Exception), match="(?i)pickle|local"):
            manager.save(1, lambda: None)
        assert manager.steps() == []
        with pytest.raises(TypeError, match="pickled"):
            torch.save(manager, io.BytesIO())
    manager.close()
    for call in (lambda: manager.save(1, {}), manager.load, lambda: manager.restore({})):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_the_directory_stays_the_same_after_chdir(local, monkeypatch):
    monkeypatch.chdir(local)
    with checkpoint.Manager("a/b") as manager:
        monkeypatch.chdir("/")
        manager.save(1, state(1), wait=True)
    assert names(local / "a/b") == ["step-00000001"]


def test_the_interpreter_exits_after_the_save(local, child):
    child(f"from weightfs import checkpoint\nfrom checkpoint_run import state\n"
          f"checkpoint.Manager({str(local)!r}).save(3, state(3, scale=4))\n")
    assert same(torch.load(local / "step-00000003/state.pt"), state(3, scale=4))


def test_a_program_saves_while_it_exits(local, child):
    child(f"import atexit\nfrom weightfs import checkpoint\nfrom checkpoint_run import state\n"
          f"manager = checkpoint.Manager({str(local)!r})\natexit.register(lambda: manager.save(3, state(3), wait=True))\n")
    assert same(torch.load(local / "step-00000003/state.pt"), state(3))


def test_a_forked_child_is_refused_and_the_parent_goes_on(local):
    with Held(local) as held:
        saving = held.manager.save(1, state(1))
        held.begun.wait()
        pid = os.fork()
        if pid == 0:
            refused = 0
            for call in (lambda: held.manager.save(2, {}), held.manager.wait, saving.result, held.manager.load):
                try:
                    call()
                except PermissionError:
                    refused += 1
            held.manager.close()
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
        held.go.set()
        saving.result()
        assert same(held.manager.load(), state(1))


def flags_at(address):
    """The flags of the mapping of an address in this process."""
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            words = line.split()
            if not words[0].endswith(":"):   # "7f0000000000-7f0000200000 rw-p …"
                begin, end = (int(word, 16) for word in words[0].split("-"))
            elif words[0] == "VmFlags:" and begin <= address < end:
                return words[1:]
    return []


def test_a_forked_child_gets_no_copy_of_the_memory(local):
    with checkpoint.Manager(local) as manager:
        for scale in (1, 20):   # the second state enlarges the memory
            manager.save(1, state(1, scale), wait=True)
            memory = torch.frombuffer(manager._snapshot._memory, dtype=torch.uint8)
            first, last = memory.data_ptr(), memory.data_ptr() + memory.nbytes - 1
            assert "wf" in flags_at(first) and "wf" in flags_at(last)
            child = os.fork()
            if child == 0:
                os._exit(int(memory[:1000].any()))   # the kernel gives it empty pages
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and memory[:1000].any()
            del memory   # or the mapping could not grow


def test_a_signal_handler_cannot_save_inside_save(local):
    class Handler:
        """torch.save calls it where a signal handler could run."""
        def __reduce__(self):
            for call in (lambda: manager.save(9, {}), manager.close):
                with pytest.raises(RuntimeError, match="signal handler"):
                    call()
            return int, (5,)

    with checkpoint.Manager(local) as manager:
        manager.save(1, {"a": Handler()}, wait=True)
        assert manager.steps() == [1] and manager.load(weights_only=False) == {"a": 5}


def test_a_full_pool_keeps_the_older_steps(factory, weightfs_only):
    mount = factory.mount(factory.store("64M"))
    with checkpoint.Manager(mount.path / "run", keep=2) as manager:
        manager.save(1, state(1), wait=True)
        saving = manager.save(2, {"large": torch.zeros(80 << 20, dtype=torch.uint8)})
        with pytest.raises(OSError, match="(?i)no space left") as caught:
            saving.result()
        assert caught.value.filename == str(mount.path / "run/step-00000002/state.pt")
        assert names(mount.path / "run") == ["step-00000001"] and same(manager.load(), state(1))
        manager.save(3, state(3), wait=True)
        assert manager.steps() == [1, 3]
    mount.fsck()


def test_a_mount_is_bypassed_by_leases(work, weightfs_only):
    with weightfs.aio_handle() as handle, checkpoint.Manager(work, handle=handle) as manager:
        manager.save(1, state(1, scale=20), wait=True)
        assert handle.direct_operations == 1
        assert same(manager.load(), state(1, scale=20)) and handle.direct_operations > 1


def test_a_save_is_durable_when_its_future_is_done(factory, weightfs_only):
    mount = factory.mount(factory.store("256M"), "commit=3600")
    with checkpoint.Manager(mount.path / "new/run") as manager:
        for step in (1, 2):
            manager.save(step, state(step, scale=4), wait=True)
    mount.kill9()
    mount.mount()
    with checkpoint.Manager(mount.path / "new/run") as manager:
        assert manager.steps() == [1, 2] and same(manager.load(), state(2, scale=4))


def test_an_interrupt_before_the_write_begins_leaves_nothing_to_wait_for(local, monkeypatch):
    def interrupt(_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    with checkpoint.Manager(local) as manager:
        monkeypatch.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            manager.save(1, state(1))
        assert manager._saving is None   # otherwise the next call waits forever
        manager.save(2, state(2))
    assert manager.steps() == [2]


def test_an_interrupted_close_raises_the_interrupt(local, monkeypatch):
    def interrupt():
        held.begun.wait(100)
        raise KeyboardInterrupt

    held = Held(local)
    manager = held.manager
    saving = manager.save(1, state(1))
    monkeypatch.setattr(manager, "_wait_saved", interrupt)
    with pytest.raises(KeyboardInterrupt):
        manager.close()
    held.go.set()
    saving.result()
    held._handle.close()
    assert manager.steps() == [1]
