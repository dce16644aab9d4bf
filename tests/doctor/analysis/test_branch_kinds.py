"""Branch kinds: whether and how a token depends on other tokens."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import addnorm

DIM, HEADS, TOKENS, EXAMPLES = 16, 2, 6, 3


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Branch(nn.Module):
    """Four matrices and a kernel, combined by a function."""

    def __init__(self, way, tokens=TOKENS):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.kernel = nn.Conv1d(DIM, DIM, 3, padding=1, groups=DIM)
        self.point = nn.Conv1d(DIM, DIM, 1)
        self.across = nn.Linear(tokens, tokens)
        self.gate = nn.Linear(DIM, 3)
        self.way = way

    def forward(self, x, memory=None):
        return self.way(self, x) if memory is None else self.way(self, x, memory)


class Stack(nn.Module):
    """Pre-LN around each branch."""

    def __init__(self, way, tokens=TOKENS):
        super().__init__()
        self.first = nn.Linear(DIM, DIM)
        self.branches = nn.ModuleList(Branch(way, tokens) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.last = nn.LayerNorm(DIM)

    def forward(self, x, memory=None):
        x = self.first(x)
        for branch, norm in zip(self.branches, self.norms, strict=True):
            x = x + branch(norm(x), memory)
        return self.last(x)


def kinds(way, *example, tokens=TOKENS):
    example = example or (torch.randn(EXAMPLES, tokens, DIM),)
    report = addnorm.doctor(Stack(way, tokens), example, rules=())
    assert [b.wiring for b in report.blocks] == ["pre_ln"] * 2
    return {b.kind for b in report.blocks}


def heads(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def whole(x):
    return x.transpose(1, 2).flatten(2)


def parts(s, x, memory=None):
    memory = x if memory is None else memory
    return heads(s.q(x)), heads(s.k(memory)), heads(s.v(memory))


def scored(weigh):
    """Attention whose weights are not a softmax."""

    def way(s, x, memory=None):
        q, k, v = parts(s, x, memory)
        return s.o(whole(weigh(q @ k.mT) @ v))

    return way


def over_sum(a):
    e = (a - a.amax(-1, keepdim=True)).exp()
    return e / (e.sum(-1, keepdim=True) + 1e-9)


def best(a):
    top = a.topk(2, -1)
    return torch.zeros_like(a).scatter(-1, top.indices, top.values.softmax(-1))


def linear_attention(s, x):
    q, k, v = parts(s, x)
    return s.o(whole((F.elu(q) + 1) @ ((F.elu(k) + 1).mT @ v)))


def summed_later(s, x):
    q, k, v = parts(s, x)
    weights = (q @ k.mT).softmax(-1)
    return s.o(whole((weights[..., None] * v[:, :, None]).sum(3)))


def divided_later(s, x):
    q, k, v = parts(s, x)
    e = (q @ k.mT).exp()
    return s.o(whole((e @ v) / e.sum(-1, keepdim=True)))


def by_distance(s, x):
    q, k, v = parts(s, x)
    return s.o(whole((-torch.cdist(q, k)).exp() @ v))


def one_matrix(s, x):
    q, k, v = heads(torch.cat([s.q(x), s.k(x), s.v(x)], -1)).chunk(3, -1)
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    return s.o(whole(torch.einsum("bhij,bhjd->bhid", scores.sigmoid(), v)))


def across_features(s, x):
    q, k, v = parts(s, x)
    return s.o(whole(v @ (q.mT @ k).softmax(-1)))


ATTENTIONS = {
    "retention": scored(lambda a: a.tril()),
    "relu": scored(lambda a: a.relu() / TOKENS),
    "sigmoid": scored(lambda a: (a - 2).sigmoid()),
    "bare": scored(lambda a: a),
    "squares": scored(lambda a: F.normalize(a, dim=-1).square()),
    "softmax": scored(lambda a: a.softmax(-1)),
    "log_softmax": scored(lambda a: a.log_softmax(-1).exp()),
    "exp over sum": scored(over_sum),
    "reciprocal": scored(lambda a: a.exp() * a.exp().sum(-1, keepdim=True).reciprocal()),
    "power": scored(lambda a: a.exp() * a.exp().sum(-1, keepdim=True).pow(-1)),
    "plus one": scored(lambda a: a.exp() / (1 + a.exp().sum(-1, keepdim=True))),
    "normalize": scored(lambda a: F.normalize(a.exp(), p=1, dim=-1)),
    "top two": scored(best),
    "talking heads": scored(
        lambda a: torch.einsum("bhij,hg->bgij", a.softmax(-1), torch.eye(HEADS))
    ),
    "linear": linear_attention,
    "summed later": summed_later,
    "divided later": divided_later,
    "distance": by_distance,
    "einsum": one_matrix,
    "across features": across_features,
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_product_of_activations_along_tokens_is_attention(name):
    assert kinds(ATTENTIONS[name]) == {"self-attention"}


@pytest.mark.parametrize("name", ["retention", "sigmoid", "exp over sum", "softmax", "top two"])
def test_memory_makes_cross_attention(name):
    example = torch.randn(EXAMPLES, TOKENS, DIM), torch.randn(EXAMPLES, 5, DIM)
    assert kinds(ATTENTIONS[name], *example) == {"cross-attention"}


def glu_then_kernel(s, x):
    h = F.glu(torch.cat([s.q(x), s.k(x)], -1)).mT
    return s.o(F.silu(s.kernel(h)).mT)


def short_kernel(s, x):
    a, b, c = s.q(x).mT, s.k(x).mT, s.v(x).mT
    return s.o((b * s.kernel(a * c)).mT)


@pytest.mark.parametrize("way", [glu_then_kernel, short_kernel])
def test_kernel_along_tokens_is_convolution(way):
    assert kinds(way) == {"convolution"}


def chunked_scan(s, x):
    """A gated scan as a product with the decay between each pair of tokens (Mamba-2)."""
    q, k, v = parts(s, x)
    passed = -F.softplus(q.mean(-1)).cumsum(-1)
    decay = (passed[..., None] - passed[..., None, :]).tril().exp().tril()
    return s.o(whole((q @ k.mT * decay) @ v))


MIXERS = {
    "scan": chunked_scan,
    "pooling": lambda s, x: s.o(F.avg_pool1d(s.q(x).mT, 3, 1, 1).mT),
    "mean": lambda s, x: s.o(s.q(x) + s.k(x).mean(1, keepdim=True)),
    "running": lambda s, x: s.o(s.q(x) * torch.logcumsumexp(s.k(x), 1)),
    "windows": lambda s, x: s.o(F.pad(s.q(x), (0, 0, 2, 0)).unfold(1, 3, 1).mean(-1)),
    "Fourier": lambda s, x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=1).real,
    "flat": lambda s, x: (x.flatten(1) @ torch.ones(96, 96)).view_as(x),
    "gated across": lambda s, x: s.o(s.q(x) * s.across(s.k(x).mT).mT),
}


@pytest.mark.parametrize("name", MIXERS)
def test_weights_or_sums_along_tokens_are_mixer(name):
    assert kinds(MIXERS[name]) == {"mixer"}


@pytest.mark.parametrize("tokens", [TOKENS, DIM])
@pytest.mark.parametrize(
    "turn",
    [
        lambda x: x.transpose(1, 2),
        lambda x: x.mT,
        lambda x: x.movedim(1, 2),
        lambda x: x.swapdims(1, 2),
        lambda x: x.permute(0, 2, 1),
        lambda x: torch.einsum("btd->bdt", x),
    ],
)
def test_matrix_along_transposed_tokens_is_mixer(turn, tokens):
    assert kinds(lambda s, x: turn(s.across(turn(x)).relu()), tokens=tokens) == {"mixer"}
    twice = kinds(lambda s, x: s.o(turn(turn(s.q(x))).relu()), tokens=tokens)
    assert twice == {"feed-forward"}


class Columns(nn.Module):
    """Pointwise kernels on (batch, features, tokens), each with a norm."""

    def __init__(self, way):
        super().__init__()
        self.first = nn.Conv1d(DIM, DIM, 1)
        self.wide = nn.ModuleList(nn.Conv1d(DIM, 2 * DIM, 1) for _ in range(2))
        self.thin = nn.ModuleList(nn.Conv1d(2 * DIM, DIM, 1) for _ in range(2))
        self.norm = nn.LayerNorm(TOKENS if way == "tokens" else DIM)
        self.way = way

    def forward(self, x):
        x = self.first(x.mT)
        for wide, thin in zip(self.wide, self.thin, strict=True):
            h = self.norm(x) if self.way == "tokens" else self.norm(x.mT).mT
            x = x + thin(wide(h).relu())
        return x


@pytest.mark.parametrize("way", ["tokens", "features"])
def test_kernels_determine_feature_axis(way):
    report = addnorm.doctor(Columns(way), torch.randn(EXAMPLES, TOKENS, DIM))
    assert {b.kind for b in report.blocks} == {"feed-forward"}
    assert ("wrong_axis" in {f.rule for f in report.findings}) is (way == "tokens")


def test_pointwise_kernel_over_tokens_is_mixer():
    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.across, self.feed = nn.Conv1d(TOKENS, TOKENS, 1), nn.Linear(DIM, DIM)
            self.one, self.two = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

        def forward(self, x):
            x = x + self.across(self.one(x)).relu()
            return x + self.feed(self.two(x)).relu()

    model = nn.Sequential(nn.Linear(DIM, DIM), Mixer(), Mixer(), nn.LayerNorm(DIM))
    report = addnorm.doctor(model, torch.randn(EXAMPLES, TOKENS, DIM), rules=())
    assert [b.kind for b in report.blocks] == ["mixer", "feed-forward"] * 2


def experts(s, x):
    """Mixture of experts: each token goes to two of three experts."""
    flat = x.flatten(0, 1)
    weights, chosen = s.gate(flat).softmax(-1).topk(2, -1)
    order = chosen.flatten().argsort()
    rows = s.o(s.q(flat[order // 2]).relu())
    rows = rows[order.argsort()].view(len(flat), 2, DIM)
    return (rows * weights[..., None]).sum(1).view_as(x)


def dense_experts(s, x):
    made = torch.cat([s.q(x), s.k(x), s.v(x)], -1).unflatten(-1, (3, DIM))
    return torch.einsum("bte,bted->btd", s.gate(x).softmax(-1), made)


LOOK_ALIKES = {
    "plain": lambda s, x: s.o(s.q(x).relu()),
    "glu": lambda s, x: s.o(s.q(x) * s.k(x).sigmoid()),
    "channels first": lambda s, x: s.o(s.q(x).mT.relu().mT),
    "kernel of one": lambda s, x: s.point(s.point(x.mT).relu()).mT,
    "flat": lambda s, x: s.o(s.q(x.flatten(0, 1)).relu()).unflatten(0, x.shape[:2]),
    "windows": lambda s, x: (
        s.o(s.q(x.unflatten(1, (2, 3)).transpose(0, 1)).relu()).transpose(0, 1).flatten(1, 2)
    ),
    "shift": lambda s, x: s.o(s.q(x).relu().roll(1, 1)),
    "experts": experts,
    "all experts": dense_experts,
    "memory of weights": lambda s, x: s.o((x @ s.q.weight.mT).softmax(-1) @ s.k.weight),
    "norm over tokens": lambda s, x: s.o(F.layer_norm(s.q(x).mT, (TOKENS,)).mT.relu()),
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_independent_tokens_are_feed_forward(name):
    assert kinds(LOOK_ALIKES[name]) == {"feed-forward"}


@pytest.mark.parametrize("name", ["relu", "softmax", "linear", "summed later", "top two"])
def test_roles_of_attention_matrices(name):
    report = addnorm.doctor(Stack(ATTENTIONS[name]), torch.randn(EXAMPLES, TOKENS, DIM), rules=())
    rows = [row for row in report.rows if row["measure"] == "role_gradient_norm"]
    assert {row["role"] for row in rows} == {"query", "key", "value", "out"}
