"""Messages about a configuration: all mistakes at once, with their lines and what may be meant; no secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from balancer.config.problems import MOST_PROBLEMS, ConfigError, without_credentials
from balancer.config.schema.sidecar import origins_from
from balancer.configuration import load
from balancer.tools.sidecar.server import load_sidecar
from tests.support.admin_requests import status
from tests.support.config_files import ENDPOINT, problems, refusals, write
from tests.support.stage import Stage
from tests.support.wire import get, response

SECRET = "hunter2-is-a-bad-secret"


def test_several_mistakes_at_once(tmp_path: Path) -> None:
    """Each in a line of its own, with file and line of the file."""
    text = """\
polcy = "random"
retries = 11

[policy]
name = "round-robbin"

[health_checks]
interval = 1.0
fast_intervall = 2.0

[[endpoints]]
id = "a"
address = "http://a:1"

[[endpoints]]
adress = "http://b:1"
id = "b"

[helth]
"""
    found = problems(write(tmp_path, text))
    assert {message.split(": ")[0]: message.split(": ")[1] for message in found} == {
        "balancer.toml:1": "polcy",
        "balancer.toml:2": "retries",
        "balancer.toml:4": "policy",
        "balancer.toml:9": "health_checks.fast_intervall",
        "balancer.toml:15": "endpoints.1.address",
        "balancer.toml:16": "endpoints.1.adress",
        "balancer.toml:19": "helth",
    }
    assert len(found) == 7
    assert "did you mean 'round-robin'?" in "".join(found)


FIRST = """
compression = 1 -> balancer.toml:1: compression: is not a known key
polcy = 1 -> balancer.toml:1: polcy: is not a known key; did you mean 'policy'?
Policy = "random" -> balancer.toml:1: Policy: is not a known key; keys are in lower case: 'policy'
timeouts = 5 -> balancer.toml:1: timeouts: must be a table, got 5
headers.request.set = { Host = "a" } ->
    balancer.toml:1: headers.request.set: host is forwarding's own, got 'Host'
headers.request.set = { x_forwarded_for = "a" } ->
    balancer.toml:1: headers.request.set: x-forwarded-for is forwarding's own, got 'x_forwarded_for'
headers.request.remove = ["x-forwarded-*"] ->
    balancer.toml:1: headers.request.remove: x-forwarded-for is forwarding's own, got 'x-forwarded-*'
headers.request.remove = ["X-A", "x_a"] -> balancer.toml:1: headers.request.remove: 'X-A' is there twice
headers.request.set = { X-A = "{user}" } ->
    balancer.toml:1: headers.request.set.X-A: must have in braces one of
    client, scheme, host, tls, cluster, endpoint, request_id, and a brace itself twice, got '{user}'
headers.response.set = { X-A = "a{" } ->
    balancer.toml:1: headers.response.set.X-A: must have in braces one of
    client, scheme, host, tls, cluster, endpoint, request_id, and a brace itself twice, got '{'
headers.response.add = { Date = "a" } ->
    balancer.toml:1: headers.response.add: date is forwarding's own, got 'Date'
headers.response.remove = ["content-*"] ->
    balancer.toml:1: headers.response.remove: content-length is forwarding's own, got 'content-*'
policy = "single-region" -> balancer.toml:1: policy.region: 'single-region' needs it
policy = 5 -> balancer.toml:1: policy: must be a name, or a table with a name and options, got 5
listen = "localhost" -> balancer.toml:1: listen: ADDRESS, got 'localhost'
trusted_proxies = ["10.0.0.0/99"] ->
    balancer.toml:1: trusted_proxies.0: value is not a valid IPv4 or IPv6 network, got '10.0.0.0/99'
home_region = "LONG" ->
    balancer.toml:1: home_region: LENGTH, CUT
errors.no_rout.body = "x" -> balancer.toml:1: errors.no_rout: REASON, got 'no_rout'
errors.200.body = "x" -> balancer.toml:1: errors.200: REASON, got '200'
errors.503 = { body = "x", file = "y" } -> balancer.toml:1: errors.503.file: give body or file, not both
errors.503.file = "/nowhere/x" ->
    balancer.toml:1: errors.503.file: cannot read /nowhere/x: No such file or directory
