"""Lines and branches of santa.h that a run took, from gcov's JSON.

    coverage.py GCOV.json santa.h coverage-left.txt

What is counted:
- of the implementation only, per section (>>tag). Sections of instruction sets that this machine
  lacks are left out, by name;
- a branch is one way out of a condition: gcov's branches at -O0, where each operand of && has two.
  Ways out that only an exception takes do not count (C has none);
- the same text may be compiled several times, as the kernels are once per instruction set. A branch
  counts once, and as taken when any of the copies took it. A copy in which a constant condition
  was folded away has fewer branches in that line. These cannot be matched one by one, and count
  as a set of their own;
- a branch that coverage-left.txt excuses still counts as not taken: the bar is for the whole.

coverage-left.txt has a line for each source line with code or branches that are not taken: its
text, " ::: ", the reason. The text is compared without regard to blanks, so that it survives a new
line number or indentation. Several lines of the same text have one reason.

Passes when at least 98 % of all branches were taken. Lines left without a reason are printed in
any case, and so are reasons that are not needed any more."""
import json
import sys
from collections import defaultdict

BAR = 98.0


def plain(text):
    return " ".join(text.split())


def read_sections(path):
    """Source lines, the section of each, and the number of the implementation's first line."""
    with open(path, encoding="utf-8") as file:
        source = file.read().split("\n")
    tag, tags, first = "", [], 0
    for number, line in enumerate(source, 1):
        if ">>" in line and line.startswith("/* ----") or line.startswith("/* ====") and ">>" in line:
            tag = line.split(">>")[1].split()[0]
            if tag == "implementation":
                first = number
        tags.append(tag)
    return source, tags, first


def read_left(path):
    left = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                text, reason = line.rsplit(" ::: ", 1)
                left[plain(text)] = reason.strip()
    return left


def read_gcov(path, header):
    """hits[line] and branches[line][number of branches] = [taken by any copy]."""
    hits, branches = defaultdict(int), defaultdict(dict)
    with open(path, encoding="utf-8") as file:
        for document in file:
            if not document.strip():
                continue
            for source in json.loads(document)["files"]:
                if source["file"].split("/")[-1] != header:
                    continue
                for line in source["lines"]:
                    number = line["line_number"]
                    hits[number] += line["count"]
                    taken = [b["count"] > 0 for b in line["branches"] if not b["throw"]]
                    if taken:
                        old = branches[number].get(len(taken), [False] * len(taken))
                        branches[number][len(taken)] = [a or b for a, b in zip(old, taken)]
    return hits, branches


def main():
    gcov, header, left_path = sys.argv[1:]
    source, tags, first = read_sections(header)
    hits, branches = read_gcov(gcov, header.split("/")[-1])
    left, used = read_left(left_path), set()
    count = defaultdict(lambda: [0, 0, 0, 0])
    missed = []
    for number, times in sorted(hits.items()):
        if number <= first:
            continue
        sets = branches.get(number, {}).values()
        ways, taken = sum(map(len, sets)), sum(map(sum, sets))
        c = count[tags[number - 1]]
        c[0] += times > 0
        c[1] += 1
        c[2] += taken
        c[3] += ways
        if taken < ways or not times:
            missed.append((number, ways - taken))
    absent = [tag for tag, c in count.items() if tag.startswith("kernels-") and c[0] == 0]
    print("coverage of %s: lines, branches" % header)
    total = [0, 0, 0, 0]
    for tag, c in count.items():
        if tag in absent:
            print("  %-16s not on this machine" % tag)
            continue
        total = [a + b for a, b in zip(total, c)]
        print("  %-16s %5d of %5d  %6.2f %%   %5d of %5d  %6.2f %%" % (
            tag, c[0], c[1], 100.0 * c[0] / c[1], c[2], c[3], 100.0 * c[2] / max(c[3], 1)))
    percent = 100.0 * total[2] / max(total[3], 1)
    print("  %-16s %5d of %5d  %6.2f %%   %5d of %5d  %6.2f %%" % (
        "all", total[0], total[1], 100.0 * total[0] / max(total[1], 1), total[2], total[3], percent))
    unexplained = 0
    for number, ways in missed:
        if tags[number - 1] in absent:
            continue
        text = plain(source[number - 1])
        if text in left:
            used.add(text)
            continue
        unexplained += 1
        print("  left without a reason: %s:%d: %s: %s" % (
            header, number, "%d branches" % ways if ways else "never run", text))
    for text in left:
        if text not in used:
            print("  not needed in %s: %s" % (left_path, text))
    print("%.2f %% of branches, the bar is %g %%; %d lines left with a reason, %d without" % (
        percent, BAR, len(used), unexplained))
    return percent < BAR


sys.exit(main())
