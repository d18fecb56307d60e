# SPDX-License-Identifier: Apache-2.0
"""weightfs.safetensors.open, compared with safetensors.safe_open."""

import json
import os
import random
import threading

import pytest
import torch
from safetensors import safe_open

import weightfs.torch
from safetensors_files import PACKED, file_of, large_model, model_of_all_types, same, shards
from tensors import random_tensor
from weightfs import safetensors
from weightfs.safetensors._format import _without_duplicates


def test_tensors_of_all_types_are_those_of_the_library(folder):
    path = folder / "file"
    safetensors.save_file(model_of_all_types(), path, {"made": "here"})
    with safetensors.open(path) as ours, safe_open(path, "pt") as theirs:
        assert ours.keys() == theirs.keys() and ours.metadata() == theirs.metadata()
        assert sorted(ours.offset_keys()) == ours.keys()
        for name in theirs.keys():
            found, expected = ours.get_slice(name), theirs.get_slice(name)
            assert found.get_shape() == expected.get_shape() and found.get_dtype() == expected.get_dtype()
            assert same(ours.get_tensor(name), theirs.get_tensor(name)), name
            if ours.get_tensor(name).dtype != PACKED:   # the library cannot slice these
                assert same(found[...], expected[...]), name


def random_index(generator, shape):
    index = []
    for length in shape:
        kind, bound = generator.randrange(6), length + 2
        if kind == 0 and length:
            index.append(generator.randrange(-length, length))
        elif kind == 1:
            index.append(slice(None, None, generator.choice([None, 1, 2, 5])))
        else:
            index.append(slice(generator.randrange(-bound, bound), generator.randrange(-bound, bound),
                               generator.choice([None, 1, 1, 2, 7])))
    if generator.randrange(3) == 0:
        at = generator.randrange(len(index) + 1)
        index[at:at + generator.randrange(2)] = [...]
    return tuple(index[:generator.randrange(len(index) + 1)] if ... not in index else index)


def test_random_slices_are_those_of_the_library(folder):
    tensors = model_of_all_types() | {"wide": random_tensor(300 * 9001, torch.bfloat16).view(300, 9001),
                                      "cube": random_tensor(41 * 37 * 1500).view(41, 37, 1500)}
    safetensors.save_file(tensors, folder / "file")
    seed = random.randrange(1 << 32)
    generator = random.Random(seed)
    with safetensors.open(folder / "file") as ours, safe_open(folder / "file", "pt") as theirs:
        for _ in range(300):
            name = generator.choice(["wide", "cube", *tensors])
            if tensors[name].dtype == PACKED:
                continue
            index = random_index(generator, tensors[name].shape)
            assert same(ours.get_slice(name)[index], theirs.get_slice(name)[index]), (seed, name, index)


def reads_of(handle):
    """Counts the bytes that the handle is asked for."""
    counted = []
    read_into, read_ranges = handle.read_into, handle.read_ranges
    handle.read_into = lambda memory, *rest: counted.append(memory.nbytes) or read_into(memory, *rest)
    handle.read_ranges = lambda memory, *rest: counted.append(memory.nbytes) or read_ranges(memory, *rest)
    return counted


def test_a_slice_reads_its_own_bytes(local, handle):
    weight = random_tensor(1000 * 64_000).view(1000, 64_000)
    safetensors.save_file({"w": weight}, local / "file")
    counted = reads_of(handle)
    with safetensors.open(local / "file", handle=handle) as model:
        part = model.get_slice("w")
        for index in (slice(100, 200), (slice(None), slice(8000, 16_000)), (slice(3, 900, 4), slice(5, 9))):
            assert same(part[index], weight[index])
            assert counted.pop() == weight[index].nbytes and not counted


def test_the_columns_of_a_rank_take_one_lease(work):
    weight = random_tensor(1000 * 64_000).view(1000, 64_000)
    safetensors.save_file({"w": weight}, work / "file")
    with weightfs.aio_handle(direct="require") as handle, safetensors.open(work / "file", handle=handle) as model:
        assert same(model.get_slice("w")[:, 16_000:32_000], weight[:, 16_000:32_000])
        assert handle.direct_operations == 1


