#!/usr/bin/env python3
"""Mutation test: would the tests notice if a line of the library were wrong?

Makes small changes to the code (mutants: < for <=, a constant off by one, a statement left out ..), builds each and runs
the quick tests until one fails. A mutant that no test kills points to a missing test, or changes nothing that can be
seen: then test/mutants/equivalent.txt says why. Python's standard library only.

    python3 test/mutants/mutants.py                    the whole sample
    python3 test/mutants/mutants.py --shard today/8    an eighth of it, another one each day
    python3 test/mutants/mutants.py --help

Which mutants are taken depends on a hash of the changed text, never on line numbers: code that moves keeps its mutants.
Verdicts: killed (a test fails, crashes or hangs), survived, equivalent (listed), same code (the compiler makes the same
machine code of it), stillborn (does not compile). Passes if at most 5 % of killed + survived survived.
Last line: N passed, N failed, N skipped; failed are the survivors above that allowance."""

import argparse
import collections
import concurrent.futures
import datetime
import difflib
import hashlib
import json
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT       = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
EQUIVALENT = os.path.join(ROOT, "test", "mutants", "equivalent.txt")
BUILD      = os.path.join(ROOT, os.environ.get("BUILD", "build"), "mutants")
CC         = os.environ.get("CC", "cc").split()
CXX        = os.environ.get("CXX", "c++").split()
SANITIZE   = ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"]
ALLOWED    = 0.05                            # of the mutants that could be killed may survive

# ------------------------------------------------------------------------------------------------- what is tested

class Unit:
    """A file, the sections of it that this way of building exercises, and how to build and run its tests."""

    def __init__(self, name, source, sections, entry, objects, compile, flags, link, suites, again=()):
        self.name     = name
        self.folder   = re.sub(r"\W+", "_", name)
        self.source   = source               # the file that is changed, from ROOT
        self.sections = re.compile(sections) # a line belongs to the first unit that matches and compiles it
        self.entry    = entry                # files copied beside it, the first of which includes it (or is it)
        self.objects  = objects              # [(object, source)]: the tests, compiled once
        self.compile  = compile              # compiler and flags for the changed code and the tests
        self.flags    = flags                # and for the changed code alone
        self.link     = link                 # flags at the end of the link line
        self.suites   = suites               # [(name, arguments, environment)]
        self.again    = again                # [(name, flags, flags to link)] of further builds, for survivors of the first


def library_units():
    tests   = sorted(f for f in os.listdir(os.path.join(ROOT, "test")) if f.endswith(".c") and f != "impl.c")
    objects = [("test_" + f[:-2] + ".o", "test/" + f) for f in tests]
    with open(os.path.join(ROOT, "test", "main.c")) as f:
        names = re.findall(r'^ *\{"([a-z0-9_ -]+)", +suite_(?!hang)', f.read(), re.M)
    suites   = [(n, ["--quick", "--fail-fast", n + "/"], {}) for n in names]
    narrower = [(n + " with AVX2", ["--quick", "--fail-fast", n + "/"], {"SANTA_TEST_ISA": "avx2"})
                for n in ("dense", "q8_0", "bernoulli", "vattention")]
    scalar = ["-DSANTA_NO_SIMD"]
    again  = [("with SIMD", [], []),
              ("sanitizers", scalar + SANITIZE + ["-include", "assert.h", "-DSANTA_ASSERT=assert"], SANITIZE)]
    link   = ["-pthread", "-lm"]
    return [Unit("santa.h", "santa.h", r"(?!kernels(?!-scalar)|isa)", ["test/impl.c"], objects, CC + ["-O1"], scalar, link, suites,
                 again),
            Unit("santa.h with SIMD", "santa.h", r"", ["test/impl.c"], objects, CC + ["-O1"], [], link, suites + narrower,
                 again[1:])]


