"""The fifth batch: which rule states each fault, what is still missed, and no false alarm."""

from functools import partial

import pytest
import torch

import addnorm
from tests.doctor.models.fifth_batch import CASES, HEALTHY

MISSES = {
    "mega_vit_key_value_norm": "keys and values normalized instead of queries and keys",
    "soundstorm_convolution": "a leak below 1e-4 of the output at these small weights",
    "a2_net_no_skip": "an attention between residual convolutions",
    "iconshop_zero_memory": "a cross-attention to constant zeros; they may stand for an input",
    "medusa_shared_blocks": "one residual block twice in a list, as shared layers on purpose",
    "mlc_unscaled_scores": "scores without a scale, which is a remark if they are small",
    "augmented_conv_reshape": "a reshape of pixels with channels first",
    "loftr_frequencies": "a table of positions with wrong frequencies",
}
REMARKS = {
    "einygpt_head_size_init": "large_initial_logits",
    "tpu_normal_init": "large_initial_logits",
    "t5_head_variance": "large_initial_logits",
}
"""Numbers at the start, which are no verdict."""
RULES = {
    "mhla_repeated_norm": "double_norm",
    "espnet_eps": "eps_too_small",
    "graph_eps": "eps_too_small",
    "minimind_half_statistic": "eps_too_small",
    "seld_frequency_norm": "wrong_axis",
    "equinox_sequence_norm": "wrong_axis",
    "retnet_group_norm": "future_leak",
    "bert_norm_gains": "random_gains",
    "chatglm_empty_gains": "random_gains",
    "xformers_first_input_only": "partial_pre_norm",
    "mmdit_attention_norm_reused": "inert_norm",
    "pytorch_nlp_batch_softmax": "batch_leak",
    "bran_outputs_twice": "missing_residual",
    "burn_skip_after_norm": "skip_after_norm",
    "cct_skip_after_norm": "skip_after_norm",
    "pml_book_inside": "missing_residual",
    "audiolm_output_dropped": "unused_weights",
    "cellflow_dropout_of_input": "unused_weights",
    "nyu_last_layer_only": "inert_norm",
    "mlx_skip_of_layer_input": "skipped_sum",
    "darknet_shortcut_twice": "doubled_skip",
    "tts_dropout_on_sum": "dropout_on_stream",
    "bert_pytorch_dropout_on_stream": "dropout_on_stream",
    "bark_dropout_in_eval": "dropout_in_eval",
    "minimind_router_gradient": "wrong_softmax_axis",
    "speechbrain_detached_features": "detached_layers",
    "stable_animator_wrong_key": "unused_weights",
    "nuscenes_linear_chain": "linear_chain",
    "vit_cifar_model_width_scale": "wrong_attention_scale",
    "chinese_text_heads": "scrambled_heads",
    "open_sora_frames": "scrambled_heads",
    "leo_rotary_heads": "rotary_over_heads",
    "torchmoji_uninitialized": "nan_output",
}
OF_KIND = {
    "padding leak": "padding_leak",
    "causal mask": "future_leak",
    "option without effect": "ineffective_option",
}
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]  # of torch


def find_rules(case, *, fixed):
    torch.manual_seed(0)
    options = {}
    if case.configure is not None:
        options = {"config": case.options, "build": partial(case.configure, fixed)}
    findings = addnorm.doctor(case.build(fixed), case.inputs(), **options).findings
    alarms = {f.rule for f in findings if f.severity != "info"}
    return alarms, {f.rule for f in findings} - alarms


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_broken_models_are_found_except_the_known_misses(case):
    alarms, remarks = find_rules(case, fixed=False)
    if case.name in MISSES:
        assert not alarms
    elif case.name in REMARKS:
        assert REMARKS[case.name] in remarks
    else:
        assert RULES.get(case.name, OF_KIND.get(case.kind)) in alarms


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_repaired_models_have_no_alarm(case):
    assert find_rules(case, fixed=True)[0] == set()


@pytest.mark.parametrize("healthy", HEALTHY, ids=lambda healthy: healthy.name)
def test_healthy_models_have_no_alarm(healthy):
    torch.manual_seed(0)
    findings = addnorm.doctor(healthy.build(), healthy.inputs()).findings
    assert [f.rule for f in findings if f.severity != "info"] == []


def test_the_batch_is_complete():
    assert (len(CASES), len(HEALTHY), len(MISSES)) == (63, 18, 8)
    assert len({case.source for case in CASES}) == len(CASES)
