"""kill -9 of jobs again and again: of drivers, of the worker processes of their tasks, of the JVM that runs tasks for
them, and of executors on a cluster of Spark's own, wherever they are."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tailrace.eventstore.metadata.generations import GenerationState
from tailrace.eventstore.settings import Settings
from tailrace.eventstore.store import Store
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.step_files import folder_of
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.collect import gc
from tailrace.projections.lifecycle.promote import reconcile
from tailrace.projections.lifecycle.verify import verify
from tests.fixtures.scale import Scale
from tests.projections.conftest import Deploy
from tests.projections.lifecycle.test_crashes import NAMES, job, killed, settings_file
from tests.projections.lifecycle.test_lifecycle import rows_of
from tests.projections.shoplog import ShopLog
from tests.support import REPOSITORY, forking
from tests.support.processes import descendants

DRIVER = ("refresh_planned", "derived_committed", "bucket_applied", "sink_fenced")
WORKER = ("derived_written",)
STEPS = {"refresh": DRIVER, "rebuild": (*DRIVER, *WORKER, "generation_promoted")}
# What of a job whose tasks are elsewhere is seen from outside; an incremental step has no worker processes.
MOMENTS = {"refresh": ("started", "written"), "rebuild": ("started", "computing", "written")}
PROCESS, JVM, EXECUTOR = "driver or worker process", "the driver's JVM", "executor"
COMMANDS = {JVM: "org.apache.spark.deploy.SparkSubmit", EXECUTOR: "CoarseGrainedExecutorBackend"}
MASTERS = {PROCESS: "local[2]", JVM: "local[2]", EXECUTOR: "local-cluster[2,1,1024]"}
# A cluster starts three JVMs for each job: at full scale only.
SMOKE, FULL = {PROCESS: 1, JVM: 1}, {PROCESS: 70, JVM: 15, EXECUTOR: 15}
WORKERS = ("pyspark.daemon", "spark_daemon")
HELD = "derived_written~2000"
"""Tasks wait when a bucket is written, so that the moment can be seen."""
_TRANSIENT = 6
_OPERATOR = 7  # a JVM that ended while it started: Spark did not start
_SECONDS = 900
_LOOK_SECONDS = 0.2  # all processes are looked at


@dataclass
class Jobs:
    """A scheduler whose jobs are killed as ``draw`` chooses. ``hit``: how many of each kind really were."""

    ctx: ProjectionContext
    files: dict[str, Path]
    draw: random.Random
    hit: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    clusters: set[Path] = field(default_factory=set)
    """Folders that executors worked in: Spark makes them where it is installed, and leaves them."""

    def run(self, victim: str, name: str) -> bool:
        """One job; whether what it was to lose was killed while it ran."""
        verb = self.draw.choice(list(STEPS))
        if victim == PROCESS:
            step = f"{self.draw.choice(STEPS[verb])}:{self.draw.choice((1, 1, 2))}"
            self.told.append(f"{verb} {name} at {step}")
            done = job(self.files[victim], verb, name, failpoint=step)
            struck = killed(done) or done.returncode == _TRANSIENT
        else:
            moment, delay = self.draw.choice(MOMENTS[verb]), self.draw.choice((0.0, self.draw.uniform(0, 3)))
            self.told.append(f"{verb} {name}, {victim} {delay:.1f} s after it was seen {moment}")
            done, struck = self._struck(victim, verb, name, moment, delay)
        codes = (0, _TRANSIENT, _OPERATOR) if victim == JVM and struck else (0, _TRANSIENT)
        said = "\n".join([*self.told[-3:], done.stderr])  # a tuple would be cut off
        assert killed(done) or done.returncode in codes, said
        assert "Traceback" not in done.stderr, said
        self.hit[victim] += struck
        return struck

    def _struck(
        self, victim: str, verb: str, name: str, moment: str, delay: float
    ) -> tuple[subprocess.CompletedProcess[str], bool]:
        words = ["run", "--once", "--detailed-exitcode"] if verb == "refresh" else [verb]
        argv = [sys.executable, "-m", "tailrace", "--config", str(self.files[victim]), *words, name]
        options = f"-Dspark.executorEnv.TAILRACE_FAILPOINT={HELD}"
        environment = {**os.environ, "TAILRACE_FAILPOINT": HELD, "SPARK_SUBMIT_OPTS": options}
        before = set(self._written(name))
        with forking.Forked(
            argv, cwd=REPOSITORY, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                while process.poll() is None and not self._reached(process.pid, victim, moment, name, before):
                    time.sleep(_LOOK_SECONDS)
                time.sleep(delay)
                struck = self._strike(process, victim)
                out, err = process.communicate(timeout=_SECONDS)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(argv, process.returncode, out, err), struck

    def _reached(self, pid: int, victim: str, moment: str, name: str, before: set[str]) -> bool:
        processes = descendants(pid)
        if not any(COMMANDS[victim] in command for command in processes.values()):
            return False
        if moment == "computing":
            return any(word in command for command in processes.values() for word in WORKERS)
        return moment == "started" or bool(set(self._written(name)) - before)

    def _strike(self, process: subprocess.Popen[str], victim: str) -> bool:
        """Kill one; False when there is none any more, or the job is over."""
        running = [pid for pid, command in descendants(process.pid).items() if COMMANDS[victim] in command]
        if victim == EXECUTOR:
            for pid in running:
                with suppress(OSError):
                    self.clusters.add(Path(f"/proc/{pid}/cwd").readlink().parent)
        if not running or process.poll() is not None:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.draw.choice(sorted(running)), signal.SIGKILL)
            return True
        return False

    def _written(self, name: str) -> Iterator[str]:
        return iter(self.ctx.store.storage.list(folder_of(name)))


@pytest.fixture
def jobs(deploy: Deploy, settings: Settings, tmp_path: Path) -> Iterator[Jobs]:
    files = {}
    for number, (victim, master) in enumerate(MASTERS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        files[victim] = settings_file(settings, folder, ["tailrace.demo.shop.projections"])
        text = files[victim].read_text().replace('master = "local[2]"', f'master = "{master}"')
        files[victim].write_text(text.replace("[store]", "[store]\nshared_path = true"))
    made = Jobs(deploy(), files, random.Random(6))
    yield made
    for folder in made.clusters:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_what_jobs_that_are_killed_again_and_again_leave_is_finished_by_the_next(
    store: Store, jobs: Jobs, scale: Scale
) -> None:
    """Before it is finished the next one may be killed, too."""
    wanted = Counter(scale.pick(smoke=SMOKE, full=FULL))
    shop, ctx, draw = ShopLog.start(store), jobs.ctx, jobs.draw
    shop.fill(customers=12 + 6 * wanted.total(), orders=80)  # each time some work is done one goes
    refresh(ctx, NAMES)
    while left := wanted - jobs.hit:
        name = draw.choice(NAMES)
        shop.work()
        struck = jobs.run(draw.choice(sorted(left.elements())), name)
        if not struck or draw.random() < 0.6:
            finish(ctx, name)
            require_right(ctx, shop, name, jobs.told)
    for name in NAMES:
        finish(ctx, name)
        require_right(ctx, shop, name, jobs.told)


def finish(ctx: ProjectionContext, name: str) -> None:
    """As the next ones would that a scheduler starts."""
    reconcile(ctx, name)
    if any(generation.state is GenerationState.BUILDING for generation in ctx.generations(name)):
        assert rebuild(ctx, name).resumed
    for outcome in refresh(ctx, [name]):
        assert outcome.error is None, outcome
    gc(ctx, name)


def require_right(ctx: ProjectionContext, shop: ShopLog, name: str, told: list[str]) -> None:
    assert rows_of(ctx, name) == shop.expected(name), told[-3:]
    assert verify(ctx, name).equal, told[-3:]
    generation = ctx.live(name)
    assert generation is not None
    fence, last = ctx.fence(generation), ctx.store.steps.last(name, generation.number)
    assert fence is not None and last is not None and fence.epoch == last.to_epoch, told[-3:]
