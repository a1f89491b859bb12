"""An issuer of tokens (JWT, RFC 7519), made with the openssl command."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import time
from pathlib import Path
from typing import Any

ISSUER, AUDIENCE = "https://issuer.example", "tensorgate"


class Issuer:
    """An RSA key, and tokens signed with it or pretending to be."""

    def __init__(self, directory: Path) -> None:
        self._key = directory / "issuer.pem"
        self.jwks_file = directory / "jwks.json"
        _openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(self._key))
        modulus = _openssl("rsa", "-in", str(self._key), "-noout", "-modulus").decode().strip().removeprefix("Modulus=")
        jwk = {"kty": "RSA", "kid": "k1", "alg": "RS256", "n": _text(bytes.fromhex(modulus)), "e": "AQAB"}
        self.jwks_file.write_text(json.dumps({"keys": [jwk]}))

    def token(self, scope: str, *, algorithm: str = "RS256", **claims: Any) -> str:
        """A token with claims replaced, or left out where they are None.

        ``HS256`` signs with the public key as if it were a shared secret, ``none`` not at all: what attackers try.
        """
        full = {"iss": ISSUER, "aud": AUDIENCE, "sub": "carol", "exp": int(time.time()) + 600, "scope": scope, **claims}
        parts = [{"alg": algorithm, "kid": "k1"}, {name: value for name, value in full.items() if value is not None}]
        signed = ".".join(_text(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_text(self._signature(signed.encode(), algorithm))}"

    def _signature(self, signed: bytes, algorithm: str) -> bytes:
        if algorithm == "RS256":
            return _openssl("dgst", "-sha256", "-sign", str(self._key), given=signed)
        if algorithm == "HS256":
            return hmac.new(_openssl("rsa", "-in", str(self._key), "-pubout"), signed, hashlib.sha256).digest()
        return b""


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _openssl(*arguments: str, given: bytes = b"") -> bytes:
    return subprocess.run(["openssl", *arguments], input=given, capture_output=True, check=True, timeout=30).stdout
