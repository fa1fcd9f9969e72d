/* The fuzz targets of test/fuzz, each for half a second: their seeds and random changes of
   them, see fuzz/fuzz.h. SANTA_FUZZ_SECONDS in the environment gives each of them so long;
   .ci/run lets libFuzzer look further. */
#define FUZZ_IN_SUITE
#include "fuzz/fuzz.h"
#include "fuzz/model.c"
#include "fuzz/tokenizer.c"
#include "fuzz/budgets.c"
#include "fuzz/saap.c"
#include "fuzz/api.c"
#include "fuzz/arguments.c"                                   /* last: its globals have short names */

static void run_target(const fuzz_target *t) {
    const char *given = getenv("SANTA_FUZZ_SECONDS");
    fuzz_inputs(t, given ? atof(given) : test_quick ? 0.2 : 0.5);
}

static void fuzz_api(void)       { run_target(&api); }
static void fuzz_arguments(void) { run_target(&arguments); }
static void fuzz_model(void)     { run_target(&model); }
static void fuzz_tokenizer(void) { run_target(&tokenizer); }
static void fuzz_budgets(void)   { run_target(&budgets); }
static void fuzz_saap(void)      { run_target(&saap); }

const test_case suite_fuzz[] = {
    {"api",       fuzz_api},
    {"arguments", fuzz_arguments},
    {"model",     fuzz_model},
    {"tokenizer", fuzz_tokenizer},
    {"budgets",   fuzz_budgets},
    {"saap",      fuzz_saap},
    {0, 0}
};
