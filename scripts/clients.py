# SPDX-License-Identifier: Apache-2.0
"""Installs Python packages into the environment of the Python that runs it. Prints what pip will download and its size,
prefers torch's CPU build, and skips packages that are not available. Called by scripts/setup.

Exit status: 0 all packages are installed; 3 torch is missing because only its GPU build is available; 4 another
optional package is missing; 1 a required package is not available. With --demo nothing is installed unless torch is
available.
"""

import argparse
import ast
import concurrent.futures
import importlib.metadata
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path
from typing import NamedTuple

# PyTorch's own index has CPU builds of torch. PyPI's torch for x86-64 depends on the GPU libraries.
CPU_INDEX = os.environ.get("WEIGHTFS_TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
GPU_PACKAGES = ("nvidia-", "cuda-", "triton")
REQUIRED = {"pytest", "pytest-xdist", "pybind11", "scikit-build-core"}
DEMO = {"torch", "numpy"}
DRY_RUN_DOWNLOADS_BEFORE = (23, 3)
TIMEOUT_S = 10


class Failure(Exception):
    """pip failed. The text is the reason, in one line."""


def pip(*words, quiet=True):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE if quiet else None, stderr=subprocess.PIPE,
                          check=False)
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR: ")]
        refusals = [line.partition("connection broken by ")[2] for line in lines if "connection broken by " in line]
        raise Failure("; ".join([*refusals[:1], *(errors or lines)[:1]]) or f"pip ended with status {done.returncode}")
    return done.stdout


def tls():
    return ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)


def head(url):
    return urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=TIMEOUT_S, context=tls())


def has_torch(index):
    """True if an index, which is a URL or a directory, is reachable and lists torch."""
    parts = urllib.parse.urlsplit(index)
    if parts.scheme in ("", "file"):
        return Path(urllib.request.url2pathname(parts.path), "torch").is_dir()
    try:
        head(f"{index}/torch/").close()
    except (OSError, ValueError):
        return False
    return True


def cpu_index():
    """pip's options for torch's CPU builds; none if that index is unreachable."""
    if not CPU_INDEX or os.environ.get("PIP_NO_INDEX") or not has_torch(CPU_INDEX):
        return []
    # The option replaces the user's configuration, unless it repeats the configured indexes.
    configured = [line.partition("=")[2] for line in pip("config", "list").splitlines() if "extra-index-url=" in line]
    indexes = [url for value in configured for url in ast.literal_eval(value).split()]
    return [word for url in [*indexes, CPU_INDEX] for word in ("--extra-index-url", url)]


def size(url):
    """Bytes of a file to download; None if its server does not tell; 0 for a local file."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        return 0
    try:
        with head(url) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None


def text_of(count):
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(count / 1e6, 0.1):.1f} MB"


def download(packages):
    """The download size of the packages, as text."""
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        sizes = dict(zip((f"{name} {version}" for name, version, _ in packages),
                         pool.map(size, (url for *_, url in packages))))
    known = {name: count for name, count in sizes.items() if count}
    text = text_of(sum(known.values())) if known else "0 MB"
    largest = sorted(known, key=known.get, reverse=True)[:3]
    details = [f"{name} {text_of(known[name])}" for name in largest]
    if local := sum(count == 0 for count in sizes.values()):
        details.append(f"{local} from this machine")
    if unknown := sum(count is None for count in sizes.values()):
        details.append(f"{unknown} of unknown size")
    return text + (f" ({', '.join(details)})" if details else "")


class Planner:
    """Asks pip what it would install."""

    def __init__(self, requirements):
        self.requirements = requirements   # name → line for pip
        # Only wheels, because a source package could need compilers and libraries that were not announced.
        self.options = ["--only-binary", ":all:", "--retries", "2", *cpu_index()]

    def packages(self, names):
        """(name, version, URL) of each package that is missing for `names`. Raises: Failure."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report"
            pip("install", "--quiet", "--dry-run", "--report", str(report), *self.options,
                *(self.requirements[name] for name in names))
            found = json.loads(report.read_text(encoding="utf-8"))["install"]
        return [(item["metadata"]["name"], item["metadata"]["version"], item["download_info"]["url"]) for item in found]

    def install(self, names):
        quiet = [] if sys.stdout.isatty() else ["--quiet"]
        pip("install", *quiet, *self.options, *(self.requirements[name] for name in names), quiet=False)


