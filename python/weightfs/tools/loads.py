# SPDX-License-Identifier: Apache-2.0
"""weightfs-loads: measures how fast loaders of safetensors load a model into memory of the CPU, each from a cold cache:
weightfs.safetensors beside safetensors, fastsafetensors, run:ai's model streamer and tensorizer (its own format).

Loads of all loaders alternate, in another order each round. A load has ended when each page of each tensor was touched.
The table shows medians, and the medians of the ratios to the fastest other loader."""

import importlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

from weightfs.tools._torch import torch

import weightfs.safetensors
from weightfs._memory import advise_huge_pages
from weightfs._numbers import parse_size
from weightfs.tools._pages import drop_pages
from weightfs.tools._program import Parser, run

GB = 10 ** 9
_PAGE = 4096
_LAYERS = 32
_INSTALL = {"fastsafetensors": "fastsafetensors", "safetensors": "safetensors", "tensorizer": "tensorizer",
            "runai_model_streamer": "runai-model-streamer"}


def _load_file(path):
    return weightfs.safetensors.load_file(path)


def _stream(path):
    return dict(weightfs.safetensors.stream(path))


def _safetensors(path):
    from safetensors.torch import load_file
    return load_file(path)


def _fastsafetensors(path):
    from fastsafetensors import fastsafe_open
    with fastsafe_open([path], nogds=True, device="cpu") as model:
        return {name: model.get_tensor(name) for name in model.keys()}


def _runai(path):
    from runai_model_streamer import SafetensorsStreamer
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path)
        return dict(streamer.get_tensors())


def _tensorizer(path):
    from tensorizer import TensorDeserializer
    with TensorDeserializer(path, device="cpu") as model:
        return dict(model.items())


# name -> (module, load, whether it reads tensorizer's format)
LOADERS = {"weightfs load_file": ("weightfs", _load_file, False), "weightfs stream": ("weightfs", _stream, False),
           "safetensors": ("safetensors", _safetensors, False),
           "fastsafetensors": ("fastsafetensors", _fastsafetensors, False),
           "run:ai streamer": ("runai_model_streamer", _runai, False), "tensorizer": ("tensorizer", _tensorizer, True)}


def installed():
    """Returns (loaders that can be imported, name -> reason for the others)."""
    found, missing = [], {}
    for name, (module, _, _) in LOADERS.items():
        try:
            importlib.import_module(module)
            found.append(name)
        except Exception as error:   # a package may be there and lack a library
            missing[name] = f"{type(error).__name__}: {error}; pip install {_INSTALL.get(module, module)}"
    return found, missing


