"""kill -9 of jobs again and again, of drivers and of the worker processes of their tasks, wherever they are."""

from __future__ import annotations

import random
from pathlib import Path

from eventstore.derived import GenerationState
from eventstore.log import Store
from eventstore.settings import Settings
from projections.collect import gc
from projections.lifecycle import ProjectionContext, rebuild, reconcile, refresh, verify
from tests.fixtures.scale import Scale
from tests.projections.conftest import Deploy
from tests.projections.shoplog import ShopLog
from tests.projections.test_crashes import NAMES, job, killed, settings_file
from tests.projections.test_lifecycle import rows_of

DRIVER = ("refresh_planned", "derived_committed", "bucket_applied", "sink_fenced")
WORKER = ("derived_written",)
STEPS = {"refresh": DRIVER, "rebuild": (*DRIVER, *WORKER, "generation_promoted")}
_TRANSIENT = 6


def test_what_jobs_that_are_killed_again_and_again_leave_is_finished_by_the_next(
    store: Store, deploy: Deploy, settings: Settings, tmp_path: Path, scale: Scale
) -> None:
    """Before it is finished the next one may be killed, too."""
    wanted = scale.pick(smoke=2, full=100)
    shop = ShopLog.start(store)
    shop.fill(customers=12 + 6 * wanted, orders=80)  # each time some work is done one goes
    ctx = deploy()
    refresh(ctx, NAMES)
    file = settings_file(settings, tmp_path, ["tailrace.demo.shop.projections"])
    draw, kills, told = random.Random(4), 0, list[str]()
    while kills < wanted:
        name, verb = draw.choice(NAMES), draw.choice(list(STEPS))
        step = f"{draw.choice(STEPS[verb])}:{draw.choice((1, 1, 2))}"
        told.append(f"{verb} {name} at {step}")
        shop.work()
        done = job(file, verb, name, failpoint=step)
        assert killed(done) or done.returncode in (0, _TRANSIENT), (told[-3:], done.stderr)
        assert "Traceback" not in done.stderr, (told[-3:], done.stderr)
        cut_off = killed(done) or done.returncode == _TRANSIENT
        kills += cut_off
        if not cut_off or draw.random() < 0.6:
            finish(ctx, name)
            require_right(ctx, shop, name, told)
    for name in NAMES:
        finish(ctx, name)
        require_right(ctx, shop, name, told)


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
    fence, last = ctx.fence(generation), ctx.store.derived.last_derived(name, generation.number)
    assert fence is not None and last is not None and fence.epoch == last.to_epoch, told[-3:]
