"""Prepares batches in advance and in step order, on a thread or in worker processes, with the library grain.

A batch depends only on its step. Of W workers, worker w prepares the batches of steps start + w, start + w + W, and so on.
"""

import functools
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing import connection, parent_process
from typing import Any, Self

from moespec.models.errors import RunError
from moespec.models.memory import cores

__all__ = ["Prefetcher"]

SHARED = 2**16
"""Workers pass arrays of at least this many bytes to the training process through shared memory."""


class Prefetcher:
    """Runs `make(step)` for the steps from `start` to `stop - 1` and keeps `ahead` results ready.

    workers: the number of processes that run `make`, at most one per core, each with `ahead` results ready; 0 for a thread of this process.
        cloudpickle pickles `make` for each worker.
    receive: a function to call with each step and its result on a thread of this process, for example to move results to a device.

    A Prefetcher is a context manager and an iterable of `(step, result)` in order. If `make` raises for a step, the iterator raises at this
    step. Raises RunError if a worker dies. Leaving the context ends threads and workers. Workers ignore Ctrl-C and end with their parent.
    """

    def __init__(
        self,
        make: Callable[[int], Any],
        start: int,
        stop: int,
        *,
        ahead: int,
        workers: int = 0,
        receive: Callable[[int, Any], Any] | None = None,
    ) -> None:
        self._make, self._start, self._stop = make, start, stop
        self._ahead, self._workers, self._receive = ahead, min(workers, cores()), receive
        self._threads: set[threading.Thread] = set()

    def __enter__(self) -> Self:
        self._threads = set(threading.enumerate())
        self._iterator = iter(self._pipeline())
        return self

    def __exit__(self, *error: object) -> None:
        self._iterator.close()
        del self._iterator  # the iterator holds the batches prepared in advance
        for thread in set(threading.enumerate()) - self._threads:
            if thread.name.startswith("grain-"):  # the threads may still be busy
                thread.join()

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        try:
            yield from self._iterator
        except RuntimeError as error:  # grain reports the exit status only in the error text
            if not (found := re.search(r"terminated unexpectedly with exit code (-?\d+)", str(error))):
                raise
            if (status := int(found[1])) >= 0:
                raise RunError(f"a data worker exited with status {status}") from None
            name = signal.Signals(-status).name
            why = f"{name}; {'a damaged image?' if name == 'SIGSEGV' else 'out of memory?'}"
            advice = "reduce data.workers to save memory"
            raise RunError(f"a data worker was killed ({why}); {advice}") from None

    def _pipeline(self) -> Any:
        """Builds the grain pipeline. grain is imported here because the import is slow and also imports JAX if installed."""
        logging.getLogger("absl").setLevel(logging.ERROR)  # without JAX, grain warns that it cannot profile
        import grain

        logging.getLogger("absl").setLevel(logging.WARNING)
        steps = grain.MapDataset.range(self._start, self._stop)
        items = steps.map(functools.partial(_made, self._make))
        receive = functools.partial(_receive, self._receive)
        if not self._workers:
            threads = grain.ReadOptions(num_threads=1, prefetch_buffer_size=self._ahead)
            return items.map(receive).to_iter_dataset(threads)
        from absl import flags

        if not flags.FLAGS.is_parsed():  # grain reads absl flags, which must be marked as parsed
            flags.FLAGS.mark_as_parsed()
        one = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        options = grain.MultiprocessingOptions(num_workers=self._workers, per_worker_buffer_size=self._ahead)
        shared = grain.experimental.DatasetOptions(min_shm_size=SHARED)
        shared_steps = grain.experimental.WithOptionsIterDataset(items.to_iter_dataset(one), shared)
        received = shared_steps.mp_prefetch(options, worker_init_fn=_start_worker).map(receive)
        return grain.experimental.ThreadPrefetchIterDataset(received, prefetch_buffer_size=1)


def _made(make: Callable[[int], Any], step: int) -> tuple[int, Any]:
    return step, make(step)


def _receive(receive: Callable[[int, Any], Any] | None, made: tuple[int, Any]) -> tuple[int, Any]:
    step, item = made
    return step, item if receive is None else receive(step, item)


def _start_worker(index: int, count: int) -> None:
    """Makes a worker process ignore the signals of a terminal, and end when the parent process ends."""
    for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):
        signal.signal(number, signal.SIG_IGN)

    def follow(parent: int) -> None:
        connection.wait([parent])
        os._exit(1)

    if (parent := parent_process()) is not None:
        threading.Thread(target=follow, args=(parent.sentinel,), daemon=True).start()
