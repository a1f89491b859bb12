"""What models share of a node's devices: its slots and resources from the settings, and what a model's instances need of them."""

from __future__ import annotations

from collections.abc import Callable

from core_grpc.backends.base import AnyLoadedModel, EngineTraits, LoadedDeviceModel, Placement
from core_grpc.backends.cores import usable_cores
from core_grpc.models.model_config import ModelConfig
from core_grpc.models.placement import default_slots, placed_instances
from core_grpc.scheduler.grants import ComputeGrants, GateOrder
from core_grpc.scheduler.resources import totals_from_text
from core_grpc.settings import ModelsSettings


def compute_grants(settings: ModelsSettings) -> ComputeGrants:
    """The grants of a node.

    Raises:
        SettingsError: models.resources cannot be read.
    """
    cores = len(usable_cores())

    def slots_of(device: str) -> int:
        configured = settings.cpu_slots if device == "cpu" else settings.gpu_slots
        return configured or default_slots(device, cores=cores, threads=settings.intra_op_threads)

    return ComputeGrants(slots_of, totals_from_text(settings.resources))


def lanes_of(loaded: AnyLoadedModel, placement: Placement, *, keeps_order: bool) -> int:
    """How many batches of one instance are under way at once in that place; one where the order of executions matters (sequences)."""
    return loaded.lanes(placement) if isinstance(loaded, LoadedDeviceModel) and not keeps_order else 1


def gate_orders(config: ModelConfig, traits: EngineTraits, lanes: Callable[[Placement], int] = lambda _placement: 1) -> list[GateOrder]:
    """What each instance of a loaded model asks for before it executes, in order; empty where none has to ask.

    Args:
        config: its groups are resolved.
        traits: of its backend. Where that does not compute on the device itself, instances take slots if ``[fair_share]`` is there.
        lanes: of one instance in a place. Each asks for itself.
    """
    takes_slot = traits.computes_on_device or config.share_weight is not None
    if not takes_slot and not any(group.resources for group in config.instances):
        return []
    orders: list[GateOrder] = []
    for placement, index in placed_instances(config.instances):
        group = config.instances[index]
        orders += [GateOrder(placement.device, takes_slot, group.resources, group.priority)] * lanes(placement)
    return orders
