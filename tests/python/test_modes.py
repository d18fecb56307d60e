# SPDX-License-Identifier: Apache-2.0
"""The umask decides the mode of new files, whichever function writes them; a replaced file keeps its mode."""

import os

import pytest
import torch

import weightfs
import weightfs.safetensors
import weightfs.torch
from harness import needs
from harness.users import NOBODY

TENSOR = torch.arange(1 << 19)


def save_many(path):
    with weightfs.aio_handle() as handle:
        handle.save_many({path.name: TENSOR}, path.parent)


def rename_many(path):
    with weightfs.aio_handle(direct="never") as handle:
        handle.save_many({path.name: TENSOR}, path.parent)


def write(**options):
    def run(path):
        with weightfs.aio_handle() as handle:
            handle.write_from(TENSOR, path, **options)
    return run


def sync_pwrite(path):
    with weightfs.aio_handle() as handle:
        assert handle.sync_pwrite(TENSOR, path) == 1


def create_file(path):
    with weightfs.safetensors.create_file(path, {"a": (TENSOR.dtype, TENSOR.shape)}) as file:
        file["a"] = TENSOR


SAVES = {
    "write": write(), "write at an offset": write(file_offset=0), "atomic": write(atomic=True, durable=True),
    "sync_pwrite": sync_pwrite, "save_many": save_many, "save_many by renames": rename_many,
    "torch.save": lambda path: weightfs.torch.save(TENSOR, path),
    "save_file": lambda path: weightfs.safetensors.save_file({"a": TENSOR}, path),
    "create_file": create_file,
}


@pytest.fixture
def umask():
    """Sets the umask for the rest of the test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def mode_of(path):
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES.keys())
def test_the_umask_decides_the_mode_of_new_files(folder, umask, save):
    for mask in (0o022, 0o077, 0o002, 0o027):
        umask(mask)
        save(folder / f"{mask}")
        assert mode_of(folder / f"{mask}") == 0o666 & ~mask


@needs.root
@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES.keys())
def test_a_replaced_file_keeps_its_mode_and_owner(folder, save):
    path = folder / "file"
    for mode in (0o600, 0o664, 0o640):
        path.write_bytes(b"old")
        os.chown(path, NOBODY, NOBODY)
        path.chmod(mode)
        save(path)
        assert path.stat().st_size > 3
        assert (mode_of(path), path.stat().st_uid, path.stat().st_gid) == (mode, NOBODY, NOBODY)


@pytest.mark.parametrize("save", [save_many, rename_many])
def test_a_mode_that_is_given_is_that_of_all_files(folder, save, monkeypatch):
    original = weightfs.aio_handle.save_many
    monkeypatch.setattr(weightfs.aio_handle, "save_many", lambda *given: original(*given, mode=0o604))
    (folder / "old").write_bytes(b"old")
    for name in ("old", "new"):
        save(folder / name)
        assert mode_of(folder / name) == 0o604


def acl(user, group, mask, other, named):
    """The value of system.posix_acl_default with an entry for the user `named`."""
    entries = ((1, user, 0xffffffff), (2, 7, named), (4, group, 0xffffffff), (16, mask, 0xffffffff),
               (32, other, 0xffffffff))
    return b"\2\0\0\0" + b"".join(tag.to_bytes(2, "little") + bits.to_bytes(2, "little") + who.to_bytes(4, "little")
                                  for tag, bits, who in entries)


@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES.keys())
def test_a_default_acl_takes_the_place_of_the_umask(folder, umask, save):
    try:
        os.setxattr(folder, "system.posix_acl_default", acl(7, 5, 6, 4, NOBODY))
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")
    umask(0o077)
    (folder / "plain").write_bytes(b"")
    save(folder / "file")
    assert mode_of(folder / "file") == mode_of(folder / "plain") == 0o664
    attribute = "system.posix_acl_access"
    assert os.getxattr(folder / "file", attribute) == os.getxattr(folder / "plain", attribute)
    for mode in (0o600, 0o666):
        (folder / "file").chmod(mode)
        save(folder / "file")
        assert mode_of(folder / "file") == mode
