#!/bin/sh
# Every example is built and run (the trainer of buckets tests itself); so is the quick start that santa.h and README.md print, which
# must be the program in examples/quickstart.c. They share one object with the library's code,
# as in the Makefile; with `alone` each is built by itself, as its first lines say but without optimisation,
# and asked for help: what it computes was seen already. The quick start that is printed is at -O2 there.
# Last line: the count.
. "$(dirname "$0")/cells.sh"
alone=${1:-}

plain() {
    if [ "$alone" ]; then flags=-O2; else flags="-O0 -DSANTA_NO_SIMD"; fi
    # shellcheck disable=SC2086
    "$CC" $flags -I. -o "$dir/program" "$1" -lm
}

build() {
    if [ "$alone" ]; then
        "$CC" -O0 -DSANTA_NO_SIMD -I. -o "$dir/program" "$1" -lm
    else
        "$CC" -O2 $LINKED -I. -pthread -o "$dir/program" "$1" "$BUILD/santa.o" -lm
    fi
}

example() {
    build "$1" || return 1
    [ "$alone" ] && [ "$1" != examples/quickstart.c ] || limited "$dir/program" || return 1
    [ "$1" = examples/quickstart.c ] || helps "$dir/program"
}

# The tuner on its synthetic layers, also where no loss is allowed; what is wrong with an option is said.
tuner() {
    example examples/prefill_tune.c || return 1
    [ -z "$alone" ] || return 0
    limited "$dir/program" --loss 0 || return 1
    for options in "--loss x" "--loss" "--lengths 256" "--model m --lengths 63" "--model m --lengths 99,98"; do
        # shellcheck disable=SC2086
        ! "$dir/program" $options 2>"$dir/said" && grep "prefill_tune: --" "$dir/said" || return 1
    done
}

# --help says something, in 80 columns; other arguments are refused.
helps() {
    "$1" --help >"$dir/help" && [ -s "$dir/help" ] && ! "$1" --no-such-option || return 1
    awk 'length($0) > 80 { print "wider than 80 columns: " $0; wide = 1 } END { exit wide }' "$dir/help"
}

# The toy decoder is tried on its own model, briefly: the demo itself is `make demo`.
decoder() {
    if [ "$alone" ]; then
        build examples/decode.c && helps "$dir/program"
        return
    fi
    "${MAKE:-make}" -s CC="$CC" BUILD="$BUILD" "$BUILD/decode" &&
        cp "$BUILD/decode" "$dir/program" || return 1
    [ -f examples/model/model.bin ] || skip "no examples/model/model.bin"
    for method in dense sys "sys --draft 3"; do
        # shellcheck disable=SC2086
        limited "$dir/program" --method $method --steps 8 --prompt "In the beginning" >"$dir/text" || return 1
        [ -s "$dir/text" ] || return 1
    done
    # The command of examples/saap/README.md.
    options=$(sed -n 's,^    make build/decode && build/decode ,,p' examples/saap/README.md)
    # shellcheck disable=SC2086
    [ "$options" ] && limited "$dir/program" $options >"$dir/text" 2>"$dir/said" && [ -s "$dir/text" ] &&
        grep "k-means of the prompt" "$dir/said" || return 1
    helps "$dir/program"
}

# Beside ggml, where pkg-config finds one.
ggml() {
    need pkg-config
    ggml_flags=$(pkg-config --cflags --libs ggml 2>/dev/null) || skip "no ggml that pkg-config knows"
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir ggml):${LD_LIBRARY_PATH:-}
    export LD_LIBRARY_PATH
    # shellcheck disable=SC2086
    if [ "$alone" ]; then set -- -O0 -DSANTA_NO_SIMD; else set -- $LINKED "$BUILD/santa.o"; fi
    # shellcheck disable=SC2086
    "$CC" -O2 "$@" -o "$dir/program" examples/ggml_op.c $ggml_flags -lggml-base -lm || return 1
    limited "$dir/program" && helps "$dir/program"
}

# Four ranks, also where there are fewer processors, and as root.
mpi() {
    need mpicc
    need mpirun
    # shellcheck disable=SC2086
    if [ "$alone" ]; then set -- -O0 -DSANTA_NO_SIMD; else set -- $LINKED "$BUILD/santa.o"; fi
    mpicc -O2 -o "$dir/program" examples/sharded_mpi.c "$@" -lm || return 1
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 limited mpirun --oversubscribe -n 4 "$dir/program" &&
    helps "$dir/program"
}

