"""The errors users of core meet.

CoreError
 |-- ConfigError      what was asked for cannot be had (flags, files, models, devices)
 |-- PluginError      a plugin is broken, too new, too old, or broke the contract
 |-- RequestError     one request is wrong; the server answers 400
 |-- CapacityError    one request came when there was no room; 429, or 503 when draining
 `-- DeviceError      the device or a kernel failed while running

A message names the value, the limit and the remedy. `assert` guards our own invariants only.
"""


class CoreError(Exception):
    """Base of every error that core raises on purpose."""


class ConfigError(CoreError):
    """What was asked for cannot be had; nothing was started."""


class PluginError(CoreError):
    """A plugin failed to load, has the wrong API version, or broke a rule of the contract."""


class RequestError(CoreError):
    """One request is wrong.

    `param` is the field at fault, or None when the request as a whole is.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class CapacityError(CoreError):
    """There is no room for this request now.

    `retry_after_s` is when to try again; None means that the engine takes no more requests.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeviceError(CoreError):
    """The device or one of its kernels failed while running a step."""
