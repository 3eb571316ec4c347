"""Forms in which a weight [N, K] is handed to `pack_weight`, by the name that `scheme` has everywhere.

dense   a tensor in the dtype of the activations
q4_1    a `Q41Weight`: 4 bits a weight, and blocks of 32 along K share a scale and a minimum
q8_0    a `Q80Weight`: 8 bits a weight, and blocks of 32 along K share a scale

What `pack_weight` makes of it is read by `linear` of the same provider alone.
"""

from typing import NamedTuple

import torch

BLOCK = 32

Tensors = list[tuple[tuple[int, int], torch.dtype]]


class Q41Weight(NamedTuple):
    """w = scale * code + minimum. As GGUF stores Q4_1, in three tensors.

    codes     [N, K / 2] uint8: of a block's 16 bytes, byte j has the code of weight j in its lower 4 bits, and that
              of weight j + 16 in its upper ones
    scale     [N, K / 32] float16
    minimum   [N, K / 32] float16
    """

    codes: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor

    @staticmethod
    def tensors(n: int, k: int) -> Tensors:
        """Shape and dtype of each tensor of a weight [n, k]."""
        return [((n, k // 2), torch.uint8), *[((n, k // BLOCK), torch.float16)] * 2]

    def rows(self, first: int, last: int) -> "Q41Weight":
        """A view of rows from `first` to `last`, without it."""
        return Q41Weight(*(part[first:last] for part in self))

    def single_codes(self) -> torch.Tensor:
        """[N, K] uint8, 0 to 15."""
        blocks = self.codes.view(len(self.codes), -1, BLOCK // 2)
        return torch.cat([blocks & 15, blocks >> 4], -1).view(len(blocks), -1)

    def dequantised(self) -> torch.Tensor:
        """[N, K] float32."""
        codes = self.single_codes().view(len(self.codes), -1, BLOCK).float()
        wide = codes * self.scale.float()[..., None] + self.minimum.float()[..., None]
        return wide.view(len(codes), -1)


class Q80Weight(NamedTuple):
    """w = scale * code. As GGUF stores Q8_0, in two tensors.

    codes     [N, K] int8
    scale     [N, K / 32] float16
    """

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def tensors(n: int, k: int) -> Tensors:
        """Shape and dtype of each tensor of a weight [n, k]."""
        return [((n, k), torch.int8), ((n, k // BLOCK), torch.float16)]

    def rows(self, first: int, last: int) -> "Q80Weight":
        """A view of rows from `first` to `last`, without it."""
        return Q80Weight(*(part[first:last] for part in self))

    def single_codes(self) -> torch.Tensor:
        """[N, K] int8, -128 to 127."""
        return self.codes

    def dequantised(self) -> torch.Tensor:
        """[N, K] float32."""
        codes = self.codes.view(len(self.codes), -1, BLOCK).float()
        return (codes * self.scale.float()[..., None]).view(self.codes.shape)


Quantised = Q41Weight | Q80Weight

QUANTISED: dict[str, type[Quantised]] = {"q4_1": Q41Weight, "q8_0": Q80Weight}
"""Scheme -> the form of its weights, of all but "dense"."""
