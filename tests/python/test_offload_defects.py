# SPDX-License-Identifier: Apache-2.0
"""weightfs.offload after errors and interrupts, and with modules that change their buffers in unusual ways."""

import concurrent.futures
import gc
import itertools
import os
import sys
import threading
import weakref

import pytest
import torch

import weightfs.offload
import weightfs.safetensors
from offload_models import MEMORY, TOKENS, differing, made, offloading, train_step   # noqa: F401
from weightfs.offload._adam import Training
from weightfs.offload import _store
from weightfs.offload._store import Cache
from weightfs.offload._groups import Group, Member

pytestmark = pytest.mark.usefixtures("offloading")
EVERY_TOKEN = torch.ones(1, TOKENS, dtype=torch.int64)


def adam(model):
    return torch.optim.Adam(model.parameters(), foreach=False)


def offloaded(folder, model=made, memory=MEMORY, **options):
    return weightfs.offload.offload(model(), folder / "model", memory, **options)


def failing_once(monkeypatch, owner, name, error):
    """The next call of a method raises."""
    original = getattr(owner, name)

    def called(*arguments):
        monkeypatch.setattr(owner, name, original)
        raise error

    monkeypatch.setattr(owner, name, called)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("memory", [MEMORY, "64M"])
def test_zero_grad_discards_the_gradients_of_a_failed_backward(memory_folder, monkeypatch, error, memory):
    plain, model = made(), offloaded(memory_folder, memory=memory)
    theirs, ours = adam(plain), weightfs.offload.Adam(model)
    loss = model(EVERY_TOKEN).sum()
    failing_once(monkeypatch, Training, "take", error)
    with pytest.raises(type(error)):
        loss.backward()
    for number in range(2):
        assert train_step(plain, theirs, number) == train_step(model, ours, number)
    assert differing(model, plain) == []


def test_deleting_the_gradients_of_the_parameters_discards_those_of_a_failed_backward(memory_folder, monkeypatch):
    plain, model = made(), offloaded(memory_folder)
    theirs, ours = adam(plain), weightfs.offload.Adam(model)
    loss = model(EVERY_TOKEN).sum()
    failing_once(monkeypatch, Training, "take", OSError(28, "No space left on device"))
    with pytest.raises(OSError):
        loss.backward()
    model.zero_grad()
    monkeypatch.setattr(ours, "zero_grad", lambda: None)
    assert train_step(plain, theirs, 0) == train_step(model, ours, 0)
    assert differing(model, plain) == []


def test_a_backward_ends_in_a_thread_that_has_the_module_alone(memory_folder, monkeypatch):
    model = offloaded(memory_folder)
    weightfs.offload.Adam(model)
    take, held = Training.take, []

    def noted(training, cache):
        with concurrent.futures.ThreadPoolExecutor(1) as other:   # cannot take the module
            held.append(not other.submit(model._weightfs_offload._thread.acquire, blocking=False).result())
        take(training, cache)

    monkeypatch.setattr(Training, "take", noted)
    model(EVERY_TOKEN).sum().backward()
    assert held and all(held)


def test_another_thread_is_refused_while_a_backward_uses_weights(memory_folder):
    class Hooked(torch.nn.Linear):
        def forward(self, x):
            if torch.is_grad_enabled():
                x = x * 1
                x.register_hook(lambda _: caught.append(other.submit(use).exception()))
            return super().forward(x)

    def use():
        with torch.no_grad():
            model(x)

    caught, x = [], torch.ones(1, 300, requires_grad=True)
    model = weightfs.offload.offload(torch.nn.Sequential(Hooked(300, 300), Hooked(300, 300)), memory_folder / "model",
                                     "2M")
    weightfs.offload.Adam(model)
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        model(x).sum().backward()
        assert len(caught) == 2 and all("another thread uses the offloaded module" in str(error) for error in caught)
        other.submit(use).result()

        x.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(x).sum().backward()
        other.submit(use).result()   # a backward that has failed keeps nobody out