errors.503 = { body = "x", content_type = "a\\r\\nb" } ->
    balancer.toml:1: errors.503.content_type: string should match pattern '^[!-~]([ -~]*[!-~])?$', got 'a\\r\\nb'
routes = [{ answer.file = "/nowhere/x" }] ->
    balancer.toml:1: routes.0.answer.file: cannot read /nowhere/x: No such file or directory
routes = [{ answer = { file = "x", status = 204 } }] ->
    balancer.toml:1: routes.0.answer.file: a response with status 204 has none
"""
LAST = """
[Timeouts]; head = 1 -> balancer.toml:4: Timeouts: is not a known key; keys are in lower case: 'timeouts'
[helth_checks] -> balancer.toml:4: helth_checks: is not a known key; did you mean 'health_checks'?
[timeouts]; home_region = 'a' ->
    balancer.toml:5: timeouts.home_region: is not a known key; it is a key of the top level and of clusters
max-in-flight = 1 ->
    balancer.toml:4: endpoints.0.max-in-flight: is not a known key; did you mean 'max_in_flight'?
zzz = 1 -> balancer.toml:4: endpoints.0.zzz: is not a known key
url = "http://a:1" -> balancer.toml:4: endpoints.0.url: is not a known key; did you mean 'address'?
cookie = "a" -> balancer.toml:4: endpoints.0.cookie: is not a known key
[timeouts]; statuses = [503] -> balancer.toml:5: timeouts.statuses: is not a known key; did you mean retry.statuses?
timeouts = 1 -> balancer.toml:4: endpoints.0.timeouts: is not a known key; it is a key of the top level and of clusters
[health_checks]; interval = 1; fast_interval = 2 ->
    balancer.toml:6: health_checks.fast_interval: must not be longer than interval (1), got 2
[policy]; name = "steelyard"; margin = nan ->
    balancer.toml:6: policy.margin: must be a number from -1e+09 to 1e+09, got nan
[tls]; certificate = "absent.pem" ->
    balancer.toml:5: tls.certificate: cannot read absent.pem: No such file or directory
max_in_flight = 0 ->
    balancer.toml:4: endpoints.0.max_in_flight: input should be greater than or equal to 1, got 0
[retry]; statuses = [503, 200] ->
    balancer.toml:5: retry.statuses.1: input should be greater than or equal to 500, got 200
[retry]; share = 2 -> balancer.toml:5: retry.share: input should be less than or equal to 1, got 2
[hedging]; minimum = 0.001 ->
    balancer.toml:5: hedging.minimum: input should be greater than or equal to 0.01, got 0.001
[timeouts]; head = 0 -> balancer.toml:5: timeouts.head: input should be greater than 0, got 0
[policy]; name = "random"; sped = 3 -> balancer.toml:6: policy.sped: 'random' has no such option; it has none
[[discovery.dns]]; name = "a.test"; port = 80; weight = 2e6 ->
    balancer.toml:7: discovery.dns.0.weight: input should be less than or equal to 1000000, got 2000000.0
[shared]; url = "redis://h"; every = 0.001 ->
    balancer.toml:6: shared.every: input should be greater than or equal to 0.01, got 0.001
[shared]; url = "redis://h"; group = "a b" -> balancer.toml:6: shared.group: NAME, got 'a b'
[tracing]; sample = 1.5 -> balancer.toml:5: tracing.sample: input should be less than or equal to 1, got 1.5
[tracing]; sample = nan -> balancer.toml:5: tracing.sample: input should be less than or equal to 1, got nan
[tracing]; trust = "none" -> balancer.toml:5: tracing.trust: input should be 'proxies' or 'all', got 'none'
[tracing]; queue = 0 -> balancer.toml:5: tracing.queue: input should be greater than or equal to 1, got 0
[tracing]; service = "a b" -> balancer.toml:5: tracing.service: NAME, got 'a b'
[tracing]; endpoint = "http://h:1"; enabled = false ->
    balancer.toml:5: tracing.endpoint: needs enabled = true
[admin]; listen = "0.0.0.0:9" -> balancer.toml:5: admin.listen: 0.0.0.0:9 REMOTE
[admin]; listen = "example.org:80" -> balancer.toml:5: admin.listen: example.org:80 REMOTE
[admin]; listen = "127.0.0.1" -> balancer.toml:5: admin.listen: ADDRESS, got '127.0.0.1'
[admin]; socket = "relative" ->
    balancer.toml:5: admin.socket: must be auto, off or an absolute path, got 'relative'
