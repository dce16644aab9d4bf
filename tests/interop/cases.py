"""Supported classes of transformers with various settings."""

from tests.interop.zoo import GPT, GROUPED, IMAGE, PAIR, TEXT, Case

BERT = TEXT | {"max_position_embeddings": 40, "pad_token_id": 0}
ROBERTA = TEXT | {"max_position_embeddings": 40, "pad_token_id": 1}
DISTIL = {"vocab_size": 61, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
DISTIL |= {"max_position_embeddings": 40}

MODERN = TEXT | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1}
MODERN |= {"sep_token_id": 2, "local_attention": 6, "global_attn_every_n_layers": 2}
MODERN |= {"num_hidden_layers": 3}

PROJECTED = BERT | {"embedding_size": 20}

ENCODERS = [
    Case("BertModel", "BertConfig", BERT),
    Case("BertForMaskedLM", "BertConfig", BERT),
    Case("BertForMaskedLM", "BertConfig", BERT | {"tie_word_embeddings": False}, "untied"),
    Case("BertForMaskedLM", "BertConfig", BERT | {"hidden_act": "relu"}, "relu"),
    Case("BertForSequenceClassification", "BertConfig", BERT | {"num_labels": 5}),
    Case("BertForTokenClassification", "BertConfig", BERT | {"num_labels": 5}),
    Case("RobertaForTokenClassification", "RobertaConfig", ROBERTA),
    Case("MegatronBertForTokenClassification", "MegatronBertConfig", BERT),
    Case("ElectraForTokenClassification", "ElectraConfig", BERT | {"embedding_size": 32}),
    Case("DistilBertForTokenClassification", "DistilBertConfig", DISTIL),
    Case("RobertaModel", "RobertaConfig", ROBERTA),
    Case("RobertaForMaskedLM", "RobertaConfig", ROBERTA),
    Case("RobertaForSequenceClassification", "RobertaConfig", ROBERTA),
    Case("XLMRobertaForMaskedLM", "XLMRobertaConfig", ROBERTA),
    Case("CamembertForMaskedLM", "CamembertConfig", ROBERTA),
    Case("ElectraModel", "ElectraConfig", BERT | {"embedding_size": 32}),
    Case("ElectraForMaskedLM", "ElectraConfig", BERT | {"embedding_size": 32}),
    Case("DistilBertModel", "DistilBertConfig", DISTIL),
    Case("DistilBertForSequenceClassification", "DistilBertConfig", DISTIL),
    Case("ElectraForSequenceClassification", "ElectraConfig", BERT | {"embedding_size": 32}),
    Case("Data2VecTextForMaskedLM", "Data2VecTextConfig", ROBERTA),
    Case("Data2VecTextForSequenceClassification", "Data2VecTextConfig", ROBERTA),
    Case("RobertaPreLayerNormModel", "RobertaPreLayerNormConfig", ROBERTA),
    Case("RobertaPreLayerNormForMaskedLM", "RobertaPreLayerNormConfig", ROBERTA),
    Case("MegatronBertModel", "MegatronBertConfig", BERT),
    Case("MegatronBertForMaskedLM", "MegatronBertConfig", BERT),
    Case("MegatronBertForSequenceClassification", "MegatronBertConfig", BERT),
    Case("ErnieForMaskedLM", "ErnieConfig", BERT),
    Case("DistilBertForMaskedLM", "DistilBertConfig", DISTIL),
    Case("ElectraModel", "ElectraConfig", PROJECTED, "projected"),
    Case("ElectraForMaskedLM", "ElectraConfig", PROJECTED, "projected"),
    Case(
        "ElectraForMaskedLM",
        "ElectraConfig",
        BERT | {"embedding_size": 40, "tie_word_embeddings": False},
        "wider",
    ),
    Case("ElectraForSequenceClassification", "ElectraConfig", PROJECTED, "projected"),
    Case("ElectraForTokenClassification", "ElectraConfig", PROJECTED, "projected"),
    Case("MPNetModel", "MPNetConfig", ROBERTA),
    Case("MPNetForMaskedLM", "MPNetConfig", ROBERTA),
    Case("MPNetForSequenceClassification", "MPNetConfig", ROBERTA | {"num_labels": 5}),
    Case("MPNetForTokenClassification", "MPNetConfig", ROBERTA),
    Case("ModernBertModel", "ModernBertConfig", MODERN),
    Case("ModernBertModel", "ModernBertConfig", MODERN | {"norm_bias": True}, "biased"),
    Case("ModernBertForMaskedLM", "ModernBertConfig", MODERN),
    Case(
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        MODERN | {"classifier_bias": True, "norm_bias": True, "decoder_bias": False},
        "biased",
    ),
    Case("ModernBertForSequenceClassification", "ModernBertConfig", MODERN | {"num_labels": 5}),
    Case(
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        MODERN | {"classifier_pooling": "mean", "classifier_bias": True},
        "mean",
    ),
    Case("ModernBertForTokenClassification", "ModernBertConfig", MODERN),
]

