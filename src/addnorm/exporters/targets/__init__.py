"""Export targets by name."""

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.exporters.targets.base import ExportTarget
from addnorm.exporters.targets.ctranslate2 import CTranslate2Target
from addnorm.exporters.targets.hf import HFTarget
from addnorm.exporters.targets.onnx import OnnxTarget
from addnorm.exporters.targets.torch_program import TorchTarget

TARGETS: dict[str, ExportTarget] = {
    target.name: target
    for target in (
        HFTarget(),
        CTranslate2Target(),
        OnnxTarget(),
        TorchTarget(),
    )
}


def get_target(name: str) -> ExportTarget:
    """Return the target of a name; raise `UserError` with suggestions for an unknown one."""
    if name not in TARGETS:
        raise UserError(f"--to: {unknown_name_message('target', str(name), TARGETS)}")
    return TARGETS[name]
