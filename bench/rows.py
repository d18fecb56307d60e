# SPDX-License-Identifier: Apache-2.0
"""The catalog: every row of the benchmark, the row whose reference it is compared with, the row that differs in one
respect only (`beside`), and the targets for ratios:

  reference, host      relative to the reference, and to the host's filesystem
  slow_host            replaces host if the host reaches less than 0.75 of the reference
  disk_host            relative to the host, if its filesystem is not in memory
  in_memory            relative to the reference, replaces all of these if the host's filesystem is in memory
  host_to_reference    the ratio that the same program reaches on the host's files
  beside               relative to the row `beside`
  fio_in_memory        relative to fio"""

from fnmatch import fnmatchcase

_READ = {"reference": 0.95, "host": 1.0, "slow_host": 1.3, "in_memory": 0.6}
_WRITE = {"reference": 0.9, "host": 1.3, "in_memory": 0.6}
_REPLACE = {"beside": 0.71}   # at most 1.4 times as long
_HANDLE = {"reference": 0.95, "host_to_reference": 0.95, "fio_in_memory": 1.0}


def _group(group, unit, rows, reference=None):
    """The rows of a group: (id, title, targets, other fields)."""
    for name, title, targets, *more in rows:
        row = {"id": name, "group": group, "title": title, "unit": unit, "at_least": targets}
        yield row | ({"reference": reference or name} if reference != "" else {}) | (more[0] if more else {})


