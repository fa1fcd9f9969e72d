#!/bin/sh
# The tests' own tools: what must fail does, and is counted; the model of bench/cost.py. Wants the
# test program in $BUILD.
# Last line: the count.
. "$(dirname "$0")/cells.sh"

# ends STATUS LAST_LINE COMMAND...: that is how the command ends, and within a minute. STATUS:
# 0, or 1 for any other.
ends() {
    status=$1
    last=$2
    shift 2
    if command -v timeout >/dev/null; then set -- timeout 60 "$@"; fi
    "$@" >"$dir/out" 2>&1
    code=$?
    cat "$dir/out"
    [ "$code" -ne 124 ] && [ $((code != 0)) -eq "$status" ] && [ "$(tail -n 1 "$dir/out")" = "$last" ]
}

program() {
    [ -x "$BUILD/santa_test" ] || skip "no $BUILD/santa_test"
    ends "$1" "$2" "$BUILD/santa_test" --timeout 1 "$3"
}

hangs() {
    program 1 "0 passed, 1 failed, 0 skipped" --hang &&
        grep -q '^FAILED  watchdog/a case that hangs: ' "$dir/out"
}

# script STATUS LAST_LINE TEXT: a script that sources what is tried here, with a build directory
# of its own.
script() {
    echo ". '$root/test/cells.sh'; . '$root/test/total.sh'; cd '$root'; BUILD='$dir'" >"$dir/script.sh"
    echo "$3" >>"$dir/script.sh"
    ends "$1" "$2" sh "$dir/script.sh"
}

cells_and() {
    script "$1" "$2" "gone() { skip 'not here'; }; list() { cell one true; cell two $3; }; run_cells list"
}
parts() { script "$1" "$2" "$3; total"; }

# One version in the three files' first lines, in the macros and on top of the history.
# columns FILE...: prose in comments is 96 columns wide, the rest 108. No prose: code, tables,
# command lines.
columns() {
    awk 'FNR == 1 { inside = 0 }
         length > 108 { print FILENAME ":" FNR ": more than 108 columns"; bad = 1 }
         /^ *\/\*/ { inside = 1 }
         inside && length > 96 && !/[;})] *$|\/\/|[^ ]  +[^ ]/ {
             print FILENAME ":" FNR ": more than 96"; bad = 1
         }
         /\*\// { inside = 0 }
         END { exit bad }' "$@"
}

