"""Model card of a saved folder: arrangement, drawing, data and metrics as Markdown."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from addnorm import __version__
from addnorm.models import Config, Model, Preset
from addnorm.report.diagram.draw import preset_blocks
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.diagram.svg import render_svg

DRAWING_FILE = "arrangement.svg"
PIPELINES = {
    "lm": "text-generation",
    "seq2seq": "translation",
    "masked_lm": "fill-mask",
    "classifier": "text-classification",
}
REGISTER = "import addnorm.interop  # registers the classes; or pass trust_remote_code=True below\n"
USE = """\
```python
{register}from transformers import {auto_class}

model = {auto_class}.from_pretrained("PATH_OR_NAME_OF_THIS_FOLDER")
```
"""


def make_model_card(
    model: Model,
    auto_class: str,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    stock_class: str | None = None,
) -> str:
    """Return the text of README.md.

    Args:
        model: addnorm model
        auto_class: name of the Auto class that loads it
        facts: further sections, each with its lines by name, such as data and metrics
        stock_class: class of transformers that was written, which loads without addnorm; None for
            addnorm's own class
    """
    config = model.config
    pipeline = "image-classification" if config.image else PIPELINES[config.kind]
    head = ["library_name: transformers", f"pipeline_tag: {pipeline}", "tags:", "- addnorm"]
    size = sum(weight.numel() for weight in model.parameters())
    kinds = {"parameters": f"{size:,}"} | {
        name: value for name, value in config.to_dict().items() if value is not None
    }
    for stack, name in zip(model.stacks, ("stack", "decoder"), strict=False):
        label = "encoder" if len(model.stacks) > 1 and name == "stack" else name
        kinds[label] = ", ".join(f"{key} {value}" for key, value in stack.arrangement.items())
    sections = {"Arrangement": kinds, **(facts or {})}
    lines = [
        "---",
        *head,
        "---",
        "",
        f"# {stock_class or 'addnorm ' + config.kind}: {config.wiring}, {config.norm}",
        "",
    ]
    lines += [f"![Arrangement of a layer]({DRAWING_FILE})", ""]
    for title, entries in sections.items():
        lines += [f"## {title}", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {_format_cell(value)} |" for name, value in entries.items()]
        lines.append("")
    lines += ["## Use", ""]
    if stock_class is None:
        lines += [f"Install `addnorm` (written by version {__version__}).", ""]
    else:
        lines += [f"`addnorm` {__version__} wrote this folder; loading it does not need it.", ""]
    use = USE.format(auto_class=auto_class, register="" if stock_class else REGISTER)
    return "\n".join([*lines, use])


@lru_cache(maxsize=8)
def draw_config(config: Config) -> str:
    """Return the drawing of a model's layers as SVG."""
    preset = Preset("", config.wiring, "", 0, config)
    return render_svg([compute_layout(block) for block in preset_blocks(preset)], theme="light")


def _format_cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.split()).replace("|", "\\|")
