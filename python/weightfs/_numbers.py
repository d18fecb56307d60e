"""The numbers that callers give: whole, and within what the native side can hold."""

import errno
import operator
import os

_MOST_FILE_BYTES = (1 << 63) - 1
_MOST_DESCRIPTOR = (1 << 31) - 1
_MOST_BYTES = (1 << 63) - 1


def whole(name, value, least, most):
    """TypeError for what is no whole number, ValueError for one out of range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: it is a whole number") from None
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}: it is from {least} to {most}")
    return number


def flag(name, value):
    """TypeError for what is neither true nor false, as the text "false"."""
    if not hasattr(value, "__bool__"):
        raise TypeError(f"{name} is {value!r}: it is True or False")
    return bool(value)


def offset_in_file(value):
    """OSError (EINVAL) for what is no place in a file."""
    if type(value) is int and 0 <= value <= _MOST_FILE_BYTES:
        return value
    try:
        return whole("file_offset", value, 0, _MOST_FILE_BYTES)
    except (TypeError, ValueError) as error:
        raise OSError(errno.EINVAL, str(error)) from None


def file_name(file):
    """A path as bytes, or a descriptor; OSError (EINVAL, EBADF) for what can be none."""
    if isinstance(file, str) or not hasattr(file, "__index__"):
        path = os.fsencode(file)
        if b"\0" in path:
            raise OSError(errno.EINVAL, f"{path!r} cannot be a path: it has a null byte")
        return path
    number = operator.index(file)
    if not 0 <= number <= _MOST_DESCRIPTOR:
        raise OSError(errno.EBADF, f"{number} is not an open descriptor")
    return number


def bytes_of_elements(count, item_size):
    """OSError (ENOMEM) for more than any memory holds."""
    if count * item_size > _MOST_BYTES:
        raise OSError(errno.ENOMEM, f"{count} elements of {item_size} bytes are more than any memory holds")
    return count * item_size
