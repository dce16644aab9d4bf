"""Both ends of a stack: scales of its input go into embeddings, those of its output to readers."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.exporters.folding import laws
from addnorm.exporters.folding.norm_forms import L2_EPS
from addnorm.models import Classifier, LanguageModel, MaskedLM, Seq2Seq
from addnorm.models.embeddings import PatchEmbedding, TokenEmbedding, Unembedding
from addnorm.stacks.transformer import TransformerStack
from addnorm.sublayers.multihead import MultiHeadAttention
from addnorm.sublayers.positions import LearnedPositions, SinusoidalPositions
from addnorm.sublayers.qk_norm import HeadRMS, L2QueryKeyNorm
from addnorm.sublayers.relative import LearnedT5Positions
from addnorm.wirings.normformer import NormFormer

CoreModel = LanguageModel | MaskedLM | Seq2Seq | Classifier


@dataclass
class Workspace:
    """A model whose weights are rewritten in place, in float64, and the changes of its config."""

    model: CoreModel
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the config that change."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Tensors of the new model that the old one does not have, by name."""
    entry_scales: dict[int, Tensor] = field(default_factory=dict)
    """Scales of stack inputs that embeddings and positions take up, by index of the stack."""

    def get(self, name: str) -> Any:
        """Return a field of the config after the changes so far."""
        return self.changes.get(name, getattr(self.model.config, name))

    @property
    def is_tied(self) -> bool:
        """Whether the output projection shares the token embedding."""
        return bool(self.get("tied")) and not isinstance(self.model, Classifier)


def bake_table_norm(work: Workspace) -> bool:
    """Write the normalized rows of tables, N(table), as tables; return whether there were any."""
    model = work.model
    modules = [model.embed, getattr(model, "source_embed", None), getattr(model, "head", None)]
    found = False
    for module in modules:
        if isinstance(module, TokenEmbedding | Unembedding) and module.norm is not None:
            assert module.table is not None
            module.table.copy_(module.norm(module.table))
            module.norm, found = None, True
    if found:
        work.changes["table_norm"] = "none"
    return found


def fold_attention_scale(work: Workspace) -> bool:
    """scale * q . k = (scale sqrt(K) q) . k / sqrt(K): the factor goes into query weights."""
    scale = work.get("attention_scale")
    attentions = [each for each in work.model.modules() if isinstance(each, MultiHeadAttention)]
    if scale is None or any(each.has_qk_norm for each in attentions):
        return False
    for each in attentions:
        laws.scale_outputs([each.q_proj], scale * each.head_dim**0.5)
    work.changes["attention_scale"] = None
    return True


def fold_qk_norm(work: Workspace) -> bool:
    """g (q / |q|) . (k / |k|) = RMS(q; g / sqrt(K)) . RMS(k) / sqrt(K): QKNorm is rms_head."""
    attentions = [each for each in work.model.modules() if isinstance(each, MultiHeadAttention)]
    if not any(isinstance(each.qk_norm, L2QueryKeyNorm) for each in attentions):
        return False
    for each in attentions:
        old = each.qk_norm
        assert isinstance(old, L2QueryKeyNorm)
        new = HeadRMS(each.heads, each.kv_heads, each.head_dim, eps=L2_EPS).double()
        new.query_norm.get_parameter("weight").copy_(old.g * each.head_dim**-0.5)
        each.qk_norm = new
    work.changes["qk_norm"] = f"rms_head(eps={L2_EPS!r})"
    return True


