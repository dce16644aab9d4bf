"""Small models of transformers with all weights shaken, and what to ask them."""

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
    """A class of transformers and the config of a small one."""

    name: str
    config: str
    values: dict = field(default_factory=dict)
    note: str = ""

    def __str__(self):
        return f"{self.name}-{self.note}" if self.note else self.name

    def build(self, seed=0, **changes):
        """The model, in eval mode, no tensor left at its start value."""
        config = getattr(transformers, self.config)(**self.values | changes)
        torch.manual_seed(seed)
        model = getattr(transformers, self.name)(config)
        return shake(model)


def shake(model):
    """Move every weight; biases that are buffers as well, but no fixed tables."""
    fixed = {id(p) for p in model.parameters() if not p.requires_grad}
    for name, value in model.state_dict(keep_vars=True).items():
        if value.is_floating_point() and id(value) not in fixed:
            small = 0.3 if value.ndim < 2 or name == "final_logits_bias" else 0.15
            with torch.no_grad():
                value.add_(small * torch.randn_like(value))
    return model.eval()


def batch(model, side=None, seed=1, length=9, vocab=61):
    """Three sequences, unpadded, or padded on a side."""
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
    """Three images."""
    torch.manual_seed(seed)
    return {"pixel_values": torch.randn(3, 3, 16, 16)}


def compare(theirs, ours, inputs, valid=None, tolerance=1e-5):
    """Both answer alike at valid tokens, under every name that theirs has."""
    with torch.no_grad():
        wanted, got = theirs(**inputs), ours(**inputs)
    names = [
        name
        for name in ("logits", "last_hidden_state", "pooler_output", "encoder_last_hidden_state")
        if getattr(wanted, name, None) is not None
    ]
    assert names
    for name in names:
        left, right = getattr(wanted, name), getattr(got, name)
        assert left.shape == right.shape, name
        mask = inputs.get("attention_mask")
        if name in ("logits", "last_hidden_state") and "decoder_input_ids" in inputs:
            mask = inputs.get("decoder_attention_mask")
        if mask is not None and left.ndim == 3:
            left, right = left[mask.bool()], right[mask.bool()]
        assert left.std() > 1e-2, f"{name} says nothing"
        difference = (left - right).abs().max().item()
        assert difference <= tolerance, f"{name} differs by {difference}"


def same_tensors(one, other):
    """Every tensor is equal, ties included."""
    left, right = one.state_dict(), other.state_dict()
    assert list(left) == list(right)
    for name in left:
        assert torch.equal(left[name], right[name]), name
        assert left[name].dtype == right[name].dtype, name
    counts = [sum(p.numel() for p in model.parameters()) for model in (one, other)]
    assert counts[0] == counts[1]


def there_and_back(model):
    """Ours, after the way back has been found to lose nothing."""
    ours = from_hf(model)
    again = ours.to_hf()
    same_tensors(model, again)
    assert type(again) is type(model)
    assert again.config.to_dict() == model.config.to_dict()
    return ours
