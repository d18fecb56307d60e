# SPDX-License-Identifier: Apache-2.0
"""The README's examples work as printed: its commands create a store, and its Python code runs on a mount.

Only the paths, the size and the location of the programs are replaced."""

import os
import re
import sys

import pytest

from harness import process
from harness.filesystems import REPOSITORY, is_mounted, program

pytestmark = pytest.mark.usefixtures("weightfs_only")
pytest.importorskip("torch", reason="needs torch: scripts/setup installs it")

STORE, MOUNT = "/srv/tensors", "/mnt/tensors"


def blocks(page, section, language):
    """The code blocks of one section, joined."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    found = re.search(rf"^##? {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no section {section}"
    code = "\n".join(re.findall(rf"^```{language}\n(.*?)^```$", found[1], re.MULTILINE | re.DOTALL))
    assert code, f"{section} has no block of {language}"
    return code


def replaced(code, *pairs):
    for shown, ours in pairs:
        assert shown in code, f"README does not show {shown!r} any more"
        code = code.replace(shown, str(ours))
    return code


def run(*words):
    return process.run(words, cwd=REPOSITORY, limit=100)


def test_the_commands_of_a_store_of_your_own(factory):
    folder = factory.directory("readme")
    store, mount = folder / "store", folder / "deep/mount"
    code = replaced(blocks("README.md", "A store of your own", "sh"), (STORE, store), (MOUNT, mount),
                    ("--size 8G", "--size 256M --sparse"),
                    ("scripts/setup && scripts/build ", "test -x scripts/setup -a -x scripts/build "),
                    ("$PWD/build/release/bin", program().parent), (".venv/bin/python", sys.executable))
    try:
        shown = run("bash", "-euc", code + f"\nweightfs fsck {store}").out
    finally:
        if is_mounted(mount):
            process.run([program(), "umount", mount], codes=None)
    assert " on the device, " in shown and shown.endswith("clean\n")
    assert not is_mounted(mount)


def test_the_python_of_the_direct_path(factory):
    mount = factory.mount(factory.store("256M"))
    code = replaced(blocks("docs/PYTHON.md", "From Python", "python"), (MOUNT, mount.path))
    checks = f"""
assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
assert torch.equal(torch.frombuffer(open("{mount.path}/w.bin", "rb").read(), dtype=torch.float32), tensor.flatten())
for name, saved in tensors.items():
    stored = open("{mount.path}/step-100/" + name, "rb").read()
    assert torch.equal(torch.frombuffer(bytearray(stored), dtype=torch.float32), saved.flatten()), name
"""
    run(sys.executable, "-c", code + checks)
    assert len(os.listdir(mount.path / "step-100")) > 1


def test_the_readme_shows_the_beginning_of_the_page_of_python():
    shown = blocks("README.md", "From Python", "python")
    assert blocks("docs/PYTHON.md", "From Python", "python").startswith(shown)


def test_the_lines_of_the_page_of_applications(factory):
    mount = factory.mount(factory.store("512M"))
    text = (REPOSITORY / "docs/APPLICATIONS.md").read_text(encoding="utf-8")
    column = re.findall(r"^\|[^|]*\|[^|]*\| `([^`]+)` \|", text, re.MULTILINE)
    lines = [line.replace("…", "pass").replace(MOUNT, str(mount.path)) for line in column
             if re.match(r"weightfs\.|dcp\.|\w+ = |for |from |handle\.", line)]
    assert len(lines) == 11, lines
    prepare = f"""
import os, torch, torch.distributed.checkpoint as dcp
import weightfs, weightfs.offload, weightfs.safetensors, weightfs.torch
from weightfs import checkpoint
from weightfs.dcp import StorageWriter

tensor = torch.randn(64, 64)
state = tensors = {{"a": tensor}}
model, handle = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)), weightfs.aio_handle()
os.mkdir("{mount.path}/model")
for path in ("model.safetensors", "model/part.safetensors"):
    weightfs.safetensors.save_file(tensors, "{mount.path}/" + path)
indices, out = [3, 1], torch.empty(2, 64)
handle.write_from(tensor, "{mount.path}/table.bin")
"""
    check = "\nassert torch.equal(out, tensor[[3, 1]])"
    # The page of offloading has 2G of memory, for a larger model than this one.
    run(sys.executable, "-c", prepare + "\n".join(lines).replace('"2G"', '"16M"') + check)


def test_the_links_of_the_documents_lead_somewhere():
    for page in [REPOSITORY / "README.md", *REPOSITORY.glob("docs/*.md")]:
        for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve() if link else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{page.name}: {link}#{anchor}"
