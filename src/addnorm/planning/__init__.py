"""Memory, FLOPs and time of a training step, before it is run."""

from addnorm.planning.devices import DEVICES, Device
from addnorm.planning.plan import TrainingPlan, plan

__all__ = ["DEVICES", "Device", "TrainingPlan", "plan"]
