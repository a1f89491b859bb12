"""``[warmup]`` of model.toml: what an instance runs before the model is ready.

::

    [warmup]
    count = 1                       # runs of zeros, at every size of batch that matters

    [[warmup.sample]]               # as Triton's model_warmup
    name = "speech"
    batch_size = 4                  # the data of one row is repeated
    count = 2
    file = "warmup/speech.npz"      # arrays by input name, for the inputs without a table
    [warmup.sample.input.AUDIO]
    file = "warmup/audio.npy"       # or any other name: the raw bytes
    [warmup.sample.input.RATE]
    data = "random"                 # or "zero"
    dims = [1]                      # without the batch dimension; needed where the model's are variable
    datatype = "INT32"              # only compared with the model's
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from core_grpc.errors import quoted
from core_grpc.models.config_table import ConfigTable
from core_grpc.types import DATATYPES, Datatype

_MOST_ROWS = 65536
_MOST_RUNS = 1000
_DATA = {"zero": False, "random": True}


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """One input of a sample; zeros where it says nothing."""

    file: str = ""
    """Of recorded data, in the model's directory: ``.npy``, anything else is raw (BYTES elements behind their length in four bytes)."""
    is_random: bool = False
    """Floats from 0 to 1, integers from 0 to 127, sixteen letters; the same in every load."""
    dims: tuple[int, ...] | None = None
    """Without the batch dimension; None for the model's."""
    datatype: Datatype | None = None
    """What it must be; None for no such check."""


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """``[[warmup.sample]]``: one request."""

    name: str
    batch_size: int = 1
    """Rows; 1 for a model without a batch dimension."""
    count: int = 1
    """How often an instance runs it."""
    file: str = ""
    """``.npz`` with the inputs that ``inputs`` does not name; empty for none."""
    inputs: Mapping[str, WarmupInput] = field(default_factory=dict)
    """By name. Others are zeros; control inputs of sequences are those of a sequence of one request."""

    @property
    def title(self) -> str:
        """How errors name it."""
        return f"[[warmup.sample]] {quoted(self.name)}"


@dataclass(frozen=True, slots=True)
class WarmupConfig:
    """``[warmup]``."""

    count: int | None = None
    """Runs of zeros for each instance and size of batch. None: 1, but none of user code in Python, nor beside samples."""
    samples: tuple[WarmupSample, ...] = ()
    """In the order in which they run."""


def warmup_config_from_table(table: ConfigTable) -> WarmupConfig:
    """Reads ``[warmup]``.

    Raises:
        ModelLoadFailed: it says something unknown or wrong.
    """
    count = table.integer("count", 1, 0, _MOST_RUNS) if "count" in table else None
    listed = table.take("sample", [])
    if not isinstance(listed, list):
        raise table.failure("sample", "tables, each [[warmup.sample]]")
    start = table.where.removesuffix(": [warmup]")
    samples = tuple(_sample(ConfigTable(f"{start}: [[warmup.sample]] {number}:", item), number) for number, item in enumerate(listed, 1))
    table.finish()
    return WarmupConfig(count, samples)


def _sample(table: ConfigTable, number: int) -> WarmupSample:
    sample = WarmupSample(
        name=table.text("name") or str(number),
        batch_size=table.integer("batch_size", 1, 1, _MOST_ROWS),
        count=table.integer("count", 1, 1, _MOST_RUNS),
        file=table.text("file"),
        inputs={name: _input(ConfigTable(f"{table.where} input {quoted(name)}:", item)) for name, item in _inputs(table).items()},
    )
    if sample.file and not sample.file.endswith(".npz"):
        raise table.failure("file", "a file whose name ends with .npz")
    table.finish()
    return sample


def _inputs(table: ConfigTable) -> Mapping[str, object]:
    inputs = table.take("input", {})
    if not isinstance(inputs, dict):
        raise table.failure("input", "tables by input name")
    return inputs


def _input(table: ConfigTable) -> WarmupInput:
    config = WarmupInput(
        file=table.text("file"),
        is_random=table.choice("data", _DATA) if "data" in table else False,
        dims=_dims(table),
        datatype=table.choice("datatype", DATATYPES) if "datatype" in table else None,
    )
    if config.file and "data" in table:
        raise table.failure("data", "either data or file")
    table.finish()
    return config


def _dims(table: ConfigTable) -> tuple[int, ...] | None:
    value = table.take("dims")
    if value is None:
        return None
    if isinstance(value, list) and all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in value):
        return tuple(value)
    raise table.failure("dims", "a list of sizes, without the batch dimension")
