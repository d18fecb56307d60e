# SPDX-License-Identifier: Apache-2.0
"""weightfs.checkpoint.Manager(push=...): saved steps are pushed in the background."""
import asyncio
import concurrent.futures
import subprocess
import sys

import pytest

from versions import URL

pytest.importorskip("weightfs", reason="the Python package is not installed: pip install . in the root")
s3 = pytest.importorskip("weightfs.s3", reason="another weightfs is imported: pip install . in the root")
torch = pytest.importorskip("torch", reason="needs torch: scripts/setup installs it")
checkpoint = pytest.importorskip("weightfs.checkpoint")


def state(step):
    return {"weights": torch.full((1000, 300), float(step)), "step": step}


def pushed():
    return [one.version for one in s3.versions(URL)]


def refuse(service, key, times=None):
    service.fail(1, "status", method="PUT", key=key, every=True, times=times, status=403, code="AccessDenied")


def test_every_saved_step_is_pushed_in_order(service, local):
    with checkpoint.Manager(local / "run", push=URL) as manager:
        savings = [manager.save(step, state(step)) for step in (1, 2, 3)]
        manager.wait()
        assert [saving.pushed.result().version for saving in savings] == [1, 2, 3] and pushed() == [3, 2, 1]
    manifests = [record.key for record in service.requests if record.method == "PUT"
                 and record.key.endswith("/manifest")]
    assert [int(key.split("/")[-3]) for key in manifests] == [1, 2, 3]
    pulled = s3.pull(URL, local / "pulled")
    loaded = torch.load(f"{pulled.directory}/state.pt")
    assert loaded["step"] == 3 and torch.equal(loaded["weights"], state(3)["weights"])


def test_saves_go_on_while_a_push_is_under_way(service, local):
    service.fail(1, "hold", key="/1/")
    with checkpoint.Manager(local, push=URL) as manager:
        first = manager.save(1, state(1), wait=True)
        service.wait_for_fault()
        for step in (2, 3, 4):
            manager.save(step, state(step), wait=True)
        assert manager.steps() == [1, 2, 3, 4] and not first.pushed.done()
        service.heal()
    assert pushed() == [4, 3, 2, 1]


def test_keep_removes_a_step_only_after_its_push(service, local):
    service.fail(1, "hold", key="/1/")
    with checkpoint.Manager(local, keep=1, push=URL) as manager:
        for step in (1, 2, 3):
            manager.save(step, state(step), wait=True)
        service.wait_for_fault()
        assert manager.steps() == [1, 2, 3]
        service.heal()
        manager.wait()
        assert manager.steps() == [3] and pushed() == [3, 2, 1]


def test_a_failed_push_lets_the_saves_go_on(service, local, caplog):
    refuse(service, "/1/.*manifest$")
    with checkpoint.Manager(local, keep=1, push=URL) as manager:
        first = manager.save(1, state(1))
        assert concurrent.futures.wait([first.pushed], timeout=60).done   # which does not see its exception
        second = manager.save(2, state(2), wait=True)
        assert first.result() and second.pushed.result(60).version == 2
        with pytest.raises(s3.S3Error, match="step 1 is saved, but its push failed: .*AccessDenied"):
            manager.wait()
        manager.wait()
        assert manager.steps() == [2] and pushed() == [2]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_step_whose_push_failed_is_whole_and_can_be_saved_again(service, local):
    refuse(service, "/1/.*manifest$", times=1)
    with checkpoint.Manager(local, push=URL) as manager:
        error = manager.save(1, state(1)).pushed.exception(60)
        assert "step 1 is saved, but its push failed: " in str(error) and "AccessDenied" in str(error)
        assert torch.equal(manager.load(1)["weights"], state(1)["weights"])
        assert manager.save(2, state(2)).pushed.result(60).version == 2
        assert manager.steps() == [1, 2] and pushed() == [2]
        assert manager.save(1, state(10)).pushed.result(60).version == 1
    assert pushed() == [2, 1]
    pulled = s3.pull(URL, local / "pulled", version=1)
    assert torch.equal(torch.load(f"{pulled.directory}/state.pt")["weights"], state(10)["weights"])


