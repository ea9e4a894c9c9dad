"""Steelyard, nginx and HAProxy in a storm, each in the best configuration known to the authors.

They are the templates `harness/templates/storm-…`, in which every relevant setting has its reason in a comment. None
knows when a fault comes or which worker it strikes.
"""

from __future__ import annotations

from benchmarks.harness.peers import OURS, Peer, run_haproxy, run_nginx, run_steelyard
from benchmarks.harness.verified.load_process import steelyard
from policies.loading.reference import label_of


def ours(policy: str) -> Peer:
    """Steelyard with a policy in its storm configuration."""
    return Peer(
        f"{OURS} {label_of(policy)}",
        lambda site: run_steelyard(site, steelyard(site, policy)),
    )


OTHERS = {
    "nginx": Peer("nginx", lambda site: run_nginx(site, "storm-nginx.conf"), "nginx"),
    "haproxy": Peer("haproxy", lambda site: run_haproxy(site, "storm-haproxy.cfg"), "haproxy"),
}
