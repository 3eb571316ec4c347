"""Finding plugins and choosing a device: every way in which a plugin may be wrong is a reason that is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.config import EngineConfig
from core.engine.build import describe
from core.errors import ConfigError, CoreError, DeviceError, PluginError
from core.plugin import DeviceFacts, Unavailable, hooks, loader
from core.plugin.loader import Candidate, check_api, choose, discover
from tests.plugins import BARE_PLUGIN, install_plugin

Install = Callable[..., Candidate]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    """install(name, old, new): the bare plugin with `old` replaced by `new`, as found."""

    def make(name: str = "bare", old: str = "", new: str = "") -> Candidate:
        assert not old or old in BARE_PLUGIN
        source = BARE_PLUGIN.replace(old, new) if old else BARE_PLUGIN + new
        install_plugin(monkeypatch, tmp_path / name, name, source)
        return find(name)

    return make


def find(name: str) -> Candidate:
    [candidate] = [c for c in discover() if c.name == name]
    return candidate


def reason(candidate: Candidate) -> str:
    assert isinstance(candidate.facts, Unavailable), candidate.facts
    assert "\n" not in candidate.facts.reason
    return candidate.facts.reason


def test_a_plugin_is_found_with_its_distribution(install: Install) -> None:
    candidate = install()
    assert isinstance(candidate.facts, DeviceFacts)
    assert candidate.distribution == "bare_plugin"
    assert candidate.notes == ()
    assert candidate.kernels() == []
    assert choose(discover(), "bare").name == "bare"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("", "import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("", "raise SystemExit('no driver here')", "SystemExit: no driver here"),
        ("", "raise RuntimeError('one\\ntwo')", "RuntimeError: one two"),
        ("", "1 +", "SyntaxError"),
        ("return DeviceFacts(", "raise OSError('libwarp.so: absent')\n        return dict(", "OSError: libwarp"),
        ("return DeviceFacts(", "return dict(", "probe returned {'name': 'bare'"),
        ('name="bare"', 'name="other"', "states name = 'other': it must be bare, as its entry point is"),
        ('dtypes=("float32",)', "dtypes=()", "states dtypes = (): it must be some of float32, bfloat16, float16"),
        ('dtypes=("float32",)', 'dtypes=("fp8",)', "states dtypes = ('fp8',)"),
        ("count=1", "count=0", "states count = 0: it must be at least 1"),
        ("implicit=False", "max_depth=2", "states max_depth = 2: it must be 0 or 1"),
        ("implicit=False", "peaks=__import__('core').plugin.Peaks(float32=0.0)", "it must be above 0 each, or None"),
        ("return Bare()", "return Bare", "plugin bare has no core_device hook that returns a Device"),
        ("@hookimpl", "", "plugin bare has no core_device hook that returns a Device"),
        ("def synchronize", "def halt", "TypeError: Can't instantiate abstract class Bare"),
        ("", "@hookimpl\ndef core_devcie():\n    pass", "unknown hook 'core_devcie'"),
        ("", "@hookimpl\ndef core_kernels(fatcs):\n    return []", "fatcs"),
        ("API = (1, 0)", "", "plugin bare declares API = None: it must be (major, minor), such as (1, 0)"),
        ("API = (1, 0)", "API = 1", "plugin bare declares API = 1: it must be (major, minor)"),
        ("API = (1, 0)", "API = '1.0'", "plugin bare declares API = '1.0'"),
        ("API = (1, 0)", "API = (1, 0, 0)", "plugin bare declares API = (1, 0, 0)"),
        ("API = (1, 0)", "API = (2, 0)", "was written for API 2, and this core speaks 1: update core"),
        ("API = (1, 0)", "API = (-1, 0)", "was written for API -1, and this core speaks 1: update the plugin"),
    ],
)
def test_what_is_wrong_is_kept_and_shown(install: Install, old: str, new: str, words: str) -> None:
    candidate = install("bare", old, new)
    assert words in reason(candidate)
    with pytest.raises(PluginError) as error:
        choose([candidate, HOST], "bare")
    assert str(error.value) == f"device bare cannot be used: {reason(candidate)}"
    # Nobody asked for it: others are used.
    assert choose([candidate, HOST], None).name == "cpu"


def test_buckets_must_ascend(install: Install) -> None:
    candidate = install("bare", "implicit=False", "shapes=__import__('core').plugin.ShapePolicy(tokens=(16, 4))")
    assert "it must be sizes above 0 in ascending order" in reason(candidate)


def test_an_entry_point_must_name_a_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_plugin(monkeypatch, tmp_path, "bare", BARE_PLUGIN)
    (tmp_path / "bare_plugin-1.0.dist-info" / "entry_points.txt").write_text(
        "[core.devices]\nbare = bare_plugin:Bare\n"
    )
    assert reason(find("bare")) == "entry point bare names bare_plugin:Bare: it must name a module"


def test_unavailable_is_an_answer(install: Install) -> None:
    new = "from core.plugin import Unavailable; return Unavailable('no chip in slot 3')\n        dict("
    assert reason(install("bare", "return DeviceFacts(", new)) == "no chip in slot 3"


@pytest.mark.parametrize("api", [(1, 0), (1, 99), (0, 4), [1, 0]])
def test_this_major_version_and_the_one_before_are_spoken(api: object) -> None:
    check_api("x", api)


@pytest.mark.parametrize("major", [1, 2, 3, 7])
def test_versions_move_on_with_core(monkeypatch: pytest.MonkeyPatch, major: int) -> None:
    monkeypatch.setattr(hooks, "API", (major, 2))
    check_api("x", (major, 9))
    check_api("x", (major - 1, 9))
    with pytest.raises(PluginError, match=f"API {major + 1}, and this core speaks {major}: update core"):
        check_api("x", (major + 1, 0))
    with pytest.raises(PluginError, match=f"API {major - 2}, and this core speaks {major}: update the plugin"):
        check_api("x", (major - 2, 0))


# Choosing


def here(name: str, **facts: Any) -> Candidate:
    defaults = {"torch_device_type": name, "arch": "", "count": 1, "memory_bytes": 1, "dtypes": ("float32",)}
    return Candidate(name, f"{name}-dist", DeviceFacts(name=name, **{**defaults, **facts}))


HOST = here("cpu", accelerator=False)
SIMULATOR = here("sim", implicit=False)
BROKEN = Candidate("broken", "broken-dist", Unavailable("no driver"))


def test_an_accelerator_comes_before_the_host() -> None:
    assert choose([HOST, here("warp")], None).name == "warp"
    assert choose([HOST, BROKEN], None).name == "cpu"


def test_two_accelerators_need_a_choice() -> None:
    found = [here("warp"), HOST, here("weft")]
    with pytest.raises(ConfigError, match="devices warp and weft are both here: choose with --device warp"):
        choose(found, None)
    assert choose(found, "weft").name == "weft"


def test_a_claim_outranks_the_plugin_of_that_name() -> None:
    claiming = here("warp", claims=("weft",))
    assert choose([HOST, here("weft"), claiming], None).name == "warp"
    assert choose([HOST, here("weft"), claiming], "weft").name == "weft", "asked for is asked for"
    unavailable = Candidate("warp", "d", Unavailable("no driver"))
    assert choose([HOST, here("weft"), unavailable], None).name == "weft"


def test_a_device_that_is_not_implicit_is_never_chosen_unasked() -> None:
    assert choose([SIMULATOR, HOST], None).name == "cpu"
    assert choose([SIMULATOR, HOST], "sim").name == "sim"
    # Its claims do not count either.
    assert choose([here("sim", implicit=False, claims=("warp",)), HOST, here("warp")], None).name == "warp"
    with pytest.raises(ConfigError, match="no device is available"):
        choose([SIMULATOR], None)


def test_no_device_at_all_says_why() -> None:
    with pytest.raises(ConfigError, match="no device is available: broken: no driver"):
        choose([BROKEN, SIMULATOR], None)
    with pytest.raises(ConfigError, match=r"no device plugin is installed; install core\[cpu\]"):
        choose([], None)


def test_a_device_asked_for_and_absent() -> None:
    with pytest.raises(ConfigError, match="device warp is not known: choose among broken, cpu, or install the plugin"):
        choose([BROKEN, HOST], "warp")
    with pytest.raises(PluginError, match="device broken cannot be used: no driver"):
        choose([BROKEN, HOST], "broken")


def test_null_and_cpu_are_found_in_tree() -> None:
    found = {c.name: c for c in discover()}
    assert {"cpu", "null"} <= set(found)
    assert all(isinstance(found[name].facts, DeviceFacts) for name in ("cpu", "null"))
    assert choose(found.values(), None).name == "cpu"


# Errors of plugins, in one line


def test_explained_errors_name_what_failed() -> None:
    with pytest.raises(DeviceError, match="device 0: OSError: no such file"), loader.explained(DeviceError, "device 0"):
        raise OSError("no such file")
    with pytest.raises(ConfigError, match=r"^as it was$"), loader.explained(PluginError, "what"):
        raise ConfigError("as it was")


def test_broken_model_plugins_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_plugin(monkeypatch, tmp_path, "rnn", "import no_such_library\n")
    points = tmp_path / "rnn_plugin-1.0.dist-info" / "entry_points.txt"
    points.write_text("[core.models]\nrnn = rnn_plugin\n")
    with pytest.raises(PluginError, match="model plugin rnn cannot be loaded, update or uninstall rnn_plugin: Module"):
        loader.model_specs()


def test_one_architecture_has_one_family(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = "from models.llama import API, core_models\n"
    install_plugin(monkeypatch, tmp_path, "copy", source)
    points = tmp_path / "copy_plugin-1.0.dist-info" / "entry_points.txt"
    points.write_text("[core.models]\ncopy = copy_plugin\n")
    with pytest.raises(PluginError, match="architecture LlamaForCausalLM is described twice: remove one of"):
        loader.model_specs()


def test_failing_to_open_or_to_load_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama_dir: Path
) -> None:
    cases: list[tuple[str, str, type[CoreError], str]] = [
        (
            'return torch.device("cpu")',
            "raise OSError('busy')",
            DeviceError,
            "device bare 0 cannot be started: OSError",
        ),
        (
            "",
            "@hookimpl\ndef core_kernels():\n    import no_lib\n",
            PluginError,
            "kernels of device bare cannot be loaded",
        ),
    ]
    for i, (old, new, kind, words) in enumerate(cases):
        with monkeypatch.context() as patch:
            install_plugin(
                patch, tmp_path / str(i), "bare", BARE_PLUGIN.replace(old, new) if old else BARE_PLUGIN + new
            )
            with pytest.raises(kind, match=words):
                describe(EngineConfig(model=str(tiny_llama_dir), device="bare", fallback="allow"))
