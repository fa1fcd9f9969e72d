# Adds up the parts of a test run; sourced. Every part is a command whose last line is "N passed, N failed, N skipped".
#     plan NAME...             prints what will run
#     part NAME COMMAND...
#     total                    prints the sum in the same form; returns non-zero when something failed

all_passed=0
all_failed=0
all_skipped=0
parts=0
parts_begun=0
begun=$(date +%s)

plan() {
    parts=$#
    names=
    for name in "$@"; do names="$names${names:+, }$name"; done
    echo "plan: $names"
}

part() {
    title=$1
    shift
    parts_begun=$((parts_begun + 1))
    echo "== [$parts_begun/$parts] $title, after $(($(date +%s) - begun)) s"
    mkdir -p "$BUILD"
    log=$BUILD/part.$$                      # parts nest, hence the process number
    # A command may be a shell function with names of its own, so it has a shell of its own.
    { ("$@") 2>&1 </dev/null; echo $? >"$log.status"; } | tee "$log.log"
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
    if [ "$parts_begun" -ne "$parts" ]; then
        echo "FAILED  the plan had $parts parts, $parts_begun were run"
        all_failed=$((all_failed + 1))
    fi
    # The seconds of CPU that this shell (hence no pipe) and what it ran have taken: `times`
    # prints 0m1.23s four times.
    times >"$BUILD/times.$$"
    echo
    sed 's/[ms]/ /g' "$BUILD/times.$$" |
        awk -v wall=$(($(date +%s) - begun)) '{ for (i = 1; i < NF; i += 2) sum += 60 * $i + $(i + 1) }
                                              END { printf "took %d s, %.0f s of CPU\n", wall, sum }'
    rm -f "$BUILD/times.$$"
    echo "$all_passed passed, $all_failed failed, $all_skipped skipped"
    [ "$all_failed" -eq 0 ]
}
