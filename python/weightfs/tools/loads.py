# SPDX-License-Identifier: Apache-2.0
"""weightfs-loads: measures how fast loaders of safetensors load a model into memory of the CPU, each from a cold cache,
or with --hot once more: weightfs.safetensors beside safetensors, fastsafetensors, run:ai's model streamer and
tensorizer (its own format).

Loads of all loaders alternate, in another order each round. A load has ended when each page of each tensor was touched.
The table shows medians, and the medians of the ratios to the fastest other loader."""

import importlib
import os
import shutil
import statistics
import sys
import tempfile
import time

from weightfs.tools._torch import torch

import weightfs.safetensors
from weightfs._core.memory import advise_huge_pages
from weightfs.bench import compare, libraries
from weightfs.bench.machine import sync_file


def _stream(path):
    return dict(weightfs.safetensors.stream(path))


def _tensorizer(path):
    from tensorizer import TensorDeserializer
    with TensorDeserializer(path, device="cpu") as model:
        return dict(model.items())


# name -> (module, load)
LOADERS = {"weightfs load_file": ("weightfs", weightfs.safetensors.load_file), "weightfs stream": ("weightfs", _stream),
           "safetensors": ("safetensors", libraries.load_safetensors),
           "fastsafetensors": ("fastsafetensors", libraries.load_fastsafetensors),
           "run:ai streamer": ("runai_model_streamer", libraries.load_runai), "tensorizer": ("tensorizer", _tensorizer)}


def installed():
    """Returns (loaders that can be imported, name -> reason for the others)."""
    found, missing = [], {}
    for name, (module, _) in LOADERS.items():
        try:
            importlib.import_module(module)
            found.append(name)
        except Exception as error:   # a package may be there and lack a library
            missing[name] = f"{type(error).__name__}: {error}; pip install {module.replace('_', '-')}"
    return found, missing


def write(model, folder, names):
    """Writes the model for the loaders. Returns name -> path."""
    plain, own = (os.path.join(folder, name) for name in ("model.safetensors", "model.tensors"))
    weightfs.safetensors.save_file(model, plain, durable=True)
    if "tensorizer" in names:
        from tensorizer import TensorSerializer
        serializer = TensorSerializer(own)
        serializer.write_state_dict(model)
        serializer.close()
    return {name: own if name == "tensorizer" else plain for name in names}


def seconds_of(load, path, hot, model=None):
    """The time of a load. RuntimeError if it gives something else than the model."""
    if not hot:
        sync_file(path, drop=True)
    # Fills and frees memory. A hypervisor may have taken back what is free, and no load is to pay for that.
    memory = torch.empty(os.path.getsize(path) * 5 // 4, dtype=torch.uint8)
    advise_huge_pages(memory)
    memory.zero_()
    del memory
    begin = time.perf_counter()
    tensors = libraries.touched(load(path))
    seconds = time.perf_counter() - begin
    if model and not model.is_right(tensors):
        raise RuntimeError(f"{path}: what was loaded is not what was saved")
    return seconds


def measure(values, args, show):
    """Appends the seconds of each round to the names in `values`."""
    with tempfile.TemporaryDirectory(prefix="weightfs-loads-", dir=args.directory) as own:
        model = libraries.Torch(args.size)
        show("writing the model", 0)
        paths = write(model.state, own, values)
        for name in values:
            try:
                seconds_of(LOADERS[name][1], paths[name], args.hot, model)
            except Exception as error:
                raise RuntimeError(f"{name}: {error}") from error
        del model
        compare.measure(values, args.rounds, lambda name: seconds_of(LOADERS[name][1], paths[name], args.hot),
                        show)


def result_of(seconds, args, missing):
    peers = [name for name in seconds if not name.startswith("weightfs")] or list(seconds)
    base = min(peers, key=lambda name: statistics.median(seconds[name]))
    rates = {name: [args.size / each for each in seconds[name]] for name in seconds}
    kind = "hot" if args.hot else "cold"
    return compare.result("weightfs-loads", args.directory, args.size, len(seconds[base]), [compare.row(
        "loads", "GB/s", rates, base, table=f"{kind} loads of {args.size >> 20} MiB, GB/s", title="GB/s",
        not_measured=missing)], ["loads"])


def main(arguments=None):
    parser = compare.parser("weightfs-loads", __doc__, "bytes of the model", "1G", "measured loads of each loader", 5)
    parser.add_argument("--hot", action="store_true", help="measure loads of what was loaded before")
    args = parser.parse_args(arguments)
    names, missing = installed()
    if shutil.disk_usage(args.directory).free < (2 if "tensorizer" in names else 1) * args.size:
        parser.error(f"{args.directory}: no space for the files; give a smaller --size")

    def work(values, show):
        values |= {name: [] for name in names}
        measure(values, args, show)

    return compare.main("weightfs-loads", args, work, lambda values: result_of(values, args, missing))


if __name__ == "__main__":
    sys.exit(main())
