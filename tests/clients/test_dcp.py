# SPDX-License-Identifier: Apache-2.0
"""weightfs.dcp: the storage of torch.distributed.checkpoint, beside torch's own storage."""

import fcntl
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness import needs, process
from harness.ports import free_port

weightfs = pytest.importorskip("weightfs", reason="the Python package is not installed: pip install . in the root")
pytest.importorskip("weightfs._native", reason="another weightfs is imported: pip install . in the root")
dcp = pytest.importorskip("torch.distributed.checkpoint", reason="this torch is built without distributed")

from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner  # noqa: E402

from weightfs import dcp as ours  # noqa: E402

pytestmark = [needs.torch("2.7"), pytest.mark.limit(300)]
RANKS = Path(__file__).with_name("dcp_steps.py")


def ranks(tmp_path, world, path, *actions):
    """Runs the actions in `world` processes."""
    tmp_path.mkdir(exist_ok=True)
    store = tmp_path / f"store-{len(list(tmp_path.iterdir()))}"
    started = [subprocess.Popen([sys.executable, RANKS, str(rank), str(world), store, path, *actions],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=os.environ | {"OMP_NUM_THREADS": "1"}) for rank in range(world)]
    for one in started:
        process.finish(one, limit=200)


def data_files(path):
    return sorted(name for name in os.listdir(path) if name != ".metadata")


@pytest.mark.parametrize("saver, loader", [pytest.param("ours", "ours", marks=pytest.mark.full),
                                           ("ours", "torch"), ("torch", "ours")])
def test_the_number_of_ranks_and_the_shards_may_change(work, tmp_path, saver, loader):
    two, one = work / "two", work / "one"
    ranks(tmp_path, 2, two, f"save:{saver}:1:0", f"load:{loader}:1:0", f"load:{loader}:1:1")
    ranks(tmp_path, 1, two, f"load:{loader}:1:0")
    ranks(tmp_path, 1, one, f"save:{saver}:2:0")
    ranks(tmp_path, 2, one, f"load:{loader}:2:1")
    assert len(data_files(two)) == 2 and len(data_files(one)) == 1


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_async_save(work, tmp_path, kind, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    ranks(tmp_path, 2, work / "step", f"{kind}:ours:1:0", "load:torch:1:0", f"{kind}:ours:2:1", "load:ours:2:0")
    assert len(data_files(work / "step")) == 2


def state(seed, rows=3000):
    generator = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(rows, 1000, generator=generator), "b": torch.randn(7, generator=generator), "step": seed,
            "c": torch.randn(900, 500, generator=generator).t()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) if torch.is_tensor(a[name]) else a[name] == b[name]
                                        for name in a)


def save(path, saved, writer=ours.StorageWriter, **options):
    dcp.save(saved, storage_writer=writer(path, **options), no_dist=True)


def load(path, form, reader=ours.StorageReader):
    loaded = {name: torch.zeros_like(value) if torch.is_tensor(value) else None for name, value in form.items()}
    dcp.load(loaded, storage_reader=reader(path), no_dist=True)
    return loaded


def test_a_save_over_an_older_one_leaves_it_whole_until_the_end(work, monkeypatch):
    path = work / "step"
    save(path, state(1), dcp.FileSystemWriter)
    finish = ours.StorageWriter.finish

    def look(self, **arguments):
        assert same(load(path, state(1)), state(1)) and len(data_files(path)) == 2
        finish(self, **arguments)

    monkeypatch.setattr(ours.StorageWriter, "finish", look)
    save(path, state(2))
    monkeypatch.undo()
    assert same(load(path, state(2)), state(2)) and len(data_files(path)) == 1
    with pytest.raises(CheckpointException, match="already exists"):
        save(path, state(3), overwrite=False)
    assert same(load(path, state(2), dcp.FileSystemReader), state(2))


@pytest.mark.parametrize("saver", ["ours", "torch"])
def test_a_save_removes_what_the_one_before_and_killed_ones_left_and_nothing_else(work, saver, monkeypatch):
    save(work, state(1), {"ours": ours.StorageWriter, "torch": dcp.FileSystemWriter}[saver])
    left = ("__0_deadbeef_0.distcp", ".__1_deadbeef_0.distcp.weightfs-0123abcd", "..metadata.weightfs-0123abcd",
            *(f"__{rank}_feedbeef_0.distcp" for rank in range(2000)))
    others = ("notes", "__0_notes.distcp", "__7_7.distcp", "__0_deadbeef_0.distcp.old", "__0_DEADBEEF_0.distcp")
    for name in left + others:
        (work / name).write_bytes(b"part")
    living = work / "__1_deadbeef_0.distcp"
    living.write_bytes(b"part")
    searched, named = [], ours._NAMED.findall
    monkeypatch.setattr(ours, "_NAMED", SimpleNamespace(findall=lambda text: searched.append(text) or named(text)))
    with open(living) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert same(load(work, state(1)), state(1))
        save(work, state(2))
        names = set(data_files(work))
        assert names.issuperset(others + (living.name,)) and len(names) == len(others) + 2
        assert len(searched) == 2, "the old .metadata once, and the new one once"
    save(work, state(3))
    assert set(data_files(work)) > set(others) and len(data_files(work)) == len(others) + 1