[admin]; socket = "/a\\u0000b" ->
    balancer.toml:5: admin.socket: must be auto, off or an absolute path, got '/a\0b'
[admin]; socket = "LONG" -> balancer.toml:5: admin.socket: must have at most 107 bytes
[admin]; token = "with a space in the middle" ->
    balancer.toml:5: admin.token: must be printable ASCII without spaces
[admin]; token = "sixteen-and-more-ü" -> balancer.toml:5: admin.token: must be printable ASCII without spaces
"""
SECTIONS = """
[key]; by = "header" -> balancer.toml:4: key.name: is required with by = 'header': which header
[key]; by = "path"; name = "x" -> balancer.toml:6: key.name: applies only to by = "header" and by = "cookie"
[key]; name = "x" -> balancer.toml:5: key.name: applies only to by = "header" and by = "cookie"
[key]; by = "path"; [sticky]; header = "X-User" ->
    balancer.toml:5: key.by: give [sticky], which has its own key, or [key], not both
[sticky]; cookie = "sid" ->
    balancer.toml:4: sticky.key: is required with cookie: 16 characters or more, the same for all units
[sticky]; cookie = "sid"; key = "short" -> balancer.toml:6: sticky.key: must have 16 characters or more
[sticky]; cookie = "s id"; key = "SIXTEEN" ->
    balancer.toml:5: sticky.cookie: string should match pattern '^[A-Za-z0-9!#$%&'+.^_`|~-]+$', got 's id'
[sticky]; cookie = "sid"; header = "x"; key = "SIXTEEN" ->
    balancer.toml:6: sticky.header: give cookie or header, not both
[sticky]; cookie = "sid"; key = "SIXTEEN"; same_site = "none"; secure = false ->
    balancer.toml:7: sticky.same_site: browsers take "none" only with secure = true
[sticky]; cookie = "sid"; key = "SIXTEEN"; same_site = "some" ->
    balancer.toml:7: sticky.same_site: input should be 'lax', 'strict' or 'none', got 'some'
[sticky]; cookie = "sid"; key = "SIXTEEN"; max_age = 0 ->
    balancer.toml:7: sticky.max_age: input should be greater than or equal to 1, got 0
[buffering]; request = -1 ->
    balancer.toml:5: buffering.request: input should be greater than or equal to 0, got -1
[buffering]; response = 67108865 ->
    balancer.toml:5: buffering.response: input should be less than or equal to 67108864, got 67108865
[buffering]; response = 2048; total = 2047 ->
    balancer.toml:6: buffering.total: must not be below response (2048), got 2047
[buffering]; request = 4096; total = 2048 ->
    balancer.toml:6: buffering.total: must not be below request (4096), got 2048
[buffering]; totals = 1 -> balancer.toml:5: buffering.totals: is not a known key; did you mean 'total'?
[[discovery.dns]]; name = "a.test" -> balancer.toml:4: discovery.dns.0.port: is required with address records
[[discovery.dns]]; name = "a.test"; record = "srv"; port = 1 ->
    balancer.toml:7: discovery.dns.0.port: must not be given with SRV records, which have their own
[[discovery.dns]]; name = "a b"; port = 1 -> balancer.toml:5: discovery.dns.0.name: HOST, got 'a b'
[[discovery.dns]]; name = "a.test"; port = 1; [[discovery.dns]]; name = "a.test"; port = 1 ->
    balancer.toml:8: discovery.dns.1.name: a.test:1 is there twice
[[discovery.dns]]; name = "a.test"; port = 1; servers = ["x:53"] ->
    balancer.toml:7: discovery.dns.0.servers: must be address or address:port, [::1]:53 for IPv6, got 'x:53'
[discovery.file] -> balancer.toml:4: discovery.file.path: is required
[discovery.kubernetes] -> balancer.toml:4: discovery.kubernetes.service: is required
[discovery.kubernetes]; service = "Workers" ->
    balancer.toml:5: discovery.kubernetes.service: LABEL, got 'Workers'
[discovery.kubernetes]; service = "a"; namespace = "a/b" ->
    balancer.toml:6: discovery.kubernetes.namespace: LABEL, got 'a/b'
[discovery.kubernetes]; service = "a"; server = "https://a" ->
    balancer.toml:4: discovery.kubernetes.namespace: is required with server
[discovery.kubernetes]; service = "a"; server = "a:443"; namespace = "b" ->
    balancer.toml:6: discovery.kubernetes.server: must be http://host:port or https://host:port, got 'a:443'
[discovery.kubernetes]; service = "a"; port = 0 -> balancer.toml:6: discovery.kubernetes.port: PORT, got '0'
[discovery.kubernetes]; service = "a"; port = 65536 ->
    balancer.toml:6: discovery.kubernetes.port: PORT, got '65536'
[discovery.kubernetes]; service = "a"; port = "Web!" ->
    balancer.toml:6: discovery.kubernetes.port: PORT, got 'Web!'
[discovery.kubernetes]; service = "a"; port = true ->
    balancer.toml:6: discovery.kubernetes.port: input should be a valid string, got true
[discovery.kubernetes]; service = "a"; zones = ["b"] ->
    balancer.toml:6: discovery.kubernetes.zones: must be a table, got a list
[discovery.kubernetes]; service = "a"; zones = { b = "c d" } ->
    balancer.toml:6: discovery.kubernetes.zones.b: NAME
[discovery.kubernetes]; service = "a"; timeout = 0 ->
    balancer.toml:6: discovery.kubernetes.timeout: input should be greater than 0, got 0
[discovery.kubernetes]; service = "a"; services = "b" ->
    balancer.toml:6: discovery.kubernetes.services: is not a known key; did you mean 'service'?
[names]; min_ttl = 9; max_ttl = 8 -> balancer.toml:5: names.min_ttl: must not be above max_ttl (8), got 9
[names]; resolver = "system"; servers = ["192.0.2.1"] ->
    balancer.toml:6: names.servers: apply only to resolver = "dns"
[concurrency]; minimum = 9; maximum = 8 ->
    balancer.toml:5: concurrency.minimum: must not be above maximum (8), got 9
[concurrency]; initial = 9; maximum = 8 ->
    balancer.toml:5: concurrency.initial: must be between minimum and maximum, 4–8, got 9
[pool]; heartbeat = "/ping"; preconnect = 0 ->
    balancer.toml:5: pool.heartbeat: applies to spare connections only, and preconnect is 0
[admission]; default = "gold" ->
    balancer.toml:5: admission.default: must be one of the levels, critical, normal, bulk, got 'gold'
[headers]; internal = ["Content_Length"] ->
    balancer.toml:5: headers.internal: 'Content_Length' would take out content-length, which forwarding needs
[headers]; internal = ["transfer_encoding"] ->
    balancer.toml:5: headers.internal: 'transfer_encoding' would take out transfer-encoding, which forwarding needs
[headers]; internal = ["content_*"] ->
    balancer.toml:5: headers.internal: 'content_*' would take out content-length, which forwarding needs
[headers]; internal = ["content.typ*"] ->
    balancer.toml:5: headers.internal: 'content.typ*' would take out content-type, which forwarding needs
[headers]; internal = ["CONTENT_TYPE"] ->
    balancer.toml:5: headers.internal: 'CONTENT_TYPE' would take out content-type, which forwarding needs
[headers]; internal = ["Content-Length"] ->
    balancer.toml:5: headers.internal: 'Content-Length' would take out content-length, which forwarding needs
[health_checks]; grpc = ""; body = "ok" ->
    balancer.toml:5: health_checks.grpc: asks by gRPC, so path, status and body do not apply
[health_checks]; grpc = ""; status = 200 ->
    balancer.toml:5: health_checks.grpc: asks by gRPC, so path, status and body do not apply
[health_checks]; grpc = "a b" ->
    balancer.toml:5: health_checks.grpc: must be the name of a service, ASCII without spaces, got 'a b'
[health_checks]; grpc = "LONGLONG" ->
    balancer.toml:5: health_checks.grpc: string should have at most 127 characters, CUT
[health_checks]; path = "/"; port = 0 ->
    balancer.toml:6: health_checks.port: input should be greater than or equal to 1, got 0
[health_checks]; path = "/"; host = "a b" ->
    balancer.toml:6: health_checks.host: must be a name such as app.example.org, with or without a port, got 'a b'
[health_checks]; path = "/"; body = "" ->
    balancer.toml:6: health_checks.body: string should have at least 1 character, got ''
[health_checks]; path = "/"; fields = { Host = "a" } ->
    balancer.toml:6: health_checks.fields: host cannot be set; a host is given by 'host'
[health_checks]; path = "/"; fields = { a = "s3cr3t\\u0007" } ->
    balancer.toml:6: health_checks.fields: a must have a value of 1 to 1024 printable ASCII characters
[health_checks]; path = "/"; fields = { "a b" = "s3cr3t" } ->
    balancer.toml:6: health_checks.fields.a b: string should match pattern '^[A-Za-z0-9!#$%&'+.^_`|~*-]+$'
