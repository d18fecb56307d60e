#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/setup and scripts/clients.py with local package indexes, tiny packages, and a fake apt that only records its
arguments."""
import functools
import http.server
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = ("tests/requirements.txt", "tests/services.txt")
BASE, SERVICES = (dict(line.split("==") for line in (ROOT / name).read_text().split()) for name in FILES)
REQUIREMENTS = BASE | SERVICES
# Most tests require only these: the packages that scripts/clients.py knows by name, and an optional one of each file.
SOME = {"torch", "numpy", "pytest", "pytest-xdist", "pybind11", "scikit-build-core", "h5py", "boto3"}
# Which the script installs by itself, apart from the clients.
BY_ITSELF = dict(re.findall(r"(nvidia-[\w-]+|deepspeed)==([\d.]+)", (ROOT / "scripts/setup").read_text()))
NVIDIA_FOLDERS = {"12": ("nvidia-cufile-cu12", "nvidia-cuda-runtime-cu12"), "13": ("nvidia-cufile", "nvidia-cuda-runtime")}


def make_wheel(folder, name, version, requires=()):
    """Builds a package with one empty module."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {other}\n" for other in requires)
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}.py", "")
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        """A package with a limit is served only that many times."""
        name, limits = self.path.strip("/").partition("/")[0], self.server.limits
        if self.path.endswith(".whl") and name in limits:
            limits[name] -= 1
            if limits[name] < 0:
                self.send_error(404)
                return
        super().do_GET()


