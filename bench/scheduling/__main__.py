"""``python -m bench.scheduling [--only SECTION] [--scale 1]``: see the sections' modules."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import many_models, reloads
from bench.scheduling import batching, fairness, joining, overload, sequences


async def _joining(scale: float) -> Table:
    return joining.measure(scale)


async def _reloads(scale: float) -> Table:
    return await reloads.measure(None, max(round(reloads.RELOADS * scale), 1), reloads.CALLERS)


async def _many_models(scale: float) -> Table:
    return await many_models.measure(None, max(round(many_models.MODELS * scale), 1), max(round(many_models.REQUESTS * scale), 1))


SECTIONS: Mapping[str, Callable[[float], Coroutine[Any, Any, Table]]] = {
    "joining": _joining,
    "engine": batching.against_the_engine,
    "batching": batching.against_no_batching,
    "sequences": sequences.measure,
    "overload": overload.measure,
    "fairness": fairness.measure,
    "reloads": _reloads,
    "many models": _many_models,
}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SECTIONS, action="append", help="one section, may be given again (default: all)")
    parser.add_argument("--scale", type=float, default=1.0, help="how long to measure, of the default")
    arguments = parser.parse_args()
    console = Console(width=120)
    for name in arguments.only or SECTIONS:
        console.print(asyncio.run(SECTIONS[name](arguments.scale)))


if __name__ == "__main__":
    main()
