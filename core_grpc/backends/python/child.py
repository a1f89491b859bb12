"""The program of a model's process: ``python -m core_grpc.backends.python.child FD``, started by ``process.py``.

It is told what to load, says ``ready`` or ``failed``, and then serves until its socket ends; with it ends the process, whatever user code
is doing then.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core_grpc.backends.cores import pin_this_thread
from core_grpc.backends.python.answers import DeclaredOutput, WrongAnswer, checked_outputs
from core_grpc.backends.python.decoupled_child import serve_decoupled
from core_grpc.backends.python.framing import TensorReader, Tensors, packed, receive, send
from core_grpc.backends.python.requests import request_from
from core_grpc.backends.python.user_model import ModelBroken, finalise, made_model, told
from core_grpc.python_model import InferenceError, ModelContext, Request


class _Batches:
    """Batches of requests as they come, read on a thread of its own, so that cancellations are seen while user code runs."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._batches: queue.SimpleQueue[list[Request] | None] = queue.SimpleQueue()
        self._last: list[Request] = []
        """The batch that was read last. The server sends the next one when this one is answered: a cancellation means this one."""
        threading.Thread(target=self._read, name="requests", daemon=True).start()

    def next(self) -> list[Request] | None:
        """The next batch; None when there will be no more."""
        return self._batches.get()

    def _read(self) -> None:
        try:
            while (frame := receive(self._connection)).header["type"] != "close":
                if frame.header["type"] == "cancel":
                    for index in frame.header["requests"]:
                        self._last[index].is_cancelled = True
                else:
                    reader = TensorReader(frame.payload)
                    self._last = [request_from(item, reader) for item in frame.header["requests"]]
                    self._batches.put(self._last)
        except (EOFError, OSError):
            os._exit(0)  # Nobody is left to answer; user code may be busy for ever.
        self._batches.put(None)


def main() -> None:
    """Entry point."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    # Programs that user code starts must not keep it open.
    connection.set_inheritable(False)
    _die_with_parent(int(sys.argv[2]))
    order = receive(connection).header
    pin_this_thread(order["cores"])
    directory = Path(order["directory"])
    context = ModelContext(
        name=order["name"],
        version=order["version"],
        directory=directory,
        parameters=order["parameters"],
        inputs=tuple(order["inputs"]),
        outputs=tuple(item["name"] for item in order["outputs"]),
        instance=order["instance"],
        kind=order["kind"],
        device_id=order["device_id"],
    )
    try:
        model = made_model(directory, context)
        _check_kind(model, decoupled=order["decoupled"])
    except ModelBroken as error:
        send(connection, packed({"type": "failed", "message": str(error)}))
        return
    outputs = [DeclaredOutput(item) for item in order["outputs"]]
    send(connection, packed({"type": "ready"}))
    if order["decoupled"]:
        asyncio.run(serve_decoupled(connection, model, outputs, order["credits"]))
    else:
        _serve_batches(connection, model, outputs, has_batch_dimension=order["has_batch_dimension"])
    finalise(model)


def _serve_batches(connection: socket.socket, model: Any, outputs: Sequence[DeclaredOutput], *, has_batch_dimension: bool) -> None:
    loop = asyncio.new_event_loop()
    batches = _Batches(connection)
    while (requests := batches.next()) is not None:
        tensors = Tensors()
        try:
            answers = model.execute(requests)
            if inspect.iscoroutine(answers):
                answers = loop.run_until_complete(answers)
            results = _results(requests, answers, outputs, tensors, has_batch_dimension=has_batch_dimension)
            header: dict[str, Any] = {"type": "results", "results": results}
        except InferenceError as error:
            tensors.buffers.clear()
            header = {"type": "failed", "message": error.message, "code": error.code}
        except Exception as error:  # noqa: BLE001 (user code)
            tensors.buffers.clear()
            header = {"type": "failed", "message": told(error), "code": "INTERNAL"}
        send(connection, packed(header, tensors.buffers))


def _results(
    requests: Sequence[Request], answers: object, outputs: Sequence[DeclaredOutput], tensors: Tensors, *, has_batch_dimension: bool
) -> list[dict[str, Any]]:
    """What is said of each answer.

    Raises:
        WrongAnswer: there is not one for each request, or one is not what was declared.
    """
    if not isinstance(answers, list | tuple) or len(answers) != len(requests):
        got = f"{len(answers)} entries" if isinstance(answers, list | tuple) else type(answers).__name__
        raise WrongAnswer(f"execute: wanted a list with an entry for each of {len(requests)} requests, got {got}")
    results: list[dict[str, Any]] = []
    for request, answer in zip(requests, answers, strict=True):
        if isinstance(answer, InferenceError):
            results.append({"error": answer.message, "code": answer.code})
            continue
        first = next(iter(request.inputs.values()), None)
        rows = first.shape[0] if has_batch_dimension and first is not None else None
        results.append({"tensors": tensors.described(checked_outputs(answer, outputs, rows))})
    return results


def _check_kind(model: Any, *, decoupled: bool) -> None:
    """Raises ModelBroken where ``execute`` is not of the kind that model.toml says."""
    is_generator = inspect.isasyncgenfunction(model.execute) or inspect.isgeneratorfunction(model.execute)
    if decoupled and not is_generator:
        raise ModelBroken("execute: wanted a generator, as [python] decoupled = true says, got a method that returns")
    if is_generator and not decoupled:
        raise ModelBroken("execute: wanted a method that returns a list, got a generator, which needs [python] decoupled = true")


def _die_with_parent(parent: int) -> None:
    """On Linux the kernel kills this process with its parent, even where user code holds the interpreter and never lets go.

    It tells nobody of a parent that died before it was asked to: then this ends here.
    """
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 (Linux only)
        import signal  # noqa: PLC0415

        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


if __name__ == "__main__":
    main()
