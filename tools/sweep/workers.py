# SPDX-License-Identifier: Apache-2.0
"""What runs the steps of a sweep: this process, processes of this machine, or a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Protocol

from penstock.dialects.diagnostics import UserError, pip_install
from penstock.tools.sweep.steps import Outcome, Step, run_step


class Workers(Protocol):
    """What runs steps: processes of this machine, or a cluster."""

    slots: int
    """How many it runs at a time."""

    def submit(self, step: Step) -> Future[Outcome]: ...


class ThisProcess:
    """Steps one after the other, in the process that asks for them."""

    slots = 1

    def submit(self, step: Step) -> Future[Outcome]:
        future = Future[Outcome]()
        try:
            future.set_result(run_step(step))
        except UserError as error:
            future.set_exception(error)
        return future


class WorkerEnded(Exception):
    """The process of a step ended before the step was done."""


class Processes:
    """
    Steps in processes of this machine.

    A process that ends takes with it the one step that it ran, whose future raises WorkerEnded, and another takes its
    place. A step goes to a process that was at work on its file, if one waits: what it remembers is of use again.
    """

    def __init__(self, count: int, run: Callable[[Step], Outcome] = run_step):
        self.slots = count
        self._run_step = run
        self._threads = ThreadPoolExecutor(count)
        self._lock = threading.Lock()
        self._all: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._is_closed = False

    def submit(self, step: Step) -> Future[Outcome]:
        return self._threads.submit(self._run, step)

    def kill(self) -> None:
        """End all processes, as a machine that is short of memory does."""
        with self._lock:
            for worker in self._all:
                worker.process.kill()

    def close(self) -> None:
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.kill()

    def _run(self, step: Step) -> Outcome:
        with self._lock:
            if self._is_closed:
                raise WorkerEnded
            if not self._idle:
                self._idle.append(_Worker(self._run_step))
                self._all.append(self._idle[-1])
            alike = (worker for worker in self._idle if worker.path == step.source.path)
            worker = next(alike, self._idle[-1])
            self._idle.remove(worker)
            worker.path = step.source.path
        try:
            worker.connection.send(step)
            result = worker.connection.recv()
        except (EOFError, OSError):
            with self._lock:
                self._all.remove(worker)
            worker.process.join()
            raise WorkerEnded from None
        with self._lock:
            self._idle.append(worker)
        if isinstance(result, BaseException):
            raise result
        return result


class _Worker:
    """A process, and the end of a pipe to it: a step goes in, its outcome or what it raised comes out."""

    def __init__(self, run: Callable[[Step], Outcome]):
        # A fork would have the threads of the progress bar, halfway.
        context = multiprocessing.get_context("spawn")
        self.connection, end = context.Pipe()
        self.path: str | None = None
        """The file of the last step."""
        self.process = context.Process(target=_serve, args=(end, run), daemon=True)
        self.process.start()
        end.close()  # so that its end is the end of the pipe


def _serve(connection: Connection, run: Callable[[Step], Outcome]) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        # The process that asks may be killed, and nothing else ends this one then.
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    while True:
        try:
            result = run(connection.recv())
        except EOFError:
            return
        except Exception as error:  # it is raised where the step was asked for
            result = error
        try:
            connection.send(result)
        except (TypeError, AttributeError, pickle.PicklingError):
            connection.send(RuntimeError(repr(result)))


class Cluster:
    """Steps on the workers of a Dask cluster, which gives those of a worker that is lost to others."""

    def __init__(self, client: Any):
        self._client = client
        self.slots = 2 * max(1, sum(client.ncores().values()))
        self._executor: Any = client.get_executor(pure=False)

    def submit(self, step: Step) -> Future[Outcome]:
        return self._executor.submit(run_step, step)


@contextmanager
def workers(jobs: int, scheduler: str | None) -> Generator[Workers]:
    """
    Where steps run: on the Dask cluster of the scheduler at an address, or in so many processes.

    Raises UserError where there is no such cluster, or no Dask.
    """
    if scheduler is not None:
        try:
            from distributed import Client  # pyright: ignore
        except ImportError:
            notes = [pip_install("distributed")]
            raise UserError("a cluster needs the package distributed", notes=notes) from None
        try:
            client: Any = Client(scheduler, set_as_default=False, timeout=10)
        except (OSError, TimeoutError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise UserError(f"there is no scheduler at {scheduler}: {why}") from None
        with client:
            yield Cluster(client)
    elif jobs == 1:
        yield ThisProcess()
    else:
        pool = Processes(jobs)
        try:
            yield pool
        finally:
            pool.close()


def usable_cores() -> int:
    """The CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
