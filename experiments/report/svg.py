"""SVG files of figures: smaller than matplotlib writes them, and dark where the reader's setting is dark.

Only the colours that `palette.DARK` names are exchanged, by a style sheet inside the file; programs without style
sheets show the light colours.
"""

from __future__ import annotations

import re

from experiments.report.palette import DARK

NUMBER = re.compile(rb"-?\d+\.\d{3,}")
PATHS = re.compile(rb' d="[^"]+"')
STYLES = re.compile(rb'style="[^"]*"')


def finished(svg: bytes) -> bytes:
    """Shorten the numbers and spaces of `svg` and add the dark colours."""
    text = STYLES.sub(lambda found: found[0].replace(b": ", b":").replace(b"; ", b";"), svg)
    text = PATHS.sub(lambda found: shortened(found[0]), text)
    return text.replace(b"<defs>", b"<defs><style>" + dark_rules(text).encode() + b"</style>", 1)


def shortened(path: bytes) -> bytes:
    """Path data with two decimals; glyphs, whose units are small, have fewer than that and stay."""
    text = NUMBER.sub(lambda found: b"%.2f" % float(found[0]), path)
    return re.sub(rb"\s*\n", rb"", re.sub(rb"([MLQCHVz]) ", rb"\1", text))


def dark_rules(svg: bytes) -> str:
    """Style sheet that exchanges the colours that occur."""
    present = {light: dark for light, dark in DARK.items() if light.encode() in svg}
    rules = "".join(
        f'[style*="{key}:{light}"]{{{key}:{dark}!important}}'
        for light, dark in present.items()
        for key in ("fill", "stroke")
    )
    return f"@media(prefers-color-scheme:dark){{{rules}}}"
