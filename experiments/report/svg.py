"""SVG files of figures: smaller than matplotlib writes them, and dark where the reader's setting is dark.

Only the colours that `palette.DARK` names are exchanged, by a style sheet inside the file; programs without style
sheets show the light colours.
"""

from __future__ import annotations

import io
import re
from base64 import b64decode, b64encode

from PIL import Image

from experiments.report.palette import DARK

NUMBER = re.compile(rb"-?\d+\.\d{3,}")
PATHS = re.compile(rb' d="[^"]+"')
POINT = re.compile(rb"([ML])(-?[\d.]+) (-?[\d.]+)")
LINES = re.compile(rb' d="(?:[ML]-?[\d.]+ -?[\d.]+)+"')
MIN_CURVE_BYTES = 1000
"""Number of bytes from which on a path is a curve and no letter or mark."""

METADATA = re.compile(rb"<metadata>.*?</metadata>\s*", re.DOTALL)
BETWEEN = re.compile(rb">\s+<")
IMAGES = re.compile(rb"(data:image/png;base64,)([A-Za-z0-9+/=\s]+)")
PLACES = re.compile(rb"<use [^>]*>")
STYLES = re.compile(rb'style="[^"]*"')


def finished(svg: bytes) -> bytes:
    """Shorten the numbers and spaces of `svg` and add the dark colours."""
    text = BETWEEN.sub(b"><", METADATA.sub(b"", svg))
    text = IMAGES.sub(lambda found: found[1] + with_palette(b64decode(found[2])), text)
    text = PLACES.sub(lambda found: NUMBER.sub(lambda number: b"%.2f" % float(number[0]), found[0]), text)
    text = STYLES.sub(lambda found: found[0].replace(b": ", b":").replace(b"; ", b";"), text)
    text = PATHS.sub(lambda found: shortened(found[0]), text)
    return text.replace(b"<defs>", b"<defs><style>" + dark_rules(text).encode() + b"</style>", 1)


def with_palette(png: bytes) -> bytes:
    """Base64 of the picture with at most 256 colours: dots have few, and so take a third of the bytes."""
    made = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGBA").quantize(256, Image.Quantize.FASTOCTREE).save(made, "png", optimize=True)
    return b64encode(made.getvalue())


def shortened(path: bytes) -> bytes:
    """Path data with two decimals; the long path of a curve has one, and short commands for level and upright lines."""
    digits = b"%.1f" if len(path) > MIN_CURVE_BYTES else b"%.2f"
    text = NUMBER.sub(lambda found: digits % float(found[0]), path)
    text = re.sub(rb"\s*\n", rb"", re.sub(rb"([MLQCHVz]) ", rb"\1", text))
    return steps(text) if len(path) > MIN_CURVE_BYTES and LINES.fullmatch(text) else text


def steps(path: bytes) -> bytes:
    """Path of straight lines in which a level line is `H x` and an upright one `V y`."""
    made, before = [], (b"", b"")
    for command, x, y in POINT.findall(path):
        if command == b"M" or (x != before[0] and y != before[1]):
            made.append(command + x + b" " + y)
        elif (x, y) != before:
            made.append(b"H" + x if y == before[1] else b"V" + y)
        before = (x, y)
    return b' d="' + b"".join(made) + b'"'


def dark_rules(svg: bytes) -> str:
    """Style sheet that exchanges the colours that occur."""
    present = {light: dark for light, dark in DARK.items() if light.encode() in svg}
    rules = "".join(
        f'[style*="{key}:{light}"]{{{key}:{dark}!important}}'
        for light, dark in present.items()
        for key in ("fill", "stroke")
    )
    return f"@media(prefers-color-scheme:dark){{{rules}}}"
