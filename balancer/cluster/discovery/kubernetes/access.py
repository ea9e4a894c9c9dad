"""Access to the API server: its address, bearer token, certificate authorities and namespace.

What the configuration does not give comes from the pod that the balancer runs in: variables of its environment and the
files of its service account.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from balancer.config.documents import read_text
from balancer.config.problems import ConfigError
from balancer.config.schema.discovery import KubernetesDiscovery

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Origin of the API server, namespace, and files of credentials. None: no token; the system's authorities."""

    server: str
    namespace: str
    token_file: Path | None
    ca_file: Path | None

    def token(self) -> str | None:
        """Read the bearer token, which the kubelet replaces before it expires. Raises `ConfigError`."""
        if self.token_file is None:
            return None
        token = _read("token_file", self.token_file)
        if not (token and token.isascii() and token.isprintable() and " " not in token):
            raise ConfigError(f"discovery.kubernetes.token_file: {self.token_file}: has no bearer token")
        return token

    def tls(self) -> ssl.SSLContext | None:
        """Create the TLS context of a connection, None without TLS. Raises `ConfigError`."""
        if not self.server.startswith("https:"):
            return None
        # The default context of Python 3.13 refuses authorities without key identifiers, as some clusters have them.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca_file is None:
            context.load_default_certs()
            return context
        try:
            context.load_verify_locations(cadata=_read("ca_file", self.ca_file))
        except (ssl.SSLError, ValueError):
            raise ConfigError(
                f"discovery.kubernetes.ca_file: {self.ca_file}: has no certificate in PEM"
            ) from None
        return context


def access_of(
    config: KubernetesDiscovery,
    variables: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> ClusterAccess:
    """Return the access that is configured, completed by that of the pod. Raises `ConfigError` for what is missing."""
    server, namespace = config.server, config.namespace
    token_file, ca_file = config.token_file, config.ca_file
    if server is None:
        server = _server_of_cluster(variables)
        token_file, ca_file = token_file or service_account / "token", ca_file or service_account / "ca.crt"
    access = ClusterAccess(
        server, namespace or _read("namespace", service_account / "namespace"), token_file, ca_file
    )
    access.token()
    access.tls()
    return access


def _server_of_cluster(variables: Mapping[str, str]) -> str:
    host, port = variables.get("KUBERNETES_SERVICE_HOST"), variables.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigError(
            "discovery.kubernetes.server: is required outside a pod, "
            "where KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"
        )
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


def _read(key: str, path: Path) -> str:
    try:
        return read_text(path, is_plain=True).strip()
    except OSError as error:
        raise ConfigError(f"discovery.kubernetes.{key}: cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"discovery.kubernetes.{key}: {path}: {error}") from None
