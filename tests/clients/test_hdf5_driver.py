# SPDX-License-Identifier: Apache-2.0
"""HDF5's driver weightfs: its leases, the guarantees of a flush, errors, and the ways to select it."""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from harness import needs, process
from harness.filesystems import weightfs as command
from hdf5_killed import BATCH, batch

ours = pytest.importorskip("weightfs.hdf5", reason="weightfs is not installed: run pip install . in the root")
if h5py.version.hdf5_version_tuple < (1, 14):
    pytest.skip(f"needs h5py with HDF5 1.14 or newer, but has {h5py.version.hdf5_version}", allow_module_level=True)

STORE_SIZE = "512M"
KILLED = Path(__file__).with_name("hdf5_killed.py")
MIB = 1 << 20
ERRORS = (OSError, RuntimeError)   # h5py raises the latter from close and flush


def values(seed, *shape):
    return np.random.default_rng(seed).random(shape)


def python(code, *arguments, codes=(0,), **environment):
    return process.run([sys.executable, "-c", code, *arguments], codes=codes, env=os.environ | environment)


# --- leases

@pytest.mark.usefixtures("weightfs_only")
def test_large_requests_take_leases(work):
    before = ours.direct_operations()
    with ours.File(work / "data.h5", "w", direct="require") as file:
        file["x"] = values(1, 4 * MIB)
        assert ours.direct_operations() == before + 1
        assert np.array_equal(file["x"], values(1, 4 * MIB))
    assert ours.direct_operations() == before + 2
    with h5py.File(work / "data.h5") as file:
        assert file.id.get_access_plist().get_driver() == h5py.h5fd.SEC2, "the driver applies to one file only"
        assert np.array_equal(file["x"], values(1, 4 * MIB))


@pytest.mark.usefixtures("weightfs_only")
def test_contiguous_chunks_share_leases(work):
    before = ours.direct_operations()
    data = values(2, 256, 32768)   # 64 MiB, in 256 chunks
    with ours.File(work / "data.h5", "w") as file:
        file.create_dataset("x", data=data, chunks=(1, 32768))
        file.flush()
        written = ours.direct_operations() - before
        assert 1 <= written <= 64 // 8 + 2
    with ours.File(work / "data.h5") as file:
        assert np.array_equal(file["x"], data)
        for row in range(0, 256, 7):
            assert np.array_equal(file["x"][row], data[row])


@pytest.mark.usefixtures("weightfs_only")
def test_direct_never_takes_no_lease(work):
    before = ours.direct_operations()
    with ours.File(work / "data.h5", "w", direct="never") as file:
        file["x"] = values(1, 2 * MIB)
        assert np.array_equal(file["x"], values(1, 2 * MIB))
    assert ours.direct_operations() == before


# --- contents

@pytest.mark.parametrize("settings", [
    {}, {"direct_size": "64K", "cache": "1M", "read_ahead": "256K", "num_threads": 3, "block_size": "64K"},
    {"read_ahead": 0, "direct": "never"}, {"sync": "close", "queue_depth": 2}], ids=str)
