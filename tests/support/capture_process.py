"""A capture, or a repair, as a process: the arguments are ``Site.to_json`` and which; SIGTERM stops it. Exit codes are
those of our errors."""

from __future__ import annotations

import logging
import signal
import sys
import threading

from tailrace.cdc.capture import Capture
from tailrace.cdc.repair.repair import repair_source
from tailrace.eventstore.errors import TailraceError
from tailrace.eventstore.store import Store
from tests.support.capturing import SOURCE, Site


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    site = Site.from_json(sys.argv[1])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        with Store.open(site.store_settings, root=site.root) as store:
            if sys.argv[2] == "repair":
                repair_source(store, SOURCE, site.settings, stop=stop)
                return 0
            Capture(store, SOURCE, site.settings, stop=stop).run()
    except TailraceError as error:
        print(f"{type(error).__name__}: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