def fold_head_scales(stack: TransformerStack, wiring: NormFormer) -> bool:
    """Move NormFormer's scales of heads into columns of `out`, or into its rows (post)."""
    if wiring.head_scale == "none":
        return False
    for key, g in wiring.g.items():
        attention = stack.sublayers[int(key)]
        out = laws.writer(attention)
        if wiring.head_scale == "pre":
            laws.scale_inputs([out], g.repeat_interleave(out.in_features // g.shape[0]))
        else:
            laws.scale_outputs([out], g.repeat_interleave(out.out_features // g.shape[0]))
    return True


def can_absorb_output(work: Workspace, index: int) -> bool:
    """Return whether a linear map reads the output of a stack."""
    model = work.model
    return not isinstance(model, Classifier) or bool(model.pooler or model.head)


def absorb_output(work: Workspace, index: int, scale: Tensor | None, shift: Tensor | None) -> None:
    """Move scale and shift of a stack's output, y = scale * x + shift, into what reads it.

    That is keys and values of cross-attention for the encoder of a pair, the pooler or the head for
    a classifier, and the output projection otherwise.
    """
    if scale is None and shift is None:  # an encoder without a head has nothing to take them up
        return
    model = work.model
    linears: list[nn.Linear] = []
    if isinstance(model, Seq2Seq) and index == 0:
        linears = [each for sub in model.decoder.sublayers for each in laws.memory_readers(sub)]
    elif isinstance(model, Classifier):
        linears = [each for each in (model.pooler, model.head) if each is not None][:1]
    elif isinstance(model, MaskedLM) and model.head_matrix is not None:
        linears = [model.head_matrix]
    if not linears:
        absorb_head_input(work, scale, shift)
        return
    if shift is not None:
        laws.shift_inputs(linears, shift)
    if scale is not None:
        laws.scale_inputs(linears, scale)


def absorb_head_input(work: Workspace, scale: Tensor | None, shift: Tensor | None) -> None:
    """Move scale and shift of what the output projection reads into its table and bias."""
    model, head = work.model, work.model.head
    assert isinstance(head, Unembedding) and not isinstance(model, Classifier)
    assert isinstance(model.embed, TokenEmbedding)
    table = head.rows(model.embed)
    if shift is not None:
        bias = head.factor * (table @ shift)
        old = work.tensors.get("head.bias", head.bias)
        work.tensors["head.bias"] = bias if old is None else old + bias
        work.changes["head_bias"] = True
    if scale is not None:
        untie_head(work, table * scale)


def untie_head(work: Workspace, table: Tensor) -> None:
    """Give the output projection a table of its own."""
    work.tensors["head.table"] = table.detach().clone()
    work.changes["tied"] = False


def fold_factors(work: Workspace) -> list[str]:
    """Move factors of embedding and head into tables that are not shared; return their names."""
    done: list[str] = []
    head = getattr(work.model, "head", None)
    if work.is_tied or not isinstance(work.model.embed, TokenEmbedding):
        return done
    if isinstance(head, Unembedding) and work.get("head_scale") != 1:
        table = work.tensors.get("head.table", head.table)
        assert table is not None
        work.tensors["head.table"] = table * head.factor
        work.changes["head_scale"] = 1.0
        done.append("head_scale")
    factor = work.changes.get("embed_scale", work.model.embed.factor)
    if factor != 1:
        for name in ("embed", "source_embed"):
            embed = getattr(work.model, name, None)
            if embed is not None and f"{name}.table" not in work.tensors:
                embed.table.mul_(factor)
            elif f"{name}.table" in work.tensors:
                work.tensors[f"{name}.table"] = work.tensors[f"{name}.table"] * factor
        work.changes["embed_scale"] = 1.0
        done.append("embed_scale")
    return done


def scale_entries(work: Workspace, max_length: int) -> list[str]:
    """Scale the inputs of stacks by `entry_scales`: embeddings, segments and positions.

    A common factor goes into `embed_scale`, which keeps ties. Other scales go into the tables, so
    that the output projection, and source and target, get tables of their own.

    Returns:
        What was done, in words.
    """
    if not work.entry_scales:
        return []
    model, texts = work.model, ["the scale of the first skip went into the embeddings"]
    last = len(model.stacks) - 1
    ones = torch.ones(model.config.dim, dtype=torch.float64)
    scales = [work.entry_scales.get(index, ones) for index in range(last + 1)]
    _scale_positions(work, scales, max_length, texts)
    if isinstance(model.embed, PatchEmbedding):
        _scale_patches(model.embed, scales[0])
        return texts
    embed, own = model.embed, scales[last]
    assert isinstance(embed, TokenEmbedding)
    if embed.types is not None:
        embed.types.mul_(own)
    original = embed.table.detach().clone()
    common = float(own[0]) if bool((own == own[0]).all()) and float(own[0]) > 0 else None
    factor = 1.0 if common is None else common
    if common is not None:
        work.changes["embed_scale"] = embed.factor * common
    else:
        if work.is_tied:
            untie_head(work, original)
            texts.append("the output projection got a table of its own")
        embed.table.mul_(own)
    if isinstance(model, Seq2Seq):
        ratio = scales[0] / factor
        if model.source_embed is not None:
            model.source_embed.table.mul_(ratio)
        elif not torch.equal(scales[0], own):
            work.tensors["source_embed.table"] = original * ratio
            work.changes["source_vocab"] = model.config.vocab
            texts.append("source and target got tables of their own")
    return texts


def _scale_positions(
    work: Workspace, scales: list[Tensor], max_length: int, texts: list[str]
) -> None:
    prefixes = [name for name, each in work.model.named_modules() if each in work.model.stacks]
    for name, stack, scale in zip(prefixes, work.model.stacks, scales, strict=True):
        assert isinstance(stack, TransformerStack)
        positions = stack.positions
        if isinstance(positions, LearnedT5Positions):
            positions = positions.absolute
        if isinstance(positions, LearnedPositions):
            positions.table.mul_(scale)
        elif isinstance(positions, SinusoidalPositions):
            zeros = torch.zeros(1, max_length, positions.dim, dtype=torch.float64)
            waves = positions.add(zeros, torch.arange(max_length))[0]
            work.tensors[f"{name}.positions.table"] = waves * scale
            call = f"learned(length={max_length})"
            if work.changes.get("positions") != call:
                texts.append(f"sinusoids became a stored table of {max_length} positions")
            work.changes["positions"] = call


def _scale_patches(embed: PatchEmbedding, scale: Tensor) -> None:
    embed.project.weight.mul_(scale[:, None, None, None])
    if embed.project.bias is not None:
        embed.project.bias.mul_(scale)
    embed.cls.mul_(scale)
    if embed.more is not None:
        embed.more.mul_(scale)