def test_gaps_beside_a_slice_take_bounded_memory(local, handle, monkeypatch):
    from weightfs.safetensors import _open
    monkeypatch.setattr(_open, "_MOST_SCRATCH", 100_000)
    monkeypatch.setattr(_open, "_MOST_RANGES", 50)
    tensor = random_tensor(400 * 9 * 500).view(400, 9, 500)
    safetensors.save_file({"w": tensor}, local / "file")
    counted = reads_of(handle)
    with safetensors.open(local / "file", handle=handle) as model:
        for index in ((slice(None), slice(None), 3), (slice(None), slice(None, None, 8)), (slice(None, None, 2), 4)):
            assert same(model.get_slice("w")[index], tensor[index])
    assert max(counted) <= 100_000 and len(counted) > 3


def test_many_files_are_one_model(folder):
    tensors = shards(folder)
    paths = sorted(folder.glob("*.safetensors"))
    for files in (folder, str(folder), folder / "model.safetensors.index.json", paths, [str(folder)]):
        with safetensors.open(files) as model:
            assert model.keys() == sorted(tensors)
            assert all(same(model.get_tensor(name), tensor) for name, tensor in tensors.items())
            assert model.metadata() == {"format": "pt", "number": "0"}
    (folder / "model.safetensors.index.json").unlink()
    with safetensors.open(folder) as model:
        assert model.keys() == sorted(tensors)


def test_files_that_do_not_belong_together_are_rejected(local):
    shards(local, 2, index=False)
    safetensors.save_file(large_model(1), local / "copy.safetensors")
    with pytest.raises(ValueError, match="'1.a' is also in .*copy.safetensors"):
        safetensors.open(local)
    (local / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty"):
        safetensors.open(local / "empty")
    with pytest.raises(ValueError, match="files is empty"):
        safetensors.open([])
    for index in ("", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "../x.safetensors"}}',
                  '{"weight_map": {"a": 5}}'):
        (local / "bad.index.json").write_text(index)
        with pytest.raises(ValueError, match="bad.index.json"):
            safetensors.open(local / "bad.index.json")
    (local / "missing.index.json").write_text(json.dumps({"weight_map": {"a": "nowhere.safetensors"}}))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        safetensors.open(local / "missing.index.json")
    (local / "lacking.index.json").write_text(json.dumps({"weight_map": {"absent": "model-0.safetensors"}}))
    with pytest.raises(ValueError, match="lacking.index.json.*'absent'"):
        safetensors.open(local / "lacking.index.json")


