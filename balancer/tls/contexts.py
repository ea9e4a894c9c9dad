"""TLS contexts for clients and for workers, from the configuration.

A fault in a file is reported as `ConfigError`, one line that names the configuration field, before a connection meets
it. Contexts are immutable: a reload creates new ones, which new connections use.
"""

from __future__ import annotations

import _ssl
import ssl
import sys
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from balancer.config.loading import Settings
from balancer.config.problems import ConfigError, in_file
from balancer.config.schema.endpoint import EndpointConfig, UpstreamTlsConfig
from balancer.config.schema.sections import TlsConfig
from balancer.tls.client_certificate import CertificateFields

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Cipher suites of TLS 1.2: only with forward secrecy and authenticated encryption (RFC 9325 § 4.2). All those of TLS
1.3 have both."""

ID_EC_PUBLIC_KEY: Final = bytes.fromhex("06072a8648ce3d0201")
"""Type of a key in a certificate, as DER (RFC 5480 § 2.1.1)."""

HTTP1: Final = "http/1.1"
HTTP2: Final = "h2"
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY_MODES = {"optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


# --- for clients


class ServerHandshake(NamedTuple):
    """Contexts of one client's handshake: it begins with `context` and restarts with `unnamed`, which ignores SNI, if
    the client's SNI is not ASCII. `protocols`: those that ALPN agrees on. `certificate_fields`: what workers get of the
    client's certificate."""

    context: ssl.SSLContext
    unnamed: ssl.SSLContext
    protocols: tuple[bytes, ...]
    certificate_fields: CertificateFields = "off"


class ServerTls:
    """TLS contexts towards clients, from the files as they were at construction.

    `context` switches to the certificate that matches the client's SNI. `first` is the context of the first certificate
    and never switches.
    """

    def __init__(self, config: TlsConfig, *, http2: bool = False) -> None:
        """Load all certificates and keys; `http2`: offer HTTP/2 by ALPN. Raises `ConfigError`."""
        self._certificate_fields = config.client_certificate_fields
        self._protocols = tuple(name.encode() for name in _protocols(http2))
        before = _manner(config, http2)
        named = _named_contexts(config, http2)
        self.choose = _SniCallback(named)
        self.context = self.first = named[""]
        if len(set(named.values())) > 1:
            self.context = _server_context(config, http2)
            self.context.sni_callback = self.choose
        self.manner = before, _manner(config, http2)
        mute_undecodable_names()

    def handshake(self, front: SharedContext | None = None) -> ServerHandshake:
        """Contexts of a new handshake; `front` is None for a listener that had no TLS at the start."""
        context = self.context if front is None else front.before(self)
        return ServerHandshake(context, self.first, self._protocols, self._certificate_fields)


class SharedContext:
    """TLS context that survives reloads, and that sibling processes share, so that session tickets stay valid.

    A context encrypts session tickets with keys of its own, and a new one would refuse those of the others, which costs
    returning clients a full handshake. These keys are made at the start, before processes are forked, and survive a
    reload (RFC 8446 § 4.6.1, § 8.1; RFC 5077 § 5.5) that changes neither the trusted authorities nor the settings. The
    context has no certificate; it switches to one that has.
    """

    def __init__(self, config: TlsConfig, *, http2: bool = False) -> None:
        """Create the shared context; `http2`: offer HTTP/2 by ALPN. Raises `ConfigError`."""
        before = _manner(config, http2)
        self._context = _server_context(config, http2)
        self._manner = before, _manner(config, http2)

    def before(self, tls: ServerTls) -> ssl.SSLContext:
        """Context with which a handshake begins while `tls` is in force: the shared one, or the context of `tls` if its
        settings other than certificates or the contents of `tls.client_ca` differ: a resumed session shows no client
        certificate, so it must not outlive the authorities that it was accepted by."""
        if tls.manner != self._manner:
            return tls.context
        self._context.sni_callback = tls.choose
        return self._context


def _manner(config: TlsConfig, http2: bool) -> tuple[object, ...]:
    """Settings of a context other than its certificates; of `tls.client_ca` the contents, which may change under the
    same name, also while contexts are made: callers compare both before and after."""
    trusted = (
        b""
        if config.client_ca is None
        else sha256(_read("tls.client_ca", config.client_ca).encode()).digest()
    )
    has_chain = config.client_certificate_fields == "chain"
    return config.min_version, trusted, config.client_certificate, has_chain, http2


def _choices(config: TlsConfig) -> dict[str, dict[bool, int]]:
    """Return the numbers of the certificates for each DNS name, "" for clients without one: the first with an ECDSA key
    (True), and the first with another one. Raises `ConfigError`."""
    chosen: dict[str, dict[bool, int]] = {}
    for number, (field, pair) in enumerate(config.by_field()):
        names = _dns_names(_decoded(f"{field}certificate", pair.certificate))
        if number and not names:
            raise ConfigError(f"{field}certificate: {pair.certificate} has no DNS name to be chosen by (SNI)")
        kind = _has_ecdsa_key(pair.certificate)
        for name in names:
            chosen.setdefault(name, {}).setdefault(kind, number)
        if not number:
            chosen[""] = chosen[names[0]] if names else {kind: 0}
    return chosen


