# SPDX-License-Identifier: Apache-2.0
"""weightfs.torch and weightfs.safetensors, compared with the libraries whose formats they write."""

import concurrent.futures
import errno
import os
import pickle
import signal
import threading
import zipfile

import pytest
import safetensors.torch
import torch

import weightfs.safetensors
import weightfs.torch
from harness import needs
from harness.users import NOBODY, OTHER, call_as
from tensors import random_tensor
from weightfs.torch._checksums import ZipChecksums

STORE_SIZE = "512M"


def checkpoint():
    weights = torch.randn(1000, 1500)
    return {"large": weights, "view": weights[5:], "transposed": weights.t(), "tied": weights,
            "small": [torch.arange(i) for i in range(300)], "half": torch.randn(700_001).bfloat16(),
            "step": 17, "name": "ünïcödé", "empty": torch.empty(0), "scalar": torch.tensor(2.5),
            "optimizer": {"lr": 0.1, "state": {i: {"m": torch.randn(200, 300)} for i in range(20)}}}


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def test_torch_save_writes_the_bytes_of_torch(folder):
    saved = checkpoint()
    # Given a path, torch puts the file's name into the archive; for streams it uses another name.
    with open(folder / "theirs", "wb") as stream:
        torch.save(saved, stream)
    weightfs.torch.save(saved, folder / "ours")
    assert (folder / "ours").read_bytes() == (folder / "theirs").read_bytes()


def test_the_checksums_are_computed_during_the_write(local, monkeypatch):
    if not weightfs.torch._settings_are_of_the_thread():
        pytest.skip("this version of torch keeps its settings for the process")
    assert weightfs.torch._knows_layout()
    off = []
    write = ZipChecksums.write
    monkeypatch.setattr(ZipChecksums, "write",
                        lambda self, data: off.append(torch.serialization.get_crc32_options()) or write(self, data))
    weightfs.torch.save(checkpoint(), local / "file")
    assert off and not any(off)
    assert torch.serialization.get_crc32_options()
    assert zipfile.ZipFile(local / "file").testzip() is None


def test_archives_of_more_than_4_gib_have_the_checksums_of_torch():
    class Sink:
        """Keeps all but the data."""
        error = None

        def __init__(self):
            self.parts, self.at = [], 0

        def write(self, data):
            view = memoryview(data).cast("B")
            self.at += view.nbytes
            if view.nbytes < 1 << 20:
                self.parts.append(bytes(view))
            return view.nbytes

        def tell(self):
            return self.at

        def flush(self):
            pass

    # Memory that nothing has touched, so it takes none.
    saved = {"a": torch.zeros(5 << 29, dtype=torch.uint8), "b": torch.zeros(4 << 29, dtype=torch.uint8)}
    theirs, ours = Sink(), Sink()
    torch.save(saved, theirs)
    with weightfs.torch.without_crc32():
        torch.save(saved, ZipChecksums(ours))
    assert ours.parts == theirs.parts


def test_an_unknown_layout_is_an_error_that_names_the_way_out(local, monkeypatch):
    weightfs.torch.save([1], local / "file")
    monkeypatch.setattr(weightfs.torch, "_knows_layout", lambda: True)
    monkeypatch.setattr("weightfs.torch._checksums._DESCRIPTOR", b"PK\7\7")
    with pytest.raises(ValueError, match="did not write a descriptor where it was expected.*crc32=False"):
        weightfs.torch.save([2], local / "file")
    assert torch.load(local / "file") == [1]


def test_the_kind_of_the_setting_is_found_whatever_its_value():
    is_of_the_thread = weightfs.torch._settings_are_of_the_thread.__wrapped__
    expected, before = is_of_the_thread(), torch.serialization.get_crc32_options()
    for value in (False, True):
        torch.serialization.set_crc32_options(value)
        try:
            assert is_of_the_thread() == expected
            assert torch.serialization.get_crc32_options() == value
        finally:
            torch.serialization.set_crc32_options(before)


def test_threads_keep_their_own_setting(local):
    begun, ended = threading.Event(), threading.Event()

    class Slow:
        def __reduce__(self):
            begun.set()
            assert ended.wait(60)
            return list, ()

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        slow = pool.submit(weightfs.torch.save, [Slow(), torch.ones(10)], local / "slow", crc32=False)
        assert begun.wait(60)
        fast = pool.submit(lambda: (weightfs.torch.save(torch.ones(10), local / "fast", crc32=False),
                                    torch.serialization.get_crc32_options()))
        if weightfs.torch._settings_are_of_the_thread():
            assert fast.result()[1], "the setting of the thread is as before"
        ended.set()
        slow.result()
        assert all(pool.map(lambda _: torch.serialization.get_crc32_options(), range(8)))
    assert torch.serialization.get_crc32_options()