def cuda_units():
    """The host side of santa_cuda.cu, with a stand-in for the CUDA runtime; what is in its kernels is not compiled."""
    program = "test/cuda/test_launches.cpp"
    if not os.path.exists(os.path.join(ROOT, program)):
        return []
    entry  = [program, "santa.h", "santa_cuda.h", "test/harness.h", "test/main.c"]
    for folder in ("test/cuda", "test/cuda/standin"):
        entry += [folder + "/" + f for f in sorted(os.listdir(os.path.join(ROOT, folder))) if f.endswith(".h")]
    return [Unit("santa_cuda.cu", "santa_cuda.cu", r"", entry, [], CXX + ["-std=c++17", "-O1", "-Itest/cuda/standin"], [], ["-lm"],
                 [("launches", ["--fail-fast"], {})], [("sanitizers", SANITIZE, SANITIZE)])]


def units():
    return library_units() + cuda_units()

# ------------------------------------------------------------------------------------------------- reading the source

TOKEN = re.compile(r"""
    (?P<space>\s+)
  | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
  | (?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?|\d+[eE][-+]?\d+[fF]?)
  | (?P<int>0[xX][0-9a-fA-F]+[uUlL]*|\d+[uUlL]*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<op><<=|>>=|<<<|>>>|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||\+=|-=|\*=|/=|%=|&=|\|=|\^=|::|.)
""", re.X | re.S)
HIDDEN    = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.M | re.S)
SECTION   = re.compile(r"/\* [-=]{20,} >>([a-z0-9-]+) \*/")
TYPES     = set("const static int float double char unsigned signed short long void size_t auto struct union enum volatile "
                "int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t constexpr typedef".split())
WIDE      = set("int64_t uint64_t i64 u64 double size_t".split())
KEYWORDS  = set("if else for while do switch case default return break continue goto sizeof".split())
# Hints to the cache change no result; assertions and what calls the stand-in are tests themselves.
LEFT_OUT  = re.compile(r"PREFETCH|SANTA_ASSERT|static_assert|standin_")

Token    = collections.namedtuple("Token", "kind text at")
Mutant   = collections.namedtuple("Mutant", "unit section function operator start end new line before after digest")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def active_lines(unit, text, directory):
    """The lines that this unit's build compiles: a marker behind each conditional directive shows which are read."""
    lines, marked, group, groups = text.split("\n"), [], 0, []
    hidden = HIDDEN.sub(lambda m: m.group() if m.group()[0] in "\"'" else blank(m), text).split("\n")
    for number, line in enumerate(lines):
        groups.append(group)
        marked.append(line)
        if re.match(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b", hidden[number]) and not line.endswith("\\"):
            group = number + 1
            marked.append("santa_mutants_group_%d" % group)
    place(unit, "\n".join(marked), directory)
    command = unit.compile + unit.flags + ["-E", "-P", "-o", "-", unit.entry[0]]
    done  = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, check=True)
    read  = {int(x) for x in re.findall(rb"santa_mutants_group_(\d+)", done.stdout)}
    return [g == 0 or g in read for g in groups]


