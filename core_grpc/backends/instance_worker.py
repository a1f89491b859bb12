"""A thread of its own for each model instance: what is created on it is used and closed on it, and never blocks the event loop.

Work goes in through a queue and comes back as the result of a future of the loop that asked. One named thread an instance, so that a
profiler or a stack dump says which model is busy.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from core_grpc.backends.cores import pin_this_thread


class Closable(Protocol):
    """What an instance must have for its thread."""

    def close(self) -> None:
        """Frees everything."""
        ...


Instance = TypeVar("Instance", bound=Closable)
Result = TypeVar("Result")
_Job: TypeAlias = tuple[Callable[[Any], Any], "asyncio.Future[Any]"]

_log = logging.getLogger(__name__)


class InstanceWorker(Generic[Instance]):
    """Runs functions on one instance, one after the other. All methods belong to the loop that started it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._is_closed = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._name = name

    @classmethod
    async def start(cls, name: str, create: Callable[[], Instance], cores: Sequence[int] = ()) -> InstanceWorker[Instance]:
        """Starts the thread ``name``, on these processors only where there are any, and creates the instance on it.

        Raises:
            OSError: there is no such processor.
            whatever ``create`` raises; the thread is gone then.
        """
        worker = cls(name)
        created: asyncio.Future[None] = worker._loop.create_future()
        # A daemon: an engine call that never returns must not keep the process from ending.
        threading.Thread(target=worker._main, args=(create, created, cores), name=name, daemon=True).start()
        await created
        return worker

    def __repr__(self) -> str:
        return f"<InstanceWorker {self._name}{': closed' if self._is_closed else ''}>"

    def run(self, work: Callable[[Instance], Result]) -> asyncio.Future[Result]:
        """Calls ``work`` with the instance on its thread; the future has what it returned or raised.

        Cancelling the future does not stop the work; its result is dropped.

        Raises:
            RuntimeError: the worker is closed.
        """
        if self._is_closed:
            raise RuntimeError(f"{self._name} is closed")
        done: asyncio.Future[Result] = self._loop.create_future()
        self._jobs.put((work, done))
        return done

    async def close(self) -> None:
        """Closes the instance after the work that was asked for, and waits for the end of the thread; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._jobs.put(None)
        await asyncio.shield(self._ended)

    def _main(self, create: Callable[[], Instance], created: asyncio.Future[None], cores: Sequence[int]) -> None:
        try:
            pin_this_thread(cores)
            instance = create()
        except BaseException as error:  # noqa: BLE001 (carried to whoever asked)
            self._post(_deliver, created, None, error)
            return
        self._post(_deliver, created, None, None)
        del created
        while (job := self._jobs.get()) is not None:
            work, done = job
            try:
                self._post(_deliver, done, work(instance), None)
            except BaseException as error:  # noqa: BLE001 (carried to whoever asked)
                self._post(_deliver, done, None, error)
            # The last request's tensors must not live until the next one comes.
            del job, work, done
        try:
            instance.close()
        except Exception:  # noqa: BLE001 (nobody waits for more than the end of the thread)
            _log.exception("%s: closing the instance failed", self._name)
        self._post(_deliver, self._ended, None, None)

    def _post(self, deliver: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(deliver, *args)
        except RuntimeError:
            _log.debug("%s: the event loop is gone; a result was dropped", self._name)


def _deliver(done: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
