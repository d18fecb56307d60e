# SPDX-License-Identifier: Apache-2.0
"""Tensors that share memory: weightfs.safetensors rejects and accepts the same ones as safetensors.torch."""

import json
import re

import numpy
import pytest
import safetensors.torch
import torch

import weightfs.safetensors


def verdict_of(save, tensors, path):
    """The text of the error, with the names of each set sorted; None if the save succeeds."""
    try:
        save(tensors, path)
    except RuntimeError as error:
        return re.sub(r"\{('[^{}]*')\}", lambda names: str(sorted(names[1].split(", "))), str(error))
    return None


def views(shape=(8, 8), dtype=torch.float32):
    return torch.arange(shape[0] * shape[1]).to(dtype).reshape(shape)


def numpy_views():
    array = numpy.arange(100, dtype=numpy.float32)
    return torch.from_numpy(array), torch.from_numpy(array), torch.from_numpy(array[50:])


def cases():
    x, weight = views(), torch.nn.Linear(4, 4).weight
    tied = torch.nn.ModuleDict({"in": torch.nn.Linear(4, 4), "out": torch.nn.Linear(4, 4)})
    tied["out"].weight = tied["in"].weight
    first, same, later = numpy_views()
    return {
        "nothing shared": {"a": torch.ones(3), "b": torch.ones(3)},
        "no tensors": {},
        "one tensor": {"a": x},
        "one view of more": {"a": x[2:4]},
        "the same tensor twice": {"a": x, "b": x},
        "tied weights": tied.state_dict(),
        "a parameter and its data": {"a": weight, "b": weight.detach()},
        "halves of one storage": {"a": x[:4], "b": x[4:]},
        "overlapping slices": {"a": x[:5], "b": x[4:]},
        "a whole and its part": {"whole": x, "part": x[3]},
        "three parts and the whole": {"a": x[:2], "b": x[2:5], "c": x[5:], "whole": x},
        "two pairs": {"a": x, "b": x, "c": weight, "d": weight.view(-1)},
        "pairs in one storage": {"a": x[:2], "b": x[1:3], "c": x[5:7], "d": x[6:]},
        "a long one, and two short ones in it": {"a": x, "b": x[1:2], "c": x[4:5]},
        "another type of the same bytes": {"a": x, "b": x.view(torch.int32)},
        "an empty part": {"a": x, "b": x[3:3]},
        "empty parts": {"a": x[3:3], "b": x[3:3]},
        "empty tensors": {"a": torch.empty(0), "b": torch.empty(0, 3)},
        "a scalar of it": {"a": x, "b": x[7, 7]},
        "scalars": {"a": x[0, 0], "b": x[0, 1], "c": torch.tensor(1.0)},
        "numpy's memory twice": {"a": first, "b": same},
        "numpy's memory from the middle on": {"a": first, "b": later},
        "a reshape": {"a": x, "b": x.reshape(-1)},
        "a clone": {"a": x, "b": x.clone()},
    }


@pytest.mark.parametrize("case", cases())
def test_the_verdict_and_its_text_are_those_of_safetensors(local, case):
    tensors = cases()[case]
    ours = verdict_of(weightfs.safetensors.save_file, tensors, local / "ours")
    theirs = verdict_of(safetensors.torch.save_file, tensors, local / "theirs")
    assert ours == theirs
    if theirs is None:
        assert (local / "ours").read_bytes() == (local / "theirs").read_bytes()
    else:
        assert "Some tensors share memory" in theirs
        assert list(local.iterdir()) == []


def test_views_that_are_not_contiguous_are_saved_unless_they_interleave(local):
    x = views()
    weightfs.safetensors.save_file({"a": x.t(), "b": x.clone()[:, :3]}, local / "file")
    loaded = safetensors.torch.load_file(local / "file")
    assert torch.equal(loaded["a"], x.t()) and torch.equal(loaded["b"], x[:, :3])
    for tensors in ({"a": x, "b": x.t()}, {"a": x[:, :4], "b": x[:, 4:]}):
        with pytest.raises(RuntimeError, match="share memory"):
            weightfs.safetensors.save_file(tensors, local / "refused")
        with pytest.raises((RuntimeError, ValueError)):
            safetensors.torch.save_file(tensors, local / "refused")
    assert not (local / "refused").exists()


def test_tensors_without_memory_are_refused_for_that_reason(local):
    for tensors, reason in (({"a": torch.empty(3, device="meta"), "b": torch.empty(3, device="meta")}, "on meta"),
                            ({"a": torch.ones(3, 3).to_sparse()}, "layout")):
        with pytest.raises(ValueError, match=reason):
            weightfs.safetensors.save_file(tensors, local / "file")
    assert list(local.iterdir()) == []


def parts_of(path):
    """(header, data). Parsed, because safetensors writes metadata in any order."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


class Tied(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(10, 6)
        self.middle = torch.nn.Linear(6, 6)
        self.head = torch.nn.Linear(6, 10, bias=False)
        self.head.weight = self.embedding.weight


def test_a_model_with_tied_weights_is_saved_once_and_loaded_by_either_library(folder):
    model = Tied(1)
    with pytest.raises(RuntimeError, match="share memory"):
        weightfs.safetensors.save_file(model.state_dict(), folder / "model")
    weightfs.safetensors.save_model(model, folder / "ours", {"by": "us"})
    safetensors.torch.save_model(model, str(folder / "theirs"), {"by": "us"})
    assert parts_of(folder / "ours") == parts_of(folder / "theirs")
    for load in (weightfs.safetensors.load_model, safetensors.torch.load_model):
        other = Tied(2)
        assert load(other, folder / "ours") == (set(), [])
        assert other.head.weight is other.embedding.weight
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_file_of_another_model_is_an_error_unless_it_is_not_strict(local):
    weightfs.safetensors.save_model(Tied(1), local / "model")
    for load in (weightfs.safetensors.load_model, safetensors.torch.load_model):
        other = Tied(2)
        other.extra = torch.nn.Linear(2, 2)
        del other.middle
        with pytest.raises(RuntimeError) as refused:
            load(other, local / "model")
        assert str(refused.value) == (
            'Error(s) in loading state_dict for Tied:\n    Missing key(s) in state_dict: "extra.bias", "extra.weight"\n'
            '    Unexpected key(s) in state_dict: "middle.bias", "middle.weight"')
        missing, unexpected = load(other, local / "model", strict=False)
        assert missing == {"extra.bias", "extra.weight"} and sorted(unexpected) == ["middle.bias", "middle.weight"]


def test_a_model_of_which_no_tensor_is_whole_is_refused_by_both(local):
    model, memory = torch.nn.Module(), torch.arange(10.0)
    model.register_buffer("a", memory[:6])
    model.register_buffer("b", memory[4:])
    for save in (weightfs.safetensors.save_model, safetensors.torch.save_model):
        with pytest.raises(RuntimeError):
            save(model, str(local / "model"))
    assert list(local.iterdir()) == []
