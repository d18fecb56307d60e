# SPDX-License-Identifier: Apache-2.0
"""A second implementation of docs/FORMAT.md section 11, independent of the C++ code: writes and reads versions.

    write(put, tree, "series", 7)              put(key, body) stores an object
    read(get, "series", 7)                     get(key) returns one; returns the manifest's lines, verified"""
import base64
import hashlib
import json
import os
import secrets
import stat
import time
from pathlib import Path

import numpy

from harness import crc32c

BLOCK = 4096
SLICE = 4 << 20
TABLE = numpy.array(crc32c.TABLE, dtype=numpy.uint32)


def checksums(body):
    """The CRC-32C of each block, the last one filled up with zeros, as little-endian integers of 32 bits."""
    padded = body + bytes(-len(body) % BLOCK)
    blocks = numpy.frombuffer(padded, dtype=numpy.uint8).reshape(-1, BLOCK)
    sums = numpy.full(len(blocks), 0xFFFFFFFF, dtype=numpy.uint32)
    for column in numpy.ascontiguousarray(blocks.T):
        sums = TABLE[(sums ^ column) & 255] ^ sums >> 8
    return (sums ^ 0xFFFFFFFF).astype("<u4").tobytes()


def attributes_of(path):
    try:
        names = [name for name in os.listxattr(path) if name.startswith("user.")]
    except OSError:
        return {}
    values = {name: base64.b64encode(os.getxattr(path, name)).decode() for name in sorted(names)}
    return {"attributes": values} if values else {}


def entries_of(root):
    """The lines of the directories, files and links below `root`, and the paths of the files, each in order."""
    directories, files, links, sources = [], [], [], []
    paths = [root, *root.rglob("*")]
    for path in sorted(paths, key=lambda found: b"" if found == root else os.fsencode(found.relative_to(root))):
        name = "" if path == root else path.relative_to(root).as_posix()
        status = path.lstat()
        common = {"mode": stat.S_IMODE(status.st_mode), "modified": status.st_mtime_ns}
        if path.is_symlink():
            links.append({"link": name, "target": os.readlink(path)})
        elif path.is_dir():
            directories.append({"directory": name, **common, **attributes_of(path)})
        else:
            files.append({"file": name, "size": status.st_size, **common, **attributes_of(path)})
            sources.append(path)
    return directories, files, links, sources


def line(entry):
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def sealed(entries):
    """The manifest with these lines; a last line has the hash of all others."""
    text = b"".join(map(line, entries))
    return text + line({"sha256": hashlib.sha256(text).hexdigest()})


def claim_of(push, source="test", created=None):
    created = time.time_ns() if created is None else created
    claim = {"weightfs-claim": 1, "push": push, "source": source, "created": created}
    return line({**claim, "sha256": hashlib.sha256(line(claim)).hexdigest()})


def read_claim(text):
    """The fields of a claim but its checksum, which may be missing and is compared."""
    claim = json.loads(text)
    sum_of = claim.pop("sha256", None)
    assert sum_of in (None, hashlib.sha256(line(claim)).hexdigest())
    return claim


def write(put, root, series, version, *, finish=True, created=None, change=None):
    """Writes the directory `root` as a version. Without `finish` the manifest is missing. `change` may change the list
    of the manifest's entries. Returns the keys."""
    root, push, prefix = Path(root), secrets.token_hex(16), f"{series}/{version}/"
    created = time.time_ns() if created is None else created
    keys = []

    def store(name, body):
        keys.append(prefix + name)
        put(prefix + name, body)

    store(".weightfs/claim", claim_of(push, created=created))
    directories, files, links, sources = entries_of(root)
    sums = b""
    for entry, source in zip(files, sources):
        body = source.read_bytes()
        store(entry["file"], body)
        sums += checksums(body)
    slices = [sums[at:at + SLICE] for at in range(0, len(sums), SLICE)]
    for index, body in enumerate(slices):
        store(f".weightfs/sums/{index}", body)
    head = {"weightfs-manifest": 1, "version": version, "push": push, "source": f"test:{root}", "created": created}
    entries = [head, *directories, *files, *links,
               *({"slice": hashlib.sha256(body).hexdigest()} for body in slices)]
    if change:
        entries = change(entries) or entries
    if finish:
        store(".weightfs/manifest", sealed(entries))
    return keys


def read(get, series, version):
    """Returns {path: body} and the lines of the manifest. Verifies everything."""
    prefix = f"{series}/{version}/"
    text = get(prefix + ".weightfs/manifest")
    *lines, last = text.splitlines(keepends=True)
    assert json.loads(last) == {"sha256": hashlib.sha256(b"".join(lines)).hexdigest()}
    entries = [json.loads(entry) for entry in lines]
    assert entries[0]["weightfs-manifest"] == 1 and entries[0]["version"] == version
    claim = read_claim(get(prefix + ".weightfs/claim"))
    assert claim["weightfs-claim"] == 1 and claim["push"] == entries[0]["push"]
    hashes = [entry["slice"] for entry in entries if "slice" in entry]
    slices = [get(f"{prefix}.weightfs/sums/{index}") for index in range(len(hashes))]
    assert [hashlib.sha256(body).hexdigest() for body in slices] == hashes
    assert all(len(body) == SLICE for body in slices[:-1])
    files = {entry["file"]: get(prefix + entry["file"]) for entry in entries if "file" in entry}
    assert list(files) == sorted(files, key=str.encode)
    assert b"".join(map(checksums, files.values())) == b"".join(slices)
    assert {entry["file"]: entry["size"] for entry in entries if "file" in entry} == {
        name: len(body) for name, body in files.items()}
    return files, entries
