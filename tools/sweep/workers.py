"""What runs the steps of a sweep: this process, processes of this machine, or a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Generator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.dialects.diagnostics import UserError
from penstock.tools.sweep.steps import Outcome, Step, run_step

if TYPE_CHECKING:
    from penstock.tools.sweep.runner import Workers


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

    def restart(self) -> None:
        raise AssertionError("this process has not ended")


class Processes:
    """Steps in processes of this machine."""

    def __init__(self, count: int):
        self.slots = count
        self._pool = self._new_pool()

    def submit(self, step: Step) -> Future[Outcome]:
        try:
            return self._pool.submit(run_step, step)
        except RuntimeError as error:  # a process has ended, and nobody has noticed yet
            future = Future[Outcome]()
            future.set_exception(error)
            return future

    def restart(self) -> None:
        self.close()
        self._pool = self._new_pool()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _new_pool(self) -> ProcessPoolExecutor:
        # A fork would have the threads of the progress bar, halfway.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.slots, context, initializer=_begin_process)


def _begin_process() -> None:
    """End with the process that asks, which may be killed: nobody else ends this one then."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


class Cluster:
    """Steps on the workers of a Dask cluster, which gives those of a worker that is lost to others."""

    def __init__(self, client: Any):
        self._client = client
        self.slots = 2 * max(1, sum(client.ncores().values()))
        self._executor: Any = client.get_executor(pure=False)

    def submit(self, step: Step) -> Future[Outcome]:
        return self._executor.submit(run_step, step)

    def restart(self) -> None:
        pass


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
            notes = ["pip install 'penstock[distributed]'"]
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
