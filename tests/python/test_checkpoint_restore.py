# SPDX-License-Identifier: Apache-2.0
"""Manager.restore: a state is loaded into tensors that exist."""

import collections
import errno

import pytest
import torch

import weightfs
from checkpoint_run import same, state
from tensors import flip_on_device
from weightfs import checkpoint

MIB = 1 << 20


def blank(value):
    """A state of the same form with other values."""
    if isinstance(value, torch.Tensor):
        return torch.full_like(value, 1)
    if isinstance(value, dict):
        return {key: blank(item) for key, item in value.items()}
    if isinstance(value, list):
        return [blank(item) for item in value]
    if isinstance(value, tuple):
        return tuple(item if isinstance(item, int) else blank(item) for item in value)
    return 0


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors_of(item)]


@pytest.fixture
def manager(local):
    with checkpoint.Manager(local) as made:
        yield made


def test_the_tensors_of_the_program_get_the_saved_values(folder):
    with checkpoint.Manager(folder) as manager:
        for step in (1, 2):
            manager.save(step, state(step, scale=5), wait=True)
        for arguments, step in (((), 2), ((1,), 1)):
            target = blank(state(step, scale=5))
            before = [tensor.data_ptr() for tensor in tensors_of(target)]
            assert manager.restore(target, *arguments) == step
            assert same(target, state(step, scale=5))
            assert [tensor.data_ptr() for tensor in tensors_of(target)] == before


def test_a_module_is_restored_in_place(manager):
    torch.manual_seed(1)
    saved, model = (torch.nn.Sequential(torch.nn.Linear(700, 900), torch.nn.BatchNorm1d(900)) for _ in range(2))
    manager.save(1, saved.state_dict(), wait=True)
    manager.restore(model.state_dict())
    assert same(dict(model.state_dict()), dict(saved.state_dict()))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_none_gets_what_the_file_has(manager):
    model = torch.nn.Linear(600, 600)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(600)).sum().backward()
    optimizer.step()
    shared = torch.arange(600_000.)
    extra = collections.OrderedDict(parameter=torch.nn.Parameter(torch.ones(3)), a=shared, b=(shared[7:], "text"))
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "extra": extra, "steps": [1, 2]}
    manager.save(1, saved, wait=True)
    target = {"model": torch.nn.Linear(600, 600).state_dict(), "optimizer": None, "extra": None, "steps": [None, None]}
    manager.restore(target)
    assert same(target, saved)
    extra = target["extra"]
    assert type(extra) is collections.OrderedDict and isinstance(extra["parameter"], torch.nn.Parameter)
    assert extra["a"].untyped_storage().data_ptr() == extra["b"][0].untyped_storage().data_ptr()
    torch.optim.Adam(model.parameters()).load_state_dict(target["optimizer"])


def test_a_dict_or_list_that_occurs_several_times_is_made_once(manager):
    weights = {"weight": torch.arange(600_000.), "list": [torch.ones(3)]}
    saved = {"last": weights, "best": weights, "pair": (weights["list"], weights["list"])}
    manager.save(1, saved, wait=True)
    target = dict.fromkeys(saved)
    manager.restore(target)
    assert same(target, saved) and target["last"] is target["best"]
    assert target["pair"][0] is target["pair"][1] is target["last"]["list"]


def layouts():
    """Pairs of a saved tensor and one to restore into, of the same shape."""
    whole = torch.randn(900, 1000)
    images = torch.randn(8, 16, 100, 100)
    return {"rows": (whole[100:], torch.zeros(800, 1000)), "columns": (whole[:, 300:600], torch.zeros(900, 300)),
            "wide columns": (torch.randn(20, 100_000)[:, 5:90_001], torch.zeros(20, 89_996)),
            "transposed": (whole.t(), torch.zeros(1000, 900)), "both": (whole.t(), torch.zeros(900, 1000).t()),
            "into columns": (whole, torch.zeros(900, 2000)[:, ::2]), "expanded": (torch.randn(1, 5).expand(7, 5),
                                                                                  torch.zeros(7, 5)),
            "channels last": (images.to(memory_format=torch.channels_last), torch.zeros(8, 16, 100, 100)),
            "steps": (whole.view(-1)[::3], torch.zeros(300_000)), "scalar": (torch.tensor(4.), torch.tensor(0.)),
            "empty": (torch.empty(0, 5), torch.empty(0, 5))}


