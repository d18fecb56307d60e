# SPDX-License-Identifier: Apache-2.0
"""h5py: creating, reading and changing files; locks; one writer with a concurrent reader. Each test runs with HDF5's own
driver and with the driver weightfs."""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from harness import process
from hdf5_steps import BATCHES, batch

STEPS = Path(__file__).with_name("hdf5_steps.py")


class Driver:
    """One of HDF5's drivers: `File` opens with it here, `environment` makes other programs do so."""

    def __init__(self, name):
        self.is_own = name == "weightfs"
        if not self.is_own:
            self.File, self.environment = h5py.File, dict(os.environ)
            return
        ours = pytest.importorskip("weightfs.hdf5", reason="the Python package is not installed: pip install . in the root")
        if h5py.version.hdf5_version_tuple < (1, 14):
            pytest.skip(f"needs h5py with HDF5 1.14 or newer, this one has {h5py.version.hdf5_version}")
        self.File, self.environment = ours.File, os.environ | ours.environment()


@pytest.fixture(params=["sec2", "weightfs"])
def driver(request):
    return Driver(request.param)


def values(seed, *shape):
    return np.random.default_rng(seed).random(shape)


def make(driver, path):
    with driver.File(path, "w") as file:
        file["plain"] = values(1, 700, 301)
        file.create_dataset("chunked", data=values(2, 900, 64), chunks=(64, 64))
        file.create_dataset("packed", data=values(3, 100, 1000).round(2), compression="gzip", shuffle=True)
        group = file.create_group("deep/er")
        group.attrs["note"] = "kept with the group"
        group["names"] = np.array([b"alpha", b"beta"])


def check(driver, path):
    with driver.File(path, "r") as file:
        assert np.array_equal(file["plain"], values(1, 700, 301))
        assert np.array_equal(file["chunked"], values(2, 900, 64))
        assert np.array_equal(file["packed"], values(3, 100, 1000).round(2))
        assert file["deep/er"].attrs["note"] == "kept with the group"
        assert list(file["deep/er/names"]) == [b"alpha", b"beta"]


def test_write_and_read(driver, mount, work):
    make(driver, work / "data.h5")
    check(driver, work / "data.h5")
    mount.remount()
    check(driver, work / "data.h5")


def test_change_in_place(driver, mount, work):
    path = work / "data.h5"
    make(driver, path)
    mount.remount()
    with driver.File(path, "r+") as file:
        file["chunked"][100:500, 3] = 0
        file["plain"][5] = 1
        file["more"] = values(4, 50_000)
        del file["packed"]
    mount.remount()
    chunked, plain = values(2, 900, 64), values(1, 700, 301)
    chunked[100:500, 3], plain[5] = 0, 1
    with driver.File(path, "r") as file:
        assert np.array_equal(file["chunked"], chunked) and np.array_equal(file["plain"], plain)
        assert np.array_equal(file["more"], values(4, 50_000)) and "packed" not in file


def test_append_mode_grows_a_dataset(driver, mount, work):
    path = work / "grow.h5"
    for step in range(8):
        with driver.File(path, "a") as file:
            data = file["log"] if "log" in file else file.create_dataset("log", (0,), "float64", maxshape=(None,))
            data.resize(((step + 1) * 1000,))
            data[-1000:] = values(step, 1000)
        mount.remount()
    with driver.File(path, "r") as file:
        assert np.array_equal(file["log"], np.concatenate([values(step, 1000) for step in range(8)]))


def test_core_driver_and_user_block(driver, mount, work):
    core = {} if driver.is_own else {"driver": "core"}
    with driver.File(work / "core.h5", "w", userblock_size=512, **core) as file:
        file["x"] = values(9, 1000, 100)
    mount.remount()
    with driver.File(work / "core.h5", "r", **core) as file:
        assert file.userblock_size == 512 and np.array_equal(file["x"], values(9, 1000, 100))


def test_a_second_writer_is_kept_out_by_the_lock(driver, work):
    with driver.File(work / "data.h5", "w", locking=True) as file:
        file["x"] = values(5, 10)
        again = process.run([sys.executable, "-c", "import h5py, sys; h5py.File(sys.argv[1], 'r+', locking=True)",
                             work / "data.h5"], codes=None, env=driver.environment)
        assert again.code != 0 and "lock" in again.err
    process.run([sys.executable, "-c", "import h5py, sys; h5py.File(sys.argv[1], 'r+', locking=True)",
                 work / "data.h5"], env=driver.environment)


def start(driver, step, path):
    return subprocess.Popen([sys.executable, STEPS, step, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=driver.environment)


def ask(worker, line):
    worker.stdin.write(f"{line}\n")
    worker.stdin.flush()
    return worker.stdout.readline().strip()


def test_one_writer_and_a_reader_beside_it(driver, mount, work):
    path = work / "swmr.h5"
    writer = start(driver, "write", path)
    assert writer.stdout.readline().strip() == "ready", writer.communicate(timeout=60)
    reader = start(driver, "read", path)
    try:
        for index in range(BATCHES):
            assert ask(writer, "go on") == str(index)
            assert ask(reader, index) == "right", reader.communicate(timeout=60)
        for worker in (reader, writer):
            worker.stdin.close()
            worker.stdin = None
            process.finish(worker)
    finally:
        for worker in (reader, writer):
            worker.kill()
            worker.wait(timeout=60)
    mount.remount()
    with driver.File(path, "r") as file:
        assert np.array_equal(file["data"], np.concatenate([batch(index) for index in range(BATCHES)]))
