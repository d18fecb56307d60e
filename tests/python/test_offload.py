# SPDX-License-Identifier: Apache-2.0
"""weightfs.offload: modules whose tensors are in files compute what they compute in memory."""

import copy
import gc

import pytest
import torch

import weightfs.offload
import weightfs.safetensors
from offload_models import MEMORY, TOKENS, Transformer, generate, made, offloading   # noqa: F401
from weightfs._core.handle import the_handle
from weightfs.offload._store import Cache

pytestmark = pytest.mark.usefixtures("offloading")


def tokens():
    return torch.arange(TOKENS)[None]


def test_a_model_larger_than_the_buffer_generates_the_same_tokens(folder):
    model = made().eval()
    expected = generate(model)
    size = sum(parameter.nbytes for parameter in model.parameters())
    model = weightfs.offload.offload(model, folder / "model", "3M")
    assert generate(model) == expected
    stats = model.offload_stats
    assert stats.bytes_read > size > 3 << 20 >= stats.peak_bytes
    assert stats.waited_s > 0 and 0 < stats.share_waited <= 1
    with torch.inference_mode():
        assert torch.equal(model(tokens()), made().eval()(tokens()))


def test_the_bound_holds_at_every_moment_and_no_two_entries_overlap(memory_folder, monkeypatch):
    place, seen = Cache._place, []

    def checked(cache, *arguments):
        result = place(cache, *arguments)
        held = [(entry.begin, entry.end) for entry in cache._held]
        assert all(end <= begin for (_, end), (begin, _) in zip(held, held[1:]))
        assert held[-1][1] <= cache.memory == 9 << 20 == cache._buffer.nbytes
        seen.append(sum(end - begin for begin, end in held))
        return result

    monkeypatch.setattr(Cache, "_place", checked)
    model = weightfs.offload.offload(made(), memory_folder / "model", MEMORY)
    optimizer = weightfs.offload.Adam(model)
    for _ in range(3):
        model(tokens()).sum().backward()
        optimizer.step()
    assert max(seen) == model.offload_stats.peak_bytes <= 9 << 20


def test_the_next_blocks_are_read_ahead_once_the_order_is_known(memory_folder, monkeypatch):
    model = weightfs.offload.offload(made(layers=8).eval(), memory_folder / "model", "4M")
    generate(model, 2)
    place, ahead = Cache._place, []

    def noted(cache, entry, upcoming, position):
        done = place(cache, entry, upcoming, position)
        ahead.append(position is not None and done)
        return done

    monkeypatch.setattr(Cache, "_place", noted)
    generate(model, 1)
    assert sum(ahead) >= 6


def test_a_model_that_fits_is_read_once(memory_folder):
    model = made().eval()
    size = sum(parameter.nbytes for parameter in model.parameters())
    model = weightfs.offload.offload(model, memory_folder / "model", "64M")
    generate(model)
    assert model.offload_stats.bytes_read == 0   # what was written is still in memory
    weightfs.offload.close(model)
    model = weightfs.offload.offload(made().eval(), memory_folder / "model", "64M", resume=True)
    generate(model)
    assert size <= model.offload_stats.bytes_read <= 1.1 * size   # the tied weight once


def test_a_meta_module_is_filled_from_safetensors_files(folder):
    model = made(tied=False).eval()
    expected, state = generate(model), model.state_dict()
    names = sorted(state)
    (folder / "files").mkdir()
    for number, part in enumerate((names[:7], names[7:])):
        weightfs.safetensors.save_file({name: state[name] for name in part},
                                       folder / "files" / f"{number}.safetensors")
    with torch.device("meta"):
        empty = Transformer(tied=False).eval()
    model = weightfs.offload.offload(empty, folder / "model", "4M", source=folder / "files")
    assert generate(model) == expected
    weightfs.offload.close(model)
    with torch.device("meta"):
        empty = Transformer(tied=False).eval()
    assert generate(weightfs.offload.offload(empty, folder / "model", "4M", resume=True)) == expected


