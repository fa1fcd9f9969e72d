# Counted cases for the shell parts of the suite; sourced by them. A script lists its cases in a function, a line each:
#     cell NAME COMMAND...
# A case passes when its command (a program or a shell function) returns 0, is skipped when it calls `skip`, and its
# output is shown when it fails. run_cells FUNCTION walks the list with $JOBS workers at once; a case is run by the
# worker that comes to it first. $dir is a fresh directory of the case's own.
# CELLS=text: only those with it in their names.

set -u
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
CC=${CC:-cc}
BUILD=${BUILD:-build}
# For programs that are linked with an object that holds the library's code, see the Makefile.
LINKED=-DSANTA_IMPLEMENTATION_DONE
# Where a suite runs once for each instruction set, or slowly: what depends on that or on the order of bytes.
SLOWEST_MACHINE="convert/ random/ kernels/ dense/ q8_0/ pps/ proxy/ errors/ golden/ saap/ saap-file/ k-means/ prefill/types sparse/masks,"
# For another machine's instructions by an emulator: what depends on them or on the order of bytes.
EMULATED="convert/ random/ q8_0/ golden/ saap-file/ k-means/ proxy/format proxy/scores"
JOBS=${JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)}

cell() {
    case $1 in *"${CELLS:-}"*) ;; *) return 0 ;; esac
    number=$((number + 1))
    [ "$cells" -gt 0 ] || return 0          # they are being counted
    dir=$work/$number
    mkdir "$dir" 2>/dev/null || return 0
    name=$1
    shift
    start=$(date +%s)
    ( trap 'times >&8' EXIT; "$@" ) >"$dir/log" 2>&1 </dev/null 8>"$dir/times"
    code=$?
    [ ! -e "$dir/skipped" ] || code=skipped
    case $code in
    0)  echo passed >"$dir/result"
        printf 'ok      [%2d/%d] %-60s %3d s, %3.0f s of CPU, %4d s in all\n' "$number" "$cells" "$name" \
               $(($(date +%s) - start)) "$(cpu_seconds "$dir/times")" $(($(date +%s) - began)) ;;
    skipped)
        echo skipped >"$dir/result"
        echo "skipped $name: $(tail -n 1 "$dir/log")" ;;
    *)  echo failed >"$dir/result"
        printf 'FAILED  %s: %s\n%s\n' "$name" "$*" "$(grep -v '^ok ' "$dir/log" | tail -n 40 | sed 's/^/    /')" ;;
    esac
}

# The seconds of CPU that a shell and what it ran had taken when it wrote `times`, 0m1.23s four times, to a file.
cpu_seconds() {
    sed 's/[ms]/ /g' "$1" | awk '{ for (i = 1; i < NF; i += 2) sum += 60 * $i + $(i + 1) } END { print sum + 0 }'
}

# Inside a case: skip it, for lack of something. Not told by a status: MSan and libFuzzer end with any when they find
# something.
skip() {
    echo "$*"
    : >"$dir/skipped"
    exit 1
}

# Inside a case: skip it unless these programs are there.
need() {
    for tool in "$@"; do
        command -v "$tool" >/dev/null 2>&1 || skip "no $tool"
    done
}

# Inside a case: run a program that must not hang.
limited() {
    command -v timeout >/dev/null 2>&1 || { "$@"; return; }
    timeout 1800 "$@"
    status=$?
    [ $status -ne 124 ] || echo "no end after 1800 s"
    return $status
}

# Inside a case: test_program COMPILER FLAGS... builds the test program as $dir/test: all suites, or those of
# SUITES, named as their files are. COMPILER may have words. The flags are for the library: the tests' own code
# needs no more than -Og, which compiles five times as fast as -O2 and runs nearly as fast.
# shellcheck disable=SC2086
test_program() {
    compiler=$1
    shift
    need ${compiler%% *}
    files=$(echo test/*.c)
    suites=
    if [ "${SUITES:-}" ]; then
        files="test/impl.c test/main.c"
        for suite in $SUITES; do
            files="$files test/test_$suite.c"
            suites="$suites{\"$suite\",suite_$suite},"
        done
    fi
    flags_of_tests=$(echo " $* " | sed 's/ -O[12] / -Og /; s/ -ffast-math / /')
    objects=
    for file in $files; do
        object=$dir/$(basename "$file" .c).o
        case $file in
        test/impl.c) $compiler "$@" -c -o "$object" "$file" ;;
        *)           $compiler $flags_of_tests ${suites:+"-DTEST_SUITES=$suites"} -c -o "$object" "$file" ;;
        esac || return 1
        objects="$objects $object"
    done
    ${compiler%% *} "$@" -pthread -o "$dir/test" $objects -lm
}

# Inside a case: skip it when this compiler with these flags cannot make a program (it may lack a library).
can_link() {
    echo 'int main(void) { return 0; }' >"$dir/probe.c"
    "$@" -o "$dir/probe" "$dir/probe.c" 2>/dev/null || skip "$* cannot link"
}

# today N [AHEAD]: with DAILY=1, as .ci/run has it, one of N parts of a long cell, another one each day (AHEAD days
# early); else all of it.
today() {
    if [ "${DAILY:-0}" = 1 ]; then echo "--part $((($(date +%s) / 86400 + ${2:-0}) % $1 + 1))/$1"; fi
}

# nvcc's option to compile fast, whatever the code's speed; an older one has no better than -G.
in_a_hurry() {
    if nvcc --help | grep -q Ofast-compile; then echo --Ofast-compile=max; else echo -G; fi
}

count() {
    cat "$work"/*/result 2>/dev/null | grep -c "^$1\$"
}

# A case without a result (its worker was killed) is a failure.
run_cells() {
    work=$BUILD/$(basename "$0" .sh)
    rm -rf "$work"
    mkdir -p "$work"
    cells=0
    number=0
    "$1"
    cells=$number
    began=$(date +%s)
    echo "plan: $cells cases, $JOBS at once"
    workers=0
    while [ "$workers" -lt "$JOBS" ]; do
        ( number=0; "$1" ) &
        workers=$((workers + 1))
    done
    wait
    set -- "$work"/*/
    passed=$(count passed)
    skipped=$(count skipped)
    failed=$(($# - passed - skipped))
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}
