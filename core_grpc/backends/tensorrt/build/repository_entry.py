"""A plan in a model repository: the model.toml beside it, with the batches that its profiles allow."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from core_grpc.backends.tensorrt.plan_metadata import PlanMetadata, Profile

PLAN_FILE = "model.plan"
_CONFIG_FILE = "model.toml"
_TRITON_FILE = "config.pbtxt"
_VERSION = re.compile(r"^[1-9]\d*$|^0$")


def largest_batch(metadata: PlanMetadata) -> int:
    """Rows that the scheduler may join for this plan: from one on, every number up to it is in a profile.

    0 where the first dimension is not a batch everywhere, or one row is in no profile.
    """
    tensors = (*metadata.inputs, *metadata.outputs)
    if not metadata.profiles or not all(tensor.shape and tensor.shape[0] == -1 for tensor in tensors):
        return 0
    ranges = [_rows(profile) for profile in metadata.profiles]
    reached = 0
    for least, largest in sorted(ranges):
        if least > reached + 1:
            break
        reached = max(reached, largest)
    return reached


def _rows(profile: Profile) -> tuple[int, int]:
    return max(shapes.min[0] for shapes in profile.values()), min(shapes.max[0] for shapes in profile.values())


def join_repository(plan: Path, metadata: PlanMetadata) -> tuple[str, ...]:
    """Writes model.toml beside a plan's version directory where there is none; lines for the user.

    Nothing is written where the plan does not lie in a repository (``MODEL/VERSION/model.plan``).

    Raises:
        OSError: model.toml cannot be written.
    """
    version = plan.resolve().parent
    if plan.name != PLAN_FILE or not _VERSION.fullmatch(version.name):
        return (f"{plan} lies in no model repository: one has MODEL/VERSION/{PLAN_FILE}",)
    lines = [f"{other.name} lies beside the plan: a version has one model file" for other in _other_models(version)]
    rows = largest_batch(metadata)
    config = version.parent / _CONFIG_FILE
    if (version.parent / _TRITON_FILE).exists():
        return (*lines, f"{_TRITON_FILE} is left as it is; the profiles allow max_batch_size: {rows}")
    if config.exists():
        return (*lines, *_compared(config, rows))
    config.write_text(_text(rows), encoding="utf-8")
    return (*lines, f"{_CONFIG_FILE} written: max_batch_size = {rows}")


def _text(rows: int) -> str:
    why = "as the plan's profiles allow" if rows else "no batch dimension that all inputs and outputs share"
    return f"# Written by `tensorgate build`; yours to change (docs/own-model.md).\nmax_batch_size = {rows}  # {why}\n"


def _compared(config: Path, rows: int) -> tuple[str, ...]:
    try:
        said = tomllib.loads(config.read_text(encoding="utf-8")).get("max_batch_size")
    except (OSError, ValueError):
        return (f"{config.name} is left as it is, and cannot be read",)
    if isinstance(said, int) and said > rows:
        return (f"{config.name} says max_batch_size = {said}, and the profiles allow {rows}: change one of them",)
    return ()


def _other_models(version: Path) -> list[Path]:
    return sorted(path for path in version.iterdir() if path.name in ("model.onnx", "model.py"))