def test_attributes_and_integer_parameters_are_kept(memory_folder):
    class Quantized(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(300, 300)
            self.codes = torch.nn.Parameter(torch.arange(300, dtype=torch.int8), requires_grad=False)
            self.linear.bias._no_weight_decay = True

        def forward(self, x):
            seen.append(self.linear.bias._no_weight_decay)
            self.linear.weight.used = True
            return self.linear(x) * self.codes

    def model():
        torch.manual_seed(1)
        return torch.nn.Sequential(*[Quantized() for _ in range(4)])

    seen, plain, ours = [], model(), offloaded(memory_folder, model, "2M")
    assert ours[0].linear.bias._no_weight_decay and isinstance(ours[0].codes, torch.nn.Parameter)
    optimizers, x = (adam(plain), weightfs.offload.Adam(ours)), torch.randn(8, 300)
    for one, optimizer in zip((plain, ours), optimizers):
        one(x).square().mean().backward()
        optimizer.step()
    assert differing(ours, plain) == [] and all(seen)
    assert ours[0].linear.weight.used
    weightfs.offload.restore(ours)
    assert vars(ours[0].linear.weight) == {"used": True} and vars(ours[0].linear.bias) == {"_no_weight_decay": True}


def test_a_failed_step_is_not_returned_by_tensors_or_restore(memory_folder, monkeypatch):
    model = offloaded(memory_folder)
    optimizer = weightfs.offload.Adam(model)
    model(EVERY_TOKEN).sum().backward()
    failing_once(monkeypatch, Cache, "flush", OSError(5, "Input/output error"))
    with pytest.raises(OSError):
        optimizer.step()
    for use in (lambda: list(weightfs.offload.tensors(model)), lambda: weightfs.offload.restore(model)):
        with pytest.raises(RuntimeError, match="the last step failed and was not applied"):
            use()
    weightfs.offload.close(model)
    assert differing(offloaded(memory_folder, resume=True), made()) == []


class Averaging(torch.nn.Module):
    """Changes buffers so that no version counts it, and, if `replacing`, replaces another one."""

    def __init__(self, replacing):
        super().__init__()
        self.replacing = replacing
        self.linear = torch.nn.Linear(300, 300)
        for name, value in {"ema": torch.zeros(300), "scale": torch.ones(()), "mean": torch.zeros(300),
                            "var": torch.ones(300), "flag": torch.zeros(3, dtype=torch.bool)}.items():
            self.register_buffer(name, value)

    def forward(self, x):
        if self.replacing:
            self.ema = self.ema * 0.9 + x.detach().mean(0)
        self.scale.data.mul_(1.5)
        self.flag.data.logical_not_()
        x = torch.nn.functional.batch_norm(x, self.mean, self.var, training=True)
        return self.linear(x)


@pytest.fixture(params=[True, False], ids=["replacing", "changing"])
def averaging(request):
    def model():
        torch.manual_seed(1)
        return torch.nn.Sequential(*[Averaging(request.param) for _ in range(4)])

    return model


@pytest.mark.parametrize("memory", ["2M", "16M"])
def test_changed_buffers_are_those_of_training_in_memory(memory_folder, averaging, memory):
    plain, model = averaging(), offloaded(memory_folder, averaging, memory)
    theirs, ours = adam(plain), weightfs.offload.Adam(model)
    for number in range(3):
        torch.manual_seed(number)
        x = torch.randn(8, 300)
        for one, optimizer in ((plain, theirs), (model, ours)):
            optimizer.zero_grad()
            one(x).square().sum().backward()
            optimizer.step()
    assert differing(model, plain) == []
    weightfs.offload.close(model)
    assert differing(offloaded(memory_folder, averaging, memory, resume=True), plain) == []


def test_buffers_that_a_forward_without_gradients_changes_are_kept(memory_folder, averaging):
    plain, model, x = averaging(), offloaded(memory_folder, averaging, "1M"), torch.randn(8, 300)
    with torch.inference_mode():
        for _ in range(2):
            assert torch.equal(plain(x), model(x))
    weightfs.offload.close(model)
    assert differing(offloaded(memory_folder, averaging, "1M", resume=True), plain) == []


@pytest.mark.parametrize("owner, name", [(Group, "bind"), (Group, "_remember"), (Member, "bind"), (Cache, "view")])
def test_a_module_works_on_after_an_interrupt_while_its_tensors_are_bound(memory_folder, monkeypatch, owner, name):
    plain, model = made().eval(), offloaded(memory_folder, memory="3M").eval()
    with torch.no_grad():
        model(EVERY_TOKEN)
        failing_once(monkeypatch, owner, name, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            model(EVERY_TOKEN)
        store = model._weightfs_offload
        assert all(group.uses == 0 and group.live is None for group in store.groups[1:])
        assert all(member.bound is member.placeholder for group in store.groups[1:] for member in group.members)
        for _ in range(2):
            assert torch.equal(model(EVERY_TOKEN), plain(EVERY_TOKEN))
    weightfs.offload.restore(model)


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), KeyboardInterrupt()], ids=repr)
def test_a_read_that_does_not_start_is_repeated(memory_folder, monkeypatch, error, queued):
    plain, model = made().eval(), offloaded(memory_folder, memory="3M").eval()
    threads = model._weightfs_offload.cache._readers
    submit = threads.submit
    with torch.no_grad():
        for failing in range(1, 4):
            numbers = itertools.count(1)

            def submitted(*arguments):
                fails = next(numbers) == failing
                if queued or not fails:
                    submit(*arguments)
                if fails:
                    raise error

            with monkeypatch.context() as patch, pytest.raises(type(error)):
                patch.setattr(threads, "submit", submitted)
                model(EVERY_TOKEN)
            for _ in range(2):
                assert torch.equal(model(EVERY_TOKEN), plain(EVERY_TOKEN))
    assert differing(model, plain) == []


