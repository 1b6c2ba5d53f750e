"""Certificates of an authority of our own, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_authority(folder: Path, name: str) -> None:
    openssl(
        folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.crt",
    )  # fmt: skip


def make_certificate(folder: Path, name: str, *extension: str) -> None:
    openssl(
        folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
        *extension, "-keyout", f"{name}.key", "-out", f"{name}.csr",
    )  # fmt: skip
    openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
        "-days", "2", "-copy_extensions", "copy", "-out", f"{name}.crt",
    )  # fmt: skip
