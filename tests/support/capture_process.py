"""A capture as a process: the argument is ``Site.to_json``; SIGTERM stops it. Exit codes are those of our errors."""

from __future__ import annotations

import logging
import signal
import sys
import threading

from cdc.capture import Capture
from eventstore.errors import TailraceError
from eventstore.log import Store
from tests.support.capturing import SOURCE, Site


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    site = Site.from_json(sys.argv[1])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        with Store.open(site.store_settings, root=site.root) as store:
            Capture(store, SOURCE, site.settings, stop=stop).run()
    except TailraceError as error:
        print(f"{type(error).__name__}: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