def place(unit, text, directory):
    """The changed file and those that it is compiled with, in a directory of a worker's and unit's own."""
    for name in unit.entry:
        target = os.path.join(directory, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if name != unit.source and not os.path.exists(target):
            shutil.copyfile(os.path.join(ROOT, name), target)
    target = os.path.join(directory, unit.source)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w") as f:
        f.write(text)


def tokens_of(text, active):
    text   = HIDDEN.sub(lambda m: m.group() if m.group()[0] in "\"'" else blank(m), text)
    text   = DIRECTIVE.sub(blank, text)
    text   = "\n".join(l if a else " " * len(l) for l, a in zip(text.split("\n"), active))
    tokens = [Token(m.lastgroup, m.group(), m.start()) for m in TOKEN.finditer(text) if m.lastgroup != "space"]
    return text, tokens


def partners(tokens):
    """Index of the bracket that closes or opens with each bracket."""
    stack, pair = [], {}
    for i, t in enumerate(tokens):
        if t.kind != "op":
            continue
        if t.text in "([{":
            stack.append(i)
        elif t.text in ")]}" and stack:
            j = stack.pop()
            pair[i], pair[j] = j, i
    return pair


def function_name(tokens, pair, brace):
    """The name before the parameters of the function whose body this brace opens; of MACRO(name)(..) what is in MACRO()."""
    i = brace - 1
    while i > 0 and tokens[i].text != ")":
        i -= 1
    i = pair.get(i, 1) - 1
    if tokens[i].text == ")":
        return "".join(t.text for t in tokens[pair[i] + 1:i])
    return tokens[i].text


def braces(tokens, pair):
    """For each token: the function it is in (None outside), and whether a type is declared around it."""
    where, stack, function = [], [], None
    for i, t in enumerate(tokens):
        if t.text == "{" and t.kind == "op":
            before, j = tokens[i - 1].text if i else ";", i - 1
            head = []
            while j >= 0 and tokens[j].text not in (";", "{", "}"):
                head.append(tokens[j].text)
                j -= 1
            if before != ")" and {"struct", "union", "enum"} & set(head) and "=" not in head:
                kind = "type"
            elif function is None and ")" in head and "=" not in head and "namespace" not in head:
                kind, function = "function", function_name(tokens, pair, i)
            else:
                kind = "other"
            stack.append(kind)
            where.append(None)
            continue
        if t.text == "}" and t.kind == "op" and stack:
            if stack.pop() == "function":
                function = None
        where.append(function if "type" not in stack else None)
    return where


def statements(tokens, pair, where):
    """[first, last) of each statement that ends in a semicolon, inside functions."""
    found, start, i = [], None, 0
    while i < len(tokens):
        t = tokens[i]
        if where[i] is None:
            start = None if t.text == "}" else start
            if t.text in "{}":
                start = i + 1
        elif t.text in ("{", "}"):
            start = i + 1
        elif t.text in ("else", "do"):
            start = i + 1
        elif t.text in ("if", "for", "while", "switch") and i + 1 in pair:
            i = pair[i + 1]
            start = i + 1
        elif t.text == "case" or t.text == "default":
            while tokens[i].text != ":":
                i += 1
            start = i + 1
        elif t.text in "([" and i in pair:
            i = pair[i]
        elif t.text == ";":
            if start is not None and start < i:
                found.append((start, i))
            start = i + 1
        i += 1
    return found


def is_declaration(tokens, first, last):
    if tokens[first].text in TYPES:
        return True
    if last - first < 2 or tokens[first].kind != "name" or tokens[first].text in KEYWORDS:
        return False
    i = first + 1
    while i < last and tokens[i].text in ("*", "const", "::"):
        i += 2 if tokens[i].text == "::" else 1
    return i < last and tokens[i].kind == "name" and (i > first + 1 or tokens[first + 1].kind == "name")

# ------------------------------------------------------------------------------------------------- the changes

SWAPS = {
    "boundary":   {"<": "<=", "<=": "<", ">": ">=", ">=": ">"},
    "equality":   {"==": "!=", "!=": "=="},
    "arithmetic": {"+": "-", "-": "+", "*": "/", "/": "*", "%": "/"},
    "update":     {"+=": "-=", "-=": "+=", "*=": "+=", "/=": "*=", "|=": "&=", "&=": "|=", "^=": "|=", "<<=": ">>=", ">>=": "<<="},
    "bits":       {"&": "|", "|": "&", "^": "|", "<<": ">>", ">>": "<<"},
    "logic":      {"&&": "||", "||": "&&"},
}
NAMES = {"SANTA__MIN": "SANTA__MAX", "SANTA__MAX": "SANTA__MIN", "fminf": "fmaxf", "fmaxf": "fminf", "fmin": "fmax",
         "fmax": "fmin", "floor": "ceil", "ceil": "floor", "min": "max", "max": "min"}


def other_constants(kind, text):
    if kind == "float":
        body, suffix = (text[:-1], text[-1]) if text[-1] in "fF" else (text, "")
        value = float(body)
        return [repr(1.0 if value == 0.0 else value * 2.0) + suffix]
    body   = text.rstrip("uUlL")
    suffix = text[len(body):]
    value  = int(body, 16 if body[:2] in ("0x", "0X") else 8 if body[0] == "0" and len(body) > 1 else 10)
    show   = (lambda x: hex(x) + suffix) if body[:2] in ("0x", "0X") else (lambda x: str(x) + suffix)
    return [show(1)] if value == 0 else [show(0)] if value == 1 else [show(value + 1), show(value - 1)]


def changes(text, tokens, pair, where):
    """(operator, first byte, last byte, new text) of every change that is thought of."""
    headers = set()                          # inside for (..): a count the other way never ends
    for i, t in enumerate(tokens):
        if t.text == "for" and i + 1 in pair:
            headers.update(range(i + 1, pair[i + 1]))
    sizes = set()                            # sizes of arrays that are declared
    whole = statements(tokens, pair, where)
    for first, last in whole:
        if is_declaration(tokens, first, last):
            for i in range(first, last):
                if tokens[i].text == "=":
                    break
                if tokens[i].text == "[" and i in pair:
                    sizes.update(range(i, pair[i]))
    for i, t in enumerate(tokens):
        if where[i] is None or i in sizes:
            continue
        end = t.at + len(t.text)
        if t.kind == "op":
            binary = text[t.at - 1:t.at].isspace() and text[end:end + 1].isspace()
            for operator, table in SWAPS.items():
                if t.text in table and binary and not (operator == "update" and i in headers):
                    yield operator, t.at, end, table[t.text]
            if t.text == "!":
                yield "logic", t.at, end, ""
            if t.text == "?":
                depth, j = 0, i + 1          # the arms of c ? a : b, b up to what closes it
                while j < len(tokens) and (depth or tokens[j].text != ":"):
                    depth += (tokens[j].text == "?") - (tokens[j].text == ":")
                    j = pair.get(j, j) + 1 if tokens[j].text in "([{" else j + 1
                k = j + 1
                while k < len(tokens) and tokens[k].text not in (";", ",", ")", "]", "}"):
                    k = pair.get(k, k) + 1 if tokens[k].text in "([{" else k + 1
                if k < len(tokens) and k - j > 1:
                    a = text[tokens[i + 1].at:tokens[j - 1].at + len(tokens[j - 1].text)]
                    b = text[tokens[j + 1].at:tokens[k - 1].at + len(tokens[k - 1].text)]
                    yield "arms", tokens[i + 1].at, tokens[k - 1].at + len(tokens[k - 1].text), b + " : " + a
            if t.text == "(" and i in pair and pair[i] == i + 2 and tokens[i + 1].text in WIDE:
                j = pair[i] + 1              # a cast that makes a product or shift wide; others mostly change nothing
                j = pair[j + 1] + 1 if tokens[j].kind == "name" and j + 1 in pair and tokens[j + 1].text == "(" else \
                    pair[j] + 1 if j in pair else j + 1
                if tokens[j].text in ("*", "<<", "/"):
                    yield "cast", t.at, tokens[i + 2].at + 1, ""
        elif t.kind in ("int", "float"):
            for new in other_constants(t.kind, t.text):
                yield t.kind, t.at, end, new
        elif t.kind == "name" and t.text in NAMES and tokens[i + 1].text == "(":
            yield "function", t.at, end, NAMES[t.text]
        elif t.text == "if" and i + 1 in pair:
            for new in ("(1)", "(0)"):
                yield "condition", tokens[i + 1].at, tokens[pair[i + 1]].at + 1, new
    for first, last in whole:
        t = tokens[first]
        guarded = tokens[first - 1].text in (")", "else")
        keeps = (t.text == "(" or is_declaration(tokens, first, last)
                 or t.text == "return" and last - first > 1 and not guarded)
        if not keeps and t.text not in ("case", "default"):
            yield "statement", t.at, tokens[last].at + 1, ";"


def squeeze(s):
    return " ".join(s.split())


def mutants_of(unit, text, active):
    """Every mutant of the lines that this unit compiles and is responsible for."""
    clean, tokens = tokens_of(text, active)
    pair  = partners(tokens)
    where = braces(tokens, pair)
    index = {t.at: i for i, t in enumerate(tokens)}
    lines = text.split("\n")
    first_at, section_of, section = [0], [], ""
    for line in lines:
        first_at.append(first_at[-1] + len(line) + 1)
        found   = SECTION.search(line)
        section = found.group(1) if found else section
        section_of.append(section)
    seen  = collections.Counter()
    code  = HIDDEN.sub(lambda m: m.group() if m.group()[0] in "\"'" else blank(m), text)
    def line_at(at):
        low, high = 0, len(lines)
        while high - low > 1:
            mid = (low + high) // 2
            low, high = (mid, high) if first_at[mid] <= at else (low, mid)
        return low
    for operator, start, end, new in changes(clean, tokens, pair, where):
        a, b   = line_at(start), line_at(end - 1)
        before = squeeze(code[first_at[a]:first_at[b + 1]])
        after  = squeeze(code[first_at[a]:start] + new + code[end:first_at[b + 1]])
        if LEFT_OUT.search(before) or before == after or not section_of[a] or not unit.sections.match(section_of[a]):
            continue
        nth    = seen[before, after]
        seen[before, after] += 1
        digest = hashlib.sha256(("%s\0%s\0%d" % (before, after, nth)).encode()).hexdigest()
        near   = index.get(start)
        yield Mutant(unit, section_of[a], where[near] if near is not None else "", operator, start, end, new, a + 1,
                     before, after, digest)


def sample(mutants, count, seed):
    """Evenly over the sections (by the root of their size) and over the operators in each, by hash."""
    key = lambda m: hashlib.sha256((m.digest + str(seed)).encode()).hexdigest()
    sections = collections.OrderedDict()
    for m in mutants:
        sections.setdefault((m.unit.source, m.section), []).append(m)
    order = {}
    for name, members in sections.items():
        rank, ranked = collections.Counter(), []
        for m in sorted(members, key=key):
            ranked.append((rank[m.operator], key(m), m))
            rank[m.operator] += 1
        order[name] = [m for _, _, m in sorted(ranked, key=lambda x: x[:2])]
    steps = [((i + 1) / len(order[name]) ** 0.5, key(m), m) for name in order for i, m in enumerate(order[name])]
    taken = [m for _, _, m in sorted(steps, key=lambda x: x[:2])[:count]]
    return sorted(taken, key=key)

# ------------------------------------------------------------------------------------------------- the list of equivalents

def read_equivalents():
    """Records: "in function", "- line", "+ changed line", "= reason". -> {(function, line, changed line): reason}"""
    records, function, before, after = {}, None, None, None
    if not os.path.exists(EQUIVALENT):
        return records
    with open(EQUIVALENT) as f:
        for number, line in enumerate(f, 1):
            line = line.rstrip("\n")
            if not line.strip() or line[0] == "#":
                continue
            mark, rest = line[:2], squeeze(line[2:])
            if line.startswith("in "):
                function = line[3:].strip()
            elif mark == "- ":
                before = rest
            elif mark == "+ ":
                after = rest
            elif mark == "= " and before and after and rest:
                records[function, before, after] = rest
                before = after = None
            else:
                sys.exit("%s:%d: not understood" % (os.path.relpath(EQUIVALENT, ROOT), number))
    return records


def resolve_equivalents(mutants):
    """The entries that mutants have, and those that none has. A function may have another name if the line is the only one."""
    exact, homes = set(), collections.defaultdict(set)
    for m in mutants:
        exact.add((m.function, m.before, m.after))
        homes[m.before, m.after].add(m.function)
    found, stale = set(), set()
    for function, before, after in read_equivalents():
        elsewhere = homes[before, after]
        if (function, before, after) in exact:
            found.add((function, before, after))
        elif len(elsewhere) == 1:
            found.add((next(iter(elsewhere)), before, after))
        else:
            stale.add((function, before, after))
    return found, stale

# ------------------------------------------------------------------------------------------------- building and running

def limits():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))