def for_gpus(packages):
    return any(name.lower().startswith(GPU_PACKAGES) for name, *_ in packages)


class Choice(NamedTuple):
    """The available part of the requirements."""
    names: list
    packages: list   # packages to install for them: (name, version, URL)
    missing: dict    # name → reason
    gpu_only: bool   # torch is missing because only its GPU build is available


def choose(planner, required, gpu):
    """Asks for all packages at once, then for all except torch, then for one name at a time.

    Raises: Failure: a required package is not available.
    """
    everything = list(planner.requirements)
    try:
        packages = planner.packages(everything)
        if gpu or not for_gpus(packages):
            return Choice(everything, packages, {}, False)
        names = [name for name in everything if name != "torch"]
        rest = planner.packages(names)
        if not for_gpus(rest):
            return Choice(names, rest, {"torch": gpu_reason(packages, rest)}, True)
    except Failure:
        pass
    names, missing, gpu_only = sorted(required), {}, False
    packages = planner.packages(names) if names else []
    for name in (name for name in everything if name not in required):
        try:
            more = planner.packages([*names, name])
        except Failure as failure:
            missing[name] = str(failure)
            continue
        if for_gpus(more) and not gpu:
            missing[name] = gpu_reason(more, packages)
            gpu_only = gpu_only or name == "torch"
        else:
            names.append(name)
            packages = more
    return Choice(names, packages, missing, gpu_only)


def gpu_reason(packages, without):
    return f"pip finds only its GPU build, {download([one for one in packages if one not in without])}"


def install(planner, names, required):
    """Installs all of `names`. If that fails, installs the required ones, and then one name at a time.

    Returns name → reason, of packages that could not be installed. Raises: Failure: of a required package.
    """
    try:
        planner.install(names)
        return {}
    except Failure:
        pass
    missing, first = {}, sorted(required.intersection(names))
    if first:
        planner.install(first)
    for name in (name for name in names if name not in required):
        try:
            planner.install([name])
        except Failure as failure:
            missing[name] = str(failure)
    return missing


def update_pip():
    """Installs a pip whose dry run downloads nothing. Without one, the old pip downloads before the announcement."""
    text = importlib.metadata.version("pip")   # "23.0.1", "24.1b1"
    if tuple(int(part) for part in re.findall(r"\d+", text)[:2]) < DRY_RUN_DOWNLOADS_BEFORE:
        print(f"    pip {text} downloads packages during a dry run, so a newer pip comes first (2 MB)", flush=True)
        try:
            pip("install", "--quiet", "--retries", "1", "--upgrade", "pip")
        except Failure:
            pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", action="store_true", help="only torch and numpy")
    parser.add_argument("--gpu", action="store_true", help="use torch's GPU build if no CPU build is available")
    parser.add_argument("files", type=Path, nargs="+", help="requirements, one NAME==VERSION per line")
    arguments = parser.parse_args()
    lines = [line for file in arguments.files for line in file.read_text(encoding="utf-8").split()]
    wanted = {line.split("==")[0]: line for line in lines}
    if arguments.demo:
        wanted = {name: line for name, line in wanted.items() if name in DEMO}
    try:
        update_pip()
        planner = Planner(wanted)
        required = REQUIRED & wanted.keys()
        choice = choose(planner, required, arguments.gpu)
        missing = dict(choice.missing)
        needless = arguments.demo and "torch" in missing
        if choice.packages and not needless:
            count = f"{len(choice.packages)} package{'s' if len(choice.packages) > 1 else ''}"
            print(f"    pip installs {count} and downloads {download(choice.packages)}", flush=True)
            missing |= install(planner, choice.names, required)
    except Failure as failure:
        print(f"    {', '.join(sorted(wanted))} cannot be installed: {failure}", file=sys.stderr)
        return 1
    for name, reason in missing.items():
        print(f"    {wanted[name]} cannot be installed: {reason}", file=sys.stderr)
    return 3 if choice.gpu_only else 4 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
