#!/usr/bin/env python3
"""Accuracy against what is read, one line per method, as an SVG without dependencies, from a CSV file of accuracy.c.

    make accuracy && python3 bench/accuracy/figure.py build/accuracy.csv -o build/accuracy.svg [--x head] [--title TEXT]
    make accuracy TABLES=6 && python3 bench/accuracy/figure.py build/accuracy.csv --x bytes -o build/bytes.svg

One panel a task; dense attention is the dashed line. Of table 1: against V rows, the distinct ones per group of heads,
what has to be read from memory, or with --x head those of one head; a last panel has the tasks' mean. Of table 6, with
--x bytes: against the bytes of K, V and the copy of K; the last panel has the error of a head's output. Bars are 95 %
intervals. Light or dark follows the reader's browser.
"""
import argparse
import csv
import math
import re
import sys
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from plot import marker                                      # noqa: E402  bench/plot.py

PANEL_WIDTH, PANEL_HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 400, 290, 48, 14, 34, 46
HEAD = 66                                                    # title and legend
# method, marker, light, dark
METHODS = [("iid", "circle", "#7c5cbf", "#b9a3f0"), ("strat", "square", "#0e7490", "#5cc8dd"),
           ("sys", "triangle", "#d9480f", "#ff9355"), ("prop", "diamond", "#b45309", "#f0b45c"),
           ("flash", "square", "#15803d", "#5fd08a"), ("top-k", "circle", "#2563eb", "#7aa7ff"),
           ("top-p", "triangle", "#be185d", "#f28ab5")]
COPIED = [("sys", "triangle", "#f0a37e", "#8a4a26"), ("pps", "circle", "#b9a3f0", "#5b4a8a"),
          ("sys, 4 bits", "triangle", "#d9480f", "#ff9355"), ("sys, 2 bits", "square", "#b45309", "#f0b45c"),
          ("pps, 4 bits", "circle", "#7c5cbf", "#b9a3f0"), ("pps, 2 bits", "square", "#be185d", "#f28ab5"),
          ("top-k", "circle", "#93b4f5", "#33508f"), ("top-k, 4 bits", "diamond", "#2563eb", "#7aa7ff"),
          ("vattention", "circle", "#86c79c", "#2b6b42"), ("vattention, 4 bits", "diamond", "#15803d", "#5fd08a")]
ERROR = "relative_l2"
NAMES = {"QA1": "single recall (QA1)", "QA2": "two hops (QA2)", "NIAH": "four needles (NIAH)",
         "FWE": "frequent words (FWE)", "TEXT": "next word of a text (TEXT)", "mean": "mean of the tasks",
         "error": "error of a head's output, relative, mean"}


def class_of(method):
    return re.sub(r"\W", "", method)


def read(path, table, x_metric):
    """task -> method -> list of (x %, accuracy, low, high), by x; and the tasks in the file's order, the last panel."""
    found, tasks, last = {}, [], "error" if table == "6" else "mean"
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            try:
                if row["table"] == table and row["section"] in NAMES:
                    key = row["section"], row["method"], row["budget"]
                    found.setdefault(key, {})[row["metric"]] = [float(row[k] or "nan") for k in ("value", "low", "high")]
                    if row["section"] not in tasks:
                        tasks.append(row["section"])
            except (KeyError, TypeError, ValueError) as e:
                sys.exit(f"{path}: not a CSV file of accuracy.c ({type(e).__name__}: {e})")
    if not tasks:
        sys.exit(f"{path}: has no table {table}")
    for method, budget in {key[1:] for key in found}:
        rows = [found[task, method, budget] for task in tasks]
        y_metric = ERROR if last == "error" and method != "dense" else "accuracy_percent"
        found[last, method, budget] = {
            metric: [sum(row[metric][i] for row in rows) / len(rows) for i in range(3)] for metric in (y_metric, x_metric)}
        value = found[last, method, budget]["accuracy_percent"] = found[last, method, budget][y_metric]
        value[1:] = [value[0]] * 2                           # no interval: the tasks share their texts
    panels = {}
    for (task, method, _), metrics in found.items():
        point = (metrics[x_metric][0], *metrics["accuracy_percent"])
        panels.setdefault(task, {}).setdefault(method, []).append(point)
    for lines in panels.values():
        for points in lines.values():
            points.sort()
    if last == "error":
        panels[last].pop("dense", None)
    return panels, tasks + [last]


