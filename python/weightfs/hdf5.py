# SPDX-License-Identifier: Apache-2.0
"""HDF5 files through the driver `weightfs`, which transfers large requests directly between memory and the devices.

The driver is a plugin that HDF5 1.14 or newer loads at run time; files stay plain HDF5. Two interfaces select it:

* `File(path, mode)` opens one file with the driver.
* `eval "$(python -m weightfs.hdf5)"` sets environment variables. Every program of that shell then uses the driver for
  all files that it opens without another driver. The variables must be set before HDF5 is loaded.

Settings are keywords of `File` or words of `HDF5_DRIVER_CONFIG` (docs/HDF5.md describes them):
`num_threads`, `block_size`, `queue_depth`, `direct_size`, `cache`, `read_ahead`, `sync`, `direct`."""

import argparse
import ctypes
import json
import os
import shlex
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Union

if TYPE_CHECKING:
    import h5py

__all__ = ["DRIVER", "SETTINGS", "File", "direct_operations", "environment", "plugin_path", "register"]

DRIVER = "weightfs"
SETTINGS = ("num_threads", "block_size", "queue_depth", "direct_size", "cache", "read_ahead", "sync", "direct")
_LEAST_HDF5 = (1, 14, 0)
_PLUGIN = Path(__file__).resolve().with_name("hdf5_plugin") / "libhdf5_weightfs.so"
_lock = threading.Lock()
_set_driver_by_name = None


def plugin_path() -> Path:
    """Returns the plugin of this package, a shared object; HDF5_PLUGIN_PATH takes its directory. FileNotFoundError if
    the package was installed without it."""
    if not _PLUGIN.is_file():
        raise FileNotFoundError(f"weightfs was installed without its HDF5 plugin: {_PLUGIN} is missing; "
                                "install the package again with `pip install .` in the clone")
    return _PLUGIN


def environment(**settings: Union[int, str]) -> Dict[str, str]:
    """Composes the environment variables that make every HDF5 program use the driver.

    Args:
        **settings: Settings of the driver; sizes as bytes or text ("1M").

    Returns:
        HDF5_PLUGIN_PATH (the plugin's directory before the current value), HDF5_DRIVER, and HDF5_DRIVER_CONFIG if there
        are settings.

    Raises:
        FileNotFoundError: The plugin is missing.
        TypeError: A setting is unknown."""
    folders = [str(plugin_path().parent)]
    folders += [folder for folder in os.environ.get("HDF5_PLUGIN_PATH", "").split(":") if folder not in ("", *folders)]
    variables = {"HDF5_PLUGIN_PATH": ":".join(folders), "HDF5_DRIVER": DRIVER}
    if settings:
        variables["HDF5_DRIVER_CONFIG"] = _configuration(settings)
    return variables


def File(name: Union[str, os.PathLike], mode: str = "r", **options: Any) -> "h5py.File":
    """Opens an HDF5 file with the driver. The program's other files keep their drivers.

    The file's own access properties name the driver, as the `driver` argument of h5py.File does for HDF5's drivers.

    Args:
        name: Path of the file, on a weightfs mount or any other filesystem.
        mode: As in h5py.File: "r", "r+", "w", "w-" or "x", "a".
        **options: Settings of the driver (SETTINGS); h5py.File gets all others (libver, swmr, locking, …).

    Returns:
        The open file. As with every h5py.File, HDF5 runs one thread at a time.

    Raises:
        ModuleNotFoundError: h5py is not installed.
        RuntimeError: h5py's HDF5 is too old to load drivers.
        FileNotFoundError: The plugin or, as in h5py.File, the file is missing.
        OSError: The plugin cannot be loaded, a setting is wrong, or the file cannot be opened. The text names
            the cause."""
    register()
    import h5py

    try:
        return h5py.File(name, mode, driver=DRIVER, **options)
    except OSError as error:
        # With mode "a", h5py takes any error of a driver that it does not know for a missing file, and creates one.
        opening = error.__context__
        if mode == "a" and isinstance(opening, OSError) and not isinstance(opening, FileNotFoundError):
            raise opening from None
        raise


def register() -> None:
    """Registers the driver for `h5py.File(path, driver="weightfs", …settings)`. `File` calls it. Thread-safe; later
    calls do nothing.

    Raises:
        ModuleNotFoundError: h5py is not installed.
        RuntimeError: h5py's HDF5 is too old to load drivers.
        FileNotFoundError: The plugin is missing.
        OSError: The plugin cannot be loaded."""
    global _set_driver_by_name
    with _lock:
        if _set_driver_by_name is not None:
            return
        try:
            import h5py
        except ModuleNotFoundError as error:
            if error.name != "h5py":
                raise
            raise ModuleNotFoundError("weightfs.hdf5 needs h5py: pip install h5py", name="h5py") from None
        if h5py.version.hdf5_version_tuple < _LEAST_HDF5:
            raise RuntimeError(f"h5py {h5py.version.version} has HDF5 {h5py.version.hdf5_version}, which cannot load "
                               f"file drivers; HDF5 1.14 or newer is required (pip install --upgrade h5py)")
        plugin = plugin_path()
        ctypes.CDLL(str(plugin))   # raises the loader's message if a library is missing
        # h5py does not wrap this function, so dlsym finds it in the HDF5 that h5py's modules are linked with.
        function = ctypes.CDLL(h5py.h5p.__file__).H5Pset_driver_by_name
        function.argtypes, function.restype = [ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p], ctypes.c_int
        h5py.h5pl.prepend(os.fsencode(plugin.parent))
        h5py.register_driver(DRIVER, _set_access)
        _set_driver_by_name = function


def direct_operations() -> int:
    """Returns the number of the driver's operations in this process that bypassed a mount by a lease so far; 0 if the
    process has not used the driver. FileNotFoundError if the plugin is missing, OSError if it cannot be loaded."""
    function = ctypes.CDLL(str(plugin_path())).weightfs_hdf5_direct_operations
    function.argtypes, function.restype = [], ctypes.c_uint64
    return function()


def _configuration(settings: Dict[str, Any]) -> str:
    unknown = sorted(set(settings) - set(SETTINGS))
    if unknown:
        raise TypeError(f"HDF5's driver weightfs has no setting {unknown[0]!r}; it has {', '.join(SETTINGS)}")
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _set_access(properties: Any, **settings: Any) -> None:
    configuration = _configuration(settings).encode()
    if _set_driver_by_name(properties.id, DRIVER.encode(), configuration) < 0:
        raise OSError(f"HDF5 did not load the driver weightfs from {plugin_path()}: this HDF5 may have another "
                      "driver interface; HDF5 1.14 to 2.2 work")


def _setting(word: str) -> List[str]:
    if "=" not in word:
        raise TypeError(f"{word!r} is not a setting: expected NAME=VALUE")
    return word.split("=", 1)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m weightfs.hdf5", description=(
        "Prints the environment variables that make every program with HDF5 1.14 or newer use the driver weightfs: "
        'eval "$(python -m weightfs.hdf5)"'))
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE",
                        help="settings of the driver: " + ", ".join(SETTINGS))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    try:
        variables = environment(**dict(map(_setting, given.settings)))
    except (TypeError, FileNotFoundError) as error:
        print(f"weightfs.hdf5: {error}", file=sys.stderr)
        return 2
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    print(json.dumps(variables) if given.json else "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
