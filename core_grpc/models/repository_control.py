"""Loads and unloads the models of a repository: all at start, one at a time afterwards.

A reload is whole or not at all: the new versions are read, started and warmed up beside the old ones, take their place in one step, and
only then the old ones finish what they have and go. When one of them cannot be loaded, the old ones stay.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from core_grpc.errors import GatewayError, ModelLoadFailed, NotFound, ServerDraining, quoted
from core_grpc.lifecycle import ModelState
from core_grpc.models.compute import compute_grants
from core_grpc.models.freed_memory import FreedMemory, trim
from core_grpc.models.loading import load_model
from core_grpc.models.on_demand import OnDemand
from core_grpc.models.overrides import LoadOverride, written_files
from core_grpc.models.pipeline_loading import answers, load_pipeline, models_to_load, models_to_unload, with_models_of_steps
from core_grpc.models.placement import instance_count
from core_grpc.models.registry import NOT_LOADED, UNLOADED, Registry, Slot
from core_grpc.models.repository import RepositoryEntry, scan_model, scan_repository
from core_grpc.models.response_cache import ResponseCache
from core_grpc.models.start_list import start_list
from core_grpc.models.turns import Turns
from core_grpc.pipelines.step import PIPELINE
from core_grpc.settings import ModelsSettings

_log = logging.getLogger(__name__)


class RepositoryControl:
    """See the module's text. Belongs to the event loop."""

    def __init__(self, repository: Path, settings: ModelsSettings, registry: Registry, grace_s: float) -> None:
        """``grace_s`` is how long a model that goes may take to finish its work.

        Raises:
            SettingsError: models.load and models.control do not go together, or models.resources cannot be read.
        """
        self._repository = repository
        self._settings = settings
        self._registry = registry
        self._grace_s = grace_s
        self._start_list = start_list(settings)
        self._grants = compute_grants(settings)
        self._turns = Turns()
        """Loads and unloads of one model come one after the other; those of different models do not wait for each other."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._cache = ResponseCache(settings.response_cache_bytes)
        self._loading = asyncio.Semaphore(settings.load_threads)
        self._memory = FreedMemory()
        self.on_demand = OnDemand(settings, registry, self)
        """Models that are loaded when a request asks for them."""

    async def load_all(self) -> None:
        """Loads the models that the setting models.load names, and those that pipelines among them need, several at a time.

        A model that fails is UNAVAILABLE with a reason; the others are served.

        Raises:
            SettingsError: the repository cannot be read.
        """
        pool = ThreadPoolExecutor(self._settings.load_threads, "model-loading")
        try:
            entries = await asyncio.get_running_loop().run_in_executor(pool, scan_repository, self._repository)
            slots: dict[str, list[Slot]] = {}
            for entry in [*entries, *self._missing(entries)]:
                slots.setdefault(entry.name, []).append(Slot(entry))
            for name, of_model in slots.items():
                self._registry.put(name, of_model)
            named = with_models_of_steps((name for name in slots if name in self._start_list), entries)
            wanted = [slot for slot in self._registry.all_slots() if slot.entry.name in named]
            for slot in self._registry.all_slots():
                if slot not in wanted:
                    slot.lifecycle.to(ModelState.UNAVAILABLE, NOT_LOADED)
            await asyncio.gather(*(self._load(slot, pool) for slot in await self.on_demand.to_start(wanted)))
            await asyncio.get_running_loop().run_in_executor(pool, trim)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    async def load(self, name: str, override: LoadOverride | None = None) -> None:
        """Loads a model, or loads it anew, and returns when it answers; before a pipeline, those models of its steps that do not answer.

        Raises:
            NotFound: the repository has no such model.
            ModelLoadFailed: it cannot be served; what was served before still is.
            ServerDraining: the server is going away.
        """
        await self._run(self._load_with_steps(name, override))
        self.on_demand.settle()

    async def unload(self, name: str, *, with_models_of_steps: bool = False) -> None:
        """Stops a model from taking work and returns when its accepted work is done and it is gone.

        ``with_models_of_steps`` does the same to those models of a pipeline's steps that no other pipeline needs.

        Raises:
            NotFound: no such model.
            ServerDraining: the server is going away.
        """
        if not self._registry.slots(name):
            raise NotFound(f"failed to unload {quoted(name)}, no such model")
        names = [name, *(models_to_unload(name, self._registry) if with_models_of_steps else ())]
        await self._run(self._unload_all(names))

    async def remove(self, name: str) -> None:
        """Unloads a model that is no longer in the repository, and forgets it.

        Raises:
            ServerDraining: the server is going away.
        """
        await self.in_turn(name, lambda: self._remove(name))

    async def close(self) -> None:
        """Ends loads, closes every model; pending work fails, executing work is finished; idempotent."""
        self._is_closed = True
        await self.on_demand.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._memory.close()
        await asyncio.gather(*(_close(slot, "the server has stopped") for slot in self._registry.all_slots()))

    async def drain(self, grace_s: float) -> bool:
        """Waits until no model has work left, at most ``grace_s`` seconds; whether that was enough."""
        models = [slot.model for slot in self._registry.all_slots() if slot.model]
        try:
            await asyncio.wait_for(asyncio.gather(*(model.drain() for model in models)), grace_s)
        except TimeoutError:
            return False
        return True

    async def in_turn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs ``work`` when nobody else works on the model, whether or not the caller stays.

        Raises:
            ServerDraining: the server is going away.
            whatever ``work`` raises.
        """
        await self._run(self._one_at_a_time(name, work))

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """In a task of its own: a caller who leaves does not leave a model half loaded."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ServerDraining("the server is shutting down") from None
            raise

    async def _load_with_steps(self, name: str, override: LoadOverride | None) -> None:
        # Uploaded files stand in for the whole directory, and none of them can be a pipeline's model.toml.
        if not (override and override.files):
            entries = await asyncio.to_thread(scan_model, self._repository, name)
            for step_model in await models_to_load(name, entries, self._entries):
                if not answers(step_model, self._registry):
                    await self._one_at_a_time(step_model, partial(self._replace, step_model, None))
        await self._one_at_a_time(name, lambda: self._replace(name, override))

    async def _entries(self, name: str) -> Sequence[RepositoryEntry]:
        if answers(name, self._registry):
            return [slot.entry for slot in self._registry.slots(name)]
        return await asyncio.to_thread(scan_model, self._repository, name)

    async def _unload_all(self, names: Sequence[str]) -> None:
        for name in names:
            await self._one_at_a_time(name, partial(self._unload, name))

    def is_in_turn(self, name: str) -> bool:
        """Whether somebody works on the model, or waits to."""
        return name in self._turns

    async def load_slot(self, slot: Slot) -> None:
        """Makes a LOADING version READY, or UNAVAILABLE with a reason."""
        pool = ThreadPoolExecutor(1, "model-loading")
        try:
            await self._load(slot, pool)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    async def retire(self, slots: Sequence[Slot]) -> None:
        """Takes versions out of service: no new work, accepted work is finished, then they are closed."""
        await _retire(slots, self._grace_s)
        await self._memory.give_back()

    async def _one_at_a_time(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with self._turns.of(name):
            if self._is_closed:
                raise ServerDraining("the server is shutting down")
            await work()

    async def _replace(self, name: str, override: LoadOverride | None) -> None:
        pool = ThreadPoolExecutor(1, "model-loading")
        try:
            slots = await asyncio.get_running_loop().run_in_executor(pool, self._scanned, name, override)
            if not any(slot.lifecycle.state is ModelState.READY for slot in self._registry.slots(name)):
                # Nothing answers to the name: the index may show what is coming.
                await _retire(self._registry.put(name, slots), 0.0)
            await self._load_slots(name, slots, pool)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        if (replaced := self._registry.slots(name)) != list(slots):
            replaced = self._registry.put(name, slots)
            await self.retire(replaced)

    def _scanned(self, name: str, override: LoadOverride | None) -> list[Slot]:
        files = written_files(name, override.files) if override and override.files else None
        try:
            return [Slot(entry, files) for entry in scan_model(files or self._repository, name, override)]
        except BaseException:
            _remove(files)
            raise

    async def _load_slots(self, name: str, slots: Sequence[Slot], pool: ThreadPoolExecutor) -> None:
        """Raises ModelLoadFailed where one cannot be loaded; the others are closed again then."""
        try:
            await asyncio.gather(*(self._load(slot, pool) for slot in slots))
            self._check_loaded(name, slots)
        except BaseException:
            await asyncio.gather(*(_close(slot) for slot in slots))
            await self._memory.give_back()
            raise

    def _check_loaded(self, name: str, slots: Sequence[Slot]) -> None:
        failed = [slot for slot in slots if slot.lifecycle.state is not ModelState.READY]
        if not failed:
            return
        of_version = [(f"version {slot.entry.version}: " if slot.entry.version else "", slot.lifecycle.reason) for slot in failed]
        reasons = "; ".join(f"{version}{reason}" for version, reason in of_version)
        for slot in self._registry.slots(name):
            if slot not in slots:
                slot.lifecycle.reason = f"the last load failed: {reasons}"
        raise ModelLoadFailed(f"failed to load {quoted(name)}, {reasons}")

    async def _load(self, slot: Slot, pool: ThreadPoolExecutor) -> None:
        """Makes the slot READY, or UNAVAILABLE with a reason."""
        entry, began = slot.entry, time.monotonic()
        if entry.reason:
            _fail(slot, entry.reason)
            return
        try:
            if entry.backend == PIPELINE:
                slot.model = await load_pipeline(entry, self._settings, slot.lifecycle, pool, self._registry)
            else:
                async with self._loading:
                    slot.model = await load_model(entry, self._settings, slot.lifecycle, pool, self._grants)
                slot.nbytes = await self.on_demand.size_of(entry, slot.model)
            if entry.config.response_cache and self._settings.response_cache_bytes:
                slot.model.use_cache(self._cache)
        except GatewayError as error:
            _fail(slot, entry.config.in_its_words(error.message))
        except Exception as error:  # noqa: BLE001 (a bug in one model's load must not keep the others from being served)
            _log.exception("model %s version %s: loading failed unexpectedly", entry.name, entry.version)
            _fail(slot, f"loading failed unexpectedly ({type(error).__name__})")
        else:
            if notice := entry.config.notice:
                _log.warning("model %s version %s: %s", entry.name, entry.version, notice)
            slot.lifecycle.to(ModelState.READY, notice)
            spec, instances = slot.model.spec, instance_count(slot.model.config.instances)
            _log.info(
                "model %s version %s is ready after %.2f s: %s, max_batch_size %d, %d instance%s",
                *(spec.name, spec.version, time.monotonic() - began, spec.platform, spec.max_batch_size),
                *(instances, "" if instances == 1 else "s"),
            )

    async def _unload(self, name: str) -> None:
        await self.retire(self._registry.slots(name))
        for slot in self._registry.slots(name):
            if slot.lifecycle.state is ModelState.UNAVAILABLE:
                # Also of what could not be loaded: nobody misses it any more.
                slot.lifecycle.reason = UNLOADED
        _log.info("model %s is unloaded", name)

    async def _remove(self, name: str) -> None:
        await self._unload(name)
        self._registry.remove(name)

    def _missing(self, found: Sequence[RepositoryEntry]) -> list[RepositoryEntry]:
        """What the setting models.load names and the repository does not have."""
        reason = "the setting models.load names it, and the repository has no such model"
        return [RepositoryEntry(name, "", reason) for name in self._start_list.missing(frozenset(entry.name for entry in found))]


async def _retire(slots: Sequence[Slot], grace_s: float) -> None:
    """Takes versions out of service: no new work, accepted work is finished, then they are closed."""
    for slot in slots:
        if slot.lifecycle.state is ModelState.READY:
            slot.lifecycle.to(ModelState.UNLOADING)
    busy = [slot.resident for slot in slots if slot.resident and slot.resident.users]
    try:
        async with asyncio.timeout(grace_s if busy else None):
            for model in busy:
                await model.unused()
    except TimeoutError:
        _log.warning("model %s: work that took longer than %g s is cut off", busy[0].spec.name, grace_s)
    finally:
        # Also when the server stops meanwhile: nobody else knows of versions that others took the place of.
        await asyncio.gather(*(_close(slot) for slot in slots))


async def _close(slot: Slot, reason: str = UNLOADED) -> None:
    if slot.model:
        await slot.model.close()
        slot.model = None
    if slot.lifecycle.state is ModelState.UNLOADING:
        slot.lifecycle.to(ModelState.UNAVAILABLE, reason)
    if slot.files is not None:
        await asyncio.to_thread(_remove, slot.files)


def _remove(files: Path | None) -> None:
    if files is not None:
        shutil.rmtree(files, ignore_errors=True)


def _fail(slot: Slot, reason: str) -> None:
    slot.lifecycle.to(ModelState.UNAVAILABLE, reason)
    _log.error("model %s%s cannot be served: %s", slot.entry.name, slot.entry.version and f" version {slot.entry.version}", reason)
