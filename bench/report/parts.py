# SPDX-License-Identifier: Apache-2.0
"""The measured parts: the command of each, and its arguments for each size of the report."""

import dataclasses
import sys
from pathlib import Path

POOL = {"small": "4G", "full": "24G"}   # size of the temporary store


@dataclasses.dataclass(frozen=True)
class Places:
    """What the placeholders of a command stand for."""

    program: str   # weightfs
    mount: str     # a directory on the mounted store
    host: str      # a directory on the filesystem beside the store
    json: str      # the file of a program that cannot print its JSON alone
    python: str = sys.executable
    examples: Path = Path(__file__).resolve().parents[2] / "examples"


@dataclasses.dataclass(frozen=True)
class Part:
    """One program, which prints JSON or writes it to {json}."""

    name: str
    title: str
    about: str
    packages: tuple    # Python packages that it imports
    command: str
    sizes: dict        # size of the report -> further arguments
    minutes: dict      # size of the report -> expected duration on 2 idle processors

    def words(self, places, size):
        return [word.format(**dataclasses.asdict(places)) for word in f"{self.command} {self.sizes[size]}".split()]


PARTS = (
    Part("bench", "The filesystem",
         "Unmodified programs on a mount, beside the raw disk (libaio with O_DIRECT) and the host's filesystem.",
         (), "{program} bench {host} --json {json} --python {python}",
         {"small": "--quick", "full": ""}, {"small": 1, "full": 12}),
    Part("hdf5", "HDF5",
         "One dataset, written and read in requests of one size by HDF5's own drivers and by the driver weightfs, on "
         "the mount. The handle is weightfs.aio_handle without HDF5. A write ends when the file is durable; a read "
         "begins with a cold page cache.",
         ("weightfs", "h5py", "numpy"), "{python} -m weightfs.tools.hdf5_bench {mount} --json {json}",
         {"small": "--requests 1M,4M,16M,64M --total 256M --processes 1 --threads 1,2 --blocks 1M",
          "full": "--requests 1M,4M,16M,64M,256M,1G --total 1G --processes 1,2 --rounds 5"},
         {"small": 1, "full": 15}),
    Part("checkpoint", "Checkpoints",
         "How long a training loop stands still for a checkpoint, and how long it takes until the checkpoint is "
         "durable, for each way to save one.",
         ("weightfs", "torch"),
         "{python} -m weightfs.tools.checkpoint {mount} --compare {host} --json",
         {"small": "--size 128M --rounds 3", "full": "--size 1G --rounds 5"}, {"small": 0.5, "full": 8}),
    Part("loads", "Cold loads of safetensors",
         "A model is loaded into memory of the CPU with a cold page cache, from the mount, by weightfs.safetensors and "
         "by other loaders.",
         ("weightfs", "torch"), "{python} -m weightfs.tools.loads {mount} --json",
         {"small": "--size 256M --rounds 5", "full": "--size 2G --rounds 9"}, {"small": 0.5, "full": 6}),
    Part("generate", "Inference with a model larger than its memory",
         "A transformer generates tokens with its weights in memory, offloaded by weightfs.offload to the mount, and "
         "mapped from a file on the host's filesystem. The pages of the file are dropped once before each measurement; "
         "the file then stays in the page cache, unless it is larger than the memory of the machine.",
         ("weightfs", "torch"), "{python} {examples}/offload_generate.py {mount} --mmap_folder {host} --json",
         {"small": "", "full": "--layers 24 --width 1024 --memory 256M --rounds 5"}, {"small": 0.5, "full": 5}),
    Part("train", "Training with a model larger than its memory",
         "A transformer is trained with weights, gradients and optimizer states in memory, and offloaded to the mount. "
         "The offloaded run computes each forward pass twice, and is killed once in the middle of a step.",
         ("weightfs", "torch"), "{python} {examples}/offload_train.py {mount} --json",
         {"small": "--layers 6", "full": "--layers 12 --width 768 --memory 256M --steps 8"},
         {"small": 1, "full": 8}),
)
