# Adds up the parts of a test run; sourced. Every part is a command whose last line is "N passed, N failed, N skipped".
#     part NAME COMMAND...
#     total                    prints the sum in the same form; returns non-zero when something failed

all_passed=0
all_failed=0
all_skipped=0

part() {
    title=$1
    shift
    echo "== $title"
    mkdir -p "$BUILD"
    log=$BUILD/part.$$                      # parts nest, hence the process number
    { "$@" 2>&1 </dev/null; echo $? >"$log.status"; } | tee "$log.log"
    status=$(cat "$log.status")
    numbers=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$log.log" | tail -n 1)
    if [ -z "$numbers" ]; then
        echo "FAILED  $title: ended with status $status and without a count"
        numbers="0 1 0"
    fi
    # shellcheck disable=SC2086
    set -- $numbers
    failures=$2
    if [ "$status" -ne 0 ] && [ "$failures" -eq 0 ]; then
        echo "FAILED  $title: ended with status $status"
        failures=1
    fi
    all_passed=$((all_passed + $1))
    all_failed=$((all_failed + failures))
    all_skipped=$((all_skipped + $3))
    rm -f "$log.log" "$log.status"
}

total() {
    echo
    echo "$all_passed passed, $all_failed failed, $all_skipped skipped"
    [ "$all_failed" -eq 0 ]
}
