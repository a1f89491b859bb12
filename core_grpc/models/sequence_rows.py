"""Requests of sequences on an instance: their control inputs and states are added, and their next states are kept.

A batch of a direct model that is told which rows are empty (``ready``) has a row for each slot up to the last one with a request: a slot
that has none gets zeros, with every control input 0. Where a model cannot be told, its batches have the rows of requests alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from core_grpc.backends.base import RequestInstance
from core_grpc.errors import GatewayError
from core_grpc.models.sequence_controls import SequenceControls
from core_grpc.models.sequence_states import States
from core_grpc.scheduler.sequence_dispatcher import SequenceMember
from core_grpc.types import Array, InferRequest


class _EmptyRow(NamedTuple):
    inputs: Mapping[str, Array]
    request: InferRequest | None = None
    is_abandoned: bool = False


class _Row:
    __slots__ = ("_member", "inputs", "request")

    def __init__(self, member: SequenceMember, inputs: Mapping[str, Array]) -> None:
        self._member = member
        self.inputs = inputs
        self.request = member.request

    @property
    def is_abandoned(self) -> bool:
        return self._member.is_abandoned


class SequenceRows:
    """See the module's text. Used on the instances' threads; a sequence's states are touched by that of its own instance alone."""

    def __init__(self, controls: SequenceControls, states: States, *, has_places: bool) -> None:
        """``has_places``: every slot has its row in the batch."""
        self._controls = controls
        self._states = states
        self._has_places = has_places

    def execute(self, instance: RequestInstance, members: Sequence[SequenceMember]) -> Sequence[Mapping[str, Array] | GatewayError]:
        """As ``RequestInstance.execute_requests``, for requests of different sequences, in the order of their slots where those count."""
        rows = [_Row(member, self._inputs(member)) for member in members]
        if not self._has_places:
            parts = instance.execute_requests(rows)
        else:
            slots = [member.sequence.slot for member in members]
            places: list[_Row | _EmptyRow] = [self._empty_row(rows[0].inputs)] * (slots[-1] + 1)
            for slot, row in zip(slots, rows, strict=True):
                places[slot] = row
            every = instance.execute_requests(places)
            parts = [every[slot] for slot in slots]
        return [self._kept(member, part) for member, part in zip(members, parts, strict=True)]

    def _inputs(self, member: SequenceMember) -> Mapping[str, Array]:
        state = None if member.call.is_start else member.sequence.state
        return {**member.inputs, **self._controls.filled(member.call), **(state or self._states.initial)}

    def _empty_row(self, like: Mapping[str, Array]) -> _EmptyRow:
        zeros = {name: np.full(array.shape, b"", object) if array.dtype.hasobject else np.zeros_like(array) for name, array in like.items()}
        return _EmptyRow({**zeros, **self._controls.empty(), **self._states.initial})

    def _kept(self, member: SequenceMember, part: Mapping[str, Array] | GatewayError) -> Mapping[str, Array] | GatewayError:
        if isinstance(part, GatewayError) or not self._states.outputs:
            return part
        member.sequence.state = state = self._states.next(part)
        member.sequence.state_group = self._states.group(state)
        return self._states.shown(part)