def test_a_checkpoint_whose_files_are_gone_does_not_replace_a_whole_one(work, monkeypatch):
    save(work, state(1))
    finish = ours.StorageWriter.finish

    def lose(self, metadata, results):
        os.unlink(work / results[0][0].storage_data.relative_path)
        finish(self, metadata, results)

    monkeypatch.setattr(ours.StorageWriter, "finish", lose)
    with pytest.raises(CheckpointException, match="No such file"):
        save(work, state(2))
    assert same(load(work, state(1)), state(1))


def test_a_damaged_metadata_does_not_fail_a_save_and_runs_no_code(work):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(work / "ran"),)

    for content in (b"", b"\x80\x04broken __0_0.distcp", pickle.dumps(Hostile())):
        (work / ".metadata").write_bytes(content)
        save(work, state(1))
        assert same(load(work, state(1)), state(1)) and len(data_files(work)) == 1


def test_ranks_that_save_alone_leave_the_files_of_others(work):
    """use_collectives=False: each rank has metadata of its own."""
    def alone(rank, seed):
        writer = ours.StorageWriter(work)
        writer.reset()
        writer.set_up_storage_writer(False, rank=rank, use_collectives=False)
        planner = DefaultSavePlanner()
        planner.set_up_planner(state(seed), writer.storage_meta(), is_coordinator=True)
        plan = writer.prepare_local_plan(planner.create_local_plan())
        plans, metadata = planner.create_global_plan([plan])
        plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
        writer.finish(metadata, [writer.write_data(plan, planner).wait()])

    save(work, state(1))
    for rank, seed in ((0, 2), (1, 3), (1, 4), (0, 5)):
        (work / f"__{rank}_deadbeef_0.distcp").write_bytes(b"of a killed save")
        alone(rank, seed)
        assert same(load(work, state(1)), state(1))
    assert len(data_files(work)) == 5 and data_files(work)[0] == "__0.metadata"
    save(work, state(6))
    assert len(data_files(work)) == 5 and same(load(work, state(6)), state(6))


def killed_at(number, path, saved):
    """Saves in a child that is killed before its rename or deletion of that number. False if there were fewer."""
    child = os.fork()
    if child == 0:
        try:
            left, replace, unlink = [number], os.replace, os.unlink

            def dying(call):
                def die(*arguments):
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    left[0] -= 1
                    call(*arguments)
                return die

            os.replace, os.unlink = dying(replace), dying(unlink)
            save(path, saved)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_save_with_a_cached_plan_has_new_files(work):
    planner, writer = DefaultSavePlanner(enable_plan_caching=True), ours.StorageWriter(work)
    names = []
    for seed in (1, 2, 3):
        dcp.save(state(seed), storage_writer=writer, planner=planner, no_dist=True)
        assert same(load(work, state(seed)), state(seed))
        names += data_files(work)
    assert len(set(names)) == 3


def test_it_is_torchs_public_interface():
    assert issubclass(ours.StorageWriter, dcp.StorageWriter) and issubclass(ours.StorageReader, dcp.StorageReader)
    assert not issubclass(ours.StorageWriter, dcp.FileSystemWriter)
    assert not issubclass(ours.StorageReader, dcp.FileSystemReader)


def test_a_killed_save_leaves_the_older_checkpoint(work):
    save(work, state(1))
    for number, seed in enumerate((1, 1, 2)):   # before the renames of the data and of .metadata, and the deletion
        assert killed_at(number, work, state(2))
        assert same(load(work, state(seed)), state(seed))
    save(work, state(3))
    assert same(load(work, state(3)), state(3)) and len(data_files(work)) == 1


def test_a_checkpoint_is_durable_when_save_returns(factory, weightfs_only):
    mount = factory.mount(factory.store("256M"), "commit=3600")
    save(mount.path / "new/step", state(1))
    mount.kill9()
    mount.mount()
    assert same(load(mount.path / "new/step", state(1)), state(1))
    assert len(data_files(mount.path / "new/step")) == 1


def test_a_full_pool_leaves_the_older_checkpoint(factory, weightfs_only):
    mount = factory.mount(factory.store("64M"))
    save(mount.path / "step", state(1))
    with pytest.raises(CheckpointException, match="(?i)no space left"):
        save(mount.path / "step", state(2, rows=20_000))
    assert same(load(mount.path / "step", state(1)), state(1)) and len(data_files(mount.path / "step")) == 1
    mount.fsck()


