"""Sentences on planted failures, and on rows written by hand."""

import math

import pytest
import torch

import addnorm
from addnorm.monitor import diagnose_rows
from tests.monitor.models import Handmade, build, compute_loss, make_batch, train


def run(model, *, steps=6, every=1, lr=1e-3, before=None, parameters=None):
    optimizer = torch.optim.SGD(parameters or model.parameters(), lr=lr)
    with addnorm.Monitor(model, optimizer, every=every) as monitor:
        for step in range(1, steps + 1):
            if before is not None:
                with torch.no_grad():
                    before(step)
            loss = compute_loss(model, make_batch(step))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.step(loss)
    return monitor


def one(sentences, *words):
    """Return the only sentence with these words."""
    (found,) = [s for s in sentences if all(word in s for word in words)]
    return found


def test_healthy_run_is_silent():
    assert run(build(Handmade), steps=20).diagnosis() == []


def test_infinite_weight_is_named():
    model = build(Handmade)

    def before(step):
        if step == 3:
            model.up[1][0, 0] = math.inf

    monitor = run(model, before=before)
    sentence = one(monitor.diagnosis(), "Step 3", "infinity", "`matmul`")
    assert "input 2 (up.1) was not finite" in sentence
    assert sentence.site == monitor.sites[3].label and sentence.kind == "fact"
    assert sentence.severity == "error" and sentence.link.startswith("docs/")


def test_nan_of_a_mask_is_named():
    class Masked(Handmade):
        hides = False

        def layer(self, x, index):
            if self.hides and index == 1:
                return super().layer(x, index) * 1.0 + self.bad(x)
            return super().layer(x, index)

        def bad(self, x):
            scores = (x @ x.mT).masked_fill(torch.ones(x.shape[1], x.shape[1]).bool(), -math.inf)
            return scores.softmax(-1) @ x

    model = build(Masked)

    def before(step):
        model.hides = step == 3

    monitor = run(model, before=before)
    sentence = one(monitor.diagnosis(), "Step 3", "NaN", "`softmax`")
    assert "54 of 54 rows are -inf throughout (mask)" in sentence


def test_float16_overflow_is_named():
    class Half(Handmade):
        is_half = False

        def norm(self, x, index):
            if self.is_half and index == 2:
                x = (500 * x).half()
                x = (x @ x.mT @ x).float()
            return super().norm(x, index)

    model = build(Half)

    def before(step):
        model.is_half = step == 4

    sentence = one(run(model, before=before).diagnosis(), "Step 4", "`matmul`")
    assert "inputs were finite" in sentence and "in float16, whose limit is 65,504" in sentence


def test_nan_of_the_backward_pass_is_named():
    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * math.nan

    class Bad(Handmade):
        is_bad = False

        def layer(self, x, index):
            out = super().layer(x, index)
            return Root.apply(out) if self.is_bad and index == 0 else out

    model = build(Bad)

    def before(step):
        model.is_bad = step == 2

    monitor = run(model, before=before)
    sentence = one(monitor.diagnosis(), "Step 2", "NaN of the gradients")
    assert sentence.site == monitor.sites[1].label


