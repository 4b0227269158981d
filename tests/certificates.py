"""Certificates for tests: an authority of their own, and what it signed."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


class Certificates:
    """In a folder: ca.pem, and server.pem and robot.pem with their keys. `robot` is a client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.pem"
        new_key = ("-newkey", "rsa:2048", "-nodes")
        self._openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
        self.sign("server", "localhost", "subjectAltName=DNS:localhost,IP:127.0.0.1")
        self.sign("robot", "robot")

    def sign(self, name: str, subject: str, extra: str = "") -> None:
        """A new key and a certificate for it, in the files of this name."""
        (self.folder / f"{name}.ext").write_text(extra)
        self._openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr"),
            *("-subj", f"/CN={subject}"),
        )
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-out", f"{name}.pem", "-days", "2", "-extfile", f"{name}.ext"),
        )

    def of(self, name: str) -> tuple[str, str]:
        return str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key")

    def settings(self, **more: Path | str) -> dict[str, Path | str]:
        """Of a node that serves TLS with them."""
        cert, key = self.of("server")
        return {"tls_cert": Path(cert), "tls_key": Path(key), **more}

    def client(self, name: str | None = None) -> ssl.SSLContext:
        """What a client connects with, perhaps with a certificate of its own."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if name is not None:
            context.load_cert_chain(*self.of(name))
        return context

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)
