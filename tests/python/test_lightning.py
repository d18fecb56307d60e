# SPDX-License-Identifier: Apache-2.0
"""Lightning's plugin for checkpoints, beside its own one."""

import errno
import importlib
import os
import pickle
import warnings

import pytest
import torch

from safetensors_files import same
from tensors import flip_on_device

PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
pytest.importorskip("lightning", reason="needs lightning: scripts/setup installs it")

from weightfs import Handle  # noqa: E402
from weightfs.lightning import CheckpointIO  # noqa: E402

STATE = {"epoch": 3, "state_dict": {"large": torch.randn(1 << 20), "small": torch.arange(5)}}


def equal(one, other):
    return one["epoch"] == other["epoch"] and all(same(tensor, other["state_dict"][name])
                                                  for name, tensor in one["state_dict"].items())


def test_checkpoints_are_those_of_torch(folder):
    plugin, path = CheckpointIO(), folder / "run/version_0/last.ckpt"
    plugin.save_checkpoint(STATE, path)
    assert os.listdir(path.parent) == ["last.ckpt"]
    assert equal(plugin.load_checkpoint(str(path)), STATE) and equal(torch.load(path), STATE)
    assert plugin.load_checkpoint(path, map_location="meta")["state_dict"]["large"].is_meta
    torch.save({"model": torch.nn.Linear(2, 2)}, path)
    with pytest.raises(pickle.UnpicklingError):
        plugin.load_checkpoint(path)
    assert plugin.load_checkpoint(path, weights_only=False)["model"].in_features == 2
    plugin.remove_checkpoint(path)
    assert os.listdir(path.parent) == []
    with pytest.raises(FileNotFoundError):
        plugin.load_checkpoint(path)


def test_storage_options_are_arguments_of_the_save(local, monkeypatch):
    synced, sync, plugin = [], os.fsync, CheckpointIO()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor) or sync(descriptor))
    plugin.save_checkpoint(STATE, local / "file", {"durable": False})
    assert equal(torch.load(local / "file"), STATE) and synced == []
    plugin.save_checkpoint(STATE, local / "file")
    assert equal(torch.load(local / "file"), STATE) and synced
    with pytest.raises(TypeError):
        plugin.save_checkpoint(STATE, local / "file", {"no such option": 1})
    with pytest.raises((AttributeError, pickle.PicklingError)):   # by the version of Python
        plugin.save_checkpoint({"function": lambda: 0}, local / "file")
    assert equal(torch.load(local / "file"), STATE) and os.listdir(local) == ["file"]
    with pytest.raises(OSError, match="direct=\"require\""):
        CheckpointIO(direct="require").save_checkpoint(STATE, local / "missing/file")
    assert os.listdir(local) == ["file"]
    with pytest.raises(ValueError, match="direct"):
        CheckpointIO(direct="maybe")


def test_urls_are_those_of_lightning():
    plugin = CheckpointIO()
    plugin.save_checkpoint(STATE, "memory://run/file")
    assert equal(plugin.load_checkpoint("memory://run/file"), STATE)
    with pytest.raises(TypeError, match="storage_options"):
        plugin.save_checkpoint(STATE, "memory://run/file", {"durable": False})
    plugin.remove_checkpoint("memory://run/file")
    with pytest.raises(FileNotFoundError):
        plugin.load_checkpoint("memory://run/file")


def test_a_file_url_is_a_path(local):
    CheckpointIO().save_checkpoint(STATE, f"file://{local}/a/file")
    assert equal(torch.load(local / "a/file"), STATE)


def test_damage_is_an_error_that_names_the_file(factory, weightfs_only):
    mount = factory.mount(factory.store("128M"))
    path = mount.path / "file"
    CheckpointIO().save_checkpoint(STATE, path)
    flip_on_device(mount.store, path, 2 << 20)
    with pytest.raises(OSError) as caught:
        CheckpointIO().load_checkpoint(path)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))


@pytest.mark.parametrize("background", [False, True], ids=["waits", "background"])
@pytest.mark.parametrize("package", PACKAGES)
def test_a_trainer_saves_and_resumes(work, weightfs_only, package, background):
    pl = importlib.import_module(PACKAGES[package])
    plugins = importlib.import_module(f"{PACKAGES[package]}.plugins.io")

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(64, 64), []

        def training_step(self, batch, number):
            self.seen.append(self.current_epoch)
            return self.layer(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    def fit(epochs, model, ckpt_path=None):
        plugin = CheckpointIO()
        # In the background, Lightning may remove a checkpoint before it is saved.
        saver = pl.callbacks.ModelCheckpoint(dirpath=work / "run", filename="{epoch}", monitor="epoch",
                                             save_top_k=-1 if background else 2, mode="max", save_last=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plugin = plugins.AsyncCheckpointIO(plugin) if background else plugin
            trainer = pl.Trainer(max_epochs=epochs, plugins=[plugin],
                                 callbacks=[saver], accelerator="cpu", logger=False, enable_progress_bar=False,
                                 enable_model_summary=False, default_root_dir=work)
            trainer.fit(model, torch.utils.data.DataLoader(torch.randn(8, 64), batch_size=4), ckpt_path=ckpt_path)
        return trainer

    first, second = Model(), Model()
    trainer = fit(3, first)
    kept = ["epoch=0.ckpt"] if background else []
    assert sorted(os.listdir(work / "run")) == [*kept, "epoch=1.ckpt", "epoch=2.ckpt", "last.ckpt"]
    saved = torch.load(work / "run/last.ckpt", weights_only=False)
    assert same(saved["state_dict"]["layer.weight"], first.layer.weight.detach())
    fit(5, second, work / "run/last.ckpt")
    assert second.seen == [3, 3, 4, 4]
    if not background:
        trainer.save_checkpoint(work / "by hand", storage_options={"crc32": False})
        assert same(torch.load(work / "by hand", weights_only=False)["state_dict"]["layer.bias"],
                    first.layer.bias.detach())


@pytest.mark.parametrize("package", ["lightning.fabric", "lightning_fabric"])
def test_fabric_saves_and_resumes(work, weightfs_only, package):
    Fabric = importlib.import_module(package).Fabric

    def made(handle):
        fabric = Fabric(accelerator="cpu", devices=1, plugins=[CheckpointIO(handle=handle)])
        fabric.launch()
        layer = torch.nn.Linear(512, 1024)
        model, optimizer = fabric.setup(layer, torch.optim.Adam(layer.parameters()))
        return fabric, {"model": model, "optimizer": optimizer, "step": 0}

    def train(fabric, state):
        state["optimizer"].zero_grad()
        fabric.backward(state["model"](torch.ones(4, 512)).square().mean())
        state["optimizer"].step()
        state["step"] += 1

    with Handle() as handle:
        first, state = made(handle)
        train(first, state)
        first.save(work / "state", {**state, "other": torch.arange(5)})
        saved = handle.direct_operations
        train(first, state)
        second, resumed = made(handle)
        rest = second.load(work / "state", resumed)
        assert 0 < saved < handle.direct_operations
        train(second, resumed)
    assert same(rest["other"], torch.arange(5)) and resumed["step"] == state["step"] == 2
    found, expected = resumed["model"].state_dict(), state["model"].state_dict()
    assert all(same(found[name], expected[name]) for name in expected)   # Adam's states, too