NEO = {"vocab_size": 61, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 4}
NEO |= {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 40}
NEO |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
NEOX = TEXT | TOKENS
BLOOM = {"vocab_size": 61, "hidden_size": 32, "n_layer": 2, "n_head": 4} | TOKENS
OPT = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
OPT |= {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 40} | TOKENS
FALCON = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
FALCON |= TOKENS
XGLM = {"vocab_size": 61, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48}
XGLM |= TOKENS

MPT = {"vocab_size": 61, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 40} | TOKENS

WHISPER = {"vocab_size": 61, "d_model": 32, "decoder_layers": 2, "encoder_layers": 2} | TOKENS
WHISPER |= {"decoder_attention_heads": 4, "encoder_attention_heads": 2, "decoder_ffn_dim": 48}
WHISPER |= {"encoder_ffn_dim": 40, "max_target_positions": 40, "decoder_start_token_id": 1}
WHISPER |= {"begin_suppress_tokens": None, "suppress_tokens": None}

GPTS = [
    Case("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", GPT),
    Case("OpenAIGPTModel", "OpenAIGPTConfig", GPT),
    Case("GPT2LMHeadModel", "GPT2Config", GPT),
    Case("GPT2LMHeadModel", "GPT2Config", GPT | {"n_inner": 40}, "narrow"),
    Case("GPT2LMHeadModel", "GPT2Config", GPT | {"scale_attn_weights": False}, "unscaled"),
    Case("GPT2LMHeadModel", "GPT2Config", GPT | {"tie_word_embeddings": False}, "untied"),
    Case("GPT2Model", "GPT2Config", GPT),
    Case("GPTJForCausalLM", "GPTJConfig", GPT | {"rotary_dim": 4}),
    Case("GPTJModel", "GPTJConfig", GPT | {"rotary_dim": 4}),
    Case("GPTBigCodeForCausalLM", "GPTBigCodeConfig", GPT),
    Case("GPTBigCodeForCausalLM", "GPTBigCodeConfig", GPT | {"multi_query": False}, "heads"),
    Case("GPTNeoForCausalLM", "GPTNeoConfig", NEO),
    Case("GPTNeoXForCausalLM", "GPTNeoXConfig", NEOX),
    Case("GPTNeoXForCausalLM", "GPTNeoXConfig", NEOX | {"use_parallel_residual": False}, "serial"),
    Case("GPTNeoXForCausalLM", "GPTNeoXConfig", NEOX | {"attention_bias": False}, "unbiased"),
    Case("GPTNeoXForCausalLM", "GPTNeoXConfig", NEOX | {"rotary_pct": 0.5}, "old-spelling"),
    Case("BloomForCausalLM", "BloomConfig", BLOOM),
    Case("BloomModel", "BloomConfig", BLOOM | {"n_head": 6, "hidden_size": 36}),
    Case("OPTForCausalLM", "OPTConfig", OPT),
    Case("OPTForCausalLM", "OPTConfig", OPT | {"do_layer_norm_before": False}, "post"),
    Case("OPTForCausalLM", "OPTConfig", OPT | {"enable_bias": False}, "unbiased"),
    Case("OPTForCausalLM", "OPTConfig", OPT | {"layer_norm_elementwise_affine": False}, "simple"),
    Case("OPTModel", "OPTConfig", OPT),
    Case("FalconForCausalLM", "FalconConfig", FALCON),
    Case("FalconForCausalLM", "FalconConfig", FALCON | {"multi_query": False}, "heads"),
    Case("FalconForCausalLM", "FalconConfig", FALCON | {"parallel_attn": False}, "serial"),
    Case(
        "FalconForCausalLM",
        "FalconConfig",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
        "new",
    ),
    Case("MptForCausalLM", "MptConfig", MPT),
    Case("XGLMForCausalLM", "XGLMConfig", XGLM),
    Case("BioGptForCausalLM", "BioGptConfig", TEXT | TOKENS | {"max_position_embeddings": 40}),
    Case("WhisperForCausalLM", "WhisperConfig", WHISPER),
]

