"""A base install serves services: it appends, loads, follows and reads without Spark, numba or a decoder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import REPOSITORY
from tests.support.wheels import PIP, make_environment, run

EXTRAS = ("pyspark", "sqlglot", "numba", "redis", "tantivy", "kafka")
SERVICE = """
from tailrace.eventstore.store import Store
from tailrace.eventstore.settings import StoreSettings
from tailrace import Stream, append, event, load, open_reader
import tailrace

with Store.open(StoreSettings(), create=True) as store:
    assert store.head() is None and store.topics() == []
    assert list(store.follow(after_epoch=0, timeout=0.01)) == []
print("served by", tailrace.__version__)
"""


def test_the_wheel_carries_its_migrations(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.startswith("tailrace/migrations/catalog/") and name.endswith(".py") for name in names)
    assert any(name.startswith("tailrace/migrations/source/") and name.endswith(".sql") for name in names)


def test_the_wheel_holds_one_package_and_its_metadata(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    metadata = f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info"
    assert {name.split("/")[0] for name in names} == {"tailrace", metadata}
    assert len(names) == len(set(names))
    for package in ("cdc", "eventstore", "migrations", "projections"):
        assert f"tailrace/{package}/__init__.py" in names


def test_services_import_nothing_that_a_base_install_lacks(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(SERVICE)
    code = f"import runpy, sys; sys.modules |= dict.fromkeys({EXTRAS}); runpy.run_path('service.py')"
    assert run(sys.executable, "-c", code, cwd=tmp_path).startswith("served by")


@pytest.mark.slow
def test_a_base_install_appends_loads_follows_and_reads(wheel: Path, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "venv")
    pip = (*PIP, "--python", python, "install", "--quiet", "--no-compile")  # it is run once
    run(*pip, "--require-hashes", "-r", REPOSITORY / "requirements" / "base.txt")
    run(*pip, "--no-deps", wheel)
    found = "[extra for extra in EXTRAS if importlib.util.find_spec(extra)]"
    (tmp_path / "service.py").write_text(
        f"import importlib.util\n\nEXTRAS = {EXTRAS}\nassert not {found}\n{SERVICE}"
    )
    assert run(python, "service.py", cwd=tmp_path).startswith("served by")


OF_KAFKA = """
[sources.shop]
kind = "kafka"
brokers = ["127.0.0.1:1"]
topics = ["shop.public.*"]
[destinations.bus]
kind = "kafka"
brokers = ["127.0.0.1:1"]
[publish.orders]
destination = "bus"
topics = ["shop.public.*"]
"""


@pytest.mark.slow
def test_doctor_and_status_go_on_without_the_packages_of_kafka(tmp_path: Path) -> None:
    from tailrace.eventstore.settings import StoreSettings
    from tailrace.eventstore.store import Store

    (tmp_path / "tailrace.toml").write_text(OF_KAFKA)
    Store.open(StoreSettings(), create=True, root=tmp_path).close()
    for command, last in (("doctor", "to look at"), ("status", "orders: pip install 'tailrace[kafka]'")):
        words = f"from tailrace.cli.main import run; sys.argv = ['tailrace', {command!r}]; run()"
        code = f"import sys; sys.modules |= dict.fromkeys(['crc32c', 'cramjam']); {words}"
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
        assert "which is not installed" in done.stdout, done.stderr
        assert last in done.stdout.splitlines()[-1]
        assert not done.stderr
