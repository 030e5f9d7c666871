"""Processes that watch each other, without a framework: who is waited for, lost or failed is named, and all end.

The timeout is two seconds here.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from moespec.training.commands.launch import _free_port

PROGRAM = """
import os, sys, time
from moespec.backends.processes import process_of
from moespec.training.loop import watchdog
fails, timeout, watchdog.WORD, watchdog.GRACE = int(sys.argv[1]), float(sys.argv[2]), 0.3, 1.0
try:
    dog = watchdog.Watchdog(process_of(os.environ), timeout)
except Exception as error:
    print(error, file=sys.stderr)
    sys.exit(3)
print(dog.address, flush=True)
for dog.step in range(1, 2000):
    time.sleep(0.02)
    if dog.step == fails:
        dog.leave("a fault of its own", well=False)
        watchdog.ended(4)
"""


def start(index, port, *, count=2, fails=0, timeout=2.0):
    numbers = {"RANK": index, "WORLD_SIZE": count, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {**os.environ, **{name: str(value) for name, value in numbers.items()}}
    command = [sys.executable, "-c", PROGRAM, str(fails), str(timeout)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def there(*processes):
    """All have come; the addresses that they go by."""
    addresses = [process.stdout.readline().strip() for process in processes]
    assert all(addresses), processes[addresses.index("")].communicate()
    time.sleep(0.5)  # some steps
    return addresses


def ended(process, status):
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    return errors


@pytest.mark.parametrize(("harm", "index"), [(signal.SIGSTOP, 0), (signal.SIGSTOP, 2), (signal.SIGKILL, 0)])
def test_all_end_with_the_name_of_the_lost(harm, index):
    port = _free_port()
    processes = [start(each, port, count=3) for each in range(3)]
    there(*processes)
    lost = processes.pop(index)
    lost.send_signal(harm)
    since = time.monotonic()
    why = "no heartbeat for 2 s" if harm == signal.SIGSTOP else ""
    try:
        for each in processes:
            errors = ended(each, 2)
            assert f": lost process {index} of 3 on {socket.gethostname()}, its last known step was " in errors
            assert why in errors
            assert errors.endswith("; --resume continues from the last checkpoint\n")
        assert time.monotonic() - since < 20  # of a busy machine, where 40 s is the timeout otherwise
    finally:
        lost.kill()
        lost.communicate()


@pytest.mark.parametrize("index", [0, 1])
def test_the_others_are_told_of_an_error(index):
    port = _free_port()
    processes = [start(each, port, fails=30 * (each == index)) for each in range(2)]
    errors = ended(processes[1 - index], 2)
    assert f"process {index} of 2 on {socket.gethostname()} failed: a fault of its own; --resume" in errors
    said = ended(processes[index], 4).splitlines()
    assert not [line for line in said if ": waiting for process" not in line]  # a busy machine starts processes slowly


@pytest.mark.parametrize(("index", "missing"), [(0, "processes 1, 2 of 3"), (1, "process 0 of 3")])
def test_who_does_not_come_is_named(index, missing):
    port = _free_port()
    errors = ended(start(index, port, count=3, timeout=1.0), 3)
    where = f"{missing} at 127.0.0.1:{port + 1}"
    waiting, *_, last = errors.splitlines()
    assert waiting.startswith(f"moespec (process {index}): waiting for {where}")
    assert last.startswith(where)
    assert last.endswith(": not connected after 5 s")


def test_strangers_at_the_port_do_no_harm():
    port = _free_port()
    first = start(0, port)
    for said in (b"", b"GET / HTTP/1.0\r\n\r\n", b"[" * 4000 + b"\n", b'{"index": 9, "count": 2, "host": 1}\n'):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port + 1), timeout=5) as stranger:
                stranger.sendall(said)
                break
            time.sleep(0.1)
    second = start(1, port)
    assert there(first, second) == ["127.0.0.1"] * 2
    second.kill()
    assert "lost process 1 of 2" in ended(first, 2)
    second.communicate()


def test_a_port_that_is_taken_is_named():
    port = _free_port()
    with socket.create_server(("127.0.0.1", port + 1)):
        assert f"port {port + 1} (MASTER_PORT + 1) is not available: " in ended(start(0, port), 3)
