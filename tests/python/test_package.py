# SPDX-License-Identifier: Apache-2.0
"""The installed package as pip and type checkers see it."""

import ast
import importlib
import inspect
import re
import types
from importlib import metadata
from pathlib import Path

import pytest

import weightfs

STUB = Path(weightfs.__file__).with_name("_native.pyi")
MODULES = ["weightfs", *(f"weightfs.{name}" for name in (
    "checkpoint", "dcp", "deepnvme", "fastsafetensors", "hdf5", "hf", "lightning", "offload", "s3", "safetensors",
    "safetensors.numpy", "safetensors.torch", "torch"))]
CLIENTS = ("torch", "safetensors", "fastsafetensors", "lightning")   # that some modules need
NOT_IN_STUBS = {"__copy__", "__deepcopy__",   # they only refuse
                "__getnewargs__"}              # every NamedTuple has it
NOT_BEFORE_3_12 = {"__buffer__"}              # C has always had it; Python shows it since 3.12


def test_the_package_carries_license_and_notice():
    try:
        package = metadata.distribution("weightfs")
    except metadata.PackageNotFoundError:
        pytest.skip("weightfs comes from PYTHONPATH; a package that pip installed has metadata")
    assert package.metadata["License-Expression"] == "Apache-2.0"
    texts = {file.name: file.read_text(encoding="utf-8") for file in package.files if "licenses" in file.parts}
    assert "Version 2.0, January 2004" in texts["LICENSE"] and "Apache License, Version 2.0" in texts["NOTICE"]


