#!/bin/sh
# Which lines and branches of santa.h's implementation the unit tests take on this machine;
# `make coverage` starts it. gcc compiles the library at -O0, and functions that are inlined by force
# as functions, so that a branch is one of the source's. The tests run with every instruction set
# of the machine, then partly as on lesser machines, see impl.c. coverage.py counts and says how.
# Last line: N passed, N failed, N skipped.
. "$(dirname "$0")/cells.sh"

coverage() {
    need gcc gcov python3
    objects=
    for file in test/*.c; do
        object=$dir/$(basename "$file" .c).o
        objects="$objects $object"
        case $file in
        test/impl.c) flags="-O0 -g1 -Dalways_inline=unused --coverage -fprofile-update=atomic" ;;
        *)           flags=-O1 ;;
        esac
        # shellcheck disable=SC2086
        gcc $flags -c -o "$object" "$file" || return 1
    done
    # shellcheck disable=SC2086
    gcc --coverage -pthread -o "$dir/test" $objects -lm || return 1
    limited "$dir/test" --quick || return 1
    for isa in avx2 scalar; do
        SANTA_TEST_ISA=$isa limited "$dir/test" --quick kernels/ determinism/ errors/ golden/ || return 1
    done
    gcov --json-format --stdout --branch-probabilities --branch-counts --object-directory "$dir" \
        "$dir/impl.o" >"$dir/gcov.json" || return 1
    python3 test/coverage.py "$dir/gcov.json" santa.h test/coverage-left.txt
}

list() { cell "coverage" coverage; }

run_cells list
status=$?
sed -n '/^coverage of/,$p' "$work/1/log"
passed=$(count passed)
skipped=$(count skipped)
echo "$passed passed, $((1 - passed - skipped)) failed, $skipped skipped"
exit $status
