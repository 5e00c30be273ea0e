"""An adapter: how a network that unmask does not know becomes a model that it decodes.

`python docs/examples/adapter.py` decodes with E-SMC and checks the laws that the engine relies on. The weights are
random, so the text makes no sense; everything else is as it would be with a trained network.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unmask import Recipe, decode
from unmask.core.state import State, Vocab
from unmask.models import Head
from unmask.models.laws import check
from unmask.models.tokenizers import Characters

ALPHABET, LIMIT = "abcdefghijklmnopqrstuvwxyz ", 128
MASK = len(ALPHABET)


class Encoder(nn.Module):
    """Your network. Every position sees all others; `out` is applied by unmask, and only where somebody asks."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(MASK + 1, width), nn.Embedding(LIMIT, width)
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.out = nn.Linear(width, MASK + 1)

    def forward(self, tokens: Tensor, places: Tensor, padding: Tensor) -> Tensor:  # [R, L] each -> [R, L, D]
        return self.layers(self.embed(tokens) + self.place(places), src_key_padding_mask=padding)


@dataclass(frozen=True, eq=False)
class Adapter:
    """The network as a `Denoiser`: the engine asks for these names."""

    network: Encoder
    head: Head  # hidden states -> logits
    name: str = "encoder"
    vocab: Vocab = Vocab(mask=MASK)  # with an EOS: Vocab(mask, eos=(id,))
    tokenizer: Characters = Characters(ALPHABET)  # anything with encode and decode
    device: torch.device = torch.device("cpu")  # where the weights are
    limit: int | None = LIMIT  # the longest canvas; None: any
    cost: int = 1  # rows through the network for one row asked
    timed: bool = False  # whether the answer depends on state.time

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, None]:
        """Hidden states [R, L, D] of these rows, and no cache. Row i predicts token i."""
        # Rows are padded on the left. Places count from the first real token, and nobody sees the padding.
        return self.network(state.tokens[rows], state.columns[rows].clamp(min=0), ~state.attend[rows]), None


if __name__ == "__main__":
    network, generator = Encoder().eval().requires_grad_(False), torch.Generator().manual_seed(0)
    for parameter in network.parameters():  # yours would be loaded
        nn.init.normal_(parameter, std=0.3, generator=generator)
    # The mask is never an answer: it is absent from the distribution.
    model = Adapter(network, Head(MASK + 1, network.out.weight, network.out.bias, absent=(MASK,)))
    result = decode(model, "unmask ", recipe=Recipe(search="smc", particles=4, temperature=1.0, length=16))
    print(f"{result.text!r} with a path entropy of {result.path_entropy:.3f} bits")
    print(*(verdicts := check(model)), sep="\n")