WIDE = GROUPED | {"head_dim": 16}
GEMMA3 = WIDE | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
QWEN3_NEXT = WIDE | {"layer_types": ["full_attention"] * 2, "mlp_only_layers": [0, 1]}
TURNED = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0}
YARN |= {"original_max_position_embeddings": 64}
LONGROPE = {
    "max_position_embeddings": 24,
    "original_max_position_embeddings": 6,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "short_factor": [1.0, 1.5, 2.0, 3.0],
        "long_factor": [1.0, 2.5, 4.0, 7.0],
        "original_max_position_embeddings": 6,
    },
}
LONGROPE_SHORT = LONGROPE | {
    "max_position_embeddings": 64,
    "original_max_position_embeddings": 32,
    "rope_parameters": LONGROPE["rope_parameters"] | {"original_max_position_embeddings": 32},
}
LONGROPE_CROSSED = LONGROPE | {
    "original_max_position_embeddings": 14,
    "rope_parameters": LONGROPE["rope_parameters"] | {"original_max_position_embeddings": 14},
}
LONGROPE_WIDE = LONGROPE_CROSSED | {
    "rope_parameters": LONGROPE_CROSSED["rope_parameters"]
    | {"short_factor": [1.0 + n / 8 for n in range(8)]}
    | {"long_factor": [1.0 + n for n in range(8)]}
}
DYNAMIC = {
    "max_position_embeddings": 10,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 3.0},
}
LAYER_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 3.0, "original_max_position_embeddings": 64}
EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2}
GPT_OSS = GROUPED | EXPERTS | {"head_dim": 10, "sliding_window": 3}
# Limits that the random weights of a test reach, other slopes, no windows, no biases of attention.
GPT_OSS_OTHER = {"swiglu_limit": 0.02, "swiglu_alpha": 1.3, "attention_bias": False}
GPT_OSS_OTHER |= {"layer_types": ["full_attention"] * 2, "hidden_act": "gelu"}
OWN_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 24}