def test_a_failed_push_is_raised_once(service, local):
    refuse(service, "/1/")
    manager = checkpoint.Manager(local, push=URL)
    assert isinstance(manager.save(1, state(1)).pushed.exception(60), s3.S3Error)
    manager.close()
    manager = checkpoint.Manager(local, push=URL)
    manager.save(1, state(1))
    with pytest.raises(s3.S3Error, match="step 1"):
        manager.close()
    manager.close()
    with pytest.raises(ValueError, match="closed"):
        manager.save(2, state(2))


def test_a_service_that_heals(service, local):
    refuse(service, "", times=2)
    with checkpoint.Manager(local, push=URL) as manager:
        outcomes = [manager.save(step, state(step)).pushed.exception(60) for step in (1, 2, 3)]
        assert outcomes[0] is not None and outcomes[2] is None
    assert pushed()[0] == 3


def test_a_push_can_be_awaited_and_a_failed_save_is_not_pushed(service, local):
    async def run(manager):
        return await manager.save(1, state(1)).pushed

    with checkpoint.Manager(local, push=URL) as manager:
        assert asyncio.run(run(manager)).version == 1
        (local / "step-00000002").write_text("a file")
        failed = manager.save(2, state(2))
        with pytest.raises(NotADirectoryError):
            manager.wait()
        assert isinstance(failed.pushed.exception(60), NotADirectoryError)
        manager.wait()
    assert pushed() == [1]


def test_an_unfinished_push_of_an_earlier_run_is_replaced(service, local):
    refuse(service, "manifest$", times=1)
    for run in ("first", "second"):
        with checkpoint.Manager(local / run, push=URL) as manager:
            error = manager.save(1, state(1)).pushed.exception(60)
            assert (error is None) == (run == "second")


def test_options_of_the_push(service, local, monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    with checkpoint.Manager(local, push={"url": URL, "keep": 2, "endpoint_url": service.url}) as manager:
        for step in (1, 2, 3):
            manager.save(step, state(step))
    monkeypatch.setenv("AWS_ENDPOINT_URL", service.url)
    assert pushed() == [3, 2]


def test_wrong_options_are_refused_at_the_start(service, local, monkeypatch):
    for wrong in (7, {}, {"keep": 2}, {"url": URL, "version": 1}, {"url": URL, "color": "red"}):
        with pytest.raises(TypeError):
            checkpoint.Manager(local, push=wrong)
    with checkpoint.Manager(local, push=URL) as manager, pytest.raises(ValueError, match="from 1"):
        manager.save(0, state(0))
    monkeypatch.setenv("WEIGHTFS_PROGRAM", str(local / "missing"))
    with pytest.raises(FileNotFoundError):
        checkpoint.Manager(local, push=URL)


def test_the_interpreter_exits_after_the_pushes(service, local):
    code = ("import sys, torch\nfrom weightfs import checkpoint\n"
            "manager = checkpoint.Manager(sys.argv[1], push=sys.argv[2])\n"
            "for step in (1, 2):\n    manager.save(step, {'weights': torch.zeros(1000, 300)})\n")
    subprocess.run([sys.executable, "-c", code, str(local), URL], check=True, timeout=100)
    assert pushed() == [2, 1]


def test_a_run_that_went_back_keeps_its_new_versions(service, local):
    with checkpoint.Manager(local, keep=2, push={"url": URL, "keep": 2}) as manager:
        for step in (200, 300, 400, 201, 202, 203):
            manager.save(step, state(step)).pushed.result(60)
        assert manager.steps() == [202, 203] and pushed() == [400, 300, 203, 202]
        assert manager.save(401, state(401)).pushed.result(60).version == 401
    assert pushed() == [401, 400]