ROWS = [
    *_group("read", "GB/s", [
        ("read-1m", "sequential read, 1 MiB calls, cold", _READ),
        ("read-whole", "the whole file in one call, cold", _READ),
        ("mmap", "mmap, in order, cold", {"reference": 0.7, "host": 0.8}),
        ("aio-1", "libaio on the mount, 1 MiB, depth 1", {}),
        ("aio-32", "libaio on the mount, 1 MiB, depth 32", {"reference": 0.9}),
        ("aio-128", "libaio on the mount, 1 MiB, depth 128", {"reference": 0.95})], "reference-read"),
    *_group("read", "GB/s", [
        ("reread", "the third read in a row, 1 MiB calls", {"host": 0.5}),
        ("mmap-again", "mmap, in order, the third time", {"host": 0.5})], ""),
    *_group("read", "GB/s", [
        ("readers-8", "eight readers of one cold file", {"reference": 0.95, "host": 1.0})], "reference-read"),
    *_group("write", "GB/s", [
        ("write-1m", "write + fsync, 1 MiB calls", _WRITE),
        ("write-whole", "write + fsync, one call", _WRITE),
        ("write-unaligned", "write + fsync, 1 MiB calls, unaligned memory", _WRITE),
        ("write-whole-unaligned", "write + fsync, one call, unaligned memory", _WRITE)], "reference-write"),
    *_group("random", "reads/s", [
        (f"random-{kib}k-{depth}", f"random reads, {kib} KiB, depth {depth}",
         {(4, 1): {"reference": 0.7}, (4, 32): {"reference": 0.95}}.get((kib, depth), {}))
        for kib in (4, 16, 64) for depth in (1, 32)]),
    *_group("random", "reads/s", [
        (f"reader-4k-{depth}", f"a reader by a lease, 4 KiB, depth {depth}", {"reference": 0.95},
         {"reference": f"random-4k-{depth}"}) for depth in (1, 32)]),
    *_group("torch", "GB/s", [
        ("torch-save", "torch.save + fsync", {"host": 1.3}),
        ("torch-load", "torch.load, cold", {"host": 1.0}),
        ("weightfs-torch-save", "weightfs.torch.save, durable", {}, {"beside": "torch-save"}),
        ("weightfs-torch-load", "weightfs.torch.load, cold", {}, {"beside": "torch-load"}),
        ("dcp-save", "torch.distributed.checkpoint, one process, save", {}),
        ("dcp-load", "torch.distributed.checkpoint, one process, load, cold", {})], ""),
    *_group("safetensors", "GB/s", [
        ("safetensors-save", "safetensors save_file + fsync", {}),
        ("safetensors-load", "safetensors load_file, cold", {"host": 1.0}),
        ("weightfs-safetensors-load", "weightfs.safetensors load_file, cold", {}, {"beside": "safetensors-load"}),
        ("fastsafetensors-load", "fastsafetensors, cold", {}),
        ("runai-load", "run:ai model streamer, cold", {})], ""),
    *_group("numpy", "GB/s", [("numpy-save", "np.save + fsync", {}), ("numpy-load", "np.load, cold", {})], ""),
    *_group("small", "files/s", [
        ("create", "create, write 64 KiB, close", {"host": 0.5}),
        ("stat", "stat of what was just written", {}),
        ("stat-again", "stat again", {"host": 0.5}),
        ("list", "list, for the first time since a change", {"host": 0.5}),
        ("list-again", "list again", {"host": 0.5}),
        ("small-read-cold", "open, read 4 KiB, close, cold", {}),
        ("small-read", "open, read 4 KiB, close, again", {}),
        ("replace", "write 64 KiB, rename over another", _REPLACE, {"beside": "create"}),
        ("create-4k", "create, write 4 KiB, close", {}),
        ("replace-4k", "write 4 KiB, rename over another", _REPLACE, {"beside": "create-4k"}),
        ("create-1m", "create, write 1 MiB, close", {}),
        ("replace-1m", "write 1 MiB, rename over another", _REPLACE, {"beside": "create-1m"}),
        ("create-4k-sync", "create, write 4 KiB, fsync, close", {"disk_host": 1.0}),
        ("replace-4k-sync", "write 4 KiB, fsync, rename over another", {"disk_host": 1.0}, {"beside": "create-4k-sync"}),
        ("unlink", "unlink", {"host": 0.25}),
        ("git-add", "git add of 500 files of 4 KiB", {})], ""),
    *_group("small-writes", "writes/s", [
        ("append-4", "append 4 bytes by write(2)", {}),
        ("append-4k", "append 4 KiB by write(2)", {}),
        ("write-4k-random", "overwrite 4 KiB at random offsets", {"host": 0.4})], ""),
    *_group("small-writes", "syncs/s", [
        ("fsync-4k", "overwrite 4 KiB + fsync", {"host": 0.6}),
        ("fsync-4k-8", "the same by eight threads, a file each", {"host": 0.6})], ""),
    *(row for do, verb, into in (("read", "reads", "into"), ("write", "writes", "from"))
      for row in _group("direct", "GB/s", [
          (f"direct-{do}", f"a handle {verb} a tensor by a lease{', durable' * (do == 'write')}", _HANDLE),
          (f"direct-{do}-unaligned", f"the same {into} unaligned memory", {"beside": 0.9}, {"beside": f"direct-{do}"}),
          (f"direct-{do}-4k-pages", f"the same {into} scattered pages of 4 KiB", {}, {"beside": f"direct-{do}"})],
          f"reference-direct-{do}")),
    *_group("direct", "files/s", [
        ("save-many", "64 KiB tensors by one save_many, durable", {"disk_host": 10.0}),
        ("load-many", "the same by one load_many, cold", {})], ""),
    *_group("handles", "GB/s", [
        ("deepspeed-write", "DeepSpeed's aio_handle + fsync", {}),
        ("deepspeed-read", "DeepSpeed's aio_handle, cold", {}),
        ("aio-handle-write", "weightfs' aio_handle + fsync", {"beside": 1.0}, {"beside": "deepspeed-write"}),
        ("aio-handle-read", "weightfs' aio_handle, cold", {"beside": 1.0}, {"beside": "deepspeed-read"})], "")]


def is_selected(row, patterns):
    """True if the row or its group matches one of the shell patterns, or if there are no patterns."""
    return not patterns or any(fnmatchcase(row[key], pattern) for pattern in patterns for key in ("id", "group"))


def targets(row):
    """The targets relative to the reference and to the host, as --list shows them."""
    at_least = row["at_least"].get
    reference = f"≥ {at_least('reference'):.2f}" if at_least("reference") else "shown" * ("reference" in row)
    if at_least("slow_host"):
        return reference, f"≥ {at_least('host'):.1f}; ≥ {at_least('slow_host'):.1f} where the host is slow"
    if at_least("disk_host"):
        return reference, f"≥ {at_least('disk_host'):.1f} on a disk"
    return reference, f"≥ {at_least('host'):.1f}" if at_least("host") else "shown"
