"""Audit rules: functions that search a traced model for known wiring mistakes.

Each module holds one rule, or a few that share code, and registers it with `@rule("its_id")`. To
add a rule, write a module and import it here:

    @rule("my_rule")
    def my_rule(context: RuleContext) -> Iterator[Finding]:
        for norm in context.iter_norms():
            if norm.eps == 0:
                message = "eps is 0; use 1e-5"
                yield Finding("my_rule", "warning", norm.path, message, {"eps": norm.eps})

A rule reads the trace and yields findings. It must not raise for models that it does not
understand: it yields nothing, or appends to `context.notes` what it could not check.
"""

from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules import (  # noqa: F401
    adaptive_gates,
    cloned_layers,
    constant_weights,
    copied_embedding,
    decayed_gain,
    detached_layers,
    discarded_sum,
    double_norm,
    doubled_skip,
    dropout_after_norm,
    dropout_in_eval,
    dropout_on_stream,
    ffn_fed_unadded,
    foreign_skip,
    ignored_positions,
    ineffective_option,
    inert_norm,
    inverted_norm,
    large_initial_logits,
    leaks,
    linear_chain,
    missing_final_norm,
    missing_norm,
    missing_residual,
    nan_output,
    narrow_projections,
    partial_pre_norm,
    positions,
    precision,
    random_gains,
    scrambled_heads,
    shared_matrices,
    shared_norm,
    skip_after_norm,
    skip_scale,
    skipped_sum,
    unregistered_weights,
    unscaled_attention,
    unused_in_layer,
    unused_prototype,
    unused_weights,
    wrong_attention_scale,
    wrong_axis,
    wrong_mask,
    wrong_softmax_axis,
)
from addnorm.doctor.rules.base import RULES, rule

__all__ = ["RULES", "RuleContext", "rule"]
