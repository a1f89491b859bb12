"""How long `tensorgate serve` takes to be ready with the demo model, and what it weighs: ``python -m bench.start [--rounds 5]``.

Weight is the proportional set size (PSS) of all processes together, one second after ready and one photograph later.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import httpx

from bench.stacks import ROOT, Gateway, gateway, process_tree, pss_bytes

PHOTO = ROOT / "tensorgate" / "samples" / "coffee.jpg"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="starts; medians are shown (default 5)")
    ready_s, total_mb, node_mb = [], [], []
    parts: dict[str, float] = {}
    for _ in range(parser.parse_args().rounds):
        with gateway(None) as running:
            ready_s.append(running.ready_s)
            _classify(running, PHOTO)
            time.sleep(1)
            parts = {part: pss_bytes(running.pid_of(part)) / 1e6 for part in ("node", "edge", "facade")}
            total_mb.append(sum(map(pss_bytes, process_tree(running.pid))) / 1e6)
            node_mb.append(parts["node"])
    parts["supervisor"] = total_mb[-1] - sum(parts.values())
    total, node = statistics.median(total_mb), statistics.median(node_mb)
    print(f"ready after {statistics.median(ready_s):.2f} s (expected ≤ 4; {min(ready_s):.2f} to {max(ready_s):.2f})")
    print(f"all processes {total:.0f} MB PSS (expected ≤ 400), node {node:.0f} MB (expected ≤ 230)")
    print("last round: " + ", ".join(f"{part} {weight:.0f} MB" for part, weight in parts.items()))


def _classify(running: Gateway, photo: Path) -> None:
    url = f"http://{running.edge}/v1/models/efficientnet_lite0:predict"
    answer = httpx.post(url, files={"image": photo.read_bytes()}, timeout=20).json()
    assert answer["classes"][0][0]["label"] == "espresso", answer


if __name__ == "__main__":
    main()
