# SPDX-License-Identifier: Apache-2.0
"""How fast tensors are written and read, by several libraries side by side: `timings.py DEVICE FOLDER ROUNDS SIZE...`.

DEVICE is cpu or cuda. In each round every method works once, each time in another order. A write ends after fsync, and
a read finds none of the file in the page cache. Prints the median rates as JSON."""

import functools
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch

import weightfs
import weightfs.safetensors
import weightfs.torch
from weightfs.bench.machine import sync_file


class Method:
    """`write` and `read` get a tensor and a path. A read returns the tensor that it made, or fills the one that it got
    and returns None. Without a write only reads are measured, of a file that `prepare` makes."""

    def __init__(self, name, suffix, read, write=None, prepare=None, facts=None):
        self.name, self.suffix, self.read, self.write = name, suffix, read, write
        self.prepare = prepare or write
        self.facts = facts or (lambda: {})


def by_handle(name, handle, facts=None):
    return Method(name, "raw", lambda tensor, path: _expect(handle.sync_pread(tensor, path), path),
                  lambda tensor, path: _expect(handle.sync_pwrite(tensor, path), path), facts=facts)


def _expect(count, path):
    if count < 1:
        raise RuntimeError(f"{path}: the handle reports {count}")


def gds(mode, device):
    handle = weightfs.gds_handle(queue_depth=32, overlap_events=True, mode=mode)
    return [by_handle(f"weightfs, {mode}", handle,
                      lambda: {"mode": handle.mode, "reason": handle.mode_reason, "refusal": handle.refusal,
                               "bytes": handle.gpu_bytes})]


def host(device):
    return [by_handle("weightfs, aio_handle", weightfs.aio_handle(queue_depth=32, overlap_events=True))]


def deepnvme(device):
    from deepspeed.ops.op_builder import AsyncIOBuilder
    handle = AsyncIOBuilder().load(verbose=False).aio_handle(1 << 20, 32, False, True, 1)
    return [by_handle("DeepNVMe, aio_handle", handle)]


def deepnvme_gds(device):
    from deepspeed.ops.op_builder import GDSBuilder
    return [by_handle("DeepNVMe, gds_handle", GDSBuilder().load(verbose=False).gds_handle(1 << 20, 32, False, True, 1))]


def torch_files(device):
    return [Method(name, "pt", lambda tensor, path, module=module: module.load(path, map_location=device),
                   lambda tensor, path, module=module: module.save(tensor, path))
            for name, module in (("torch.load", torch), ("weightfs.torch.load", weightfs.torch))]


def safetensors_files(device):
    import safetensors.torch
    return [Method(name, "safetensors", lambda tensor, path, module=module: module.load_file(path, device=device)["t"],
                   lambda tensor, path, module=module: module.save_file({"t": tensor}, path))
            for name, module in (("safetensors", safetensors.torch), ("weightfs.safetensors", weightfs.safetensors))]


def fastsafetensors(device):
    from fastsafetensors import fastsafe_open
    gpu = device != "cpu"

    def read(tensor, path):
        with fastsafe_open([path], nogds=not gpu, device="cuda:0" if gpu else "cpu") as model:
            return model.get_tensor("t").clone()   # its memory ends with `model`
    return [Method("fastsafetensors", "safetensors", read,
                   prepare=lambda tensor, path: weightfs.safetensors.save_file({"t": tensor}, path))]


def methods_of(device):
    """(methods, name -> why it is not here)."""
    makers = [torch_files, host, safetensors_files, fastsafetensors, deepnvme]
    if device != "cpu":
        makers += [*(functools.partial(gds, mode) for mode in ("bounce", "auto", "cufile")), deepnvme_gds]
    found, missing = [], {}
    for maker in makers:
        try:
            found += maker(device)
        except Exception as error:   # a package may be there and lack a library
            name = " ".join([maker.func.__name__, *maker.args]) if hasattr(maker, "func") else maker.__name__
            missing[name] = f"{type(error).__name__}: {error}"
    return found, missing


def synchronize(device):
    if device != "cpu":
        torch.cuda.synchronize()


def written(method, tensor, path, device):
    begin = time.perf_counter()
    method.write(tensor, path)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return time.perf_counter() - begin


def read(method, tensor, path, device):
    """Reads into zeros, and compares with the tensor."""
    target = torch.zeros_like(tensor)
    synchronize(device)
    sync_file(path, drop=True)
    begin = time.perf_counter()
    made = method.read(target, path)
    if device == "cpu" and made is not None:
        made[::4096].max()   # it may be a mapping, of which nothing was read
    synchronize(device)
    seconds = time.perf_counter() - begin
    if not torch.equal(target if made is None else made, tensor):
        raise RuntimeError(f"{path}: other bytes than were written")
    return seconds


def measure(device, folder, rounds, size):
    """One row for each method."""
    tensor = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)
    synchronize(device)
    methods, missing = methods_of(device)
    seconds, errors = {}, {}
    paths = {method.name: str(folder / f"timings-{index}.{method.suffix}") for index, method in enumerate(methods)}
    for current in range(rounds):
        for method in methods[current % len(methods):] + methods[:current % len(methods)]:
            if method.name in errors:
                continue
            path = paths[method.name]
            try:
                if method.write is not None:
                    seconds.setdefault((method.name, "write"), []).append(written(method, tensor, path, device))
                elif current == 0:
                    method.prepare(tensor, path)
                seconds.setdefault((method.name, "read"), []).append(read(method, tensor, path, device))
            except Exception as error:
                errors[method.name] = f"{type(error).__name__}: {error}"
    for path in paths.values():
        Path(path).unlink(missing_ok=True)
    rows = []
    for method in methods:
        row = {"device": device, "method": method.name, "size": size, "error": errors.get(method.name, ""),
               **method.facts()}
        for direction in ("write", "read"):
            if found := seconds.get((method.name, direction)):
                row[f"{direction}_gb_s"] = size / 1e9 / statistics.median(found)
                row[f"{direction}_s"] = found
        rows.append(row)
    return rows, missing


def main():
    device, folder, rounds, *sizes = sys.argv[1:]
    results = {"device": device, "rounds": int(rounds), "rows": [], "missing": {}}
    for size in map(int, sizes):
        rows, missing = measure(device, Path(folder), int(rounds), size)
        results["rows"] += rows
        results["missing"].update(missing)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
