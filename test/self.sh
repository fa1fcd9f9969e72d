#!/bin/sh
# The tests' own tools: what must fail does, and is counted. Wants the test program in $BUILD.
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
versions() {
    number() { sed -n "s/^#define SANTA_VERSION_$1 *\\([0-9]*\\)\$/\\1/p" santa.h; }
    version=$(number MAJOR).$(number MINOR).$(number PATCH)
    echo "$version"
    for file in santa.h santa_cuda.h santa_cuda.cu; do
        head -n 1 "$file" | grep -qF "$file - v$version - " || return 1
    done
    sed -n '/>>history$/{n;p;}' santa.h | tail -n 1 | grep -q "^   $version "
}

# santa_struct_size knows every struct of the API.
structs() {
    sed -n '/>>implementation \*\//q; s/^typedef struct santa_\([a-z_]*\) .*/\1/p' santa.h >"$dir/structs"
    [ "$(wc -l <"$dir/structs")" -gt 9 ] || return 1
    while read -r name; do
        grep -q "^    X.* *X($name)\|^    X($name)" santa.h || { echo "not in SANTA_STRUCT_LIST: $name"; return 1; }
    done <"$dir/structs"
}

list() {
    cell "a case that hangs ends the run and fails it" hangs
    cell "a case that ends in time does not" \
         program 0 "1 passed, 0 failed, 0 skipped" "random/Philox: the published"
    cell "a name that no case has fails the run" program 1 "0 passed, 0 failed, 0 skipped" "no such case"
    cell "a cell that passes"     cells_and 0 "2 passed, 0 failed, 0 skipped" true
    cell "a cell that fails"      cells_and 1 "1 passed, 1 failed, 0 skipped" false
    cell "a cell that is skipped" cells_and 0 "1 passed, 0 failed, 1 skipped" gone
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
    cell "one version everywhere" versions
    cell "every struct has its size in the API" structs
    cell "a part of the plan that is not run" parts 1 "1 passed, 1 failed, 0 skipped" \
         'plan a b; part a echo "1 passed, 0 failed, 0 skipped"'
}

run_cells list