def test_a_source_in_another_type_is_converted(memory_folder):
    state = {"weight": torch.randn(8, 8).bfloat16(), "bias": torch.randn(8)}
    weightfs.safetensors.save_file(state, memory_folder / "file")
    with torch.device("meta"):
        empty = torch.nn.Linear(8, 8)
    model = weightfs.offload.offload(empty, memory_folder / "model", "1M", source=memory_folder / "file")
    loaded = dict(weightfs.offload.tensors(model))
    assert loaded["weight"].dtype == torch.float32 and torch.equal(loaded["weight"], state["weight"].float())


def test_tensors_that_have_no_content_are_named(memory_folder):
    with torch.device("meta"):
        empty = Transformer(tied=False)
    weightfs.safetensors.save_file({"words.weight": torch.ones(3, 3)}, memory_folder / "file")
    with pytest.raises(ValueError, match="tensors are on the meta device and not in source=: .'positions'"):
        weightfs.offload.offload(empty, memory_folder / "model", source=memory_folder / "file", memory="8M")
    with pytest.raises(ValueError, match=r"words.weight has the shape \(3, 3\).*\(2500, 128\) in the module"):
        weightfs.offload.offload(made(tied=False), memory_folder / "model", source=memory_folder / "file", memory="8M")


def test_the_blocks_can_be_chosen(memory_folder):
    model, plain = made(dropout=0), made(dropout=0)   # not eval(), whose fast path uses the weights of children directly
    blocks = [*model.layers[:2], "layers.2.linear1", "layers.2.linear2", "layers.3"]
    model = weightfs.offload.offload(model, memory_folder / "model", "8M", blocks=blocks)
    with torch.no_grad():
        assert torch.equal(model(tokens()), plain(tokens()))


def test_lists_within_the_list_of_blocks_are_no_blocks(memory_folder):
    def model():
        torch.manual_seed(1)
        return Nested(torch.nn.ModuleList(torch.nn.ModuleList(torch.nn.Linear(300, 300) for _ in range(2))
                                          for _ in range(3)))

    class Nested(torch.nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            for stage in self.layers:
                for layer in stage:
                    x = layer(x)
            return x

    plain, ours = model(), weightfs.offload.offload(model(), memory_folder / "model", "1M")
    with torch.no_grad():
        assert torch.equal(ours(torch.ones(1, 300)), plain(torch.ones(1, 300)))


@pytest.mark.parametrize("blocks", [["nothing"], [torch.nn.Linear(1, 1)], ["layers", "layers.0"]], ids=str)
def test_impossible_blocks_are_refused(memory_folder, blocks):
    with pytest.raises(ValueError, match="no part of the module|overlaps"):
        weightfs.offload.offload(made(), memory_folder / "model", blocks=blocks, memory="8M")


def test_a_block_that_does_not_fit_is_refused_before_anything_is_written(memory_folder):
    with pytest.raises(MemoryError, match="memory= is 1048576: raise it, or make the blocks smaller"):
        weightfs.offload.offload(made(), memory_folder / "model", "1M")
    assert not (memory_folder / "model").exists()
    model = weightfs.offload.offload(made(), memory_folder / "model", "3M")
    with pytest.raises(MemoryError, match="training block.layers.0 needs 3178496 bytes at once, beside 8192"):
        weightfs.offload.Adam(model)
    generate(model.eval(), 1)


def test_offloaded_tensors_cannot_be_used_by_mistake(memory_folder):
    model = weightfs.offload.offload(made(), memory_folder / "model", "8M")
    weight = model.layers[0].linear1.weight
    assert (weight.shape, weight.dtype, weight.device.type) == ((512, 128), torch.float32, "cpu")
    assert isinstance(weight, torch.nn.Parameter) and "linear1.weight" in repr(weight)
    for use in (lambda: weight + 1, lambda: weight.sum(), model.state_dict, lambda: copy.deepcopy(model)):
        with pytest.raises(RuntimeError, match="is offloaded: only the forward of its block"):
            use()
    with pytest.raises(RuntimeError, match="create one before the forward, or use torch.no_grad"):
        model(tokens())


def test_restore_and_tensors_give_back_what_was_offloaded(memory_folder):
    plain, model = made(), weightfs.offload.offload(made(), memory_folder / "model", "8M")
    given = dict(weightfs.offload.tensors(model))
    assert given.keys() == plain.state_dict().keys()
    weightfs.offload.restore(model)
    assert model.head.weight is model.words.weight and not hasattr(model, "offload_stats")
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in model.state_dict().items())
    assert torch.equal(model.eval()(tokens()), plain.eval()(tokens()))


