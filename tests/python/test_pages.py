# SPDX-License-Identifier: Apache-2.0
"""The code of README.md and docs/*.md runs as printed. The Python of a page runs in one process, in its order, and its
commands in another. Every page begins in an empty directory.

Only paths, the S3 service, the size of a store and the name of another machine are replaced. A block runs unless
NOT_RUN lists it."""

import os
import re
import sys

import pytest

from harness import needs, process
from harness.filesystems import REPOSITORY, is_mounted, program
from harness.s3_probe import clean_environment
from harness.s3_server import S3Server

pytestmark = pytest.mark.usefixtures("weightfs_only")
torch = pytest.importorskip("torch", reason="needs torch: scripts/setup installs it")

STORE_SIZE = "1G"
MOUNT = "/mnt/tensors"
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in REPOSITORY.glob("docs/*.md"))]
BLOCK = re.compile(r"^ *```(\S*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
# Text, settings, and the page of C++, which tests/clients/test_cpp_library.py compiles.
OTHER_LANGUAGES = {"", "ini", "json", "yaml", "cpp", "cmake"}

# The blocks that do not run here: how they begin, and why.
NOT_RUN = {
    "README.md": {
        "scripts/quickstart ": "installs packages and builds; scripts/check-distributions --full runs it",
        "sudo apt-get install ./dist/": "installs packages; tests/package does so"},
    "CONTRIBUTING.md": {"scripts/setup ": "installs packages, builds and runs everything",
                        "scripts/build release ": "builds"},
    "docs/OFFLOAD.md": {"python -m weightfs.deepnvme ": "needs deepspeed; tests/clients/test_deepspeed.py runs it"},
    "docs/OPERATIONS.md": {
        "weightfs format /srv/tensors --partition ": "needs disks; tests/mount/test_partition.py runs it",
        "echo 'start=1MiB, ": "needs a disk; tests/mount/test_partition.py restores a table",
        "chattr +i ": "needs root and a filesystem that has the flag; a test below runs it",
        "systemctl enable ": "needs the systemd of the machine; tests/package runs it",
        "weightfs umount /mnt/tensors                                  # on the first machine":
            "needs two machines; tests/mount/test_devices_only.py moves a store"},
    "docs/PERFORMANCE.md": {"scripts/setup ": "installs packages, builds, and measures for minutes",
                            "gpu-check/gpu-check ": "needs a GPU"},
    "docs/SCALE.md": {
        "weightfs push --watch ": "does not end; tests/remote/test_push_watch.py runs it",
        "weightfs pull s3://models/": "needs a model of 191 files; tests/remote/test_pull_slice.py has a small one"},
}

# What the commands of a page show, and what runs instead.
SHOWN = {
    "README.md": {"--size 8G": "--size 256M --sparse", "scripts/setup && scripts/build ": "test -x scripts/build ",
                  "$PWD/build/release/bin": str(program().parent), ".venv/bin/python": sys.executable},
    "docs/OPERATIONS.md": {"ssh node2 tar -C /srv": "tar -C /node2",
                           "ssh node2 weightfs verify /srv/tensors": "weightfs verify /node2/tensors"},
}
# What runs before the block that has a text, and, with "", at the end.
PREPARED = {
    "README.md": {"": "weightfs verify /srv/tensors"},
    "docs/OPERATIONS.md": {
        "weightfs mount /srv/tensors ": "mkdir -p /data /mnt/tensors; weightfs format /srv/tensors --size 64M --sparse",
        "cp -a ": "weightfs mount /srv/tensors /mnt/tensors; head -c 3M /dev/urandom > /data/content; "
                  "cp /data/content /mnt/tensors/file",
        "tar -C /srv ": "cmp /data/content /mnt/tensors/file; weightfs umount /mnt/tensors; mkdir /node2; "
                        "mv /srv/tensors.old /srv/tensors",
        "dd if=": "rm -r /srv/tensors; mkdir -p /dev/disk/by-id; truncate -s 64M /dev/disk/by-id/nvme-OLD; "
                  "head -c 70M /dev/zero | tr '\\0' x > /dev/disk/by-id/nvme-NEW; "
                  "weightfs format /srv/tensors --device /dev/disk/by-id/nvme-OLD; "
                  "weightfs mount /srv/tensors /mnt/tensors; cp /data/content /mnt/tensors/file",
        "": "rm /dev/disk/by-id/nvme-OLD; weightfs mount /srv/tensors /mnt/tensors; "
            "cmp /data/content /mnt/tensors/file; weightfs umount /mnt/tensors"},
}
PATHS = re.compile(r"(?<![\w./])/(?=(?:srv|mnt|data|node2|dev/disk)\b)")

# What holds after the Python of a page.
CHECKS = {
    "docs/PYTHON.md": """
assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
assert torch.equal(torch.frombuffer(open("/mnt/tensors/w.bin", "rb").read(), dtype=torch.float32), tensor.flatten())
for name, saved in tensors.items():
    stored = open("/mnt/tensors/step-100/" + name, "rb").read()
    assert torch.equal(torch.frombuffer(bytearray(stored), dtype=torch.float32), saved.flatten()), name
assert len(os.listdir("/mnt/tensors/pulled")) == len(tensors)
""",
    "docs/CHECKPOINTS.md": "\nassert manager.steps() == [200, 300, 400]",
    "docs/DIRECT.md": """
stored = torch.frombuffer(open("/mnt/tensors/table.bin", "rb").read(), dtype=torch.float32).view(-1, 128)
assert torch.equal(rows[:2], stored[[3, 5]])
""",
    "docs/SAFETENSORS.md": "\nassert norm.shape == (1024,) and mine.shape == (1024, 256) and len(declared) == 2",
}


def all_blocks(page):
    """(language, code) of each block of a page."""
    return BLOCK.findall((REPOSITORY / page).read_text(encoding="utf-8"))


def blocks(page, language):
    """The blocks of a page that run."""
    skipped = tuple(NOT_RUN.get(page, ()))
    return [code for written, code in all_blocks(page) if written == language and not code.startswith(skipped)]


def replaced(code, pairs):
    for shown, ours in pairs.items():
        assert shown in code, f"the page does not show {shown!r} any more"
        code = code.replace(shown, ours)
    return code


def test_every_block_runs_or_is_listed():
    for page in PAGES:
        text, found = (REPOSITORY / page).read_text(encoding="utf-8"), all_blocks(page)
        assert text.count("```") == 2 * len(found), f"{page}: a block has no end, or text on the line of its end"
        for language, code in found:
            assert language in OTHER_LANGUAGES | {"python", "sh"}, f"{page}: no test runs {language!r}: {code}"
        for begin, reason in NOT_RUN.get(page, {}).items():
            assert sum(code.startswith(begin) for _, code in found) == 1 and reason, f"{page} has no block {begin!r}"


# torch.distributed.checkpoint is tested from this version on.
@pytest.mark.parametrize("page", [
    pytest.param(page, marks=needs.torch("2.7")) if page == "docs/CHECKPOINTS.md" else page
    for page in PAGES if blocks(page, "python")])
def test_the_python_of_a_page(page, work):
    if page == "docs/HDF5.md":
        pytest.importorskip("h5py", reason="needs h5py: scripts/setup installs it")
    code = replaced("\n".join(blocks(page, "python")) + CHECKS.get(page, ""), {MOUNT: str(work)})
    with S3Server(buckets=["bucket"]) as server:
        environment = clean_environment({**server.environment(), "WEIGHTFS_PROGRAM": str(program())})
        process.run([sys.executable, "-c", code], cwd=REPOSITORY, env=environment, limit=200)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")])
def test_the_commands_of_a_page(page, factory):
    folder, prepared = factory.directory("page"), PREPARED.get(page, {})
    (folder / "srv").mkdir()
    code = []
    for block in blocks(page, "sh"):
        code += [text for shown, text in prepared.items() if shown and shown in block] + [block]
    code = replaced("\n".join(code + [prepared.get("", "")]), SHOWN.get(page, {}))
    code = PATHS.sub(f"{folder}/", code)
    environment = {**os.environ, "PATH": f"{program().parent}:{os.environ['PATH']}"}
    try:
        process.run(["bash", "-euxo", "pipefail", "-c", code], cwd=REPOSITORY, env=environment, limit=100)
    finally:
        if is_mounted(folder / "mnt/tensors"):
            process.run([program(), "umount", folder / "mnt/tensors"], codes=None)
    if page == "docs/OPERATIONS.md":
        for copied in ("data/tensors/pool", "node2/tensors/pool"):
            copy = (folder / copied).stat()
            assert copy.st_size == 64 << 20 and copy.st_blocks * 512 < 32 << 20, f"{copied} has lost its holes"


def test_a_resumed_run_trains_no_step_twice_and_leaves_none_out(work):
    def train(name, last=300):
        torch.manual_seed(0)
        code = replaced(blocks("docs/CHECKPOINTS.md", "python")[0],
                        {"done, last = 0, 300": f"done, last = 0, {last}", f"{MOUNT}/run": str(work / name)})
        exec(code, names := {})
        return names["model"].state_dict()

    expected = train("whole")
    train("resumed", last=150)    # the end of the loop loses 50 steps, as a kill does
    resumed = train("resumed")
    assert all(torch.equal(resumed[name], tensor) for name, tensor in expected.items())


def test_no_two_pages_use_one_path():
    users = {}
    for page in PAGES:
        for name in re.findall(rf"{MOUNT}/([\w.-]+)", "\n".join(code for _, code in all_blocks(page))):
            # README.md shows the beginning of PYTHON.md.
            users.setdefault(name, set()).add(page.replace("README.md", "docs/PYTHON.md"))
    assert {name: sorted(pages) for name, pages in users.items() if len(pages) > 1} == {}


@needs.root
def test_an_immutable_mount_point_takes_mounts_and_no_files(factory):
    shown = next(code for _, code in all_blocks("docs/OPERATIONS.md") if code.startswith("chattr +i ")).split()[:3]
    assert shown == ["chattr", "+i", MOUNT]
    store, point = factory.store("64M"), factory.directory("immutable")
    if process.run(["chattr", "+i", point], codes=None).code != 0:
        pytest.skip("needs a filesystem with the flag for immutable directories")
    try:
        with pytest.raises(PermissionError):
            (point / "file").touch()
        process.run([program(), "mount", store.directory, point])
        try:
            (point / "file").write_bytes(b"content")
        finally:
            process.run([program(), "umount", point])
        with pytest.raises(PermissionError):
            (point / "file").touch()
    finally:
        process.run(["chattr", "-i", point])


def code_of(page, section, language):
    """The blocks of one section, joined."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    found = re.search(rf"^##? {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return "\n".join(code for written, code in BLOCK.findall(found[1]) if written == language)


def test_the_readme_shows_the_beginning_of_the_page_of_python():
    shown = code_of("README.md", "From Python", "python")
    assert shown and code_of("docs/PYTHON.md", "From Python", "python").startswith(shown)


def test_the_lines_of_the_page_of_applications(factory):
    mount = factory.mount(factory.store("512M"))
    text = (REPOSITORY / "docs/APPLICATIONS.md").read_text(encoding="utf-8")
    column = re.findall(r"^\|[^|]*\|[^|]*\| `([^`]+)` \|", text, re.MULTILINE)
    lines = [line.replace("…", "pass").replace(MOUNT, str(mount.path)) for line in column
             if re.match(r"weightfs\.|dcp\.|\w+ = |for |from |handle\.", line)]
    assert len(lines) == 13, lines
    pytest.importorskip("fastsafetensors", reason="needs fastsafetensors: scripts/setup installs it")
    prepare = f"""
import os, torch, torch.distributed.checkpoint as dcp
import weightfs, weightfs.fastsafetensors, weightfs.hf, weightfs.offload, weightfs.safetensors, weightfs.torch
from weightfs import checkpoint
from weightfs.dcp import StorageWriter

tensor = torch.randn(64, 64)
state = tensors = {{"a": tensor}}
model, handle = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)), weightfs.aio_handle()
for directory in ("model", "step-100"):
    os.mkdir("{mount.path}/" + directory)
for path in ("model.safetensors", "model/part.safetensors"):
    weightfs.safetensors.save_file(tensors, "{mount.path}/" + path)
indices, out = [3, 1], torch.empty(2, 64)
handle.write_from(tensor, "{mount.path}/table.bin")
"""
    check = "\nassert torch.equal(out, tensor[[3, 1]])"
    # The page of offloading has 2G of memory, for a larger model than this one.
    process.run([sys.executable, "-c", prepare + "\n".join(lines).replace('"2G"', '"16M"') + check], limit=100)


def test_the_links_of_the_documents_lead_somewhere():
    for page in [REPOSITORY / "README.md", *REPOSITORY.glob("docs/*.md")]:
        for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve() if link else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{page.name}: {link}#{anchor}"
