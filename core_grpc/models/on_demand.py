"""Models that are not loaded before a request asks for them, and idle ones that go so that a budget holds.

Such a model version is READY with the reason ``on demand``, since a request for it is served: it waits until the model is there. However
many wait, there is one load. What goes and when is decided by ``residency.py``; loading and closing is the repository control's affair,
and comes in turn with what else is done to the model. A model never goes while it has work, nor before those who waited for it have it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from core_grpc.errors import DeadlineExpired, GatewayError, ModelNotReady, NotFound, QueueFull, quoted
from core_grpc.lifecycle import ModelState
from core_grpc.models.model import Model
from core_grpc.models.parked_model import ParkedModel
from core_grpc.models.pipeline_loading import models_to_load
from core_grpc.models.registry import ON_DEMAND, UNLOADED, Registry, Slot
from core_grpc.models.repository import RepositoryEntry
from core_grpc.models.residency import BackOff, Budget, Resident
from core_grpc.models.resident_size import resident_bytes
from core_grpc.pipelines.step import PIPELINE
from core_grpc.settings import ModelsSettings
from core_grpc.types import InferRequest

_log = logging.getLogger(__name__)

_ROOM_POLL_S = 0.02
"""How often is looked whether a model has become idle, while another one waits for its room. Requests tell nobody when they end."""


class ModelSteps(Protocol):
    """What the repository control does to single models."""

    async def in_turn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs ``work`` when nobody else works on the model of that name, whether or not the caller stays.

        Raises:
            ServerDraining: the server is going away.
            whatever ``work`` raises.
        """
        ...

    def is_in_turn(self, name: str) -> bool:
        """Whether somebody works on the model of that name, or waits to."""
        ...

    async def load_slot(self, slot: Slot) -> None:
        """Makes a LOADING version READY, or UNAVAILABLE with a reason."""
        ...

    async def retire(self, slots: Sequence[Slot]) -> None:
        """Takes versions out of service once their accepted work is done."""
        ...


