"""Shared, copied, unused and unregistered layers."""

from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.bugs.residuals import Decoder, causal, feed_forward, two_sequences
from tests.doctor.models.review.case import bug, ids, stream

UNUSED = "error or warning: some layers have no effect on the output (no gradient)"


@bug(
    "shared norm",
    "https://github.com/ml-explore/mlx/issues/1636",
    "warning: one norm is used twice and another one never",
    two_sequences,
)
def mlx_norm_used_twice(broken):
    class DecoderLayer(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.self_attention, self.cross_attention = (
                nn.MultiheadAttention(dim, 4, batch_first=True) for _ in range(2)
            )
            self.ln1, self.ln2, self.ln3 = (nn.LayerNorm(dim) for _ in range(3))
            self.linear1, self.linear2 = nn.Linear(dim, 128), nn.Linear(128, dim)

        def forward(self, x, memory, mask):
            x = self.ln1(x + self.self_attention(x, x, x, attn_mask=mask)[0])
            y = self.cross_attention(x, memory, memory)[0]
            x = self.ln1(x + y) if broken else self.ln2(x + y)
            return self.ln3(x + self.linear2(F.relu(self.linear1(x))))

    return Decoder(DecoderLayer)


@bug(
    "shared norm",
    "https://github.com/allenai/OLMo/issues/222",
    "warning: attention and feed-forward share one norm",
    ids(),
)
def olmo_shared_norm(broken):
    class OlmoSequentialBlock(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.norm = nn.LayerNorm(dim)
            self.ff_norm = self.norm if broken else nn.LayerNorm(dim)
            self.att_proj, self.attn_out = (
                nn.Linear(dim, 3 * dim, bias=False),
                nn.Linear(dim, dim, bias=False),
            )
            self.ff_proj, self.ff_out = (
                nn.Linear(dim, 4 * dim, bias=False),
                nn.Linear(4 * dim, dim, bias=False),
            )

        def forward(self, x):
            q, k, v = (
                t.unflatten(-1, (4, -1)).transpose(1, 2)
                for t in self.att_proj(self.norm(x)).chunk(3, -1)
            )
            att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attn_out(att.transpose(1, 2).flatten(2))
            return x + self.ff_out(F.gelu(self.ff_proj(self.ff_norm(x))))

    class Olmo(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(50, dim), nn.Embedding(12, dim)
            self.blocks = nn.ModuleList([OlmoSequentialBlock(dim) for _ in range(4)])
            self.ln_f = nn.LayerNorm(dim)

        def forward(self, idx):
            x = self.wte(idx) + self.wpe.weight
            for block in self.blocks:
                x = block(x)
            return F.linear(self.ln_f(x), self.wte.weight) * 64**-0.5

    return Olmo()


@bug("layers without effect", "https://github.com/17385/TreeBERT/issues/5", UNUSED, two_sequences)
def treebert_decoder_loop(broken):
    class Decoder(nn.Module):
        def __init__(self, dim=64, n_layers=3):
            super().__init__()
            self.src_embedding, self.tok_embedding, self.pos_embedding = (
                nn.Embedding(50, dim),
                nn.Embedding(50, dim),
                nn.Embedding(12, dim),
            )
            self.layers = nn.ModuleList(
                [nn.TransformerDecoderLayer(dim, 4, 128, batch_first=True) for _ in range(n_layers)]
            )
            self.fc_out = nn.Linear(dim, 50)

        def forward(self, src, trg):
            enc_src = self.src_embedding(src) + self.pos_embedding.weight[: src.size(1)]
            output = trg = self.tok_embedding(trg) + self.pos_embedding.weight[: trg.size(1)]
            for layer in self.layers:
                output = layer(trg if broken else output, enc_src, tgt_mask=causal(trg.size(1)))
            return self.fc_out(output)

    return Decoder()


@bug(
    "shared layers",
    "https://github.com/habla-liaa/encodecmae/issues/3",
    "warning: all layers share one feed-forward",
    stream(),
)
def encodecmae_shared_feed_forward(broken):
    class TransformerLayer(nn.Module):
        def __init__(self, dim, ff_layer):
            super().__init__()
            self.att_layer, self.ff_layer = (
                nn.MultiheadAttention(dim, 4, batch_first=True),
                ff_layer,
            )
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

        def forward(self, x):
            y = self.norm1(x)
            x = x + self.att_layer(y, y, y)[0]
            return x + self.ff_layer(self.norm2(x))

    ff_layer = feed_forward(64)
    layers = [TransformerLayer(64, ff_layer if broken else feed_forward(64)) for _ in range(4)]
    return nn.Sequential(*layers, nn.LayerNorm(64), nn.Linear(64, 16))


@bug(
    "identical layers",
    "https://github.com/pytorch/pytorch/issues/86274",
    "warning: all layers start with the same weights",
    ids(),
)
def torch_encoder_same_parameters(broken):
    class Model(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.emb, self.pos = nn.Embedding(50, dim), nn.Embedding(12, dim)
            layer = nn.TransformerEncoderLayer(dim, 4, 128, batch_first=True)
            self.transformer_encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.head = nn.Linear(dim, 50)
            if not broken:
                for parameter in self.transformer_encoder.parameters():
                    if parameter.dim() > 1:
                        nn.init.xavier_uniform_(parameter)

        def forward(self, idx):
            return self.head(self.transformer_encoder(self.emb(idx) + self.pos.weight))

    return Model()


@bug(
    "unregistered layers",
    "https://github.com/maruya24/pytorch_robotics_transformer/issues/3",
    "error or warning: the layers are in a plain list, their weights are not "
    "parameters of the model",
    ids(),
)
def robotics_transformer_plain_list(broken):
    class Transformer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self._token_emb, self._position_emb = nn.Embedding(50, dim), nn.Embedding(12, dim)
            layers = [
                nn.TransformerEncoderLayer(
                    dim, 4, 128, dropout=0.0, batch_first=True, norm_first=True
                )
                for _ in range(3)
            ]
            self._layers = layers if broken else nn.ModuleList(layers)
            self._norm, self._output_tokens = nn.LayerNorm(dim), nn.Linear(dim, 50)

        def forward(self, idx):
            x = self._token_emb(idx) + self._position_emb.weight
            for layer in self._layers:
                x = layer(x, src_mask=causal(idx.size(1)))
            return self._output_tokens(self._norm(x))

    return Transformer()
