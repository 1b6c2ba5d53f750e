"""A forked process is like one that ``subprocess`` starts: each test runs with both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPOSITORY, forking
from tests.support.forking import Forked

Start = type[subprocess.Popen[str]]
PROBE = """
import atexit, json, os, signal, sys, threading, time

def about():
    return {
        "name": __name__, "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "environment": dict(os.environ),
        "leads a session": os.getsid(0) == os.getpid(),
        "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "threads": len(os.listdir("/proc/self/task")),
        "open": [number for number in range(1000) if os.path.exists(f"/proc/self/fd/{number}")],
        "lines": [sys.stdout.line_buffering, sys.stderr.line_buffering],
        "umask": os.umask(0),
    }

if sys.argv[1] == "about":
    print(json.dumps(about()))
elif sys.argv[1] == "exit":
    atexit.register(print, "at exit")
    threading.Thread(target=lambda: (time.sleep(0.1), print("a thread"))).start()
    sys.exit(eval(sys.argv[2]))
elif sys.argv[1] == "fail":
    1 / 0
elif sys.argv[1] == "echo":
    sys.stderr.write(sys.stdin.read())
elif sys.argv[1] == "much":
    print("x" * 1_000_000, file=sys.stderr)
    print("y" * 1_000_000)
elif sys.argv[1] == "wait":
    if sys.argv[2:]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    print(os.getpid(), flush=True)
    while True:
        time.sleep(10)
"""


STARTS: dict[str, Start] = {"started": subprocess.Popen, "forked": Forked}


@pytest.fixture(params=STARTS)
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    (tmp_path / "probe.py").write_text(PROBE)
    return STARTS[request.param]


def argv(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "probe", *arguments]


def run(start: Start, folder: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return forking.run(argv(*arguments), timeout=60, cwd=folder, start=start, **more)


@contextmanager
def waiting(start: Start, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is in its loop."""
    with start(argv("wait", *arguments), cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert int(process.stdout.readline()) == process.pid
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("new_session", [False, True])
def test_a_process_begins_as_a_new_interpreter(tmp_path: Path, new_session: bool) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    answers = []
    folders = ["/nowhere", str(REPOSITORY), str(Path(json.__file__).parents[1]), "/nowhere"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "ONE": "ä = 1", "COLUMNS": "99"}
    environment.pop("HOME", None)
    for start in STARTS.values():
        with start(
            argv("about", "ö", ""), cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            text=True, start_new_session=new_session,
        ) as process:  # fmt: skip
            answers.append(json.loads(process.communicate(timeout=60)[0]))
    assert answers[0] == answers[1]
    assert answers[0]["leads a session"] == new_session
    assert answers[0]["environment"] == environment
    assert answers[0]["open"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("asked", "code"), [("0", 0), ("None", 0), ("7", 7), ("300", 44), ("-1", 255), ("'why'", 1)]
)
def test_exit_codes_come_after_threads_and_what_is_to_be_done_at_exit(
    start: Start, tmp_path: Path, asked: str, code: int
) -> None:
    done = run(start, tmp_path, "exit", asked)
    assert (done.returncode, done.stdout) == (code, "a thread\nat exit\n")
    assert done.stderr == ("why\n" if asked == "'why'" else "")


def test_an_exception_is_a_traceback_and_exit_code_1(start: Start, tmp_path: Path) -> None:
    done = run(start, tmp_path, "fail")
    assert done.returncode == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_streams_are_the_ones_given(start: Start, tmp_path: Path) -> None:
    done = run(start, tmp_path, "much")
    assert (done.stdout, done.stderr) == ("y" * 1_000_000 + "\n", "x" * 1_000_000 + "\n")
    said = tmp_path / "said"
    with said.open("w") as file, start(
        argv("echo"), cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
    ) as process:  # fmt: skip
        assert process.communicate("hello", timeout=60)[0] == ""
    assert said.read_text() == "hello"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_signals_end_it(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    with waiting(start, tmp_path) as process:
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        process.send_signal(number)
        assert process.wait(60) == -number
        assert process.poll() == -number
        process.send_signal(number)  # nothing is hit
    assert not Path(f"/proc/{process.pid}").exists()


def test_a_handled_signal_and_a_stopped_process(start: Start, tmp_path: Path) -> None:
    with waiting(start, tmp_path, "handle") as process:
        process.send_signal(signal.SIGSTOP)
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 7


def test_output_that_was_not_read_in_time_is_read_later(start: Start, tmp_path: Path) -> None:
    with start(argv("wait"), cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=0.5)
        process.kill()
        assert process.communicate(timeout=60)[0] in ("", f"{process.pid}\n")


def test_a_text_is_run_as_a_program(start: Start, tmp_path: Path) -> None:
    program = "import json, sys\ndef answer(): return __name__, sys.argv, sys.path[:2]\n"
    program += "print(json.dumps(answer()))\nsys.exit(3)"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = forking.run(
        [sys.executable, "-c", program, "a", "-m"], timeout=60, cwd=tmp_path, env=environment, start=start
    )
    assert json.loads(done.stdout) == ["__main__", ["-c", "a", "-m"], ["", str(REPOSITORY)]]
    assert done.returncode == 3


def test_many_at_once_do_not_get_in_each_others_way(start: Start, tmp_path: Path) -> None:
    codes: dict[int, int] = {}

    def one(number: int) -> None:
        codes[number] = run(start, tmp_path, "exit", str(number)).returncode

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == {number: number for number in range(4)}


def test_fail_points_are_those_of_the_childs_environment(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(
        "from tailrace.eventstore import failpoints\nfailpoints.hit('epoch_committed')"
    )
    armed = {**os.environ, "TAILRACE_FAILPOINT": "epoch_committed:1"}
    assert run(Forked, tmp_path, env=armed).returncode == -signal.SIGKILL
    assert run(Forked, tmp_path).returncode == 0


def test_what_a_fork_would_get_wrong_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forking.server()
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    with pytest.raises(ValueError, match="NUMBA_DISABLE_JIT before the fork"):
        run(Forked, tmp_path)
    monkeypatch.delenv("NUMBA_DISABLE_JIT")
    with pytest.raises(ValueError, match="TMPDIR before the fork"):
        run(Forked, tmp_path, env={**os.environ, "TMPDIR": "/elsewhere"})
    with pytest.raises(ValueError, match="only Python with -m or -c"):
        forking.run([sys.executable, "probe.py"], timeout=60)


def test_the_server_has_one_thread(tmp_path: Path) -> None:
    """A fork has only the thread that forks: what others hold then would be held for ever."""
    (tmp_path / "probe.py").write_text("import os\nprint(os.getppid())")
    server = int(run(Forked, tmp_path).stdout)
    assert [task.name for task in Path(f"/proc/{server}/task").iterdir()] == [str(server)]
