"""The models that a server knows: finds the one a request names, and says what state each is in.

Loading and unloading are in ``repository_control.py``, which puts the versions of a model here, all at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from core_grpc.errors import GatewayError, InvalidArgument, ModelNotReady, NotFound, quoted
from core_grpc.lifecycle import MODEL_STEPS, Lifecycle, ModelState
from core_grpc.models.model import Model
from core_grpc.models.repository import RepositoryEntry
from core_grpc.types import ModelSpec

UNLOADED = "unloaded"
"""The reason of a model version that was unloaded because somebody asked for it."""
ON_DEMAND = "on demand"
"""The reason of a model version that is READY without being loaded: a request makes it come, and waits for it."""
NOT_LOADED = "not loaded"
"""The reason of a model version that the setting models.load leaves to be loaded on request."""


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

    @property
    def is_unloaded(self) -> bool:
        """Whether it does not answer because somebody wants it so."""
        return self.state is ModelState.UNAVAILABLE and self.reason in (UNLOADED, NOT_LOADED)


class Slot:
    """A model version's place: its life, and the model while there is one."""

    __slots__ = ("entry", "files", "lifecycle", "model", "nbytes")

    def __init__(self, entry: RepositoryEntry, files: Path | None = None, start: ModelState = ModelState.LOADING) -> None:
        self.entry = entry
        self.files = files
        """A private directory that goes with this version; None for what is served from the repository."""
        self.lifecycle = Lifecycle(MODEL_STEPS, start)
        self.model: Model | None = None
        self.nbytes: Mapping[str, int] = {}
        """What it takes by device, where a budget asks for it."""

    @property
    def resident(self) -> Model | None:
        """The model, if it is loaded and not only known."""
        return self.model if self.model and self.model.is_resident else None

    @property
    def is_on_demand(self) -> bool:
        """Whether a request makes the model come: it counts as ready, and is not loaded."""
        return self.lifecycle.state is ModelState.READY and self.resident is None


class Registry:
    """See the module's text. Belongs to the event loop."""

    def __init__(self) -> None:
        self._slots: dict[str, Mapping[str, Slot]] = {}
        """By name and version, versions ascending."""
        self._ready: dict[tuple[str, str], Model] = {}
        """What ``find`` answers, with the newest ready version under the empty one; kept by watching the lifecycles."""
        self.device_fault = ""
        """Why a device of this process cannot be used any more, whatever was loaded or unloaded since; empty while all can."""

    def put(self, name: str, slots: Sequence[Slot]) -> Sequence[Slot]:
        """Makes these the model's versions, in ascending order, and gives those that they take the place of."""
        replaced = list(self._slots.get(name, {}).values())
        self._slots[name] = {slot.entry.version: slot for slot in slots}
        for slot in slots:
            slot.lifecycle.watch(lambda _state: self._refresh(name))
        self._refresh(name)
        return replaced

    def swap(self, old: Slot, new: Slot) -> None:
        """Puts ``new`` in the place of ``old``, a version that ``holds`` says is there."""
        name = old.entry.name
        self._slots[name] = {version: new if slot is old else slot for version, slot in self._slots[name].items()}
        new.lifecycle.watch(lambda _state: self._refresh(name))
        self._refresh(name)

    def holds(self, slot: Slot) -> bool:
        """Whether this is still the place of its model version."""
        return self._slots.get(slot.entry.name, {}).get(slot.entry.version) is slot

    def remove(self, name: str) -> None:
        """Forgets a model, none of whose versions is loaded."""
        self._slots.pop(name, None)

    def slots(self, name: str) -> Sequence[Slot]:
        """The model's versions; none for a name that is not known."""
        return list(self._slots.get(name, {}).values())

    def ready_slot(self, name: str, version: str = "") -> Slot | None:
        """The place that answers to ``name`` and ``version``, by itself or on demand; of the newest where ``version`` is empty."""
        ready = [slot for slot in self._slots.get(name, {}).values() if slot.lifecycle.state is ModelState.READY]
        return next((slot for slot in reversed(ready) if version in ("", slot.entry.version)), None)

    def all_slots(self) -> Sequence[Slot]:
        """Every model version, by name and version."""
        return [slot for name in sorted(self._slots) for slot in self._slots[name].values()]

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

    def known(self, name: str, version: str = "") -> Model | None:
        """As ``find``, and None for what is on demand and was never loaded: nothing but its name is known."""
        model = self._ready.get((name, version))
        if model is None and self.ready_slot(name, version) is None:
            raise self._not_found(name, version)
        return model

    def declares_decoupled(self, name: str, version: str = "") -> bool:
        """Whether model.toml says that a version which answers, loaded or not, answers any number of times."""
        slot = self.ready_slot(name, version)
        return bool(slot and slot.entry.config.backend_options.get(slot.entry.backend, {}).get("decoupled", False))

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
        return [slot.model for slot in self.all_slots() if slot.model and slot.lifecycle.state is ModelState.READY]

    def entries(self) -> list[ModelEntry]:
        """Every model version of the repository, by name and version."""
        return [_entry(slot) for slot in self.all_slots()]

    def _refresh(self, name: str) -> None:
        """Makes what ``find`` answers agree with the lifecycles of the model's versions."""
        for key in [key for key in self._ready if key[0] == name]:
            del self._ready[key]
        for version, slot in self._slots[name].items():
            if slot.model and slot.model.device_fault:
                self.device_fault = slot.model.device_fault
            if slot.lifecycle.state is not ModelState.READY:
                continue
            if slot.model:
                self._ready[name, version] = self._ready[name, ""] = slot.model
            else:
                # What was never loaded is known by its name alone: whoever finds nothing has it loaded (on_demand.py).
                self._ready.pop((name, ""), None)

    def _not_found(self, name: str, version: str) -> GatewayError:
        if version and not (version.isascii() and version.isdigit()):
            return InvalidArgument(f"failed to get model version from specified version string {quoted(version)}: wanted digits")
        slots = self._slots.get(name)
        if self.ready_slot(name, version):
            return ModelNotReady(f"{quoted(name)} is not loaded yet: a request for it makes it come")
        if not slots:
            return NotFound(f"Request for unknown model: {quoted(name)} is not found")
        if not version:
            newest = _entry(list(slots.values())[-1])
            if newest.is_unloaded:
                return NotFound(f"Request for unknown model: {quoted(name)} has no available versions: it is {newest.reason}")
            return ModelNotReady(f"{quoted(name)} has no available versions: {_state(newest)}")
        # A model that failed as a whole has one slot, without a version.
        slot = slots.get(version) or slots.get("")
        if slot is None:
            return NotFound(f"Request for unknown model: {quoted(name)} version {quoted(version, 20)} is not found")
        entry = _entry(slot)
        if entry.is_unloaded:
            return NotFound(f"Request for unknown model: {quoted(name)} version {version} is not found: it is {entry.reason}")
        return ModelNotReady(f"{quoted(name)} version {version} is not at ready state: {_state(entry)}")


def _state(entry: ModelEntry) -> str:
    return f"{entry.state}, {entry.reason}" if entry.reason else entry.state


def _entry(slot: Slot) -> ModelEntry:
    return ModelEntry(
        slot.entry.name, slot.entry.version, slot.lifecycle.state, slot.lifecycle.reason, slot.model.spec if slot.model else None
    )
