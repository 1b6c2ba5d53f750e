"""Jobs as text, for each scheduler in its own language."""

from __future__ import annotations

import ast
import shlex
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

import tailrace
from tailrace.cli import main
from tailrace.projections.spark import versions
from tailrace.projections.spark.versions import Versions, version_differences

CONFIGURATION = """
[store]
name = "acme"
catalog = "${CATALOG_DSN}"
segments = "s3://acme-log/segments"
[sources.shop]
dsn = "${SHOP_DSN:-postgresql:///shop}"
[sinks.mart]
kind = "postgres"
dsn = "${MART_DSN}"
[spark]
master = "spark://cluster:7077"
driver_memory = "2g"
"""
MAIN = str(Path(tailrace.__file__).with_name("__main__.py"))


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """``tailrace projection job …`` in a folder with a configuration: its exit code and what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CATALOG_DSN", "postgresql://log:secret-word@catalog/log")
    monkeypatch.setenv("MART_DSN", "postgresql://mart:secret-word@mart/mart")
    (tmp_path / "tailrace.toml").write_text(CONFIGURATION)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main.run(["projection", "job", *arguments])
        said = capsys.readouterr()
        assert "secret-word" not in said.out + said.err
        return code, said.out, said.err

    return run


def test_the_line_for_spark_submit_is_one_command_of_a_shell(printed: Any, tmp_path: Path) -> None:
    code, out, err = printed(
        "spark-submit", "--", "rebuild", "customer totals", "--as-of", "2026-01-01 12:00"
    )
    assert code == 0 and "it needs in its environment: CATALOG_DSN, MART_DSN" in err
    words = shlex.split(out.replace("\\\n", " "))
    assert words[:3] == ["spark-submit", "--master", "spark://cluster:7077"]
    assert words[words.index("--driver-memory") + 1] == "2g"
    given = words[words.index(MAIN) + 1 :]
    assert given[:2] == ["--config", str(tmp_path / "tailrace.toml")]
    assert given[2:] == ["rebuild", "customer totals", "--as-of", "2026-01-01 12:00"]


def test_the_task_for_airflow_compiles_and_names_what_its_worker_needs(printed: Any) -> None:
    code, out, _ = printed("airflow", "--config-at", "/app/tailrace.toml", "--", "verify", "customer_totals")
    assert code == 0 and "# The worker's environment has CATALOG_DSN, MART_DSN." in out
    compile(out, "dag.py", "exec")
    task = ast.parse(out).body[-1]
    assert isinstance(task, ast.Assign)
    call = task.value
    assert isinstance(call, ast.Call)
    given = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    assert given["task_id"] == "acme-verify-customer-totals"
    assert given["application"] == MAIN
    assert given["application_args"] == ["--config", "/app/tailrace.toml", "verify", "customer_totals"]


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        *(
            (f"Cannot execute: spark-submit. Error code is: {code}.", "AirflowException")
            for code in (6, 130, 137, -9)
        ),
        ("Cannot execute: spark-submit. Error code is: 5.", "AirflowSkipException"),
        *(
            (f"Cannot execute: spark-submit. Error code is: {code}.", "AirflowFailException")
            for code in (1, 2, 4, 7)
        ),
        ("No driver id is known", "AirflowFailException"),
    ],
)
def test_airflow_repeats_only_what_may_be_repeated(
    printed: Any, monkeypatch: pytest.MonkeyPatch, said: str, outcome: str
) -> None:
    """What its provider 6.3 says when spark-submit ends with a code."""

    class AirflowException(Exception): ...

    class AirflowFailException(AirflowException): ...

    class AirflowSkipException(AirflowException): ...

    class SparkSubmitOperator:
        def __init__(self, **given: object) -> None:
            assert given["retries"] == 3

        def execute(self, context: object) -> None:
            raise AirflowException(said)

    exceptions = (AirflowException, AirflowFailException, AirflowSkipException)
    modules: dict[str, dict[str, Any]] = {
        "airflow.exceptions": {each.__name__: each for each in exceptions},
        "airflow.providers.apache.spark.operators.spark_submit": {"SparkSubmitOperator": SparkSubmitOperator},
    }
    for name, members in modules.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("airflow", "airflow.providers", "airflow.providers.apache", "airflow.providers.apache.spark",
                 "airflow.providers.apache.spark.operators"):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    _, out, _ = printed("airflow")
    dag: dict[str, Any] = {}
    exec(out, dag)
    with pytest.raises(AirflowException) as caught:
        dag["acme_run_once"].execute({})
    assert type(caught.value).__name__ == outcome


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("run", "--once", "--nonsense"), "--nonsense"),
        (("rebuild",), "name the projections to build"),
        (("verify", "--sample", "many"), "Invalid value for '--sample'"),
        (("run", "--once", "--env"), "error: "),
    ],
)
def test_a_command_that_would_be_refused_is_no_job(printed: Any, command: tuple[str, ...], said: str) -> None:
    for form in ("spark-submit", "airflow"):
        code, out, err = printed(form, "--", *command)
        assert (code, out) == (2, "") and said in err


def test_global_options_may_stand_anywhere_in_a_jobs_command(printed: Any) -> None:
    code, out, _ = printed("spark-submit", "--", "verify", "totals", "--json", "--sample", "10")
    assert code == 0 and out.rstrip().endswith("verify totals --json --sample 10")


def test_the_application_for_kubernetes_is_what_its_operator_reads(printed: Any) -> None:
    code, out, _ = printed(
        "kubernetes", "--image", "acme/tailrace:7", "--main", "/app/lib/tailrace/__main__.py",
        "--config-at", "/app/tailrace.toml",
    )  # fmt: skip
    assert code == 0
    document = yaml.safe_load(out)
    assert (document["apiVersion"], document["kind"]) == ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
    assert document["metadata"] == {"name": "acme-run-once"}
    spec = document["spec"]
    assert (spec["type"], spec["mode"], spec["image"]) == ("Python", "cluster", "acme/tailrace:7")
    assert spec["mainApplicationFile"] == "local:///app/lib/tailrace/__main__.py"
    assert spec["arguments"] == ["--config", "/app/tailrace.toml", "run", "--once"]
    assert spec["sparkVersion"] == versions.process_versions().pyspark
    assert spec["restartPolicy"] == {"type": "Never"}, "what creates it looks at why it ended"
    secrets = {entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in spec["driver"]["env"]}
    assert secrets == {name: {"name": "tailrace", "key": name} for name in ("CATALOG_DSN", "MART_DSN")}
    assert "env" not in spec["executor"], "executors open neither catalog nor sinks"
    _, out, _ = printed("kubernetes", "--image", "acme/tailrace:7", "--", "run")
    assert yaml.safe_load(out)["spec"]["restartPolicy"] == {"type": "Always"}, "it never ends by itself"


def test_what_cannot_run_as_a_job_is_refused(printed: Any, tmp_path: Path) -> None:
    code, _, err = printed("airflow", "--", "status")
    assert code == 2 and "'status' is no job for Spark: run, rebuild, verify are" in err
    code, _, err = printed("kubernetes")
    assert code == 2 and "needs an image" in err
    (tmp_path / "tailrace.toml").write_text('[store]\nsegments = "s3://acme-log/segments"\n')
    code, _, err = printed("kubernetes", "--image", "acme/tailrace:7")
    assert code == 2 and "the catalog is a SQLite file" in err
    (tmp_path / "tailrace.toml").write_text("")
    code, _, err = printed("spark-submit", "--master", "yarn")
    assert code == 2 and "the Spark master is 'yarn', but store.segments is a folder of this machine" in err


def test_versions_that_do_not_go_together_are_told() -> None:
    mine = Versions("4.3.0", "0.1.0")
    assert version_differences(mine, "4.3.1", [mine, mine]) == []
    assert version_differences(mine, "4.3.0", [Versions("4.3.0", None)]) == [], "modules that were sent along"
    (spark,) = version_differences(mine, "4.2.0", [])
    assert spark.startswith("Spark is 4.2.0, but this driver's pyspark is 4.3.0: pip install pyspark==4.2.0")
    told = version_differences(mine, "4.3.0", [mine, Versions("4.2.1", "0.2.0"), Versions("4.3.0", "")])
    assert told == [
        "executors run pyspark 4.2.1, this driver 4.3.0: use one image, or one Spark, for both",
        "executors run tailrace 0.2.0, this driver 0.1.0: install one version on both",
        "executors do not find tailrace: install it there, or send it with --py-files",
    ]