LIMIT; burst = 0 -> balancer.toml:7: rate_limits.0.burst: input should be greater than or equal to 1, got 0
LIMIT; period = 0 -> balancer.toml:7: rate_limits.0.period: input should be greater than or equal to 1, got 0
LIMIT; period = 0.5 -> balancer.toml:7: rate_limits.0.period: input should be a valid integer, got 0.5
LIMIT; by = 'ip' ->
    balancer.toml:7: rate_limits.0.by: input should be 'client', 'key', 'header' or 'all', got 'ip'
LIMIT; by = 'header' -> balancer.toml:4: rate_limits.0.header: is required with by = "header": which field
LIMIT; header = 'x' -> balancer.toml:7: rate_limits.0.header: applies only to by = "header"
LIMIT; max_buckets = 1 -> balancer.toml:7: rate_limits.0.max_buckets: is not a known key
[[rate_limits]]; name = "a" -> balancer.toml:4: rate_limits.0.requests: is required
[[rate_limits]]; requests = 1 -> balancer.toml:4: rate_limits.0.name: is required
LIMIT; LIMIT -> balancer.toml:8: rate_limits.1.name: 'a' is there twice
[[routes]]; cluster = "default"; rate_limit = 'b' ->
    balancer.toml:6: routes.0.rate_limit: there are no [[rate_limits]], got 'b'
