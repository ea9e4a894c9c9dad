"""Request heads as sent by browsers, apps, CDNs and proxies, and the internal names of a fictitious network.

Written by hand, in the order and spelling of the sender. Each set has 10 to 30 fields; fewer than one in ten of all is
internal, and most sets have none.
"""

from __future__ import annotations

from typing import Final

_TOPICS = ("edge", "cache", "mesh", "auth", "bot", "waf", "dns", "log", "ray", "colo", "plan", "zone")
_SUFFIXES = ("id", "key", "source", "time", "state", "rule", "flag", "target", "score", "trace")

INTERNAL: Final = (
    *(f"steel-int-{topic}-{suffix}" for topic in _TOPICS for suffix in _SUFFIXES),
    *("x-origin-shard", "x-worker-token", "x-tenant-internal", "x-debug-upstream", "x-raw-client-hello"),
)
"""Names that must not pass in either direction: 125."""

CHROME: Final = """\
Host: shop.example.com
Connection: keep-alive
sec-ch-ua: "Chromium";v="126", "Google Chrome";v="126", "Not-A.Brand";v="8"
sec-ch-ua-mobile: ?0
sec-ch-ua-platform: "Linux"
Upgrade-Insecure-Requests: 1
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8
Sec-Fetch-Site: same-origin
Sec-Fetch-Mode: navigate
Sec-Fetch-User: ?1
Sec-Fetch-Dest: document
Referer: https://shop.example.com/shoes?page=2
Accept-Encoding: gzip, deflate, br, zstd
Accept-Language: en-GB,en;q=0.9,de;q=0.8
Cookie: session=4f1c0a9be2d74a51; consent=all; _ga=GA1.2.183746.171921; cart=8812-4471-0032; theme=dark
"""

FIREFOX_CALL: Final = """\
Host: api.example.com
User-Agent: Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:127.0) Gecko/20100101 Firefox/127.0
Accept: application/json, text/plain, */*
Accept-Language: de,en-US;q=0.7,en;q=0.3
Accept-Encoding: gzip, deflate, br, zstd
Authorization: Bearer eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiI4ODEyIiwiZXhwIjoxNzE5MjEwMDAwfQ.c2lnbmF0dXJlLW9mLWl0
X-Requested-With: XMLHttpRequest
Origin: https://shop.example.com
Connection: keep-alive
Referer: https://shop.example.com/
Sec-Fetch-Dest: empty
Sec-Fetch-Mode: cors
Sec-Fetch-Site: same-site
Priority: u=0
"""

BEHIND_A_CDN: Final = """\
Host: www.example.com
Accept-Encoding: gzip, br
X-Forwarded-For: 203.0.113.77
CF-RAY: 89a1d2c4fe3b9b2a-FRA
X-Forwarded-Proto: https
CF-Visitor: {"scheme":"https"}
sec-ch-ua: "Safari";v="17"
User-Agent: Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 Version/17.5 Mobile/15E148
Accept: image/webp,image/avif,image/jxl,image/heic,video/*;q=0.8,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5
Accept-Language: fr-FR,fr;q=0.9
Referer: https://www.example.com/fr/
Sec-Fetch-Dest: image
Sec-Fetch-Mode: no-cors
CF-Connecting-IP: 203.0.113.77
CF-IPCountry: FR
CDN-Loop: cloudflare
Cookie: __cf_bm=Zq3m0S9e; lang=fr
"""

BEHIND_A_CLOUD_BALANCER: Final = """\
X-Forwarded-For: 198.51.100.4, 10.0.3.17
X-Forwarded-Proto: https
X-Forwarded-Port: 443
Host: orders.example.com
X-Amzn-Trace-Id: Root=1-6675c0e2-1f3b7d6a5c4e2b1a09f8d7c6
X-Amz-Cf-Id: Jf0m1vXlq3c9u7nB-pX2Yd8oE5sT4rK6wA==
Via: 2.0 5f0e4d3c2b1a.cloudfront.net (CloudFront)
CloudFront-Viewer-Country: DE
CloudFront-Is-Mobile-Viewer: false
CloudFront-Forwarded-Proto: https
User-Agent: okhttp/4.12.0
Accept: application/json
Accept-Encoding: gzip
Content-Type: application/json; charset=utf-8
If-None-Match: W/"5d8c72a5edda8"
Idempotency-Key: 0b9c5a52-7f0e-4b61-8a53-19c4f4d2a6c1
"""