@pytest.mark.parametrize("options", [{}, {"durable": True}, {"atomic": False}, {"atomic": False, "durable": True},
                                     pytest.param({"storage_alignment": 4096}, marks=needs.torch("2.7")),
                                     {"crc32": False}, {"_use_new_zipfile_serialization": False}], ids=str)
def test_torch_and_weightfs_load_each_others_files(folder, options):
    saved = checkpoint()
    weightfs.torch.save(random_tensor(30_000_000), folder / "file")   # longer than the next file: none of it may stay
    weightfs.torch.save(saved, folder / "file", **options)
    assert equal(torch.load(folder / "file"), saved)
    assert equal(weightfs.torch.load(folder / "file"), saved)
    loaded = weightfs.torch.load(folder / "file", weights_only=False, map_location="cpu")
    assert equal(loaded, saved)
    if options.get("_use_new_zipfile_serialization", True):
        assert equal(weightfs.torch.load(folder / "file", mmap=True), saved)
    assert os.listdir(folder) == ["file"]


@needs.torch("2.7")
def test_torch_settings_are_as_before(local):
    from torch.utils.serialization import config
    before = (torch.serialization.get_crc32_options(), config.save.storage_alignment)
    weightfs.torch.save(checkpoint(), local / "file", crc32=False, storage_alignment=4096)
    assert (torch.serialization.get_crc32_options(), config.save.storage_alignment) == before


def test_large_storages_go_straight_between_tensor_and_file(local):
    tensor = torch.randn(4 << 20)
    with weightfs.aio_handle() as handle:
        ways = []
        write, read = handle.write_from, handle.read_into
        handle.write_from = lambda buffer, *rest: ways.append(memoryview(buffer).nbytes) or write(buffer, *rest)
        handle.read_into = lambda buffer, *rest: ways.append(memoryview(buffer).nbytes) or read(buffer, *rest)
        weightfs.torch.save(tensor, local / "file", handle=handle)
        assert ways == [tensor.nbytes]
        assert torch.equal(weightfs.torch.load(local / "file", handle=handle), tensor)
        assert sum(ways) == 2 * tensor.nbytes


def test_a_failed_atomic_save_leaves_the_old_file(local):
    class Unpicklable:
        def __reduce__(self):
            raise RuntimeError("no")

    weightfs.torch.save([1], local / "file")
    with pytest.raises(RuntimeError, match="no"):
        weightfs.torch.save([torch.randn(1 << 20), Unpicklable()], local / "file")
    assert torch.load(local / "file") == [1]
    with pytest.raises(RuntimeError, match="no"):
        weightfs.torch.save([torch.randn(1 << 20), Unpicklable()], local / "file", atomic=False)
    assert (local / "file").stat().st_size == 0
    assert os.listdir(local) == ["file"]


def test_paths_that_cannot_name_a_file_are_refused(local, monkeypatch):
    monkeypatch.chdir(local)
    for name, error in (("", FileNotFoundError), ("new/", IsADirectoryError), (".", IsADirectoryError)):
        for atomic in (True, False):
            with pytest.raises(error) as caught:
                weightfs.torch.save([1], name, atomic=atomic)
            assert caught.value.filename == name
    assert os.listdir(local) == []


# The file may be replaced between two checks.
@pytest.mark.parametrize("happens", ["replaced", "moved away"])
def test_a_save_is_atomic_also_where_others_replace_the_file(local, monkeypatch, happens):
    path, stat, seen = local / "file", os.stat, []
    weightfs.torch.save([1], path)

    def look(name, *arguments, **options):
        found = stat(name, *arguments, **options)
        if str(name) == str(path) and not seen:
            seen.append(name)
            os.rename(path, local / "old")
            if happens == "replaced":
                path.write_bytes(b"of another program")
                os.link(path, local / "another")
        return found

    with open(path, "rb") as first:
        monkeypatch.setattr(os, "stat", look)
        weightfs.torch.save([2], path)
        monkeypatch.undo()
        assert torch.load(first) == [1] and torch.load(path) == [2]
    assert torch.load(local / "old") == [1]
    assert happens == "moved away" or (local / "another").read_bytes() == b"of another program"


SAVES = {"torch": weightfs.torch.save, "safetensors": weightfs.safetensors.save_file}
LOADS = {"torch": (weightfs.torch.load, torch.load),
         "safetensors": (weightfs.safetensors.load_file, safetensors.torch.load_file)}
REFUSALS = (EOFError, RuntimeError, ValueError, pickle.UnpicklingError, safetensors.SafetensorError)


def generation(value):
    sizes = [100, 3 << 20, 50_000, 5 << 20, 7, 2 << 20]
    return {str(i): torch.full((size,), value, dtype=torch.uint8) for i, size in enumerate(sizes)}


