"""The table of docs/tensorrt.md, as a run fills it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from core_grpc.backends.tensorrt.description import size


@dataclass(frozen=True)
class Cell:
    """One build."""

    seconds: float
    """Of the whole command, calibration included."""
    plan_bytes: int
    peak_bytes: int
    """The command's largest resident size."""

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {size(self.plan_bytes)}"


@dataclass
class Table:
    """Rows are models, columns precisions."""

    rows: dict[str, dict[str, Cell]] = field(default_factory=dict)

    def add(self, title: str, precision: str, cell: Cell) -> None:
        """Fills a cell."""
        self.rows.setdefault(title, {})[precision] = cell

    def lines(self) -> Iterator[str]:
        """As Markdown. The last column is the most memory that a build of the row took."""
        precisions = list(dict.fromkeys(name for cells in self.rows.values() for name in cells))
        yield f"| model | {' | '.join(name.upper() for name in precisions)} | memory |"
        yield f"|---|{'---|' * len(precisions)}---|"
        for title, cells in self.rows.items():
            peak = max(cell.peak_bytes for cell in cells.values())
            yield f"| {title} | {' | '.join(str(cells.get(name, '')) for name in precisions)} | {size(peak)} |"
