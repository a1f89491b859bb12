"""The model repository on disk: ``<repository>/<model>/<version>/model.onnx``, with an optional ``<repository>/<model>/model.toml``.

Names come from directories, never from a request: requests are looked up among what was found. Hidden entries and plain files beside the
models are left alone. A model that cannot be served (no version, no model file, a broken model.toml, a symbolic link that leaves the
repository) is an entry with a reason, never a crash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from core_grpc.backends import BACKENDS
from core_grpc.errors import ModelLoadFailed, NotFound, quoted
from core_grpc.models.model_config import CONFIG_FILE, TRITON_FILE, ModelConfig, config_text, model_config_from_file
from core_grpc.models.overrides import LoadOverride
from core_grpc.pipelines.step import PIPELINE
from core_grpc.settings import SettingsError

_VERSION = re.compile(r"0|[1-9][0-9]{0,17}")
"""Canonical, and within int64. `01` beside `1` would be two directories of one version."""
_MAX_NAME = 200
_ONNX = "onnxruntime"


@dataclass(frozen=True, slots=True)
class RepositoryEntry:
    """A model version to serve, or what keeps a model from being served."""

    name: str
    version: str
    """Digits; empty where the reason concerns all versions."""
    reason: str = ""
    """Why it cannot be served; empty when it may be loaded."""
    model_directory: Path = Path()
    directory: Path = Path()
    """The version's, resolved."""
    backend: str = ""
    config: ModelConfig = field(default_factory=ModelConfig)


def scan_repository(repository: Path) -> list[RepositoryEntry]:
    """Every model version that is to be served, by name and version; blocks on the disk.

    Raises:
        SettingsError: the repository is not a directory that can be read.
    """
    where = "TENSORGATE_MODELS_REPOSITORY"
    try:
        root = repository.resolve(strict=True)
        children = sorted(root.iterdir())
    except FileNotFoundError:
        raise SettingsError(f"{where}: no such directory: {repository}") from None
    except NotADirectoryError:
        raise SettingsError(f"{where}: wanted a directory of models, got a file: {repository}") from None
    except OSError as error:
        raise SettingsError(f"{where}: cannot read {repository}: {error.strerror}") from None
    models = [child for child in children if not child.name.startswith(".") and (child.is_dir() or not child.exists())]
    return [entry for child in models for entry in _entries(root, child)]


def scan_model(repository: Path, name: str, override: LoadOverride | None = None) -> list[RepositoryEntry]:
    """Every version of one model that is to be served; blocks on the disk.

    Raises:
        NotFound: the repository has no such model.
    """
    child = repository / name
    # A name is looked up, never followed: it may not contain a separator, and ".." and "." are no models.
    is_there = name not in ("", ".", "..") and "/" not in name and not name.startswith(".") and "\0" not in name and child.is_dir()
    if not is_there:
        raise NotFound(f"failed to load {quoted(name)}, failed to poll from model repository: it has no such model")
    return list(_entries(repository.resolve(), child, override))


def file_in_model(model_directory: Path, name: str) -> Path:
    """The file ``name`` of a model's own directory.

    Raises:
        ModelLoadFailed: the name leads out of the directory.
    """
    path = (model_directory / name).resolve()
    if not path.is_relative_to(model_directory):
        raise ModelLoadFailed(f"{CONFIG_FILE}: file {quoted(name)} is outside the model's directory")
    return path


def _entries(root: Path, child: Path, override: LoadOverride | None = None) -> Iterator[RepositoryEntry]:
    name = child.name
    try:
        _check_name(name)
        model_directory = _inside(root, child)
        config = _config(root, name, model_directory)
        config = override.applied(config) if override else config
    except ModelLoadFailed as error:
        yield RepositoryEntry(name, "", error.message)
        return
    try:
        versions = _served_versions(model_directory, config)
    except ModelLoadFailed as error:
        yield RepositoryEntry(name, "", config.in_its_words(error.message))
        return
    for version in versions:
        try:
            directory = _inside(root, model_directory / version)
            backend = _backend(root, directory, config)
        except ModelLoadFailed as error:
            yield RepositoryEntry(name, version, config.in_its_words(error.message))
        else:
            yield RepositoryEntry(name, version, "", model_directory, directory, backend, config)


def _config(root: Path, name: str, model_directory: Path) -> ModelConfig:
    """What model.toml says, or Triton's config.pbtxt where that is there."""
    own, tritons = (_inside(root, model_directory / file) for file in (CONFIG_FILE, TRITON_FILE))
    text = config_text(tritons, TRITON_FILE)
    if text is None:
        return model_config_from_file(own)
    if own.exists():
        raise ModelLoadFailed(f"{CONFIG_FILE} and {TRITON_FILE} are both there: wanted one of them")
    # Protobuf is only wanted where such a file is.
    from core_grpc.models.triton_config import model_config_from_pbtxt  # noqa: PLC0415

    return model_config_from_pbtxt(name, text)


def _check_name(name: str) -> None:
    if not name.isprintable() or name != name.strip() or len(name) > _MAX_NAME or "\\" in name:
        raise ModelLoadFailed(
            f"the directory's name cannot be a model's: wanted at most {_MAX_NAME} printable characters without a backslash, "
            "and without space at either end"
        )


def _inside(root: Path, path: Path) -> Path:
    """The path with symbolic links resolved, if it stays in the repository."""
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError):
        raise ModelLoadFailed(f"{quoted(path.name)} is a symbolic link that leads nowhere") from None
    if not resolved.is_relative_to(root):
        raise ModelLoadFailed(f"{quoted(path.name)} is a symbolic link that leaves the model repository")
    return resolved


def _served_versions(model_directory: Path, config: ModelConfig) -> list[str]:
    """By number, the newest last."""
    try:
        found = sorted((item.name for item in model_directory.iterdir() if _VERSION.fullmatch(item.name) and item.is_dir()), key=int)
    except OSError as error:
        raise ModelLoadFailed(f"the model's directory cannot be read: {error.strerror}") from None
    if not found:
        raise ModelLoadFailed("no version directory: put the model's file into a directory that is named by a number, such as 1")
    if missing := config.versions.missing(found):
        raise ModelLoadFailed(f"{CONFIG_FILE} versions: wanted versions that exist ({', '.join(found)}), got {', '.join(missing)}")
    return config.versions.served(found)


def _backend(root: Path, directory: Path, config: ModelConfig) -> str:
    """The backend that model.toml names, or the one that the version's file belongs to."""
    backend = config.backend or (PIPELINE if config.steps else "")
    if config.steps and backend != PIPELINE:
        raise ModelLoadFailed(f'{CONFIG_FILE}: [[step]]: wanted backend = "{PIPELINE}", got {backend}')
    if not backend:
        files = {entry.model_file: name for name, entry in BACKENDS.items() if entry.model_file}
        backend = next((name for file, name in files.items() if (directory / file).exists()), "")
        if not backend and config.model_file.endswith(".onnx"):
            backend = _ONNX
        if not backend:
            raise ModelLoadFailed(f"no model file: wanted {' or '.join(files)} in the version directory, or a backend in {CONFIG_FILE}")
    if config.model_file and backend != _ONNX:
        raise ModelLoadFailed(f"{CONFIG_FILE} model_file: only a model of {_ONNX} has a choice, this one's backend is {backend}")
    if backend != PIPELINE and (model_file := config.model_file or BACKENDS[backend].model_file):
        _inside(root, directory / model_file)
    for other in config.backend_options:
        if other != backend:
            raise ModelLoadFailed(f"{CONFIG_FILE}: [{other}] is for another backend; this model's is {backend}")
    return backend
