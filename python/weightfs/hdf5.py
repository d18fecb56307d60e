# SPDX-License-Identifier: Apache-2.0
"""HDF5 files through the driver `weightfs`: large requests go straight between memory and the devices.

The driver is a plugin that HDF5 1.14 or newer loads at run time; files stay plain HDF5. There are two ways to it:

* `File(path, mode)` opens one file with it, in a program that is edited for it;
* `eval "$(python -m weightfs.hdf5)"` sets the variables by which every program of that shell uses it for all the files
  that it opens without naming a driver. They must be set before HDF5 is loaded.

Settings of the driver, as keywords of `File` or words of `HDF5_DRIVER_CONFIG` (docs/HDF5.md describes them):
`num_threads`, `block_size`, `queue_depth`, `direct_size`, `cache`, `read_ahead`, `sync`, `direct`.
"""

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
    """Finds the plugin of this package.

    Returns:
        The shared object; the folder that holds it belongs into HDF5_PLUGIN_PATH.

    Raises:
        FileNotFoundError: The package was installed without it.
    """
    if not _PLUGIN.is_file():
        raise FileNotFoundError(f"weightfs was installed without its HDF5 plugin: {_PLUGIN} is missing; "
                                "install the package again with `pip install .` in the clone")
    return _PLUGIN


def environment(**settings: Union[int, str]) -> Dict[str, str]:
    """Puts together the variables that make every HDF5 program use the driver.

    Args:
        **settings: Settings of the driver; sizes as bytes or text ("1M").

    Returns:
        HDF5_PLUGIN_PATH (before what is set already), HDF5_DRIVER, and HDF5_DRIVER_CONFIG where there are settings.

    Raises:
        FileNotFoundError: The plugin is missing.
        TypeError: There is no such setting.
    """
    folders = [str(plugin_path().parent)]
    folders += [folder for folder in os.environ.get("HDF5_PLUGIN_PATH", "").split(":") if folder not in ("", *folders)]
    variables = {"HDF5_PLUGIN_PATH": ":".join(folders), "HDF5_DRIVER": DRIVER}
    if settings:
        variables["HDF5_DRIVER_CONFIG"] = _configuration(settings)
    return variables


def File(name: Union[str, os.PathLike], mode: str = "r", **options: Any) -> "h5py.File":
    """Opens an HDF5 file through the driver; other files that the program opens keep theirs.

    The driver is set in the file's own access properties, as h5py.File's `driver` argument does for HDF5's drivers.

    Args:
        name: Path of the file, on a weightfs mount or any other filesystem.
        mode: As of h5py.File: "r", "r+", "w", "w-" or "x", "a".
        **options: Settings of the driver (SETTINGS); everything else goes to h5py.File (libver, swmr, locking, …).

    Returns:
        The open file. As with every h5py.File one thread at a time is in HDF5.

    Raises:
        ModuleNotFoundError: There is no h5py.
        RuntimeError: h5py's HDF5 is too old to load drivers.
        FileNotFoundError: The plugin is missing; or, as of h5py.File, the file.
        OSError: The plugin cannot be loaded, a setting is wrong, or the file cannot be opened; the text says which.
    """
    register()
    import h5py

    return h5py.File(name, mode, driver=DRIVER, **options)


def register() -> None:
    """Makes `h5py.File(path, driver="weightfs", …settings)` work; `File` calls it. It may be called again, by any thread.

    Raises:
        ModuleNotFoundError: There is no h5py.
        RuntimeError: h5py's HDF5 is too old to load drivers.
        FileNotFoundError: The plugin is missing.
        OSError: The plugin cannot be loaded.
    """
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
            raise RuntimeError(f"h5py {h5py.version.version} has HDF5 {h5py.version.hdf5_version}, which loads no file "
                               f"drivers: HDF5 1.14 or newer is needed (pip install --upgrade h5py)")
        plugin = plugin_path()
        ctypes.CDLL(str(plugin))   # The loader's own text where a library is missing that it needs.
        # h5py has no name for this function: it is looked up in the HDF5 that its modules were linked with.
        function = ctypes.CDLL(h5py.h5p.__file__).H5Pset_driver_by_name
        function.argtypes, function.restype = [ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p], ctypes.c_int
        h5py.h5pl.prepend(os.fsencode(plugin.parent))
        h5py.register_driver(DRIVER, _set_access)
        _set_driver_by_name = function


def direct_operations() -> int:
    """Counts the driver's operations of this process that went past a mount by a lease.

    Returns:
        The number so far; 0 in a process that has not used the driver.

    Raises:
        FileNotFoundError: The plugin is missing.
        OSError: The plugin cannot be loaded.
    """
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
        raise OSError(f"HDF5 did not take its driver weightfs from {plugin_path()}: this HDF5 may have another "
                      "interface for drivers; HDF5 1.14 to 2.2 are known to work")


def _words(text: List[str]) -> Dict[str, str]:
    pairs = [word.partition("=") for word in text]
    for name, equals, _ in pairs:
        if not equals:
            raise TypeError(f"{name!r} is no setting: NAME=VALUE is needed")
    return {name: value for name, _, value in pairs}


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m weightfs.hdf5", description=(
        "Prints the variables by which every program with HDF5 1.14 or newer uses the driver weightfs: "
        'eval "$(python -m weightfs.hdf5)"'))
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings of the driver: " + ", ".join(SETTINGS))
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    given = parser.parse_args(arguments)
    try:
        variables = environment(**_words(given.settings))
    except (TypeError, FileNotFoundError) as error:
        print(f"weightfs.hdf5: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(variables))
    else:
        for name, value in variables.items():
            print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
