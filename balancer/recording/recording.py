"""Start and stop of recordings, by the configuration or by /-/record.

While it is off a recording costs the data path nothing. Only the configuration may set the path: an admin request must
not be able to write to any file.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict
from functools import partial
from math import inf
from threading import Thread
from typing import Any, Final, Protocol

from balancer.cluster.cluster import Cluster
from balancer.config.schema.policy_spec import PolicySpec
from balancer.config.schema.sections import RecordConfig
from balancer.errors import CommandRefused, LogFailed
from balancer.http.h1.request_fields import RequestFields
from balancer.http.h1.request_head import KeyOf, Request
from balancer.log.access_log import wall_offset
from balancer.log.formats import Entry, forwarded_for
from balancer.log.output import complain
from balancer.recording.recorder import RecordCounts, Recorder, RecordingMetadata
from policies.clock import Clock

NONE: Final = RecordConfig()

SALT: Final = secrets.token_bytes(16)
"""Salt of all recordings without one of their own, with their number. Processes, which are forked, have the same."""


class RecordedCluster(Protocol):
    """What a recording needs of the control plane: the cluster, what routes its requests, and the running recorder."""

    cluster: Cluster
    policy: PolicySpec
    recorder: Recorder | None

    def set_recorder(self, recorder: Recorder | None) -> None: ...


class ClusterRecording:
    """The recording of one cluster. `recorder` is that of the last recording, also after its end."""

    def __init__(self, control_plane: RecordedCluster, clock: Clock) -> None:
        self._control_plane = control_plane
        self._clock = clock
        self._config = NONE
        self._key: object = None
        self._begun = 0
        self._until = inf
        self.recorder: Recorder | None = None

    @property
    def is_on(self) -> bool:
        """Whether requests are recorded now."""
        return self._control_plane.recorder is not None

    def apply(self, config: RecordConfig, key: object = None) -> None:
        """Apply a configuration. A recording started by an admin request continues, unless the path has changed. With
        another `key`, the configuration of request keys, a new one continues it.

        Raises `LogFailed` at the start; on a reload, whose other changes are valid, the error is only reported.
        """
        old, self._config = self._config, config
        ends = config != old and (old.enabled or config.path != old.path)
        continues = self.is_on and key != self._key and not ends
        self._key = key
        if ends or continues:
            self.stop()
        if (config.enabled or continues) and not self.is_on:
            try:
                self.start(self._until - self._control_plane.cluster.now() if continues else None)
            except LogFailed as error:
                if old is NONE:
                    raise
                complain(str(error))

    def start(self, seconds: float | None = None) -> None:
        """Start recording, for `seconds` if given. Raises `CommandRefused` and `LogFailed`."""
        config, now = self._config, self._control_plane.cluster.now()
        if config.path is None:
            raise CommandRefused("record.path: is not configured, so there is nowhere to record to")
        if self.is_on:
            raise CommandRefused("a recording is under way; DELETE /-/record ends it")
        key_of = partial(_key_of, self._control_plane.cluster.key_of)
        before: Thread | None = self.recorder.thread if self.recorder is not None else None
        self._begun += 1
        own = config.salt
        salt = own.get_secret_value().encode() if own is not None else b"%b%d" % (SALT, self._begun)
        self.recorder = Recorder(
            config.path,
            RecordingMetadata(now, wall_offset(self._clock), self._facts(), self._connect_of, key_of),
            salt=salt[:64],
            limit=config.limit,
            queue=config.queue,
            paths=config.paths,
            before=before,
        )
        self._control_plane.set_recorder(self.recorder)
        self._until = inf if seconds is None else now + seconds

    def stop(self) -> None:
        """Stop recording; queued requests are still written."""
        recorder = self._control_plane.recorder
        if recorder is not None:
            self._control_plane.set_recorder(None)
            recorder.retire()

    def close(self) -> None:
        """Stop recording and wait for queued requests, at shutdown."""
        self.stop()
        if self.recorder is not None:
            self.recorder.stop()
            self.recorder = None  # which refers to this

    def tick(self, now: float) -> None:
        """Stop a recording whose time is over or whose file is full. Called by the sweep."""
        recorder = self._control_plane.recorder
        if recorder is not None and (now >= self._until or recorder.is_full):
            self.stop()

    def status(self) -> dict[str, Any]:
        """Return whether recording is on, and the counts of the last one."""
        recorder, now = self.recorder, self._control_plane.cluster.now()
        has_end = self.is_on and self._until < inf
        return {
            "recording": self.is_on,
            "seconds_left": max(0.0, self._until - now) if has_end else None,
            "full": recorder is not None and recorder.is_full,
            "problem": None if recorder is None else recorder.problem,
            "waiting": 0 if recorder is None else recorder.waiting,
            **asdict(RecordCounts() if recorder is None else recorder.counts),
        }

    # --- callbacks of the recorder

    def _facts(self) -> dict[str, Any]:
        cluster, policy = self._control_plane.cluster, self._control_plane.policy
        return {
            "home_region": cluster.home_region,
            "keyed": cluster.key_of is not None,
            "policy": {"name": policy.name, **policy.options},
            "endpoints": [
                {"id": state.id, "region": state.region, "weight": state.endpoint.weight}
                for state in cluster.router.states
            ],
        }

    def _connect_of(self, endpoint_id: str) -> float:
        """Return the connect time to an endpoint in seconds. Called by the recorder's thread."""
        pool = self._control_plane.cluster.pools.by_id.get(endpoint_id)
        return pool.round_trip if pool is not None else 0.0


def _key_of(key_of: KeyOf | None, entry: Entry) -> bytes:
    """Return the key of a request, else its client's address. Called by the recorder's thread."""
    target = entry.sent_target or entry.target
    request = Request(entry.method, target, entry.head, entry.id, RequestFields(b""), entry.head)
    key = None if key_of is None else key_of(request, entry.client)
    return forwarded_for(entry).partition(b",")[0].strip() if key is None else key.encode("latin-1")
