"""Names that an attacker would choose, and a parser that finds what they have become in a page."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from balancer.control.admin.page.document import digest
from experiments.results.directory import load_results, save_result
from experiments.run_data import Run

NAMES = (
    "<script>document.title='x'</script>",
    '"><img src=x onerror=document.title=1>',
    "' onmouseover='document.title=1' x='",
    "</style><script>document.title=1//",
    "</title><svg/onload=document.title=1>",
    "&lt;script&gt;&#60;b&#62;&amp;",
    "javascript:document.title=1",
    "<!-- ]]> --> <![CDATA[<b>",
    "$\\frac{$ $^$ {{x}} ${x} `x`",
    "[/bold] [link=x] [red]",
    "_hidden | *x* \\",
)
"""Each fits a label."""

UNPRINTABLE = (
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "a\nb",
    "a\rb",
    "\x00",
    "\x7f",
    "\x9b2J",
    "\u202egnp.exe",
    "\ud800",
)

TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "section", "div", "p", "h1", "h2"),
    *("strong", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "figure", "img", "figcaption"),
    *("nav", "a", "details", "summary"),
}
ATTRIBUTES = {
    *("lang", "charset", "name", "content", "http-equiv", "class", "scope", "tabindex", "src", "alt"),
    *("id", "href", "aria-label"),
}


@dataclass
class Page(HTMLParser):
    """What a page has: `texts` are those of its elements, attributes and charts, `strange` what no page of ours has."""

    texts: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    policy: str | None = None
    script: str | None = None

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "script":
            self.script = ""
            self.is_data = found == {"type": "application/json"}
            self.strange += [f"script {name}" for name in found if not self.is_data]
            return
        self.strange += [tag] * (tag not in TAGS)
        self.strange += [f"{tag} {name}" for name in found if name not in ATTRIBUTES]
        self.strange += [
            f"{tag} {name}={value}"
            for name, value in found.items()
            if name == "src" and not (value or "").startswith("data:image/svg+xml,")
        ]
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"]
        self.texts += [value or "" for value in found.values()]

    def handle_data(self, data: str) -> None:
        if self.script is None:
            self.texts.append(data)
        else:
            self.script += data

    def handle_endtag(self, tag: str) -> None:
        """A script is the data of a chart, or the one whose digest the page's policy names."""
        if tag != "script" or self.script is None:
            return
        if self.is_data:
            self.texts += [line["label"] for line in json.loads(self.script)["lines"]]
        elif f"script-src '{digest(self.script)}'" not in (self.policy or ""):
            self.strange.append(f"script {self.script[:40]}")
        self.script = None

    def handle_comment(self, data: str) -> None:
        self.strange.append(f"<!--{data}-->")

    def unknown_decl(self, data: str) -> None:
        self.strange.append(f"<![{data}]>")

    def handle_pi(self, data: str) -> None:
        self.strange.append(f"<?{data}>")


def parsed(text: str) -> Page:
    """The page, read to its end."""
    page = Page()
    page.feed(text)
    page.close()
    return page


def strange_in(svg: bytes) -> list[str]:
    """Elements and addresses that no figure of ours has."""
    found = []
    for part in ElementTree.fromstring(svg).iter():
        tag = str(part.tag).rpartition("}")[2]
        if tag in ("script", "foreignObject", "a", "set", "animate", "text", "iframe"):
            found.append(tag)
        for name, value in part.attrib.items():
            name = name.rpartition("}")[2]
            is_outside = name == "href" and not value.startswith(("#", "data:image/png;base64,"))
            if name.startswith("on") or is_outside:
                found.append(f"{tag} {name}={value}")
    return found


def rename(directory: Path) -> None:
    """Labels, question, command, machine, versions, reasons; the files are written as an attacker would."""
    path, results = directory / "campaign.json", load_results(directory)
    campaign = json.loads(path.read_text(encoding="utf-8"))
    scenario = campaign["scenario"]
    labels = [entry["label"] for entry in scenario["entries"]]
    others = dict(zip(labels, NAMES, strict=False))
    assert len(others) == len(labels)
    for entry in scenario["entries"]:
        entry["label"] = others[entry["label"]]
        entry["repeat_of"] = others.get(entry["repeat_of"])
    for planned in campaign["plan"]:
        planned["label"] = others[planned["label"]]
    scenario["baseline"] = others[scenario["baseline"]]
    scenario["question"] = " ".join(NAMES)
    campaign["command"] = campaign["machine"] = campaign["started_at"] = " ".join(NAMES)
    campaign["versions"] = {name: name for name in NAMES}
    campaign["policy_files"] = [{"path": name, "version": name} for name in NAMES]
    path.write_text(json.dumps(campaign), encoding="utf-8")
    for planned, run in zip(results.campaign.plan, results.runs, strict=True):
        reasons = tuple(f"{name}\x1b[31m" for name in NAMES)
        places = [{"worker": NAMES[at], "region": NAMES[at + 3]} for at in range(len(run.facts.places))]
        changes = {"label": others[run.facts.label], "invalid_reasons": reasons, "places": places}
        facts = type(run.facts).model_validate(run.facts.model_dump() | changes)
        save_result(Run(facts, run.samples), planned, directory)