def make_model(size):
    """A model of `size` bytes: a large matrix and a small vector for each layer."""
    each, generator = max(size // _LAYERS, 2 * _PAGE), torch.Generator().manual_seed(1)
    rows = each // _PAGE
    return {name: tensor for layer in range(_LAYERS) for name, tensor in (
        (f"layers.{layer}.weight", torch.randint(-1 << 15, 1 << 15, (rows, _PAGE // 2), dtype=torch.int16,
                                                 generator=generator)),
        (f"layers.{layer}.norm", torch.randn(256, generator=generator)))}


def write(model, folder, names):
    """Writes the model for the loaders. Returns name -> path."""
    paths = {name: os.path.join(folder, "model.tensors" if LOADERS[name][2] else "model.safetensors")
             for name in names}
    weightfs.safetensors.save_file(model, os.path.join(folder, "model.safetensors"), durable=True)
    if "tensorizer" in names:
        from tensorizer import TensorSerializer
        serializer = TensorSerializer(paths["tensorizer"])
        serializer.write_state_dict(model)
        serializer.close()
    return paths


def warm_free_memory(size):
    """Fills and frees memory. A hypervisor may have taken back what is free, and no load is to pay for that."""
    memory = torch.empty(size * 5 // 4, dtype=torch.uint8)
    advise_huge_pages(memory)
    memory.zero_()


def seconds_of(load, path, expected=None):
    """The time of a cold load. RuntimeError if it gives something else than `expected`."""
    drop_pages(path)
    warm_free_memory(os.path.getsize(path))
    begin = time.perf_counter()
    tensors = load(path)
    for tensor in tensors.values():
        tensor.reshape(-1).view(torch.uint8)[::_PAGE].sum()
    seconds = time.perf_counter() - begin
    if expected is not None and (tensors.keys() != expected.keys() or not all(
            torch.equal(tensor, tensors[name]) for name, tensor in expected.items())):
        raise RuntimeError(f"{path}: what was loaded is not what was saved")
    return seconds


def measure(folder, size, rounds, names, tell):
    """Returns name -> seconds of each round. tell(text) is called before each round."""
    with tempfile.TemporaryDirectory(prefix="weightfs-loads-", dir=folder) as own:
        model = make_model(size)
        tell(f"writing {size / GB:.2f} GB")
        paths = write(model, own, names)
        for name in names:
            tell(f"trying {name}")
            try:
                seconds_of(LOADERS[name][1], paths[name], model)
            except Exception as error:
                raise RuntimeError(f"{name}: {error}") from error
        model = None
        times = {name: [] for name in names}
        for number in range(rounds):
            tell(f"round {number + 1} of {rounds}")
            for name in names[number % len(names):] + names[:number % len(names)]:
                times[name].append(seconds_of(LOADERS[name][1], paths[name]))
        return times


def summary(times, size):
    """Returns (the fastest other loader or None, rows of the table)."""
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    best = min((name for name in times if LOADERS[name][0] != "weightfs"), key=medians.get, default=None)
    rows = [{"loader": name, "seconds": seconds, "median_s": medians[name], "gb_per_s": size / GB / medians[name],
             "ratio": None if best is None else
             statistics.median(theirs / ours for theirs, ours in zip(times[best], seconds))}
            for name, seconds in times.items()]
    return best, rows


def parse(arguments):
    parser = Parser(prog="weightfs-loads", description=__doc__)
    parser.add_argument("folder", metavar="DIR", help="a mount or any directory; its files are removed afterwards")
    parser.add_argument("--size", default="1G", help="bytes of the model: a number with K, M or G (default 1G)")
    parser.add_argument("--rounds", type=int, default=5, help="measured loads of each loader (default 5)")
    parser.add_argument("--json", action="store_true", help="print all measurements as JSON")
    args = parser.parse_args(arguments)
    try:
        args.bytes = parse_size(args.size)
    except ValueError as error:
        parser.error(str(error))
    if args.rounds < 1:
        parser.error(f"--rounds is {args.rounds}: it must be at least 1")
    if not os.path.isdir(args.folder):
        parser.error(f"{args.folder}: no such directory")
    copies = 2 if "tensorizer" in installed()[0] else 1
    if shutil.disk_usage(args.folder).free < copies * args.bytes:
        parser.error(f"{args.folder}: no space for {copies} files of {args.size}; give a smaller --size")
    return args


def main(arguments=None):
    return run("weightfs-loads", lambda: _main(arguments))


def _main(arguments):
    args = parse(arguments)
    names, missing = installed()
    for name, reason in missing.items():
        print(f"NOT MEASURED: {name}: {reason}", file=sys.stderr)
    try:
        times = measure(args.folder, args.bytes, args.rounds, names,
                        lambda text: print(f"weightfs-loads: {text}", file=sys.stderr, flush=True))
    except (OSError, RuntimeError) as error:
        print(f"weightfs-loads: {error}", file=sys.stderr)
        return 1
    best, rows = summary(times, args.bytes)
    if args.json:
        print(json.dumps({"size": args.bytes, "rounds": args.rounds, "best_peer": best, "not_measured": missing,
                          "loads": rows}, indent=2))
        return 0
    print(f"{'cold loads of ' + args.size:24}{'median s':>10}{'GB/s':>8}  ratio to {best or 'no other loader'}")
    for row in rows:
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        print(f"{row['loader']:24}{row['median_s']:10.3f}{row['gb_per_s']:8.2f}  {ratio}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
