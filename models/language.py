"""Two language models in plain torch: a causal decoder in the manner of GPT, and an encoder in the manner of BERT.

Both are stacks of the same block; what differs is which tokens a token may look at, and what comes out at the end.
Shapes: B sequences in a batch, T tokens in a sequence, W the width of the model.
"""

import torch
from torch import nn
from torch.nn import functional as F

#: Other lengths of sequence that these models are meant for.
SHAPES = [{"sequence_length": 40}, {"sequence_length": 1}]


class Attention(nn.Module):
    """Multi-head self-attention: (B, T, W) to (B, T, W)."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        if width % heads:
            raise ValueError(f"width={width} cannot be split among heads={heads}; make it a multiple")
        self.heads = heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, mask=None):
        """Attend to the positions where ``mask`` (B, 1, 1, T) is True; without a mask, to no later position."""
        batch, length, width = x.shape
        heads = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, heads, T, W / heads)
        y = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask is None,
        )
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention, then a two-layer perceptron; each normalises its input and adds to it: (B, T, W) to (B, T, W)."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        x = x + self.dropout(self.attention(self.norm1(x), mask))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Embedding(nn.Module):
    """What each token is plus where it stands: (B, T) of token ids to (B, T, W)."""

    def __init__(self, vocabulary, context, width):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.token(tokens) + self.position(positions)


class Decoder(nn.Module):
    """Token ids (B, T) to the logits of each next token (B, T, vocabulary)."""

    def __init__(self, layers, width, heads, vocabulary, context, dropout):
        super().__init__()
        self.embedding = Embedding(vocabulary, context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.token.weight  # tied: one matrix reads tokens and writes them
        self.apply(init_weights)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Encoder(nn.Module):
    """Token ids and mask, both (B, T), to a vector for each token (B, T, W) and for each sequence (B, W)."""

    def __init__(self, layers, width, heads, vocabulary, context, dropout):
        super().__init__()
        self.embedding = Embedding(vocabulary, context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.pool = nn.Linear(width, width)
        self.apply(init_weights)

    def forward(self, tokens, mask):
        """``mask`` is True (or 1) at tokens and False (or 0) at padding."""
        real = mask.bool()
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, real[:, None, None, :])
        x = self.norm(x)
        weights = real.unsqueeze(-1).to(x.dtype)
        mean = (x * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)  # over the real tokens only
        return {"tokens": x, "pooled": torch.tanh(self.pool(mean))}


def init_weights(module):
    """Initialise one layer as GPT and BERT do; torch's embeddings of variance 1 would drown the blocks' part."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


MODELS = {"gpt": Decoder, "encoder": Encoder}


def make_model(arch="gpt", layers=4, width=256, heads=8, vocabulary=8192, context=256, dropout=0.0, mode="inference"):
    """Return the model ``arch`` (gpt or encoder) for sequences of at most ``context`` tokens."""
    if arch not in MODELS:
        raise ValueError(f"arch={arch!r} is not offered. Valid choices: {', '.join(MODELS)}")
    model = MODELS[arch](layers, width, heads, vocabulary, context, dropout)
    return model.train(mode == "training")


def example_inputs(arch="gpt", vocabulary=8192, context=256, sequence_length=128, batch_size=2):
    """Return random token ids (B, T); for the encoder also a mask (B, T) under which each sequence ends in padding."""
    if sequence_length > context:
        raise ValueError(f"sequence_length={sequence_length} exceeds context={context}, the most the model can take")
    tokens = torch.randint(1, vocabulary, (batch_size, sequence_length))
    if arch == "gpt":
        return (tokens,)
    lengths = torch.randint((sequence_length + 1) // 2, max(sequence_length, 2), (batch_size, 1))
    mask = torch.arange(sequence_length) < lengths
    return (tokens.where(mask, 0), mask)  # token 0 is padding
