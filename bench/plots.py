"""Draws the charts of DIR/*.json, by default of bench/results: each to DIR/NAME.svg, to be read on a page that is 800 pixels wide. The same
numbers give the same files, byte by byte."""

import json
import math
import pathlib
import re
import statistics
import sys
import textwrap

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator  # noqa: E402

INK, MUTED, FAINT, GRID = "#1f2933", "#5f6b7a", "#7d8a98", "#e4e8ec"
OURS = "#0072b2"
# Colours of Okabe and Ito that are also legible as text; colour-blind readers can tell them apart. A known system has
# the same colour in all charts.
KNOWN = {"etcd": "#d55e00", "redis": "#b07d00", "by hand": "#00805c", "update": "#00805c", "select 1": FAINT}
OTHERS = ["#d55e00", "#00805c", "#b5578f", "#b07d00", "#2f8fc4", "#6b4c9a", "#7a5c2e"]
# Widths are computed with the font that comes with matplotlib. Readers see one of the FONTS, none of which is wider.
FONT, FONTS = "'DejaVu Sans'", "system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
WIDTH, MARGIN = 8.0, 0.3  # inches, as are all lengths here
# No legend is larger, and no colour comes twice.
MOST_LINES = 6

pyplot.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "eskit_lease", "font.family": ["DejaVu Sans"], "font.size": 10, "text.parse_math": False,
    "text.color": INK, "axes.edgecolor": FAINT, "axes.labelcolor": MUTED, "axes.labelsize": 10.5, "axes.axisbelow": True, "axes.grid": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "grid.color": GRID, "xtick.color": FAINT,
    "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED, "ytick.major.size": 0, "lines.solid_capstyle": "round",
})  # fmt: skip


# ---- what all have in common ----


class Sheet:
    """A page with its title and the measured quantity at the top, `body` inches of axes with room on both sides, and
    the caption."""

    def __init__(self, title, subtitle, caption, body, left, right, foot):
        self.title, title = title, textwrap.wrap(title, 50)
        self.top = 0.5 + 0.27 * len(title) + 0.34 * bool(subtitle)
        self.height = self.top + body + foot + 0.5
        self.figure = pyplot.figure(figsize=(WIDTH, self.height), facecolor="white")
        self.text(MARGIN, 0.3, "\n".join(title), size=15, weight="bold", va="top", linespacing=1.15)
        self.text(MARGIN, 0.38 + 0.27 * len(title), subtitle, size=10.5, color=MUTED, va="top")
        self.text(MARGIN, self.height - 0.15, "\n".join(textwrap.wrap(caption, 100, break_on_hyphens=False)), size=9, color=MUTED, va="bottom", linespacing=1.2)
        self.left, self.right = left, WIDTH - right
        box = (left / WIDTH, 1 - (self.top + body) / self.height, (self.right - left) / WIDTH, body / self.height)
        self.axes = self.figure.add_axes(box)

    def text(self, x, from_top, words, **style):
        self.figure.text(x / WIDTH, 1 - from_top / self.height, words, **style)

    def beside(self, entries, colour):
        """Labels each line, at the right. An entry has a name, further words, and the wanted distance from the top."""
        for (name, words, _), y in zip(entries, apart([at for *_, at in entries], [height(name) for name, *_ in entries], self.top)):
            lines = textwrap.wrap(name, 24)
            self.text(self.right + 0.15, y, "\n".join(lines), size=10, weight="bold", color=colour[name], va="top", linespacing=1.15)
            self.text(self.right + 0.15, y + 0.19 * len(lines), words, size=9, color=MUTED, va="top")

    def save(self, path):
        self.figure.savefig(path, metadata={"Date": None, "Creator": None, "Title": self.title})
        pyplot.close(self.figure)
        lines = path.read_text().replace(FONT, FONTS).splitlines()
        path.write_text("\n".join(line.rstrip() for line in lines) + "\n")


def height(name):
    return 0.19 * len(textwrap.wrap(name, 24)) + 0.27


def apart(wanted, heights, top):
    """Moves labels, which are ordered from top to bottom, only as far as needed so that none overlaps another."""
    places = [at - height / 2 for at, height in zip(wanted, heights)]
    for _ in range(100):
        for n in range(1, len(places)):
            overlap = places[n - 1] + heights[n - 1] - places[n]
            if overlap > 0:
                places[n - 1] -= overlap / 2
                places[n] += overlap / 2
        places[0] = max(places[0], top)
    return places


def of_ours(label):
    return "eskit_lease" in label


def colours(labels):
    """Returns each label's colour. Our label is blue, or else the first one."""
    ours = next((label for label in labels if of_ours(label)), labels[0])
    found = {ours: OURS}
    for label in labels:
        known = next((colour for name, colour in KNOWN.items() if name in label.lower()), None)
        if known and known not in found.values():
            found.setdefault(label, known)
    free = iter([colour for colour in OTHERS if colour not in found.values()] + [MUTED] * len(labels))
    return {label: found.get(label) or next(free) for label in labels}


