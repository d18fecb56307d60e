# SPDX-License-Identifier: Apache-2.0
"""weightfs-loads: measures how fast loaders of safetensors load a model into memory of the CPU, each from a cold cache:
weightfs.safetensors beside safetensors, fastsafetensors, run:ai's model streamer and tensorizer (its own format).

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
from weightfs._memory import advise_huge_pages
from weightfs.bench import compare, libraries
from weightfs.bench.machine import drop_pages
from weightfs.bench.program import Bar, Parser, directory, number_from, run, size


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


def seconds_of(load, path, model=None):
    """The time of a cold load. RuntimeError if it gives something else than the model."""
    drop_pages(path)
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


def measure(folder, nbytes, rounds, names, show):
    """Returns name -> seconds of each round."""
    with tempfile.TemporaryDirectory(prefix="weightfs-loads-", dir=folder) as own:
        model = libraries.Torch(nbytes)
        show("writing the model", 0)
        paths = write(model.state, own, names)
        for name in names:
            try:
                seconds_of(LOADERS[name][1], paths[name], model)
            except Exception as error:
                raise RuntimeError(f"{name}: {error}") from error
        del model
        return compare.measure({name: [] for name in names}, rounds,
                               lambda name: seconds_of(LOADERS[name][1], paths[name]), show)


def result_of(seconds, nbytes, missing):
    peers = [name for name in seconds if not name.startswith("weightfs")]
    base = min(peers, key=lambda name: statistics.median(seconds[name])) if peers else next(iter(seconds))
    rates = {name: [nbytes / each for each in seconds[name]] for name in seconds}
    rounds = len(seconds[base])
    return compare.result("weightfs-loads", rounds, [compare.row(
        "loads", "GB/s", rates, base, table=f"cold loads of {nbytes >> 20} MiB, GB/s", title="GB/s",
        not_measured=missing)], ["loads"])


def parse(arguments):
    parser = Parser(prog="weightfs-loads", description=__doc__)
    parser.add_argument("folder", metavar="DIR", type=directory, help="a mount or any directory; its files are removed "
                        "afterwards")
    parser.add_argument("--size", type=size, default="1G", help="bytes of the model: a number with K, M or G (default 1G)")
    parser.add_argument("--rounds", type=number_from(1), default=5, help="measured loads of each loader (default 5)")
    parser.add_argument("--json", action="store_true", help="print all measurements as JSON")
    args = parser.parse_args(arguments)
    if shutil.disk_usage(args.folder).free < (2 if "tensorizer" in installed()[0] else 1) * args.size:
        parser.error(f"{args.folder}: no space for the files; give a smaller --size")
    return args


def main(arguments=None):
    return run("weightfs-loads", lambda: _main(parse(arguments)))


def _main(args):
    names, missing = installed()
    bar = Bar("weightfs-loads")
    try:
        seconds = measure(args.folder, args.size, args.rounds, names, bar.show)
    except (OSError, RuntimeError) as error:
        print(f"weightfs-loads: {error}", file=sys.stderr)
        return 1
    finally:
        bar.end()
    compare.output(result_of(seconds, args.size, missing), args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