APP: Final = """\
Host: m.example.com
User-Agent: Example/8.14.2 (iOS 17.5; iPhone15,3; Scale/3.00)
Accept: application/json
Accept-Language: en-US;q=1.0
Accept-Encoding: br;q=1.0, gzip;q=0.9, deflate;q=0.8
X-App-Version: 8.14.2
X-Device-Id: 9A7C1E52-0B1D-4E5B-8F59-6A2D4C3B1E00
X-Session: 1719210000-55231
Authorization: Bearer 2YotnFZFEjr1zCsicMWpAA
X-Request-Start: t=1719210000123456
"""

TRACED_SERVICE: Final = """\
Host: inventory.example.internal
User-Agent: python-httpx/0.27.0
Accept: */*
Accept-Encoding: gzip, deflate
Content-Type: application/json
traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
tracestate: rojo=00f067aa0ba902b7,congo=t61rcWkgMzE
baggage: userId=alice,serverNode=DF28,isProduction=false
x-b3-traceid: 4bf92f3577b34da6a3ce929d0e0e4736
x-b3-spanid: 00f067aa0ba902b7
x-b3-sampled: 1
x-envoy-attempt-count: 1
x-envoy-expected-rq-timeout-ms: 15000
x-forwarded-client-cert: By=spiffe://example/ns/shop;Hash=468ed33be74eee6556d90c0149c1309e
steel-int-mesh-id: shop-7d9f
steel-int-auth-key: k-0193
"""

FROM_THE_EDGE: Final = """\
Host: static.example.com
User-Agent: Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) Edg/126.0.0.0
Accept: */*
Accept-Encoding: gzip, deflate, br
Accept-Language: en-US,en;q=0.9
Cache-Control: no-cache
Pragma: no-cache
Range: bytes=0-1048575
If-Range: "33a64df551425fcc55e4d42a148795d9f25f89d4"
X-Forwarded-For: 192.0.2.200
X-Forwarded-Host: static.example.com
X-Real-IP: 192.0.2.200
Fastly-Client-IP: 192.0.2.200
Fastly-FF: 4Kq0=!FRA!cache-fra-eddf8230041
X-Varnish: 1180412
Via: 1.1 varnish
Surrogate-Capability: varnish="ESI/1.0"
Sec-Fetch-Dest: video
Sec-Fetch-Mode: no-cors
Sec-Fetch-Site: same-origin
steel-int-cache-state: stale
"""

CRAWLER: Final = """\
Host: www.example.org
Connection: Keep-Alive
Accept: text/html,application/xhtml+xml,application/signed-exchange;v=b3,application/xml;q=0.9,*/*;q=0.8
From: crawler(at)example.net
User-Agent: Mozilla/5.0 (compatible; Examplebot/2.1; +http://www.example.net/bot.html)
Accept-Encoding: gzip,deflate,br
If-Modified-Since: Sun, 16 Jun 2024 07:12:44 GMT
X-Forwarded-For: 192.0.2.66
X-Forwarded-Proto: http
X-Cloud-Trace-Context: 105445aa7843bc8bf206b12000100000/1;o=1
"""

SETS: Final = (
    CHROME,
    FIREFOX_CALL,
    BEHIND_A_CDN,
    BEHIND_A_CLOUD_BALANCER,
    APP,
    TRACED_SERVICE,
    FROM_THE_EDGE,
    CRAWLER,
)

Fields = tuple[tuple[str, str], ...]


def fields_of(text: str) -> Fields:
    """Pairs of name and value in the order of the text."""
    pairs = (line.split(": ", 1) for line in text.splitlines())
    return tuple((name, value) for name, value in pairs)


def block_of(text: str) -> bytes:
    """Header block as a proxy stores it: the lines with surrounding CRLFs."""
    return b"\r\n" + text.replace("\n", "\r\n").encode()