def amount(value):
    """Formats a value with its significant digits."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    size = math.floor(math.log10(abs(value)))
    return f"{value / 1e6:.3g}M" if size >= 6 else f"{value:,.{max(0, 1 - size)}f}"


def tick(value, _=None):
    unit, sign = next(((unit, sign) for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if abs(value) >= unit), (1, ""))
    return f"{value / unit:g}{sign}"


def scale(axes, which, values, log):
    """Scales an axis, logarithmic or from zero."""
    low, high = min(values), max(values)
    axis = getattr(axes, f"{which}axis")
    getattr(axes, f"set_{which}scale")("log" if log else "linear")
    if log:
        limits = (low / 1.25, high * 1.25)
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,), numticks=20))
    else:
        limits = (min(0, low), high * 1.06 or 1)
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    getattr(axes, f"set_{which}lim")(limits)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(tick))


def caption(run, what):
    machine = run["machine"]
    processor = re.sub(r"\((R|TM)\)", "", machine["processor"])
    return " · ".join([run["when"], f"{processor}, {machine['cores']} cores", f"PostgreSQL {machine['server'].split()[0]}",
                       f"eskit_lease {machine['extension']}", what])  # fmt: skip


# ---- the kinds of charts ----


def lines(chart, run):
    """Draws the median of the repetitions at each x, in a band from the least to the greatest."""
    data = {label: [(x, values) for x, values in points if values] for label, points in chart["data"].items()}
    data = {label: sorted(points) for label, points in data.items() if points}
    if len(data) > MOST_LINES:
        return grown(chart, run, data)
    colour = colours(list(data))
    sheet = Sheet(chart["title"], chart["y"], caption(run, "medians, in bands from least to most"), 3.4, 0.85, 2.35, 0.62)
    xs = [x for points in data.values() for x, _ in points]
    middles = [statistics.median(values) for points in data.values() for _, values in points]
    # An almost flat curve is best seen from zero.
    scale(sheet.axes, "x", xs, min(xs) > 0 and max(xs) >= 50 * min(xs))
    log = min(middles) > 0 and max(middles) >= 30 * min(middles)
    # A single outlier must not flatten all other curves.
    most = min(1.5 * max(middles), max(y for points in data.values() for _, values in points for y in values))
    scale(sheet.axes, "y", [*middles, most], log)
    sheet.axes.set_xlabel(chart["x"])
    ends = []
    for label, points in data.items():
        at, reps = [x for x, _ in points], [values for _, values in points]
        middle = [statistics.median(values) for values in reps]
        front = 4 if colour[label] == OURS else 3
        sheet.axes.fill_between(at, [min(values) for values in reps], [max(values) for values in reps], color=colour[label], alpha=0.16, lw=0)
        sheet.axes.plot(at, middle, color=colour[label], lw=2.2, marker="o" if len(at) <= 20 else "", ms=4.5, zorder=front)
        end = sheet.figure.transFigure.inverted().transform(sheet.axes.transData.transform((at[-1], middle[-1])))[1]
        words = f"{amount(middle[0])} → {amount(middle[-1])}" if len(middle) > 1 else amount(middle[0])
        ends.append((label, words, (1 - end) * sheet.height))
    sheet.beside(sorted(ends, key=lambda entry: entry[2]), colour)
    return sheet


def grown(chart, run, data):
    """Draws a row for each of many lines: the median at the least x, hollow, the median at the greatest x, full, and
    the ratio of the two."""
    row, head = 0.29, 0.3
    ends = {label: [statistics.median(points[at][1]) for at in (0, -1)] for label, points in data.items()}
    least, most = (at([x for points in data.values() for x, _ in points]) for at in (min, max))
    widest = max(map(len, data))
    words = f"{chart['y']}: ○ with {least:,}, ● with {most:,} {chart['x']}"
    sheet = Sheet(chart["title"], words, caption(run, "medians"), head + row * len(data), 0.45 + 0.082 * widest, 1.75, 0.62)
    axes = sheet.axes
    scale(axes, "x", [value for both in ends.values() for value in both], True)
    axes.set_ylim(row * len(data), -head)
    axes.set_yticks([])
    sheet.text(sheet.right + 0.15, sheet.top + head / 2, f"{least:,} → {most:,}", size=9, color=MUTED, va="center")
    for n, (label, (first, last)) in enumerate(ends.items()):
        y = row * (n + 0.5)
        axes.plot([first, last], [y, y], color=OURS, lw=2, zorder=2)
        axes.plot(first, y, marker="o", ms=8, mfc="white", mec=OURS, mew=1.6, zorder=3)
        axes.plot(last, y, marker="o", ms=5.5, color=OURS, zorder=4)
        at = sheet.top + head + y
        sheet.text(sheet.left - 0.12, at, label, size=10, ha="right", va="center")
        sheet.text(sheet.right + 0.15, at, f"{amount(first)} → {amount(last)}", size=9.5, va="center")
        sheet.text(WIDTH - MARGIN + 0.1, at, f"{last / first:.2f}×", size=10, weight="bold" if last > 1.1 * first else "normal", ha="right", va="center")
    return sheet


def distribution(chart, run):
    """Draws the share of the values that are at most so large."""
    data = {label: values for label, values in chart["data"].items() if values}
    colour = colours(list(data))
    sheet = Sheet(chart["title"], f"{chart['x']}, by {chart['y']}", caption(run, "points at the median and at 99 %"), 3.6, 0.95, 2.35, 0.62)
    positive = [value for values in data.values() for value in values if value > 0] or [1]
    scale(sheet.axes, "x", positive, max(positive) >= 5 * min(positive))
    sheet.axes.set_ylim(0, 103)
    sheet.axes.set_yticks([0, 25, 50, 75, 99], ["0 %", "25 %", "50 %", "75 %", "99 %"])
    sheet.axes.set_xlabel(chart["y"])
    entries = []
    for label, values in sorted(data.items(), key=lambda item: item[1][len(item[1]) // 2]):
        percents = [100 * n / max(1, len(values) - 1) for n in range(len(values))]
        at = {percent: values[round(percent * (len(values) - 1) / 100)] for percent in (50, 99)}
        # Zero is below the clock's resolution.
        shown = [max(value, min(positive)) for value in values]
        sheet.axes.plot(shown, percents, color=colour[label], lw=2.2, zorder=4 if colour[label] == OURS else 3)
        sheet.axes.plot(list(at.values()), list(at), color=colour[label], lw=0, marker="o", ms=6, mec="white", zorder=5)
        entries.append((label, f"p50 {amount(at[50])} · p99 {amount(at[99])}", sheet.top))
    sheet.beside(entries, colour)
    return sheet


def grouped(data):
    """Returns the bars by group. Only bars of the same group are compared."""
    groups = data if all(isinstance(values, dict) for values in data.values()) else {"": data}
    return {group: {label: values for label, values in of.items() if values} for group, of in groups.items()}


def bars(chart, run):
    """Draws bars with their numbers, each group to a scale of its own."""
    groups = {group: of for group, of in grouped(chart["data"]).items() if of}
    row, head, gap = 0.3, 0.32, 0.16
    body = sum((head + gap) * bool(group) + row * len(of) for group, of in groups.items())
    widest = max(len(label) for of in groups.values() for label in of)
    each = ", each group to its own scale" if len(groups) > 1 else ""
    words = caption(run, "medians, lines from least to most")
    sheet = Sheet(chart["title"], chart["y"] + each, words, body, max(1.6, 0.5 + 0.078 * widest), 1.4, 0.15)
    axes = sheet.axes
    axes.set_ylim(body, 0)
    axes.set_xlim(0, 1)
    axes.axis("off")
    y, emphasis = 0.0, any(of_ours(label) for of in groups.values() for label in of)
    for group, of in groups.items():
        if group:
            sheet.text(MARGIN, sheet.top + y + head - 0.1, group, size=11, weight="bold", va="bottom")
            y += head
        middles = {label: statistics.median(values) for label, values in of.items()}
        most = max(middles.values()) or 1
        axes.plot([0, 0], [y + 0.02, y + row * len(of) - 0.02], color=FAINT, lw=0.8)
        for label, values in of.items():
            ours = of_ours(label) or not emphasis
            middle, low, high = middles[label] / most, min(values) / most, max(values) / most
            axes.barh(y + row / 2, middle, height=row * 0.68, color=OURS if ours else "#c3cbd4", lw=0)
            if high > low:
                axes.plot([low, high], [y + row / 2] * 2, color="#003f63" if ours else MUTED, lw=1.2, clip_on=False, solid_capstyle="butt")
            style = {"va": "center", "clip_on": False, "size": 10, "weight": "bold" if ours and emphasis else "normal"}
            axes.text(-0.02, y + row / 2, label, ha="right", **style)
            axes.text(max(middle, high) + 0.02, y + row / 2, amount(middles[label]), **style)
            y += row
        y += gap * bool(group)
    return sheet


KINDS = {"lines": lines, "distribution": distribution, "bars": bars}


def main(directory):
    found = {}
    for file in sorted(directory.glob("*.json")):
        run = json.loads(file.read_text())
        found.update((name, (chart, run)) for name, chart in run.get("charts", {}).items() if chart["data"])
    drawn = []
    for name, (chart, run) in found.items():
        drawn.append((name, KINDS[chart["kind"]](chart, run)))
    for name, sheet in drawn:
        sheet.save(directory / f"{name}.svg")
    print(f"plots: {', '.join(name for name, _ in drawn) or 'nothing to draw'}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "results")
