# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that need a mount. See docs/TESTING.md; `pytest tests --help` lists the options below.

`mount` is one mount per module (the module's STORE_SIZE and MOUNT_OPTIONS configure it), `work` is a directory for each
test, and `factory` creates more stores and mounts. After each module the store is unmounted and must pass fsck."""

import collections
import contextlib
import fcntl
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from harness import machine, namespaces
from harness.filesystems import Factory, is_mounted, program
from harness.watchdog import Watchdog

DEFAULT_LIMIT_S = 240   # many times as long as most tests take, because the machine may be busy
CLIENTS = {"torch", "numpy", "safetensors", "h5py"}
# The files whose tests take a minute or more; without them at the end, no worker waits long for another.
LONG = [f"{folder}/test_{name}.py" for folder, names in {
    "clients": ("application_crashes", "dcp", "deepspeed"),
    "python": ("checkpoint_kills", "gpu_check", "programs", "offload_architectures", "pages", "checkpoint_programs"),
    "mount": ("growing_catalog", "call_faults", "bench", "posix_rules", "kill", "replacements", "lifecycle"),
    "remote": ("take_over", "s3_faults", "pull_slice")}.items() for name in names]


def compute_alone():
    """The threads of torch's OpenMP are not in a forked child, which would wait for them forever."""
    if hasattr(sys.modules.get("torch"), "set_num_threads"):
        sys.modules["torch"].set_num_threads(1)


os.register_at_fork(after_in_child=compute_alone)


def pytest_addoption(parser):
    group = parser.getgroup("weightfs")
    group.addoption("--target", default=os.environ.get("WEIGHTFS_TARGET", "weightfs"),
                    help="what to test: weightfs, ext4 (an image; tests the tests), or a directory")
    group.addoption("--full", action="store_true",
                    help="the long form: 20 seeds of 5,000 operations, 200 kills, each row of the benchmarks, and the tests "
                         "with the marker full")
    group.addoption("--seeds", type=int, help="how many seeds of random operations")
    group.addoption("--seed", type=int, help="this seed only, of random operations")
    group.addoption("--ops", type=int, help="operations a seed")
    group.addoption("--rounds", type=int, help="kills of the daemon")


def pytest_configure(config):
    # Background programs of a script ignore Ctrl-C, and those of nohup ignore SIGHUP. The programs that the tests start
    # would inherit both. A handler is not inherited, and keeps this program alive when its terminal closes.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    # Its messages must be visible to the user, even if pytest itself is killed.
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        config.watchdog = Watchdog()


def pytest_unconfigure(config):
    config.watchdog.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Omits what only a full run has. Several workers take whole files: first those that take long, then those with many
    tests."""
    if not config.getoption("--full"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("full")])
        items[:] = [item for item in items if not item.get_closest_marker("full")]
    if not hasattr(config, "workerinput"):
        return
    files = [item.nodeid.partition("::")[0] for item in items]
    counts = collections.Counter(files)
    order = {file: (file not in LONG, LONG.index(file) if file in LONG else -count) for file, count in counts.items()}
    numbers = {file: number for number, file in enumerate(sorted(counts, key=order.get))}
    items.sort(key=lambda item: numbers[item.nodeid.partition("::")[0]])


class Module(pytest.Module):
    """Skips the tests of a client that is not installed; scripts/setup omits clients that are not available."""

    def collect(self):
        try:
            return super().collect()
        except self.CollectError as error:
            missing = getattr(error.__cause__, "name", None)
            if not isinstance(error.__cause__, ModuleNotFoundError) or missing not in CLIENTS:
                raise
            pytest.skip(f"needs {missing}: scripts/setup installs it", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    return Module.from_parent(parent, path=module_path)


def start_limit(item):
    limit = item.get_closest_marker("limit")
    item.config.watchdog.arm(limit.args[0] if limit else DEFAULT_LIMIT_S, item.nodeid)


@contextlib.contextmanager
def locked(name, operation):
    """A lock that the test processes of this user share."""
    file = os.open(f"{tempfile.gettempdir()}/weightfs-tests-{os.geteuid()}.{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(file, operation)
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)   # a forked child may have the descriptor
        os.close(file)


@contextlib.contextmanager
def machine_of(item):
    """No test runs beside one that changes settings of the machine (the marker `alone`)."""
    if os.environ.get("WEIGHTFS_TEST_RUNS"):   # this is a part of a test
        yield
        return
    alone = item.get_closest_marker("alone") is not None
    with contextlib.ExitStack() as running:
        with locked("next", fcntl.LOCK_EX):   # so that the others do not overtake it
            running.enter_context(locked("running", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        os.environ["WEIGHTFS_TEST_RUNS"] = "1"
        try:
            yield
        finally:
            del os.environ["WEIGHTFS_TEST_RUNS"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with machine_of(item):
        return (yield from run_within_limit(item))


def run_within_limit(item):
    start_limit(item)
    try:
        return (yield)
    finally:
        item.config.watchdog.disarm()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call" and report.failed:
        item.stash[FAILED] = True
        for mount in item.session.stash.get(MOUNTS, []):
            if log := mount.store.log():
                report.sections.append((f"log of {mount.store.directory}", log[-3000:]))
    # xdist sends reports as UTF-8, and logs have file names that are none.
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


FAILED = pytest.StashKey[bool]()
MOUNTS = pytest.StashKey[list]()


@pytest.fixture(scope="session")
def scratch():
    """A directory on the local disk that every user may traverse. It is removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="weightfs-tests-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def check_possible(target):
    if target == "weightfs":
        if not os.path.exists("/dev/fuse"):
            pytest.skip("needs FUSE: there is no /dev/fuse (in a container: --device /dev/fuse --cap-add SYS_ADMIN)")
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            pytest.skip("needs FUSE: /dev/fuse may not be opened by this user")
        if not program().exists():
            pytest.fail(f"{program()} is missing: build it first, or name another in WEIGHTFS_BIN")
    if target == "ext4" and os.geteuid() != 0:
        pytest.skip("--target ext4 needs root to mount an image")


@pytest.fixture(scope="session")
def session_factory(scratch, request):
    target = request.config.getoption("target")
    check_possible(target)
    factory = Factory(scratch, target, request.config.watchdog)
    yield factory
    factory.close()


@pytest.fixture
def open_fuse(scratch):
    """Every user may open /dev/fuse. Name it before the fixtures that mount: they end first."""
    if os.geteuid() != 0:
        if not namespaces.every_user_may_open_fuse():
            pytest.skip("needs root, or a /dev/fuse that every user may open")
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(namespaces.open_fuse_device(scratch))
        except OSError as error:
            pytest.skip(f"needs a mount namespace with a device node of its own: {error}")
        yield


@pytest.fixture
def control_group():
    """A new control group for memory, and the name of its limit. Name it before the fixtures that mount: they end
    first."""
    with machine.memory_group() as made:
        yield made


@pytest.fixture
def factory(session_factory):
    """Everything a test creates with it is removed when the test ends."""
    mark = session_factory.mark()
    yield session_factory
    session_factory.close(mark)


@pytest.fixture
def point(factory):
    """A directory for mounts that are expected to fail."""
    path = factory.directory("point")
    yield path
    assert not is_mounted(path), "a refused mount is there all the same"


@pytest.fixture
def weightfs_only(session_factory):
    """For tests of weightfs's own commands and guarantees."""
    if session_factory.kind != "weightfs":
        pytest.skip("about weightfs itself: not for --target")


@pytest.fixture(scope="module")
def mount(session_factory, request):
    """The module's mount. If a test leaves it dead, the next test gets a new one: see `work`."""
    mark = session_factory.mark()
    store = session_factory.store(getattr(request.module, "STORE_SIZE", "256M"))
    made = session_factory.mount(store, getattr(request.module, "MOUNT_OPTIONS", ""))
    request.session.stash.setdefault(MOUNTS, []).append(made)
    try:
        yield made
        if not made.alive():
            made.close()
            made.mount()
        made.fsck()
    finally:
        request.session.stash[MOUNTS].remove(made)
        session_factory.close(mark)


@pytest.fixture
def mounted(mount):
    """The module's mount, mounted again if an earlier test left it dead."""
    if not mount.alive():
        mount.close()
        mount.mount()
    return mount


def release(path):
    """Ends what a failed test still has open below a mount: the next tests may unmount it."""
    # pytest keeps the variables of the test until the next one. Mappings have no other end.
    sys.last_traceback = sys.last_value = sys.last_exc = None
    gc.collect()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if Path(path) in Path(os.readlink(f"/proc/self/fd/{number}")).parents:
                # Not closed: a variable may refer to it and close it later, when the number has been used again.
                with open(os.devnull, "rb") as nothing:
                    os.dup2(nothing.fileno(), int(number), inheritable=False)


@pytest.fixture
def work(mounted, request):
    """An empty directory in the module's mount, removed afterwards."""
    mount = mounted
    path = mount.path / re.sub(r"[^\w.-]+", "_", request.node.name)[:100]
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    yield path
    if request.node.stash.get(FAILED, False):
        release(mount.path)
        if not mount.alive():
            return
    shutil.rmtree(path)


@pytest.fixture
def local(scratch):
    """An empty directory on the local disk."""
    path = Path(tempfile.mkdtemp(prefix="local-", dir=scratch))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def restart_limit(request):
    """A function that starts the time limit of the test anew. The user chooses how many rounds some tests make, so each
    round has the limit."""
    return lambda: start_limit(request.node)


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section(f"{len(skipped)} TESTS DID NOT RUN; each says why above", sep="!")
