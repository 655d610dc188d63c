"""The page of a stream as text: one file with its style, its script and a first snapshot, and nothing from elsewhere.

A content security policy names the script and the style by their digests and forbids everything else, but for the
events of the same server. Colours follow the reader's setting, light or dark; curves differ by dashes too.
"""

import base64
import hashlib
import json
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink: #1d1d1f; --soft: #5c5c66; --paper: #ffffff; --card: #f5f5f7; --line: #d8d8de;
  --one: #16213e; --two: #cf5c39; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8ec; --soft: #a3a3ad; --paper: #17171a; --card: #222226;
  --line: #3a3a42; --one: #8fb4ff; --two: #f0926f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 70rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
p { margin: .2rem 0; }
.soft { color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1rem 0; }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .9rem; }
.cards b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
.panel { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .5rem; }
svg, canvas { display: block; width: 100%; }
svg { height: auto; }
canvas { height: 9rem; }
svg text { fill: var(--soft); font-size: 11px; }
polyline { fill: none; stroke: var(--one); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
polyline.two { stroke: var(--two); stroke-dasharray: 5 3; }
line { stroke: var(--line); }
.key { display: inline-block; width: 1.6rem; border-top: 2px solid var(--one); vertical-align: middle; }
.key.two { border-top: 2px dashed var(--two); }
"""

SCRIPT = """
"use strict";
const at = name => document.getElementById(name);
const short = value => value === null || value === undefined ? "–" : Number(value.toPrecision(4)).toString();
const bytes = size => size === null ? "–" : (size / 1e6).toFixed(1) + " MB";
const NS = ["http:", "", "www.w3.org", "2000", "svg"].join("/");
function element(kind, attributes, text) {
  const made = document.createElementNS(NS, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
function curves(place, lines) {
  const width = 900, height = 140, left = 60, low = 120, top = 8;
  const known = lines.flat().filter(point => point[1] !== null && point[1] !== undefined);
  place.setAttribute("viewBox", `0 0 ${width} ${height}`);
  place.replaceChildren();
  if (known.length < 2) return;
  const xs = known.map(point => point[0]), ys = known.map(point => point[1]);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)], [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  const across = x => left + (width - left - 8) * (x - x0) / ((x1 - x0) || 1);
  const down = y => low - (low - top) * (y - y0) / ((y1 - y0) || 1);
  for (const y of y1 > y0 ? [y0, y1] : [y0]) {
    place.append(element("line", {x1: left, x2: width - 8, y1: down(y), y2: down(y)}));
    place.append(element("text", {x: left - 6, y: down(y) + 4, "text-anchor": "end"}, short(y)));
  }
  place.append(element("text", {x: left, y: 136}, x0.toLocaleString("en")));
  place.append(element("text", {x: width - 8, y: 136, "text-anchor": "end"}, "step " + x1.toLocaleString("en")));
  lines.forEach((line, number) => {
    const there = line.filter(p => p[1] !== null && p[1] !== undefined);
    const points = there.map(p => `${across(p[0]).toFixed(1)},${down(p[1]).toFixed(1)}`);
    place.append(element("polyline", {points: points.join(" "), class: number ? "two" : "one"}));
  });
}
function raster(place, rows) {
  const ink = place.getContext("2d"), count = rows.length ? rows[0].length : 0;
  place.width = 960; place.height = Math.max(1, count) * 6;
  ink.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--one");
  const most = Math.max(1e-9, ...rows.flat().map(Math.abs)), wide = place.width / Math.max(1, rows.length);
  rows.forEach((row, step) => row.forEach((value, neuron) => {
    ink.globalAlpha = Math.abs(value) / most;
    ink.fillRect(step * wide, neuron * 6, Math.max(1, wide - 1), 5);
  }));
}
function show(now) {
  at("state").textContent = now.state;
  at("steps").textContent = now.steps.toLocaleString("en");
  at("rate").textContent = now.rate === null ? "–" : Math.round(now.rate).toLocaleString("en");
  at("loss").textContent = short(now.loss);
  at("memory").textContent = bytes(now.memory);
  curves(at("curve"), [now.curve]);
  curves(at("beside"), [now.recent.map(row => [row[0], row[2]]), now.recent.map(row => [row[0], row[1]])]);
  at("silent").hidden = now.activity.length > 0;
  raster(at("raster"), now.activity);
}
show(JSON.parse(at("first").textContent));
let events = 0;
const source = new EventSource("/events");
source.onmessage = event => { show(JSON.parse(event.data)); document.body.dataset.events = ++events; };
source.onerror = () => { source.close(); at("state").textContent += " (the program has ended)"; };
"""


def _named(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; script-src {_named(SCRIPT)}; style-src {_named(STYLE)}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def live_page(snapshot: dict[str, Any]) -> str:
    """The page, with a first snapshot of the stream in it."""
    title, window = escape(str(snapshot["title"])), f"{snapshot['window']:,}"
    first = json.dumps(snapshot).replace("<", "\\u003c")  # so that no text of the stream ends the element
    cards = {
        "steps": "steps",
        "rate": "steps per second",
        "loss": f"loss, last {window} steps",
        "memory": "memory",
    }
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} – Foretrace</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<p class="soft" id="state" role="status"></p>
<div class="cards">{"".join(f'<div><b id="{name}">–</b>{words}</div>' for name, words in cards.items())}</div>
<h2>Loss, mean of the last {window} steps</h2>
<div class="panel"><svg id="curve" role="img" aria-label="the windowed loss over all steps"></svg></div>
<h2>Prediction beside truth, the first output of the last steps</h2>
<p class="soft"><span class="key"></span> truth &nbsp; <span class="key two"></span> prediction, made before it</p>
<div class="panel"><svg id="beside" role="img" aria-label="predictions and targets of the last steps"></svg></div>
<h2>Activity of the network: spikes, or hidden units; each row a neuron</h2>
<div class="panel"><p class="soft" id="silent">This network shows none.</p>
<canvas id="raster" role="img" aria-label="activity of the last steps"></canvas></div>
<script type="application/json" id="first">{first}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""
