# SPDX-License-Identifier: Apache-2.0
"""The first line of weightfs doctor says whether a store is well, and its table is short."""

import json
import os
import re

import pytest

from harness.filesystems import weightfs

pytestmark = pytest.mark.usefixtures("weightfs_only")


def verdict(store, *words):
    return weightfs("doctor", store.directory, *words).out.partition("\n")[0]


def test_the_first_line_is_the_state_of_the_store(factory):
    store = factory.store("256M")
    line = verdict(store)
    assert line.startswith(f"{store.directory}: ok: ")
    assert re.search(r": \d+ % of [\d.]+ MiB used, unmounted cleanly, never scrubbed, .*B free for its catalog", line)
    mount = factory.mount(store)
    assert f"mounted on {mount.path}, never scrubbed" in verdict(store)
    (mount.path / "file").write_bytes(os.urandom(1 << 20))
    mount.kill9()
    line = verdict(store)
    assert line.startswith(f"{store.directory}: needs attention: ") and ", not unmounted cleanly, " in line


def test_a_store_that_cannot_be_opened_is_no_success(factory):
    store = factory.store("64M")
    (store.directory / "pool").rename(store.directory / "elsewhere")
    line = weightfs("doctor", store.directory, codes=(1,)).out.partition("\n")[0]
    assert line.startswith(f"{store.directory}: no mount is possible (store") and "pool" in line


def test_the_memory_of_hot_files_is_shown(factory):
    def line():
        return next(line for line in weightfs("doctor").out.splitlines() if line.startswith("hot files"))

    assert re.search(r" used +[\d.]+ GiB unless cache_memory= says otherwise, in a tmpfs", line())
    mount = factory.mount(factory.store("64M"))
    limit = json.loads(weightfs("info", mount.path, "--json").out)["hot"]["limit"]
    assert f" {limit / (1 << 30):.2f}"[:5] in line()


def test_the_features_of_fuse_take_one_line():
    lines = weightfs("doctor").out.splitlines()
    assert lines[0].startswith("this machine: ok")
    features = [line for line in lines if line.startswith("FUSE")]
    assert len(features) == 1 and " features in use" in features[0] and "protocol 7." in features[0]
    listed = [line for line in weightfs("doctor", "--all").out.splitlines() if line.startswith("FUSE ")]
    found = [check for check in json.loads(weightfs("doctor", "--json").out) if check["name"].startswith("FUSE ")]
    assert len(listed) == len(found) > 10
