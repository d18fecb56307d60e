#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests and measures transfers between files and GPU memory on this machine. Needs no network and installs nothing.

It runs one step after the other, each in a process of its own under a time limit: what this machine has; cuFile; a C++
program on real GPU memory (bounce buffers, auto, cuFile); a store with direct access and with a damaged block; the
tests of the Python package on a GPU, also with torch's other allocators; and timings beside torch.load, safetensors,
DeepNVMe and fastsafetensors, where they are installed. A step is ok, failed, or not possible, with the reason.

Results: OUT/results.txt, a page with tables; OUT/results.json, all facts and samples; OUT/*.log, the output of each
step. The exit status is 1 if a step failed."""

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path

BUNDLE = Path(__file__).resolve().parent
MODULES = ("nvidia", "nvidia_uvm", "nvidia_fs", "nvidia_peermem", "nvme", "nvme_rdma", "fuse", "overlay")
VARIABLES = ("CUDA", "CUFILE", "NVIDIA", "PYTORCH", "WEIGHTFS")
# name -> value of PYTORCH_CUDA_ALLOC_CONF, and the tests that depend on the allocator
ALLOCATORS = {"default allocator": ("", ""),
              "expandable segments": ("expandable_segments:True", "not measures and not examples"),
              "cudaMallocAsync": ("backend:cudaMallocAsync", "not measures and not examples")}
CAP_SYS_ADMIN = 21
NO_GPU = "torch.cuda.is_available() is false"
PYTHON_FACTS = """
import json, sys, sysconfig
facts = {"version": sys.version.split()[0], "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
         "include": sysconfig.get_path("include"), "cuda": False}
try:
    import torch
    facts.update(torch=torch.__version__, cuda=torch.cuda.is_available(), cuda_version=torch.version.cuda)
    facts["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
except Exception as error:
    facts["torch_error"] = f"{type(error).__name__}: {error}"
print(json.dumps(facts))
"""

# Imports the package, and looks for a cuFile that the loader does not find.
PACKAGE_FACTS = """
import ctypes, json, weightfs
from weightfs._core.arguments import find_cufile
try:
    ctypes.CDLL("libcufile.so.0")
    print(json.dumps(""))
except OSError:
    print(json.dumps(find_cufile()))
"""


class Stopped(Exception):
    """Why a step is not ok, and the facts that it found."""

    def __init__(self, why, facts=None):
        super().__init__(why)
        self.facts = facts or {}


class Impossible(Stopped):
    """This machine lacks what the step needs."""


class Failed(Stopped):
    pass


class Finished:
    def __init__(self, status, log):
        self.status, self.log = status, log
        self.text = log.read_text(errors="replace")

    @property
    def last_line(self):
        return (self.text.strip().splitlines() or ["no output"])[-1]

    def facts(self):
        """The JSON in the last line of a program that succeeded."""
        if self.status != 0:
            raise Failed(f"status {self.status}: {self.last_line}")
        return json.loads(self.last_line)


def parse_size(text):
    match = re.fullmatch(r"(\d+)([KMGT]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number with K, M, G or T")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2]]


def read_text(path):
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError as error:
        return f"not there: {error.strerror}"


def filesystem_of(folder):
    """The mount of a folder, and its block device as the kernel describes it."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    found = {"number": number, "udev": Path(f"/run/udev/data/b{number}").exists(),
             "device": os.path.realpath(f"/sys/dev/block/{number}")}
    longest = ""
    for line in read_text("/proc/self/mountinfo").splitlines():
        fields, _, source = line.partition(" - ")
        point = fields.split()[4].replace("\\040", " ")
        if len(point) >= len(longest) and Path(folder).is_relative_to(point):
            longest = point
            found.update(point=point, options=fields.split()[5])
            found.update(zip(("type", "source", "super_options"), source.split(maxsplit=2)))
    return found


def outcome_of(case):
    """A test in the report of pytest."""
    problem = case.find("skipped")
    outcome = "passed" if len(case) == 0 else "failed" if problem is None else "skipped"
    problem = case[0] if outcome == "failed" else problem
    return {"name": case.get("name"), "seconds": float(case.get("time")), "outcome": outcome,
            "why": "" if problem is None else " ".join(problem.get("message", "").split())}


class Check:
    def __init__(self, args):
        self.args, self.out = args, args.out
        self.results = {"bundle": json.loads((BUNDLE / "bundle.json").read_text()), "arguments": sys.argv[1:],
                        "date": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
                        "steps": []}
        self.environment = {**os.environ, "CUFILE_LOGFILE_PATH": str(self.out / "cufile.log")}
        self.python = {}          # facts of the Python with torch
        self.package = None       # folder of the Python package
        self.mount = None
        self.logs = itertools.count(1)

    # --- Steps and their processes ---

    def step(self, name, function, *arguments):
        print(f"{name} ...", flush=True)
        begin, facts, why, outcome = time.monotonic(), {}, "", "ok"
        try:
            facts = function(*arguments) or {}
        except Stopped as error:
            outcome, why, facts = "not possible" if isinstance(error, Impossible) else "failed", str(error), error.facts
        except Exception as error:   # the others may work even so
            outcome, why = "failed", f"{type(error).__name__}: {error}"
        self.results["steps"].append({"name": name, "outcome": outcome, "why": why, "facts": facts,
                                      "seconds": round(time.monotonic() - begin, 1)})
        print(f"    {outcome}{': ' if why else ''}{why}", flush=True)
        (self.out / "results.json").write_text(json.dumps(self.results, indent=1) + "\n")
        (self.out / "results.txt").write_text(page(self.results))

    def run(self, *command, limit=None, folder=None, **variables):
        """Runs a program. One that does not end in time is killed with all that it started."""
        limit = limit or self.args.limit
        log = self.out / f"{next(self.logs):02}-{Path(command[0]).name}.log"
        with open(log, "w") as stream:
            process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=stream,
                                       stderr=subprocess.STDOUT, env={**self.environment, **variables},
                                       cwd=folder or self.out, start_new_session=True)
            try:
                status = process.wait(limit)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                if isinstance(error, subprocess.TimeoutExpired):
                    raise Failed(f"{Path(command[0]).name} did not end in {limit} s; its output is in {log}") from None
                raise
        return Finished(status, log)

    def probe(self, *words):
        done = self.run(BUNDLE / "bin/gpu_probe", *words)
        if done.status == 3:
            raise Impossible(done.last_line)
        return done.facts()

    def weightfs(self, *words, status=0):
        done = self.run(BUNDLE / "bin/weightfs", *words)
        if done.status != status:
            raise Failed(f"weightfs {words[0]}: status {done.status}: {done.last_line}")
        return done.text

    # --- What is there ---

    def machine(self):
        modules = {line.split()[0] for line in read_text("/proc/modules").splitlines()}
        config = read_text(f"/boot/config-{platform.release()}")
        facts = {"kernel": platform.release(), "glibc": os.confstr("CS_GNU_LIBC_VERSION"), "cores": os.cpu_count(),
                 "system": re.sub(r'(?s).*?PRETTY_NAME="?([^"\n]*).*', r"\1", read_text("/etc/os-release")),
                 "memory": read_text("/proc/meminfo").splitlines()[0], "command_line": read_text("/proc/cmdline"),
                 "modules": {name: name in modules for name in MODULES},
                 "proc_modules": os.access("/proc/modules", os.R_OK), "udev": os.path.isdir("/run/udev/data"),
                 "fuse": os.access("/dev/fuse", os.R_OK | os.W_OK),
                 "nvidia_fs_devices": len(list(Path("/dev").glob("nvidia-fs*"))),
                 "nvidia_fs": read_text("/proc/driver/nvidia-fs/version"),
                 "driver": read_text("/proc/driver/nvidia/version"), "driver_settings": read_text(
                     "/proc/driver/nvidia/params"),
                 "p2pdma": {"kernel": re.findall(r"^CONFIG_(?:PCI_P2PDMA|ZONE_DEVICE|DMABUF_MOVE_NOTIFY)=.*", config,
                                                 re.M) or f"unknown: {config[:80]}",
                            "cufile_json": re.findall(r'"[^"]*p2p[^"]*"\s*:[^,\n]*', read_text(
                                os.environ.get("CUFILE_ENV_PATH_JSON", "/etc/cufile.json")))},
                 "folder": filesystem_of(self.args.folder), "shared_memory": filesystem_of("/dev/shm"),
                 "variables": {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}}
        return facts

    def nvidia_smi(self):
        if not shutil.which("nvidia-smi"):
            raise Impossible("there is no nvidia-smi")
        done = self.run("nvidia-smi", "-q")
        if done.status != 0:
            raise Failed(f"status {done.status}: {done.last_line}")
        return {"bar1": re.findall(r"BAR1 Memory Usage\s+Total\s*: (.*)", done.text), "all": done.text,
                "topology": self.run("nvidia-smi", "topo", "-m").text}

    def programs(self):
        try:
            return {"version": self.weightfs("--version").strip()}
        except Failed as error:
            raise Impossible(f"the programs do not run here: {error}") from None

    def cufile(self):
        facts = {"doctor": self.run(BUNDLE / "bin/weightfs", "doctor").text}
        try:
            return {**facts, **self.probe("open", "cufile")}
        except Stopped as error:
            raise type(error)(str(error), facts) from None

    # --- A store ---

    def store(self, folder):
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            raise Impossible("needs /dev/fuse (in a container: --device /dev/fuse --cap-add SYS_ADMIN)")
        capabilities = int(re.search(r"CapEff:\s*(\w+)", read_text("/proc/self/status"))[1], 16)
        if not capabilities >> CAP_SYS_ADMIN & 1 and (os.geteuid() == 0 or not shutil.which("fusermount3")):
            raise Impossible("needs CAP_SYS_ADMIN, or fusermount3 for a user who is not root")
        size = max(512 << 20, 2 * self.args.probe_size + (256 << 20))
        self.weightfs("format", folder / "store", "--size", f"{size >> 20}M", "--sparse")
        (folder / "mount").mkdir()
        self.weightfs("mount", folder / "store", folder / "mount")
        self.mount = folder / "mount"

    def mounted(self):
        if self.mount is None:
            raise Impossible("there is no mount")
        return self.mount

    def on_mount(self, mode, direct):
        return self.probe("transfers", mode, direct, self.mounted(), self.args.probe_size)

    def damage(self, folder):
        """A byte that changes on the device must never reach the GPU."""
        path = self.mounted() / "damaged"
        words = ("auto", "require", path, 8 << 20)
        self.probe("write", *words)
        self.probe("read", *words)
        extent = json.loads(self.weightfs("info", "--json", path))["extents"][0]
        with open(folder / "store/pool", "r+b") as pool:
            pool.seek(extent["physical"] + 5000)
            byte = pool.read(1)[0]
            pool.seek(-1, os.SEEK_CUR)
            pool.write(bytes([byte ^ 1]))
            pool.flush()
            os.fsync(pool.fileno())
        done = self.run(BUNDLE / "bin/gpu_probe", "read", *words)
        if done.status != 1 or "CRC-32C" not in done.text:
            raise Failed(f"the damage was not found: status {done.status}: {done.last_line}")
        return {"error": done.last_line}

    def unmount(self, folder):
        if self.mount is None:
            return
        done = self.run(BUNDLE / "bin/weightfs", "umount", self.mount)
        if done.status != 0:
            self.run("umount", "-l", self.mount)
            raise Failed(f"weightfs umount: {done.last_line}")
        self.mount = None

    # --- The Python package ---

    def python_package(self):
        python = self.python = self.run(self.args.python, "-c", PYTHON_FACTS).facts()
        if "torch" not in python:
            raise Impossible(f"{self.args.python} has no torch: {python['torch_error']}", python)
        wheel, = BUNDLE.glob("*.whl")
        folder = self.out / "python"
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder)
        native, = folder.glob("weightfs/_native.*.so")
        compiled = self.args.compile or not native.name.endswith(python["suffix"])
        if compiled:
            native.unlink()
            self.compile(folder, wheel.name.split("-")[1])
        self.environment["PYTHONPATH"] = os.pathsep.join(map(str, (folder, BUNDLE / "pytest")))
        cufile = self.run(self.args.python, "-c", PACKAGE_FACTS).facts()
        if cufile:
            self.environment.setdefault("WEIGHTFS_CUFILE_LIBRARY", cufile)
        self.package = folder
        return {**python, "compiled": compiled, "cufile_library": cufile}

    def compile(self, folder, version):
        """Compiles the module for the version of Python here."""
        compiler, include = shlex.split(os.environ.get("CXX", "c++")), self.python["include"]
        if not shutil.which(compiler[0]):
            raise Impossible(f"the module is for another Python, and there is no compiler {compiler[0]}; CXX names one",
                             self.python)
        if not Path(include, "Python.h").exists():
            raise Impossible(f"the module is for another Python, and {include}/Python.h is missing", self.python)
        with tempfile.TemporaryDirectory(dir=self.out) as objects:
            flags = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-D_FILE_OFFSET_BITS=64", "-I.", "-Iinclude",
                     f'-DWEIGHTFS_VERSION="{version}"', f"-I{include}"]
            # Relative names, so that a compiler cache finds the objects of an earlier bundle.
            sources = [path.relative_to(BUNDLE / "module") for path in (BUNDLE / "module/python/src").glob("*.cc")]
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                finished = list(pool.map(
                    lambda source: self.run(*compiler, *flags, "-c", source, "-o", f"{objects}/{source.stem}.o",
                                            folder=BUNDLE / "module"), sources))
            if all(done.status == 0 for done in finished):
                finished.append(self.run(
                    *compiler, "-shared", "-o", folder / f"weightfs/_native{self.python['suffix']}",
                    *Path(objects).glob("*.o"), "-Wl,--start-group", *(BUNDLE / "module/lib").glob("*.a"),
                    "-Wl,--end-group", *(folder / "weightfs.libs").glob("*.so*"), "-ldl", "-lpthread",
                    "-Wl,-rpath,$ORIGIN/../weightfs.libs", "-Wl,--exclude-libs,ALL"))
        for done in finished:
            if done.status != 0:
                raise Failed(f"the module could not be compiled; {done.log} has the compiler's output", self.python)

    def needed_package(self):
        if self.package is None:
            raise Impossible("the Python package is not usable here")

    def gpu_tests(self, folder, allocator):
        self.needed_package()
        setting, chosen = ALLOCATORS[allocator]
        if setting and not self.python["cuda"]:
            raise Impossible(NO_GPU)
        report = self.out / f"tests-{allocator.replace(' ', '-')}.xml"
        done = self.run(self.args.python, "-m", "pytest", "-p", "no:cacheprovider", "-c", BUNDLE / "tests/pytest.ini",
                        f"--junitxml={report}", "-k", chosen, BUNDLE / "tests/python/test_gpu_real.py",
                        TMPDIR=str(folder), WEIGHTFS_BIN=str(BUNDLE / "bin/weightfs"), PYTHONDONTWRITEBYTECODE="1",
                        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", **({"PYTORCH_CUDA_ALLOC_CONF": setting} if setting else {}))
        if not report.exists():
            raise Failed(f"pytest: status {done.status}: {done.last_line}")
        tests = [outcome_of(case) for case in ElementTree.parse(report).iter("testcase")]
        facts = {"tests": tests}
        failed = [test for test in tests if test["outcome"] == "failed"]
        if failed or done.status != 0:
            raise Failed(f"{len(failed)} of {len(tests)} tests failed; {done.log} has their output", facts)
        if all(test["outcome"] == "skipped" for test in tests):
            raise Impossible("; ".join(sorted({test["why"] for test in tests})), facts)
        return facts

    def timings(self, folder, device):
        self.needed_package()
        if device == "cuda" and not self.python["cuda"]:
            raise Impossible(NO_GPU)
        return self.run(self.args.python, BUNDLE / "timings.py", device, folder, self.args.rounds,
                        *self.args.sizes).facts()

    def all(self):
        folder = Path(tempfile.mkdtemp(prefix="gpu-check-", dir=self.args.folder))
        folder.chmod(0o755)
        try:
            self.steps(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        failed = [step["name"] for step in self.results["steps"] if step["outcome"] == "failed"]
        print(f"{self.out}/results.txt: " + (f"failed: {', '.join(failed)}" if failed else "no step failed"))
        return 1 if failed else 0

    def steps(self, folder):
        self.step("what is there", self.machine)
        self.step("nvidia-smi", self.nvidia_smi)
        self.step("Python package", self.python_package)
        self.step("programs", self.programs)
        if self.results["steps"][-1]["outcome"] == "ok":
            self.step("cuFile's driver", self.cufile)
            for mode in ("bounce", "auto", "cufile"):
                self.step(f"C++, {mode}", self.probe, "transfers", mode, "auto", folder, self.args.probe_size)
            self.with_store(folder)
        for allocator in ALLOCATORS:
            self.step(f"tests of the Python package, {allocator}", self.gpu_tests, folder, allocator)
        for device in ("cpu", "cuda"):
            self.step(f"timings, {device}", self.timings, folder, device)

    def with_store(self, folder):
        try:
            self.step("store", self.store, folder)
            self.step("store, direct=require", self.on_mount, "auto", "require")
            self.step("store, cuFile on the mount", self.on_mount, "cufile", "auto")
            self.step("store, damaged block", self.damage, folder)
        finally:
            self.step("store, unmount", self.unmount, folder)


# --- The page ---

def table(rows):
    """Rows of text as a table of Markdown; the first has the titles."""
    lines = [f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def rate(value):
    return "" if value is None else f"{value:.2f}"


def test_rows(tests):
    """The tests that failed, and the others by outcome and reason."""
    groups = {}
    for test in tests:
        groups.setdefault((test["outcome"], test["why"]), []).append(test["name"])
    for (outcome, why), names in sorted(groups.items()):
        yield ", ".join(names) if outcome == "failed" else f"{len(names)} tests", outcome, why[:300]


def page(results):
    facts = {step["name"]: step["facts"] for step in results["steps"]}
    bundle = results["bundle"]
    parts = [f"# GPU check of weightfs {bundle['version']} ({bundle['commit'][:12]}), {results['date']}"]
    if machine := facts.get("what is there"):
        python, cufile = facts.get("Python package", {}), facts.get("cuFile's driver", {})
        rows = [("what", "here"), ("system", f"{machine['system']}, kernel {machine['kernel']}, {machine['glibc']}"),
                ("processor", f"{machine['cores']} cores, {machine['memory']}"),
                ("GPU", f"{cufile.get('gpu', '?')}, CUDA {cufile.get('cuda', '?')}, "
                 f"BAR1 {', '.join(facts['nvidia-smi'].get('bar1', [])) or '?'}" if "nvidia-smi" in facts else "?"),
                ("modules", ", ".join(name for name, loaded in machine["modules"].items() if loaded)),
                ("nvidia-fs", f"{machine['nvidia_fs']}; {machine['nvidia_fs_devices']} devices"),
                ("PCI P2PDMA", machine["p2pdma"]), ("/run/udev", machine["udev"]),
                ("cuFile", f"{cufile.get('cufile', '?')}: {cufile.get('reason', '?')}"),
                ("folder", {name: machine["folder"].get(name) for name in ("type", "source", "device", "udev")}),
                ("Python", f"{python.get('version', '?')}, torch {python.get('torch', '?')}")]
        parts.append(table(rows))
    parts.append(table([("step", "outcome", "s", "why"),
                        *((step["name"], step["outcome"], step["seconds"], step["why"]) for step in results["steps"])]))
    probes = [(step["name"], step["facts"]) for step in results["steps"] if "read_gb_s" in step["facts"]]
    if probes:
        parts.append("C++ program, one file, GB/s:\n\n" + table(
            [("step", "MiB", "write", "read", "mode", "by cuFile, MiB", "refusal"),
             *((name, probe["size"] >> 20, rate(probe["write_gb_s"]), rate(probe["read_gb_s"]), probe["mode"],
                probe["cufile_bytes"] >> 20, probe["refusal"] or probe["reason"]) for name, probe in probes)]))
    for timings in (step["facts"] for step in results["steps"] if "rows" in step["facts"]):
        parts.append(f"Tensors on {timings['device']}, median of {timings['rounds']} rounds, GB/s:\n\n" + table(
            [("method", "MiB", "write", "read", "remark"),
             *((row["method"], row["size"] >> 20, rate(row.get("write_gb_s")), rate(row.get("read_gb_s")),
                row["error"] or row.get("mode", "")) for row in timings["rows"]),
             *((name, "", "", "", why) for name, why in timings["missing"].items())]))
    for step in results["steps"]:
        if "tests" in step["facts"]:
            rows = [("test", "outcome", "why"), *test_rows(step["facts"]["tests"])]
            parts.append(f"{step['name']}:\n\n{table(rows)}")
    return "\n\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), metavar="DIR",
                        help="where the files and the store are made, best on the NVMe disk (default: the current one)")
    parser.add_argument("--out", type=Path, default=Path("gpu-check-results"), metavar="OUT",
                        help="directory of the results (default: gpu-check-results)")
    parser.add_argument("--python", default=sys.executable, metavar="PYTHON",
                        help="the Python that has torch (default: this one)")
    parser.add_argument("--compile", action="store_true",
                        help="compile the Python module even if the bundle has one for this Python")
    parser.add_argument("--sizes", type=parse_size, nargs="+", default=[256 << 20, 2 << 30], metavar="SIZE",
                        help="sizes of the tensors that are timed: numbers with K, M, G or T (default: 256M 2G); the "
                        "GPU needs three times the largest")
    parser.add_argument("--probe-size", type=parse_size, default=1 << 30, metavar="SIZE",
                        help="size of the file that the C++ program times (default: 1G)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the timings (default: 5)")
    parser.add_argument("--limit", type=int, default=1800, metavar="SECONDS",
                        help="how long each process of a step may take before it is killed (default: 1800)")
    args = parser.parse_args()
    args.folder, args.out = args.folder.resolve(), args.out.resolve()
    if not args.folder.is_dir():
        parser.error(f"{args.folder}: no such directory")
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)   # it unmounts and removes what it made
    with contextlib.suppress(KeyboardInterrupt):
        return Check(args).all()
    return 130


if __name__ == "__main__":
    sys.exit(main())
