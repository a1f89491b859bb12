"""A repository that changes at random, loads, unloads and looks of a poller, and callers meanwhile: real files, real instances.

Invariants:

* what was READY goes on answering until it is unloaded, gone from a polled repository, or replaced by a load that succeeded;
* a load is whole or not at all: afterwards exactly the versions of the policy answer, or exactly those that did before;
* after a load that failed, what still serves says why in the index; after one that succeeded, nothing is said;
* no version is asked for, the newest answers; a version that is not served is refused;
* a caller who comes while one set of versions takes the place of another is answered by one of the two;
* there are as many instances as versions that answer: nothing is left behind by failed loads or by those that went.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_grpc.errors import GatewayError, ModelLoadFailed, ModelNotReady, NotFound
from core_grpc.lifecycle import ModelState
from core_grpc.models.change_detection import ChangeDetector
from core_grpc.models.fingerprints import fingerprints
from core_grpc.models.overrides import LoadOverride
from core_grpc.models.version_policy import ALL, NEWEST, VersionPolicy, specific
from tests.support.serving import Served, eventually

NAME = "m"
VERSIONS = st.integers(1, 5)
POLICIES = {
    '"latest"': NEWEST,
    "{ latest = 2 }": VersionPolicy(latest=2),
    '"all"': ALL,
    "[1, 3]": specific(["1", "3"]),
}
Result = TypeVar("Result")


class ChangingRepository(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        logging.disable(logging.CRITICAL)
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="changing-"))
        self.directory = self.root / "models" / NAME
        self.elsewhere = self.root / "elsewhere"
        self.elsewhere.mkdir()
        self.uploads = self.root / "uploads"
        self.uploads.mkdir()
        self.usual_tempdir, tempfile.tempdir = tempfile.tempdir, str(self.uploads)
        self.policy, self.is_config_good = '"latest"', True
        self.on_disk: dict[str, bool] = {}
        """Versions, and whether they can be served."""
        self.serving: list[str] = []
        self.is_known = False
        self.failed: str | None = None
        """A part of the reason why the last load failed; None after one that did not."""

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(work)

    @initialize(version=VERSIONS)
    def start(self, version: int) -> None:
        self.put_version(version, is_good=True)
        self.served = Served(self.root / "models")
        self.detector = ChangeDetector(0.0, fingerprints(self.root / "models"))
        self.run(self.served.control.load_all())
        self.is_known, self.serving = True, [str(version)]

    def teardown(self) -> None:
        if hasattr(self, "served"):
            self.run(self.served.control.close())
            self.run(eventually(lambda: not self.instances()))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        tempfile.tempdir = self.usual_tempdir
        shutil.rmtree(self.root)
        logging.disable(logging.NOTSET)

    # What happens on the disk.

    @rule(version=VERSIONS, is_good=st.booleans())
    def put_version(self, version: int, is_good: bool) -> None:
        self.remove_version(version)
        self.directory.mkdir(parents=True, exist_ok=True)
        if is_good:
            (self.directory / str(version)).mkdir()
        else:
            # A version that leaves the repository is one that cannot be served.
            (self.directory / str(version)).symlink_to(self.elsewhere)
        self.on_disk[str(version)] = is_good
        self.write_config()

    @rule(version=VERSIONS)
    def remove_version(self, version: int) -> None:
        path = self.directory / str(version)
        if path.is_symlink():
            path.unlink()
        elif path.exists():
            path.rmdir()
        self.on_disk.pop(str(version), None)

    @rule(policy=st.sampled_from(sorted(POLICIES)), is_good=st.sampled_from([True, True, False]))
    def configure(self, policy: str, is_good: bool) -> None:
        self.policy, self.is_config_good = policy, is_good
        self.write_config()

    @rule()
    def remove_model(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.on_disk.clear()

    def write_config(self) -> None:
        if self.directory.exists():
            wrong = "" if self.is_config_good else "nonsense = 1\n"
            text = f'backend = "identity"\nversions = {self.policy}\n{wrong}[input.X]\ndatatype = "FP32"\nshape = [-1, 1]\n'
            (self.directory / "model.toml").write_text(text)

    # What should come of a load.

    def outcome(self, policy: VersionPolicy | None = None) -> list[str] | str:
        """The versions that a load would serve, or a part of the reason why it fails."""
        found = sorted(self.on_disk, key=int)
        if not self.is_config_good:
            return "nonsense: no such key"
        if not found:
            return "no version directory"
        policy = policy or POLICIES[self.policy]
        if policy.missing(found):
            return "wanted versions that exist"
        wanted = policy.served(found)
        return "leaves the model repository" if not all(self.on_disk[version] for version in wanted) else wanted

    def expect(self, outcome: list[str] | str) -> None:
        if isinstance(outcome, str):
            self.failed = outcome
        else:
            self.serving, self.failed = outcome, None
        self.is_known = True

    # What callers do.

    @rule(policy=st.sampled_from([None, ALL, VersionPolicy(latest=2)]))
    def load(self, policy: VersionPolicy | None) -> None:
        load = self.served.control.load(NAME, LoadOverride(versions=policy) if policy else None)
        if not self.directory.exists():
            with pytest.raises(NotFound):
                self.run(load)
            return
        outcome = self.outcome(policy)
        if isinstance(outcome, str):
            with pytest.raises(ModelLoadFailed, match=outcome):
                self.run(load)
        else:
            self.run(load)
        self.expect(outcome)

    @rule()
    def load_files_that_are_no_model(self) -> None:
        override = LoadOverride(backend="onnxruntime", files={"7/model.onnx": b"junk"})
        with pytest.raises(ModelLoadFailed, match=r"model\.onnx"):
            self.run(self.served.control.load(NAME, override))
        self.expect("model.onnx")

    @rule()
    def unload(self) -> None:
        if not self.is_known:
            with pytest.raises(NotFound):
                self.run(self.served.control.unload(NAME))
            return
        self.run(self.served.control.unload(NAME))
        self.serving, self.failed = [], None

    @rule()
    def poll(self) -> None:
        for _ in range(2):
            changes = self.detector.look(0.0, fingerprints(self.root / "models"))
        if changes.removed:
            self.run(self.served.control.remove(NAME))
            self.serving, self.failed, self.is_known = [], None, False
        elif changes.changed:
            outcome = self.outcome()
            if isinstance(outcome, str):
                with pytest.raises(ModelLoadFailed, match=outcome):
                    self.run(self.served.control.load(NAME))
            else:
                self.run(self.served.control.load(NAME))
            self.expect(outcome)

    @precondition(lambda self: self.serving)
    @rule()
    def load_while_callers_ask(self) -> None:
        before = list(self.serving)
        outcome = self.outcome() if self.directory.exists() else "no such model"

        async def both() -> list[str]:
            loading = asyncio.create_task(self.served.control.load(NAME))
            answers = []
            while not loading.done():
                answers.append(await self.ask())
            await asyncio.gather(loading, return_exceptions=True)
            return answers

        answers = self.run(both())
        after = outcome if isinstance(outcome, list) else before
        newest = [before[-1], after[-1]]
        assert set(answers) <= {*newest}
        assert [newest.index(version) for version in answers] == sorted(newest.index(version) for version in answers)
        if self.directory.exists():
            self.expect(outcome)

    async def ask(self, version: str = "") -> str:
        """The version that answered."""
        model = self.served.find(NAME, version)
        model.users += 1
        try:
            execution = await model.infer({"X": np.full((1, 1), 7, np.float32)}, 1)
        finally:
            model.release()
        assert execution.outputs["Y"][0, 0] == 7
        return model.spec.version

    def instances(self) -> list[str]:
        return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith(f"{NAME}/"))

    @invariant()
    def what_answers_is_what_should(self) -> None:
        if not hasattr(self, "served"):
            return
        assert self.served.versions(NAME) == self.serving if self.is_known else not self.served.slots(NAME)
        for version in map(str, range(1, 8)):
            if version in self.serving:
                assert self.run(self.ask(version)) == version
            else:
                with pytest.raises((NotFound, ModelNotReady)):
                    self.served.find(NAME, version)
        if self.serving:
            assert self.run(self.ask()) == self.serving[-1]
        else:
            with pytest.raises(GatewayError):
                self.served.find(NAME)

    @invariant()
    def nothing_is_left_behind(self) -> None:
        if hasattr(self, "served"):
            # A thread is seen for a moment after it has said that it ends.
            self.run(eventually(lambda: self.instances() == [f"{NAME}/{version}/0" for version in self.serving]))
            assert not list(self.uploads.iterdir())

    @invariant()
    def the_index_says_why(self) -> None:
        if not hasattr(self, "served") or not self.is_known:
            return
        entries = self.served.entries()
        if self.failed:
            assert any(self.failed in entry.reason for entry in entries), entries
        else:
            assert all(entry.reason in ("", "unloaded") for entry in entries), entries
        assert [entry.version for entry in entries if entry.state is ModelState.READY] == self.serving


ChangingRepository.TestCase.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestChangingRepository = ChangingRepository.TestCase