def draw(task, lines, methods, x0, y0, x_low, x_high, y_low):
    left, right, top, bottom = x0 + LEFT, x0 + PANEL_WIDTH - RIGHT, y0 + TOP, y0 + PANEL_HEIGHT - BOTTOM

    def x(v):
        return left + 8 + (right - left - 16) * math.log(v / x_low) / math.log(x_high / x_low)

    steps = range(y_low, 101, 10 if y_low >= 40 else 20)
    if task == "error":
        errors = [p[1] for points in lines.values() for p in points]
        y_low, y_high, steps = 0.9 * min(errors), 1.1 * max(errors), (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)

    def y(v):
        if task == "error":
            return bottom - (bottom - top) * math.log(v / y_low) / math.log(y_high / y_low)
        return bottom - (bottom - top) * (max(v, y_low) - y_low) / (102 - y_low)
    svg = [f'<text class="title" x="{left}" y="{y0 + 22}">{escape(NAMES.get(task, task))}</text>']
    for v in steps:
        if task == "error" and not y_low <= v <= y_high:
            continue
        svg.append(f'<path class="grid" d="M{left} {y(v):.1f}H{right}"/>')
        svg.append(f'<text class="end" x="{left - 8}" y="{y(v) + 4:.1f}">{v:g}</text>')
    for v in (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100):
        if x_low <= v <= x_high:
            svg.append(f'<path class="grid" d="M{x(v):.1f} {top}V{bottom}"/>')
            svg.append(f'<text class="mid" x="{x(v):.1f}" y="{bottom + 17}">{v:g} %</text>')
    for _, value, _, _ in lines.get("dense", []):
        svg.append(f'<path class="dense" d="M{left} {y(value):.1f}H{right}"/>')
    for method, shape, _, _ in methods:
        points = lines.get(method)
        if not points:
            continue
        cls = class_of(method)
        path = "L".join(f"{x(p[0]):.1f} {y(p[1]):.1f}" for p in points)
        svg.append(f'<path class="{cls} line" d="M{path}"/>')
        for v, value, low, high in points:
            if high > low:
                svg.append(f'<path class="{cls} bar" d="M{x(v):.1f} {y(low):.1f}V{y(high):.1f}"/>')
            svg.append(marker(shape, cls, x(v), y(value), 3.2))
    return svg


def style(methods):
    def theme(column, text, grid, back):
        rules = [f"text{{fill:{text}}} .grid{{stroke:{grid}}} .back{{fill:{back}}} .dense{{stroke:{text}}}"]
        for entry in methods:
            cls = class_of(entry[0])
            rules.append(f".{cls}.line,.{cls}.bar{{stroke:{entry[column]}}} .{cls}.dot,.{cls}.label{{fill:{entry[column]}}}")
        return "\n".join(rules)
    return ("<style>text{font:12px system-ui,sans-serif} .title{font-size:14px;font-weight:600} .end{text-anchor:end}\n"
            ".mid{text-anchor:middle} .line{fill:none;stroke-width:1.8} .bar{stroke-width:1;opacity:.45}\n"
            ".dense{fill:none;stroke-width:1.2;stroke-dasharray:6 4}\n" + theme(2, "#374151", "#e5e7eb", "#ffffff") +
            "\n@media(prefers-color-scheme:dark){" + theme(3, "#d1d5db", "#30363d", "#0d1117") + "}</style>")


def legend(methods, there, y):
    svg, at = [], LEFT
    for method, shape, _, _ in methods:
        if method in there:
            cls = class_of(method)
            svg.append(marker(shape, cls, at + 5, y - 4, 4))
            svg.append(f'<text class="{cls} label" x="{at + 15}" y="{y}">{method}</text>')
            at += 34 + 8 * len(method) if len(methods) < 8 else 32 + 6 * len(method)
    svg.append(f'<path class="dense" d="M{at} {y - 4}h26"/><text x="{at + 32}" y="{y}">dense</text>')
    return svg


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE.csv")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--x", choices=("group", "head", "bytes"), default="group")
    parser.add_argument("--title")
    args = parser.parse_args()
    is_bytes = args.x == "bytes"
    methods = COPIED if is_bytes else METHODS
    title = args.title or f"Accuracy (%) against {'bytes' if is_bytes else 'V rows'} read (% of dense)"
    panels, tasks = read(args.file, "6" if is_bytes else "1", "bytes_percent" if is_bytes else f"v_rows_{args.x}_percent")
    xs = [p[0] for lines in panels.values() for method, points in lines.items() if method != "dense" for p in points]
    if not xs:
        sys.exit(f"{args.file}: no method beside dense")
    y_low = 20 * int(min(p[1] for task in tasks if task != "error" for points in panels[task].values() for p in points) // 20)
    there = {method for lines in panels.values() for method in lines}
    columns = min(3, len(tasks))
    width, height = columns * PANEL_WIDTH, HEAD + -(-len(tasks) // columns) * PANEL_HEIGHT
    svg = ['<svg xmlns="http://www.w3.org/2000/svg" role="img" '
           f'viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
           f"<title>{escape(title)}</title>", style(methods), f'<rect class="back" width="{width}" height="{height}"/>',
           f'<text class="title" x="{LEFT}" y="26">{escape(title)}</text>', *legend(methods, there, 52)]
    for i, task in enumerate(tasks):
        svg += draw(task, panels[task], methods, i % columns * PANEL_WIDTH, HEAD + i // columns * PANEL_HEIGHT,
                    0.9 * min(xs), 1.1 * max(xs), y_low)
    with open(args.output, "w", encoding="utf-8") as f:
        f.write("\n".join(svg + ["</svg>", ""]))


if __name__ == "__main__":
    main()
