"""Renders the example configurations of this directory: ``python envoy/render_examples.py``; a test keeps them fresh.

They are what the templates give for one setting of everything, for people to read.
What really runs is printed by ``tensorgate edge --print``.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from core_grpc.transports.envoy_host import NodeListener, node_config  # noqa: E402  # Found through the line above.
from tensorgate.edge import edge_config  # noqa: E402
from tensorgate.settings import EdgeProcessSettings, EdgeSettings  # noqa: E402

HEADER = "# Rendered from {template} by envoy/render_examples.py, with example values. Not read by anything.\n"
PYVOY = Path("/opt/tensorgate/lib/python3.13/site-packages/pyvoy/_pyvoy.abi3.so")


def examples() -> dict[str, str]:
    """The examples by file name."""
    edge = EdgeSettings(
        core="unix:/run/tensorgate/core.sock", facade="unix:/run/tensorgate/facade.sock", cors_origins="https://app.example"
    )
    node = NodeListener("127.0.0.1", 50051, "/run/tensorgate/node-admin.sock", "/run/tensorgate/core.sock")
    descriptors = Path("protos/descriptors.binpb")
    texts = {
        "edge": edge_config(EdgeProcessSettings(edge), "/run/tensorgate/edge-admin.sock", descriptors),
        "node": node_config(node, shared_object=PYVOY),
    }
    return {f"{name}.example.yaml": HEADER.format(template=f"{name}.yaml.j2") + text for name, text in texts.items()}


if __name__ == "__main__":
    for file_name, content in examples().items():
        (HERE / file_name).write_text(content, encoding="utf-8")