def run(command, cwd, seconds, environment=None, log=None):
    """Exit status; None if it ran out of time."""
    out = open(log, "wb") if log else subprocess.DEVNULL
    p = subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, preexec_fn=limits,
                         start_new_session=True, env=dict(os.environ, TMPDIR=cwd_temp(cwd), **(environment or {})))
    try:
        return p.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()
        return None
    finally:
        if log:
            out.close()


temporary = threading.local()


def cwd_temp(cwd):
    return getattr(temporary, "directory", BUILD)


class Builder:
    """The tests of a unit, compiled once, and how long its suites take on the unchanged code."""

    def __init__(self, unit, jobs):
        self.unit      = unit
        self.directory = os.path.join(BUILD, unit.folder)
        os.makedirs(self.directory, exist_ok=True)
        newest = max(os.path.getmtime(os.path.join(ROOT, d, f)) for d in (".", "test", "examples")
                     for f in os.listdir(os.path.join(ROOT, d)) if f.endswith((".c", ".h", ".cu")))
        def build(pair):
            target = os.path.join(self.directory, pair[0])
            if not os.path.exists(target) or os.path.getmtime(target) < newest:
                subprocess.run(unit.compile + ["-c", "-o", target, pair[1]], cwd=ROOT, check=True)
            return target
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            self.objects = list(pool.map(build, unit.objects))
        self.seconds, self.object = {}, None
        self.sane, self.lock = {}, threading.Lock()

    def build(self, text, directory, flags):
        """Object file's bytes, or None if the compiler refuses it."""
        unit = self.unit
        place(unit, text, directory)
        if run(unit.compile + flags + ["-w", "-c", "-o", "changed.o", unit.entry[0]], directory, 300):
            return None
        with open(os.path.join(directory, "changed.o"), "rb") as f:
            return f.read()

    def link(self, directory, flags=()):
        command = self.unit.compile[:1] + list(flags)
        subprocess.run(command + ["-o", "changed", "changed.o"] + self.objects + self.unit.link, cwd=directory, check=True)

    def baseline(self, directory):
        """The unchanged code passes everything; suites are then tried in the order of their time."""
        directory = os.path.join(directory, self.unit.folder)
        with open(os.path.join(ROOT, self.unit.source)) as f:
            text = f.read()
        temporary.directory = directory
        self.object = self.build(text, directory, self.unit.flags)
        if self.object is None:
            sys.exit("%s: the unchanged code does not compile" % self.unit.name)
        self.link(directory)
        for name, arguments, environment in self.unit.suites:
            start = time.time()
            log   = os.path.join(directory, "log")
            code  = run([os.path.join(directory, "changed")] + arguments, ROOT, 600, environment, log)
            if code != 0:
                with open(log, errors="replace") as f:
                    sys.stdout.write(f.read()[-4000:])
                sys.exit("%s: %s fails on the unchanged code" % (self.unit.name, name))
            self.seconds[name] = time.time() - start
        self.suites = sorted(self.unit.suites, key=lambda s: self.seconds[s[0]])

    def verdict(self, mutant, text, directory, thorough):
        """(verdict, by what)"""
        directory = os.path.join(directory, self.unit.folder)
        temporary.directory = directory
        changed = text[:mutant.start] + mutant.new + text[mutant.end:]
        built   = self.build(changed, directory, self.unit.flags)
        if built is None:
            return "stillborn", ""
        if built == self.object:
            return "same code", ""
        self.link(directory)
        log = os.path.join(directory, "log")
        for name, arguments, environment in self.suites:
            code = run([os.path.join(directory, "changed")] + arguments, ROOT, 10 + 10 * self.seconds[name], environment, log)
            if code != 0:
                return "killed", name + self.reason(code, log)
        for build in self.unit.again if thorough else ():
            if self.build(changed, directory, build[1]) is None:
                continue
            self.link(directory, build[2])
            for suite in self.suites:
                name, arguments, environment = suite
                if self.seconds[name] < 3.0:
                    program = os.path.join(directory, "changed")
                    code = run([program] + arguments, ROOT, 60 + 60 * self.seconds[name], environment, log)
                    if code != 0 and self.is_sane(suite, text, build):
                        return "killed", "%s, %s%s" % (build[0], name, self.reason(code, log))
        return "survived", ""

    def is_sane(self, suite, text, build):
        """Another build of the unchanged code passes; asked only where that build says that a mutant is killed."""
        directory = os.path.join(self.directory, build[0])
        program   = os.path.join(directory, "changed")
        with self.lock:
            if build[0] not in self.sane:
                self.sane[build[0]] = {}
                if self.build(text, directory, build[1]) is None:
                    sys.exit("%s, %s: the unchanged code does not compile" % (self.unit.name, build[0]))
                self.link(directory, build[2])
            sane = self.sane[build[0]]
            if suite[0] not in sane:
                sane[suite[0]] = run([program] + suite[1], ROOT, 600, suite[2]) == 0
            return sane[suite[0]]

    @staticmethod
    def reason(code, log):
        if code is None:
            return " (hangs)"
        with open(log, errors="replace") as f:
            failed = re.findall(r"^FAILED  [^/\n]*/(.*?): \d+ failed", f.read()[-20000:], re.M)
        return ": " + failed[0] if failed else " (crashes)" if code < 0 else ""

