# SPDX-License-Identifier: Apache-2.0
"""weightfs.checkpoint.Manager: a run that restores a step and saves below the latest one."""

import os
import signal

import pytest

from checkpoint_run import same, state
from weightfs import checkpoint


def names(folder):
    return sorted(os.listdir(folder))


def save(folder, *steps, keep=None):
    with checkpoint.Manager(folder, keep=keep) as manager:
        for step in steps:
            manager.save(step, state(step), wait=True)


def resumed(folder):
    """The step that a restarted job resumes from."""
    with checkpoint.Manager(folder) as manager:
        loaded = manager.load()
        assert same(loaded, state(loaded["step"])) and loaded["step"] == manager.latest()
        return loaded["step"]


@pytest.mark.parametrize("restarts", [False, True])
def test_the_steps_after_going_back_stay_and_are_resumed_from(folder, restarts):
    save(folder, 200, 300, 400, keep=3)
    manager = checkpoint.Manager(folder, keep=3)
    assert manager.restore(state(200) | {"step": None}, 200) == 200 and manager.latest() == 400
    for step, left in ((201, [200, 201]), (202, [200, 201, 202]), (203, [201, 202, 203]), (400, [202, 203, 400])):
        manager.save(step, state(step), wait=True)
        assert manager.steps() == left and resumed(folder) == step
        if restarts:
            manager.close()
            manager = checkpoint.Manager(folder, keep=3)
    manager.close()
    assert names(folder) == ["step-00000202", "step-00000203", "step-00000400"]


def test_what_the_run_went_back_from_is_set_aside_and_removed_first(local):
    save(local, 200, 300, 400)
    save(local, 201)
    assert names(local) == ["step-00000200", "step-00000201", "step-00000300.stale-1", "step-00000400.stale-1"]
    save(local, 202, keep=4)
    assert names(local) == ["step-00000200", "step-00000201", "step-00000202", "step-00000400.stale-1"]
    save(local, 203, keep=1)
    assert names(local) == ["step-00000203"]


def test_going_back_twice_to_and_from_the_same_steps(local):
    for last in (400, 401, 402):   # 400 stands for a step that the run reaches again each time
        save(local, 200, 300, 400)
        with checkpoint.Manager(local) as manager:
            manager.save(last, state(last), wait=True)
            manager.restore(state(200) | {"step": None}, 200)
        assert resumed(local) == last
    assert names(local) == ["step-00000200", "step-00000200.stale-1", "step-00000200.stale-2",
                            "step-00000300", "step-00000300.stale-1", "step-00000300.stale-2",
                            "step-00000400", "step-00000400.stale-1", "step-00000400.stale-2",
                            "step-00000401.stale-2", "step-00000402"]


@pytest.mark.parametrize("new", [400, 500])
@pytest.mark.parametrize("how", ["restore", "load", "fallback"])
def test_steps_between_where_the_run_went_back_to_and_its_next_step_are_set_aside(local, how, new):
    save(local, 200, 300, 400)
    with checkpoint.Manager(local) as manager:
        if how == "restore":
            manager.restore(state(200) | {"step": None}, 200)
        elif how == "load":
            manager.load(200)
        else:
            for step in (300, 400):
                os.truncate(local / f"step-{step:08d}/state.pt", 1000)
            manager.load(fallback=True)
        manager.save(new, state(new), wait=True)
        assert manager.steps() == [200, new]
        manager.save(new + 1, state(new + 1), wait=True)
        assert manager.steps() == [200, new, new + 1]
        os.truncate(local / f"step-{new + 1:08d}/state.pt", 1000)
        assert manager.load(fallback=True)["step"] == new
    assert names(local)[:3] == ["step-00000200", "step-00000300.stale-1", f"step-{400:08d}" + ".stale-1" * (new > 400)]


def test_a_failed_save_and_a_load_while_a_save_is_written_do_not_change_where_the_run_is(local, monkeypatch):
    save(local, 200, 300)
    with checkpoint.Manager(local) as manager:
        manager.load(200)
        (local / "step-00000400").write_text("a file")
        with pytest.raises(NotADirectoryError):
            manager.save(400, state(400), wait=True)
        os.unlink(local / "step-00000400")
        manager.save(500, state(500), wait=True)
        assert manager.steps() == [200, 500]
        publish = manager._steps.publish

        def loading(*arguments):
            outcome = publish(*arguments)
            manager.load(200)
            return outcome
        monkeypatch.setattr(manager._steps, "publish", loading)
        manager.save(600, state(600), wait=True)
        monkeypatch.undo()
        manager.save(700, state(700), wait=True)
        assert manager.steps() == [200, 700]