LIMIT; [[routes]]; cluster = "default"; rate_limit = 'b' ->
    balancer.toml:9: routes.0.rate_limit: must be one of a, got 'b'
LIMIT; by = 'key' -> balancer.toml:7: rate_limits.0.by: NO_KEY
LIMIT; by = 'key'; [sticky]; cookie = 'c'; key = 'SIXTEEN' -> balancer.toml:7: rate_limits.0.by: NO_KEY
"""
"""Of one section each, behind an endpoint as LAST."""

ALONE = """
retries = 11; endpoints = [] -> balancer.toml:1: retries: input should be less than or equal to 10, got 11
endpoints = 5 -> balancer.toml:1: endpoints: must be a list, got 5
endpoints = [] -> balancer.toml:1: endpoints: is required: [[endpoints]] once or more, or [discovery]
[[endpoints]]; address = "http://a:1" -> balancer.toml:1: endpoints.0.id: is required
[[endpoints]]; id = "a b"; address = "http://a:1" -> balancer.toml:2: endpoints.0.id: NAME, got 'a b'
"""
MEANT = {
    "LIMIT": '[[rate_limits]]\nname = "a"\nrequests = 10',
    "NO_KEY": '"key" needs a request key: give [key] or sticky.header; a sticky cookie names an endpoint, not a client',
    "REASON": "must be a reason of docs/operations.md, a status such as 503, 4xx or 5xx",
    "LENGTH": "string should have at most 64 characters",
    "NAME": "string should match pattern '^[A-Za-z0-9][A-Za-z0-9._-]*$'",
    "LABEL": "string should match pattern '^[a-z0-9]([a-z0-9-]*[a-z0-9])?$'",
    "HOST": r"string should match pattern '^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?$'",
    "PORT": "must be the name of a port or a number of 1–65535",
    "SIXTEEN": "k" * 16,
    "ADDRESS": "must be host:port with a port of 0–65535",
    "REMOTE": "can be reached from other machines: give a loopback address, or set token",
    "CUT": f"got '/{'x' * 51}...",
    "LONG": f"/{'x' * 107}",
}
"""Words that stand for long ones in the tables."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *refusals(ALONE),
        *((f"{text}\n{ENDPOINT}", message) for text, message in refusals(FIRST)),
        *((ENDPOINT + text, message) for table in (LAST, SECTIONS) for text, message in refusals(table)),
        (
            ENDPOINT + '[policy]\nname = "least-in-flight"\nchoises = 3',
            "balancer.toml:6: policy.choises: 'least-in-flight' has no such option; did you mean 'choices'? "
            "Its options: choices, tie",
        ),
    ],
)
def test_lines_and_suggestions(tmp_path: Path, text: str, message: str) -> None:
    for word, meaning in MEANT.items():
        text, message = text.replace(word, meaning), message.replace(word, meaning)
    assert problems(write(tmp_path, text)) == [message]


