"""What is served: the model's names, its limits, and what requests leave out."""

from dataclasses import dataclass

from core.request import SamplingParams
from server.errors import UnknownModelError


@dataclass(frozen=True)
class Served:
    """The first of `names` stands in answers. `root` is what the operator named; `defaults` fill in for clients."""

    names: tuple[str, ...]
    root: str
    max_model_len: int
    defaults: SamplingParams

    def check_model(self, asked: str) -> None:
        """Raises: UnknownModelError when no model of this name is served."""
        if asked not in self.names:
            raise UnknownModelError(asked, self.names)
