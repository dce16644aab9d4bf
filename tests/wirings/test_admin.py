"""Calibration of Admin: its omegas computed from a batch."""

import copy

import pytest
import torch
from torch import nn

from addnorm import Decoder, Encoder
from tests.helpers import gradients, perturb, tokens, toy_stack


def released_profile(x, f, norms):
    """Compute the omegas as the released code does: each is set before its sub-layer runs."""
    running, omegas = 1.0, []
    for sublayer, norm in zip(f, norms, strict=True):
        omegas.append(running**0.5)
        y = sublayer(x)
        running = (omegas[-1] * x).var(correction=0).item() + y.var(correction=0).item()
        x = norm(omegas[-1] * x + y)
    return omegas


def test_profile_equals_the_released_loop():
    stack = toy_stack("admin")
    stack.calibrate(tokens())
    with torch.no_grad():
        expected = released_profile(tokens(), stack.sublayers, stack.wiring.norms)
    torch.testing.assert_close(stack.wiring.omega[:, 0], torch.tensor(expected))
    assert (stack.wiring.omega == stack.wiring.omega[:, :1]).all()
    assert expected[0] == 1.0 and expected == sorted(expected)


def test_paper_rule_sums_the_variances_of_branches_measured_at_one():
    stack, plain = toy_stack("admin(start=paper)"), toy_stack("post_ln")
    with plain.taps.record() as tape:
        plain(tokens())
    stack.calibrate(tokens())
    variances = torch.stack([branch.var(correction=0) for branch in tape["branch"]])
    expected = torch.cat([torch.ones(1), variances.cumsum(0)[:-1].sqrt()])
    torch.testing.assert_close(stack.wiring.omega[:, 0], expected)


@pytest.mark.parametrize("start", ["profile", "paper"])
def test_calibration_changes_only_omega_and_is_saved(start):
    stack = Encoder(dim=12, depth=3, heads=3, wiring=f"admin(start={start})")
    before = {key: value.clone() for key, value in stack.state_dict().items()}
    assert not stack.wiring.calibrated
    stack.calibrate(tokens(2, 5, 12))
    changed = {
        key for key, value in stack.state_dict().items() if not torch.equal(value, before[key])
    }
    assert changed == {"wiring.omega", "wiring.calibrated"}
    restored = Encoder(dim=12, depth=3, heads=3, wiring=f"admin(start={start})")
    restored.load_state_dict(stack.state_dict())
    assert restored.wiring.calibrated and torch.equal(restored.wiring.omega, stack.wiring.omega)
    stack.init_weights()
    assert not stack.wiring.calibrated and (stack.wiring.omega == 1).all()


def test_repeated_calibration_gives_equal_omegas():
    stack = toy_stack("admin")
    stack.calibrate(tokens())
    first = stack.wiring.omega.clone()
    stack.calibrate(tokens())
    assert torch.equal(stack.wiring.omega, first)


def test_padding_does_not_change_the_profile():
    stack = Encoder(dim=12, depth=3, heads=3, wiring="admin")
    other = copy.deepcopy(stack)
    x, garbage = tokens(2, 5, 12), 50 * tokens(2, 3, 12, seed=8)
    mask = torch.arange(8).expand(2, 8) < 5
    stack.calibrate(x)
    other.calibrate(torch.cat([x, garbage], 1), mask=mask)
    torch.testing.assert_close(stack.wiring.omega, other.wiring.omega)


def test_dependency_on_branches_falls_with_depth_unlike_post_ln():
    def dependencies(wiring):
        stack = toy_stack(wiring, depth=8, dim=64)
        stack.calibrate(tokens(3, 7, 64))
        omega = getattr(stack.wiring, "omega", torch.ones(16, 1))
        with stack.taps.record() as tape:
            stack(tokens(3, 7, 64))
        pairs = zip(tape["read"], tape["branch"], omega, strict=True)
        return [(f.var() / (w * x + f).var()).item() for x, f, w in pairs]

    admin, post = dependencies("admin"), dependencies("post_ln")
    assert admin[-1] < 0.5 * admin[0]
    assert post[-1] == pytest.approx(post[1], rel=0.3)


def test_calibrated_stack_folds_into_post_ln():
    """Multiply each omega into the previous norm and divide the branch's first matrix by it."""
    stack = toy_stack("admin")
    stack.calibrate(tokens())
    perturb(stack.wiring)
    folded = toy_stack("post_ln")
    folded.load_state_dict(
        {k: v for k, v in stack.state_dict().items() if "omega" not in k and "calib" not in k}
        | {"_extra_state": folded.get_extra_state()}
    )
    omega = stack.wiring.omega
    with torch.no_grad():
        for k, sublayer in enumerate(folded.sublayers):
            sublayer[0].weight.div_(omega[k])
            if k:
                norm = folded.wiring.norms[k - 1]
                norm.weight.mul_(omega[k])
                norm.bias.mul_(omega[k])
    x = tokens()
    torch.testing.assert_close(folded(x * omega[0]), stack(x), rtol=1e-4, atol=1e-5)


def test_decoder_calibrates_with_its_memory():
    stack = Decoder(dim=12, depth=2, heads=3, wiring="admin", other_depth=2)
    stack.calibrate(tokens(2, 5, 12), memory=tokens(2, 4, 12, seed=6))
    assert stack.wiring.omega[:, 0].tolist() == sorted(stack.wiring.omega[:, 0].tolist())
    assert len(stack.wiring.omega) == 6


def test_calibration_does_not_change_other_wirings():
    stack = toy_stack("pre_ln")
    before = [parameter.clone() for parameter in stack.parameters()]
    stack.calibrate(tokens())
    assert all(torch.equal(a, b) for a, b in zip(before, stack.parameters(), strict=True))


def test_decorated_admin_is_calibrated():
    stack = toy_stack("drop_path(inner=admin)")
    stack.calibrate(tokens())
    assert stack.wiring.inner.calibrated


def test_omega_is_learned():
    stack = toy_stack("admin")
    assert gradients(stack(tokens()), [stack.wiring.omega])[0].abs().min() > 0
    assert isinstance(stack.wiring.omega, nn.Parameter)