def facts(begin, end, shape, dtype="U8"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


DAMAGES = {
    "overlapping": ({"a": facts(0, 8, [8]), "culprit": facts(4, 12, [8])}, 12),
    "a hole": ({"a": facts(0, 8, [8]), "culprit": facts(9, 17, [8])}, 17),
    "another size": ({"culprit": facts(0, 8, [9])}, 8),
    "reversed": ({"culprit": facts(8, 0, [8])}, 8),
    "huge": ({"culprit": facts(0, 2**64, [2**64])}, 8),
    "overflowing": ({"culprit": facts(0, 0, [2**33, 2**33], "F32")}, 0),
    "unknown type": ({"culprit": facts(0, 8, [8], "F99")}, 8),
    "negative": ({"culprit": facts(0, 8, [-8])}, 8),
    "no offsets": ({"culprit": {"dtype": "U8", "shape": [8]}}, 8),
    "twice": (b'{"culprit":%s,"culprit":%s}' % ((json.dumps(facts(0, 8, [8])).encode(),) * 2), 8),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_header_is_an_error_with_the_file_and_the_tensor(local, damage):
    header, size = DAMAGES[damage]
    (local / "file").write_bytes(file_of(header, bytes(size)))
    for load in (safetensors.open, safetensors.load_file, safetensors.stream):
        with pytest.raises(ValueError, match="file: .*'culprit'"):
            load(local / "file")


def test_a_name_that_is_twice_among_many_is_found_by_one_pass():
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    names = [Name(f"tensor {number}") for number in range(3000)]
    with pytest.raises(ValueError, match="'tensor 2999' is there twice"):
        _without_duplicates([(name, 0) for name in [*names, Name("tensor 2999")]])
    assert compared < 300   # by hash; each name with each other would be 4.5 million


def test_a_file_that_is_too_short_or_too_long_is_rejected(local):
    header = {"a": facts(0, 8, [8])}
    for content in (b"", b"1234567", file_of(header, bytes(7)), file_of(header, bytes(9)), b"\xff" * 100,
                    file_of(header, bytes(8))[:20]):
        (local / "file").write_bytes(content)
        with pytest.raises(ValueError, match="file"):
            safetensors.open(local / "file")


def test_errors_name_what_is_missing(local):
    safetensors.save_file({"a": torch.ones(3)}, local / "file")
    with safetensors.open(local / "file") as model:
        for get in (model.get_tensor, model.get_slice):
            with pytest.raises(KeyError, match="file: there is no tensor 'b'"):
                get("b")
    with pytest.raises(ValueError, match="closed"):
        model.get_tensor("a")
    with pytest.raises(ValueError, match="framework"):
        safetensors.open(local / "file", framework="jax")
    with pytest.raises(ValueError, match="device"):
        safetensors.open(local / "file", device="tpu")


def test_a_file_cut_after_the_open_fails_the_read(folder):
    safetensors.save_file({"a": torch.ones(100, 3000)}, folder / "file")
    with safetensors.open(folder / "file") as model:
        os.truncate(folder / "file", 100_000)
        for read in (lambda: model.get_tensor("a"), lambda: model.get_slice("a")[:, 5]):
            with pytest.raises(OSError) as caught:
                read()
            assert caught.value.filename == str(folder / "file")


def test_a_replaced_file_is_read_as_it_was_opened(folder):
    old, new = torch.ones(1000, 3000), torch.zeros(1000, 3000)
    safetensors.save_file({"a": old}, folder / "file")
    with safetensors.open(folder / "file") as model:
        safetensors.save_file({"a": new}, folder / "file")
        assert same(model.get_tensor("a"), old) and same(model.get_slice("a")[:, 7], old[:, 7])


def advised(address):
    """Whether the kernel was asked for huge pages at the address."""
    inside = False
    with open("/proc/self/smaps", encoding="ascii", errors="replace") as maps:
        for line in maps:
            words = line.split()
            if not words[0].endswith(":"):
                begin, end = (int(word, 16) for word in words[0].split("-"))
                inside = begin <= address < end
            elif inside and words[0] == "VmFlags:":
                return "hg" in words


@pytest.mark.skipif(not os.path.exists("/sys/kernel/mm/transparent_hugepage"), reason="this kernel has no huge pages")
def test_large_tensors_are_read_into_huge_pages(local):
    tensors = {"a": torch.ones(4 << 20)}
    safetensors.save_file(tensors, local / "file")
    weightfs.torch.save(tensors, local / "torch")
    with safetensors.open(local / "file") as model:
        found = [model.get_tensor("a"), model.get_slice("a")[100:], model.get_slice("a")[::2]]
    found += [safetensors.load_file(local / "file")["a"], dict(safetensors.stream(local / "file"))["a"],
              weightfs.torch.load(local / "torch")["a"]]
    assert [advised(tensor.data_ptr() + tensor.nbytes // 2) for tensor in found] == [True] * 6


def test_threads_share_an_open_file(folder):
    tensors = large_model()
    safetensors.save_file(tensors, folder / "file")
    wrong = []

    def read(name):
        for _ in range(5):
            if not same(model.get_tensor(name), tensors[name]) or not same(model.get_slice(name)[:, 3],
                                                                           tensors[name][:, 3]):
                wrong.append(name)

    with safetensors.open(folder / "file") as model:
        threads = [threading.Thread(target=read, args=(name,)) for name in tensors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_misaligned_tensors_of_other_programs_are_aligned_in_memory(folder):
    data = random_tensor(9)
    header = {"a": facts(0, 1, [1]), "b": facts(1, 9, [2], "F32")}
    (folder / "file").write_bytes(file_of(header, data.numpy().tobytes()))
    with safetensors.open(folder / "file") as model:
        found = model.get_tensor("b")
        assert same(found.view(torch.uint8), data[1:]) and found.data_ptr() % 4 == 0
        assert same(model.get_slice("b")[1:].view(torch.uint8), data[5:])
