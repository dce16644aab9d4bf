"""Small models of transformers with perturbed weights, inputs, and comparisons."""

from dataclasses import dataclass, field

import torch
import transformers

from addnorm.interop import from_hf

transformers.logging.set_verbosity_error()

TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT |= {"vocab_size": 61, "intermediate_size": 48}
GROUPED = TEXT | {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40}
GPT |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PAIR = {"vocab_size": 61, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3}
PAIR |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48}
PAIR |= {"decoder_ffn_dim": 48, "max_position_embeddings": 40, "pad_token_id": 1}
PAIR |= {"bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
IMAGE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
IMAGE |= {"intermediate_size": 48, "image_size": 16, "patch_size": 8}


@dataclass
class Case:
    """Class of transformers with the config of a small model."""

    name: str
    config: str
    values: dict = field(default_factory=dict)
    note: str = ""

    def __str__(self):
        return f"{self.name}-{self.note}" if self.note else self.name

    def build(self, seed=0, **changes):
        """Build the model in evaluation mode, with every tensor perturbed."""
        config = getattr(transformers, self.config)(**self.values | changes)
        torch.manual_seed(seed)
        model = getattr(transformers, self.name)(config)
        if getattr(config, "attn_logit_softcapping", None) is not None:
            model.set_attn_implementation("eager")  # others ignore it before transformers 5.22
        return perturb(model)


def perturb(model):
    """Perturb every weight and every bias buffer, but no fixed tables."""
    fixed = {id(p) for p in model.parameters() if not p.requires_grad}
    for name, value in model.state_dict(keep_vars=True).items():
        if value.is_floating_point() and id(value) not in fixed:
            scale = 0.3 if value.ndim < 2 or name == "final_logits_bias" else 0.15
            with torch.no_grad():
                value.add_(scale * torch.randn_like(value))
    return model.eval()


def batch(model, side=None, seed=1, length=9, vocab=61):
    """Return three sequences, unpadded or padded on one side."""
    torch.manual_seed(seed)
    ids = torch.randint(3, vocab, (3, length))
    if side is None:
        return {"input_ids": ids}
    lengths = torch.tensor([length, length - 3, length - 5])
    mask = torch.arange(length) < lengths[:, None]
    mask = mask.flip(1) if side == "left" else mask
    pad = getattr(model.config, "pad_token_id", None) or 0
    return {"input_ids": ids.masked_fill(~mask, pad), "attention_mask": mask.long()}


def images(seed=1):
    """Return three images."""
    torch.manual_seed(seed)
    return {"pixel_values": torch.randn(3, 3, 16, 16)}


def assert_same_outputs(theirs, ours, inputs, tolerance=1e-5):
    """Assert that every output of the original matches at valid tokens."""
    with torch.no_grad():
        expected, actual = theirs(**inputs), ours(**inputs)
    names = [
        name
        for name in ("logits", "last_hidden_state", "pooler_output", "encoder_last_hidden_state")
        if getattr(expected, name, None) is not None
    ]
    assert names
    for name in names:
        left, right = getattr(expected, name), getattr(actual, name)
        assert left.shape == right.shape, name
        mask = inputs.get("attention_mask")
        if name in ("logits", "last_hidden_state") and "decoder_input_ids" in inputs:
            mask = inputs.get("decoder_attention_mask")
        if mask is not None and left.ndim == 3:
            left, right = left[mask.bool()], right[mask.bool()]
        assert left.std() > 1e-2, f"{name} is almost constant"
        difference = (left - right).abs().max().item()
        assert difference <= tolerance, f"{name} differs by {difference}"


def assert_same_tensors(one, other):
    """Assert that all tensors and ties are equal."""
    left, right = one.state_dict(), other.state_dict()
    assert list(left) == list(right)
    for name in left:
        assert torch.equal(left[name], right[name]), name
        assert left[name].dtype == right[name].dtype, name
    counts = [sum(p.numel() for p in model.parameters()) for model in (one, other)]
    assert counts[0] == counts[1]


def round_trip(model):
    """Convert a model, assert that `to_hf` restores it exactly, and return the converted model."""
    ours = from_hf(model)
    restored = ours.to_hf()
    assert_same_tensors(model, restored)
    assert type(restored) is type(model)
    assert restored.config.to_dict() == model.config.to_dict()
    return ours
