"""Style sheet of the report."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --text: #1c2430; --muted: #5d6878; --line: #dfe3e9;
  --ok: #1a7f4b; --sub: #c62f3b; --del: #9a6700; --ins: #7a3fc4; --warning: #9a6700;
  --series-0: #2f6fde; --series-1: #e0632b; --series-2: #1f9d78; --series-3: #b8860b;
  --series-4: #8a4fd0; --series-5: #d0417f; --series-6: #3a8fb7; --series-7: #7a6a53;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #11151b; --card: #1a2029; --text: #e6eaf0; --muted: #9aa5b5; --line: #323b48;
    --ok: #55c98b; --sub: #ff7b82; --del: #e3b341; --ins: #bf9bff; --warning: #e3b341;
    --series-0: #6ea3ff; --series-1: #ff9461; --series-2: #4ccfa6; --series-3: #e3b341;
    --series-4: #bf9bff; --series-5: #ff86b3; --series-6: #73c3e6; --series-7: #c0ad92;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 1.25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 0.75rem; overflow-wrap: anywhere; }
h3 { font-size: 0.95rem; font-weight: 600; margin: 0 0 0.35rem; overflow-wrap: anywhere; }
section, .tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
section { padding: 1.1rem 1.25rem 1.25rem; margin-top: 1rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: 0.75rem; margin: 0; }
.tile { padding: 0.7rem 1rem 0.8rem; }
.tile dt { color: var(--muted); font-size: 0.85rem; }
.tile dd { margin: 0; font-size: 1.5rem; font-weight: 650; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile small { font-size: 0.9rem; font-weight: 400; color: var(--muted); }
.note, figcaption { color: var(--muted); font-size: 0.875rem; font-weight: 400; }
.note { margin: 0; }
.warning { color: var(--warning); font-size: 0.9rem; margin: 0.6rem 0 0; overflow-wrap: anywhere; }
figure { margin: 0.75rem 0 0; }
svg { display: block; width: 100%; height: auto; }
svg * { stroke-linejoin: round; }
.legend { display: flex; flex-wrap: wrap; gap: 0.25rem 1rem; margin-bottom: 0.35rem; font-size: 0.875rem; }
.key { white-space: nowrap; }
.key i { display: inline-block; width: 1.1rem; height: 0.2rem; border-radius: 2px; margin-right: 0.4rem; vertical-align:
  middle; }
.note .key { margin-left: 0.75rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.925rem; width: 100%; }
th { color: var(--muted); font-weight: 500; font-size: 0.85rem; }
th, td { text-align: left; padding: 0.4rem 0.75rem 0.4rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
table.numbers th:nth-child(n + 2), table.numbers td:nth-child(n + 2) { text-align: right; padding-right: 0;
  padding-left: 0.75rem; font-variant-numeric: tabular-nums; }
table.numbers td:nth-child(2) { font-weight: 650; }
table.texts td { overflow-wrap: anywhere; white-space: pre-wrap; }
table.texts td:first-child { color: var(--muted); width: 30%; min-width: 8rem; }
article { margin-top: 1rem; padding-top: 0.9rem; border-top: 1px solid var(--line); }
.alignment { display: flex; flex-wrap: wrap; gap: 0.35rem 0.55rem; font-family: ui-monospace, SFMono-Regular, Menlo,
  Consolas, "Liberation Mono", monospace; font-size: 0.85rem; line-height: 1.4; }
.pair { display: inline-grid; grid-template-rows: repeat(3, auto); text-align: center; border-radius: 5px;
  padding: 0 0.3rem; overflow-wrap: anywhere; }
.pair b { font-size: 0.7rem; min-height: 1em; line-height: 1.2; }
.pair.side { text-align: left; color: var(--muted); font-family: inherit; padding-left: 0; }
.ok { color: var(--ok); }
.sub { color: var(--sub); }
.del { color: var(--del); }
.ins { color: var(--ins); }
.pair.sub { background: color-mix(in srgb, var(--sub) 12%, transparent); }
.pair.del { background: color-mix(in srgb, var(--del) 12%, transparent); }
.pair.ins { background: color-mix(in srgb, var(--ins) 12%, transparent); }
@media print { section { break-inside: avoid; } }
"""