@pytest.mark.parametrize("name", MODULES)
def test_public_names_have_types(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name not in CLIENTS:
            raise
        pytest.skip(f"needs {missing.name}: scripts/setup installs it")
    public = getattr(module, "__all__", None) or [key for key, value in vars(module).items() if not key.startswith("_")
                                                  and getattr(value, "__module__", None) == name]
    found = {key: list(without_types(getattr(module, key))) for key in public}
    assert public and not any(found.values()), found


def without_types(value):
    """Yields the name of each public function that has no types, of a class or itself. Of a class that implements an
    interface of another package, those of the interface count there."""
    if inspect.isclass(value):
        package = value.__module__.partition(".")[0]
        ours = [base for base in reversed(value.__mro__) if base.__module__.partition(".")[0] == package]
        foreign = {name for base in value.__mro__ if base not in ours for name in vars(base)}
        for name, member in {name: member for base in ours for name, member in vars(base).items()}.items():
            if name == "__init__" or not name.startswith("_") and name not in foreign:
                member = getattr(member, "fget", None) or getattr(member, "__func__", member)
                yield from without_types(member) if inspect.isfunction(member) else ()
    elif inspect.isfunction(value):
        first, *rest = inspect.signature(value).parameters.values() or [None]
        parameters = rest if first is None or first.name == "self" else [first, *rest]
        if any(one.annotation is one.empty for one in parameters) or "return" not in value.__annotations__:
            yield value.__qualname__


def test_a_function_without_types_is_noticed():
    class Some:
        def __init__(self, number: int) -> None:
            self.number = number

        @property
        def untyped(self):
            return self.number

        def other(self, value) -> int:
            return value

    assert [name.rpartition(".")[2] for name in without_types(Some)] == ["untyped", "other"]
    assert list(without_types(lambda: 0))


def test_the_stub_declares_what_the_native_module_has():
    found = list(differences(STUB.read_text(encoding="utf-8")))
    assert not found, "\n".join(found)


# Changes of the stub: the old text, the new text, and the beginning of the line that reports it.
CHANGED = {
    "missing function": ("def unlock(", "def unpin(", "weightfs._native.unlock is not in the stub"),
    "parameter": ("def unlock(address: int, /)", "def unlock(address: int, size: int, /)", "weightfs._native.unlock("),
    "missing method": ("    def refresh(self) -> None: ...\n", "", "weightfs._native.Reader.refresh is not in the stub"),
    "other method": ("def refresh(self)", "def renew(self)", "weightfs._native.Reader.renew is in the stub only"),
}


@pytest.mark.parametrize(("old", "new", "difference"), CHANGED.values(), ids=CHANGED.keys())
def test_a_stub_that_differs_is_noticed(old, new, difference):
    text = STUB.read_text(encoding="utf-8")
    assert text.count(old) == 1
    assert any(found.startswith(difference) for found in differences(text.replace(old, new)))


def differences(text):
    """Yields a line for each difference between the native module and the text of its stub."""
    module, declared = weightfs._native, declarations(ast.parse(text))
    public = {key for key, value in vars(module).items() if not key.startswith("_") and callable(value)}
    yield from missing_names(module.__name__, declared.keys(), public, vars(module).keys())
    for key, node in declared.items():
        if isinstance(node, ast.ClassDef) and hasattr(module, key):
            yield from differences_of_class(f"{module.__name__}.{key}", declarations(node), getattr(module, key))
        elif isinstance(node, ast.FunctionDef) and hasattr(module, key):
            yield from differences_of_call(f"{module.__name__}.{key}", node, getattr(module, key), has_self=False)


def differences_of_class(where, declared, kind):
    members = runtime_members(kind)
    yield from missing_names(where, declared.keys(), {key for key, value in members.items() if is_public(key, value)},
                             members.keys() | NOT_BEFORE_3_12)
    for key in declared.keys() & members.keys():
        node, decorators = declared[key], [ast.unparse(one) for one in getattr(declared[key], "decorator_list", [])]
        for decorator, wrapper in (("property", property), ("staticmethod", staticmethod)):
            if (decorator in decorators) != isinstance(members[key], wrapper):
                yield f"{where}.{key} is a {decorator} in the stub or at run time only"
        # The interpreter calls the other methods with __ by position.
        compared = callable(getattr(kind, key)) and (key == "__init__" or not key.startswith("__"))
        if isinstance(node, ast.FunctionDef) and compared:
            yield from differences_of_call(f"{where}.{key}", node, getattr(kind, key), "staticmethod" not in decorators)


def differences_of_call(where, node, function, has_self):
    """The docstring of a function of pybind11 has the number of its parameters, which have no names."""
    wanted = [*node.args.posonlyargs, *node.args.args][has_self:]
    count = len(re.findall(r"\barg\d+: ", function.__doc__.partition("\n")[0]))
    if len(wanted) != count or len(node.args.posonlyargs) < count or node.args.kwonlyargs:
        yield f"{where}({ast.unparse(node.args)}) has {count} positional-only parameters at run time"


def missing_names(where, declared, public, existing):
    yield from (f"{where}.{name} is not in the stub" for name in sorted(public - declared))
    # A private name of a stub is for its own annotations.
    yield from (f"{where}.{name} is in the stub only" for name in sorted(declared - existing)
                if not name.startswith("_") or name.startswith("__"))


def declarations(node):
    """The names that a module or a class of a stub declares."""
    found = {}
    for one in node.body:
        if isinstance(one, (ast.FunctionDef, ast.ClassDef)):
            found[one.name] = one
        elif isinstance(one, (ast.Assign, ast.AnnAssign)):
            found[ast.unparse(one.targets[0] if isinstance(one, ast.Assign) else one.target)] = one
    return found


def runtime_members(kind):
    """The members of a class, including those of its bases in the package."""
    found = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] == "weightfs":
            found |= vars(base)
    return found


def is_public(name, value):
    if not name.startswith("__"):
        return not name.startswith("_")
    # Every class has the names of `object`, and every class of pybind11 a wrapper that only raises.
    return (callable(value) and name not in NOT_IN_STUBS and (name == "__init__" or name not in vars(object))
            and not isinstance(value, types.WrapperDescriptorType))
