"""Pictures for reports: one style, as SVG whose text does not change from run to run."""

import io
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

_STYLE: Any = {"svg.fonttype": "none", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
_Args = ParamSpec("_Args")


def as_svg(name: str) -> Callable[[Callable[_Args, Figure]], Callable[_Args, str]]:
    """Makes a function that draws a figure give it as SVG; `name` goes into what its parts are called by."""

    def decorate(make: Callable[_Args, Figure]) -> Callable[_Args, str]:
        @wraps(make)
        def draw(*args: _Args.args, **named: _Args.kwargs) -> str:
            out = io.StringIO()
            with plt.rc_context(_STYLE | {"svg.hashsalt": name}):
                figure = make(*args, **named)
                figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
                plt.close(figure)
            return out.getvalue()

        return draw

    return decorate
