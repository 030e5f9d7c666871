"""Exchanges heartbeats between processes, independently of the framework.

Process 0 listens on port MASTER_PORT + 1. All other processes connect to this port before they connect through the framework. A thread in
each process sends the number of finished steps at least every two seconds. When a process ends early, fails or sends no heartbeat
for `timeout` seconds, all other processes print a line that names the process, and exit. Without the watchdog, the framework
might wait for half an hour. Before the first step, the timeout is `START` times as long, since compilation may block the thread.

There is no authentication: anyone who reaches the port can end a run. Messages are lines of JSON.
"""

import ipaddress
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, ClassVar

from moespec.backends.processes import Process
from moespec.models.errors import RunError
from moespec.spec.errors import ConfigError
from moespec.training.loop.hooks import AfterStep

__all__ = ["Watchdog", "ended", "tell"]

START = 5
"""A process must connect within this many timeouts. Before its first step, a process may send no heartbeat for as long."""
WORD, AGAIN = 5.0, 60.0
"""Seconds before the first message about missing processes, and seconds between later messages."""
GRACE = 5.0
"""After another process has failed, a process has this many seconds to report its error, since all may have the same error."""
MOST = 4096
"""Maximum size of a message in bytes."""


class _Contact:
    """The connection to another process, and the time and the step of the last heartbeat that arrived over it."""

    def __init__(self, connection: socket.socket, timeout: float) -> None:
        self.connection, self.index, self.host = connection, 0, ""
        self.step: int | None = None
        self.heard, self._rest = time.monotonic(), b""
        connection.settimeout(1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # the system detects a cut network even while a compiler runs
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(1000 * timeout))

    def send(self, **message: Any) -> None:
        """Sends a message and ignores errors: the reader notices a lost connection."""
        with suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> list[dict[str, Any]]:
        """Returns the received messages. Raises OSError at the end of the connection, and for invalid messages."""
        if not (received := self.connection.recv(MOST)):
            raise ConnectionError("its connection was closed")
        *lines, self._rest = (self._rest + received).split(b"\n")
        try:
            messages = [dict(json.loads(line)) for line in lines]
        except (ValueError, TypeError, RecursionError) as error:
            raise ConnectionError("it sent an invalid message") from error
        if len(self._rest) > MOST:
            raise ConnectionError("its message was too long")
        self.heard = time.monotonic()
        return messages


