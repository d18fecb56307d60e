# SPDX-License-Identifier: Apache-2.0
"""The writer that test_hdf5_driver.py kills. For each line on standard input, it writes one more batch and flushes it.
After the line "stay" it writes a batch without a flush and waits until it is killed."""

import sys

import numpy as np

import weightfs.hdf5

BATCH = 200_000


def batch(index):
    return np.random.default_rng(index).random(BATCH)


def main(path):
    with weightfs.hdf5.File(path, "w", direct_size="1M") as file:
        data = file.create_dataset("data", shape=(0,), maxshape=(None,), chunks=(20_000,), dtype="float64")
        file.flush()
        print("ready", flush=True)
        for count, line in enumerate(sys.stdin):
            data.resize(((count + 1) * BATCH,))
            data[-BATCH:] = batch(count)
            file.create_group(f"group-{count}").attrs["count"] = count
            if line.strip() == "stay":
                print("staying", flush=True)
                sys.stdin.read()
            file.flush()
            print(count, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
