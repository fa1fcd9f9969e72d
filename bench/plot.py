#!/usr/bin/env python3
"""Decode time against context, log-log, as an SVG without dependencies, from CSV files of peers_cuda.py, bench_cuda,
bench and peers_cpu.py; with --relative how many times as fast as our dense, on a linear scale.

    python3 bench/plot.py FILE.csv ... -o plot.svg [--relative] [--panel REGEX] [--lines REGEX] [--title TEXT]
    make bench && python3 bench/plot.py build/bench.csv -o build/bench.svg --panel 'f16|q8_0'

One panel for each device, type, layout and batch or number of threads that has at least two contexts, one line per
method; the others are named on stderr. --panel keeps the panels whose title matches, --lines the lines. The floor,
reading K once, is dashed. With --relative a time is compared with the dense of its own file; where two files have a line,
it is the first one's. Light or dark follows the reader's browser.
"""
import argparse
import csv
import math
import re
import sys
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 600, 400, 64, 208, 40, 46        # of one panel
GAP = 15                                                     # between labels, in pixels
STASH = {"": "", "0": "", "1": " f32", "2": " f16", "3": " u8"}
# colour by what a line is, told apart within a kind by the marker: class, light, dark
PALETTE = [("peer", "#2563eb", "#7aa7ff"), ("other", "#7c5cbf", "#b9a3f0"), ("dense", "#111827", "#f3f4f6"),
           ("prop", "#d9480f", "#ff9355"), ("sys", "#d9480f", "#ff9355"), ("flash", "#15803d", "#5fd08a"),
           ("floor", "#6b7280", "#9ca3af")]
COLOURED = {entry[0] for entry in PALETTE}
FLOOR = "floor: K read once", "floor"                        # label, class
MARKERS = ("circle", "square", "triangle", "diamond")


def gpu_points(rows):
    for row in rows:
        name = row["method"]
        peer = row.get("exact") == "1" and not name.startswith("santa")
        label = name if peer or name.startswith("santa") else f"santa {name}"
        label = re.sub(", copy of ([24]) bits", r", \1-bit K", label.replace(" S=", " "))     # room is short
        kind = "peer" if peer else name.removeprefix("santa ").split()[0]
        if kind not in ("peer", "dense") and int(row["num_samples"]) and " S=" not in name:
            stash = row.get("stash", "")
            label += f" {row['num_samples']}" + STASH.get(stash, f" {stash}")
        panel, n = f"GPU, {row['type']}, {row['layout']}, batch {row['batch']}", int(row["context"])
        yield panel, label, kind, n, float(row["us"])
        yield panel, *FLOOR, n, float(row["floor_us"])


def cpu_points(rows):
    table = [row for row in rows if row["section"] == "table"]
    threads = {row["threads"] for row in table if row["method"] == "read K"}
    for row in table:
        name, n, us = row["method"], int(row["n"]), 1e3 * float(row["median_ms"])
        budget = f" {row['num_samples']}" if int(row["num_samples"]) else ""
        known = {"read K": FLOOR, "read 10 %": ("10 % of rows read", "floor"), "plain C": ("plain C, 1 thread", "peer")}
        line = known.get(name, (f"santa {name}{budget}", name))
        forced = "" if row["isa"] == "auto" else f", {row['isa']} only"
        for t in threads if name == "plain C" else [row["threads"]]:         # it runs on one thread whatever the others do
            yield f"CPU, {row['type']}, {row['layout']}, threads {t}{forced}", *line, n, us


def peer_points(rows):
    """Of peers_cpu.py."""
    for row in rows:
        name, n, us = row["method"], int(row["n"]), 1e3 * float(row["median_ms"])
        if name.endswith(", copy"):                                          # "santa pps 128, copy": as bench calls it
            method, draws = name.removesuffix(", copy").rsplit(" ", 1)
            name = f"{method} copy {draws}"
        ours = name.startswith("santa ")
        line = FLOOR if name == "read K once" else (name, name.split()[1] if ours else "peer")
        yield f"CPU, {row['type']}, {row['layout']}, threads {row['threads']}", *line, n, us


