"""Where the server listens: a bound socket, TCP or Unix. Refuses an address that is taken, and half of a TLS pair."""

import os
import socket
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Address:
    """A Unix socket where `uds` is given, else host and port (0: a free one); TLS where both files are given."""

    host: str
    port: int
    uds: str | None = None
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None

    @property
    def tls(self) -> bool:
        return self.ssl_certfile is not None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.uds is not None or self.host in ("localhost", "::1") or self.host.startswith("127.")

    def check(self) -> None:
        """Raises: ConfigError naming what is wrong with the TLS files."""
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ConfigError("--ssl-keyfile and --ssl-certfile go together: give both, or none")
        if self.ssl_certfile is None:
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"--ssl-certfile {self.ssl_certfile} with --ssl-keyfile {self.ssl_keyfile} cannot be used ({error}): "
                "give a certificate and its key, in PEM"
            ) from None

    def bind(self) -> socket.socket:
        """It refuses connections until somebody listens. Raises: ConfigError when the address cannot be had."""
        return self._bind_unix(Path(self.uds)) if self.uds else self._bind_tcp()

    def _bind_tcp(self) -> socket.socket:
        host, port = self.host, self.port
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}; see --host and --port") from None
        return listener

    def _bind_unix(self, path: Path) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and listener.connect_ex(str(path)):
                path.unlink()  # nobody listens: it is left over from a server that was killed
                listener.close()
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(path))
        except OSError as error:
            listener.close()
            raise ConfigError(f"cannot listen on {path}: {error.strerror or error}; see --uds") from None
        return listener

    def url(self, listener: socket.socket) -> str:
        """As clients name it."""
        if self.uds:
            return f"unix:{os.path.abspath(self.uds)}"
        host, port = listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self.tls else 'http'}://{host}:{port}/v1"

    def clean_up(self) -> None:
        """Take the Unix socket away."""
        if self.uds:
            Path(self.uds).unlink(missing_ok=True)
