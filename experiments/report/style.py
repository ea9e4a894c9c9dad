"""Style sheet of the report.

No reference to anything outside the page; light and dark by the reader's setting; every colour is defined once. It is a
Python module so that every installation contains it.
"""

STYLE = """\
:root {
  color-scheme: light dark;
  --paper: #fbfbfa; --card: #fff; --ink: #1d1f21; --soft: #5c6166; --line: #dfe1e3;
  --accent: #0072b2; --bad: #b3261e; --good: #00714f; --few: #8b9094; --warn: #fff4e0; --warn-line: #e69f00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15171a; --card: #1d2024; --ink: #e8eaec; --soft: #a5abb1; --line: #34383d;
    --accent: #56b4e9; --bad: #ff8a80; --good: #4fd1a5; --few: #7d848a; --warn: #33290f; --warn-line: #e69f00;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: break-word;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1160px; margin: 0 auto; padding: 2rem 1rem 4rem; }
.eyebrow { margin: 0; color: var(--soft); letter-spacing: .04em; }
h1 { margin: .1rem 0 1.2rem; font-size: clamp(1.5rem, 4vw, 2.1rem); line-height: 1.2; }
h2 { margin: 2.6rem 0 .4rem; font-size: 1.25rem; }
p { margin: .4rem 0; }
.note, figcaption { color: var(--soft); font-size: .92rem; max-width: 75ch; }
.verdict, .warning {
  margin: 0 0 1rem; padding: .9rem 1.1rem; background: var(--card);
  border: 1px solid var(--line); border-left: 5px solid var(--accent); border-radius: 6px;
}
.verdict > strong { font-size: 1.15rem; }
.verdict.none { border-left-color: var(--few); }
.warning { background: var(--warn); border-left-color: var(--warn-line); }
.warning ul, section ul { margin: .3rem 0 0; padding-left: 1.2rem; }
section li { margin: .25rem 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; background: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td {
  padding: .42rem .55rem;
  text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
tbody tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--card); }
td:first-child { font-weight: 600; }
.prose th, .prose td { text-align: left; }
td.few { color: var(--few); font-style: italic; }
td.bad { color: var(--bad); font-weight: 600; }
td.good { color: var(--good); font-weight: 600; }
figure { margin: .6rem 0 0; }
figure img { display: block; width: 100%; min-width: 46rem; height: auto; background: #fff; }
figcaption { margin-top: .5rem; }
@media print { .scroll { overflow: visible; } section { break-inside: avoid; } }
"""