def test_a_write_that_does_not_start_is_repeated(memory_folder, monkeypatch):
    model = offloaded(memory_folder, memory="3M")
    cache, entry = model._weightfs_offload.cache, model._weightfs_offload.groups[1].entry
    with cache.acquired([entry]):
        expected = cache.view(entry).random_().clone()
        cache.changed(entry)
        failing_once(monkeypatch, cache._writers, "submit", RuntimeError("can't start new thread"))
        with pytest.raises(RuntimeError, match="new thread"):
            cache.start_write(entry)
        assert entry.dirty and entry.generation == entry.committed
        cache.flush([entry])
        assert not entry.dirty and entry.generation != entry.committed
    cache._drop(entry)
    with cache.acquired([entry]):
        assert torch.equal(cache.view(entry), expected)


def test_properties_of_placeholders_give_no_numbers(memory_folder):
    model = offloaded(memory_folder)
    weight = model.layers[0].linear1.weight
    for name in ("data", "T", "mT", "H", "mH", "real", "imag"):
        with pytest.raises(RuntimeError, match="layers.0.linear1.weight is offloaded"):
            getattr(weight, name)
    assert weight.is_leaf and weight.grad is None and weight.ndim == 2 and weight.nbytes == 512 * 128 * 4
    assert not weight.is_cuda and weight.layout == torch.strided and weight.grad_fn is None
    weight.requires_grad = False
    assert not weight.requires_grad


def test_replaced_resident_buffers_are_given_back(memory_folder):
    def model():
        torch.manual_seed(1)
        layers = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(4)])
        layers.register_buffer("count", torch.zeros(3))
        return layers

    ours = offloaded(memory_folder, model, "2M")
    ours.count = torch.tensor([1.0, 2.0, 3.0])
    assert dict(weightfs.offload.tensors(ours))["count"].tolist() == [1, 2, 3]
    ours.count = ours.count + 1
    weightfs.offload.restore(ours)
    assert ours.count.tolist() == [2, 3, 4]