class _Want:
    """Requests that wait for one model version."""

    def __init__(self) -> None:
        self.waiters = 0
        self.nobody = asyncio.Event()
        """Set while there are none."""
        self.nbytes = 0
        self.task: asyncio.Task[None] | None = None
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the load failed; empty when the registry has an answer."""


class OnDemand:
    """See the module's text. Belongs to the event loop."""

    def __init__(self, settings: ModelsSettings, registry: Registry, steps: ModelSteps) -> None:
        self._settings = settings
        self._registry = registry
        self._steps = steps
        self._budget = Budget(settings.max_resident_models, settings.max_resident_bytes)
        self._pinned = frozenset(name.strip() for name in settings.pinned.split(","))
        self._wants: dict[Slot, _Want] = {}
        self._taken: dict[Slot, Mapping[str, int]] = {}
        """Room of what is on its way in or out, by device; such a version is not loaded in the registry."""
        self._admission = asyncio.Lock()
        """Who waits for room gets it in the order of asking."""
        self._back_off: BackOff[tuple[str, str]] = BackOff()
        self._pauses: dict[Slot, asyncio.TimerHandle] = {}
        self._settling: asyncio.Task[None] | None = None

    async def to_start(self, slots: Sequence[Slot]) -> list[Slot]:
        """Which of these LOADING versions are to be loaded at start; the others are on demand from now on."""
        if self._settings.startup == "all" and not self._budget:
            return list(slots)
        for slot in slots:
            slot.nbytes = await self.size_of(slot.entry)
        starting: list[Slot] = []
        residents: list[Resident[Slot]] = []
        pipelines = [slot for slot in slots if slot.entry.backend == PIPELINE]
        for slot in sorted(slots, key=lambda slot: not self._is_pinned(slot)):
            if slot in pipelines:
                continue
            verdict = self._budget.who_must_go(residents, slot.nbytes)
            if slot.entry.reason or self._is_pinned(slot) or (self._settings.startup == "all" and verdict.is_enough):
                starting.append(slot)
                residents.append(Resident(slot, slot.nbytes))
            else:
                slot.lifecycle.to(ModelState.READY, ON_DEMAND)
        if len(starting) + len(pipelines) == len(slots):
            return list(slots)
        # What a pipeline takes and gives is read from the models of its steps, which are not all loaded.
        for slot in pipelines:
            slot.lifecycle.to(ModelState.READY, ON_DEMAND)
        return starting

    async def size_of(self, entry: RepositoryEntry, model: Model | None = None) -> Mapping[str, int]:
        """What a version takes by device, exactly where the model is loaded; nothing where no budget asks for it."""
        instances = model.config.instances if model else entry.config.instances
        return await asyncio.to_thread(resident_bytes, entry, instances) if self._budget else {}

    async def resident(self, name: str, version: str, deadline: float | None, nbytes: int) -> Model:
        """The loaded model that answers to ``name`` and ``version``, with one user more; waits for its load.

        Args:
            name: of a model.
            version: of it; empty for the newest.
            deadline: monotonic seconds; None for no limit.
            nbytes: of the inputs that wait here, counted against the model's limit.

        Raises:
            QueueFull: as many requests wait for the load as may wait in the model's queue.
            DeadlineExpired: it took too long.
            ModelNotReady, NotFound: it cannot be loaded now, or is gone by now.
        """
        while (slot := self._registry.ready_slot(name, version)) and slot.is_on_demand:
            await self._await_load(slot, deadline, nbytes)
        model = slot.resident if slot else None
        if model is None:
            model = self._registry.find(name, version)
        model.users += 1
        return model

    async def known(self, name: str, version: str, deadline: float | None = None, nbytes: int = 0) -> Model:
        """As ``Registry.find``; waits for the load of a model that was never loaded.

        Raises:
            as ``resident``; InvalidArgument: the version is not a string of digits.
        """
        model = self._registry.known(name, version)
        if model is None:
            (await self.resident(name, version, deadline, nbytes)).release()
            model = self._registry.find(name, version)
        return model

    async def known_for(self, request: InferRequest) -> Model:
        """As ``known``, of the model that a request names."""
        nbytes = sum(tensor.array.nbytes for tensor in request.inputs.values())
        return await self.known(request.model_name, request.model_version, request.deadline, nbytes)

    def settle(self) -> asyncio.Task[None] | None:
        """Has models go, as they become idle, until the budget holds again; the task ends then. None where there is no budget."""
        if self._budget and (self._settling is None or self._settling.done()):
            self._settling = asyncio.create_task(self._settle(), name="hold the models' budget")
        return self._settling

    async def close(self) -> None:
        """Ends loads: who waits is refused."""
        tasks = [want.task for want in self._wants.values() if want.task]
        tasks += [self._settling] if self._settling else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pause in self._pauses.values():
            pause.cancel()

    async def _await_load(self, slot: Slot, deadline: float | None, nbytes: int) -> None:
        want = self._wants.get(slot)
        if want is None:
            want = self._wants[slot] = _Want()
        self._check_queue(slot, want, nbytes)
        want.waiters += 1
        want.nobody.clear()
        want.nbytes += nbytes
        if want.task is None:
            want.task = asyncio.create_task(self._bring(slot, want), name=f"load {slot.entry.name} on demand")
        try:
            timeout = None if deadline is None else max(deadline - time.monotonic(), 0)
            done, _ = await asyncio.wait({want.over}, timeout=timeout)
        finally:
            want.waiters -= 1
            want.nbytes -= nbytes
            if not want.waiters:
                want.nobody.set()
        if not done:
            raise DeadlineExpired(f"the deadline passed before model '{slot.entry.name}' was loaded")
        if reason := want.over.result():
            raise ModelNotReady(reason)

    def _check_queue(self, slot: Slot, want: _Want, nbytes: int) -> None:
        queue = slot.entry.config.queue
        for what, waiting, limit, name in (
            ("requests", want.waiters + 1, queue.max_rows or self._settings.max_queue_rows, "max_queue_rows"),
            ("bytes", want.nbytes + nbytes, queue.max_bytes or self._settings.max_queue_bytes, "max_queue_bytes"),
        ):
            if want.waiters and waiting > limit:
                raise QueueFull(f"too many {what} wait until model '{slot.entry.name}' is loaded: the limit is {limit} ({name})")

    async def _bring(self, slot: Slot, want: _Want) -> None:
        """Loads a version for those who want it, and tells them."""
        reason = "loading failed unexpectedly"
        try:
            await self._load(slot, want)
            reason = ""
        except GatewayError as error:
            reason = error.message
        except asyncio.CancelledError:
            reason = "the server is shutting down"
        finally:
            # In one step: who comes after the last who waits begins anew.
            del self._wants[slot]
            self._taken.pop(slot, None)
            if not want.over.done():
                want.over.set_result(reason)

    async def _load(self, slot: Slot, want: _Want) -> None:
        if slot.entry.config.steps:
            await self._make_steps_known(slot)
        if self._budget and slot.entry.backend != PIPELINE:
            slot.nbytes = await self.size_of(slot.entry)
            if not await self._has_room(slot, want):
                return
        await self._steps.in_turn(slot.entry.name, partial(self._return, slot, want))

    async def _make_steps_known(self, slot: Slot) -> None:
        """Has the models of a pipeline's steps loaded, and theirs, where nothing is known of them yet."""
        try:
            for name in await models_to_load(slot.entry.name, [slot.entry], self._entries):
                for of_step in self._registry.slots(name):
                    if of_step.is_on_demand and of_step.model is None:
                        await self.known(name, of_step.entry.version)
        except GatewayError as error:
            raise self._failed(slot, error.message) from None

    async def _entries(self, name: str) -> Sequence[RepositoryEntry]:
        if not (slots := self._registry.slots(name)):
            raise NotFound(f"no such model: {quoted(name)}")
        return [slot.entry for slot in slots]

    async def _has_room(self, slot: Slot, want: _Want) -> bool:
        """Makes room for a version and takes it; false once nobody waits for it any more.

        Raises:
            ModelNotReady: there will be none, because of its size and what is pinned.
        """
        async with self._admission:
            while want.waiters:
                residents = list(self._residents())
                if not self._budget.can_ever_hold(residents, slot.nbytes):
                    raise self._failed(slot, f"no room: {self._limits()}, and what is pinned stays")
                going, is_enough = self._budget.who_must_go(residents, slot.nbytes)
                if is_enough and not going:
                    self._taken[slot] = slot.nbytes
                    return True
                if is_enough:
                    await asyncio.gather(*map(self._park, going))
                else:
                    await asyncio.sleep(_ROOM_POLL_S)
        return False

    async def _return(self, slot: Slot, want: _Want) -> None:
        if not (self._registry.holds(slot) and slot.is_on_demand):
            return  # Somebody else loaded or unloaded it meanwhile: the registry knows.
        entry = slot.entry
        loaded = Slot(entry, slot.files)
        try:
            await self._steps.load_slot(loaded)
        except BaseException:
            if loaded.model:
                await loaded.model.close()
            raise
        if loaded.model is None:
            raise self._failed(slot, loaded.lifecycle.reason)
        self._back_off.succeeded((entry.name, entry.version))
        if slot.model:
            loaded.model.statistics.continue_from(slot.model.statistics)
            slot.model.statistics = loaded.model.statistics
        slot.files = None
        self._taken.pop(slot, None)
        self._registry.swap(slot, loaded)
        want.over.set_result("")
        # Before anybody else may do something to the model, those who waited have it in hand.
        await want.nobody.wait()

    def _failed(self, slot: Slot, reason: str) -> ModelNotReady:
        """Makes the version UNAVAILABLE for a while; gives the error for those who wait."""
        entry = slot.entry
        pause_s = self._back_off.failed((entry.name, entry.version), time.monotonic())
        _log.warning("model %s version %s could not be loaded on demand; requests may try again after %g s", *_title(slot), pause_s)
        if self._registry.holds(slot) and slot.is_on_demand:
            slot.lifecycle.to(ModelState.UNAVAILABLE, f"the load on demand failed: {reason}")
            self._pauses[slot] = asyncio.get_running_loop().call_later(pause_s, self._offer_again, slot, reason)
        return ModelNotReady(f"model '{entry.name}' version {entry.version} could not be loaded on demand: {reason}")

    def _offer_again(self, slot: Slot, reason: str) -> None:
        del self._pauses[slot]
        if self._registry.holds(slot) and slot.lifecycle.state is ModelState.UNAVAILABLE and slot.lifecycle.reason != UNLOADED:
            slot.lifecycle.to(ModelState.LOADING)
            slot.lifecycle.to(ModelState.READY, f"{ON_DEMAND}; the last load failed: {reason}")

    async def _settle(self) -> None:
        while True:
            async with self._admission:
                residents = list(self._residents())
                going, is_enough = self._budget.who_must_go(residents)
                await asyncio.gather(*map(self._park, going))
            if is_enough and not going:
                return
            if all(resident.is_pinned for resident in residents):
                _log.warning("the pinned models alone take more than the budget: %s", self._limits())
                return
            if not going:
                await asyncio.sleep(_ROOM_POLL_S)

    async def _park(self, slot: Slot) -> None:
        await self._steps.in_turn(slot.entry.name, partial(self._go, slot))

    async def _go(self, slot: Slot) -> None:
        """Unloads an idle version, in its turn. From the decision on requests find the parked model, so none is turned away."""
        model = slot.resident
        if model is None or not (self._registry.holds(slot) and _may_go(slot, model)):
            return
        parked = Slot(slot.entry, slot.files, ModelState.READY)
        parked.lifecycle.reason = ON_DEMAND
        parked.model = ParkedModel(model, parked.lifecycle, self.resident)
        slot.files = None
        self._taken[slot] = slot.nbytes
        self._registry.swap(slot, parked)
        try:
            await self._steps.retire([slot])
        finally:
            # Also where it was broken off: nobody else knows it any more.
            await model.close()
            del self._taken[slot]
        _log.info("model %s version %s made room; it comes back on demand", *_title(slot))

    def _residents(self) -> Iterator[Resident[Slot]]:
        for slot in self._registry.all_slots():
            model = slot.resident
            if slot.entry.backend == PIPELINE:
                continue  # It has no engine.
            if model:
                is_idle = _may_go(slot, model) and not self._steps.is_in_turn(slot.entry.name)
                yield Resident(slot, slot.nbytes, model.last_used, is_idle=is_idle, is_pinned=self._is_pinned(slot))
            elif slot.lifecycle.state is ModelState.LOADING:
                yield Resident(slot, slot.nbytes, is_pinned=self._is_pinned(slot))
        for slot, nbytes in self._taken.items():
            yield Resident(slot, nbytes)

    def _is_pinned(self, slot: Slot) -> bool:
        return slot.entry.config.pinned or slot.entry.name in self._pinned

    def _limits(self) -> str:
        return f"models.max_resident_models is {self._budget.max_models}, models.max_resident_bytes {self._budget.max_bytes}"


def _may_go(slot: Slot, model: Model) -> bool:
    return slot.lifecycle.state is ModelState.READY and model.is_idle


def _title(slot: Slot) -> tuple[str, str]:
    return slot.entry.name, slot.entry.version