def test_other_drivers_read_random_changes(work, mount, settings):
    """Partial reads and writes of contiguous, chunked and packed data, with growing metadata and reopens."""
    random = np.random.default_rng(7)
    path = work / "data.h5"
    shape = (1200, 1000)
    kinds = {"plain": {}, "chunked": {"chunks": (50, 100)}, "packed": {"chunks": (100, 1000), "compression": "gzip"}}
    model = {name: np.zeros(shape) for name in kinds}
    with ours.File(path, "w", **settings) as file:
        for name, options in kinds.items():
            file.create_dataset(name, shape, "float64", **options)
    for turn in range(6):
        with ours.File(path, "r+", **settings) as file:
            for step in range(12):
                name = random.choice(list(kinds))
                first, left = random.integers(0, 1200), random.integers(0, 1000)
                rows, columns = random.integers(1, 1200), random.integers(1, 1000)
                part = np.s_[first:first + rows, left:left + columns] if step % 3 else np.s_[first:first + rows]
                changed = random.random(model[name][part].shape).round(3)
                file[name][part] = changed
                model[name][part] = changed
                other = random.choice(list(kinds))
                assert np.array_equal(file[other][part], model[other][part])
                file.attrs[f"turn {turn} step {step}"] = values(step, 20)
                if step == 6:
                    file.flush()
            group = file.create_group(f"group {turn}")
            for index in range(100):
                group.attrs[f"{index}"] = "x" * index
    mount.remount()
    with h5py.File(path) as file:
        for name, expected in model.items():
            assert np.array_equal(file[name], expected)
        assert len(file.attrs) == 6 * 12 and len(file["group 5"].attrs) == 100


def test_a_sparse_dataset_stays_sparse(work):
    with ours.File(work / "data.h5", "w", libver="latest") as file:
        data = file.create_dataset("x", (1 << 30,), "uint8")
        data[:5], data[-5:] = 1, 2
    assert os.stat(work / "data.h5").st_size > 1 << 30
    assert os.stat(work / "data.h5").st_blocks * 512 < 64 * MIB
    with ours.File(work / "data.h5") as file:
        assert file["x"][:7].tolist() == [1] * 5 + [0] * 2 and file["x"][-7:].tolist() == [0] * 2 + [2] * 5
        assert not file["x"][500 * MIB:520 * MIB].any()


def test_virtual_linked_and_paged_files_open(work):
    with ours.File(work / "part.h5", "w") as file:
        file["x"] = values(1, 1000)
    layout = h5py.VirtualLayout((2, 1000), "float64")
    layout[0] = layout[1] = h5py.VirtualSource(work / "part.h5", "x", (1000,))
    with ours.File(work / "whole.h5", "w", libver="latest", fs_strategy="page", fs_persist=True) as file:
        file.create_virtual_dataset("both", layout)
        file["link"] = h5py.ExternalLink("part.h5", "x")
    with ours.File(work / "whole.h5") as file:
        assert np.array_equal(file["both"][1], values(1, 1000)) and np.array_equal(file["link"], values(1, 1000))
    with ours.File(work / "whole.h5", page_buf_size=1 << 20) as file:
        assert np.array_equal(file["both"][0], values(1, 1000))


def test_the_vfd_handle_sees_all_writes(work):
    with ours.File(work / "data.h5", "w") as file:
        file["x"] = values(1, 1000)
        with open(os.dup(file.id.get_vfd_handle()), "rb") as stream:
            assert values(1, 1000).tobytes() in stream.read()


def test_a_forked_child_can_read(work):
    with ours.File(work / "data.h5", "w") as file:
        file["x"] = values(1, 2 * MIB)
    code = """if True:
        import os, sys
        import numpy as np, weightfs.hdf5
        file = weightfs.hdf5.File(sys.argv[1])
        whole = file["x"][:]
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(file["x"][:], whole) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert np.array_equal(file["x"][:], whole)
        """
    python(code, work / "data.h5")


def test_a_forked_child_of_a_writer_ends_and_writes_nothing(work):
    code = """if True:
        import os, sys
        import numpy as np, weightfs.hdf5
        file = weightfs.hdf5.File(sys.argv[1], "w")
        data = np.arange(1 << 22, dtype=np.float64)
        chunks = file.create_dataset("chunks", (1000, 100), "f4", chunks=(100, 100))
        chunks[:] = 1
        file["small"] = data[:10]
        large = file.create_dataset("large", data.shape, data.dtype)
        for at in range(0, len(data), 1 << 17):
            large[at:at + (1 << 17)] = data[at:at + (1 << 17)]   # buffered; the write-back is under way
        child = os.fork()
        if child == 0:
            sys.exit(7)        # HDF5 closes the file
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        chunks[500:] = 2
        file.close()
        with weightfs.hdf5.File(sys.argv[1]) as file:
            assert np.array_equal(file["large"], data) and np.array_equal(file["small"], data[:10])
            assert (file["chunks"][:500] == 1).all() and (file["chunks"][500:] == 2).all()
        """
    python(code, work / "data.h5")


