"""Hatch's build hook: compiles the native kernels beside this file for an editable install, else into the wheel."""

import runpy
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent


class NativeHook(BuildHookInterface[Any]):
    """Adds the library, or the reason why there is none, to what hatch builds."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # Hatch loads this file by its path, so nothing beside it can be imported by name.
        build = runpy.run_path(str(HERE / "build.py"))["build"]
        if version == "editable":
            build(HERE)
            return
        self._folder = tempfile.TemporaryDirectory()
        made = build(Path(self._folder.name))
        build_data["force_include"][str(made)] = f"devices/cpu/native/{made.name}"
        if made.suffix == ".so":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()
