"""HTML as a type: text becomes `Html` only through `element`, which escapes whatever is not `Html` already.

A page is built of `Html` alone, so that a name which nobody escaped is an error of types and not a hole in the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from experiments.printable import printable


class Html(str):
    """Markup. Call it with literals of this program only; `element` and `joined` make it of everything else."""

    __slots__ = ()


Node = Html | str
"""What an element may hold; a plain string is text."""

BREAK: Final = Html("\n")


def element(tag: str, *children: Node, **attributes: str) -> Html:
    """`<tag>…</tag>`. A trailing underscore of an attribute's name is dropped, an empty attribute left out."""
    return Html(f"{opened(tag, **attributes)}{joined(children)}</{tag}>")


def opened(tag: str, **attributes: str) -> Html:
    """`<tag …>`, for elements without an end."""
    named = "".join(f' {name.rstrip("_")}="{text(value)}"' for name, value in attributes.items() if value)
    return Html(f"<{tag}{named}>")


def joined(nodes: Iterable[Node]) -> Html:
    """All of them, one after another."""
    return Html("".join(node if isinstance(node, Html) else text(node) for node in nodes))


def text(plain: str) -> Html:
    """Text as it is to be read, for content and for attributes in quotes."""
    return Html(escape(printable(plain)))


def listing(lines: Iterable[str]) -> Html:
    """A list of texts."""
    return element("ul", *(element("li", line) for line in lines))
