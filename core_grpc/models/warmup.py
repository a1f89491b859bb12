"""The first runs of an instance, before any caller waits for it: engines allocate and choose kernels on first use.

They are nobody's requests: no statistics count them, and the response cache does not see them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from core_grpc.backends.base import DecoupledInstance, RequestInstance
from core_grpc.errors import GatewayError
from core_grpc.models.model_spec import DeclaredModel
from core_grpc.models.warmup_data import sample_inputs
from core_grpc.types import Array, Datatype, InferRequest, ModelSpec, TensorSpec

_log = logging.getLogger(__name__)


class _WarmUpRequest(NamedTuple):
    inputs: Mapping[str, Array]
    request: InferRequest | None = None
    is_abandoned: bool = False


@dataclass(frozen=True, slots=True)
class WarmUpRun:
    """What each instance runs ``count`` times."""

    title: str
    """How a failure names it."""
    inputs: Mapping[str, Array]
    count: int
    is_guess: bool = False
    """Whether a failure says nothing about the model: it is only logged."""


def warm_up_runs(declared: DeclaredModel, model_directory: Path) -> Sequence[WarmUpRun]:
    """What ``[warmup]`` asks for: zeros at every size of batch that matters, then the samples; blocks on the disk.

    Raises:
        ModelLoadFailed: a sample does not fit the model, or its file cannot be read.
    """
    config, spec = declared.config.warmup, declared.engine_spec
    samples = [
        WarmUpRun(
            f"model.toml: {sample.title} failed",
            sample_inputs(sample, spec, _controls(declared, sample.batch_size), model_directory),
            sample.count,
        )
        for sample in config.samples
    ]
    return [*_zero_runs(declared), *samples]


def warm_up(instance: RequestInstance, spec: ModelSpec, runs: Sequence[WarmUpRun]) -> None:
    """Runs them, on the instance's thread, and checks the outputs' batch dimension.

    Raises:
        GatewayError: the model cannot run what it declares, or one of its owner's samples.
    """
    for run in runs:
        with _named(run, spec):
            for _ in range(run.count):
                (part,) = instance.execute_requests([_WarmUpRequest(run.inputs)])
                if isinstance(part, GatewayError):
                    raise part


async def warm_up_stream(instance: DecoupledInstance, spec: ModelSpec, runs: Sequence[WarmUpRun]) -> None:
    """As ``warm_up``, for an instance that streams: each run lasts until it has given all its answers."""
    for run in runs:
        with _named(run, spec):
            for _ in range(run.count):
                async with aclosing(instance.stream(run.inputs, InferRequest(spec.name, spec.version, {}))) as answers:
                    async for _answer in answers:
                        pass


@contextmanager
def _named(run: WarmUpRun, spec: ModelSpec) -> Iterator[None]:
    """Puts the run's title before the text of what went wrong in it."""
    try:
        yield
    except GatewayError as error:
        if not run.is_guess:
            raise type(error)(f"{run.title}: {error.message}") from None
        _log.info("model %s version %s: %s, with size 1 for variable sizes: %s", spec.name, spec.version, run.title, error.message)


def _zero_runs(declared: DeclaredModel) -> Sequence[WarmUpRun]:
    """At 1, max_batch_size and the allowed sizes. Where an input has a variable size beyond the batch, 1 is tried."""
    config, spec = declared.config.warmup, declared.engine_spec
    # User code may do more than compute, and how many answers zeros bring from a stream is its own affair: only where the owner says so.
    default = 0 if config.samples or spec.decoupled or declared.backend == "python" else 1
    count = default if config.count is None else config.count
    if not count:
        return []
    is_guess = any(-1 in (item.shape[1:] if spec.max_batch_size else item.shape) for item in spec.inputs)
    sizes = sorted({1, spec.max_batch_size or 1, *declared.config.batching.allowed_batch_sizes})
    title = "warm-up with zeros at batch {} failed ([warmup] count = 0 skips it)"
    return [WarmUpRun(title.format(rows), {**zero_inputs(spec, rows), **_controls(declared, rows)}, count, is_guess) for rows in sizes]


def _controls(declared: DeclaredModel, rows: int) -> Mapping[str, Array]:
    return declared.sequences.of_one_request(rows) if declared.sequences else {}


def zero_inputs(spec: ModelSpec, rows: int) -> Mapping[str, Array]:
    """Zeros (empty BYTES) for every input that must be there; ``rows`` at a variable batch dimension, 1 at other variable ones."""
    return {item.name: _zeros(item, rows, has_batch=spec.max_batch_size > 0) for item in spec.inputs if not item.optional}


def _zeros(spec: TensorSpec, rows: int, *, has_batch: bool) -> Array:
    sizes = [1 if size == -1 else size for size in spec.shape]
    if has_batch:
        sizes[0] = rows
    if spec.datatype is Datatype.BYTES:
        return np.full(sizes, b"", dtype=object)
    return np.zeros(sizes, dtype=spec.datatype.dtype)