class Watchdog:
    """Connects this process to the others. address: the address at which others reach this process. step: the number of finished steps."""

    current: "ClassVar[Watchdog | None]" = None
    abandoned: ClassVar[bool] = False

    def __init__(self, process: Process, timeout: float) -> None:
        """Waits for all processes. Raises RunError if a process does not connect within `START` timeouts."""
        host, _, port = process.address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port) + 1
        if self._port == 2**16:
            raise ConfigError(f"MASTER_PORT={port}: expected a smaller port, since the next one is also needed")
        self.step: int | None = None
        self._index, self._count = process.index, process.count
        self._timeout, self._beat = timeout, min(2.0, timeout / 10)
        self._contacts: list[_Contact] = []
        self._leaving: list[_Contact] = []
        self._failed: tuple[float, str] | None = None
        self._left = False
        self._until, self._word = time.monotonic() + START * timeout, time.monotonic() + WORD
        self.address = self._lead() if process.index == 0 else self._follow()
        self._thread = threading.Thread(target=self._watch, name="moespec-watchdog", daemon=True)
        self._thread.start()
        Watchdog.current = self

    def _lead(self) -> str:
        """Waits on process 0 until all other processes have connected, and returns the address of process 0."""
        strangers: list[_Contact] = []
        missing = set(range(1, self._count))
        with self._listening() as server:
            while missing:
                self._still(f"process{'es' * (len(missing) > 1)} {', '.join(map(str, sorted(missing)[:9]))}")
                ready = wait([server, *(each.connection for each in (*strangers, *self._contacts))], 0.2)
                if server in ready:
                    strangers.append(_Contact(server.accept()[0], self._timeout))
                for gone in [each for each in self._contacts if each.connection in ready]:
                    self._contacts.remove(gone)  # no process sends data yet: a readable connection is lost
                    missing.add(gone.index)
                for new in [each for each in strangers if each.connection in ready]:
                    strangers.remove(new)
                    if self._is_missing(new, missing):
                        missing.remove(new.index)
                        self._contacts.append(new)
        far = [c for c in self._contacts if not ipaddress.ip_address(_ip(c.connection.getpeername())).is_loopback]
        own = _ip((far or self._contacts)[0].connection.getsockname())
        for each in self._contacts:
            each.send(address=_ip(each.connection.getpeername()) if each in far else own, host=socket.gethostname())
        return own

    def _listening(self) -> socket.socket:
        near = self._host in ("127.0.0.1", "localhost")
        both = not near and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        try:
            return socket.create_server(("127.0.0.1" if near else "", self._port), family=family, dualstack_ipv6=both)
        except OSError as error:
            raise RunError(f"port {self._port} (MASTER_PORT + 1) is not available: {error.strerror}") from error

    def _is_missing(self, new: _Contact, missing: Collection[int]) -> bool:
        try:
            said = new.read()[0]
            new.index, new.host, count = int(said["index"]), str(said["host"])[:100], int(said["count"])
        except (OSError, ValueError, LookupError, TypeError):
            return False  # another program
        if new.index in missing and count == self._count:
            return True
        new.send(refused=f"process {new.index} of {count}: already connected, or the job has {self._count} processes")
        return False

    def _follow(self) -> str:
        """Connects this process to process 0, and returns the address of this process."""
        while True:
            try:
                contact = _Contact(socket.create_connection((self._host, self._port), timeout=WORD), self._timeout)
                contact.send(index=self._index, count=self._count, host=socket.gethostname())
                self._word = math.inf  # process 0 reports which processes are missing
                while True:
                    self._still("process 0 or others")
                    for said in contact.read() if wait([contact.connection], 0.2) else ():
                        if "refused" in said:
                            raise RunError(str(said["refused"]))
                        if "address" in said:
                            contact.host = str(said["host"])
                            self._contacts = [contact]
                            return str(said["address"])
            except OSError as error:
                self._word = min(self._word, time.monotonic() + WORD)
                self._still("process 0", f" ({error.strerror or error})")
                time.sleep(0.2)

    def _still(self, missing: str, why: str = "") -> None:
        """Reports missing processes at intervals. Raises RunError after `START` timeouts."""
        where, now = f"{missing} of {self._count} at {self._host}:{self._port}{why}", time.monotonic()
        if now > self._until:
            text = f"{where}: not connected after {START * self._timeout:.0f} s"
            for each in self._contacts:
                each.send(refused=text)
            raise RunError(text)
        if now > self._word:
            self._word = now + AGAIN
            self._say(f"waiting for {where}")

    def _watch(self) -> None:
        said = before = time.monotonic()
        while self._contacts or self._failed:
            ready, now = wait([each.connection for each in self._contacts], self._beat), time.monotonic()
            if now - before > self._timeout / 2:  # this process was suspended; others may have been too
                for each in self._contacts:
                    each.heard = now
            before = now
            for each in [each for each in self._contacts if each.connection in ready]:
                try:
                    for message in each.read():
                        self._heard(each, message)
                except OSError as error:
                    self._lose(each, error.strerror or str(error))
            if now - said >= self._beat and not self._left:
                said = now
                for each in self._contacts:
                    each.send(step=self.step)
            for each in self._contacts:
                if now - each.heard > self._timeout * (START if each.step is None else 1):
                    self._lose(each, f"no heartbeat for {now - each.heard:.0f} s")
            if self._failed and now > self._failed[0]:
                self._end(self._failed[1])

    def _heard(self, contact: _Contact, message: dict[str, Any]) -> None:
        if isinstance(message.get("step"), int):
            contact.step = message["step"]
        if "lost" in message:
            self._end(str(message["lost"]))
        if "left" in message and (message["left"] is None or self._left):
            if self._index and contact in self._contacts:  # process 0 keeps a connection until the other process ends
                self._contacts.remove(contact)
                self._leaving.append(contact)  # the connection closes when this process ends
        elif "left" in message:
            text = f"process {contact.index} of {self._count} on {contact.host} failed: {message['left']}"
            self._failed = self._failed or (time.monotonic() + GRACE, text)

    def _lose(self, contact: _Contact, why: str) -> None:
        if contact in self._contacts:
            self._contacts.remove(contact)
            contact.connection.close()
        if not self._left and not self._failed:
            known = self.step if contact.step is None else contact.step  # the lost process was near this step
            step = "before its first step" if known is None else f"its last known step was {known}"
            self._end(f"lost process {contact.index} of {self._count} on {contact.host}, {step}: {why}")

    def _end(self, text: str) -> None:
        """Ends this process, since its main thread may wait forever."""
        if not self._left:
            for each in self._contacts:
                each.send(lost=text)
            self._say(f"{text}; --resume continues from the last checkpoint")
            sys.stdout.flush()
            time.sleep(1 if self._index == 0 else 0)
            os._exit(LOST)

    def _say(self, text: str) -> None:
        line = "" if self.step is None else "\n"  # Ends the line of the progress bar.
        with suppress(OSError):  # The terminal may have closed.
            print(f"{line}moespec (process {self._index}): {text}", file=sys.stderr, flush=True)

    def settle(self) -> None:
        """Waits after a framework error until it is clear whether a process was lost. If so, the watchdog ends this process."""
        until = time.monotonic() + GRACE
        while (now := time.monotonic()) < until or any(now - each.heard > 3 * self._beat for each in self._contacts):
            time.sleep(self._beat / 2)

    def leave(self, error: str | None = None, *, well: bool = True) -> None:
        """Tells the other processes that this process ends, and the error, if any. After an error, the others end within seconds.

        well: whether the framework has disconnected this process. If not, `ended` ends the process.
        """
        self._left, Watchdog.current = True, None
        Watchdog.abandoned = not well
        for each in self._contacts:
            each.send(left=error and error[:1000])
        # Waits until the other processes have read the message, since JAX aborts them if its coordinator, process 0, ends first.
        self._thread.join(GRACE + 2 if self._index == 0 else 1)


def tell(after: AfterStep) -> None:
    """A hook that tells the watchdog the number of finished steps."""
    if Watchdog.current is not None:
        Watchdog.current.step = after.done


def ended(status: int) -> int:
    """Returns `status` or, after a failed run with several processes, exits with it at once: JAX and torch would wait for the others."""
    if Watchdog.abandoned:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


LOST = 2
"""Exit status after another process was lost."""


def _ip(address: Any) -> str:
    return str(address[0]).removeprefix("::ffff:")