def test_the_layouts_of_saved_and_restored_tensors_may_differ(manager, monkeypatch):
    pairs = layouts()
    manager.save(1, {name: saved for name, (saved, _) in pairs.items()}, wait=True)
    for span in (64 * MIB, MIB):   # with the smaller one, most reads are split
        monkeypatch.setattr("weightfs.torch._archive._SPAN", span)
        for _, target in pairs.values():
            target.zero_()
        manager.restore({name: target for name, (_, target) in pairs.items()})
        for name, (saved, target) in pairs.items():
            assert torch.equal(saved, target), name


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float8_e4m3fn, torch.bfloat16, torch.float64,
                                   torch.complex64])
@pytest.mark.parametrize("count", [3, 2 * MIB])
def test_every_type_is_restored(manager, dtype, count):
    saved = torch.randint(0, 2, (count,)).to(torch.float32).to(dtype)
    manager.save(1, [saved], wait=True)
    target = [torch.zeros(count).to(dtype)]
    manager.restore(target)
    assert torch.equal(target[0].view(torch.uint8), saved.view(torch.uint8))


class Distributed(torch.Tensor):
    """A kind of tensor that restore cannot know."""


MISMATCHES = {
    "missing": ({"a": torch.ones(2), "b": torch.ones(2), "c": 1}, r"state\['c'\] is missing in the file"),
    "unexpected": ({"a": torch.ones(2)}, r"state\['b'\] is only in the file"),
    "shape": ({"a": torch.ones(3), "b": torch.ones(2)}, r"state\['a'\] is a tensor of shape \(3,\) and torch.float32, "
              r"the file has a tensor of shape \(2,\)"),
    "dtype": ({"a": torch.ones(2).int(), "b": torch.ones(2)}, "torch.int32, the file"),
    "no tensor": ({"a": 5, "b": torch.ones(2)}, r"state\['a'\] is of type int, the file has a tensor"),
    "list": ({"a": [torch.ones(2)], "b": torch.ones(2)}, "is a list of 1 values, the file has a tensor"),
    "kind": ({"a": torch.ones(2).as_subclass(Distributed), "b": torch.ones(2)}, "is a Distributed of shape"),
    "other": (torch.ones(2), "the file has of type dict"),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_mismatch_changes_nothing(manager, name):
    manager.save(1, {"a": torch.zeros(2), "b": torch.zeros(2)}, wait=True)
    target, text = MISMATCHES[name]
    with pytest.raises(ValueError, match=text):
        manager.restore(target)
    assert all(tensor.ne(0).all() for tensor in tensors_of(target))


def test_only_the_first_mismatches_are_listed(manager):
    manager.save(1, {str(i): torch.zeros(1) for i in range(100)}, wait=True)
    with pytest.raises(ValueError, match="state.'4'. is only in the file; and 95 more"):
        manager.restore({})


def test_a_value_in_a_tuple_cannot_change(manager):
    manager.save(1, {"pair": (torch.zeros(2), 17)}, wait=True)
    with pytest.raises(ValueError, match=r"state\['pair'\]\[1\] is 16, .* tuple"):
        manager.restore({"pair": (torch.ones(2), 16)})
    target = {"pair": (torch.ones(2), 17)}
    manager.restore(target)
    assert target["pair"][0].eq(0).all()


def test_objects_and_sparse_tensors_are_refused(manager):
    manager.save(1, {"a": ValueError("an object")}, wait=True)
    with pytest.raises(Exception, match="[Ww]eights"):
        manager.restore({"a": None})
    manager.save(2, {"a": torch.eye(3).to_sparse()}, wait=True)
    with pytest.raises(NotImplementedError, match="torch.sparse_coo"):
        manager.restore({"a": None})


def test_a_file_that_ends_early_is_an_error(manager, local):
    """The part of the zip file that torch needs first is at the end; so the bytes before are cut out."""
    manager.save(1, {"a": torch.zeros(100)}, wait=True)
    path = local / "step-00000001/state.pt"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(RuntimeError):
        manager.restore({"a": torch.ones(100)})
    with pytest.raises(FileNotFoundError):
        manager.restore({"a": torch.ones(100)}, 2)


@pytest.mark.parametrize("direct", ["auto", "never"])
def test_a_damaged_block_of_a_mount_is_an_error_that_names_the_file(factory, weightfs_only, direct):
    mount = factory.mount(factory.store("128M"))
    with weightfs.aio_handle(direct=direct) as handle, checkpoint.Manager(mount.path / "run", handle=handle) as manager:
        manager.save(1, {"a": torch.zeros(2 * MIB)}, wait=True)
        path = mount.path / "run/step-00000001/state.pt"
        flip_on_device(mount.store, path, 5 * MIB)
        for read in (manager.load, lambda: manager.restore({"a": torch.ones(2 * MIB)})):
            with pytest.raises(OSError) as caught:
                read()
            assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))