def killed_at(number, save, *arguments, **options):
    """Runs the save in a child that is killed before the handle's transfer of that number. False if there were fewer
    transfers."""
    child = os.fork()
    if child == 0:
        try:
            handle = weightfs.aio_handle(intra_op_parallelism=2)
            left = [number]
            for name in ("write_from", "write_async"):
                def dying(*given, method=getattr(handle, name), **named):
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    left[0] -= 1
                    return method(*given, **named)
                setattr(handle, name, dying)
            save(*arguments, handle=handle, **options)
            handle.close()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("library", SAVES)
def test_savers_and_readers_of_one_file_meet_no_mixture(folder, library):
    path, (_, load) = folder / "latest", LOADS[library]
    SAVES[library](generation(0), path)

    def save(value):
        with weightfs.aio_handle() as handle:
            for _ in range(20):
                SAVES[library](generation(value), path, handle=handle)

    savers = [threading.Thread(target=save, args=(value,)) for value in (1, 2)]
    for saver in savers:
        saver.start()
    loaded = 0
    while any(saver.is_alive() for saver in savers):
        assert len({tensor.unique().tolist()[0] for tensor in load(path).values()}) == 1
        loaded += 1
    assert loaded > 0
    assert os.listdir(folder) == ["latest"]


@pytest.mark.parametrize("library", SAVES)
@pytest.mark.parametrize("atomic", [True, False])
def test_a_killed_save_leaves_no_mixture(folder, library, atomic):
    old, new, path = generation(1), generation(2), folder / "file"
    for number in range(20):
        SAVES[library](old, path)
        if not killed_at(number, SAVES[library], new, path, atomic=atomic):
            break
        for load in LOADS[library]:
            if atomic:
                assert equal(load(path), old)
            else:
                with pytest.raises(REFUSALS):
                    load(path)
    assert number > 2
    assert all(equal(load(path), new) for load in LOADS[library])


def test_a_file_that_is_not_regular_is_written_in_place(local):
    tensors = {"a": torch.arange(3 << 20), "b": torch.ones(3)}
    for save in SAVES.values():
        save(tensors, "/dev/null")
        save(tensors, "/dev/null", durable=True)
    os.mkfifo(local / "fifo")
    reader = threading.Thread(target=lambda: (local / "read").write_bytes((local / "fifo").read_bytes()))
    reader.start()
    weightfs.safetensors.save_file(tensors, local / "fifo")
    reader.join()
    assert equal(weightfs.safetensors.load_file(local / "read"), tensors)


def test_an_atomic_save_keeps_links_and_the_mode(local):
    weightfs.torch.save([1], local / "file")
    assert (local / "file").stat().st_mode & 0o777 == 0o666 & ~umask()
    os.chmod(local / "file", 0o640)
    if os.geteuid() == 0:
        os.chown(local / "file", NOBODY, OTHER)
    before = (local / "file").stat()
    os.symlink("file", local / "link")
    os.link(local / "file", local / "hard")
    weightfs.torch.save([2], local / "link")
    after = (local / "file").stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert (local / "link").is_symlink() and torch.load(local / "file") == [2] and torch.load(local / "hard") == [1]
    os.symlink("nothing yet", local / "dangling")
    weightfs.torch.save([3], local / "dangling")
    assert torch.load(local / "nothing yet") == [3]
    with pytest.raises(FileNotFoundError) as caught:
        weightfs.torch.save([4], local / "missing" / "file")
    assert caught.value.filename == str(local / "missing" / "file")


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@needs.root
@pytest.mark.parametrize("sticky", [False, True])
def test_a_file_that_cannot_be_replaced_is_written(local, sticky):
    os.chmod(local, 0o1777 if sticky else 0o755)
    weightfs.torch.save([1], local / "open")
    weightfs.torch.save([1], local / "closed")
    os.chmod(local / "open", 0o666)
    os.chmod(local / "closed", 0o444)
    before = (local / "open").stat().st_ino

    def save(name):
        weightfs.torch.save([2], local / name)

    call_as(NOBODY, save, "open")
    assert (local / "open").stat().st_ino == before and torch.load(local / "open") == [2]
    with pytest.raises(PermissionError):
        call_as(NOBODY, save, "closed")
    if not sticky:
        with pytest.raises(PermissionError):
            call_as(NOBODY, save, "new")
    assert torch.load(local / "closed") == [1] and sorted(os.listdir(local)) == ["closed", "open"]


def test_a_full_device_fails_the_save(work):
    with pytest.raises(OSError, match="No space left") as caught:
        weightfs.torch.save(torch.zeros(600 << 20, dtype=torch.uint8), work / "file", crc32=False)
    assert caught.value.filename == str(work / "file")


