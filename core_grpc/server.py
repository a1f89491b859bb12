"""The node: every part built and joined here, and nowhere else. Reads from top to bottom.

``start`` makes it answer (health says NOT_SERVING until the models are loaded); ``drain`` stops it in the direction of flow: not ready,
wait for the edge to notice, refuse new work, finish accepted work, free the models.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from core_grpc.api_keys import KeyFile, KeysError
from core_grpc.data_plane import DataPlane
from core_grpc.lifecycle import SERVER_STEPS, Lifecycle, ModelState, ServerState
from core_grpc.models.figures import model_figures, state_figures
from core_grpc.models.poller import RepositoryPoller
from core_grpc.models.registry import Registry
from core_grpc.models.repository_control import RepositoryControl
from core_grpc.models.statistics import BUCKET_BOUNDS_S
from core_grpc.observability.figures import NodeFigures
from core_grpc.observability.log_settings import LogControl
from core_grpc.observability.metrics_server import MetricsServer
from core_grpc.observability.rpc_counts import RpcCounts
from core_grpc.observability.tracing import Tracer
from core_grpc.observability.usage_keeper import UsageKeeper, opened_store
from core_grpc.observability.usage_meter import UsageMeter
from core_grpc.observability.usage_store import OFF
from core_grpc.process_control import notify
from core_grpc.rpc.admission import Admission
from core_grpc.rpc.generate_servicer import GenerateServicer
from core_grpc.rpc.health import HealthServicer
from core_grpc.rpc.inference_servicer import InferenceServicer
from core_grpc.rpc.interceptors import guarded
from core_grpc.rpc.introspection_servicers import IntrospectionServicer, RestIntrospectionServicer
from core_grpc.rpc.methods import RpcMethod, method_table, methods_from_servicers
from core_grpc.rpc.reflection import ReflectionServicer, reflection_services
from core_grpc.rpc.repository_servicers import RepositoryServicer, RestRepositoryServicer, TensorgateRepositoryServicer
from core_grpc.rpc.rest_servicer import RestServicer
from core_grpc.rpc.settings_servicers import RestSettingsServicer, SettingsServicer
from core_grpc.rpc.shared_memory_servicers import RestSharedMemoryServicer, SharedMemoryServicer
from core_grpc.rpc.short_servicers import ModelServicer, TrtServicer
from core_grpc.rpc.tensorgate_servicer import TensorgateServicer
from core_grpc.settings import NodeSettings, SettingsError
from core_grpc.shared_memory.regions import SharedMemory
from protos.inference import grpc_service_pb2, model_service_pb2
from protos.tensorgate.rest.v1 import rest_pb2
from protos.tensorgate.v1 import inference_pb2
from protos.trt import inference_service_pb2 as trt_pb2

log = logging.getLogger(__name__)

DEMO_REPOSITORY = Path(__file__).resolve().parent.parent / "tensorgate" / "demo_models"
"""Served when no repository is set; shipped beside this package."""

_POLL_S = 0.01
"""How often a drain looks whether the last answers have left."""


class Node:
    """A node's parts and its life. Belongs to the event loop that makes it."""

    def __init__(self, settings: NodeSettings) -> None:
        """Raises SettingsError where the repository is not a directory, or settings do not go together."""
        sys.setswitchinterval(settings.threads.gil_switch_interval_s)
        self.settings = settings
        self.lifecycle: Lifecycle[ServerState] = Lifecycle(SERVER_STEPS, ServerState.STARTING)
        self.processing_pool = ThreadPoolExecutor(settings.threads.processing, thread_name_prefix="processing")
        self._registry = registry = Registry()
        self._rpcs = RpcCounts()
        self._meter = None if settings.usage.database == OFF else UsageMeter()
        self._admission = _admission(settings, is_metered=self._meter is not None)
        self._usage: UsageKeeper | None = None
        self._metrics: MetricsServer | None = None
        self._tracer = Tracer(settings.server.trace_file, self.processing_pool)
        self._memory = SharedMemory(is_allowed=settings.server.shared_memory)
        self._control = RepositoryControl(_repository(settings), settings.models, registry, settings.drain.grace_s)
        self.data_plane = DataPlane(registry, self._control, self.lifecycle, settings, self.processing_pool, self._tracer, self._meter)
        self.methods: Mapping[str, RpcMethod] = self._method_table()
        self._poller = _poller(settings, self._control)
        self._loading: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Opens what a node has beside its transport: the listener for metrics and the file of usage. For startup: it blocks.

        Raises:
            SettingsError: one of them cannot be had; the text names the setting.
        """
        server, usage = self.settings.server, self.settings.usage
        if self._meter and (store := opened_store(usage.database)):
            self._usage = UsageKeeper(store, usage.flush_s, self._meter)
        if not server.metrics:
            return
        try:
            self._metrics = MetricsServer(server.metrics_host, server.metrics_port, self.figures)
        except OSError as error:
            where = f"{server.metrics_host}:{server.metrics_port}"
            raise SettingsError(f"TENSORGATE_SERVER_METRICS_PORT: cannot listen on {where} for metrics: {error.strerror}") from error
        log.info("metrics on http://%s:%s/metrics", server.metrics_host, self._metrics.port)

    def figures(self) -> NodeFigures:
        """What the node has counted, at this moment."""
        return NodeFigures(
            is_ready=self.data_plane.ready(),
            bounds_s=BUCKET_BOUNDS_S,
            models=model_figures(self._registry),
            states=state_figures(self._registry),
            rpcs=self._rpcs.figures(),
            usage=self._meter.totals() if self._meter else {},
        )

    def start(self) -> None:
        """Begins to load the models, and to follow the repository where it is polled; health follows by itself."""
        self._loading = asyncio.create_task(self._load(), name="load models")

    async def drain(self, active_calls: Callable[[], int], *, with_notice: bool = True) -> None:
        """Stops in the direction of flow.

        Args:
            active_calls: how many calls the transport has begun and not ended.
            with_notice: whether to wait for whoever is in front to notice.
        """
        drain = self.settings.drain
        serving = self.lifecycle.state is ServerState.SERVING
        self.lifecycle.to(ServerState.DRAINING)
        notify("STOPPING=1", "STATUS=draining")
        if self._loading:
            self._loading.cancel()
        if serving and with_notice:
            await asyncio.sleep(drain.notice_s)
        self.data_plane.stop_accepting()
        ends = time.monotonic() + drain.grace_s
        await self._control.drain(drain.grace_s)
        self.lifecycle.to(ServerState.STOPPED)
        # Health watchers end now; what is still active are answers on their way out.
        while active_calls() and time.monotonic() < ends:  # noqa: ASYNC110  # The transport counts; it has nobody to tell.
            await asyncio.sleep(_POLL_S)
        await self._control.close()
        if self._usage:
            await self._usage.close()
        if self._metrics:
            await asyncio.to_thread(self._metrics.close)
        self._memory.close()
        await asyncio.to_thread(self._tracer.close)
        self.processing_pool.shutdown(wait=False, cancel_futures=True)
        notify("X_DRAINED=1", "STATUS=drained")

    async def _load(self) -> None:
        notify("STATUS=loading models")
        if self._poller:
            await self._poller.first_look()
        await self._control.load_all()
        if self.lifecycle.state is ServerState.STARTING:
            self.lifecycle.to(ServerState.SERVING)
        entries = self.data_plane.models()
        ready = sum(entry.state is ModelState.READY for entry in entries)
        _calm_garbage_collector()
        status = f"{ready} of {len(entries)} models ready"
        log.info("serving: %s", status)
        notify("READY=1", f"STATUS={status}")
        if self._poller:
            await self._poller.run()

    def _method_table(self) -> Mapping[str, RpcMethod]:
        limits = self.settings.limits
        plane, logs = self.data_plane, LogControl()
        servicers: list[tuple[ServiceDescriptor, *tuple[object, ...]]] = [
            (
                _service(grpc_service_pb2, "GRPCInferenceService"),
                InferenceServicer(plane, limits, self._memory),
                IntrospectionServicer(plane),
                RepositoryServicer(plane),
                SharedMemoryServicer(self._memory),
                SettingsServicer(plane, self._tracer, logs),
            ),
            (_service(model_service_pb2, "ModelService"), ModelServicer(plane, limits)),
            (_service(trt_pb2, "InferenceService"), TrtServicer(plane, limits)),
            (_service(inference_pb2, "InferenceService"), TensorgateServicer(plane, limits), TensorgateRepositoryServicer(plane)),
            (
                _service(rest_pb2, "Rest"),
                RestServicer(plane, self.settings, self.processing_pool, self._memory),
                GenerateServicer(plane, limits, self.processing_pool),
                RestIntrospectionServicer(plane, limits),
                RestRepositoryServicer(plane, limits, self.processing_pool),
                RestSharedMemoryServicer(self._memory, limits),
                RestSettingsServicer(plane, self._tracer, logs, limits),
            ),
        ]
        health = _service(health_pb2, "Health")
        reflections = reflection_services() if self.settings.server.reflection else ()
        names = [service.full_name for service in (*(service for service, *_ in servicers), health, *reflections)]
        servicers.append((health, HealthServicer(plane, self.lifecycle, names)))
        servicers.extend((service, ReflectionServicer(names)) for service in reflections)
        groups = (methods_from_servicers(*group) for group in servicers)
        return method_table(*([guarded(method, self._rpcs, self._admission) for method in group] for group in groups))


def _calm_garbage_collector() -> None:
    """Called once everything long-lived is there. Each request in flight holds some dozens of objects, so the default threshold of 700
    runs the collector several times in every turn of the loop, over objects that reference counting frees by itself."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def _repository(settings: NodeSettings) -> Path:
    """The model repository; looked at before anything is started, so that a wrong path is one line and not a server without models."""
    repository = Path(settings.models.repository or DEMO_REPOSITORY)
    if not repository.is_dir():
        raise SettingsError(f"TENSORGATE_MODELS_REPOSITORY: wanted a directory of models, got {repository}")
    return repository


def _admission(settings: NodeSettings, *, is_metered: bool) -> Admission:
    auth = settings.auth
    try:
        keys = KeyFile(Path(auth.keys_file)) if auth.keys_file else None
    except KeysError as error:
        raise SettingsError(f"TENSORGATE_AUTH_KEYS_FILE: {error}") from error
    return Admission(is_metered=is_metered, is_required=auth.is_on, keys=keys)


def _poller(settings: NodeSettings, control: RepositoryControl) -> RepositoryPoller | None:
    models = settings.models
    if models.control != "poll":
        return None
    return RepositoryPoller(_repository(settings), control, models.poll_interval_s, models.poll_settle_s)


def _service(module: object, name: str) -> ServiceDescriptor:
    descriptor: ServiceDescriptor = module.DESCRIPTOR.services_by_name[name]  # type: ignore[attr-defined]
    return descriptor