def test_a_step_that_was_set_aside_is_used_again_by_renaming_it(local):
    save(local, 200, 400, 201)
    assert resumed(local) == 201
    os.rename(local / "step-00000400.stale-1", local / "step-00000400")
    assert resumed(local) == 400
    save(local, 500)
    with checkpoint.Manager(local) as manager:
        assert manager.steps() == [200, 201, 400, 500]


def test_a_fallback_does_not_load_what_the_run_went_back_from(local):
    save(local, 200, 300, 201)
    os.truncate(local / "step-00000201/state.pt", 1000)
    with checkpoint.Manager(local) as manager:
        assert same(manager.load(fallback=True), state(200))


def test_a_damaged_latest_step_is_set_aside_by_the_first_save_after_the_fallback(local):
    save(local, 200, 300)
    os.truncate(local / "step-00000300/state.pt", 1000)
    with checkpoint.Manager(local, keep=2) as manager:
        assert manager.load(fallback=True)["step"] == 200
        manager.save(210, state(210), wait=True)
    assert resumed(local) == 210


def test_a_failed_save_sets_nothing_aside(local):
    save(local, 200, 300, 400)
    (local / "step-00000201").write_text("a file")
    before = names(local)
    with checkpoint.Manager(local) as manager:
        with pytest.raises(NotADirectoryError):
            manager.save(201, state(201), wait=True)
        assert manager.steps() == [200, 300, 400]
    assert names(local) == before


def test_another_manager_that_saves_meanwhile(local):
    """A job that was thought dead saves on. Each save is the latest when it is done."""
    save(local, 200, 300)
    with checkpoint.Manager(local, keep=3) as one, checkpoint.Manager(local, keep=3) as other:
        for manager, step in ((one, 400), (other, 201), (one, 500), (other, 202), (other, 203), (one, 600)):
            manager.save(step, state(step), wait=True)
            assert one.latest() == other.latest() == step and same(manager.load(), state(step))
        assert one.steps() == [202, 203, 600]


def killed_before(number, save):
    """Calls save() in a child that is killed before its rename of that number. False if there were fewer."""
    child = os.fork()
    if child == 0:
        try:
            left = [number]

            def dying(rename):
                def called(*arguments):
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    left[0] -= 1
                    rename(*arguments)
                return called

            os.rename, os.replace = dying(os.rename), dying(os.replace)
            save()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_kill_while_steps_are_set_aside_leaves_the_resumed_step_or_an_earlier_outcome(folder):
    found, number = [], 0
    while True:
        save(folder / str(number), 200, 300, 400)
        killed = killed_before(number, lambda: save(folder / str(number), 201, keep=3))
        found.append(resumed(folder / str(number)))
        if not killed:
            break
        number += 1
    # Before the renames of 300, 400, the new step, and the removal of the first stale one.
    assert found == [400, 400, 200, 201, 201]


@pytest.mark.parametrize("loads", [100, 300, None])
def test_a_kill_while_a_step_is_saved_again_leaves_no_step_of_the_abandoned_branch_as_the_latest(folder, loads):
    def save_again():
        with checkpoint.Manager(run) as manager:
            if loads:
                manager.load(loads)
            manager.save(300, state(300) | {"new": True}, wait=True)

    found, number, killed = [], 0, True
    while killed:
        run = folder / str(number)
        save(run, 100, 200, 300, 400)
        killed = killed_before(number, save_again)
        with checkpoint.Manager(run) as manager:
            loaded = manager.load()
            found.append((manager.latest(), loaded["step"], "new" in loaded))
        number += 1
    # Before the renames of 200, 300, 400 and the new step, and after them. Without a load 200 stays; the 300 from which
    # the run continues stays until its file is replaced.
    below = {100: [400, 400, 400, 100], 300: [400, 300, 300], None: [400, 400, 200]}[loads]
    assert found == [(step, step, False) for step in below] + [(300, 300, True)]


def test_the_set_aside_is_durable_with_the_save(factory, weightfs_only):
    mount = factory.mount(factory.store("256M"), "commit=3600")
    save(mount.path / "run", 200, 300, 400)
    save(mount.path / "run", 201, keep=3)
    mount.kill9()
    mount.mount()
    assert resumed(mount.path / "run") == 201
