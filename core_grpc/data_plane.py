"""What the server does, without a word about how it is asked: one method for each verb of the Open Inference Protocol.

Servicers decode, call one of these, and encode. Nothing here knows protobuf, HTTP or a transport.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from core_grpc.access import RIGHTS, check_model
from core_grpc.errors import (
    GatewayError,
    InvalidArgument,
    ModelControlRefused,
    ModelNotReady,
    NotFound,
    ServerDraining,
    quoted,
)
from core_grpc.lifecycle import Lifecycle, ModelState, ServerState
from core_grpc.models.accounts import charged, close_answered, count_failure, metered_stream, nbytes_of
from core_grpc.models.model import Execution, Model
from core_grpc.models.model_config import ModelConfig
from core_grpc.models.overrides import LoadOverride
from core_grpc.models.registry import ModelEntry, Registry
from core_grpc.models.repository_control import RepositoryControl
from core_grpc.models.statistics import ModelStatistics, watched_stream
from core_grpc.observability.tracing import Tracer
from core_grpc.observability.usage_meter import RequestCharge, UsageMeter
from core_grpc.processing.request_images import RequestImages
from core_grpc.processing.requested_outputs import answered_outputs, output_names
from core_grpc.request_checks import check_inputs
from core_grpc.settings import NodeSettings
from core_grpc.types import Array, InferRequest, InferResponse, ModelSpec, Tensor, TensorSpec, Timing
from core_grpc.version import __version__

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""The protocol extensions that are offered: only what is built."""
SHARED_MEMORY_EXTENSIONS = ("system_shared_memory", "cuda_shared_memory")
"""Offered where the setting server.shared_memory allows them."""

_CONTROL_REFUSED: Mapping[str, str] = {"none": ": the setting models.control is none", "poll": " if polling is enabled"}
"""By the setting models.control. For polling it is Triton's text."""


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """The server's name, version and extensions."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """A model's versions, platform, inputs and outputs."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class _Prepared(NamedTuple):
    """A request that fits its model, ready to run."""

    names: Iterable[str]
    """Of the outputs to answer."""
    arrays: Mapping[str, Array]
    rows: int
    preprocess_s: float


@dataclass(frozen=True, slots=True)
class ConfiguredModel:
    """A model version, what model.toml says about it, and what runs it."""

    spec: ModelSpec
    config: ModelConfig
    backend: str
    """The backend's name."""
    model_file: str
    """The file in the version's directory that it was read from; empty for a backend without one."""
    engine_spec: ModelSpec
    """``spec`` with what callers do not see: control inputs and states of sequences."""