class Index:
    """A package index on this machine. INDEX/NAME/ lists the files of the package NAME."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        handler = functools.partial(Handler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.limits = {}
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever).start()

    def add(self, name, version, requires=()):
        make_wheel(self.folder / name, name, version, requires)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Setup(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """An environment whose pip most tests use, because pip takes seconds to install itself."""
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix="weightfs-setup-test."))
        cls.addClassCleanup(shutil.rmtree, cls.shared)
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", cls.shared / "empty"], check=True)
        # The script would try to update the pip of a distribution each time.
        packages, found = cls.shared / "packages", sorted(ROOT.glob(".venv/lib/python*/site-packages/pip*"))
        if not found:
            subprocess.run(["/usr/bin/python3", "-m", "venv", cls.shared / "pip"], check=True)
            found = sorted(cls.shared.glob("pip/lib/python*/site-packages/pip*"))
        for path in found:
            shutil.copytree(path, packages / path.name)
        next((cls.shared / "empty").glob("lib/python*/site-packages")).joinpath("pip.pth").write_text(f"{packages}\n")

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weightfs-setup-test."))
        self.addCleanup(shutil.rmtree, self.folder)
        self.root = self.folder / "root"
        shutil.copytree(ROOT / "scripts", self.root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        (self.root / "tests").mkdir()
        self.require(SOME)
        self.venv = self.root / ".venv"
        shutil.copytree(self.shared / "empty", self.venv, symlinks=True)
        for major, packages in NVIDIA_FOLDERS.items():   # installed, so that pip starts less often
            for name in packages:
                (self.venv / f"nvidia/{major}/{name.replace('-', '_')}-{BY_ITSELF[name]}.dist-info").mkdir(parents=True)
        self.pypi, self.cpu = self.index("pypi"), self.index("cpu")
        for name, version in (REQUIREMENTS | BY_ITSELF).items():
            if name != "torch":
                self.pypi.add(name, version)
        self.pypi.add("torch", REQUIREMENTS["torch"], ["nvidia-cublas", "triton"])
        self.pypi.add("nvidia-cublas", "13.0")
        self.pypi.add("triton", "3.7")
        self.fake_apt()

    def require(self, names):
        """Writes the files of the requirements, with the packages of these names only."""
        for file, requirements in zip(FILES, (BASE, SERVICES)):
            lines = [f"{name}=={version}\n" for name, version in requirements.items() if name in names]
            (self.root / file).write_text("".join(lines))

    def index(self, name):
        made = Index(self.folder / name)
        self.addCleanup(made.close)
        return made

    def fake_apt(self, torch="(none)", lacking="python3-torch"):
        """Simulates that every package is installed except those of the pattern, whose available version is `torch`."""
        self.asked = self.folder / "asked"
        self.asked.touch()
        programs = {
            "dpkg-query": 'shift 3; for name; do case $name in '
                          f'{lacking}) echo $name not-installed ;; *) echo $name installed ;; esac; done',
            "apt-cache": f'echo "  Candidate: {torch}"',
            "apt-get": f'echo "$*" >>{self.asked}; [ "$2" != --assume-no ] || echo "Need to get 182 MB of archives."',
            "sudo": 'shift; exec "$@"',
        }
        (self.folder / "bin").mkdir(exist_ok=True)
        for name, text in programs.items():
            path = self.folder / "bin" / name
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)

    def run_script(self, *words, code=0, **environment):
        environment = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HOME": str(self.folder), "LC_ALL": "C.UTF-8",
                       "TMPDIR": str(self.folder), "PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": self.pypi.url,
                       "WEIGHTFS_TORCH_INDEX": self.cpu.url, **environment}
        done = subprocess.run([self.root / words[0], *words[1:]], capture_output=True, text=True, env=environment,
                              timeout=600, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def setup_script(self, *words, **options):
        return self.run_script("scripts/setup", *words, **options)

    def assert_has(self, *names):
        subprocess.run([self.venv / "bin/python", "-c", "import " + ", ".join(names)], check=True)

    def assert_lacks(self, *names):
        for name in names:
            code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{name}') is not None)"
            subprocess.run([self.venv / "bin/python", "-c", code], check=True)

    def test_the_demo_installs_the_cpu_build_and_reports_its_size(self):
        shutil.rmtree(self.venv)
        self.cpu.add("torch", REQUIREMENTS["torch"] + "+cpu")
        said = self.setup_script("--demo")
        self.assertRegex(said, r"pip installs 2 packages and downloads 0\.1 MB \(.*torch \S+\+cpu 0\.1 MB")
        self.assert_has("torch", "numpy")
        self.assert_lacks("pytest", "triton", "nvidia_cublas")

    def test_the_gpu_build_is_not_installed_by_default(self):
        said = self.setup_script("--demo", code=1)
        hints = ("only its GPU build, 0.1 MB", "scripts/quickstart --gpu", "https_proxy", "PIP_FIND_LINKS", "WEIGHTFS_PYTHON")
        for hint in hints:
            self.assertIn(hint, said)
        self.assert_lacks("torch", "triton", "nvidia_cublas", "numpy")
        said = self.setup_script("--demo", "--gpu")
        self.assertIn("pip installs 4 packages", said)
        self.assert_has("torch", "nvidia_cublas", "triton")

    def test_the_demo_uses_the_torch_of_the_distribution(self):
        self.fake_apt(torch="2.6.0+dfsg-7")
        said = self.setup_script("--demo")
        self.assertIn("apt downloads 182 MB", said)
        self.assertIn("install -qy --no-install-recommends python3-torch", self.asked.read_text())
        self.assert_lacks("torch")

    def test_without_a_network_the_next_step_is_printed(self):
        self.pypi.close()
        for words, script in ((["--demo"], "scripts/quickstart"), ([], "scripts/test")):
            said = self.setup_script(*words, code=1)
            for hint in ("cannot be installed: ", "Connection refused", "https_proxy",
                         f"PIP_NO_INDEX=1 PIP_FIND_LINKS=/path/to/WHEELS {script}"):
                self.assertIn(hint, said)

    def test_wheels_in_a_folder_are_enough(self):
        wheels = self.folder / "wheels"
        for name, version in (REQUIREMENTS | BY_ITSELF).items():
            make_wheel(wheels, name, version)
        self.require(REQUIREMENTS)
        shutil.rmtree(self.venv / "nvidia")
        self.pypi.close()
        said = self.setup_script(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels))
        self.assertIn(f"{len(REQUIREMENTS)} from this machine", said)
        self.assert_has("torch", "pytest", "h5py")
        for major, packages in NVIDIA_FOLDERS.items():
            installed = {path.name for path in (self.venv / "nvidia" / major).glob("*.py")}
            self.assertEqual(installed, {f"{name.replace('-', '_')}.py" for name in packages})
        self.assertEqual(self.setup_script(), "", "the second run finds everything and is quiet")

    def test_an_optional_client_that_cannot_be_had_does_not_stop_the_tests(self):
        self.cpu.add("torch", REQUIREMENTS["torch"] + "+cpu")
        shutil.rmtree(self.pypi.folder / "h5py")
        self.assertIn(f"h5py=={REQUIREMENTS['h5py']} cannot be installed: ERROR: ", self.setup_script())
        self.assert_has("torch", "pytest", "scikit_build_core")
        self.pypi.add("h5py", REQUIREMENTS["h5py"])
        self.assertIn("pip installs 1 package and", self.setup_script())
        self.assert_has("h5py")

    def test_an_optional_client_whose_download_breaks_off_does_not_stop_the_tests(self):
        self.cpu.add("torch", REQUIREMENTS["torch"] + "+cpu")
        self.pypi.server.limits["h5py"] = 1   # the query before the download
        self.assertIn(f"h5py=={REQUIREMENTS['h5py']} cannot be installed: ", self.setup_script())
        self.assert_has("torch", "pytest", "scikit_build_core")
        self.assert_lacks("h5py")

    def test_the_demo_runs_without_numpy(self):
        self.cpu.add("torch", REQUIREMENTS["torch"] + "+cpu")
        shutil.rmtree(self.pypi.folder / "numpy")
        said = self.setup_script("--demo")
        self.assertIn(f"numpy=={REQUIREMENTS['numpy']} cannot be installed: ", said)
        self.assertEqual(self.asked.read_text(), "", "no torch of the distribution is installed")
        self.assert_has("torch")

    def test_the_index_of_torch_may_be_a_directory(self):
        self.cpu.add("torch", REQUIREMENTS["torch"] + "+cpu")
        folder = self.cpu.folder / "torch"
        links = "".join(f'<a href="{wheel.name}">{wheel.name}</a>' for wheel in folder.glob("*.whl"))
        (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
        self.setup_script("--demo", WEIGHTFS_TORCH_INDEX=str(self.cpu.folder))
        self.assert_has("torch")
        self.assert_lacks("triton")

    def test_tests_run_without_torch_if_only_a_gpu_build_is_offered(self):
        said = self.setup_script()
        self.assertIn("only its GPU build", said)
        self.assertIn("The tests that need torch will be skipped; scripts/setup --gpu installs it.", said)
        self.assert_has("pytest", "h5py")
        self.assert_lacks("torch", "triton")
        again = self.setup_script()
        self.assertIn("will be skipped", again)
        self.assertNotIn("==>", again)
        self.setup_script("--gpu")
        self.assert_has("torch", "triton")
        self.assertEqual(self.setup_script(), "")

    def test_other_systems_are_installed_unless_omitted(self):
        self.cpu.add("torch", REQUIREMENTS["torch"] + "+cpu")
        self.fake_apt(torch="1.0", lacking="radosgw|chromium")
        self.setup_script("--no-services")
        self.assertEqual(self.asked.read_text(), "")
        self.assert_has("pytest", "torch")
        self.assert_lacks("boto3", "deepspeed")
        said = self.setup_script()
        self.assertIn("install -qy --no-install-recommends radosgw chromium", self.asked.read_text())
        self.assertIn("2 system packages for tests with other systems", said)
        self.assert_has("boto3", "deepspeed")

    def test_a_system_that_cannot_be_installed_does_not_stop_the_tests(self):
        self.cpu.add("torch", REQUIREMENTS["torch"] + "+cpu")
        self.fake_apt(torch="1.0", lacking="podman")
        (self.folder / "bin/apt-get").write_text("#!/bin/sh\nexit 1\n")
        self.assertIn("The tests that need podman will be skipped", self.setup_script())
        self.assert_has("pytest", "boto3")

    def test_an_old_pip_is_updated_and_that_is_reported(self):
        for version, is_old in (("22.1b1", True), ("23.3b1", False)):
            fake = self.folder / version
            (fake / f"pip-{version}.dist-info").mkdir(parents=True)
            (fake / f"pip-{version}.dist-info/METADATA").write_text(f"Name: pip\nVersion: {version}\n")
            (fake / "pip.py").write_text("import sys\nsys.exit('no network')\n")
            said = self.run_script(sys.executable, self.root / "scripts/clients.py", "--demo",
                                   ROOT / "tests/requirements.txt", code=4, PYTHONPATH=str(fake),
                                   WEIGHTFS_TORCH_INDEX="")
            self.assertEqual(f"pip {version} downloads packages during a dry run" in said, is_old, said)
            self.assertIn("cannot be installed: no network", said)

    def find_torch(self, **environment):
        script = self.root / "find"
        script.write_text(f"#!/bin/bash\nsource {self.root}/scripts/common.sh\nfind_torch\n")
        script.chmod(0o755)
        return self.run_script("find", **environment).strip()

    def test_an_existing_torch_is_used(self):
        own = self.folder / "own"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", own], check=True)
        next(own.glob("lib/python*/site-packages")).joinpath("torch.py").touch()
        self.assertEqual(self.find_torch(WEIGHTFS_PYTHON=f"{own}/bin/python"), f"{own}/bin/python")
        self.assertEqual(self.find_torch(VIRTUAL_ENV=str(own)), f"{own}/bin/python")
        self.assertEqual(self.find_torch(PATH=f"{own}/bin:{os.environ['PATH']}"), f"{own}/bin/python3")

    def test_quickstart_refuses_a_python_without_torch(self):
        empty = self.folder / "empty"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", empty], check=True)
        said = self.run_script("scripts/quickstart", code=1, WEIGHTFS_PYTHON=f"{empty}/bin/python")
        self.assertIn(f"WEIGHTFS_PYTHON={empty}/bin/python cannot import torch", said)
        self.assertEqual(self.asked.read_text(), "")


if __name__ == "__main__":
    unittest.main()
