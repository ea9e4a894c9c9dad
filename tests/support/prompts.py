"""Requests for inference, and a policy that reads their prompts and remembers what it gets."""

from __future__ import annotations

import json
from random import Random
from typing import Any, ClassVar

from policies import EndpointState, Outcome, RequestFacts
from policies.endpoint.available import Available
from policies.prompts import Prompt
from tests.support.wireless import Peer, Wireless, sends

READER = "tests.support.prompts:Reader"
USAGE = {"prompt_tokens": 50, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}}


class Reader:
    """Picks the first endpoint that was not tried. What it has got is in its lists."""

    reads_prompts: ClassVar[bool] = True

    def __init__(self, rng: Random) -> None:
        self.prompts: list[Prompt | None] = []
        self.assigned_to: list[str] = []
        self.first_tokens: list[float] = []
        self.outcomes: list[Outcome] = []

        self.memory: memoryview | None = None

    def share_prompts(self, memory: memoryview) -> None:
        self.memory = memory

    def share(self) -> float:
        """Return something of its own: no hook."""
        return 1.0

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        self.prompts.append(facts.prompt)
        return min(available, key=lambda state: (state.id in facts.tried, state.id))

    def assigned(self, state: EndpointState, facts: RequestFacts, now: float) -> None:
        self.assigned_to.append(state.id)

    def first_token(self, state: EndpointState, prompt: Prompt, now: float) -> None:
        self.first_tokens.append(now)

    def observe(self, state: EndpointState, outcome: Outcome, now: float) -> None:
        self.outcomes.append(outcome)


def reader_of(stage: Wireless) -> Reader:
    policy = stage.cluster.router.policy
    assert isinstance(policy, Reader)
    return policy


def inference(endpoints: int = 1, **options: Any) -> Wireless:
    return Wireless(endpoints, **{"kind": "inference", "policy": READER, **options})


CHATS = b"/v1/chat/completions"


def asks(body: bytes, fields: bytes = b"", path: bytes = CHATS) -> bytes:
    """A request with this body."""
    line = b"POST %b HTTP/1.1\r\nHost: a\r\n" % path
    return b"%b%bContent-Length: %d\r\n\r\n%b" % (line, fields, len(body), body)


def chat(*texts: str, **keys: Any) -> bytes:
    """The body of a request for the answer to these messages."""
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": "m", "messages": messages, **keys}).encode()


def asked(stage: Wireless, body: bytes, path: bytes = CHATS) -> tuple[Peer, Peer]:
    """A client that has sent a request to the only worker, and the worker."""
    client = stage.client()
    sends(stage, client, asks(body, path=path))
    return client, stage.workers[-1]


def answer_with_usage() -> bytes:
    body = json.dumps({"usage": USAGE}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