def test_replay_keeps_dropout_masks_and_bits():
    """The search runs the step again; training after it goes on as without a monitor."""
    results = []
    for is_monitored in (False, True):
        model = build(lambda: Handmade(dropout=0.3))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        monitor = addnorm.Monitor(model, optimizer) if is_monitored else None
        torch.manual_seed(0)
        for step in range(1, 4):
            loss = compute_loss(model, make_batch(step)) * (math.nan if step == 2 else 1.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.nan_to_num_()
            if monitor is not None:
                monitor.step(loss)
        results.append((torch.get_rng_state(), [p.clone() for p in model.parameters()]))
    assert torch.equal(results[0][0], results[1][0])
    for first, second in zip(results[0][1], results[1][1], strict=True):
        assert torch.equal(first, second)
    monitor.close()


def test_missing_final_norm_comes_from_the_doctor():
    monitor = run(build(lambda: Handmade(final_norm=False)), steps=2)
    assert [finding.rule for finding in monitor.findings] == ["missing_final_norm"]
    one(monitor.diagnosis(), "Doctor, missing_final_norm")


def test_frozen_detached_and_forgotten_weights():
    model = build(lambda: Handmade(depth=3))
    model.up[0].requires_grad_(False)
    model.down[0].requires_grad_(False)
    model.gains[1].requires_grad_(False)
    names = dict(model.named_parameters())
    forgotten = [p for n, p in names.items() if n not in ("qkv.2", "out.2", "gains.4")]
    model.up[1].register_hook(torch.zeros_like)
    model.down[1].register_hook(torch.zeros_like)
    model.gains[3].register_hook(torch.zeros_like)
    monitor = run(model, steps=5, parameters=[p for p in forgotten if p.requires_grad])
    labels = [site.label for site in monitor.sites]
    sentences = monitor.diagnosis()
    assert one(sentences, "none requires a gradient").site == labels[1]
    assert one(sentences, "received no gradient since step 1").site == labels[3]
    assert one(sentences, "have not changed").site == labels[4]


def test_gain_that_is_zero_and_gain_that_grows():
    model = build(Handmade)

    def before(step):
        model.gains[0].zero_()
        if step == 4:
            model.gains[3][:] = 30.0

    sentences = run(model, before=before, steps=12).diagnosis()
    assert "30 times that of step 1" in one(sentences, "The largest gain of gains.3")
    assert one(sentences, "All gains of gains.0 are 0 at step 12").severity == "error"


# rows written by hand


def make_rows(name, numbers, *, site=0, layer=0, label="h.0: attention, pre_ln"):
    fields = {"stack": "stream 0", "site": site, "layer": layer, "label": label}
    return [
        {"step": 50 * n, "name": name, "value": v, **fields} for n, v in enumerate(numbers, start=1)
    ]


def test_change_needs_eight_looks_six_deviations_and_a_factor_of_five():
    calm = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.1, 0.9]
    (sentence,) = diagnose_rows(make_rows("update_ratio", [*calm, 9.0]))
    assert sentence.kind == "change" and sentence.step == 450
    assert "9 at step 450, median of the 8 looks before 1 " in sentence
    assert diagnose_rows(make_rows("update_ratio", [*calm, 4.9])) == []
    assert diagnose_rows(make_rows("update_ratio", [*calm[1:], 9.0])) == []
    wild = [1.0, 4.0, 0.5, 3.0, 1.0, 5.0, 0.7, 2.0]
    assert diagnose_rows(make_rows("update_ratio", [*wild, 9.0])) == []
    assert diagnose_rows(make_rows("update_ratio", [*calm, 0.01])) == []  # falling is no news
    assert diagnose_rows(make_rows("update_ratio", [10.0, *calm, 9.0])) == []  # as at the start
    # These change in healthy runs too.
    for name in ("gradient_norm", "max_logit", "stream_rms", "attention_entropy"):
        assert diagnose_rows(make_rows(name, [*calm, 20.0])) == []
    assert len(diagnose_rows(make_rows("update_ratio", [*calm, 11.0]))) == 1


def test_many_changes_are_counted():
    calm = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.1, 0.9]
    rows = []
    for site in range(9):
        rows += make_rows("update_ratio", [*calm, 9.0 + site], site=site, label=f"h.{site}")
    rows.sort(key=lambda row: row["step"])
    sentences = diagnose_rows(rows)
    assert len(sentences) == 4
    assert [s.site for s in sentences[:3]] == ["h.8", "h.7", "h.6"]
    assert sentences[3].startswith("6 further metrics changed as much")


def test_logits_entropy_and_gradients_of_deep_post_ln():
    rows = make_rows("max_logit", [2.0, 3.0, 2.0, 4.0, 9.0, 20.0, 45.0, 160.0])
    sentence = one(diagnose_rows(rows), "Dehghani et al. 2023")
    assert "is 160 at step 400, and 2.5 in the first looks" in sentence
    assert sentence.kind == "association" and sentence.link.endswith("#query-key-norms")
    assert diagnose_rows(make_rows("max_logit", [2.0, 3.0, 2.0, 4.0, 9.0, 20.0, 45.0])) == []
    rows = make_rows("attention_entropy", [2.0, 2.0, 1.9, 1.7, 1.0, 0.4, 0.01])
    one(diagnose_rows(rows), "Zhai et al. 2023")
    rows = [
        *make_rows("gradient_norm", [1e-3] * 3, label="layers.0: attention, post_ln"),
        *make_rows("gradient_norm", [1.0] * 3, site=9, layer=9, label="layers.9: x, post_ln"),
    ]
    sentence = one(diagnose_rows(sorted(rows, key=lambda r: r["step"])), "Xiong et al. 2020")
    assert "is 1e+03 times that at layer 0 (1 and 0.001)" in sentence
    assert sentence.link.startswith("docs/claims")


