"""Presets: configs of published models, one row each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from addnorm.core.calls import Call
from addnorm.core.cards import Card, Option
from addnorm.core.errors import UnknownNameError, UserError, unknown_name_message
from addnorm.core.registry import REGISTRIES, Registry, load_entry_points
from addnorm.models.config import Config


@dataclass(frozen=True)
class Preset:
    """Published model: config at full size, paper and parameter count."""

    name: str
    """Name for `build`."""
    title: str
    """Display name with size."""
    paper: str
    """Authors, title, year, arXiv number."""
    parameters: int | None
    """Parameter count of the released weights; None for a preset of one's own."""
    config: Config
    """Config at full size."""

    @property
    def tiny(self) -> Config:
        """Config of the same architecture, small enough for tests."""
        config = self.config
        sizes: dict[str, Any] = {"dim": 32, "depth": 2, "heads": 4, "ffn_dim": 48}
        if config.vocab is not None:
            sizes["vocab"] = 61
        if config.kv_heads not in (None, config.heads):
            sizes["kv_heads"] = 2
        if config.head_dim is not None:
            sizes["head_dim"] = 16
        if config.encoder_depth is not None:
            sizes["encoder_depth"] = 2
        if config.image is not None:
            sizes |= {"image": 16, "patch": 8, "positions": "learned(length=5)"}
        if isinstance(config.window, tuple):
            sizes["window"] = tuple(None if size is None else 4 for size in config.window)
        if config.positions.startswith("rotary(share"):
            sizes["positions"] = "rotary(share=0.5, layout=interleaved)"
        return config.replace(**sizes)

    @property
    def card(self) -> Card:
        """Card of the preset; its options are the fields that differ from the defaults."""
        c = self.config
        depth = f"{c.encoder_depth or c.depth} + {c.depth}" if c.kind == "seq2seq" else f"{c.depth}"
        attention = "" if c.qk_norm == "none" else f", {c.qk_norm} query-key norm"
        return Card(
            name=self.name,
            title=self.title,
            formula=(
                f"{c.wiring}, {c.norm}, {c.positions}, {c.activation}{attention}; "
                f"{depth} layers of {c.dim}, {c.heads} heads"
            ),
            paper=self.paper,
            summary=f"{c.kind}, {self.parameters:,} parameters." if self.parameters else c.kind,
            options={
                name: Option(value, type=Config.model_fields[name].annotation)
                for name, value in c.model_dump(exclude_defaults=True).items()
            },
        )


class Presets:
    """Presets by name, with the interface of a registry for listing and display."""

    family = "preset"
    base = Config

    def __init__(self, rows: dict[str, Preset]) -> None:
        self._rows = rows
        self.own: dict[str, Preset] = {}
        """Those that `addnorm.register` added."""

    def accepts(self, member: object) -> bool:
        """Return whether `register` takes an object as a preset."""
        return isinstance(member, Config)

    def register(self, card: Card) -> Callable[[Config], Config]:
        """Return a function that registers a config under the name of `card`."""

        def add(config: Config) -> Config:
            if card.name in self._rows and card.name not in self.own:
                raise UserError(f"preset {card.name!r} exists already; choose another name")
            if not card.name.replace("-", "_").isidentifier():
                raise UserError(
                    f"name of a preset: expected letters, digits, - and _, such as my_gpt, got "
                    f"{card.name!r}"
                )
            preset = Preset(card.name, card.title, card.paper, None, config)
            self._rows[card.name] = self.own[card.name] = preset
            return config

        return add

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        if name not in self._rows:
            load_entry_points()
        return name in self._rows

    def __getitem__(self, name: str) -> Preset:
        if name not in self:
            raise UnknownNameError(unknown_name_message("preset", name, self._rows))
        return self._rows[name]

    def card(self, name: str) -> Card:
        """Return the facts that `addnorm show` prints; raise UnknownNameError if there is none."""
        return self[name].card

    def cards(self) -> list[Card]:
        """Return the cards in the order of the table."""
        return [row.card for row in self._rows.values()]

    def resolve(self, text: str) -> Call:
        """Return the call of a preset name; presets have no options."""
        if text.strip() not in self:
            raise UserError(
                f"expected the name of a preset without options, got {text!r}; pass changed fields "
                "to build(name, field=value)"
            )
        return Call(text.strip())


_LLAMA = {"norm": "rms", "positions": "rotary", "activation": "swiglu", "bias": False}

