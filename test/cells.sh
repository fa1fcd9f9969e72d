# Counted cases for the shell parts of the suite; sourced by them. A script lists its cases in a function, a line each:
#     cell NAME COMMAND...
# A case passes when its command (a program or a shell function) returns 0, is skipped when it returns 77, and its
# output is shown when it fails. run_cells FUNCTION walks the list with $JOBS workers at once; a case is run by the
# worker that comes to it first. $dir is a fresh directory of the case's own.

set -u
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
CC=${CC:-cc}
BUILD=${BUILD:-build}
# For programs that are linked with an object that holds the library's code, see the Makefile.
LINKED=-DSANTA_IMPLEMENTATION_DONE
# For emulators and valgrind: the suites that do not run the same code very often.
SLOW_MACHINE="convert/ random/ kernels/ dense/ q8_0/ sampling/ pps/ proxy/ bernoulli/ vattention/ measures/ errors/ memory/ fuzz/ golden/ saap/ k-means/ prefill/types prefill/a sparse/masks,"
# For the slowest of them: what depends on the instruction set or the order of bytes.
SLOWEST_MACHINE="convert/ random/ kernels/ dense/ q8_0/ pps/ proxy/ errors/ golden/ saap/ saap-file/ k-means/ prefill/types sparse/masks,"
JOBS=${JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)}

cell() {
    number=$((number + 1))
    [ "$cells" -gt 0 ] || return 0          # they are being counted
    dir=$work/$number
    mkdir "$dir" 2>/dev/null || return 0
    name=$1
    shift
    start=$(date +%s)
    ( "$@" ) >"$dir/log" 2>&1 </dev/null
    code=$?
    seconds=$(($(date +%s) - start))
    case $code in
    0)  echo passed >"$dir/result"
        printf 'ok      [%2d/%d] %-72s %3d s, %4d s in all\n' "$number" "$cells" "$name" "$seconds" \
               $(($(date +%s) - began)) ;;
    77) echo skipped >"$dir/result"
        echo "skipped $name: $(tail -n 1 "$dir/log")" ;;
    *)  echo failed >"$dir/result"
        printf 'FAILED  %s: %s\n%s\n' "$name" "$*" "$(grep -v '^ok ' "$dir/log" | tail -n 40 | sed 's/^/    /')" ;;
    esac
}

# Inside a case: skip it, for lack of something.
skip() {
    echo "$*"
    exit 77
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

# Inside a case: test_program COMPILER FLAGS... builds the whole test program as $dir/test. COMPILER may have words.
# shellcheck disable=SC2086
test_program() {
    compiler=$1
    shift
    need ${compiler%% *}
    objects=
    for file in test/*.c; do
        object=$dir/$(basename "$file" .c).o
        $compiler "$@" -c -o "$object" "$file" || return 1
        objects="$objects $object"
    done
    ${compiler%% *} "$@" -pthread -o "$dir/test" $objects -lm
}

# Inside a case: skip it when this compiler with these flags cannot make a program (it may lack a library).
can_link() {
    echo 'int main(void) { return 0; }' >"$dir/probe.c"
    "$@" -o "$dir/probe" "$dir/probe.c" 2>/dev/null || skip "$* cannot link"
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
