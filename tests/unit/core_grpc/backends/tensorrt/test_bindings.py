"""Which flavours are installed, and the one logger of each."""

import sys
from pathlib import Path

import pytest

from core_grpc.backends.tensorrt.bindings import FLAVOURS, BindingsAbsent, find_bindings, listening, load_bindings, logger_of


@pytest.fixture(autouse=True)
def _fresh_look() -> None:
    load_bindings.cache_clear()


def test_what_is_installed_is_found_with_its_version() -> None:
    rtx = load_bindings("tensorrt_rtx")
    assert rtx.version.startswith("1.7")
    assert hasattr(rtx.module, "Builder")
    lean = load_bindings("tensorrt_lean")
    assert lean.version.startswith("11.")
    assert not hasattr(lean.module, "Builder")


def test_what_is_not_installed_is_absent_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # As Python marks a module that may not be imported.
    absence = find_bindings()["tensorrt"]
    assert isinstance(absence, BindingsAbsent)
    assert "pip install 'tensorgate[tensorrt,build]'" in str(absence)


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("raise ImportError('libnvonnxparser.so.11: cannot open shared object file')", "does not load: libnvonnxparser.so.11"),
        ("raise OSError('libnvinfer.so.11: wrong ELF class')", "does not load: libnvinfer.so.11"),
        ("import tensorrt_libs_that_are_not_there", "needs the module tensorrt_libs_that_are_not_there"),
    ],
)
def test_bindings_without_their_libraries_are_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, wanted: str) -> None:
    (tmp_path / "tensorrt.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    with pytest.raises(BindingsAbsent, match=wanted):
        load_bindings("tensorrt")


def test_all_listeners_hear_the_one_logger() -> None:
    rtx = load_bindings("tensorrt_rtx")
    logger = logger_of(rtx)
    assert logger_of(rtx) is logger
    heard: list[tuple[str, str]] = []
    with listening(rtx, lambda severity, message: heard.append((severity, message))):
        logger.log(rtx.module.ILogger.Severity.WARNING, "of the library")
        rtx.module.Builder(logger).create_network().add_input("x", rtx.module.float32, (1, -2))  # It complains about -2.
    logger.log(rtx.module.ILogger.Severity.INFO, "after")
    assert heard[0] == ("WARNING", "of the library")
    assert any(severity == "ERROR" for severity, _ in heard[1:])
    assert "after" not in [message for _, message in heard]


def test_every_flavour_says_how_to_install_it() -> None:
    assert all(flavour.install.startswith("pip install") for flavour in FLAVOURS.values())
