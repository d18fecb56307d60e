# SPDX-License-Identifier: Apache-2.0
"""git: creates, fills, clones, packs and checks a repository on the mount."""

import os
import random

from harness import needs, process
from harness.tree import digests

pytestmark = needs.program("git")
ENVIRONMENT = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
               "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
               "GIT_COMMITTER_EMAIL": "a@b", "GIT_CONFIG_COUNT": "2", "GIT_CONFIG_KEY_0": "safe.directory",
               "GIT_CONFIG_VALUE_0": "*", "GIT_CONFIG_KEY_1": "core.fsync", "GIT_CONFIG_VALUE_1": "all"}


def git(directory, *words):
    return process.run(["git", "-C", directory, *words], env=ENVIRONMENT).out


def make_history(repository, commits=6):
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    generator = random.Random(1)
    for index in range(commits):
        for file in range(5):
            path = repository / f"folder{file % 2}/file{generator.randrange(12)}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(generator.randbytes(generator.randrange(1, 60_000)))
        git(repository, "add", "-A")
        git(repository, "commit", "-q", "-m", f"commit {index}")
    return repository


def tracked(repository):
    return {path: value for path, value in digests(repository).items() if not path.startswith(".git/")}


def test_history_survives_and_checks(mount, work):
    repository = make_history(work / "repository")
    head, files = git(repository, "rev-parse", "HEAD"), tracked(repository)
    mount.remount()
    assert git(repository, "rev-parse", "HEAD") == head and tracked(repository) == files
    git(repository, "fsck", "--full", "--strict")
    assert git(repository, "status", "--porcelain") == ""
    git(repository, "checkout", "-q", "HEAD~3")
    git(repository, "checkout", "-q", "main")
    assert tracked(repository) == files


def test_clone_within_into_and_out_of_the_mount(mount, work, local):
    original = make_history(local / "original")
    git(local, "clone", "-q", f"file://{original}", work / "over-the-wire")
    git(local, "clone", "-q", original, work / "copied")
    git(work, "clone", "-q", work / "copied", work / "hard-linked")
    mount.remount()
    git(local, "clone", "-q", work / "hard-linked", local / "back")
    for clone in (work / "over-the-wire", work / "copied", work / "hard-linked", local / "back"):
        git(clone, "fsck", "--full", "--strict")
        assert tracked(clone) == tracked(original)


def test_repack_and_gc_beside_a_branch(mount, work):
    repository = make_history(work / "repository")
    git(repository, "branch", "kept", "HEAD~2")
    git(repository, "gc", "-q", "--aggressive", "--prune=now")
    mount.remount()
    git(repository, "fsck", "--full", "--strict")
    git(repository, "merge", "-q", "kept")
    git(repository, "reset", "-q", "--hard", "kept")
    git(repository, "stash", "list")
    assert git(repository, "status", "--porcelain") == ""
    assert list((repository / ".git/objects/pack").glob("*.pack"))


def test_worktree_and_lock_file(mount, work):
    repository = make_history(work / "repository", commits=2)
    git(repository, "worktree", "add", "-q", work / "beside", "-b", "beside")
    mount.remount()
    assert tracked(work / "beside") and git(work / "beside", "rev-parse", "--abbrev-ref", "HEAD").strip() == "beside"
    (repository / ".git/index.lock").touch()
    (repository / "folder0/extra").write_text("x")
    assert process.run(["git", "-C", repository, "add", "-A"], env=ENVIRONMENT, codes=None).code == 128
