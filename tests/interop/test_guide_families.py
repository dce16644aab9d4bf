"""The list of families in docs/guides/hugging-face.md is that of the code."""

import re
from pathlib import Path

from addnorm.interop import FAMILIES

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "hugging-face.md"
HEADINGS = {
    "encoders": "text encoders",
    "modernbert": "text encoders",
    "gpt": "decoders (GPT)",
    "fused_qkv": "decoders (fused projection)",
    "fairseq": "decoders (from fairseq)",
    "whisper": "decoders (speech)",
    "llama": "decoders (LLaMA)",
    "gpt_oss": "decoders (mixtures of experts)",
    "mixtures": "decoders (mixtures of experts)",
    "gated_decoders": "decoders (squared ReLU, xIELU, gated attention)",
    "seq2seq": "encoder-decoders",
    "vision": "image encoders",
}


def family_table():
    """Return a Markdown table of the supported `model_type`s, one row per kind of model."""
    rows = {heading: [] for heading in HEADINGS.values()}
    for name, family in FAMILIES.items():
        module = family.read.__module__.rpartition(".")[2].removesuffix("_configs")
        rows[HEADINGS[module]].append(f"`{name}`")
    lines = [f"| {heading} | {', '.join(names)} |" for heading, names in rows.items()]
    return "\n".join(["| kind | `model_type` |", "|---|---|", *lines])


def test_guide_lists_all_families():
    text = GUIDE.read_text(encoding="utf-8")
    table = re.search(r"<!-- families -->\n(.*?)\n<!-- end -->", text, flags=re.DOTALL)[1]
    assert table == family_table(), f"paste this table into {GUIDE.name}:\n{family_table()}"