def test_an_interrupted_close_ends_the_writes_and_frees_the_directory(memory_folder, monkeypatch):
    def interrupted(*arguments, **options):
        if not interrupts:
            interrupts.append(True)
            raise KeyboardInterrupt
        go.set()
        shutdown(*arguments, **options)

    def write():
        begun.set()
        ended.append(go.wait(100))

    shutdown, interrupts, ended = concurrent.futures.ThreadPoolExecutor.shutdown, [], []
    begun, go = threading.Event(), threading.Event()
    model = offloaded(memory_folder)
    store = model._weightfs_offload
    store.cache._writers.submit(write)
    begun.wait()
    free = store.directory.close
    monkeypatch.setattr(store.directory, "close", lambda: (ended.append("free"), free()))
    monkeypatch.setattr(concurrent.futures.ThreadPoolExecutor, "shutdown", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            weightfs.offload.close(model)
    finally:
        go.set()
    assert interrupts and ended == [True, "free"]
    assert not hasattr(model, "_weightfs_offload") and not hasattr(model, "offload_stats")
    again = offloaded(memory_folder, resume=True)
    assert differing(again, made()) == []
    weightfs.offload.close(again)


def test_a_restore_that_cannot_commit_gives_the_tensors_back(memory_folder, monkeypatch):
    model = offloaded(memory_folder)
    failing_once(monkeypatch, Cache, "flush", OSError(28, "No space left on device"))
    with pytest.raises(OSError):
        weightfs.offload.restore(model)
    assert all(torch.equal(value, made().state_dict()[name]) for name, value in model.state_dict().items())


def test_a_forked_child_cannot_use_the_module(memory_folder):
    model = offloaded(memory_folder)
    optimizer = weightfs.offload.Adam(model)
    uses = (lambda: model(EVERY_TOKEN), lambda: list(weightfs.offload.tensors(model)), optimizer.step,
            optimizer.zero_grad, lambda: weightfs.offload.restore(model), lambda: weightfs.offload.close(model))
    child = os.fork()
    if child == 0:
        refused = 0
        for use in uses:
            try:
                use()
            except PermissionError as error:
                refused += "this offloaded module belongs to the process that forked this one" in str(error)
            except BaseException:
                pass
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(uses)
    assert differing(model, made()) == []


def test_parameters_that_are_unfrozen_after_the_optimizer_was_created_are_refused(memory_folder):
    model = offloaded(memory_folder)
    model.layers[1].linear1.weight.requires_grad_(False)
    model.positions.requires_grad_(False)   # stays in memory
    optimizer = weightfs.offload.Adam(model)
    model(EVERY_TOKEN).sum().backward()
    for parameter, name in ((model.layers[1].linear1.weight, "layers.1.linear1.weight"),
                            (model.positions, "positions")):
        parameter.requires_grad = True
        for use in (lambda: model(EVERY_TOKEN), optimizer.step):
            with pytest.raises(RuntimeError, match=f"{name} requires a gradient, and did not when the optimizer"):
                use()
        parameter.requires_grad = False
    optimizer.step()
    assert optimizer.steps == 1
    model.positions.requires_grad_(True)
    weightfs.offload.restore(model)
    assert model.positions.requires_grad and not model.layers[1].linear1.weight.requires_grad


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("no thread"), OSError(5, "I/O error")], ids=repr)
def test_a_transfer_that_fails_with_any_error_is_repeated(memory_folder, error):
    model = offloaded(memory_folder, memory="3M")
    cache, entry = model._weightfs_offload.cache, model._weightfs_offload.groups[1].entry
    for reading in (True, False):
        failed = concurrent.futures.Future()
        failed.set_exception(error)
        with cache.acquired([entry]):
            expected = cache.view(entry).clone()
            entry.transfer, entry.reading = failed, reading
            with pytest.raises(type(error)):
                cache.flush([entry])
            assert (entry.begin is None) == reading and entry.dirty != reading
        with cache.acquired([entry]):
            assert torch.equal(cache.view(entry), expected)


