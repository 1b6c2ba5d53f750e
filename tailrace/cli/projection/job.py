"""``tailrace projection job``: a command as a scheduler's job, printed."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from importlib import metadata
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from tailrace.cli.invocation import hoist_global_options, invocation_of
from tailrace.cli.projection.context import MasterOption, with_master
from tailrace.eventstore.errors import UsageError, optional_part

if TYPE_CHECKING:
    from tailrace.eventstore.settings import Settings
    from tailrace.jobs import Job


class JobForm(StrEnum):
    """What runs the job."""

    SPARK_SUBMIT = "spark-submit"
    AIRFLOW = "airflow"
    KUBERNETES = "kubernetes"


def job(
    context: typer.Context,
    form: Annotated[JobForm, typer.Argument(help="What runs it.", show_default=False)],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND…]", help="run, rebuild or verify. Default: run --once.", show_default=False
        ),
    ] = None,
    master: MasterOption = None,
    main: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="`tailrace/__main__.py` where the driver runs. Default: that of this installation.",
        ),
    ] = None,
    config_at: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="The configuration where the driver runs. Default: where it is here.",
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", show_default=False, help="kubernetes: the image of its containers."),
    ] = None,
) -> None:
    """Print a command as a job: a line for spark-submit, a task for Airflow, a SparkApplication for Kubernetes."""
    from tailrace import jobs
    from tailrace.config.load import variables

    invocation = invocation_of(context)
    settings = with_master(invocation.settings, master)
    _require_jobs(settings.spark.master)
    configuration = invocation.configuration
    described = jobs.Job(
        store=settings.store.name,
        main=main or jobs.main_file(),
        config=config_at or str(configuration.path),
        env=configuration.env,
        command=_check(context, command or ["run", "--once"]),
        master=settings.spark.master,
        driver_memory=settings.spark.driver_memory,
        spark_version=_spark_version(),
        variables=variables(configuration),
    )
    text = _text(form, described, settings, image)
    if invocation.output.json:
        invocation.output.document({"form": form, "variables": described.variables, "text": text})
        return
    if described.variables and form is JobForm.SPARK_SUBMIT:
        invocation.output.note(f"it needs in its environment: {', '.join(described.variables)}")
    invocation.output.block(text.rstrip("\n"))


def _require_jobs(master: str) -> None:
    """Raises UsageError for a master that takes no jobs."""
    from tailrace.projections.spark.masters import is_connect

    if is_connect(master):
        raise UsageError(
            f"spark.master is {master}: a server of Spark Connect takes no jobs",
            hint="schedule the command itself, as in: tailrace run --once",
        )


def _text(form: JobForm, described: Job, settings: Settings, image: str | None) -> str:
    from tailrace import jobs

    match form:
        case JobForm.SPARK_SUBMIT:
            return jobs.spark_submit(described)
        case JobForm.AIRFLOW:
            return jobs.airflow(described)
        case JobForm.KUBERNETES:
            _check_pods(settings, image)
            return jobs.kubernetes(replace(described, image=image or ""))


def _check(context: typer.Context, command: list[str]) -> tuple[str, ...]:
    """The command, which the parser takes: a job that ends with a usage error is none."""
    from tailrace.jobs import RUNNERS

    if command[0] not in RUNNERS:
        raise UsageError(
            f"{command[0]!r} is no job for Spark: {', '.join(RUNNERS)} are",
            hint="write what the job runs behind --: tailrace projection job airflow -- run --once",
        )
    root = context.find_root().command
    assert isinstance(root, TyperGroup)
    with root.make_context("tailrace", hoist_global_options(command)) as line:
        verb = root.get_command(line, command[0])
        assert verb is not None
        verb.make_context(command[0], list(line.args), parent=line)
    return tuple(command)


def _check_pods(settings: Settings, image: str | None) -> None:
    """Refuse what a driver in a container of its own would not find."""
    if not image:
        raise UsageError(
            "a SparkApplication needs an image",
            hint="--image IMAGE, with Spark, Python, tailrace, your modules and the configuration in it",
        )
    if settings.store.catalog.startswith("sqlite"):
        raise UsageError(
            "the catalog is a SQLite file of this machine, which no pod has",
            hint="tailrace store move brings the log to a catalog on Postgres",
        )
    if not settings.store.in_objects and not settings.store.shared_path:
        raise UsageError(
            "store.segments is a folder of this machine, which no pod has",
            hint="keep the segments in an object store; if every pod mounts that folder, set store.shared_path = true",
        )


def _spark_version() -> str:
    with optional_part("computing a projection", "spark"):
        return metadata.version("pyspark")
