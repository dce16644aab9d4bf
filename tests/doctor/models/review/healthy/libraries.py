"""Healthy models of installed libraries, at small sizes."""

import torch
from torch import nn

from tests.doctor.models.review.case import healthy, ids


def tiny(config, **extra):
    values = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "vocab_size": 50,
        "max_position_embeddings": 32,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return config(**{**values, **extra})


@healthy(ids())
def hf_bert():
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(tiny(BertConfig))


@healthy(ids())
def hf_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=50,
            n_positions=32,
            n_embd=64,
            n_layer=3,
            n_head=4,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


@healthy(ids())
def hf_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(tiny(LlamaConfig, num_key_value_heads=2))


@healthy(ids())
def hf_qwen3():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(tiny(Qwen3Config, num_key_value_heads=2, head_dim=16))


@healthy(ids())
def hf_gemma2():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return Gemma2ForCausalLM(tiny(Gemma2Config, num_key_value_heads=2, head_dim=16))


@healthy(ids())
def hf_olmo2():
    from transformers import Olmo2Config, Olmo2ForCausalLM

    return Olmo2ForCausalLM(tiny(Olmo2Config, num_key_value_heads=4))


@healthy(ids())
def hf_gpt_neox():
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return GPTNeoXForCausalLM(tiny(GPTNeoXConfig))


@healthy(ids())
def hf_bloom():
    from transformers import BloomConfig, BloomForCausalLM

    return BloomForCausalLM(
        BloomConfig(
            vocab_size=50,
            hidden_size=64,
            n_layer=3,
            n_head=4,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
    )


@healthy(ids())
def hf_modernbert():
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    return ModernBertForMaskedLM(tiny(ModernBertConfig, cls_token_id=1, sep_token_id=2))


@healthy(
    lambda: {
        "input_ids": torch.randint(1, 50, (2, 10)),
        "decoder_input_ids": torch.randint(1, 50, (2, 8)),
    }
)
def hf_t5():
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=50,
            d_model=64,
            d_kv=16,
            d_ff=128,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
        )
    )


@healthy(
    lambda: {
        "input_ids": torch.randint(3, 50, (2, 10)),
        "decoder_input_ids": torch.randint(3, 50, (2, 8)),
    }
)
def hf_bart():
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=50,
            max_position_embeddings=32,
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            pad_token_id=1,
            bos_token_id=0,
            eos_token_id=2,
            decoder_start_token_id=2,
            forced_eos_token_id=None,
        )
    )


@healthy(lambda: torch.randn(2, 3, 32, 32))
def hf_vit():
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=128,
            image_size=32,
            patch_size=8,
        )
    )


@healthy(lambda: torch.randn(2, 3, 32, 32))
def hf_dinov2():
    from transformers import Dinov2Config, Dinov2Model

    return Dinov2Model(
        Dinov2Config(
            hidden_size=64, num_hidden_layers=3, num_attention_heads=4, image_size=32, patch_size=8
        )
    )


@healthy(lambda: torch.randn(2, 3, 64, 64))
def hf_swin():
    from transformers import SwinConfig, SwinForImageClassification

    return SwinForImageClassification(
        SwinConfig(
            image_size=64,
            patch_size=4,
            embed_dim=32,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=4,
        )
    )


@healthy(lambda: torch.randn(2, 3, 64, 64))
def hf_convnext():
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return ConvNextForImageClassification(
        ConvNextConfig(hidden_sizes=[16, 32, 48, 64], depths=[2, 2, 2, 2], image_size=64)
    )


@healthy(ids())
def x_transformers_decoder():
    from x_transformers import Decoder, TransformerWrapper

    return TransformerWrapper(
        num_tokens=50,
        max_seq_len=32,
        attn_layers=Decoder(dim=64, depth=3, heads=4, attn_dim_head=16),
    )


@healthy(ids())
def x_transformers_rotary_rms():
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=64,
        depth=3,
        heads=4,
        attn_dim_head=16,
        use_rmsnorm=True,
        ff_glu=True,
        rotary_pos_emb=True,
    )
    return TransformerWrapper(
        num_tokens=50, max_seq_len=32, use_abs_pos_emb=False, attn_layers=layers
    )


@healthy(lambda: torch.randn(2, 12, 64))
def torch_encoder_with_final_norm():
    layers = [
        nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True) for _ in range(4)
    ]
    return nn.Sequential(*layers, nn.LayerNorm(64), nn.Linear(64, 8))
