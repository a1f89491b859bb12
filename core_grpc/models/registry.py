"""The models that a server knows: loads them from the repository, finds the one a request names, drains and closes them."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from core_grpc.errors import GatewayError, InvalidArgument, ModelNotReady, NotFound, quoted
from core_grpc.lifecycle import MODEL_STEPS, Lifecycle, ModelState
from core_grpc.models.loading import load_model
from core_grpc.models.model import Model
from core_grpc.models.repository import RepositoryEntry, scan_repository
from core_grpc.settings import ModelsSettings
from core_grpc.types import ModelSpec

_log = logging.getLogger(__name__)

_LOADING_THREADS = 4


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model version and its state, as the repository index shows it."""

    name: str
    version: str
    """Empty where the model has no version that could be served at all."""
    state: ModelState
    reason: str
    spec: ModelSpec | None
    """None until it was loaded."""


class _Slot:
    """A model version's place: its life, and the model while there is one."""

    __slots__ = ("entry", "lifecycle", "model")

    def __init__(self, entry: RepositoryEntry) -> None:
        self.entry = entry
        self.lifecycle = Lifecycle(MODEL_STEPS, ModelState.LOADING)
        self.model: Model | None = None


class Registry:
    """See the module's text. Belongs to the event loop."""

    def __init__(self, repository: Path, settings: ModelsSettings) -> None:
        self._repository = repository
        self._settings = settings
        self._slots: dict[str, dict[str, _Slot]] = {}
        """By name and version, versions ascending."""
        self._ready: dict[tuple[str, str], Model] = {}
        """What ``find`` answers, with the newest ready version under the empty one; kept by watching the lifecycles."""

    async def load_all(self) -> None:
        """Loads every model of the repository, several at a time. A model that fails is UNAVAILABLE with a reason; the others are served.

        Raises:
            SettingsError: the repository cannot be read.
        """
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(min(_LOADING_THREADS, os.cpu_count() or 1), "model-loading")
        try:
            entries = await loop.run_in_executor(pool, scan_repository, self._repository)
            slots = [self._add(entry) for entry in entries]
            await asyncio.gather(*(self._load(slot, pool) for slot in slots))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def find(self, name: str, version: str = "") -> Model:
        """The model that answers to ``name`` and ``version``; the newest ready one when ``version`` is empty.

        Raises:
            NotFound: no such model or version.
            InvalidArgument: the version is not a string of digits.
            ModelNotReady: known, but it does not answer now; the text says why.
        """
        model = self._ready.get((name, version))
        if model is None:
            raise self._not_found(name, version)
        return model

    def versions(self, name: str) -> list[str]:
        """The versions that are ready, ascending.

        Raises:
            NotFound: no such model.
        """
        if name not in self._slots:
            raise self._not_found(name, "")
        return [version for version, slot in self._slots[name].items() if slot.lifecycle.state is ModelState.READY]

    def ready_models(self) -> list[Model]:
        """Every model version that answers, by name and version."""
        return [slot.model for slot in self._all_slots() if slot.model and slot.lifecycle.state is ModelState.READY]

    def entries(self) -> list[ModelEntry]:
        """Every model version of the repository, by name and version."""
        return [_entry(slot) for versions in self._slots.values() for slot in versions.values()]

    async def drain(self, grace_s: float) -> bool:
        """Waits until no model has work left, at most ``grace_s`` seconds; whether that was enough."""
        work = asyncio.gather(*(slot.model.drain() for slot in self._all_slots() if slot.model))
        try:
            await asyncio.wait_for(work, grace_s)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Closes every model; pending work fails, executing work is finished; idempotent."""
        await asyncio.gather(*(slot.model.close() for slot in self._all_slots() if slot.model))

    def _all_slots(self) -> Sequence[_Slot]:
        return [slot for versions in self._slots.values() for slot in versions.values()]

    def _add(self, entry: RepositoryEntry) -> _Slot:
        slot = _Slot(entry)
        slot.lifecycle.watch(lambda _state: self._refresh(entry.name))
        self._slots.setdefault(entry.name, {})[entry.version] = slot
        return slot

    def _refresh(self, name: str) -> None:
        """Makes what ``find`` answers agree with the lifecycles of the model's versions."""
        self._ready.pop((name, ""), None)
        for version, slot in self._slots[name].items():
            if slot.lifecycle.state is ModelState.READY and slot.model:
                self._ready[name, version] = self._ready[name, ""] = slot.model
            else:
                self._ready.pop((name, version), None)

    async def _load(self, slot: _Slot, pool: ThreadPoolExecutor) -> None:
        entry, began = slot.entry, time.monotonic()
        if entry.reason:
            self._fail(slot, entry.reason)
            return
        try:
            slot.model = await load_model(entry, self._settings, slot.lifecycle, pool)
        except GatewayError as error:
            self._fail(slot, error.message)
        except Exception as error:  # noqa: BLE001 (a bug in one model's load must not keep the others from being served)
            _log.exception("model %s version %s: loading failed unexpectedly", entry.name, entry.version)
            self._fail(slot, f"loading failed unexpectedly ({type(error).__name__})")
        else:
            slot.lifecycle.to(ModelState.READY)
            spec, instances = slot.model.spec, entry.config.instance_count
            _log.info(
                "model %s version %s is ready after %.2f s: %s, max_batch_size %d, %d instance%s",
                *(spec.name, spec.version, time.monotonic() - began, spec.platform, spec.max_batch_size),
                *(instances, "" if instances == 1 else "s"),
            )

    def _fail(self, slot: _Slot, reason: str) -> None:
        slot.lifecycle.to(ModelState.UNAVAILABLE, reason)
        _log.error("model %s%s cannot be served: %s", slot.entry.name, slot.entry.version and f" version {slot.entry.version}", reason)

    def _not_found(self, name: str, version: str) -> GatewayError:
        if version and not (version.isascii() and version.isdigit()):
            return InvalidArgument(f"failed to get model version from specified version string {quoted(version)}: wanted digits")
        slots = self._slots.get(name)
        if not slots:
            return NotFound(f"Request for unknown model: {quoted(name)} is not found")
        if not version:
            newest = _entry(list(slots.values())[-1])
            return ModelNotReady(f"{quoted(name)} has no available versions: {_state(newest)}")
        # A model that failed as a whole has one slot, without a version.
        slot = slots.get(version) or slots.get("")
        if slot is None:
            return NotFound(f"Request for unknown model: {quoted(name)} version {quoted(version, 20)} is not found")
        entry = _entry(slot)
        return ModelNotReady(f"{quoted(name)} version {version} is not at ready state: {_state(entry)}")


def _state(entry: ModelEntry) -> str:
    return f"{entry.state}, {entry.reason}" if entry.reason else entry.state


def _entry(slot: _Slot) -> ModelEntry:
    return ModelEntry(
        slot.entry.name, slot.entry.version, slot.lifecycle.state, slot.lifecycle.reason, slot.model.spec if slot.model else None
    )