def test_tensors_are_read_in_place_by_leases(work, weightfs_only, monkeypatch):
    saved = {"a": torch.randn(3000, 1000), "b": torch.randn(3000, 1000)}
    save(work, saved)
    handles, made = [], ours.the_handle

    def seen(*arguments):
        handles.append(weightfs.aio_handle(direct="require"))
        return made(handles[-1])

    monkeypatch.setattr(ours, "the_handle", seen)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    before = [tensor.data_ptr() for tensor in loaded.values()]
    dcp.load(loaded, storage_reader=ours.StorageReader(work), no_dist=True)
    assert same(loaded, saved) and [tensor.data_ptr() for tensor in loaded.values()] == before
    assert sum(handle.direct_operations for handle in handles) >= 2


def test_an_older_torch_reads_like_its_own_storage(work, monkeypatch):
    save(work, state(1))

    def refuse(_):
        raise NotImplementedError

    monkeypatch.setattr(ours, "outline", refuse)
    assert same(load(work, state(1)), state(1))


def test_other_types_are_converted_and_other_shapes_refused(work):
    saved = {"a": torch.randn(2000, 1000)}
    save(work, saved)
    loaded = {"a": torch.zeros(2000, 1000, dtype=torch.float64)}
    dcp.load(loaded, storage_reader=ours.StorageReader(work), no_dist=True)
    assert torch.equal(loaded["a"], saved["a"].double())
    with pytest.raises(CheckpointException, match="(?i)size mismatch|shape"):
        dcp.load({"a": torch.zeros(2000, 2000)}, storage_reader=ours.StorageReader(work), no_dist=True)


def test_a_damaged_checkpoint_is_an_error(work):
    save(work, state(1))
    name = data_files(work)[0]
    os.truncate(work / name, 2_000_000)
    with pytest.raises(CheckpointException):
        load(work, state(1))
    os.unlink(work / name)
    with pytest.raises(CheckpointException, match="No such file"):
        load(work, state(1))
    os.unlink(work / ".metadata")
    with pytest.raises(CheckpointException, match="No such file"):
        load(work, state(1))


@pytest.mark.parametrize("saver", ["ours", "torch"])
def test_conjugated_and_negated_tensors(tmp_path, saver):
    base = torch.randn(400, 500, dtype=torch.complex64)
    saved = {"conj": base.conj(), "neg": base.conj().imag}
    writer = ours.StorageWriter(tmp_path / "step") if saver == "ours" else dcp.FileSystemWriter(tmp_path / "step")
    dcp.save(saved, storage_writer=writer, no_dist=True)
    target = {"conj": torch.zeros(400, 500, dtype=torch.complex64), "neg": torch.zeros(400, 500)}
    dcp.load(target, storage_reader=ours.StorageReader(tmp_path / "step"), no_dist=True)
    assert all(torch.equal(target[name], saved[name]) for name in saved)


def test_saves_with_one_writer_may_overlap(work, monkeypatch):
    """The first save stops before it replaces `.metadata`, until the second has ended."""
    reached, goes_on = threading.Event(), threading.Event()
    replacing = ours.StorageWriter._replacing

    def held(writer, path):
        if path.endswith(".metadata") and threading.current_thread() is first and not reached.is_set():
            reached.set()
            assert goes_on.wait(60)
        return replacing(writer, path)

    monkeypatch.setattr(ours.StorageWriter, "_replacing", held)
    writer, failures = ours.StorageWriter(work / "step"), []

    def save(value):
        try:
            dcp.save({"w": torch.full((1 << 19,), value), "n": value}, storage_writer=writer, no_dist=True)
        except BaseException as error:
            failures.append(error)

    first, second = (threading.Thread(target=save, args=(value,)) for value in (1, 2))
    first.start()
    assert reached.wait(60)
    second.start()
    second.join(60)
    goes_on.set()
    first.join(60)
    assert not failures
    state = {"w": torch.zeros(1 << 19, dtype=torch.int64), "n": 0}
    dcp.load(state, storage_reader=ours.StorageReader(work / "step"), no_dist=True)
    assert state["n"] == 1 and bool((state["w"] == 1).all()), "the checkpoint is that of the last save to finish"
    assert len(data_files(work / "step")) == 1


def test_torch_writes_a_plan_that_was_cached_for_this_writer_and_the_other_way(work):
    def save(writer, value):
        dcp.save({"w": torch.full((1 << 19,), value)}, storage_writer=writer, no_dist=True,
                 planner=DefaultSavePlanner(enable_plan_caching=True))

    save(ours.StorageWriter(work / "ours"), 1)
    save(dcp.FileSystemWriter(work / "torch"), 2)
    for value in (3, 4):
        save(ours.StorageWriter(work / "torch"), value)
        state = {"w": torch.zeros(1 << 19, dtype=torch.int64)}
        dcp.load(state, storage_reader=ours.StorageReader(work / "torch"), no_dist=True)
        assert bool((state["w"] == value).all())
        assert len(data_files(work / "torch")) == 1, "the files of older saves are removed"