LLAMAS = [
    Case("LlamaForCausalLM", "LlamaConfig", GROUPED),
    Case("LlamaForCausalLM", "LlamaConfig", WIDE | TURNED, "wide"),
    Case("LlamaForCausalLM", "LlamaConfig", GROUPED | {"attention_bias": True}, "biased"),
    Case("LlamaForCausalLM", "LlamaConfig", GROUPED | {"mlp_bias": True}, "ffn-biased"),
    Case("LlamaForCausalLM", "LlamaConfig", GROUPED | {"tie_word_embeddings": True}, "tied"),
    Case(
        "LlamaForCausalLM",
        "LlamaConfig",
        GROUPED | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}},
        "linear",
    ),
    Case("LlamaForCausalLM", "LlamaConfig", WIDE | {"rope_parameters": LLAMA3}, "llama3"),
    Case("LlamaForCausalLM", "LlamaConfig", GROUPED | {"rope_theta": 5e4}, "old-spelling"),
    Case("Phi3ForCausalLM", "Phi3Config", GROUPED | {"partial_rotary_factor": 0.5}, "partial"),
    Case("LlamaModel", "LlamaConfig", GROUPED),
    Case("MistralForCausalLM", "MistralConfig", GROUPED | {"sliding_window": 4}),
    Case("MistralForCausalLM", "MistralConfig", GROUPED | {"sliding_window": None}, "unbounded"),
    Case("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    Case(
        "Qwen2ForCausalLM",
        "Qwen2Config",
        GROUPED | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        "window",
    ),
    Case("Qwen3ForCausalLM", "Qwen3Config", WIDE),
    Case(
        "MinistralForCausalLM",
        "MinistralConfig",
        GROUPED
        | {"head_dim": 8, "sliding_window": 4}
        | {"layer_types": ["sliding_attention", "full_attention"]},
    ),
    Case("SeedOssForCausalLM", "SeedOssConfig", WIDE | {"attention_out_bias": True}),
    Case("Ernie4_5ForCausalLM", "Ernie4_5Config", WIDE | {"use_bias": True}),
    Case(
        "Exaone4ForCausalLM",
        "Exaone4Config",
        GROUPED | {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    Case("VaultGemmaForCausalLM", "VaultGemmaConfig", WIDE | {"sliding_window": 4}),
    Case("SmolLM3ForCausalLM", "SmolLM3Config", GROUPED),
    Case(
        "GraniteForCausalLM",
        "GraniteConfig",
        GROUPED | {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "attention_multiplier": 0.2},
    ),
    Case("GraniteForCausalLM", "GraniteConfig", GROUPED | {"residual_multiplier": 0.22}, "scaled"),
    Case("LlamaForCausalLM", "LlamaConfig", WIDE | {"rope_parameters": YARN}, "yarn"),
    Case(
        "LlamaForCausalLM",
        "LlamaConfig",
        WIDE
        | {
            "rope_parameters": YARN
            | {"beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.3, "truncate": False}
        },
        "yarn-options",
    ),
    Case("Phi3ForCausalLM", "Phi3Config", GROUPED | LONGROPE, "longrope"),
    Case("Phi3ForCausalLM", "Phi3Config", GROUPED | LONGROPE_SHORT, "longrope-short"),
    Case("Phi3ForCausalLM", "Phi3Config", GROUPED | LONGROPE_CROSSED, "longrope-crossed"),
    Case("LlamaForCausalLM", "LlamaConfig", WIDE | LONGROPE_WIDE, "longrope-crossed"),
    Case("LlamaForCausalLM", "LlamaConfig", WIDE | DYNAMIC, "dynamic"),
    Case(
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        TEXT
        | DYNAMIC
        | {"rope_parameters": DYNAMIC["rope_parameters"] | {"partial_rotary_factor": 0.5}},
        "dynamic",
    ),
    Case(
        "LlamaForCausalLM",
        "LlamaConfig",
        WIDE | {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.4}},
        "yarn-mscale",
    ),
    Case("Gemma3ForCausalLM", "Gemma3TextConfig", GEMMA3),
    Case("Gemma3TextModel", "Gemma3TextConfig", GEMMA3 | {"rope_parameters": LAYER_ROPES}),
    Case("HeliumForCausalLM", "HeliumConfig", GROUPED | {"head_dim": 8}),
    Case("GlmForCausalLM", "GlmConfig", GROUPED | {"head_dim": 8}),
    Case("Glm4ForCausalLM", "Glm4Config", GROUPED | {"head_dim": 8}),
    Case("GemmaForCausalLM", "GemmaConfig", WIDE),
    Case("Gemma2ForCausalLM", "Gemma2Config", WIDE | {"sliding_window": 4}),
    Case("Gemma2Model", "Gemma2Config", WIDE | {"attn_logit_softcapping": None}),
    Case("OlmoForCausalLM", "OlmoConfig", GROUPED),
    Case("Olmo2ForCausalLM", "Olmo2Config", GROUPED),
    Case("Olmo3ForCausalLM", "Olmo3Config", GROUPED | {"sliding_window": 4}),
    Case("PhiForCausalLM", "PhiConfig", GROUPED),
    Case("Phi3ForCausalLM", "Phi3Config", GROUPED),
    Case("StableLmForCausalLM", "StableLmConfig", GROUPED),
    Case("StableLmForCausalLM", "StableLmConfig", GROUPED | {"use_parallel_residual": True}, "par"),
    Case("StableLmForCausalLM", "StableLmConfig", GROUPED | {"use_qkv_bias": True}, "biased"),
    Case("Starcoder2ForCausalLM", "Starcoder2Config", GROUPED),
    Case("CohereForCausalLM", "CohereConfig", GROUPED),
    Case("ArceeForCausalLM", "ArceeConfig", GROUPED),
    Case("ArceeModel", "ArceeConfig", GROUPED | {"mlp_bias": True, "attention_bias": True}),
    Case("NemotronForCausalLM", "NemotronConfig", GROUPED),
    Case("NemotronModel", "NemotronConfig", GROUPED | {"mlp_bias": True, "hidden_act": "gelu"}),
    Case("ApertusForCausalLM", "ApertusConfig", GROUPED | TURNED | {"dtype": "float32"}),
    Case("NanoChatForCausalLM", "NanoChatConfig", GROUPED | {"pad_token_id": 0}),
    Case("NanoChatForCausalLM", "NanoChatConfig", GROUPED | {"attention_bias": True}, "biased"),
    Case("Qwen3NextForCausalLM", "Qwen3NextConfig", QWEN3_NEXT),
    Case("Qwen3NextModel", "Qwen3NextConfig", QWEN3_NEXT | {"num_experts": 0}),
    Case("MixtralForCausalLM", "MixtralConfig", GROUPED | EXPERTS | {"sliding_window": 4}),
    Case("MixtralModel", "MixtralConfig", GROUPED | EXPERTS | {"num_experts_per_tok": 1}),
    Case(
        "GraniteMoeForCausalLM",
        "GraniteMoeConfig",
        GROUPED | EXPERTS | {"residual_multiplier": 0.22, "logits_scaling": 2.0},
    ),
    Case("GptOssForCausalLM", "GptOssConfig", GPT_OSS),
    Case("GptOssForCausalLM", "GptOssConfig", GPT_OSS | GPT_OSS_OTHER, "other"),
    Case("GptOssModel", "GptOssConfig", GPT_OSS | {"num_experts_per_tok": 1}),
    Case("OlmoeForCausalLM", "OlmoeConfig", GROUPED | OWN_EXPERTS),
    Case(
        "OlmoeForCausalLM", "OlmoeConfig", GROUPED | OWN_EXPERTS | {"norm_topk_prob": True}, "sum"
    ),
    Case(
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        GROUPED | OWN_EXPERTS | {"shared_expert_intermediate_size": 28},
    ),
    Case("Qwen3MoeForCausalLM", "Qwen3MoeConfig", GROUPED | OWN_EXPERTS | {"head_dim": 8}),
]

T5 = {"vocab_size": 61, "d_model": 32, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4}
T5 |= {"d_kv": 10, "d_ff": 48, "relative_attention_num_buckets": 8}
T5 |= {"relative_attention_max_distance": 12, "decoder_start_token_id": 0}
GATED = T5 | {
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
    "initializer_factor": 0.2,
}

PAIRS = [
    Case("T5ForConditionalGeneration", "T5Config", T5),
    Case("T5ForConditionalGeneration", "T5Config", GATED, "gated"),
    Case("T5Model", "T5Config", T5),
    Case("MT5ForConditionalGeneration", "MT5Config", T5 | {"initializer_factor": 0.2}),
    Case("BartForConditionalGeneration", "BartConfig", PAIR),
    Case("BartForConditionalGeneration", "BartConfig", PAIR | {"scale_embedding": True}, "scaled"),
    Case("BartModel", "BartConfig", PAIR),
    Case("PLBartForConditionalGeneration", "PLBartConfig", PAIR),
    Case("MBartForConditionalGeneration", "MBartConfig", PAIR),
    Case("MarianMTModel", "MarianConfig", PAIR | {"activation_function": "swish"}),
    Case("MarianModel", "MarianConfig", PAIR),
    Case("PegasusForConditionalGeneration", "PegasusConfig", PAIR),
    Case("BlenderbotForConditionalGeneration", "BlenderbotConfig", PAIR),
    Case("M2M100ForConditionalGeneration", "M2M100Config", PAIR),
]

IMAGES = [
    Case("ViTModel", "ViTConfig", IMAGE),
    Case("ViTForImageClassification", "ViTConfig", IMAGE | {"num_labels": 5}),
    Case("ViTModel", "ViTConfig", IMAGE | {"qkv_bias": False}, "unbiased"),
    Case("ViTModel", "ViTConfig", IMAGE | {"pooler_act": "gelu"}, "gelu"),
    Case("ViTMSNModel", "ViTMSNConfig", IMAGE),
    Case("ViTMSNForImageClassification", "ViTMSNConfig", IMAGE | {"num_labels": 5}),
    Case("DeiTModel", "DeiTConfig", IMAGE),
    Case("DeiTForImageClassification", "DeiTConfig", IMAGE | {"num_labels": 5}),
]
