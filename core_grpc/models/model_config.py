"""``model.toml``: what a model's owner says about it. Everything is optional; what is unknown or wrong is refused by name.

docs/own-model.md explains the keys to users.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core_grpc.backends import BACKENDS
from core_grpc.errors import ModelLoadFailed
from core_grpc.models.batching_config import (
    BatchingConfig,
    QueueConfig,
    batching_config_from_table,
    queue_config_from_table,
)
from core_grpc.models.config_table import ConfigTable, shown
from core_grpc.models.instance_groups import InstanceGroup, instance_groups
from core_grpc.models.pipeline_config import read_steps
from core_grpc.models.sequence_config import SequenceConfig, sequence_config_from_table
from core_grpc.models.version_policy import ALL, MAX_LATEST, NEWEST, VersionPolicy, specific
from core_grpc.models.warmup_config import WarmupConfig, warmup_config_from_table
from core_grpc.pipelines.step import PIPELINE, Step
from core_grpc.types import DATATYPES, Datatype

CONFIG_FILE = "model.toml"
TRITON_FILE = "config.pbtxt"
_LARGEST_FILE = 1 << 20
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_MAX_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class PaddingConfig:
    """``[input.NAME.padding]``: requests of different shapes may share a batch, filled up to one."""

    value: bool | int | float | str = 0
    """What is filled in."""
    sizes: tuple[int, ...] = ()
    """Ascending; sizes that a variable dimension is brought to. Empty: the largest of the batch."""


@dataclass(frozen=True, slots=True)
class InputConfig:
    """``[input.NAME]``."""

    datatype: Datatype | None = None
    """For backends that cannot read it from the model."""
    shape: tuple[int, ...] | None = None
    """With the batch dimension; -1 is variable. As ``datatype``."""
    reshape: tuple[int, ...] | None = None
    """The model's own shape, where callers see ``shape``; as that."""
    description: str = ""
    layout: str = ""
    """``format``: NHWC or NCHW, for callers to read; empty for neither."""
    optional: bool = False
    """Whether callers may leave it out, for backends that cannot read that from the model."""
    dimension_names: tuple[str, ...] = ()
    """One for each dimension, empty for none; nothing at all leaves those of the model."""
    padding: PaddingConfig | None = None
    ragged: bool = False
    """Whether requests of different shapes share a batch one behind the other."""
    image: Mapping[str, Any] | None = None
    """``[input.NAME.image]``: the table that declares image preprocessing."""


@dataclass(frozen=True, slots=True)
class OutputConfig:
    """``[output.NAME]``."""

    description: str = ""
    labels: str = ""
    """Name of a file in the model's directory; empty for none."""
    source: str = ""
    """``from``: the output that this one is derived from; empty for an output of the model."""
    apply: str = ""
    """The function that derives it."""
    datatype: Datatype | None = None
    """As an input's."""
    shape: tuple[int, ...] | None = None
    dimension_names: tuple[str, ...] = ()
    """As an input's."""
    reshape: tuple[int, ...] | None = None
    """As an input's."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The whole file; ``None`` where the file says nothing and the default is found elsewhere."""

    description: str = ""
    license: str = ""
    """SPDX, of the weights."""
    backend: str = ""
    """A name in ``BACKENDS`` or ``PIPELINE``; empty for the one that the model's file belongs to."""
    model_file: str = ""
    """The file in a version's directory; empty for the backend's usual one."""
    file: str = CONFIG_FILE
    """Which file says all this."""
    without_effect: tuple[str, ...] = ()
    """What config.pbtxt says and changes nothing here."""
    max_batch_size: int | None = None
    """Rows; 0 for a model without a batch dimension."""
    versions: VersionPolicy = NEWEST
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    instances: tuple[InstanceGroup, ...] = (InstanceGroup(),)
    """Of a model that is served: as they are on this machine."""
    share_weight: float | None = None
    """``[fair_share] weight``; None where there is no such table."""
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    backend_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The tables that are named after backends."""
    inputs: Mapping[str, InputConfig] = field(default_factory=dict)
    outputs: Mapping[str, OutputConfig] = field(default_factory=dict)
    sequence: SequenceConfig | None = None
    steps: tuple[Step, ...] = ()
    """Of a pipeline."""
    response_cache: bool = False
    """Whether answers are kept and given again to requests with the same content."""
    pinned: bool = False
    """Whether it stays loaded whatever the budget says."""
    resident_bytes: int | None = None
    """What it counts for in the budget; None for an estimate from its files."""

    @property
    def notice(self) -> str:
        """What its owner should know of it, in one line; empty for nothing."""
        return f"{self.file}: no effect here: {', '.join(self.without_effect)}" if self.without_effect else ""

    def in_its_words(self, message: str) -> str:
        """A text that speaks of model.toml, as one about the file that was read."""
        return message if self.file == CONFIG_FILE else message.replace(CONFIG_FILE, self.file)


def model_config_from_file(path: Path) -> ModelConfig:
    """Reads model.toml; a file that does not exist is an empty one.

    Raises:
        ModelLoadFailed: it cannot be read, is not TOML, or says something unknown or wrong.
    """
    return model_config_from_text(config_text(path, CONFIG_FILE) or "")


def config_text(path: Path, name: str) -> str | None:
    """The content of a configuration file that users know as ``name``; None where there is none.

    Raises:
        ModelLoadFailed: it cannot be read, is too large for a configuration, or no text.
    """
    try:
        # Without waiting: a named pipe would hold up whoever opens it.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            content = file.read(_LARGEST_FILE + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelLoadFailed(f"{name} cannot be read: {error.strerror}") from None
    if content is None or len(content) > _LARGEST_FILE:
        got = "no plain file" if content is None else "a larger one"
        raise ModelLoadFailed(f"{name}: wanted a file of at most {_LARGEST_FILE} bytes, got {got}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelLoadFailed(f"{name} is not UTF-8 text (at byte {error.start})") from None


def model_config_from_text(text: str) -> ModelConfig:
    """Reads the content of a model.toml.

    Raises:
        ModelLoadFailed: it is not TOML, or says something unknown or wrong.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ModelLoadFailed(f"{CONFIG_FILE} is not TOML: {error}") from None
    return model_config_from_document(CONFIG_FILE, document)


