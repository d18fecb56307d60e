#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The folders follow the architecture: includes and imports follow the arrows, without circles, and each foreign library
is used in one place."""
import ast
import graphlib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# The folders that each folder may include.
ALLOWED = {
    "common": {"common"},
    "io": {"common", "io"},
    "engine": {"common", "io", "engine"},
    "meta": {"common", "meta"},
    "lease": {"common", "lease"},
    "client": {"common", "io", "lease", "client"},
    "s3": {"common", "s3"},
    "remote": {"common", "client", "s3", "remote"},
    "hdf5": {"common", "client", "hdf5"},
    "python": {"client", "common", "python"},
    "store": {"common", "io", "engine", "meta", "store"},
    "fs": {"common", "io", "store", "lease", "fs"},
    "bench": {"common", "lease", "client", "bench"},   # it measures handles
    "cli": {"common", "store", "fs", "lease", "client", "s3", "remote", "bench", "cli"},
}
# The folders inside store/ that each of them may include; "" is store/ itself, with store.h and types.h.
STORE = {
    "space": {""},
    "file": {"", "space"},
    "wal": {"space"},
    "scrub": {"space", "wal"},
    "commit": {"", "file", "space"},
    "names": {"", "file"},
    "": {"commit", "file", "names", "scrub", "space", "wal"},
    "volume": {"", "names", "wal"},
    "check": {"", "names"},
}
# Of store/ itself these folders may include only the types.
BELOW_STORE = {"space", "file", "wal", "scrub", "commit", "names"}
# The parts of the Python package that each of them may import; "" is weightfs/__init__.py.
PYTHON = {
    "_core": set(),
    "torch": {"_core"},
    "safetensors": {"_core", "torch"},
    "dcp": {"_core", "torch"},
    "fastsafetensors": {"_core"},
    "hf": {"_core", "safetensors"},
    "lightning": {"_core", "torch"},
    "offload": {"_core", "safetensors", "torch"},
    "deepnvme": {"_core"},
    "s3": {"_core"},
    "checkpoint": {"_core", "s3", "torch"},
    "hdf5": set(),
    "tools": {"", "_core", "bench", "checkpoint", "dcp", "deepnvme", "hdf5", "safetensors", "torch"},
    "": {"_core", "deepnvme"},
}
# The places that may include a library, by a pattern of its headers.
LIBRARIES = {
    r"rocksdb/": r"meta/rocks_\w+\.(cc|h)",
    r"libaio\.h": r"io/aio_queue\.cc",
    r"fuse3?/|fuse\w*\.h|linux/fuse": r"fs/.*",
    r"isa-l/": r"common/checksum\.cc",
    r"blkid": r"store/.*\.cc",
    r"libmount": r"common/mounts\.cc",
    r"curl/|pugixml": r"s3/.*",
    r"openssl/": r"s3/.*",
    r"CLI/": r"cli/program\.cc",   # it takes seconds to compile; commands use cli/options.h
    r"cuda|cufile|nv": r"no file: NVIDIA's libraries are found at run time",
}
# The core of the client knows its plug-ins only through interfaces; the handle and the reader assemble them.
PLUGINS = ("client/gpu/", "client/lease/")
ASSEMBLY = r"client/(handle\w*|random_reader)\.(cc|h)"
# nlohmann's parser has no limits, so foreign JSON is parsed by common/json.h. These parse what weightfs itself printed.
PARSE = re.compile(r"\b[Jj]son::(parse|sax_parse|accept)\(")
PARSERS = r"common/json\.h|bench/.*|cli/(bench|store/format|store/info)\.cc"
INCLUDE = re.compile(r'^\s*#include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def wrongs():
    for folder, allowed in ALLOWED.items():
        used = {folder.split("/")[0]}
        sources = [*ROOT.glob(f"{folder}/**/*.h"), *ROOT.glob(f"{folder}/**/*.cc")]
        if not sources:
            yield f"{folder}/ has no sources: the test looks at the wrong place"
        for source in sources:
            name, text = source.relative_to(ROOT).as_posix(), source.read_text()
            if PARSE.search(text) and not re.fullmatch(PARSERS, name):
                yield f"{name} parses JSON without limits: use common/json.h"
            for ours, foreign in INCLUDE.findall(text):
                target = ours.split("/")[0]
                used.add(target)
                if ours and target not in allowed:
                    yield f"{name} includes {ours}: {folder} may know {', '.join(sorted(allowed))}"
                if source.parent == ROOT / "client" and ours.startswith(PLUGINS) and not re.fullmatch(ASSEMBLY, name):
                    yield f"{name} includes {ours}: the core of client may not know its plug-ins"
                for library, place in LIBRARIES.items():
                    if foreign and re.match(library, foreign) and not re.fullmatch(place, name):
                        yield f"{name} includes <{foreign}>, whose place is {place}"
        for idle in sorted(allowed - used):
            yield f"{folder} may know {idle}, and includes nothing of it: take the arrow away"


def folder_of(name):
    parts = name.split("/")
    return parts[1] if len(parts) == 3 else ""


def wrongs_in_store():
    used = {folder: set() for folder in STORE}
    for source in [*ROOT.glob("store/**/*.h"), *ROOT.glob("store/**/*.cc")]:
        name = source.relative_to(ROOT).as_posix()
        folder = folder_of(name)
        if folder not in STORE:
            yield f"store/{folder}/ has no rule in this test"
            continue
        for ours, _ in INCLUDE.findall(source.read_text()):
            if not ours.startswith("store/") or folder_of(ours) == folder:
                continue
            used[folder].add(folder_of(ours))
            if folder_of(ours) not in STORE[folder]:
                yield f"{name} includes {ours}: store/{folder} may know {', '.join(sorted(STORE[folder]))}"
            elif folder in BELOW_STORE and folder_of(ours) == "" and ours != "store/types.h":
                yield f"{name} includes {ours}: store/{folder} lies below it"
    for folder, allowed in STORE.items():
        for idle in sorted(allowed - used[folder]):
            yield f"store/{folder} may know store/{idle}, and includes nothing of it: take the arrow away"


def imports(source, modules):
    """The modules of the package that a module imports, and "bench" and "_native", which are not in its folder."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in {*modules, "weightfs._native"} else node.module for name in names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "weightfs")


def wrongs_in_python():
    root, used = ROOT / "python/weightfs", {part: set() for part in PYTHON}
    modules = {".".join(source.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__"): source
               for source in root.glob("**/*.py")}
    graph = {name: set(imports(source, modules)) for name, source in modules.items()}
    for name, found in graph.items():
        part = "".join(name.split(".")[1:2])
        for other in found:
            used[part].add(target := "".join(other.split(".")[1:2]))
            if target not in {part, "_native", *PYTHON[part]}:
                yield f"{name} imports {other}: {part} may know {', '.join(sorted(PYTHON[part])) or 'nothing'}"
    for part, allowed in PYTHON.items():
        for idle in sorted(allowed - used[part]):
            yield f"{part} may know {idle}, and imports nothing of it: take the arrow away"
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield f"these modules import each other: {' → '.join(error.args[1])}"


def main():
    found = [*wrongs(), *wrongs_in_store(), *wrongs_in_python()]
    print("\n".join(found) or "every include and import follows the arrows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