def test_changed_and_replaced_buffers_are_kept(memory_folder):
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(400)
            self.register_buffer("last", torch.zeros(400))

        def forward(self, x):
            self.last = x[0] * 2
            return self.norm(x)

    def model():
        torch.manual_seed(1)
        return torch.nn.Sequential(*[Counting() for _ in range(40)])

    plain, x = model(), torch.randn(5, 400)
    offloaded = weightfs.offload.offload(model(), memory_folder / "model", "64K")
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(plain(x), offloaded(x))
    weightfs.offload.close(offloaded)
    offloaded = weightfs.offload.offload(model(), memory_folder / "model", "64K", resume=True)
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in weightfs.offload.tensors(offloaded))


def test_recurrent_modules_and_outputs_that_are_weights(memory_folder):
    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(300, 300)

        def forward(self, x):
            return self.lstm(x)[0], self.lstm.weight_ih_l0

    torch.manual_seed(1)
    plain = torch.nn.ModuleList([Both(), Both()])
    model = weightfs.offload.offload(copy.deepcopy(plain), memory_folder / "model", "3M")
    with torch.no_grad():
        x = torch.randn(2, 1, 300)
        results = [model[number](x) for number in (0, 1)]   # the buffer holds one block
        for (ours, weight), block in zip(results, plain):
            assert torch.equal(ours, block(x)[0]) and torch.equal(weight, block.lstm.weight_ih_l0)


class Subclass(torch.Tensor):
    pass


def hooked(model):
    model[1].weight.register_hook(lambda gradient: gradient / 2)
    return model


def with_subclass(model):
    model[1].register_buffer("table", torch.zeros(3).as_subclass(Subclass))
    return model


def with_compiled(model):
    model[1].compile()
    return model


@pytest.mark.parametrize("change, error", [(torch.jit.script, "the module is compiled"), (with_compiled, "1 is compiled"),
                                           (torch.compile, "the module is compiled"),
                                           (hooked, "1.weight has a hook"), (with_subclass, "1.table is a Subclass")])
def test_modules_that_are_not_supported_are_refused(memory_folder, change, error):
    model = change(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)))
    with pytest.raises(ValueError, match=error):
        weightfs.offload.offload(model, memory_folder / "model", "1M")


def test_partly_shared_memory_is_refused(memory_folder):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[1].weight = torch.nn.Parameter(model[0].weight.detach())
    with pytest.raises(ValueError, match="0.weight, 1.weight share memory without being one tensor"):
        weightfs.offload.offload(model, memory_folder / "model", "1M")


@pytest.mark.usefixtures("weightfs_only")
def test_blocks_of_four_mib_take_leases(work):
    model = torch.nn.Sequential(*[torch.nn.Linear(1100, 1100) for _ in range(4)])
    expected = model(torch.ones(1, 1100))
    with the_handle(None) as handle:
        direct = [handle.direct_operations]
        model = weightfs.offload.offload(model, work / "model", "12M")
        direct.append(handle.direct_operations)
        with torch.no_grad():
            for _ in range(3):
                assert torch.equal(model(torch.ones(1, 1100)), expected)
        direct.append(handle.direct_operations)
    assert direct[1] - direct[0] >= 4 and direct[2] - direct[1] > 4


def test_the_directory_is_free_after_the_module_is_gone(memory_folder):
    model = weightfs.offload.offload(made(), memory_folder / "model", "8M")
    with pytest.raises(BlockingIOError, match="another program, or another module"):
        weightfs.offload.offload(made(), memory_folder / "model", "8M", resume=True)
    del model
    gc.collect()
    weightfs.offload.offload(made(), memory_folder / "model", "8M", resume=True)
