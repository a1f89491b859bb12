"""Progress of a build, from TensorRT's monitor to whoever shows it, and the way back: wanting no plan any more."""

from __future__ import annotations

from typing import Any, Protocol

from core_grpc.backends.tensorrt.bindings import Bindings


class BuildObserver(Protocol):
    """Who watches a build. Phases are nested; steps say how far a phase is, not how long it will take."""

    def phase_started(self, name: str, parent: str | None, steps: int) -> None:
        """A phase begins; a name may come again."""
        ...

    def step_done(self, name: str, step: int) -> None:
        """One of its steps has ended."""
        ...

    def phase_finished(self, name: str) -> None:
        """A phase has ended, whether all its steps were made or not."""
        ...

    def note(self, text: str) -> None:
        """One line for the user."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the build is not wanted any more; asked at each step."""
        ...


class SilentObserver:
    """Watches and says nothing; keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def phase_started(self, name: str, parent: str | None, steps: int) -> None:
        """Nothing."""

    def step_done(self, name: str, step: int) -> None:
        """Nothing."""

    def phase_finished(self, name: str) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Kept."""
        self.notes.append(text)

    def is_cancelled(self) -> bool:
        """Never."""
        return False


def monitor_for(bindings: Bindings, observer: BuildObserver) -> Any:
    """TensorRT's ``IProgressMonitor`` that tells ``observer``. Its class is made here because its base is the flavour's."""
    base = bindings.module.IProgressMonitor

    class Monitor(base):  # type: ignore[misc, valid-type]
        """An exception in here would be printed by TensorRT; an observer's methods raise none."""

        def __init__(self) -> None:
            base.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            observer.phase_started(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            observer.step_done(phase_name, step)
            return not observer.is_cancelled()

        def phase_finish(self, phase_name: str) -> None:
            observer.phase_finished(phase_name)

    return Monitor()
