"""An adapter: how a network that unmask does not know becomes a model that it decodes.

`python docs/examples/adapter.py` decodes with E-SMC and checks the laws that the engine relies on. The weights are
random, so the text makes no sense; everything else is as it would be with a trained network.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unmask import Recipe, decode
from unmask.models import Head
from unmask.models.laws import check
from unmask.models.text import Characters
from unmask.state import State, Vocab

ALPHABET = "abcdefghijklmnopqrstuvwxyz "
MASK = len(ALPHABET)


class Encoder(nn.Module):
    """Your network. Every position sees all others; the vocabulary is applied outside, by `Head`."""

    def __init__(self, tokens: int = MASK + 1, width: int = 64, limit: int = 128) -> None:
        super().__init__()
        self.embed, self.place, self.out = (
            nn.Embedding(tokens, width),
            nn.Embedding(limit, width),
            nn.Linear(width, tokens),
        )
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor, places: Tensor, padding: Tensor) -> Tensor:  # [R, L] each -> [R, L, D]
        return self.layers(self.embed(tokens) + self.place(places), src_key_padding_mask=padding)


@dataclass(frozen=True, eq=False)
class Adapter:
    """The network as a `Denoiser`: what the engine asks for, by these names."""

    network: Encoder
    head: Head
    device: torch.device
    limit: int  # the longest canvas; None: any
    name: str = "encoder"
    vocab: Vocab = Vocab(mask=MASK)  # a model with an EOS says so here: Vocab(mask, eos=(id,))
    tokenizer: Characters = Characters(ALPHABET)  # anything with encode and decode
    cost: int = 1  # rows through the network for one row asked
    timed: bool = False  # whether it reads state.time

    def look(self, state: State, rows: Tensor) -> tuple[Tensor, None]:
        """Hidden states [R, L, D] of these rows, and no cache. Row i predicts token i."""
        # Rows are padded on the left: nobody may see the padding, and places count from the first real token.
        padding, places = ~state.attend[rows], state.columns[rows].clamp(min=0)
        return self.network(state.tokens[rows], places, padding), None


def adapt(network: Encoder) -> Adapter:
    """A network, ready to decode. The mask is never an answer, so it is no part of the distribution."""
    head = Head(MASK + 1, network.out.weight, network.out.bias, absent=(MASK,))
    return Adapter(network, head, network.out.weight.device, limit=network.place.num_embeddings)


if __name__ == "__main__":
    network, generator = Encoder().eval().requires_grad_(False), torch.Generator().manual_seed(0)
    for parameter in network.parameters():  # a real one would be loaded
        nn.init.normal_(parameter, std=0.3, generator=generator)
    model = adapt(network)
    recipe = Recipe(search="smc", particles=4, every=2, sampler="uniform", temperature=1.0, length=16)
    result = decode(model, "unmask ", recipe=recipe)
    print(f"{result.text!r} with a path entropy of {result.path_entropy:.3f} bits")
    for verdict in (verdicts := check(model)):
        print(f"{verdict.law}: {verdict.held} ({verdict.detail})")
