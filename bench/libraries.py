# SPDX-License-Identifier: Apache-2.0
"""A Python library in `weightfs bench`: a process that has already imported the library, and saves and loads as
programs do.

Each line on standard input is a job in JSON. Each line on standard output is its answer: {"seconds", "cpu"} of saving
or loading alone, or {"error"}. The first job is {"do": "prepare", "library", "bytes"}; its answer is the version."""

import sys

if __name__ == "__main__":
    del sys.path[0]   # this directory, whose modules are those of a package

import importlib
import json
import os
import time
import warnings

PIECES = 16


# The loaders of safetensors files that other libraries have

def load_safetensors(path):
    return importlib.import_module("safetensors.torch").load_file(path)


def load_fastsafetensors(path):
    from fastsafetensors import fastsafe_open
    with fastsafe_open([path], nogds=True, device="cpu") as model:
        return {name: model.get_tensor(name) for name in model.keys()}


def load_runai(path):
    from runai_model_streamer import SafetensorsStreamer
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path)
        return dict(streamer.get_tensors())


def touched(tensors):
    """Some loaders only map the file; the tensors are loaded on first access of each page."""
    for tensor in tensors.values():
        tensor.reshape(-1)[::512].sum()
    return tensors


class Torch:
    """A state dict with a few large tensors and as many small ones, like a model's. All processes make the same one.
    `module` saves and loads it; `saving` are further arguments of its save()."""

    def __init__(self, size, module="torch", saving={}):
        self.torch, self.files = (importlib.import_module(name) for name in ("torch", module))
        self.version, self.saving = self.torch.__version__, saving
        count, generator = max(size // PIECES // 8, 1), self.torch.Generator().manual_seed(1)
        first = self.torch.empty(count, dtype=self.torch.int64).random_(generator=generator)
        self.state = {f"layer{index}.weight": first + index for index in range(PIECES)}
        self.state |= {f"layer{index}.bias": self.torch.arange(64) + index for index in range(PIECES)}

    def save(self, path):
        self.files.save(self.state, path, **self.saving)

    def load(self, path):
        return self.files.load(path, map_location="cpu", weights_only=True)

    def is_right(self, loaded):
        return loaded.keys() == self.state.keys() and all(
            self.torch.equal(loaded[name], tensor) for name, tensor in self.state.items())


class DistributedCheckpoint(Torch):
    """In one process; torch 2.2 or newer. A checkpoint is a directory."""

    def save(self, path):
        warnings.filterwarnings("ignore", module=r"torch\.distributed")   # that there is one process
        self.files.save(self.state, checkpoint_id=path)

    def load(self, path):
        loaded = {name: self.torch.empty_like(tensor) for name, tensor in self.state.items()}
        self.files.load(loaded, checkpoint_id=path)
        return loaded


class Safetensors(Torch):
    def __init__(self, size, module, load_tensors=None):
        # A library that only loads, by `load_tensors`, loads what safetensors saved.
        loader = importlib.import_module(module)
        super().__init__(size, "safetensors.torch" if load_tensors else module)
        self.load_tensors = load_tensors or loader.load_file

    def save(self, path):
        self.files.save_file(self.state, path)

    def load(self, path):
        return touched(self.load_tensors(path))


class Numpy:
    def __init__(self, size):
        self.numpy = importlib.import_module("numpy")
        self.version = self.numpy.__version__
        self.array = self.numpy.random.default_rng(1).integers(0, 1 << 62, size // 8, dtype="int64")

    def save(self, path):
        # np.save appends ".npy" to a name that lacks it.
        with open(path, "wb") as stream:
            self.numpy.save(stream, self.array)

    def load(self, path):
        return self.numpy.load(path)

    def is_right(self, loaded):
        return self.numpy.array_equal(loaded, self.array)


class Handle:
    """What a DeepNVMe program does with a tensor in locked memory of its handle; the variants differ only in the
    import."""

    def __init__(self, size, package, builders):
        torch, builders = importlib.import_module("torch"), importlib.import_module(builders)
        self.version = importlib.import_module(package).__version__
        self.handle = builders.AsyncIOBuilder().load().aio_handle(1 << 20, 32, False, True, 1)
        kind = torch.empty(0, dtype=torch.uint8)
        self.tensor, self.loaded = (self.handle.new_cpu_locked_tensor(size, kind) for _ in range(2))
        self.tensor.random_()
        self.loaded.zero_()
        self.is_right = lambda loaded: torch.equal(loaded, self.tensor)

    def save(self, path):
        self.handle.sync_pwrite(self.tensor, path)

    def load(self, path):
        self.handle.sync_pread(self.loaded, path)
        return self.loaded


LIBRARIES = {"torch": Torch, "weightfs.torch": lambda size: Torch(size, "weightfs.torch", {"durable": True}),
             "torch.distributed.checkpoint": lambda size: DistributedCheckpoint(size, "torch.distributed.checkpoint"),
             "safetensors": lambda size: Safetensors(size, "safetensors.torch"),
             "weightfs.safetensors": lambda size: Safetensors(size, "weightfs.safetensors"),
             "fastsafetensors": lambda size: Safetensors(size, "fastsafetensors", load_fastsafetensors),
             "runai_model_streamer": lambda size: Safetensors(size, "runai_model_streamer", load_runai), "numpy": Numpy,
             "deepspeed": lambda size: Handle(size, "deepspeed", "deepspeed.ops.op_builder"),
             "weightfs": lambda size: Handle(size, "weightfs", "weightfs.deepnvme")}


def answer_of(library, job):
    """Saves and syncs, or loads; only that is timed."""
    path, loaded = job["path"], None
    cpu, begin = time.process_time(), time.monotonic()
    if job["do"] == "save":
        library.save(path)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    else:
        loaded = library.load(path)
    answer = {"seconds": time.monotonic() - begin, "cpu": time.process_time() - cpu}
    if job["check"] and not library.is_right(loaded):
        raise ValueError(f"{path} does not hold what was saved")
    return answer


def main():
    # A library's own output must not be mistaken for an answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    library = None
    for line in sys.stdin:
        job = json.loads(line)
        try:
            if job["do"] == "prepare":
                library = LIBRARIES[job["library"]](job["bytes"])
                answer = {"version": library.version}
            else:
                answer = answer_of(library, job)
        except Exception as error:
            is_missing = job["do"] == "prepare" and isinstance(error, ImportError)
            answer = ({"missing": str(error)} if is_missing else
                      {"error": f"{type(error).__name__}: {error}".splitlines()[0]})
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