lines_fit() {
    for n in 96 97; do                              # it sees what it is to see
        { echo "/* A comment"; printf "   %$((n - 3))s\n" text | tr ' ' x; echo "   ends. */"; } \
            >"$dir/$n.c"
    done
    columns "$dir/96.c" && ! columns "$dir/97.c" >"$dir/found" && [ "$(wc -l <"$dir/found")" -eq 1 ] ||
        return 1
    # shellcheck disable=SC2046
    columns $(find santa.h santa_cuda.h santa_cuda.cu test examples bench \
                  -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp')
}

versions() {
    number() { sed -n "s/^#define SANTA_VERSION_$1 *\\([0-9]*\\)\$/\\1/p" santa.h; }
    version=$(number MAJOR).$(number MINOR).$(number PATCH)
    echo "$version"
    for file in santa.h santa_cuda.h santa_cuda.cu; do
        head -n 1 "$file" | grep -qF "$file - v$version - " || return 1
    done
    sed -n '/>>history$/{n;p;}' santa.h | tail -n 1 | grep -q "^   $version "
}

# CONTENTS names every section; of >>kernels-amx it says -amx.
sections() {
    for file in santa.h santa_cuda.cu; do
        sed -n 's/^\(\/\* [-=]*\)\{0,1\} *>>\([a-z0-9-]*\)\( \*\/\)\{0,1\}$/\2/p' "$file" >"$dir/sections"
        [ "$(wc -l <"$dir/sections")" -gt 25 ] || return 1
        sed -n '/^   CONTENTS/,/^$/p' "$file" | tr -cs 'a-z0-9-' '\n' >"$dir/contents"
        while read -r name; do
            grep -qx -e "$name" -e "${name#kernels}" "$dir/contents" ||
                { echo "not in the contents of $file: $name"; return 1; }
        done <"$dir/sections"
    done
}

# santa_struct_size knows every struct of the API.
structs() {
    sed -n '/>>implementation \*\//q; s/^typedef struct santa_\([a-z_]*\) .*/\1/p' santa.h >"$dir/structs"
    [ "$(wc -l <"$dir/structs")" -gt 9 ] || return 1
    while read -r name; do
        grep -q "^    X.* *X($name)\|^    X($name)" santa.h || { echo "not in SANTA_STRUCT_LIST: $name"; return 1; }
    done <"$dir/structs"
}

# cost_says STATUS LINES PROGRAM...: how a form of bench/cost.py ends, with so many lines on stderr.
cost_says() {
    status=$1
    lines=$2
    shift 2
    need python3
    python3 -B "$@" >"$dir/out" 2>"$dir/error"
    code=$?
    cat "$dir/error"
    [ "$code" -eq "$status" ] && [ "$(wc -l <"$dir/error")" -eq "$lines" ]
}

# Its predictions for two cards, the fit to one and the bytes against the files that were measured.
cost_holds() {
    cost_says 0 0 bench/cost.py --check 15 || return 1
    tail -n 1 "$dir/out"
    [ "$(tail -n 1 "$dir/out")" = "81 times within 15 %, 32 counts of bytes within 10 %" ]
}

cost_constants() {
    for wrong in "--latency 14" "--latency 7" "--link 1" "--bandwidth 3.6" "--bandwidth 5.2"; do
        # shellcheck disable=SC2086
        cost_says 1 1 bench/cost.py --check 15 $wrong || { echo "not noticed: $wrong"; return 1; }
    done
    while read -r wrong; do
        cost_says 1 1 -c "import sys; sys.path.insert(0, 'bench'); import cost; $wrong
cost.main(['--check', '15'])" ||
            { echo "not noticed: $wrong"; return 1; }
    done <<'END'
cost.copy_bytes = lambda head_dim: 80
cost.ELEMENT = 4
cost.SAMPLES = 1280
was = cost.exchanges; cost.exchanges = lambda method, shape: was(method, shape)[1:] or was(method, shape)
was = cost.exchanges; cost.exchanges = lambda method, shape: 2 * was(method, shape)
END
}

# A file that says otherwise, or nothing.
cost_files() {
    mkdir "$dir/results" && cp bench/cost.py "$dir" || return 1
    cp bench/results/*-h200x2-ranks.txt bench/results/*-h200-bench.txt "$dir/results" || return 1
    cost_says 0 0 "$dir/cost.py" --check 15 || return 1
    sed 's/^\(prop .* us .* us \) *312\.6 us/\1 412.6 us/' bench/results/2026-11-25-h200x2-ranks.txt \
        >"$dir/results/2026-11-25-h200x2-ranks.txt"
    cost_says 1 1 "$dir/cost.py" --check 15 || return 1
    sed '/^top-k  /d' bench/results/2026-11-25-h200x2-ranks.txt >"$dir/results/2026-11-25-h200x2-ranks.txt"
    cost_says 1 1 "$dir/cost.py" && grep -q "no times of top-k" "$dir/error" || return 1
    rm "$dir/results/2026-11-26-h200-bench.txt"
    cp bench/results/2026-11-25-h200x2-ranks.txt "$dir/results"
    cost_says 1 1 "$dir/cost.py" && grep -q "No such file" "$dir/error"
}

cost_arguments() {
    while read -r wrong; do
        # shellcheck disable=SC2086
        cost_says 2 1 bench/cost.py $wrong && [ ! -s "$dir/out" ] || { echo "taken: $wrong"; return 1; }
    done <<'END'
--keys 0
--keys 2048M
--ranks 1,,2
--ranks 65537
--method bernoulli
--latency nan
--link -1
--bandwidth fast
--heads 30
--head-dim 12
--batch 1.5
--check 0
--cards 2
END
}

# What must hold of any model: an eighth of the heads is an eighth of the bytes; two ranks are those
# measured; no way to cut is faster than the best; more latency is never faster; a way pays from
# where it begins to be faster.
cost_projects() {
    cost_says 0 0 - <<'END'
import sys
sys.path.insert(0, "bench")
import cost
rows, (_, read) = cost.read_ranks(), cost.read_bench()
model, slow, s = cost.Model(rows, read), cost.Model(rows, read), cost.Shape(32, 8, 128, 1)
slow.latency += 30.0
for m in cost.METHODS:
    whole, eighth = cost.bytes_read(m, s, 1 << 20, 1), cost.bytes_read(m, s.cut(8), 1 << 20, 1)
    assert abs(8 * eighth / whole - 1) < 1e-9, m
    assert model.step(m, s, 1 << 20, 1) == model.own(m, s, 1 << 20), m
    two = [r for r in rows if (r.method, r.keys) == (m, 1 << 20)]
    assert all(abs(cost.off(model.step(m, s, 1 << 20, 2), r.over)) < 15 for r in two) and two, m
    for gpus in (1, 2, 3, 6, 8, 12, 64):
        us, heads, ranges = model.best(m, s, 10 << 20, gpus)
        assert heads * ranges == gpus and us == model.step(m, s, 10 << 20, ranges, heads), m
        assert us <= model.step(m, s, 10 << 20, gpus), m
        assert heads == min(gpus, 8) or 8 % gpus and gpus % 8, (m, gpus, heads)
        if gpus > 1:
            assert slow.step(m, s, 10 << 20, gpus) > model.step(m, s, 10 << 20, gpus) + 29.9, m
            n = model.pays_from(m, s, gpus)
            faster = [model.step(m, s, k, gpus) < model.step(m, s, k, 1) for k in (n - gpus, n)]
            assert faster == [False, True], (m, gpus, n)
END
}

# The tables of bench/results/README.md are what it says.
cost_tables() {
    cost_says 0 0 - <<'END'
import sys
sys.path.insert(0, "bench")
import cost
rows, (_, read) = cost.read_ranks(), cost.read_bench()
model, s, gpus = cost.Model(rows, read), cost.Shape(32, 8, 128, 1), [1 << i for i in range(7)]
for m in cost.METHODS:
    line = (f"| {m} | {model.fixed[m]:.1f} us | {1e-6 * model.rate[m]:.2f} TB/s | "
            f"{len(cost.exchanges(m, s))} |")
    for keys in (1 << 20, 1 << 17):
        over = next(r.over for r in rows if (r.run, r.method, r.keys) == ("threads", m, keys))
        us = model.step(m, s, keys, 2)
        line += f" {over:.0f}, {us:.0f} us ({cost.off(us, over):+.1f} %) |"
    print(line)
for keys in (1, 10):
    for m in cost.SHOWN:
        ranges = [f"{model.step(m, s, keys << 20, r):.0f}" for r in gpus]
        both = [min(model.best(m, s, keys << 20, r)[0], model.step(m, s, keys << 20, 1, min(r, 8)))
                for r in gpus]
        print(f"| {keys}M, {m}, ranges | {' | '.join(ranges)} |")
        print(f"| heads x ranges | {' | '.join(f'{us:.0f}' for us in both)} |")
END
    [ "$(wc -l <"$dir/out")" -eq 21 ] || return 1
    while IFS= read -r line; do
        grep -qxF "$line" bench/results/README.md && continue
        echo "not in bench/results/README.md: $line"
        return 1
    done <"$dir/out"
}

list() {
    cell "a case that hangs ends the run and fails it" hangs
    cell "a case that ends in time does not" \
         program 0 "1 passed, 0 failed, 0 skipped" "random/Philox: the published"
    cell "a name that no case has fails the run" program 1 "0 passed, 0 failed, 0 skipped" "no such case"
    cell "a cell that passes"     cells_and 0 "2 passed, 0 failed, 0 skipped" true
    cell "a cell that fails"      cells_and 1 "1 passed, 1 failed, 0 skipped" false
    cell "a cell that is skipped" cells_and 0 "1 passed, 0 failed, 1 skipped" gone
    cell "a cell that ends with 77, as MSan does" cells_and 1 "1 passed, 1 failed, 0 skipped" "sh -c 'exit 77'"
    cell "a part that passes" parts 0 "3 passed, 0 failed, 1 skipped" \
         'plan a; part a echo "3 passed, 0 failed, 1 skipped"'
    cell "a part with a failure" parts 1 "3 passed, 1 failed, 0 skipped" \
         'plan a b; part a echo "2 passed, 1 failed, 0 skipped"
          part b echo "1 passed, 0 failed, 0 skipped"'
    cell "a part that dies without a count" parts 1 "0 passed, 1 failed, 0 skipped" \
         'plan a; part a false'
    cell "a part with a good count that ends badly" parts 1 "1 passed, 1 failed, 0 skipped" \
         'plan a; part a sh -c "echo 1 passed, 0 failed, 0 skipped; exit 5"'
    cell "a part that sets what a part uses, and ends badly" parts 1 "1 passed, 1 failed, 0 skipped" \
         'plan a; mine() { log=$BUILD/other; echo 1 passed, 0 failed, 0 skipped; return 5; }; part a mine'
    cell "bench/cost.py against what was measured" cost_holds
    cell "bench/cost.py with a wrong constant" cost_constants
    cell "bench/cost.py with other files" cost_files
    cell "bench/cost.py with wrong arguments" cost_arguments
    cell "bench/cost.py for other ranks" cost_projects
    cell "bench/cost.py and bench/results/README.md" cost_tables
    cell "lines of at most 96 and 108 columns" lines_fit
    cell "one version everywhere" versions
    cell "every section stands in the contents" sections
    cell "every struct has its size in the API" structs
    cell "a part of the plan that is not run" parts 1 "1 passed, 1 failed, 0 skipped" \
         'plan a b; part a echo "1 passed, 0 failed, 0 skipped"'
}

run_cells list
