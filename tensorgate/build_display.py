"""What ``tensorgate build`` shows while it works, and what Ctrl-C does to it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_EVERY_S = 10.0
"""Between two lines of progress where there is no terminal to draw on."""


class Interrupts:
    """Ctrl-C and SIGTERM, by what the command is doing.

    They end it at once, by KeyboardInterrupt, until the builder has the word. From then on they are only noted: the builder asks at each of
    its steps, and gives up; a plan that is complete is written to its end. While libraries load they wait: an exception inside of that may
    abort the process.
    """

    def __init__(self) -> None:
        self.number = 0
        """Of the signal that came; 0 while none did."""
        self._ends_at_once = True

    def note_only(self) -> None:
        """The builder has the word."""
        self._ends_at_once = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """They end the command when the context does."""
        ends_at_once, self._ends_at_once = self._ends_at_once, False
        try:
            yield
        finally:
            self._ends_at_once = ends_at_once
        if ends_at_once and self.number:
            raise KeyboardInterrupt

    @property
    def exit_code(self) -> int:
        """As shells count it."""
        return 128 + (self.number or signal.SIGINT)

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handles both signals as long as the context lasts."""
        previous = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        is_first = self.number == 0
        self.number = number
        # A second one would interrupt the tidying up that the first has begun.
        if self._ends_at_once and is_first:
            raise KeyboardInterrupt


class Display:
    """A ``BuildObserver`` that draws bars, one for each phase that is open; without a terminal it writes a line now and then."""

    def __init__(
        self,
        bars: Any | None,
        write: Callable[[str], None],
        interrupts: Interrupts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``bars``: rich's Progress, None where there is no terminal. ``clock``: seconds."""
        self._bars = bars
        self._write = write
        self._interrupts = interrupts
        self._clock = clock
        self._started = self._written = clock()
        self._open: list[tuple[str, Any]] = []

    def phase_started(self, name: str, parent: str | None, steps: int) -> None:
        """Draws a bar below those of the phases around it."""
        depth = len(self._open) if parent is not None else 0
        self._open.append((name, self._bars.add_task("  " * depth + name, total=steps) if self._bars else None))
        self._say_where()

    def step_done(self, name: str, step: int) -> None:
        """Moves the innermost bar of that name."""
        if self._bars:
            for open_name, task in reversed(self._open):
                if open_name == name:
                    self._bars.update(task, completed=step + 1)
                    break
        self._say_where()

    def phase_finished(self, name: str) -> None:
        """Takes the bar away."""
        for index in range(len(self._open) - 1, -1, -1):
            if self._open[index][0] == name:
                _, task = self._open.pop(index)
                if self._bars:
                    self._bars.remove_task(task)
                return

    def note(self, text: str) -> None:
        """One line above the bars."""
        self._write(text)

    def is_cancelled(self) -> bool:
        """Whether there was a Ctrl-C."""
        return self._interrupts.number != 0

    def _say_where(self) -> None:
        now = self._clock()
        if self._bars is None and now - self._written >= _EVERY_S:
            self._written = now
            self._write(f"{now - self._started:.0f} s: {' > '.join(name for name, _ in self._open)}")


@contextmanager
def displayed(interrupts: Interrupts) -> Iterator[Display]:
    """A display on standard error."""
    from rich.console import Console  # noqa: PLC0415 (the other commands need none of it)
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Display(progress if console.is_terminal else None, lambda text: console.print(text, markup=False, soft_wrap=True), interrupts)


__all__ = ["Display", "Interrupts", "displayed"]