def test_number_of_problems_is_limited(tmp_path: Path) -> None:
    found = problems(write(tmp_path, "".join(f"key{number} = 1\n" for number in range(50)) + ENDPOINT))
    assert len(found) == MOST_PROBLEMS + 1
    assert found[-1] == "30 more"


@pytest.mark.parametrize(
    "text",
    [
        f'admin = "{SECRET}"',
        f'admin = ["{SECRET}"]',
        f'[admin]\ntoken = ["{SECRET}"]',
        f'[admin]\ntoken = "{SECRET} x"',
        f'[admin]\ntoken = "{SECRET[:15]}"',
        f'[admin]\ntokn = "{SECRET}"',
        f'[admin.token]\nvalue = "{SECRET}"',
        f'[sticky]\ncookie = "a"\nkey = "{SECRET[:15]}"',
        f'sticky = "{SECRET}"',
        f'[record]\nsalt = "{SECRET[:15]}"',
        f'retries = {{ token = "{SECRET}" }}',
        f'[[endpoints]]\nid = "b"\naddress = "http://user:{SECRET}@b:1"',
    ],
)
def test_secrets_are_not_in_messages(tmp_path: Path, text: str) -> None:
    """Wherever the value is wrong, and for the user and password of a URL."""
    found = problems(write(tmp_path, f"{ENDPOINT if text.startswith('[') else ''}{text}\n"))
    assert SECRET[:15] not in "".join(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("got 'user:pa//ss@host'", "got '…@host'"),
        ("got 'http://user:p@ss@b/'", "got 'http://…@b/'"),
        ("must be http://host:port, got 'http://u:p@b'", "must be http://host:port, got 'http://…@b'"),
        ("must be http://host[:port], got 'u:p@b'", "must be http://host[:port], got '…@b'"),
        ("got 'http://a/x'", "got 'http://a/x'"),
    ],
)
def test_credentials_are_replaced(text: str, expected: str) -> None:
    assert without_credentials(text) == expected


def test_secrets_of_the_command_line_are_not_in_messages(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        origins_from([f"https://user:{SECRET}@"])
    assert SECRET not in str(caught.value)
    path = write(
        tmp_path,
        f'[[origins]]\nname = "a"\nurl = "https://user:{SECRET}@a/x"\n[admin]\ntoken = "{SECRET[:15]}"',
    )
    with pytest.raises(ConfigError) as caught:
        load_sidecar(path, {})
    assert [problem.split(": ")[1] for problem in caught.value.problems] == ["origins.0.url", "admin.token"]
    assert SECRET[:15] not in str(caught.value)


@pytest.mark.parametrize("target", [b"/-/status", b"/-/metrics", b"/-/policy", b"/-/endpoints"])
async def test_secrets_are_not_in_the_status(stage: Stage, target: bytes) -> None:
    """Of a balancer that has one of each kind."""
    await stage.serve(
        await stage.worker(response()),
        admin={"token": SECRET},
        sticky={"cookie": "c", "key": SECRET},
        record={"salt": SECRET},
    )
    answer = await stage.ask(get(target, b"Authorization: Bearer " + SECRET.encode()))
    assert answer.status == 200
    assert SECRET.encode() not in answer.body


async def test_secrets_are_not_in_the_problem_of_a_reload(stage: Stage, tmp_path: Path) -> None:
    path = write(tmp_path, f'{ENDPOINT}[admin]\ntoken = "{SECRET}"\nlisten = 5\n')
    server = await stage.serve(await stage.worker(response()))
    server.reloads._read = lambda files: load(path, {}, files)
    with pytest.raises(ConfigError, match=r"balancer.toml:6: admin.listen: "):
        await server.reload()
    problem = json.dumps(await status(stage))
    assert "admin.listen: " in problem
    assert SECRET not in problem
