# SPDX-License-Identifier: Apache-2.0
"""What weightfs.torch.load unpickles by default: only weights, with every version of torch."""

import pickle

import pytest
import torch

import weightfs.torch

FORCE, FORCE_NO = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


class Trap:
    """Unpickling it runs code."""

    sprung = 0

    def __reduce__(self):
        return (spring, ())


def spring():
    Trap.sprung += 1


@pytest.fixture(params=["2.5.1+cpu", "2.1.0", "this one"])
def version(request, monkeypatch):
    """Simulates the default of a torch version: until 2.5 weights_only defaulted to False."""
    for name in (FORCE, FORCE_NO):
        monkeypatch.delenv(name, raising=False)
    if request.param == "this one":
        if torch.__version__ < (2, 6):
            pytest.skip("this torch is older than the default")
        return request.param
    really = torch.load

    def older_load(f, map_location=None, pickle_module=None, *, weights_only=None, mmap=None, **options):
        return really(f, map_location, pickle_module, weights_only=bool(weights_only), mmap=mmap, **options)

    monkeypatch.setattr(torch, "load", older_load)
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(request.param))
    return request.param


@pytest.fixture
def trapped(local):
    torch.save({"weights": torch.ones(3), "trap": Trap()}, local / "trapped")
    Trap.sprung = 0
    return local / "trapped"


def loads(path):
    """Loads by path, mapped, and from a stream."""
    def from_stream(**options):
        with open(path, "rb") as stream:
            return weightfs.torch.load(stream, **options)
    return (lambda **options: weightfs.torch.load(path, **options),
            lambda **options: weightfs.torch.load(path, mmap=True, **options), from_stream)


def test_by_default_nothing_but_weights_is_unpickled(trapped, version):
    for load in loads(trapped):
        with pytest.raises(pickle.UnpicklingError):
            load()
        with pytest.raises(pickle.UnpicklingError):
            load(weights_only=None)
    assert Trap.sprung == 0


def test_the_caller_may_override_the_default(trapped, version):
    for count, load in enumerate(loads(trapped), 1):
        assert torch.equal(load(weights_only=False)["weights"], torch.ones(3))
        assert Trap.sprung == count
        with pytest.raises(pickle.UnpicklingError):
            load(weights_only=True)
    assert torch.equal(weightfs.torch.load(trapped, None, pickle)["weights"], torch.ones(3))
    assert torch.equal(weightfs.torch.load(trapped, pickle_module=pickle)["weights"], torch.ones(3))


@pytest.mark.filterwarnings("ignore:Environment variable")
def test_the_environment_may_override_the_default_as_in_torch(trapped, version, monkeypatch):
    monkeypatch.setenv(FORCE_NO, "1")
    for load in loads(trapped):
        assert torch.equal(load()["weights"], torch.ones(3))
        with pytest.raises(pickle.UnpicklingError):
            load(weights_only=True)
    monkeypatch.delenv(FORCE_NO)
    monkeypatch.setenv(FORCE, "1")
    for load in loads(trapped):
        with pytest.raises(pickle.UnpicklingError):
            load()


def test_weights_are_loaded_by_every_version(local, version):
    weightfs.torch.save({"a": torch.arange(10)}, local / "file")
    for load in loads(local / "file"):
        assert torch.equal(load()["a"], torch.arange(10))
