"""TensorRT's Python bindings: which flavours are installed, and the one logger that each may have in a process.

Three flavours have nearly the same API under different module names. Code that uses them gets a ``Bindings`` and asks its module by
attribute (``hasattr``), never by version or by the number of a flag. Importing a flavour needs no GPU; making a lean ``Runtime`` without a
driver ends in a segmentation fault, so ask the driver first.

TensorRT keeps the first logger that a process hands it and ignores others, with a warning. So there is one for each flavour, made here,
and who wants to hear it listens for a while (``listening``).
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

_LOG = logging.getLogger("tensorgate.tensorrt")

Listener: TypeAlias = Callable[[str, str], None]
"""Is given the name of a severity (``INTERNAL_ERROR``, ``ERROR``, ``WARNING``, ``INFO``, ``VERBOSE``) and one message."""


class BindingsAbsent(Exception):
    """A flavour cannot be imported; the message is one line that says why, and what to do where that is known."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason}: {remedy}" if remedy else reason)
        self.reason = reason
        self.remedy = remedy
        """A command, or empty."""


@dataclass(frozen=True, slots=True)
class Flavour:
    """One of NVIDIA's three builds of TensorRT."""

    name: str
    """As plan metadata and flags spell it."""
    title: str
    """As people read it."""
    modules: tuple[str, ...]
    """The names it may be imported by, the usual one first."""
    install: str
    """The command that installs it."""
    can_build: bool
    """Whether it has a builder, or runs plans only."""


TENSORRT = Flavour("tensorrt", "TensorRT", ("tensorrt",), "pip install 'tensorgate[tensorrt,build]'", can_build=True)
LEAN = Flavour(
    "tensorrt_lean",
    "TensorRT lean runtime",
    ("tensorrt_lean", "tensorrt_lean_bindings"),
    "pip install 'tensorgate[lean]'",
    can_build=False,
)
RTX = Flavour(
    "tensorrt_rtx", "TensorRT-RTX", ("tensorrt_rtx", "tensorrt_rtx_bindings"), "pip install 'tensorgate[rtx,build]'", can_build=True
)

FLAVOURS: Mapping[str, Flavour] = {flavour.name: flavour for flavour in (TENSORRT, LEAN, RTX)}
"""By name, in the order in which they are preferred."""


@dataclass(frozen=True, slots=True)
class Bindings:
    """An imported flavour."""

    flavour: Flavour
    module: Any
    """NVIDIA's module; its types are not known to mypy."""
    version: str
    """Of the library, such as ``1.7.1.116``."""


@cache
def load_bindings(name: str) -> Bindings:
    """Imports a flavour; blocks for the second that its libraries take.

    Raises:
        BindingsAbsent: it is not installed, or one of its libraries is missing.
        KeyError: there is no flavour of that name.
    """
    flavour = FLAVOURS[name]
    for module_name in flavour.modules:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name != module_name:
                raise BindingsAbsent(f"{module_name} is installed, but needs the module {error.name}", flavour.install) from None
        except (ImportError, OSError) as error:  # Bindings without their libraries; libraries that do not load.
            raise BindingsAbsent(f"{module_name} is installed, but does not load: {error}") from None
        else:
            return Bindings(flavour, module, str(getattr(module, "__version__", "unknown")))
    raise BindingsAbsent(f"{flavour.title} is not installed", flavour.install)


def find_bindings() -> Mapping[str, Bindings | BindingsAbsent]:
    """Every flavour by name: its bindings, or why they are absent."""
    found: dict[str, Bindings | BindingsAbsent] = {}
    for name in FLAVOURS:
        try:
            found[name] = load_bindings(name)
        except BindingsAbsent as absence:
            found[name] = absence
    return found


def capability_names(bindings: Bindings) -> Mapping[str, Any]:
    """The targets that a flavour can name, such as ``8.9``, with its enum's values; empty for one that builds for its own GPU only."""
    enum = getattr(bindings.module, "ComputeCapability", None)
    members: Mapping[str, Any] = enum.__members__ if enum is not None else {}
    return {f"{name[2:-1]}.{name[-1]}": value for name, value in members.items() if name.startswith("SM")}


@cache
def _speaker(name: str) -> tuple[Any, list[Listener]]:
    """The flavour's logger, and who listens to it. The class is made here because its base is the flavour's."""
    module = load_bindings(name).module
    listeners: list[Listener] = []

    class Logger(module.ILogger):  # type: ignore[misc, name-defined]
        """Hands messages to the listeners; to Python's logging while there are none."""

        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            for listener in tuple(listeners):
                listener(severity.name, message)
            if not listeners:
                _LOG.log(_LEVELS.get(severity.name, logging.DEBUG), "%s", message)

    return Logger(), listeners


_LEVELS: Mapping[str, int] = {
    "INTERNAL_ERROR": logging.ERROR,
    "ERROR": logging.ERROR,
    "WARNING": logging.WARNING,
    # TensorRT's INFO is about its own insides.
    "INFO": logging.DEBUG,
}


def logger_of(bindings: Bindings) -> Any:
    """The one ``ILogger`` of this flavour in this process: hand it to every Builder, OnnxParser and Runtime."""
    return _speaker(bindings.flavour.name)[0]


@contextmanager
def listening(bindings: Bindings, listener: Listener) -> Iterator[None]:
    """Hands the flavour's messages, of whatever thread, to ``listener`` for as long as the context lasts."""
    _, listeners = _speaker(bindings.flavour.name)
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)


__all__ = [
    "FLAVOURS",
    "LEAN",
    "RTX",
    "TENSORRT",
    "Bindings",
    "BindingsAbsent",
    "Flavour",
    "Listener",
    "capability_names",
    "find_bindings",
    "listening",
    "load_bindings",
    "logger_of",
]
