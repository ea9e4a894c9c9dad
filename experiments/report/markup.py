"""HTML as a type: text becomes `Html` only through `element`, which escapes everything that is not `Html`.

A page consists of `Html` only, so an unescaped name is a type error and not an injection.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from experiments.printable import printable


class Html(str):
    """Markup. Construct it from literals of this program only; `element` and `joined` escape everything else."""

    __slots__ = ()


Node = Html | str
"""Content of an element; a plain string is text."""

BREAK: Final = Html("\n")


def element(tag: str, *children: Node, **attributes: str) -> Html:
    """Element `<tag>…</tag>`. A trailing underscore of an attribute's name is dropped, an empty attribute left out."""
    return Html(f"{opened(tag, **attributes)}{joined(children)}</{tag}>")


def opened(tag: str, **attributes: str) -> Html:
    """Start tag `<tag …>`, for elements without an end tag."""
    named = "".join(f' {name.rstrip("_")}="{text(value)}"' for name, value in attributes.items() if value)
    return Html(f"<{tag}{named}>")


def joined(nodes: Iterable[Node]) -> Html:
    """Concatenation of the nodes, with strings escaped."""
    return Html("".join(node if isinstance(node, Html) else text(node) for node in nodes))


def text(plain: str) -> Html:
    """Escape text for content and quoted attributes."""
    return Html(escape(printable(plain)))


def listing(lines: Iterable[str]) -> Html:
    """HTML list with one item per line."""
    return element("ul", *(element("li", line) for line in lines))