# --- crashes

@pytest.mark.parametrize("flushes", [0, 1, 5])
def test_a_killed_program_leaves_the_state_of_its_last_flush(work, flushes):
    path = work / "data.h5"
    writer = subprocess.Popen([sys.executable, KILLED, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline().strip() == "ready"
        for count in range(flushes):
            print("write", file=writer.stdin, flush=True)
            assert writer.stdout.readline().strip() == str(count)
        print("stay", file=writer.stdin, flush=True)
        assert writer.stdout.readline().strip() == "staying"
    finally:
        writer.kill()
        writer.communicate(timeout=60)
    with h5py.File(path) as file:
        assert file["data"].shape == (flushes * BATCH,)
        assert np.array_equal(file["data"], np.concatenate([[], *map(batch, range(flushes))]))
        assert sorted(file) == ["data", *(f"group-{count}" for count in range(flushes))]


def test_a_killed_mount_keeps_flushed_data(work, mount, weightfs_only):
    file = ours.File(work / "data.h5", "w")
    file["x"] = values(1, 2 * MIB)
    file.create_dataset("y", data=values(2, 100, 1000), chunks=(10, 10))
    file.flush()
    file["z"] = values(3, 10)
    mount.kill9()
    with pytest.raises(ERRORS, match="data.h5"):
        file.flush()
    try:
        file.close()
    except ERRORS:
        pass   # the file is closed, but the write failed
    mount.close()
    mount.mount()
    with h5py.File(work / "data.h5") as again:
        assert np.array_equal(again["x"], values(1, 2 * MIB)) and np.array_equal(again["y"], values(2, 100, 1000))


# Not libver="latest": HDF5 refuses such files after a crash, until h5clear has cleared their flags.
SAVES = {"default": {}, "v108": {"libver": ("v108", "v108")},
         "paged": {"fs_strategy": "page", "fs_page_size": 4096, "fs_persist": True}, "userblock": {"userblock_size": 512}}


@pytest.mark.parametrize("options", SAVES.values(), ids=SAVES)
def test_a_killed_mount_keeps_the_old_file_until_the_first_flush_of_the_new_one(factory, weightfs_only, options):
    made = factory.mount(factory.store("64M"), "commit=3600")
    path = made.path / "data.h5"

    def save(mode, seed, then):
        """Kills the mount after then(file)."""
        file = ours.File(path, mode, **(options if mode == "w" else {}))
        file.create_group(f"group-{seed}")
        then(file)
        made.kill9()
        try:
            file.close()
        except ERRORS:
            pass
        made.close()
        made.mount()
        with h5py.File(path) as again:
            return sorted(again)

    assert save("w", 1, lambda file: file.flush()) == ["group-1"]
    assert save("w", 2, lambda file: None) == ["group-1"]
    assert save("r+", 3, lambda file: None) == ["group-1"]
    assert save("r+", 4, lambda file: file.flush()) == ["group-1", "group-4"]
    assert save("w", 5, lambda file: file.create_dataset("x", data=[5]).flush()) == ["group-1", "group-4"]
    assert save("w", 6, lambda file: file.flush()) == ["group-6"]


def test_a_killed_mount_keeps_what_a_swmr_writer_flushed(factory, weightfs_only):
    made = factory.mount(factory.store("64M"), "commit=3600")
    path = made.path / "data.h5"
    file = ours.File(path, "w", libver="latest")
    data = file.create_dataset("x", shape=(0,), maxshape=(None,), chunks=(1000,), dtype="float64")
    file.swmr_mode = True
    for count in (1, 2):
        data.resize((count * 5000,))
        data[-5000:] = values(count, 5000)
        data.flush()
    data.resize((20_000,))
    made.kill9()
    try:
        file.close()
    except ERRORS:
        pass
    made.close()
    made.mount()
    with h5py.File(path, swmr=True) as again:
        assert np.array_equal(again["x"], np.concatenate([values(1, 5000), values(2, 5000)]))


def test_with_sync_close_a_close_makes_all_data_durable(factory, weightfs_only):
    made = factory.mount(factory.store("64M"), "commit=3600")
    with ours.File(made.path / "data.h5", "w", sync="close") as file:
        file.flush()
        file["x"] = values(1, 10_000)
    made.kill9()
    made.mount()
    with h5py.File(made.path / "data.h5") as file:
        assert np.array_equal(file["x"], values(1, 10_000))


@pytest.mark.parametrize("sync, commits", [("never", 0), ("flush", 1)])
def test_with_sync_never_a_flush_makes_no_commit(factory, weightfs_only, sync, commits):
    made = factory.mount(factory.store("64M"), "commit=3600")
    with ours.File(made.path / "data.h5", "w", sync=sync) as file:
        file["x"] = values(1, 10_000)
        file.flush()
        assert json.loads(command("info", "--json", made.path).out)["statistics"]["commits"] == commits
    with h5py.File(made.path / "data.h5") as file:
        assert np.array_equal(file["x"], values(1, 10_000))


# --- errors

@pytest.mark.parametrize("why", ["no file of HDF5", "directory", "locked", "truncated"])
def test_mode_a_raises_the_error_of_the_open(work, why):
    path = work / "data.h5"
    with ours.File(path, "w") as file:
        file["x"] = values(1, 1000)
    if why == "no file of HDF5":
        path.write_bytes(b"something else" * 1000)
    elif why == "directory":
        path.unlink()
        path.mkdir()
    elif why == "truncated":
        os.truncate(path, 4000)
    with open(path) if why == "locked" else contextlib.nullcontext() as held:
        if why == "locked":
            fcntl.flock(held, fcntl.LOCK_EX)
        raised = []
        for opened in (lambda: ours.File(path, "r+"), lambda: ours.File(path, "a")):
            with pytest.raises(OSError) as caught:
                opened()
            raised.append((type(caught.value), str(caught.value)))
    assert raised[0] == raised[1] and raised[1][0] is not FileExistsError


def test_the_latest_format_is_refused_after_its_writer_was_killed(work):
    """A limit that docs/HDF5.md states. The copy is what a writer leaves that is killed after its flush."""
    with ours.File(work / "data.h5", "w", libver="latest") as file:
        file["x"] = values(1, 1000)
        file.flush()
        shutil.copyfile(work / "data.h5", work / "copy.h5")
    for opened in (h5py.File, ours.File):
        with pytest.raises(OSError, match="already open for write"):
            opened(work / "copy.h5")
        with opened(work / "data.h5") as file:
            assert np.array_equal(file["x"], values(1, 1000))


def test_mode_a_of_h5py_takes_every_error_for_a_missing_file(work):
    """A limit that docs/HDF5.md states: h5py does not know the errors of a driver that is registered by its name."""
    path = work / "data.h5"
    path.write_bytes(b"something else" * 1000)
    ours.register()
    with pytest.raises(FileExistsError):
        h5py.File(path, "a", driver="weightfs")
    assert path.read_bytes() == b"something else" * 1000


def test_mode_a_creates_a_missing_file(work):
    for count in (1, 2):
        with ours.File(work / "data.h5", "a", userblock_size=512) as file:
            file.create_group(f"group-{count}")
            assert len(file) == count and file.userblock_size == 512
    with pytest.raises(FileNotFoundError):
        ours.File(work / "missing/data.h5", "a")
    with pytest.raises(FileExistsError):
        ours.File(work / "data.h5", "x")


def test_a_full_pool_returns_an_error(factory, weightfs_only):
    made = factory.mount(factory.store("64M"))
    path = made.path / "data.h5"
    with pytest.raises(ERRORS, match="data.h5.*No space left"):
        with ours.File(path, "w") as file:
            file["x"] = values(1, MIB)
            file.flush()
            for index in range(20):
                file.create_dataset(f"{index}", data=values(index, 2 * MIB), chunks=(65536,))
            file.flush()
    os.unlink(path)
    with ours.File(path, "w") as file:
        file["x"] = values(1, MIB)
    with ours.File(path) as file:
        assert np.array_equal(file["x"], values(1, MIB))
    made.umount()
    made.store.fsck()


def test_a_damaged_block_returns_an_error(factory, weightfs_only):
    made = factory.mount(factory.store("64M"))
    path = made.path / "data.h5"
    with ours.File(path, "w") as file:
        file["x"] = values(1, MIB)
        file.flush()
    extent = max(json.loads(command("info", "--json", path).out)["extents"], key=lambda one: one["length"])
    with open(made.store.directory / "pool", "r+b", buffering=0) as pool:
        pool.seek(extent["physical"] + extent["length"] // 2)
        pool.write(b"damage")
        os.fsync(pool.fileno())
    with ours.File(path) as file, pytest.raises(OSError, match="data.h5"):
        file["x"][:]


@pytest.mark.parametrize("settings, text", [
    ({"num_threads": 0}, "num_threads=0"), ({"block_size": "1Q"}, "block_size=1Q"), ({"sync": "no"}, "sync=no")])
def test_errors_name_an_invalid_setting(work, settings, text):
    with pytest.raises(OSError, match=text):
        ours.File(work / "data.h5", "w", **settings)
    assert not (work / "data.h5").exists()


def test_open_errors_name_the_cause(work):
    with pytest.raises(FileNotFoundError, match="absent.h5"):
        ours.File(work / "absent.h5")
    (work / "text").write_text("no HDF5 file")
    with pytest.raises(OSError, match="signature"):
        ours.File(work / "text")
    with pytest.raises(TypeError, match="no setting 'threads'"):
        ours.File(work / "text", threads=1)


def test_the_lock_excludes_other_programs_unless_disabled(work):
    code = "import sys, weightfs.hdf5; weightfs.hdf5.File(sys.argv[1], 'r+')"
    with ours.File(work / "data.h5", "w") as file:
        file["x"] = values(1, 10)
        file.flush()
        assert "unable to lock" in python(code, work / "data.h5", codes=None).err
        python(code, work / "data.h5", HDF5_USE_FILE_LOCKING="FALSE")


@needs.root
def test_opening_a_read_only_file_for_writing_fails(work):
    with ours.File(work / "data.h5", "w") as file:
        file["x"] = values(1, 10)
    os.chmod(work, 0o777)
    os.chmod(work / "data.h5", 0o444)
    code = """if True:
        import os, sys, h5py, weightfs.hdf5
        weightfs.hdf5.register()
        os.setuid(65534)
        weightfs.hdf5.File(sys.argv[1], "r+")
        """
    assert "PermissionError" in python(code, work / "data.h5", codes=None).err


# --- selection of the driver

PLAIN = "import sys, h5py, numpy; h5py.File(sys.argv[1], 'w')['x'] = numpy.arange(2 << 20)"


@pytest.mark.usefixtures("weightfs_only")
def test_the_variables_select_the_driver_for_unmodified_programs(work):
    code = PLAIN + "; import weightfs.hdf5; print(weightfs.hdf5.direct_operations())"
    assert int(python(code, work / "data.h5", **ours.environment(direct="require")).out) == 1
    assert int(python(code, work / "data.h5").out) == 0
    wrong = ours.environment() | {"HDF5_DRIVER_CONFIG": "num_threads=two"}
    assert "num_threads=two" in python(PLAIN, work / "data.h5", codes=None, **wrong).err


def test_the_module_prints_the_variables():
    program = [sys.executable, "-m", "weightfs.hdf5"]
    variables = json.loads(process.run([*program, "--json", "block_size=2M", "num_threads=1"]).out)
    assert variables["HDF5_DRIVER"] == "weightfs" and variables["HDF5_DRIVER_CONFIG"] == "block_size=2M num_threads=1"
    assert [entry.name for entry in Path(variables["HDF5_PLUGIN_PATH"]).iterdir()] == ["libhdf5_weightfs.so"]
    script = 'eval "$("$0" -m weightfs.hdf5 sync=close cache=1G)"; echo "$HDF5_DRIVER_CONFIG"'
    printed = process.run(["sh", "-c", script, sys.executable]).out
    assert printed == "sync=close cache=1G\n"
    kept = process.run([*program, "--json"], env=os.environ | {"HDF5_PLUGIN_PATH": "/opt/filters"}).out
    assert json.loads(kept)["HDF5_PLUGIN_PATH"].endswith("hdf5_plugin:/opt/filters")
    assert "no setting 'thread'" in process.run([*program, "thread=1"], codes=(2,)).err


def test_errors_name_missing_dependencies(work):
    code = "import sys; sys.modules['h5py'] = None; import weightfs.hdf5; weightfs.hdf5.File(sys.argv[1])"
    assert "pip install h5py" in python(code, work / "data.h5", codes=None).err
    code = ("import sys, pathlib, weightfs.hdf5; weightfs.hdf5._PLUGIN = pathlib.Path('/nowhere/plugin.so'); "
            "weightfs.hdf5.File(sys.argv[1])")
    assert "/nowhere/plugin.so is missing" in python(code, work / "data.h5", codes=None).err


def test_the_benchmark_runs_without_torch(local):
    (local / "sitecustomize.py").write_text("import sys; sys.modules['torch'] = None")
    environment = os.environ | {"PYTHONPATH": str(local)}

    def tool(*arguments, codes=(0,)):
        return process.run([sys.executable, "-m", *arguments], codes=codes, env=environment)

    assert "--requests" in tool("weightfs.tools.hdf5_bench", "--help").out
    assert "need torch: pip install torch" in tool("weightfs.tools.io", codes=(1,)).err


def test_the_benchmark_measures_every_driver(work):
    program = [sys.executable, "-m", "weightfs.tools.hdf5_bench"]
    done = process.run([*program, work, "--requests", "1M,2M", "--size", "4M", "--rounds", "1", "--no-small",
                        "--json"], limit=110)
    rows = json.loads(done.out)["rows"]
    assert [row["id"] for row in rows] == ["write, 1 MiB", "read, 1 MiB", "write, 2 MiB", "read, 2 MiB"]
    assert all(set(row["ways"]) == {"sec2", "stdio", "weightfs", "handle"} for row in rows)
    assert all(way["median"] > 0 for row in rows for way in row["ways"].values())
    assert list(work.iterdir()) == []
    assert done.err == ""
    assert "not a multiple" in process.run([*program, work, "--requests", "3M", "--size", "4M"], codes=(2,)).err


def test_a_benchmark_that_fails_says_so(work, local):
    words = [sys.executable, "-m", "weightfs.tools.hdf5_bench", work, "--requests", "1M", "--size", "1M", "--rounds",
             "1", "--no-small"]
    (local / "sitecustomize.py").write_text(
        "import h5py\n"
        "def fail(*_, **__):\n"
        "    raise OSError('broken')\n"
        "h5py.File = fail\n")
    done = process.run(words, codes=(1,), limit=110, env=os.environ | {"PYTHONPATH": str(local)})
    assert done.err == "hdf5_bench: broken\n"
    assert done.out == "" and list(work.iterdir()) == []