def test_large_tensors_are_read_by_leases(work, weightfs_only):
    with weightfs.aio_handle() as handle, checkpoint.Manager(work, handle=handle) as manager:
        saved = {str(i): torch.randn(2 * MIB) for i in range(3)}
        manager.save(1, saved, wait=True)
        before, target = handle.direct_operations, blank(saved)
        manager.restore(target)
        assert handle.direct_operations - before == 3 and same(target, saved)


def test_restore_needs_no_second_copy_of_the_model(work, child):
    saved = {str(i): torch.ones(4 * MIB) for i in range(12)}
    with checkpoint.Manager(work) as manager:
        manager.save(1, saved, wait=True)
    shown = child(f"""
import resource, torch
from weightfs import checkpoint
target = {{str(i): torch.zeros(4 << 20) for i in range(12)}}
with checkpoint.Manager({str(work)!r}) as manager:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    manager.restore(target)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
assert all(tensor.eq(1).all() for tensor in target.values())
""")
    assert int(shown) < 100 << 10   # KiB; the model has 192 MiB


@pytest.mark.parametrize("shape", [(4, 5), (400, 500)], ids=["small", "large"])
def test_conjugated_and_negated_tensors_are_restored(manager, shape):
    base = torch.randn(shape, dtype=torch.complex64)
    saved = {"conj": base.conj(), "neg": base.clone().conj().imag, "both": torch._neg_view(base.conj()),
             "columns": base.conj().T, "plain": base}
    assert saved["conj"].is_conj() and saved["neg"].is_neg() and saved["both"].is_conj() and saved["both"].is_neg()
    manager.save(1, saved, wait=True)
    for target in (blank(saved), {name: torch.ones_like(tensor).conj() for name, tensor in saved.items()},
                   dict.fromkeys(saved)):
        manager.restore(target)
        assert all(torch.equal(target[name], saved[name]) for name in saved)


def test_tensors_without_memory_are_refused(manager):
    manager.save(1, {"model": torch.nn.Linear(4, 4).state_dict()}, wait=True)
    with torch.device("meta"):
        empty = torch.nn.Linear(4, 4)
    with pytest.raises(ValueError, match=r"state\['model'\]\['weight'\] is on the meta device: give the module memory"):
        manager.restore({"model": empty.state_dict()})
    empty.to_empty(device="cpu")
    assert manager.restore({"model": empty.state_dict()}) == 1