def test_spike_names_the_sites_that_moved_first():
    calm = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.1, 0.9]
    rows = make_rows("gradient_norm", [*calm, 9.0])
    rows += [{"step": 430, "name": n, "value": 7.0, "site": None} for n in ("loss", "spike")]
    rows.sort(key=lambda row: row["step"])
    sentence = one(diagnose_rows(rows), "the loss jumps to 7")
    assert "at step 450, the first look after it: gradient norm of h.0: attention" in sentence
    rows = make_rows("gradient_norm", [*calm, 9.0])
    rows.append({"step": 460, "name": "spike", "value": 7.0, "site": None})
    sentence = one(diagnose_rows(rows), "the loss jumps to 7")
    assert "between steps 400 and 450" in sentence


def test_spike_names_logits_that_moved():
    calm = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.1, 0.9]
    rows = make_rows("max_logit", [*calm, 9.0])  # still small
    rows += [{"step": 430, "name": n, "value": 7.0, "site": None} for n in ("loss", "spike")]
    sentence = one(diagnose_rows(rows), "the loss jumps to 7")
    assert "No site has moved" in sentence and sentence.severity == "info"
    rows = make_rows("max_logit", [*calm, 11.0])
    rows += [{"step": 430, "name": n, "value": 7.0, "site": None} for n in ("loss", "spike")]
    assert "largest attention logit of h.0" in one(diagnose_rows(rows), "the loss jumps to 7")


def test_branch_that_is_silent_and_branch_that_grows():
    calm = [
        row
        for site in (1, 2)
        for row in make_rows("dependency", [0.4] * 9, site=site, label=f"h.{site}")
    ]
    sentence = one(diagnose_rows([*calm, *make_rows("dependency", [2e-5] * 9)]), "less than 0.1 %")
    assert "1 of 3 branches" in sentence and "h.0: attention, pre_ln" in sentence
    assert "adds 2e-05 at step 450, the median branch of its kind 0.4" in sentence
    assert diagnose_rows(make_rows("dependency", [2e-5] * 9)) == []  # no other adds more
    growing = make_rows("dependency", [1e-8 * 4**n for n in range(9)])  # LayerScale
    assert diagnose_rows([*calm, *growing]) == []
    assert diagnose_rows([*calm, *make_rows("dependency", [2e-5] * 7)]) == []  # too early


def test_many_frozen_sites_are_one_sentence():
    rows = make_rows("gradient_norm", [1.0] * 3, site=9, label="h.9")
    for site in range(10):
        rows += make_rows("stream_rms", [1.0] * 3, site=site, label=f"h.{site}")
    (sentence,) = diagnose_rows(rows)
    assert "9 of 10 sites" in sentence and "h.0; h.1; h.2 and 6 more" in sentence
    assert sentence.severity == "info"


def test_burst_of_measurements_after_a_spike():
    model = build(Handmade)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with addnorm.Monitor(model, optimizer, every=100) as monitor:
        train(model, optimizer, monitor, steps=40)
        monitor.step(0.0)
        loss = compute_loss(model, make_batch(1))
        loss.backward()
        optimizer.step()
        monitor.step(1000.0)
        train(model, optimizer, monitor, steps=12)
    looks = sorted({r["step"] for r in monitor.rows() if r["name"] == "stream_rms"})
    assert looks == [1, *range(42, 50)]
    one(monitor.diagnosis(), "Step 41: the loss jumps to")


@pytest.mark.parametrize("name", ["loss", "spike", "diverged", "ended"])
def test_rows_without_sites_are_accepted(name):
    diagnose_rows([{"step": 1, "name": name, "value": 1.0, "site": None}])


def test_rows_of_addnorm_train_are_accepted():
    fields = {"name": "update_ratio", "stack": "decoder", "site": 0, "layer": 0, "kind": "self"}
    rows = [{"step": n, "value": 1.0, **fields} for n in range(1, 9)]
    (sentence,) = diagnose_rows([*rows, {**rows[0], "step": 9, "value": 99.0}])
    assert "decoder layer 0, self" in sentence
