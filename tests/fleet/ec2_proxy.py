"""What moto leaves out of EC2, and what goes wrong on the way there.

Stands between the SDK and moto's server. Client tokens are honoured as Amazon does: the same token
with the same parameters is the same machine, with others an error, and another error once its
machine has ended. Replies are lost, calls refused, and machines seen late, when a test says so.
"""

import http.client
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl
from xml.etree import ElementTree

ERROR = (
    "<Response><Errors><Error><Code>{code}</Code><Message>said the proxy</Message></Error>"
    "</Errors><RequestID>r</RequestID></Response>"
)
Answer = tuple[int, dict[str, str], bytes]


@dataclass(kw_only=True)
class Proxy:
    """The proxy, and how it behaves."""

    upstream: int
    """moto's port."""
    port: int = 0
    lost: list[str] = field(default_factory=list)
    """Actions of which one reply each is lost, after they have happened."""
    refused: list[tuple[str, int, str]] = field(default_factory=list)
    """Action, status and code with which one call each is refused; with a `+`, a later page."""
    exhausted: set[str] = field(default_factory=set)
    """Instance types of which none is left."""
    broken: list[tuple[str, int, str]] = field(default_factory=list)
    """The same, but after it has happened."""
    told: dict[str, str] = field(default_factory=dict)
    """What is answered to actions in moto's stead, as it stands here."""
    rejection: str = ""
    """What every call is refused with."""
    hidden_s: float = 0.0
    """How long new machines are not seen."""
    persistent: bool = False
    """Whether spot requests make machines again until they are cancelled, as after a stop."""
    cancelled: set[str] = field(default_factory=set)
    calls: list[dict[str, str]] = field(default_factory=list)
    """Every call that came, but for its signature."""
    heads: list[Mapping[str, str]] = field(default_factory=list)
    """The headers of every call, signature included."""
    tokens: dict[str, tuple[dict[str, str], Answer, str]] = field(default_factory=dict)
    born: dict[str, float] = field(default_factory=dict)
    spot: set[str] = field(default_factory=set)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def url(self) -> str:
        """Tell where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def called(self, action: str) -> list[dict[str, str]]:
        """List the calls of one kind that came."""
        return [call for call in self.calls if call.get("Action") == action]

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer | None:
        """Answer one call; nothing means that the connection is closed."""
        text = body.decode(errors="replace")
        is_json = text.startswith("{")
        call = {"Json": text} if is_json else dict(parse_qsl(text, keep_blank_values=True))
        action = call.get("Action", headers.get("X-Amz-Target", "").rpartition(".")[2])
        with self.lock:
            self.calls.append({**call, "Action": action})
            self.heads.append(headers)
            page = f"{action}+" if "NextToken" in call else action
            for one in self.refused:
                if one[0] == page:
                    self.refused.remove(one)
                    return refusal(one[1], one[2])
            done = self._done(action, call, path, headers, body)
            for one in self.broken:
                if one[0] == action:
                    self.broken.remove(one)
                    return refusal(one[1], one[2])
            if action in self.lost:
                self.lost.remove(action)
                return None
            return done

    def _done(
        self, action: str, call: dict[str, str], path: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        if self.rejection:
            return 401, {"Content-Type": "text/xml"}, self.rejection.encode()
        if action in self.told:
            text = self.told[action]
            kind = "application/x-amz-json-1.1" if text.startswith("{") else "text/xml"
            return 200, {"Content-Type": kind}, text.encode()
        if action == "RunInstances" and "ClientToken" in call:
            return self._run(call, path, headers, body)
        if action == "CancelSpotInstanceRequests":
            self.cancelled |= set(call.values())
            return 200, {"Content-Type": "text/xml"}, b"<CancelSpotInstanceRequestsResponse/>"
        if action in {"DescribeInstances", "TerminateInstances"}:
            answer = self._seen(call, path, headers, body)
            if action == "TerminateInstances" and answer[0] == 200:
                self._come_back(set(call.values()), path, headers)
            return answer
        return self._forwarded(path, headers, body)

    def _come_back(self, ended: set[str], path: str, headers: Mapping[str, str]) -> None:
        """Make a machine again, without tags, if its spot request was not cancelled."""
        for instance in ended & self.spot if self.persistent else ():
            if _request_of(instance) not in self.cancelled:
                body = "Action=RunInstances&Version=2016-11-15&ImageId=ami-12c6146b"
                body += "&InstanceType=m5.large&MinCount=1&MaxCount=1"
                self._forwarded(path, headers, body.encode())

    def _run(
        self, call: dict[str, str], path: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        if call.get("InstanceType") in self.exhausted:
            return refusal(500, "InsufficientInstanceCapacity")
        token = call["ClientToken"]
        if token in self.tokens:
            before, answer, instance = self.tokens[token]
            if before != call:
                return refusal(400, "IdempotentParameterMismatch")
            if self._state(instance, path, headers) in {"shutting-down", "terminated"}:
                return refusal(400, "IdempotentInstanceTerminated")
            return answer
        answer = self._forwarded(path, headers, body)
        (instance,) = _texts(answer, "instanceId") or [""]
        if instance:
            self.tokens[token] = (call, answer, instance)
            self.born[instance] = time.monotonic()
            if call.get("InstanceMarketOptions.MarketType") == "spot":
                self.spot.add(instance)
        return answer

    def _state(self, instance: str, path: str, headers: Mapping[str, str]) -> str:
        body = f"Action=DescribeInstances&Version=2016-11-15&InstanceId.1={instance}".encode()
        (state,) = _texts(self._forwarded(path, headers, body), "instanceState/{*}name")
        return state

    def _seen(
        self, call: dict[str, str], path: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        young = time.monotonic() - self.hidden_s
        hidden = {instance for instance, born in self.born.items() if born > young}
        if hidden & set(call.values()):
            return refusal(400, "InvalidInstanceID.NotFound")
        status, said, text = self._forwarded(path, headers, body)
        if status != 200:
            return status, said, text
        tree = ElementTree.fromstring(text)
        for item in tree.findall("{*}reservationSet/{*}item/{*}instancesSet/{*}item"):
            instance = item.findtext("{*}instanceId", "")
            if instance in self.spot:
                space = item.tag.rpartition("}")[0] + "}"
                name = f"{space}spotInstanceRequestId"
                ElementTree.SubElement(item, name).text = _request_of(instance)
        for reservations in tree.findall("{*}reservationSet"):
            for item in list(reservations):
                if {one.text for one in item.iter() if one.tag.endswith("instanceId")} & hidden:
                    reservations.remove(item)
        return status, said, ElementTree.tostring(tree)

    def _forwarded(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        try:
            passed = {k: v for k, v in headers.items() if k.lower() != "content-length"}
            connection.request("POST", path, body, passed)
            answer = connection.getresponse()
            kind = answer.getheader("Content-Type", "text/xml")
            return answer.status, {"Content-Type": kind}, answer.read()
        finally:
            connection.close()


def _request_of(instance: str) -> str:
    return f"sir-{instance[2:10]}"


def refusal(status: int, code: str) -> Answer:
    """Write an error as EC2 does."""
    headers = {"Content-Type": "text/xml"}
    if code == "RequestLimitExceeded":
        headers["Retry-After"] = "7"
    return status, headers, ERROR.format(code=code).encode()


def _texts(answer: Answer, name: str) -> list[str]:
    if answer[0] != 200:
        return []
    found = ElementTree.fromstring(answer[2]).findall(f".//{{*}}{name}")
    return [one.text or "" for one in found]


@contextmanager
def proxying(upstream: int) -> Iterator[Proxy]:
    """Listen before moto until the block ends."""
    proxy = Proxy(upstream=upstream)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            answer = proxy.answer(self.path, dict(self.headers.items()), body)
            if answer is None:
                self.close_connection = True
                return
            status, headers, text = answer
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_arguments: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