class DataPlane:
    """The use cases of the server. All methods belong to the event loop; none blocks it."""

    def __init__(  # noqa: PLR0917 (built once, in server.py)
        self,
        registry: Registry,
        control: RepositoryControl,
        lifecycle: Lifecycle[ServerState],
        settings: NodeSettings,
        processing_pool: Executor,
        tracer: Tracer,
        meter: UsageMeter | None = None,
    ) -> None:
        self._meter = meter
        self._tracer = tracer
        self._registry = registry
        self._control = control
        self._on_demand = control.on_demand
        self._lifecycle = lifecycle
        self._settings = settings
        self._images = RequestImages(processing_pool, settings.limits.max_image_pixels)
        self._is_accepting = True
        self._stop_watchers: set[Callable[[], None]] = set()

    def live(self) -> bool:
        """Whether the server is alive: true for whoever gets an answer, until it has stopped."""
        return self._lifecycle.state is not ServerState.STOPPED

    def ready(self) -> bool:
        """Whether the server is ready: the initial load is over, it is not draining, and models answer.

        One model that is ready is enough, or an empty repository; with strict_readiness every model must be. None is once a GPU has failed.
        """
        if self._lifecycle.state is not ServerState.SERVING or self._registry.device_fault:
            return False
        # What somebody unloaded is missed by nobody.
        states = [entry.state for entry in self._registry.entries() if not entry.is_unloaded]
        is_ready = all if self._settings.server.strict_readiness else any
        return not states or is_ready(state is ModelState.READY for state in states)

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether a model version answers, by itself or on demand.

        Raises:
            NotFound: no such model or version.
            InvalidArgument: the version is not a string of digits.
        """
        check_model(name)
        try:
            model = self._registry.known(name, version)
            if model:
                model.check_ready()
        except ModelNotReady:
            return False
        return self._lifecycle.state in (ServerState.SERVING, ServerState.STARTING)

    def server_metadata(self) -> ServerMetadata:
        """The server's name, version and extensions."""
        extensions = (*EXTENSIONS, *SHARED_MEMORY_EXTENSIONS) if self._settings.server.shared_memory else EXTENSIONS
        return ServerMetadata(self._settings.server.name, __version__, extensions)

    async def model_metadata(self, name: str, version: str = "") -> ModelMetadata:
        """A model's versions (all that are ready, or the one asked for), platform, inputs and outputs.

        Raises:
            NotFound, InvalidArgument, ModelNotReady: as ``model``.
        """
        spec = await self.spec(name, version)
        versions = (spec.version,) if version else tuple(self._registry.versions(name))
        return ModelMetadata(spec.name, versions, spec.platform, spec.inputs, spec.outputs)

    def versions(self, name: str) -> Sequence[str]:
        """The versions of a model that answer, ascending.

        Raises:
            NotFound: no such model.
        """
        check_model(name)
        return self._registry.versions(name)

    def models(self) -> Sequence[ModelEntry]:
        """Every model version of the repository that the caller may use, with its state, by name and version."""
        may_use = RIGHTS.get().allow_model
        return [entry for entry in self._registry.entries() if may_use(entry.name)]

    async def spec(self, name: str, version: str = "", deadline: float | None = None) -> ModelSpec:
        """What a model version takes and gives; waits where it is on demand and was never loaded, until ``deadline`` at the latest.

        Raises:
            NotFound: no such model or version.
            InvalidArgument: the version is not a string of digits.
            ModelNotReady: known, but it does not answer now; the text says why.
            QueueFull, DeadlineExpired: too many wait for it, or it took too long.
        """
        check_model(name)
        return (await self._on_demand.known(name, version, deadline)).spec

    def is_decoupled(self, name: str, version: str = "") -> bool:
        """Whether a model version answers any number of times; false where there is none that could answer."""
        try:
            model = self._registry.known(name, version)
        except GatewayError:
            return False
        return model.spec.decoupled if model else self._registry.declares_decoupled(name, version)

    def default_model(self) -> str:
        """The name of the model of callers who name none: the setting ``default_model``, or the only one there is.

        Raises:
            InvalidArgument: no setting, and not exactly one model.
        """
        if name := self._settings.models.default_model:
            return name
        names = sorted({entry.name for entry in self.models()})
        if len(names) != 1:
            raise InvalidArgument(
                f"no model is named, and the setting default_model is empty with {len(names)} models in the repository: "
                "name one, or set TENSORGATE_MODELS_DEFAULT_MODEL"
            )
        return names[0]

    async def infer(self, request: InferRequest) -> InferResponse:
        """Runs one request.

        Raises:
            NotFound, InvalidArgument, InvalidTensor: the request does not fit; nothing ran.
            ModelNotReady, ServerDraining, QueueFull, DeadlineExpired: it was not run.
            BackendFailed: the engine failed.
            Unsupported: the model is decoupled: it streams.
        """
        model = self._accepting_model(request) or await self._on_demand.known_for(request)
        began = model.last_used = time.monotonic()
        model.users += 1
        request, charge = charged(self._meter, model, request)
        try:
            prepared = await self._prepared(model, request, charge)
            execution = await model.infer(prepared.arrays, prepared.rows, request)
            response = _response(model, request, prepared, execution)
        except BaseException as error:
            count_failure(model, began, error, charge)
            raise
        finally:
            model.release()
        model.statistics.answered(prepared.rows, prepared.preprocess_s, execution)
        if charge:
            close_answered(charge, response.outputs)
        if self._tracer.is_on:
            self._trace(request, model.spec, began, prepared.preprocess_s, execution)
        return response

    async def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        """The answers to one request as they are made: any number of a decoupled model, one of any other.

        Closing the generator, or cancelling the task that waits for it, ends the request's work.

        Raises:
            as ``infer``, save for Unsupported; answers given before stay given.
        """
        model = self._accepting_model(request) or await self._on_demand.known_for(request)
        if not model.spec.decoupled:
            yield await self.infer(request)
            return
        request, charge = charged(self._meter, model, request)
        with _using(model), metered_stream(charge), watched_stream(model.statistics, charge) as watch:
            prepared = await self._prepared(model, request, charge)
            async with aclosing(model.stream(prepared.arrays, request)) as executions:
                async for execution in executions:
                    watch.answered(execution.compute_s)
                    response = _response(model, request, prepared, execution)
                    if charge:
                        charge.output_bytes += nbytes_of(response.outputs)
                    yield response
            watch.ended(prepared.rows, prepared.preprocess_s)

    async def _prepared(self, model: Model, request: InferRequest, charge: RequestCharge | None) -> _Prepared:
        names = output_names(model.spec, model.output_datatypes, request)
        inputs, preprocess_s = request.inputs, 0.0
        if model.preprocessing:
            inputs, preprocess_s = await self._preprocessed(model, request)
        rows = check_inputs(model.spec, inputs)
        if charge:
            charge.rows = rows
        arrays: Mapping[str, Array] = {name: tensor.array for name, tensor in inputs.items()}
        return _Prepared(names, arrays, rows, preprocess_s)

    async def _preprocessed(self, model: Model, request: InferRequest) -> tuple[Mapping[str, Tensor], float]:
        if model.turns is None:
            return await self._images.preprocessed(model.spec, model.preprocessing, request.inputs)
        # A small image is decoded before a large one: what came first must be admitted first.
        async with model.turns.of(repr(request.parameters.get("sequence_id"))):
            return await self._images.preprocessed(model.spec, model.preprocessing, request.inputs)

    async def load(self, name: str, override: LoadOverride | None = None) -> None:
        """Loads a model of the repository, or loads it anew; returns when it answers.

        Raises:
            NotFound: the repository has no such model.
            ModelLoadFailed: it cannot be served; what was served before still is.
            ModelControlRefused: the setting models.control does not allow it.
            ServerDraining: the server is going away.
        """
        check_model(name)
        self._check_control()
        await self._control.load(name, override)

    async def unload(self, name: str, *, with_models_of_steps: bool = False) -> None:
        """Unloads a model; returns when its accepted work is done and it is gone.

        ``with_models_of_steps`` unloads a pipeline and those models of its steps that no other pipeline needs.

        Raises:
            NotFound, ModelControlRefused, ServerDraining: as ``load``.
        """
        check_model(name)
        self._check_control()
        await self._control.unload(name, with_models_of_steps=with_models_of_steps)

    def _check_control(self) -> None:
        if not self._is_accepting:
            raise ServerDraining("the server is shutting down and takes no new work")
        if reason := _CONTROL_REFUSED.get(self._settings.models.control):
            raise ModelControlRefused(f"explicit model load / unload is not allowed{reason}")

    async def model_config(self, name: str, version: str = "") -> ConfiguredModel:
        """How a model version is configured.

        Raises:
            as ``spec``.
        """
        check_model(name)
        model = await self._on_demand.known(name, version)
        return ConfiguredModel(model.spec, model.config, model.backend, model.model_file, model.declared.engine_spec)

    def statistics(self, name: str = "", version: str = "") -> Sequence[tuple[ModelSpec, ModelStatistics]]:
        """The counters of every ready model version, or of those of one model, or of one version.

        Raises:
            NotFound: no such model version is ready.
        """
        may_use = RIGHTS.get().allow_model
        ready = [model for model in self._registry.ready_models() if may_use(model.spec.name)]
        models = [model for model in ready if name in ("", model.spec.name) and version in ("", model.spec.version)]
        if not models and name:
            check_model(name)
            of_version = f" version {quoted(version, 20)}" if version else ""
            raise NotFound(f"requested model {quoted(name)}{of_version} is not available")
        return [(model.spec, model.statistics) for model in models]

    def stop_accepting(self) -> None:
        """From now on new work is refused with ServerDraining; accepted work goes on."""
        self._is_accepting = False
        for watcher in list(self._stop_watchers):
            watcher()

    @contextmanager
    def on_stop_accepting(self, watcher: Callable[[], None]) -> Iterator[None]:
        """Calls ``watcher`` when new work begins to be refused, for as long as the context lasts."""
        self._stop_watchers.add(watcher)
        try:
            yield
        finally:
            self._stop_watchers.discard(watcher)

    def _trace(self, request: InferRequest, spec: ModelSpec, began: float, preprocess_s: float, execution: Execution) -> None:
        queued = began + preprocess_s
        computing = queued + execution.queue_s
        moments = {"REQUEST_START": began, "QUEUE_START": queued}
        if execution.batch_rows:
            moments |= {"COMPUTE_START": computing, "COMPUTE_END": computing + execution.compute_s}
        moments["REQUEST_END"] = time.monotonic()
        self._tracer.record(spec.name, spec.version, request.id, moments)

    def _accepting_model(self, request: InferRequest) -> Model | None:
        """None for a model that is on demand and was never loaded."""
        check_model(request.model_name)
        if not self._is_accepting:
            raise ServerDraining("the server is shutting down and takes no new work")
        return self._registry.known(request.model_name, request.model_version)


@contextmanager
def _using(model: Model) -> Iterator[None]:
    model.users += 1
    model.last_used = time.monotonic()
    try:
        yield
    finally:
        model.release()


def _response(model: Model, request: InferRequest, prepared: _Prepared, execution: Execution) -> InferResponse:
    outputs = answered_outputs(model.spec, model.output_datatypes, request, prepared.names, execution.outputs)
    timing = Timing(prepared.preprocess_s, execution.queue_s, execution.compute_s, execution.batch_rows)
    return InferResponse(model.spec.name, model.spec.version, request.id, outputs, timing)
