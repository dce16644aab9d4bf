"""Third batch: convolutional models: axes of norms, missing skips, convolutions without effect."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug
from tests.doctor.models.review.third_bugs.common import (
    image,
    merge_heads,
    softmax_attention,
    split_heads,
)

AXIS = "warning: the norm computes its statistics over the wrong axis"


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of (batch, channels, height, width)."""

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.g, self.b = (
            nn.Parameter(torch.ones(1, dim, 1, 1)),
            nn.Parameter(torch.zeros(1, dim, 1, 1)),
        )

    def forward(self, x):
        mean, var = x.mean(1, keepdim=True), x.var(1, unbiased=False, keepdim=True)
        return (x - mean) / (var + self.eps).sqrt() * self.g + self.b


@bug("norm axis", "https://github.com/lucidrains/segformer-pytorch/issues/7", AXIS, image(16))
def segformer_instance_norm(broken):
    def norm(dim):
        return nn.InstanceNorm2d(dim) if broken else ChannelNorm(dim)

    class Attention(nn.Module):
        def __init__(self, dim, heads=2):
            super().__init__()
            self.heads = heads
            self.to_q, self.to_kv = nn.Conv2d(dim, dim, 1), nn.Conv2d(dim, 2 * dim, 2, 2)
            self.to_out = nn.Conv2d(dim, dim, 1)

        def forward(self, x):
            h, w = x.shape[-2:]
            q = split_heads(self.to_q(x).flatten(2).transpose(1, 2), self.heads)
            k, v = (
                split_heads(t.flatten(2).transpose(1, 2), self.heads)
                for t in self.to_kv(x).chunk(2, 1)
            )
            out = merge_heads(softmax_attention(q, k, v)).transpose(1, 2)
            return self.to_out(out.unflatten(2, (h, w)))

    class MixFeedForward(nn.Sequential):
        def __init__(self, dim):
            super().__init__(
                nn.Conv2d(dim, 64, 1),
                nn.Conv2d(64, 64, 3, padding=1, groups=64),
                nn.GELU(),
                nn.Conv2d(64, dim, 1),
            )

    class Segformer(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.stem = nn.Conv2d(3, dim, 3, padding=1)
            self.attentions = nn.ModuleList([Attention(dim) for _ in range(3)])
            self.feeds = nn.ModuleList([MixFeedForward(dim) for _ in range(3)])
            self.norms = nn.ModuleList([norm(dim) for _ in range(6)])
            self.norm, self.head = norm(dim), nn.Conv2d(dim, 4, 1)

        def forward(self, x):
            x = self.stem(x)
            for i, (attention, feed) in enumerate(zip(self.attentions, self.feeds, strict=True)):
                x = x + attention(self.norms[2 * i](x))
                x = x + feed(self.norms[2 * i + 1](x))
            return self.head(self.norm(x))

    return Segformer()


@bug(
    "norm axis",
    "https://github.com/tensorflow/addons/issues/751",
    AXIS + " (groups mix pixels and channels)",
    image(16),
)
def addons_group_norm_reshape(broken):
    class GroupNorm(nn.Module):
        """GroupNorm of (batch, height, width, channels)."""

        def __init__(self, groups, dim, eps=1e-3):
            super().__init__()
            self.groups, self.eps = groups, eps
            self.gamma, self.beta = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

        def forward(self, x):
            n, h, w, c = x.shape
            if broken:
                y, axes = x.reshape(n, self.groups, h, w, c // self.groups), (2, 3, 4)
            else:
                y, axes = x.reshape(n, h, w, self.groups, c // self.groups), (1, 2, 4)
            mean, var = y.mean(axes, keepdim=True), y.var(axes, unbiased=False, keepdim=True)
            y = (y - mean) / torch.sqrt(var + self.eps)
            return y.reshape(n, h, w, c) * self.gamma + self.beta

    class Block(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.norm1, self.norm2 = GroupNorm(8, dim), GroupNorm(8, dim)
            self.conv1, self.conv2 = (
                nn.Conv2d(dim, dim, 3, padding=1),
                nn.Conv2d(dim, dim, 3, padding=1),
            )

        def forward(self, x):
            y = self.conv1(F.relu(self.norm1(x)).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            y = self.conv2(F.relu(self.norm2(y)).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            return x + y

    class Net(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.stem, self.blocks = (
                nn.Conv2d(3, dim, 3, padding=1),
                nn.ModuleList([Block() for _ in range(3)]),
            )
            self.norm, self.head = GroupNorm(8, dim), nn.Linear(dim, 10)

        def forward(self, x):
            x = self.stem(x).permute(0, 2, 3, 1)
            for block in self.blocks:
                x = block(x)
            return self.head(F.relu(self.norm(x)).mean((1, 2)))

    return Net()


@bug(
    "norm axis",
    "https://github.com/UpStride/classification-api/pull/12",
    AXIS + " (width instead of channels)",
    image(16),
)
def upstride_batch_norm_axis(broken):
    class BatchNorm(nn.Module):
        def __init__(self, dim, width=16):
            super().__init__()
            self.bn = nn.BatchNorm2d(width if broken else dim)

        def forward(self, x):
            if broken:  # axis=-1, although the channels come first
                return self.bn(x.transpose(1, 3)).transpose(1, 3)
            return self.bn(x)

    class Inverted(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.expand, self.project = (
                nn.Conv2d(dim, 64, 1, bias=False),
                nn.Conv2d(64, dim, 1, bias=False),
            )
            self.depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False)
            self.bn1, self.bn2, self.bn3 = BatchNorm(64), BatchNorm(64), BatchNorm(dim)

        def forward(self, x):
            y = F.relu6(self.bn1(self.expand(x)))
            y = F.relu6(self.bn2(self.depthwise(y)))
            return x + self.bn3(self.project(y))

    class MobileNet(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.stem, self.bn = nn.Conv2d(3, dim, 3, padding=1), BatchNorm(dim)
            self.blocks = nn.Sequential(*(Inverted(dim) for _ in range(3)))
            self.last, self.bn_last = nn.Conv2d(dim, 64, 1), BatchNorm(64)
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            x = self.blocks(F.relu6(self.bn(self.stem(x))))
            return self.head(F.relu6(self.bn_last(self.last(x))).mean((2, 3)))

    return MobileNet()


@bug(
    "missing residual",
    "https://github.com/znxlwm/UGATIT-pytorch/issues/32",
    "error or warning: the blocks with adaptive norms have no skip connection",
    image(16),
)
def ugatit_adaptive_block(broken):
    class AdaptiveNorm(nn.Module):
        def __init__(self, dim, eps=1e-5):
            super().__init__()
            self.eps, self.rho = eps, nn.Parameter(torch.full((1, dim, 1, 1), 0.9))

        def forward(self, x, gamma, beta):
            own = (x - x.mean((2, 3), keepdim=True)) / (
                x.var((2, 3), keepdim=True) + self.eps
            ).sqrt()
            layer = (x - x.mean((1, 2, 3), keepdim=True)) / (
                x.var((1, 2, 3), keepdim=True) + self.eps
            ).sqrt()
            out = self.rho * own + (1 - self.rho) * layer
            return out * gamma[:, :, None, None] + beta[:, :, None, None]

    class Plain(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.block = nn.Sequential(
                nn.Conv2d(dim, dim, 3, padding=1, bias=False),
                nn.InstanceNorm2d(dim),
                nn.ReLU(),
                nn.Conv2d(dim, dim, 3, padding=1, bias=False),
                nn.InstanceNorm2d(dim),
            )

        def forward(self, x):
            return x + self.block(x)

    class Adaptive(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.conv1, self.conv2 = (
                nn.Conv2d(dim, dim, 3, padding=1, bias=False) for _ in range(2)
            )
            self.norm1, self.norm2 = AdaptiveNorm(dim), AdaptiveNorm(dim)

        def forward(self, x, gamma, beta):
            out = F.relu(self.norm1(self.conv1(x), gamma, beta))
            out = self.norm2(self.conv2(out), gamma, beta)
            return out if broken else out + x

    class Generator(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.stem, self.down = (
                nn.Conv2d(3, dim, 3, padding=1),
                nn.ModuleList([Plain(dim) for _ in range(3)]),
            )
            self.fc = nn.Sequential(nn.Linear(dim, dim), nn.ReLU())
            self.gamma, self.beta = nn.Linear(dim, dim), nn.Linear(dim, dim)
            self.up, self.out = (
                nn.ModuleList([Adaptive(dim) for _ in range(3)]),
                nn.Conv2d(dim, 3, 3, padding=1),
            )

        def forward(self, x):
            x = self.stem(x)
            for block in self.down:
                x = block(x)
            style = self.fc(x.mean((2, 3)))
            gamma, beta = self.gamma(style), self.beta(style)
            for block in self.up:
                x = block(x, gamma, beta)
            return torch.tanh(self.out(x))

    return Generator()


@bug(
    "layers without effect",
    "https://github.com/shaohua0116/Multiview2Novelview/issues/11",
    "error or warning: the first convolution of a block has no effect, its output is overwritten",
    image(16),
)
def multiview_first_convolution(broken):
    class Residual(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.res1, self.res2 = (
                nn.Conv2d(dim, dim, 3, padding=1),
                nn.Conv2d(dim, dim, 3, padding=1),
            )
            self.bn1, self.bn2 = nn.BatchNorm2d(dim), nn.BatchNorm2d(dim)

        def forward(self, x):
            y = F.leaky_relu(self.bn1(self.res1(x)))
            y = self.bn2(self.res2(x if broken else y))
            return F.leaky_relu(y + x)

    class Flow(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.stem, self.blocks = (
                nn.Conv2d(3, dim, 3, padding=1),
                nn.Sequential(*(Residual(dim) for _ in range(4))),
            )
            self.out = nn.Conv2d(dim, 2, 3, padding=1)

        def forward(self, x):
            return self.out(self.blocks(F.leaky_relu(self.stem(x))))

    return Flow()