def points_of(rows):
    columns = rows[0] if rows else {}
    return gpu_points(rows) if "us" in columns else peer_points(rows) if "error_peaked" in columns else cpu_points(rows)


def read(path):
    """Yields (panel, label, class, context, microseconds) of one file; the columns say which benchmark wrote it."""
    with open(path, newline="") as f:
        rows = list(csv.DictReader(f))
    try:
        for panel, label, kind, n, us in points_of(rows):
            yield panel, label, kind if kind in COLOURED else "other", n, us
    except (KeyError, ValueError) as e:
        sys.exit(f"{path}: not a CSV file of these benchmarks ({type(e).__name__}: {e})")


def relative(points):
    """The same with how many times as fast as dense in place of the microseconds."""
    points = list(points)
    dense = {(panel, n): us for panel, label, _, n, us in points if label == "santa dense"}
    for panel, label, kind, n, us in points:
        if (panel, n) in dense:
            yield panel, label, kind, n, dense[panel, n] / us


def spread(wanted, low, high):
    """Label positions near the wanted ones, in their order, at least GAP apart, inside [low, high] where they fit."""
    order, y = sorted(range(len(wanted)), key=wanted.__getitem__), list(wanted)
    for a, b in zip(order, order[1:]):
        y[b] = max(y[b], y[a] + GAP)
    limit = high
    for i in reversed(order):
        y[i] = min(y[i], limit)
        limit = y[i] - GAP
    shift = max(0.0, low - min(y))
    return [v + shift for v in y]


def marker(shape, cls, x, y, r=4.0):
    if shape == "circle":
        return f'<circle class="{cls} dot" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
    corners = {"square": [(-1, -1), (1, -1), (1, 1), (-1, 1)], "triangle": [(0, -1.3), (1.2, 0.9), (-1.2, 0.9)],
               "diamond": [(0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)]}[shape]
    return f'<polygon class="{cls} dot" points="{" ".join(f"{x + r * a:.1f},{y + r * b:.1f}" for a, b in corners)}"/>'


def count(n):
    return f"{n >> 20}M" if n % (1 << 20) == 0 else f"{n >> 10}k" if n % 1024 == 0 else str(n)


def duration(us):
    return f"{us:g} µs" if us < 1e3 else f"{us / 1e3:g} ms" if us < 1e6 else f"{us / 1e6:g} s"