# The commands of llama2c.md, by which llama2.c's run.c gets santa: exactly, it writes the same text as before.
llama2c() {
    [ -f "${LLAMA2C:-}/run.c" ] || skip "no run.c in \$LLAMA2C"
    awk '/^```/ { on = $0 == "```sh"; next } on' examples/llama2c.md >"$dir/commands.sh"
    (cd "$dir" && SANTA=$root && LLAMA2C=$LLAMA2C && . ./commands.sh) || return 1
    "$CC" -O2 -o "$dir/before" "$LLAMA2C/run.c" -lm || return 1
    for program in run before; do
        limited "$dir/$program" examples/model/model.bin -z examples/model/tokenizer.bin -t 0 -n 200 -i "And God said" \
            >"$dir/$program.text" || return 1
    done
    [ "$(wc -c <"$dir/run.text")" -gt 200 ] && cmp "$dir/run.text" "$dir/before.text" &&
    SANTA_SAMPLES=4 "$dir/run" examples/model/model.bin -z examples/model/tokenizer.bin -t 0 -n 200 -i "And God said" \
            >"$dir/sampled.text" && ! cmp "$dir/sampled.text" "$dir/before.text"
}

# python_with MODULES: sets python to one that has them; a package of the system's is not one of every python3.
python_with() {
    need python3
    for python in python3 /usr/bin/python3; do
        "$python" -c "import $1" 2>/dev/null && return
    done
    skip "no ${1##*, }"
}

trainer() {
    python_with "numpy, torch"
    limited "$python" -B examples/saap/train.py --self-test --threads 1
}

# python_tests MODULE WORDS...: those of the tests that want this module and no other. The library that
# they compile is kept between runs.
python_tests() {
    python_with "numpy${1:+, $1}"
    shift
    mkdir -p "$BUILD/cache" && XDG_CACHE_HOME=$(cd "$BUILD/cache" && pwd) limited "$python" -B examples/python/test_santa.py "$@"
}

# Prints the program of a >>quickstart section or of the first ```c block, without its indentation.
header_quickstart() {
    awk '/^   >>/ { on = $1 == ">>quickstart"; next } on { sub(/^     /, ""); print }' santa.h
}
readme_quickstart() {
    awk '/^```/ { if (on) exit; on = $0 == "```c"; next } on' README.md
}

# What the compiler sees of a program, whatever its comments, indentation and path to the header.
bare() {
    sed -e 's,"[./]*santa\.h","santa.h",' -e 's,//.*,,' -e 's,/\*[^*]*\*/,,g' -e 's/[[:space:]]\{1,\}/ /g' -e 's/^ //' \
        -e 's/ $//' "$1" | grep .
}

quickstart() {
    [ -f "$2" ] || skip "no $2"
    "$1" >"$dir/quick.c"
    grep -q 'int main' "$dir/quick.c" || skip "$2 holds no whole program"
    "$3" "$dir/quick.c" && "$dir/program" || return 1
    if [ -f examples/quickstart.c ]; then
        bare "$dir/quick.c" >"$dir/printed"
        bare examples/quickstart.c >"$dir/example"
        diff "$dir/printed" "$dir/example"
    fi
}

# The same text is C++, too.
quickstart_cpp() {
    need g++
    header_quickstart >"$dir/quick.cpp"
    g++ -O2 -I. -o "$dir/program" "$dir/quick.cpp" && "$dir/program"
}

list() {
    for file in examples/*.c; do
        case $file in
        examples/decode.c) cell "$file" decoder ;;
        examples/ggml_op.c) cell "$file" ggml ;;
        examples/sharded_mpi.c) cell "$file" mpi ;;
        examples/prefill_tune.c) cell "$file" tuner ;;
        *)                 cell "$file" example "$file" ;;
        esac
    done
    cell "examples/llama2c.md"             llama2c
    cell "examples/saap/train.py"          trainer
    cell "quick start of santa.h, alone"   quickstart header_quickstart santa.h plain
    cell "quick start of README.md"        quickstart readme_quickstart README.md build
    [ -z "$alone" ] || {
    cell "quick start of santa.h as C++"   quickstart_cpp
    cell "examples/python with NumPy"      python_tests numpy -torch -hf
    cell "examples/python with torch"      python_tests torch torch
    cell "examples/python with transformers" python_tests transformers hf
    }
}

[ "$alone" ] || "${MAKE:-make}" -s CC="$CC" BUILD="$BUILD" "$BUILD/santa.o" || exit 1
run_cells list