DTYPES = [torch.bool, torch.uint8, torch.int8, torch.float8_e5m2, torch.float8_e4m3fn, torch.int16, torch.float16,
          torch.bfloat16, torch.int32, torch.float32, torch.float64, torch.int64, torch.complex64]


def model():
    tensors = {f"layer.{i}.{str(dtype)[6:]}": random_tensor(1000 + 37 * i, torch.uint8, i).to(torch.float32).to(dtype)
               for i, dtype in enumerate(DTYPES)}
    return tensors | {"large": torch.randn(3000, 1001), "ünï": torch.randn(3, 4, 5), "empty": torch.empty(0, 7),
                      "scalar": torch.tensor(1.5), "a\"quote": torch.ones(3)}


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_safetensors_are_the_bytes_of_the_library(folder, metadata):
    tensors = model()
    safetensors.torch.save_file(tensors, folder / "theirs", metadata)
    weightfs.safetensors.save_file(tensors, folder / "ours", metadata)
    assert (folder / "ours").read_bytes() == (folder / "theirs").read_bytes()


def test_safetensors_are_loaded_as_by_the_library(folder):
    tensors = model()
    weightfs.safetensors.save_file(tensors, folder / "file", {"format": "pt"}, durable=True, atomic=True)
    theirs, ours = safetensors.torch.load_file(folder / "file"), weightfs.safetensors.load_file(folder / "file")
    assert theirs.keys() == ours.keys() == tensors.keys()
    for name, tensor in tensors.items():
        for loaded in (theirs[name], ours[name]):
            assert loaded.dtype == tensor.dtype and loaded.shape == tensor.shape
            assert torch.equal(loaded.contiguous().view(-1).view(torch.uint8) if loaded.numel() else loaded,
                               tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else tensor)


def test_safetensors_of_strided_tensors(folder):
    matrix = torch.randn(1200, 1100)
    weightfs.safetensors.save_file({"t": matrix.clone().t(), "rows": matrix.clone()[::2],
                                    "parameter": torch.nn.Parameter(matrix)}, folder / "file")
    loaded = safetensors.torch.load_file(folder / "file")
    assert torch.equal(loaded["t"], matrix.t())
    assert torch.equal(loaded["rows"], matrix[::2])


def test_damaged_safetensors_are_refused(local):
    weightfs.safetensors.save_file({"a": torch.arange(100.0)}, local / "file")
    good = (local / "file").read_bytes()
    damages = [b"", good[:5], good[:-1], good + b"x", b"\xff" * 8 + good[8:], good.replace(b'"F32"', b'"F99"'),
               good.replace(b"[100]", b"[101]"), good.replace(b"[0,400]", b"[4,404]"), good.replace(b"{", b"[", 1),
               good.replace(b"[100]", b"[-10]")]
    for damage in damages:
        (local / "bad").write_bytes(damage)
        with pytest.raises(ValueError, match="bad"):
            weightfs.safetensors.load_file(local / "bad")
    with pytest.raises(FileNotFoundError):
        weightfs.safetensors.load_file(local / "missing")
    for wrong, error in (({"a": 5}, ValueError), ({5: torch.ones(1)}, TypeError)):
        with pytest.raises(error):
            weightfs.safetensors.save_file(wrong, local / "wrong")
    assert not (local / "wrong").exists()


@needs.root
@pytest.mark.parametrize("dangling", [False, True], ids=["a file", "nothing yet"])
@pytest.mark.parametrize("save", ["torch", "safetensors", "write_from"])
def test_a_link_of_others_in_a_directory_of_all_is_followed_where_open_follows_it(local, handle, save, dangling):
    (local / "shared").mkdir()
    (local / "shared").chmod(0o1777)
    if not dangling:
        (local / "target").write_bytes(b"old")
    link = local / "shared/link"
    os.symlink("../target", link)
    os.lchown(link, OTHER, OTHER)
    saves = {"torch": lambda: weightfs.torch.save([1], link),
             "safetensors": lambda: weightfs.safetensors.save_file({"a": torch.ones(3)}, link),
             "write_from": lambda: handle.write_from(torch.ones(3), link, atomic=True)}
    try:
        os.close(os.open(link, os.O_RDONLY))
        refusal = None
    except OSError as error:   # fs.protected_symlinks is set, as it is almost everywhere
        refusal = error.errno
    if refusal in (None, errno.ENOENT):
        saves[save]()
        return
    with pytest.raises(PermissionError) as caught:
        saves[save]()
    assert caught.value.errno == refusal and os.fspath(caught.value.filename) == os.fspath(link)
    assert (local / "target").exists() is not dangling
    assert dangling or (local / "target").read_bytes() == b"old"
    assert os.listdir(local / "shared") == ["link"]
