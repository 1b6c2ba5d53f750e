"""A bridge of one's own: messages become lines of JSON in a file, on disk before they count as taken.

[destinations.lines]
kind = "own"
bridge = "examples.file_bridge:FileBridge"
options = { path = "orders.jsonl" }
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tailrace.errors import TransientError
from tailrace.eventstore.publishing.bridges.bridge import TAKEN, Answer, Message


class FileBridge:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._path = Path(options["path"])

    def send(self, messages: Sequence[Message]) -> Sequence[Answer]:
        lines = [{"id": each.id, "key": text(each.key), "value": text(each.value)} for each in messages]
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")  # a line that a crash cut off ends here
                file.writelines(json.dumps(each) + "\n" for each in lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise TransientError(
                f"{self._path} cannot be written: {error}", hint="look at the disk"
            ) from None
        return [TAKEN] * len(messages)

    def check(self) -> None:
        if not self._path.parent.is_dir():
            raise TransientError(f"there is no folder {self._path.parent}", hint="make it")

    def close(self) -> None: ...


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