def ticks(low, high):
    """1, 2, 5 steps of each decade inside [low, high]."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (m * 10.0 ** e for e in decades for m in (1, 2, 5))
    return [t for t in steps if low <= t <= high]


def draw(title, lines, x0, y0, linear):
    """One panel at (x0, y0). lines: label -> (class, {context: us}); linear: times as fast instead, from 0 on."""
    contexts = sorted({n for _, points in lines.values() for n in points})
    times = [t for _, points in lines.values() for t in points.values()]
    low, high = (0.0, max(times) * 1.05) if linear else (min(times) * 0.8, max(times) * 1.25)
    left, right, top, bottom = x0 + LEFT, x0 + WIDTH - RIGHT, y0 + TOP, y0 + HEIGHT - BOTTOM

    def x(n):
        return left + 12 + (right - left - 24) * math.log(n / contexts[0]) / math.log(contexts[-1] / contexts[0])

    def y(t):
        return bottom - (bottom - top) * (t / high if linear else math.log(t / low) / math.log(high / low))
    svg = [f'<text class="title" x="{left}" y="{y0 + 24}">{escape(title)}</text>']
    for t in range(math.floor(high) + 1) if linear else ticks(low, high):
        svg.append(f'<path class="grid" d="M{left} {y(t):.1f}H{right}"/>')
        svg.append(f'<text class="end" x="{left - 8}" y="{y(t) + 4:.1f}">{f"{t}x" if linear else duration(t)}</text>')
    for n in contexts:
        svg.append(f'<path class="grid" d="M{x(n):.1f} {top}V{bottom}"/>')
        svg.append(f'<text class="mid" x="{x(n):.1f}" y="{bottom + 18}">{count(n)}</text>')
    svg.append(f'<text class="mid" x="{(left + right) / 2}" y="{bottom + 38}">keys of context</text>')
    names = sorted(lines, key=lambda label: (lines[label][0] != "floor", lines[label][0] in ("prop", "sys")))
    ends = spread([y(lines[name][1][max(lines[name][1])]) for name in names], top + 6, bottom)
    seen = {}
    for name, end in zip(names, ends):
        cls, points = lines[name]
        path = sorted(points.items())
        shape = MARKERS[seen.setdefault(cls, 0) % len(MARKERS)]
        seen[cls] += 1
        svg.append(f'<path class="{cls} line" d="M{"L".join(f"{x(n):.1f} {y(t):.1f}" for n, t in path)}"/>')
        if cls != "floor":
            svg += [marker(shape, cls, x(n), y(t)) for n, t in path]
            svg.append(marker(shape, cls, right + 20, end, 3.5))
        last, t = path[-1]
        svg.append(f'<path class="{cls} leader" d="M{x(last) + 6:.1f} {y(t):.1f}L{right + 12} {end:.1f}"/>')
        svg.append(f'<text class="{cls} label" x="{right + 28}" y="{end + 4:.1f}">{escape(name)}</text>')
    return svg


def style():
    def theme(column, text, grid, back):
        rules = [f"text{{fill:{text}}} .grid{{stroke:{grid}}} .back{{fill:{back}}}"]
        for entry in PALETTE:
            name, colour = entry[0], entry[column]
            rules.append(f".line.{name},.leader.{name}{{stroke:{colour}}} .dot.{name},.label.{name}{{fill:{colour}}}")
        return "\n".join(rules)
    return ("<style>text{font:12px system-ui,sans-serif} .title{font-size:14px;font-weight:600} .end{text-anchor:end}\n"
            ".mid{text-anchor:middle} .line{fill:none;stroke-width:2} .line.floor{stroke-dasharray:5 4}\n"
            ".leader{fill:none;stroke-width:1;opacity:.5}\n" + theme(1, "#374151", "#e5e7eb", "#ffffff") +
            "\n@media(prefers-color-scheme:dark){" + theme(2, "#d1d5db", "#30363d", "#0d1117") + "}</style>")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE.csv")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--relative", action="store_true", help="times as fast as our dense, linear")
    parser.add_argument("--panel", default="", metavar="REGEX")
    parser.add_argument("--lines", default="", metavar="REGEX")
    parser.add_argument("--title")
    args = parser.parse_args()
    args.title = args.title or ("One decode step: times as fast as our dense" if args.relative else
                                "One decode step: time against context")
    panels = {}
    for path in args.files:
        for panel, label, kind, n, y in relative(read(path)) if args.relative else read(path):
            if re.search(args.panel, panel) and re.search(args.lines, label):
                points = panels.setdefault(panel, {}).setdefault(label, (kind, {}))[1]
                # the floor is in every row; of several runs the fastest
                points[n] = points.get(n, y) if args.relative else min(y, points.get(n, y))
    short = [panel for panel, lines in panels.items() if len({n for _, points in lines.values() for n in points}) < 2]
    for panel in short:
        print(f"left out, one context only: {panel}", file=sys.stderr)
        del panels[panel]
    if not panels:
        sys.exit("nothing to draw")
    columns = min(2, len(panels))
    width, height = columns * WIDTH, 34 + -(-len(panels) // columns) * HEIGHT
    svg = ['<svg xmlns="http://www.w3.org/2000/svg" role="img" '
           f'viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
           f"<title>{escape(args.title)}</title>", style(), f'<rect class="back" width="{width}" height="{height}"/>',
           f'<text class="title" x="{LEFT}" y="26">{escape(args.title)}</text>']
    for i, (panel, lines) in enumerate(panels.items()):
        svg += draw(panel, lines, i % columns * WIDTH, 34 + i // columns * HEIGHT, args.relative)
    with open(args.output, "w", encoding="utf-8") as f:
        f.write("\n".join(svg + ["</svg>", ""]))


if __name__ == "__main__":
    main()