def _named_contexts(config: TlsConfig, http2: bool) -> dict[str, ssl.SSLContext]:
    """A context by each name of `_choices`; names with the same certificates share one. Raises `ConfigError`."""
    chosen, pairs = _choices(config), list(config.by_field())
    contexts: dict[tuple[int, ...], ssl.SSLContext] = {}
    alone = ((number,) for number in range(len(pairs)))  # so that the faults of each are found
    for numbers in [*alone, *(tuple(of.values()) for of in chosen.values())]:
        if numbers not in contexts:
            contexts[numbers] = context = _server_context(config, http2)
            for number in numbers:
                field, pair = pairs[number]
                _load_pair(context, field, pair.certificate, pair.key)
    return {name: contexts[tuple(numbers.values())] for name, numbers in chosen.items()}


def _server_context(config: TlsConfig, http2: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(_protocols(http2))
    if config.client_ca is not None:
        context.verify_mode = _VERIFY_MODES[config.client_certificate]
        _load_ca(context, "tls.client_ca", config.client_ca)
    if config.client_certificate_fields == "chain":  # a ticket has only the first certificate
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


def _protocols(http2: bool) -> list[str]:
    return [HTTP2, HTTP1] if http2 else [HTTP1]


class _SniCallback:
    """`sni_callback` that selects the context by server name: exact names before wildcards, else the first
    certificate."""

    def __init__(self, named: dict[str, ssl.SSLContext]) -> None:
        self._first = named[""]
        self._exact = named
        # by domain, before which is one label (RFC 6125 § 6.4.3)
        self._wild = {name[2:]: context for name, context in named.items() if name.startswith("*.")}

    def __call__(self, connection: ssl.SSLObject, host: str | None, _: ssl.SSLContext) -> None:
        connection.context = self._first if host is None else self._named(host.lower().rstrip("."))

    def _named(self, host: str) -> ssl.SSLContext:
        exact = self._exact.get(host)
        if exact is not None:
            return exact
        label, _, domain = host.partition(".")
        return self._wild.get(domain, self._first) if label else self._first


# --- for workers


@dataclass(frozen=True, slots=True)
class ClientTls:
    """TLS settings towards one worker. `name`: server name for SNI and certificate verification. `config`: source of
    the context, for transports that cannot use an `SSLContext`."""

    context: ssl.SSLContext
    name: str
    config: UpstreamTlsConfig


class UpstreamTls:
    """TLS contexts towards workers with https addresses, by the default settings or by an endpoint's own."""

    def __init__(self, default: UpstreamTlsConfig | None = None) -> None:
        """Create no contexts yet."""
        self._default = default or UpstreamTlsConfig()
        self._contexts: dict[tuple[UpstreamTlsConfig, str], ssl.SSLContext] = {}

    def of(
        self, address: str, alpn: str = HTTP1, own: UpstreamTlsConfig | None = None, field: str = "tls."
    ) -> ClientTls | None:
        """TLS settings for an endpoint's address, None if that is plain http. `alpn`: the only protocol to offer (RFC
        7301). `own`: the endpoint's own settings, which messages name by `field`.

        Raises `ConfigError` if the context does not exist yet and a file for it is faulty.
        """
        if address[:6].lower() != "https:":
            return None
        config = self._default if own is None else own
        key = config.model_copy(update={"server_name": None}), alpn
        if key not in self._contexts:
            context = _client_context(config, "upstream_tls." if own is None else field)
            context.set_alpn_protocols([alpn])
            self._contexts[key] = context
        return ClientTls(self._contexts[key], config.server_name or urlsplit(address).hostname or "", config)

    def prepare(self, endpoints: Iterable[EndpointConfig], place: str = "") -> None:
        """Create the contexts of these endpoints. `place`: their key, of which messages name the item. Raises
        `ConfigError`."""
        for at, endpoint in enumerate(endpoints):
            self.of(endpoint.address, endpoint.alpn, endpoint.tls, f"{place}.{at}.tls." if place else "tls.")


def _client_context(config: UpstreamTlsConfig, field: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    if not config.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif config.ca is not None:
        _load_ca(context, f"{field}ca", config.ca)
    else:
        context.load_default_certs()
    if config.certificate is not None:
        _decoded(f"{field}certificate", config.certificate)
        _load_pair(context, field, config.certificate, config.key)
    return context


# --- files


def _read(field: str, path: Path) -> str:
    with in_file(field, path):
        return path.read_text(encoding="latin-1")


def _decoded(field: str, path: Path) -> dict[str, Any]:
    """Return the first certificate of a PEM file in the form of `SSLSocket.getpeercert`, for which `ssl` has no public
    function. Raises `ConfigError` if there is none."""
    _read(field, path)
    try:
        found: dict[str, Any] = _ssl._test_decode_cert(path)  # type: ignore[attr-defined]
    except ssl.SSLError:
        raise ConfigError(f"{field}: {path} holds no certificate in PEM") from None
    return found


def _dns_names(certificate: dict[str, Any]) -> list[str]:
    """Return the DNS names of a certificate in lower case, wildcards unexpanded."""
    return [name.lower() for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]


def _has_ecdsa_key(path: Path) -> bool:
    """Return whether the key of the first certificate of a PEM file is one for ECDSA."""
    body = path.read_text(encoding="latin-1").partition("-----BEGIN CERTIFICATE-----")[2]
    return ID_EC_PUBLIC_KEY in b64decode(body.partition("-----END")[0])


def _load_pair(context: ssl.SSLContext, field: str, certificate: Path, key: Path | None) -> None:
    """Load a certificate and its key, which is in the same file unless `key` is given. Raises `ConfigError`."""
    key = key or certificate
    _read(f"{field}key", key)
    asked: list[bool] = []

    def password() -> str:
        asked.append(True)
        return ""

    try:
        context.load_cert_chain(certificate, key, password)
    except ssl.SSLError as error:
        raise ConfigError(_pair_problem(error, field, certificate, key, bool(asked))) from None


def _pair_problem(error: ssl.SSLError, field: str, certificate: Path, key: Path, is_locked: bool) -> str:
    if is_locked:
        return f"{field}key: {key} is protected by a password; give one that is not"
    if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):
        return f"{field}key: {key} is not the key of {certificate}"
    if error.reason is not None and error.reason.endswith(("_TOO_SMALL", "_TOO_WEAK")):
        return f"{field}certificate: {certificate} is refused: {error.reason.replace('_', ' ').lower()}"
    return f"{field}key: {key} holds no private key in PEM"


def _load_ca(context: ssl.SSLContext, field: str, path: Path) -> None:
    _read(field, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise ConfigError(f"{field}: {path} holds no certificate in PEM") from None


class _Hook:
    """Suppresses the traceback that the `ssl` module prints for a server name (SNI) that is not ASCII.

    `ssl` decodes the name before it calls `SSLContext.sni_callback`. If that fails, the error goes to
    `sys.unraisablehook`, which prints it, and the handshake fails with the reason CALLBACK_FAILED. Any client can cause
    it, as often as it connects; `TlsTransport` handles the failure. This is a `sys.unraisablehook` that drops these
    errors and passes all others to `following`."""

    def __init__(self, following: Callable[[Any], Any]) -> None:
        self._following = following

    def __call__(self, problem: sys.UnraisableHookArgs) -> None:
        if not _is_server_name(problem):
            self._following(problem)


def mute_undecodable_names() -> None:
    """Install the hook; a further call changes nothing."""
    if not isinstance(sys.unraisablehook, _Hook):
        sys.unraisablehook = _Hook(sys.unraisablehook)


def _is_server_name(problem: sys.UnraisableHookArgs) -> bool:
    """Python 3.14 names the callback in `err_msg`; earlier versions give the name's bytes as `object`."""
    if not isinstance(problem.exc_value, UnicodeDecodeError):
        return False
    return isinstance(problem.object, bytes) or "servername" in (problem.err_msg or "")


def server_tls_of(settings: Settings) -> dict[str, ServerTls]:
    """Return the TLS contexts for clients by listener, "" for `listen`. Raises `ConfigError`."""
    found: dict[str, ServerTls] = {}
    for name, tls in settings.tls_tables.items():
        try:
            found[name] = ServerTls(tls, http2=settings.http2.enabled)
        except ConfigError as problem:
            raise ConfigError(f"listeners.{name}.{problem}" if name else str(problem)) from None
    return found


def shared_contexts(settings: Settings) -> dict[str, SharedContext]:
    """Return the TLS contexts that handshakes with clients begin with, by listener. Raises `ConfigError`."""
    http2 = settings.http2.enabled
    return {name: SharedContext(tls, http2=http2) for name, tls in settings.tls_tables.items()}


def doubtful_certificates(settings: Settings) -> Iterator[str]:
    """Yield a line for each certificate towards clients that has expired, or that no name leads to."""
    for name, tls in settings.tls_tables.items():
        used = {number for chosen in _choices(tls).values() for number in chosen.values()}
        for number, (field, pair) in enumerate(tls.by_field()):
            decoded = _decoded(f"{field}certificate", pair.certificate)
            end = datetime.fromtimestamp(ssl.cert_time_to_seconds(decoded["notAfter"]), UTC)
            place = f"listeners.{name}.{field}" if name else field
            if end < datetime.now(UTC):
                yield f"{place}certificate: {pair.certificate} has expired, at {end:%Y-%m-%d %H:%M:%S} UTC"
            if number not in used:
                yield f"{place}certificate: {pair.certificate} is never used: others before it have its names"


def upstream_tls_of(settings: Settings) -> UpstreamTls:
    """Return the TLS contexts for workers. Raises `ConfigError` for a file that one of the endpoints needs."""
    tls = UpstreamTls(settings.upstream_tls)
    tls.prepare(settings.endpoints, "endpoints")
    if any(source.scheme == "https" for source in settings.discovery.remote):
        tls.of("https://localhost")
    return tls