_ROWS: list[tuple[str, str, str, int, dict[str, Any]]] = [
    (
        "transformer-base",
        "Transformer base",
        "Vaswani et al., Attention Is All You Need, 2017, arXiv 1706.03762",
        63_082_496,  # "65 million" in the paper, whose vocabulary is "about 37000"
        {
            "kind": "seq2seq", "vocab": 37000, "dim": 512, "depth": 6, "heads": 8,
            "wiring": "post_ln", "positions": "sinusoid",
            "embed_scale": "sqrt_dim", "dropout": 0.1,
        },
    ),
    (
        "bert",
        "BERT base",
        "Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers, 2018, "
        "arXiv 1810.04805",
        109_482_240,
        {
            "kind": "classifier", "vocab": 30522, "dim": 768, "depth": 12, "heads": 12,
            "wiring": "post_ln", "norm": "layer(eps=1e-12)",
            "positions": "learned(length=512)", "embed_norm": "layer(eps=1e-12)", "types": 2,
            "activation": "gelu", "pooler": True, "dropout": 0.1, "attention_dropout": 0.1,
        },
    ),
    (
        "gpt1",
        "GPT",
        "Radford et al., Improving Language Understanding by Generative Pre-Training, 2018",
        116_534_784,
        {
            "kind": "lm", "vocab": 40478, "dim": 768, "depth": 12, "heads": 12,
            "wiring": "post_ln", "positions": "learned(length=512)", "activation": "gelu_tanh",
            "dropout": 0.1, "attention_dropout": 0.1,
        },
    ),
    (
        "gpt2",
        "GPT-2 small",
        "Radford et al., Language Models are Unsupervised Multitask Learners, 2019",
        124_439_808,
        {
            "kind": "lm", "vocab": 50257, "dim": 768, "depth": 12, "heads": 12,
            "wiring": "pre_ln(init=gpt2)", "positions": "learned(length=1024)",
            "activation": "gelu_tanh", "dropout": 0.1, "attention_dropout": 0.1,
        },
    ),
    (
        "t5",
        "T5 small",
        "Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text "
        "Transformer, 2020, arXiv 1910.10683",
        60_506_624,
        {
            "kind": "seq2seq", "vocab": 32128, "dim": 512, "depth": 6, "heads": 8, "head_dim": 64,
            "norm": "rms", "positions": "t5", "bias": False, "attention_scale": 1.0,
            "head_scale": "rsqrt_dim", "dropout": 0.1, "attention_dropout": 0.1,
            "activation_dropout": 0.1,
        },
    ),
    (
        "bart",
        "BART base",
        "Lewis et al., BART: Denoising Sequence-to-Sequence Pre-training, 2019, arXiv 1910.13461",
        139_420_416,
        {
            "kind": "seq2seq", "vocab": 50265, "dim": 768, "depth": 6, "heads": 12,
            "wiring": "post_ln", "positions": "learned(length=1026)",
            "embed_norm": "layer", "activation": "gelu", "dropout": 0.1,
        },
    ),
    (
        "marian",
        "Marian (OPUS-MT)",
        "Junczys-Dowmunt et al., Marian: Fast Neural Machine Translation in C++, 2018, "
        "arXiv 1804.00344",
        73_886_208,  # the release counts two tables of sinusoids as well, 74,410,496 in all
        {
            "kind": "seq2seq", "vocab": 58101, "dim": 512, "depth": 6, "heads": 8,
            "wiring": "post_ln", "positions": "sinusoid(layout=half)",
            "embed_scale": "sqrt_dim", "activation": "silu", "dropout": 0.1,
        },
    ),
    (
        "llama",
        "LLaMA 7B",
        "Touvron et al., LLaMA: Open and Efficient Foundation Language Models, 2023, "
        "arXiv 2302.13971",
        6_738_415_616,
        {
            "kind": "lm", "vocab": 32000, "dim": 4096, "depth": 32, "heads": 32,
            "ffn_dim": 11008, "tied": False, **_LLAMA,
        },
    ),
    (
        "gemma2",
        "Gemma 2 2B",
        "Gemma Team, Gemma 2: Improving Open Language Models at a Practical Size, 2024, "
        "arXiv 2408.00118",
        2_614_341_888,
        {
            **_LLAMA, "kind": "lm", "vocab": 256000, "dim": 2304, "depth": 26, "heads": 8,
            "kv_heads": 4, "head_dim": 256, "ffn_dim": 9216, "wiring": "sandwich",
            "norm": "rms(gain=one_plus)", "activation": "geglu_tanh", "embed_scale": "sqrt_dim",
            "attention_scale": 256**-0.5, "cap": 50.0, "head_cap": 30.0, "window": (4096, None),
        },
    ),
    (
        "olmo2",
        "OLMo 2 7B",
        "Team OLMo, 2 OLMo 2 Furious, 2024, arXiv 2501.00656",
        7_298_617_344,
        {
            **_LLAMA, "kind": "lm", "vocab": 100352, "dim": 4096, "depth": 32, "heads": 32,
            "ffn_dim": 11008, "wiring": "res_post", "qk_norm": "rms",
            "positions": "rotary(base=500000.0)", "tied": False,
        },
    ),
    (
        "gptj",
        "GPT-J 6B",
        "Wang and Komatsuzaki, GPT-J-6B: A 6 Billion Parameter Autoregressive Language Model, 2021",
        6_050_882_784,
        {
            "kind": "lm", "vocab": 50400, "dim": 4096, "depth": 28, "heads": 16,
            "wiring": "parallel", "activation": "gelu_tanh", "bias": False,
            "ffn_bias": True, "positions": "rotary(share=0.25, layout=interleaved)",
            "tied": False, "head_bias": True,
        },
    ),
    (
        "vit",
        "ViT base, patches of 16",
        "Dosovitskiy et al., An Image is Worth 16x16 Words, 2020, arXiv 2010.11929",
        86_567_656,
        {
            "kind": "classifier", "image": 224, "patch": 16, "dim": 768, "depth": 12, "heads": 12,
            "norm": "layer(eps=1e-12)", "positions": "learned(length=197)",
            "activation": "gelu", "classes": 1000,
        },
    ),
]  # fmt: skip

PRESETS = registry = Presets(
    {
        name: Preset(name, title, paper, parameters, Config(**values))
        for name, title, paper, parameters, values in _ROWS
    }
)
REGISTRIES.append(cast("Registry[Any]", PRESETS))  # for `addnorm.register`