# ------------------------------------------------------------------------------------------------- the program

def show(m):
    a, b = m.before, m.after
    if len(a) > 400:                         # a long statement left out or replaced: what differs is enough
        match = difflib.SequenceMatcher(None, a, b).find_longest_match(0, len(a), 0, len(b))
        a, b = a[:200] + " ..", b[:200] + " .." if match.size > 200 else b
    return "%s:%d in %s\n  - %s\n  + %s" % (m.unit.source, m.line, m.function, a, b)


def record(m):
    return "in %s\n- %s\n+ %s\n= " % (m.function, m.before, m.after)


def arguments():
    p = argparse.ArgumentParser(description="Mutation test; see the head of this file.")
    p.add_argument("--count", type=int, default=220, help="mutants in the sample (220)")
    p.add_argument("--seed", type=int, default=0, help="another sample")
    p.add_argument("--section", action="append", help="of this section only; may be repeated")
    p.add_argument("--shard", help="I/N: every N-th of the sample; today/N: another one each day")
    p.add_argument("--minutes", type=float, help="starts no mutant so long after the tests passed unchanged; the rest is skipped")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    p.add_argument("--quick", action="store_true", help="no further builds (SIMD, sanitizers) for those that survive")
    p.add_argument("--list", action="store_true", help="shows the sample and ends")
    p.add_argument("--keep", action="store_true", help="takes over what was killed when it was last run here")
    p.add_argument("--survivors", action="store_true", help="at the end shows them as entries of equivalent.txt")
    return p.parse_args()


