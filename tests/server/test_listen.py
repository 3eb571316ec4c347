"""Where the server listens: TLS, a Unix socket, and what is refused before anything is started."""

import datetime
import ssl
import stat
import time
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from processes import Server, run_core, serve

from server.commands.refused import REFUSED
from server.listen import Address
from tests.shares import quick_of

NULL = ("smollm2", "--device", "null")
BODY = {"model": "smollm2", "prompt": [5000], "max_tokens": 3, "stream": True}


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """A key and a certificate for 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    made = builder.sign(key, hashes.SHA256())
    paths = folder / "key.pem", folder / "cert.pem"
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    paths[0].write_bytes(key.private_bytes(*form))
    paths[1].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return paths


def test_tls(tmp_path: Path) -> None:
    key, certificate = write_certificate(tmp_path)
    trust = ssl.create_default_context(cafile=str(certificate))
    with serve(tmp_path, *NULL, "--ssl-keyfile", str(key), "--ssl-certfile", str(certificate)) as server:
        url = server.base_url.replace("127.0.0.1", "localhost")
        assert url.startswith("https://")
        with httpx.Client(base_url=url, verify=trust) as client:
            assert client.get("/health").status_code == 200
            assert client.post("/v1/completions", json=BODY).text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{server.base_url.replace('https', 'http')}/health")


def test_a_unix_socket(tmp_path: Path) -> None:
    """Also where a server that was killed has left one; it is gone afterwards."""
    path = tmp_path / "core.sock"
    Address(host="", port=0, uds=str(path)).bind().close()
    assert stat.S_ISSOCK(path.stat().st_mode)
    with serve(tmp_path, *NULL, "--uds", str(path)) as server:
        assert server.base_url == f"unix:{path}"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://core") as client:
            assert client.post("/v1/completions", json=BODY).text.endswith("data: [DONE]\n\n")
        taken = run_core("serve", *NULL, "--uds", str(path))
        assert taken.returncode == 2
        assert "--uds" in taken.stderr.splitlines()[-1]
    assert not path.exists()


def refused(*args: str) -> str:
    done = run_core("serve", *NULL, *args)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    return line


def test_a_file_is_not_overwritten_by_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("text")
    assert "--uds" in refused("--uds", str(path))
    assert path.read_text() == "text"


def test_wrong_tls_files(tmp_path: Path) -> None:
    key, certificate = write_certificate(tmp_path)
    assert "go together" in refused("--ssl-keyfile", str(key))
    assert "nothing.pem" in refused("--ssl-keyfile", str(key), "--ssl-certfile", "nothing.pem")
    (tmp_path / "other").mkdir()
    other, _ = write_certificate(tmp_path / "other")
    assert str(other) in refused("--ssl-keyfile", str(other), "--ssl-certfile", str(certificate))


@pytest.mark.parametrize(
    "flag", quick_of(["--enable-lora", "--quantization=fp8", "--speculative_config"], "--quantization=fp8")
)
def test_flags_of_vllm_that_have_no_effect(flag: str) -> None:
    line = refused(flag, "x")
    name = flag.partition("=")[0].replace("_", "-")
    assert line == f"error: {name} is a flag of vLLM that has no effect here: {REFUSED[name]}"


def test_wrong_origins() -> None:
    assert "https://example.org" in refused("--allowed-origins", "[1]")


@pytest.mark.parametrize(
    ("address", "is_local"),
    [
        (Address(host="127.0.0.1", port=0), True),
        (Address(host="localhost", port=0), True),
        (Address(host="::1", port=0), True),
        (Address(host="0.0.0.0", port=0, uds="x"), True),
        (Address(host="0.0.0.0", port=0), False),
        (Address(host="10.1.2.3", port=0), False),
    ],
)
def test_what_only_this_machine_reaches(address: Address, is_local: bool) -> None:
    assert address.is_local is is_local


def test_a_server_without_keys_that_everybody_reaches_says_so(tmp_path: Path, null_server: Server) -> None:
    with serve(tmp_path, *NULL, "--host", "0.0.0.0") as server:
        assert "warning: anybody who reaches 0.0.0.0 may use this server: give --api-key" in server.log.read_text()
    assert "warning" not in null_server.log.read_text()


@pytest.mark.heavy
def test_an_idle_connection_stays_open(null_server: Server) -> None:
    """Longer than the 5 s that httpx keeps it: a client that sends at that moment finds nobody."""
    url = httpx.URL(null_server.base_url)
    connection = HTTPConnection(url.host, url.port)
    for wait_s in (0, 16):
        time.sleep(wait_s)
        connection.request("GET", "/live")
        assert connection.getresponse().read()
    connection.close()
