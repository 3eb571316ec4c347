"""Signatures around a certificate: Ed25519 in a DSSE envelope.

A signature proves who said it, not that it ran.
Source: DSSE v1 protocol (pre-authentication encoding); RFC 8032 (Ed25519).
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from core.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keyid: str
    sig: str


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    payloadType: str
    payload: str
    signatures: list[Signature]


def sign(payload: bytes, keys: list[Path]) -> bytes:
    """An envelope around `payload`, signed with each private key (PEM). Raises: ConfigError for what is no such key."""
    signatures = []
    for path in keys:
        key = private_key(path)
        sig = base64.b64encode(key.sign(_encoded(payload))).decode()
        signatures.append(Signature(_key_id(key.public_key()), sig))
    envelope = Envelope(PAYLOAD_TYPE, base64.b64encode(payload).decode(), signatures)
    return msgspec.json.format(msgspec.json.encode(envelope))


def signers(envelope: bytes, payload: bytes, keys: list[Path]) -> list[str]:
    """Which of these public keys (PEM) signed `payload`, by file name.

    Raises: ValueError for an envelope that is broken, or around something else; ConfigError for what is no key.
    """
    from cryptography.exceptions import InvalidSignature

    try:
        opened = msgspec.json.decode(envelope, type=Envelope)
        inside = base64.b64decode(opened.payload, validate=True)
        given = [base64.b64decode(s.sig, validate=True) for s in opened.signatures]
    except ValueError as error:
        raise ValueError(f"the envelope of signatures cannot be read: {error}") from error
    if opened.payloadType != PAYLOAD_TYPE or inside != payload:
        raise ValueError("the envelope of signatures is around something else than certificate.json")
    found = []
    for path in keys:
        key = _public(path)
        for signature in given:
            try:
                key.verify(signature, _encoded(payload))
            except InvalidSignature:
                continue
            found.append(path.name)
            break
    return found


def _encoded(payload: bytes) -> bytes:
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def private_key(path: Path) -> Ed25519PrivateKey:
    """The key in a PEM file. Raises: ConfigError for what is none."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = _load(path, lambda data: load_pem_private_key(data, None))
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} is not an Ed25519 private key: make one with `openssl genpkey -algorithm ed25519`")
    return key


def _public(path: Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = _load(path, load_pem_public_key)
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path} is not an Ed25519 public key: make one with `openssl pkey -pubout`")
    return key


def _load(path: Path, load: Any) -> Any:
    try:
        return load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"key {path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is not a key in PEM form without password: {error}") from error


def _key_id(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def check_available() -> None:
    """Raises: ConfigError when the library that signs is not installed."""
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError("signatures need the package cryptography: install core[conformance]") from error