def main():
    options = arguments()
    started = time.time()
    os.makedirs(BUILD, exist_ok=True)
    shutil.rmtree(os.path.join(BUILD, "read"), ignore_errors=True)
    texts, everything, claimed = {}, [], set()
    for unit in units():
        path = os.path.join(ROOT, unit.source)
        with open(path) as f:
            texts[unit.source] = f.read()
        active = active_lines(unit, texts[unit.source], os.path.join(BUILD, "read", unit.folder))
        spot   = lambda m: (unit.source, m.start, m.end, m.new)
        fresh  = [m for m in mutants_of(unit, texts[unit.source], active) if spot(m) not in claimed]
        claimed.update(map(spot, fresh))
        everything += fresh
    possible = len(everything)
    equivalents, stale = resolve_equivalents(everything)
    def tell_stale():
        for entry in sorted(stale):
            print("\nstale in equivalent.txt, no such line any more: in %s\n- %s\n+ %s" % entry)
    if options.section:
        everything = [m for m in everything if m.section in options.section]
    chosen = sample(everything, options.count, options.seed)
    if options.shard:
        part, of = options.shard.split("/")
        part   = datetime.date.today().toordinal() if part == "today" else int(part)
        chosen = chosen[part % int(of)::int(of)]
    results_path = os.path.join(BUILD, "results.json")
    results = {}
    if os.path.exists(results_path):
        with open(results_path) as f:
            results = json.load(f)
    print("%d of %d possible mutants, seed %d" % (len(chosen), possible, options.seed))
    sys.stdout.flush()
    if options.list:
        for m in sorted(chosen, key=lambda m: (m.unit.source, m.line)):
            print("%s [%s, %s]" % (show(m), m.section, m.operator))
        tell_stale()
        return 0

    verdicts, lock = {}, threading.Lock()
    waiting = []
    for m in chosen:
        if (m.function, m.before, m.after) in equivalents:
            verdicts[m.digest] = ("equivalent", "")
        elif options.keep and results.get(m.digest, "survived") != "survived":
            verdicts[m.digest] = (results[m.digest], "")
        else:
            waiting.append(m)
    directories = queue.Queue()
    for i in range(options.jobs):
        directory = os.path.join(BUILD, "worker%d" % i)
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        directories.put(directory)
    builders = {}
    for unit in {id(m.unit): m.unit for m in waiting}.values():
        builders[unit] = Builder(unit, options.jobs)
        directory = directories.get()
        builders[unit].baseline(directory)
        directories.put(directory)
        print("%s: %d suites pass unchanged in %.0f s" % (unit.name, len(unit.suites), sum(builders[unit].seconds.values())))
    ready = time.time()
    def work(m):
        if options.minutes and time.time() - ready > 60.0 * options.minutes:
            return
        directory = directories.get()
        try:
            start  = time.time()
            result = builders[m.unit].verdict(m, texts[m.unit.source], directory, not options.quick)
        finally:
            directories.put(directory)
        with lock:
            verdicts[m.digest] = result
            results[m.digest]  = result[0]
            with open(results_path + ".new", "w") as f:
                json.dump(results, f)
            os.replace(results_path + ".new", results_path)
            print("%-10s %-16s %5.1f s  %s" % (result[0], m.section, time.time() - start, result[1]))
            if result[0] == "survived":
                print(show(m))
            sys.stdout.flush()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, waiting))

    names  = ["killed", "survived", "equivalent", "same code", "stillborn", "not run"]
    table  = collections.OrderedDict()
    for m in sorted(chosen, key=lambda m: (m.unit.source, m.line)):
        table.setdefault((m.unit.source, m.section), collections.Counter())[verdicts.get(m.digest, ("not run",))[0]] += 1
    print("\n%-34s %8s" % ("section", "mutants") + "".join("%12s" % n for n in names))
    total = sum(table.values(), collections.Counter())
    for name, counts in list(table.items()) + [(("all", ""), total)]:
        print("%-34s %8d" % (" ".join(name), sum(counts.values())) + "".join("%12d" % counts[n] for n in names))
    survivors = [m for m in chosen if verdicts.get(m.digest, ("",))[0] == "survived"]
    if survivors:
        print("\nNo test noticed:")
        for m in survivors:
            print(record(m) if options.survivors else show(m))
    tell_stale()
    tested  = total["killed"] + total["survived"]
    allowed = ALLOWED * tested
    if options.shard or total["not run"]:
        # a small part of the sample fails when its survivors could hardly come from a whole that passes
        allowed += 3.0 * (ALLOWED * (1.0 - ALLOWED) * tested) ** 0.5
    allowed = int(allowed)
    failed  = max(0, len(survivors) - allowed)
    print("\n%d of %d killed, %.1f %%; %d may survive; %.0f s"
          % (total["killed"], tested, 100.0 * total["killed"] / max(tested, 1), allowed, time.time() - started))
    print("%d passed, %d failed, %d skipped" % (total["killed"], failed, len(chosen) - tested))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
