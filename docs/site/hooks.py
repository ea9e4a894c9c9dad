"""Hooks of MkDocs: README.md is the home page, and files outside `docs` to which pages link are part of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md"} | {
    name: name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
}
"""Pages of the top folder, and their names in the site."""

LINK = re.compile(r"""(?:(?<=\]\()|(?<=src=")|(?<=srcset="))(?!https?:|#)([^)#"]+)""")


def in_site(path: Path) -> str:
    """Return the name in the site of a file of the checkout."""
    if path.is_relative_to(ROOT / "docs"):
        return str(path.relative_to(ROOT / "docs"))
    name = str(path.relative_to(ROOT))
    return PAGES.get(name, f"files/{name}")


def with_links(text: str, folder: Path) -> tuple[str, dict[str, Path]]:
    """Return a page of `folder` with the links of the site, and the files outside `docs` to which it links."""
    linked = {target: (folder / target).resolve() for target in LINK.findall(text)}
    found = {
        in_site(path): path
        for path in linked.values()
        if path.is_file() and not in_site(path).endswith(".md")
    }
    return LINK.sub(lambda match: in_site(linked[match[1]]), text), found


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the top folder and the files to which pages link."""
    others = dict[str, Path]()
    for page in list(files.documentation_pages()):
        others |= with_links(page.content_string, ROOT / "docs")[1]
    for name, page in PAGES.items():
        text, found = with_links((ROOT / name).read_text(encoding="utf-8"), ROOT)
        files.append(File.generated(config, page, content=text))
        others |= found
    for name, path in others.items():
        if name.startswith("files/"):
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links out of `docs`."""
    is_own = page.file.src_uri in PAGES.values()
    return markdown if is_own else with_links(markdown, ROOT / "docs")[0]
