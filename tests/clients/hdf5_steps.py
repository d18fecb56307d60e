# SPDX-License-Identifier: Apache-2.0
"""The writer and the reader processes of test_h5py.py's single-writer/multiple-readers test. They synchronize through
standard input and output, without sleeps."""

import sys

import h5py
import numpy as np

BATCH, BATCHES = 1000, 20


def batch(index):
    return np.random.default_rng(index).random(BATCH)


def write(path):
    with h5py.File(path, "w", libver="latest") as file:
        data = file.create_dataset("data", shape=(0,), maxshape=(None,), chunks=(256,), dtype="float64")
        file.swmr_mode = True
        print("ready", flush=True)
        for index in range(BATCHES):
            sys.stdin.readline()
            data.resize((index + 1) * BATCH, axis=0)
            data[-BATCH:] = batch(index)
            data.flush()
            print(index, flush=True)
        sys.stdin.readline()


def read(path):
    with h5py.File(path, "r", libver="latest", swmr=True) as file:
        data = file["data"]
        for line in sys.stdin:
            index = int(line)
            data.refresh()
            right = data.shape[0] == (index + 1) * BATCH and np.array_equal(data[-BATCH:], batch(index))
            print("right" if right else f"wrong: {data.shape}", flush=True)


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](sys.argv[2])
