"""A command of ours as a scheduler's job: the line for ``spark-submit``, a task for Airflow, an application for the
Spark operator of Kubernetes. They are texts: nothing is started here."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tailrace.eventstore.errors import Fenced, TransientError

RUNNERS = ("run", "rebuild", "verify")
"""Commands that compute with Spark. The others need none, and so no cluster."""

REPEATED = (TransientError.exit_code, 130, 137, 143)
"""Exit codes after which the same command may go on: what was out of reach, and what was interrupted or killed."""

_NAME_CHARACTERS = 63  # of a Kubernetes object


@dataclass(frozen=True, slots=True)
class Job:
    """``command`` follows ``tailrace`` on a command line. ``main`` and ``config`` are paths where the
    driver runs, ``variables`` what the configuration takes from its environment."""

    store: str
    main: str
    config: str
    env: str | None
    command: tuple[str, ...]
    master: str
    driver_memory: str
    spark_version: str
    variables: tuple[str, ...] = ()
    image: str = ""

    @property
    def name(self) -> str:
        """``acme-run-once``, as Kubernetes takes names."""
        words = "-".join([self.store, *self.command]).lower()
        return re.sub(r"[^a-z0-9]+", "-", words)[:_NAME_CHARACTERS].strip("-")

    @property
    def arguments(self) -> list[str]:
        """The arguments of the main file."""
        overlay = ["--env", self.env] if self.env else []
        return ["--config", self.config, *overlay, *self.command]

    @property
    def ends(self) -> bool:
        """Whether the command ends by itself."""
        return self.command[0] != "run" or "--once" in self.command


def main_file() -> str:
    """The file of this installation for ``spark-submit`` to run."""
    return str(Path(__file__).with_name("__main__.py"))


def spark_submit(job: Job) -> str:
    """One command for a shell."""
    options = [
        ["--master", job.master],
        ["--driver-memory", job.driver_memory],
        ["--name", job.name],
        [job.main, *job.arguments],
    ]
    return " \\\n  ".join(["spark-submit", *map(shlex.join, options)]) + "\n"


# The operator repeats whatever fails. The exit code is in its error's text alone; where there is none, nothing is
# repeated.
_AIRFLOW_OPERATOR = '''\
import re

from airflow.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator


class TailraceOperator(SparkSubmitOperator):
    """Repeats what may be repeated; skips what another process does already."""

    def execute(self, context):
        try:
            return super().execute(context)
        except AirflowException as error:
            found = re.search(r"Error code is: (-?[0-9]+)", str(error))
            code = int(found[1]) if found else 1
            if code == {fenced}:
                raise AirflowSkipException("another process is at the same projection") from error
            if code in {repeated} or code < 0:
                raise
            raise AirflowFailException("exit code {{}} is not repeated".format(code)) from error


'''


def airflow(job: Job) -> str:
    """A task with its operator, to be put into a DAG. Its Spark connection says what the master is."""
    needed = f"# The worker's environment has {', '.join(job.variables)}.\n" if job.variables else ""
    return (
        _AIRFLOW_OPERATOR.format(fenced=Fenced.exit_code, repeated=REPEATED)
        + "# Give its DAG max_active_runs=1: of two runs of one projection the later is fenced (exit code 5).\n"
        f"{needed}"
        f"{job.name.replace('-', '_')} = TailraceOperator(\n"
        f"    task_id={json.dumps(job.name)},\n"
        '    conn_id="spark_default",\n'
        f"    name={json.dumps(job.name)},\n"
        f"    application={json.dumps(job.main)},\n"
        f"    application_args={json.dumps(job.arguments)},\n"
        f"    driver_memory={json.dumps(job.driver_memory)},\n"
        "    retries=3,\n"
        ")\n"
    )


def kubernetes(job: Job) -> str:
    """A ``SparkApplication``. Variables come from a secret named ``tailrace``, credentials of the object store from the
    service account ``spark``. Its operator cannot tell exit codes, so that it leaves repeating to what creates it."""
    return (
        "apiVersion: sparkoperator.k8s.io/v1beta2\n"
        "kind: SparkApplication\n"
        "metadata:\n"
        f"  name: {json.dumps(job.name)}\n"
        "spec:\n"
        "  type: Python\n"
        '  pythonVersion: "3"\n'
        "  mode: cluster\n"
        f"  image: {json.dumps(job.image)}\n"
        f"  sparkVersion: {json.dumps(job.spark_version)}\n"
        f"  mainApplicationFile: {json.dumps('local://' + job.main)}\n"
        "  arguments:\n"
        + "".join(f"    - {json.dumps(word)}\n" for word in job.arguments)
        + "  restartPolicy:\n"
        f"    type: {'Never' if job.ends else 'Always'}\n"
        "  driver:\n"
        "    cores: 1\n"
        f"    memory: {json.dumps(job.driver_memory)}\n"
        "    serviceAccount: spark\n"
        f"{_environment(job)}"
        "  executor:\n"
        "    cores: 1\n"
        "    instances: 2\n"
        f"    memory: {json.dumps(job.driver_memory)}\n"
        "    serviceAccount: spark\n"
    )


def _environment(job: Job) -> str:
    """The driver's environment; executors open neither catalog nor sinks."""
    if not job.variables:
        return ""
    entries = (
        f"      - name: {json.dumps(name)}\n"
        "        valueFrom:\n"
        "          secretKeyRef:\n"
        "            name: tailrace\n"
        f"            key: {json.dumps(name)}\n"
        for name in job.variables
    )
    return "    env:\n" + "".join(entries)