def model_config_from_document(where: str, document: Mapping[str, Any]) -> ModelConfig:
    """Reads the tables of a model.toml; ``where`` is the start of every error text.

    Raises:
        ModelLoadFailed: they say something unknown or wrong.
    """
    top = ConfigTable(where, document)
    config = ModelConfig(
        description=top.text("description"),
        license=top.text("license"),
        backend=top.choice("backend", {name: name for name in (*BACKENDS, PIPELINE)}) if "backend" in top else "",
        model_file=_model_file(top),
        max_batch_size=top.integer("max_batch_size", 0, 0, 65536) if "max_batch_size" in top else None,
        versions=_versions(top),
        batching=batching_config_from_table(top.table("batching")),
        queue=queue_config_from_table(top.table("queue")),
        instances=instance_groups(top),
        share_weight=_share_weight(top.table("fair_share")) if "fair_share" in top else None,
        warmup=warmup_config_from_table(top.table("warmup")),
        backend_options={name: top.table(name).take_all() for name in BACKENDS if name in top},
        inputs={name: _input(table) for name, table in top.table("input").tables()},
        outputs={name: _output(table) for name, table in top.table("output").tables()},
        sequence=sequence_config_from_table(top.table("sequence")) if "sequence" in top else None,
        steps=read_steps(top),
        response_cache=_response_cache(top.table("response_cache")),
        pinned=top.flag("pinned"),
        resident_bytes=top.integer("resident_bytes", 0, 0, _MAX_BYTES) if "resident_bytes" in top else None,
    )
    top.finish()
    return config


def _share_weight(table: ConfigTable) -> float:
    weight = table.number("weight", 1, 0.01, 1000)
    table.finish()
    return weight


def _model_file(top: ConfigTable) -> str:
    name = top.text("model_file")
    if "model_file" in top and not _FILE_NAME.fullmatch(name):
        raise top.failure("model_file", "the name of a file in the version's directory, of letters, digits and _ . -")
    return name


def _versions(top: ConfigTable) -> VersionPolicy:
    value = top.take("versions", "latest")
    if value in ("latest", "all"):
        return NEWEST if value == "latest" else ALL
    if isinstance(value, dict):
        table = top.table("versions")
        policy = VersionPolicy(latest=table.integer("latest", 1, 1, MAX_LATEST))
        table.finish()
        return policy
    if isinstance(value, list) and value and all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value):
        return specific([str(item) for item in value])
    raise top.failure("versions", 'a list of version numbers, "latest", "all", or { latest = how many }')


def _input(table: ConfigTable) -> InputConfig:
    config = InputConfig(
        datatype=table.choice("datatype", DATATYPES) if "datatype" in table else None,
        shape=table.shape("shape"),
        reshape=table.shape("reshape"),
        description=table.text("description"),
        layout=table.choice("format", {"NHWC": "NHWC", "NCHW": "NCHW"}) if "format" in table else "",
        optional=table.flag("optional"),
        dimension_names=_dimension_names(table),
        ragged=table.flag("ragged"),
        padding=_padding(table.table("padding")) if "padding" in table else None,
        image=table.table("image").take_all() if "image" in table else None,
    )
    table.finish()
    return config


def _response_cache(table: ConfigTable) -> bool:
    is_enabled = table.flag("enable")
    table.finish()
    return is_enabled


def _dimension_names(table: ConfigTable) -> tuple[str, ...]:
    value = table.take("dimension_names", [])
    if isinstance(value, list) and all(isinstance(name, str) and (not name or name.isprintable()) for name in value):
        return tuple(value)
    raise table.failure("dimension_names", "a list of texts, an empty one for a dimension without a name")


def _padding(table: ConfigTable) -> PaddingConfig:
    value = table.take("value", 0)
    if not isinstance(value, bool | int | float | str):
        raise table.failure("value", "a number, true, false or an empty text")
    config = PaddingConfig(value, table.sizes("sizes"))
    table.finish()
    return config


def _output(table: ConfigTable) -> OutputConfig:
    config = OutputConfig(
        table.text("description"),
        table.text("labels"),
        table.text("from"),
        table.text("apply"),
        table.choice("datatype", DATATYPES) if "datatype" in table else None,
        table.shape("shape"),
        _dimension_names(table),
        table.shape("reshape"),
    )
    table.finish()
    if bool(config.source) != bool(config.apply):
        raise ModelLoadFailed(f"{table.where}: a derived output has both from and apply, got {shown(config.source or config.apply)} alone")
    return config
