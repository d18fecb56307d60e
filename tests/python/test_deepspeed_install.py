# SPDX-License-Identifier: Apache-2.0
"""weightfs.deepnvme.install() in a stand-in for the package deepspeed, with its ways of looking up builders by name.
tests/clients/test_deepspeed.py has the real one."""

import os
import subprocess
import sys

import pytest

TREE = {
    "deepspeed/__init__.py": "__version__ = '0.19.6'\n",
    "deepspeed/accelerator.py": """
class Accelerator:
    def device_name(self): return "cpu"
    def get_op_builder(self, name):
        from deepspeed.ops.op_builder import cpu
        return getattr(cpu, name, cpu.NotImplementedBuilder)
    def create_op_builder(self, name): return self.get_op_builder(name)()
made = Accelerator()
def get_accelerator(): return made
""",
    "deepspeed/ops/__init__.py": "__compatible_ops__ = {'async_io': False, 'deepspeed_not_implemented': False}\n",
    "deepspeed/ops/op_builder/__init__.py": """
from deepspeed.accelerator import get_accelerator
for name in ("AsyncIOBuilder", "GDSBuilder", "PinMemoryBuilder", "UtilsBuilder"):
    globals()[name] = get_accelerator().get_op_builder(name)
""",
    "deepspeed/ops/op_builder/cpu.py": """
class NotImplementedBuilder: pass
class AsyncIOBuilder: pass
class PinMemoryBuilder: pass
""",
    "deepspeed/ops/aio.py": "from .op_builder import AsyncIOBuilder\n",
    "deepspeed/early.py": "from deepspeed.ops.op_builder import AsyncIOBuilder, GDSBuilder, UtilsBuilder\n",
    "deepspeed/late.py": "from deepspeed.ops.op_builder import AsyncIOBuilder, GDSBuilder, UtilsBuilder\n",
    "train.py": """
import sys
from deepspeed.late import AsyncIOBuilder
print(AsyncIOBuilder().load().__name__, __name__, *sys.argv[1:])
""",
}


@pytest.fixture
def tree(tmp_path):
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def run(tree, *words):
    environment = os.environ | {"PYTHONPATH": f"{tree}:{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.run([sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True,
                          timeout=100, check=False)


LOOK = """
import deepspeed.early, deepspeed.ops.aio, sys
from weightfs import deepnvme
from deepspeed.accelerator import get_accelerator
def seen():
    import deepspeed.early as early
    accelerator = get_accelerator()
    found = [early.AsyncIOBuilder, early.GDSBuilder, deepspeed.ops.aio.AsyncIOBuilder, early.UtilsBuilder,
             accelerator.get_op_builder("AsyncIOBuilder"), type(accelerator.create_op_builder("PinMemoryBuilder")),
             accelerator.get_op_builder("UtilsBuilder")]
    if "deepspeed.late" in sys.modules:
        found.append(sys.modules["deepspeed.late"].AsyncIOBuilder)
    return [one.__module__.partition(".")[0] for one in found]
"""


def test_every_place_gets_our_builders_and_gets_its_own_back(tree):
    done = run(tree, "-c", LOOK + """
line = deepnvme.install()
assert line == deepnvme.install(), "not idempotent"
import deepspeed.late
assert seen() == ["weightfs"] * 3 + ["deepspeed"] + ["weightfs"] * 2 + ["deepspeed", "weightfs"], seen()
assert deepspeed.early.AsyncIOBuilder().load() is deepnvme
deepnvme.uninstall()
assert seen() == ["deepspeed"] * 8, seen()
assert deepspeed.late.AsyncIOBuilder is deepspeed.ops.op_builder.cpu.AsyncIOBuilder
assert "nothing is installed" in deepnvme.uninstall()
assert deepnvme.install() and seen()[0] == "weightfs"
print(line)
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("weightfs.deepnvme: replaced AsyncIOBuilder, GDSBuilder, PinMemoryBuilder of deepspeed "
                           "0.19.6 in 4 modules and in the accelerator cpu\n")


def test_the_table_of_usable_builders_has_ours(tree):
    done = run(tree, "-c", """
import deepspeed.ops
from weightfs import deepnvme
table = deepspeed.ops.__compatible_ops__
before = dict(table)
for _ in range(2):
    deepnvme.install()
    deepnvme.install()
    for name in ("AsyncIOBuilder", "GDSBuilder", "PinMemoryBuilder"):
        builder = getattr(deepspeed.ops.op_builder, name)
        assert table[builder.NAME] == builder().is_compatible(), name
    assert table["async_io"] and not table["deepspeed_not_implemented"]
    deepnvme.uninstall()
    assert table == before, table
""")
    assert done.returncode == 0, done.stderr


def test_children_that_are_forked_have_our_builders(tree):
    done = run(tree, "-c", LOOK + """
import multiprocessing
deepnvme.install()
def look(queue): queue.put(seen())
context = multiprocessing.get_context("fork")
queue = context.Queue()
child = context.Process(target=look, args=[queue])
child.start()
assert queue.get(timeout=60)[0] == "weightfs"
child.join()
""")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [["train.py", "--lr", "1"], ["-m", "train", "--lr", "1"]], ids=" ".join)
def test_a_program_runs_unedited(tree, words):
    done = run(tree, "-m", "weightfs.deepnvme", *words)
    assert (done.returncode, done.stdout) == (0, "weightfs.deepnvme __main__ --lr 1\n"), done.stderr
    assert done.stderr.startswith("weightfs.deepnvme: replaced AsyncIOBuilder")


def test_the_argument_of_the_launcher_goes_to_the_program(tree):
    done = run(tree, "-m", "weightfs.deepnvme", "--local_rank=3", "train.py", "-x")
    assert done.stdout == "weightfs.deepnvme __main__ --local_rank=3 -x\n"


def test_a_missing_or_old_deepspeed_is_an_error_with_the_next_step(tree):
    assert run(tree, "-m", "weightfs.deepnvme").returncode == 2
    (tree / "deepspeed/__init__.py").write_text("__version__ = '0.14.5'\n")
    done = run(tree, "-m", "weightfs.deepnvme", "train.py")
    assert done.returncode == 2 and "deepspeed 0.14.5 is too old: it must be 0.15 or newer; python -m pip" in done.stderr
    done = run(tree, "-c", "import sys; sys.modules['deepspeed'] = None\nimport weightfs.deepnvme\n"
               "try: weightfs.deepnvme.install()\nexcept ImportError as error: print(error)")
    assert done.stdout == "deepspeed is not installed: python -m pip install 'deepspeed>=0.15'\n"