@pytest.mark.parametrize("end", [weightfs.offload.close, weightfs.offload.restore])
def test_the_buffer_is_freed_although_the_optimizer_exists(memory_folder, end):
    model = offloaded(memory_folder)
    optimizer = weightfs.offload.Adam(model)
    train_step(model, optimizer, 0)
    buffer = weakref.ref(model._weightfs_offload.cache._buffer)
    end(model)
    gc.collect()
    assert buffer() is None
    with pytest.raises(RuntimeError, match="not offloaded any more"):
        optimizer.step()


def test_a_source_without_any_tensor_of_the_module_is_refused(memory_folder):
    source = memory_folder / "file"
    weightfs.safetensors.save_file({"model.weight": torch.zeros(8, 8), "model.bias": torch.zeros(8)}, source)
    with pytest.raises(ValueError, match="source= has no tensor of the module: it has .'model.bias', 'model.weight'"):
        weightfs.offload.offload(torch.nn.Linear(8, 8), memory_folder / "model", "1M", source=source)
    weightfs.safetensors.save_file({"bias": torch.zeros(8)}, source)
    model = weightfs.offload.offload(torch.nn.Linear(8, 8), memory_folder / "model", "1M", source=source)
    assert not dict(weightfs.offload.tensors(model))["bias"].any()


class Bytes(Cache):
    """A cache of two bytes, whose files are in memory."""

    def __init__(self, files):
        super().__init__(2, torch.device("cpu"), durable=False)
        self.files, self._buffer = files, torch.zeros(2, dtype=torch.uint8)

    def read(self, view, path, offset=0):
        view.fill_(self.files[path])

    def _write(self, view, path, durable):
        self.files[path] = int(view[0])


def interrupted_at(count, codes, function):
    """Raises KeyboardInterrupt in `function` before the given number of opcodes of these code objects. Returns False if
    they have fewer."""
    left = count

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code not in codes:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return left == 0


@pytest.mark.parametrize("function", [_store._start, Cache._place, Cache.start_write, Cache._settle, Cache._forget],
                         ids=lambda function: function.__name__)
def test_an_interrupt_anywhere_leaves_each_entry_its_bytes(function):
    """Whatever instruction a program is at when it gets Ctrl-C: an entry has its old bytes, or the new ones."""
    for count in itertools.count(1):
        cache = Bytes({})
        entries = [_store.Entry(name, 1) for name in "abc"]
        written = {}

        def put(values):
            for entry, value in zip(entries, values):
                with cache.acquired([entry]):
                    cache.changed(entry)
                    cache.view(entry).fill_(value)
                    written[entry.path] = value

        put((1, 2, 3))
        cache.flush(entries)
        reached = interrupted_at(count, {function.__code__}, lambda: put((11, 12, 13)))
        for entry in entries * 3:
            entry.pins = 0
            with cache.acquired([entry]):
                assert int(cache.view(entry)[0]) == written[entry.path], (count, entry.path)
        cache.close()
        if not reached:
            break


def test_an_interrupt_while_entries_are_acquired_leaves_no_pin(memory_folder):
    model = offloaded(memory_folder, memory="3M")
    cache, entry = model._weightfs_offload.cache, model._weightfs_offload.groups[1].entry

    class Interrupted(list):
        def __iter__(self):
            yield from super().__iter__()
            raise KeyboardInterrupt   # at the end of the loop

    with pytest.raises(KeyboardInterrupt), cache.acquired(Interrupted([entry])):
        pass
    assert entry.pins == 0
