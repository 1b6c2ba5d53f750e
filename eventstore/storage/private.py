"""The one place that makes folders and files of data: the user who runs Tailrace may read them, and nobody else.

The umask opens nothing. A folder that somebody opened to its group, and closed to everybody else (0750, also with the
bit that passes the group on), passes that on to what is made inside: folders 0750, files 0640.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

_OPENED, _LOOKED_AT = 0o050, 0o057  # the group may read and enter, others may do nothing


def make_folder(path: Path) -> list[Path]:
    """Make a folder and those above it that are missing; gives them, the topmost first. Raises OSError."""
    absent: list[Path] = []
    while not path.is_dir():
        absent.insert(0, path)
        path = path.parent
    for folder in absent:
        inherited = stat.S_IMODE(folder.parent.stat().st_mode)
        mode = 0o700 | _for_group(inherited)
        try:
            folder.mkdir(mode)
        except FileExistsError:  # another process made it meanwhile; a file of that name is an error
            if not folder.is_dir():
                raise
            continue
        folder.chmod(mode | (stat.S_IMODE(folder.stat().st_mode) & stat.S_ISGID))
    return absent


def opener(path: str, flags: int) -> int:
    """For ``open(…, opener=opener)``: what is made or written is private, also where it was there before."""
    descriptor = os.open(path, flags, 0o600)
    with suppress(PermissionError):  # somebody else's file, which we may write
        os.fchmod(descriptor, _file_mode(Path(path)))
    return descriptor


def close_files(folder: Path) -> None:
    """The files in a folder that a library wrote under the umask."""
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            mode = _file_mode(Path(entry.path))
            if entry.is_file(follow_symlinks=False) and stat.S_IMODE(entry.stat().st_mode) != mode:
                os.chmod(entry.path, mode)


def _file_mode(path: Path) -> int:
    return 0o600 | (_for_group(path.parent.stat().st_mode) & 0o040)


def _for_group(mode: int) -> int:
    return _OPENED if mode & _LOOKED_AT == _OPENED else 0
