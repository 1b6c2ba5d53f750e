"""A second engine looks at what the first one computed: a sample in refreshes that Sail took, before they are
committed.

The time for it is a share of what refreshes take. Where Spark is not running in this process, its start counts too. A
row that differs ends Sail's work on the generation: everything is computed again by Spark.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from tailrace.eventstore.disclosure import describe_error
from tailrace.eventstore.errors import TailraceError
from tailrace.projections.generations.step_files import StepFiles
from tailrace.projections.refresh.engines.parity import NotComparable, difference_on

if TYPE_CHECKING:
    from tailrace.projections.refresh.step_input import StepInput

_log = logging.getLogger("tailrace.projections")
SHARE = 0.03
"""Of the time that refreshes take on Sail."""


def witness(step: StepInput, files: StepFiles, seconds: float) -> str | None:
    """What Spark gives otherwise than Sail did in ``seconds``, in a sample of the result, which ``files`` hold; None:
    nothing, or it was not this refresh's turn."""
    held = step.ctx.witness_time
    held.saved += SHARE * seconds
    if held.saved < held.cost:
        return None
    step.ctx.report(f"comparing with Spark for {step.projection.name}", 0, None, "")
    began = time.monotonic()
    try:
        return difference_on("spark", step, files).failed
    except NotComparable:
        return None
    except TailraceError as error:
        _log.warning("Spark could not look at %s: %s", step.generation, describe_error(error))
        return None
    finally:
        held.cost, held.saved = time.monotonic() - began, 0.0
