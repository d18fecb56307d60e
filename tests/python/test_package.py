# SPDX-License-Identifier: Apache-2.0
"""The installed package as pip and type checkers see it."""

import ast
import copy
import importlib
import inspect
import re
import types
from importlib import metadata
from pathlib import Path

import pytest

import weightfs

PACKAGE = Path(weightfs.__file__).parent
STUBS = {".".join(stub.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): stub
         for stub in PACKAGE.rglob("*.pyi")}
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


@pytest.mark.parametrize("name", sorted(STUBS))
def test_a_stub_declares_what_its_module_has(name):
    found = list(differences(name, STUBS[name].read_text(encoding="utf-8")))
    assert not found, "\n".join(found)


# Changes of stubs: the module, the old text, the new text, and the beginning of the line that reports it.
CHANGED = {
    "missing method": ("weightfs", "    def refresh(self) -> None: ...\n", "",
                       "weightfs.reader.refresh is not in the stub"),
    "other method": ("weightfs", "def refresh(self)", "def renew(self)", "weightfs.reader.renew is in the stub only"),
    "no property": ("weightfs", "    @property\n    def direct(self)", "    def direct(self)",
                    "weightfs.reader.direct is a property"),
    "default": ("weightfs", "queue_depth: int = 64", "queue_depth: int = 65", "weightfs.reader.__init__"),
    "parameter": ("weightfs", "def rows(self, indices: Any,", "def rows(self, offsets: Any,", "weightfs.reader.rows"),
    "other native function": ("weightfs._native", "def unlock(", "def unpin(",
                              "weightfs._native.unlock is not in the stub"),
    "native parameter": ("weightfs._native", "def unlock(address: int, /)", "def unlock(address: int, size: int, /)",
                         "weightfs._native.unlock("),
    "__all__": ("weightfs.deepnvme", '"install", ', "", "weightfs.deepnvme.__all__"),
    "missing function": ("weightfs.deepnvme", "def uninstall() -> str: ...\n", "",
                         "weightfs.deepnvme.uninstall is not in the stub"),
}


@pytest.mark.parametrize(("name", "old", "new", "difference"), CHANGED.values(), ids=CHANGED.keys())
def test_a_stub_that_differs_is_noticed(name, old, new, difference):
    text = STUBS[name].read_text(encoding="utf-8")
    assert text.count(old) == 1
    assert any(found.startswith(difference) for found in differences(name, text.replace(old, new)))


def differences(name, text):
    """Yields a line for each difference between a module and the text of its stub."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        pytest.skip("needs torch")
    tree = ast.parse(text)
    declared = declarations(tree)
    classes = {node.name: node for node in declared.values() if isinstance(node, ast.ClassDef)}
    if hasattr(module, "__all__"):
        exported = ast.literal_eval(declared["__all__"].value) if "__all__" in declared else None
        if exported != module.__all__:
            yield f"{name}.__all__ is {exported} in the stub and {module.__all__} at run time"
        public = set(module.__all__)
    else:
        public = {key for key, value in vars(module).items()
                  if not key.startswith("_") and getattr(value, "__module__", None) == name}
    imported = {alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom)
                for alias in node.names}
    yield from missing_names(name, declared.keys() | imported & public, public, vars(module).keys())
    for key, node in declared.items():
        if key in classes and hasattr(module, key):
            yield from differences_of_class(f"{name}.{key}", stub_members(node, classes), getattr(module, key))
        elif isinstance(node, ast.FunctionDef) and hasattr(module, key):
            yield from differences_of_call(f"{name}.{key}", node, getattr(module, key), has_self=False)


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
    wanted = signature_of(node)
    try:
        found = inspect.signature(function)
    except ValueError:   # a function of pybind11: its docstring has the number of its parameters, which have no names
        count = len(re.findall(r"\barg\d+: ", function.__doc__.partition("\n")[0]))
        parameters = list(wanted.parameters.values())[has_self:]
        if len(parameters) != count or any(one.kind != one.POSITIONAL_ONLY for one in parameters):
            yield f"{where}{wanted} has {count} positional-only parameters at run time"
        return
    if not is_same(list(wanted.parameters.values()), list(found.parameters.values())):
        yield f"{where}{wanted} is {where}{found} at run time"


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


def stub_members(node, classes):
    """The members of a class of a stub, including those of its bases in the stub."""
    found = {}
    for base in map(ast.unparse, reversed(node.bases)):
        if base in classes:
            found |= stub_members(classes[base], classes)
    return found | declarations(node)


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


def signature_of(node):
    """The signature of a function of a stub, without annotations."""
    bare = copy.deepcopy(node)
    bare.decorator_list, bare.returns = [], None
    for part in ast.walk(bare.args):
        if isinstance(part, ast.arg):
            part.annotation = None
    names = {}
    exec(compile(ast.Module([bare], []), "stub", "exec"), names)
    return inspect.signature(names[bare.name])


def is_same(declared, found):
    """Compares parameters. Ellipsis in a stub is any default; the name of *arguments is of no importance."""
    return len(declared) == len(found) and all(
        one.kind == other.kind
        and (one.name == other.name or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD))
        and (one.default == other.default or one.default is ... and other.default is not other.empty)
        for one, other in zip(declared, found))
