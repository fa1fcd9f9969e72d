/* The test program: lists the suites, runs the cases that match, counts. */
#include "harness.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#if defined(__unix__) || defined(__APPLE__)
#include <signal.h>
#include <unistd.h>
#define HAVE_ALARM 1
#endif

/* Never ends; run by --hang alone, for self.sh to see that the watchdog ends it. */
static void hang(void) {
    volatile int forever = 1;
    while (forever) {}
}
static const test_case suite_hang[] = {{"a case that hangs", hang}, {0, 0}};

static const struct { const char *name; const test_case *cases; } suites[] = {
#ifdef TEST_SUITES /* cuda/test_cuda.cu includes this file with a list of its own */
    TEST_SUITES
#else
    {"convert",     suite_convert},
    {"random",      suite_random},
    {"kernels",     suite_kernels},
    {"dense",       suite_dense},
    {"lists",       suite_lists},
    {"row scales",  suite_scales},
    {"prefill",     suite_prefill},
    {"sparse",      suite_sparse},
    {"q8_0",        suite_q8_0},
    {"sampling",    suite_sampling},
    {"statistics",  suite_statistics},
    {"pps",         suite_pps},
    {"proxy",       suite_proxy},
    {"saap",        suite_saap},
    {"k-means",     suite_kmeans},
    {"bernoulli",   suite_bernoulli},
    {"ranks",       suite_ranks},
    {"vattention",  suite_vattention},
    {"measures",    suite_measures},
    {"determinism", suite_determinism},
    {"errors",      suite_errors},
    {"memory",      suite_memory},
    {"fuzz",        suite_fuzz},
    {"model",       suite_model},
    {"saap-file",   suite_saap_file},
    {"tasks",       suite_tasks},
    {"budget tool", suite_budget_tool},
    {"prefill tool", suite_prefill_tool},
    {"accuracy",    suite_accuracy},
    {"golden",      suite_golden},
    {"big",         suite_big},
#endif
    {"watchdog",    suite_hang},                 /* the last one: see --hang */
};

/* Cases that repeat much, by how their names begin: with --brief each as with --quick, with
   --longest these alone and in full. `make test` has the first, `make test-all` the second. */
static const char *const long_cases[] = {
#ifndef TEST_SUITES
    "statistics/",
    "fuzz/",
    "proxy/heads that 4 bits serve worst",
    "proxy/rescue",
    "proxy/any copy",
    "vattention/the denominator's guarantee",
    "vattention/the full guarantee holds",
    "pps/variance in closed form",
    "pps/chances of the keys of a group",
    "saap/unbiased sums",
    "saap/random problems",
    "measures/slopes of the closed forms",
    "bernoulli/mean, variance",
    "accuracy/all tables",
    "accuracy/keys in buckets",
#endif
    NULL};

static int is_long(const char *name) {
    for (const char *const *p = long_cases; *p; p++)
        if (strncmp(name, *p, strlen(*p)) == 0) return 1;
    return 0;
}

enum { MAX_MESSAGES = 8 };                   /* printed per case; further failures are only counted */

int      test_quick = 0;
uint64_t test_seed  = 20240607;

static int         failures;                 /* of the running case */
static const char *skipped;                  /* its reason, or NULL */

int test_check(int ok, const char *file, int line, const char *fmt, ...) {
    if (!ok && failures++ < MAX_MESSAGES) {
        va_list args;
        va_start(args, fmt);
        printf("    %s:%d: ", file, line);
        vprintf(fmt, args);
        printf("\n");
        va_end(args);
    }
    return ok;
}

int test_check_int(long long got, long long want, const char *expr, const char *file, int line) {
    return test_check(got == want, file, line, "%s: got %lld, want %lld", expr, got, want);
}

static int is_near(double got, double want, double abs_tol, double rel_tol) {
    return got == want || fabs(got - want) <= abs_tol + rel_tol * fabs(want);
}

int test_check_near(double got, double want, double abs_tol, double rel_tol, const char *expr,
                    const char *file, int line) {
    return test_check(is_near(got, want, abs_tol, rel_tol), file, line,
                      "%s: got %.9g, want %.9g, tolerance %g + %g relative", expr, got, want, abs_tol,
                      rel_tol);
}

int test_check_status(santa_status got, santa_status want, const char *expr, const char *file, int line) {
    return test_check(got == want, file, line, "%s: got \"%s\", want \"%s\"", expr,
                      santa_status_string(got), santa_status_string(want));
}

double test_mean_z(double sum, double sum_of_squares, double count, double expected) {
    const double mean     = sum / count;
    const double variance = (sum_of_squares - sum * mean) / (count - 1.0);
    const double rounding = 1e-6 * (fabs(expected) + sqrt(sum_of_squares / count));
    const double off      = fabs(mean - expected) - rounding;
    if (off <= 0.0) return 0.0;
    return variance > 0.0 ? off / sqrt(variance / count) : 1e300;      /* NaN: as wrong as can be */
}

int test_check_mean(const char *name, double sum, double sum_of_squares, double count, double expected,
                    double z_max, const char *file, int line) {
    const double z = test_mean_z(sum, sum_of_squares, count, expected);
    return test_check(z <= z_max, file, line, "%s: mean %.9g of %.0f, expected %.9g, z = %.2f above %.2f",
                      name, sum / count, count, expected, z, z_max);
}

int test_check_array(const char *name, const float *got, const double *want, int64_t n, double abs_tol,
                     double rel_tol, const char *file, int line) {
    int64_t wrong = 0, first[4] = {0, 0, 0, 0};
    double  worst = 0.0;
    for (int64_t i = 0; i < n; i++)
        if (!is_near((double)got[i], want[i], abs_tol, rel_tol)) {
            if (wrong < 4) first[wrong] = i;
            if (!(fabs((double)got[i] - want[i]) <= worst)) worst = fabs((double)got[i] - want[i]);
            wrong++;
        }
    if (wrong == 0) return 1;
    test_check(0, file, line, "%s: %lld of %lld differ by more than %g + %g relative, worst %g", name,
               (long long)wrong, (long long)n, abs_tol, rel_tol, worst);
    if (failures <= MAX_MESSAGES)
        for (int64_t i = 0; i < wrong && i < 4; i++)
            printf("        [%lld] got %.9g, want %.9g\n", (long long)first[i], (double)got[first[i]],
                   want[first[i]]);
    return 0;
}

void test_skip(const char *reason) { skipped = reason; }

void *test_alloc(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) { printf("out of memory: %lu bytes\n", (unsigned long)bytes); exit(2); }
    return p;
}

void test_route(test_router *t, santa_attention *a) {
    enum { C = 7 };
    const int64_t d = a->k.shape[3], heads = a->k.shape[2];
    const int64_t batch = a->block_table ? a->q.shape[0] : a->k.shape[0];
    const int64_t len = a->block_table ? a->max_pages * a->k.shape[1] : a->k.shape[1];
    float *keys = (float *)test_alloc((size_t)(batch * len * heads * d) * sizeof *keys);
    test_rng r = test_rng_make(5);
    memset(t, 0, sizeof *t);
    t->centroids = (float *)test_alloc((size_t)(heads * C * d) * sizeof *keys);
    for (int64_t i = 0; i < heads * C * d; i++) t->centroids[i] = (float)test_uniform(&r) - 0.5f;
    for (int64_t i = 0; i < batch * len * heads * d; i++) keys[i] = (float)test_uniform(&r) - 0.5f;
    t->r = (santa_buckets *)test_alloc(sizeof *t->r);
    memset(t->r, 0, sizeof *t->r);
    t->r->num_buckets = C;
    t->r->centroids   = t->centroids;
    a->buckets        = t->r;
    t->r->index       = test_alloc(santa_buckets_size(a));
    const santa_tensor view = santa_view(keys, SANTA_F32, batch, len, heads, d);
    CHECK_STATUS(santa_buckets_assign(a, &view, 0, NULL), SANTA_OK);
    free(keys);
}

void test_unroute(test_router *t) {
    if (t->r) free(t->r->index);
    free(t->r);
    free(t->centroids);
    memset(t, 0, sizeof *t);
}

/* A case that takes longer than --timeout seconds ends the program, so that one that hangs is
   named and the run fails. What is to be printed then is ready before the case runs: a signal
   handler may do little. */
static char watchdog_text[320];

#ifdef HAVE_ALARM
static void on_alarm(int signal_number) {
    (void)signal_number;
    const char *p = watchdog_text;
    for (size_t left = strlen(p); left > 0;) {
        const ssize_t n = write(STDOUT_FILENO, p, left);
        if (n <= 0) break;
        p    += n;
        left -= (size_t)n;
    }
    _exit(3);
}
static void watch(unsigned seconds) { signal(SIGALRM, on_alarm); alarm(seconds); }
#else
static void watch(unsigned seconds) { (void)seconds; }       /* no such signal here */
#endif

static void usage(void) {
    printf("santa_test [--list] [--quick | --brief | --longest] [--part I/N] [--fail-fast] [--seed N] "
           "[--timeout N] [substring ...]\n"
           "runs the cases whose suite/name has one of the substrings;\n"
           "--quick: fewer seeds, for valgrind and qemu;\n"
           "--brief: the same for the longest cases; --longest: these alone, in full;\n"
           "--part I/N: of every Nth suite, from the Ith on;\n"
           "--fail-fast: ends with the first case that fails;\n"
           "--timeout: seconds after which a case counts as one that hangs, 0 for none, default 300\n");
}

static int matches(const char *name, int filters, char **filter) {
    for (int i = 0; i < filters; i++)
        if (strstr(name, filter[i])) return 1;
    return filters == 0;
}

static int part = 1, parts = 1;              /* --part 1/1: every case */
static int brief, longest;                   /* --brief, --longest */

/* Calls visit(name, case) for the cases that the arguments ask for; how many these are. */
typedef int (*visitor)(const char *name, const test_case *c);
static int for_each_case(int hangs, int filters, char **filter, visitor visit) {
    int count = 0;
    for (size_t s = 0; s < sizeof suites / sizeof suites[0]; s++)
        for (const test_case *c = suites[s].cases; c->name && (int)s % parts == part - 1; c++) {
            char name[160];
            snprintf(name, sizeof name, "%s/%s", suites[s].name, c->name);
            if (hangs != (suites[s].cases == suite_hang) || !matches(name, filters, filter)) continue;
            if (longest && !is_long(name)) continue;
            count++;
            if (visit && !visit(name, c)) return count;
        }
    return count;
}

/* Whether every beginning in long_cases is that of a case: one of an old name would run nowhere
   in full. */
static int long_cases_exist(void) {
    for (const char *const *p = long_cases; *p; p++) {
        int found = 0;
        for (size_t s = 0; s < sizeof suites / sizeof suites[0]; s++)
            for (const test_case *c = suites[s].cases; c->name; c++) {
                char name[160];
                snprintf(name, sizeof name, "%s/%s", suites[s].name, c->name);
                found += strncmp(name, *p, strlen(*p)) == 0;
            }
        if (!found) { printf("no case is called %s\n", *p); return 0; }
    }
    return 1;
}

static int print_name(const char *name, const test_case *c) {
    (void)c;
    printf("%s\n", name);
    return 1;
}

static struct { int fail_fast, passed, failed, skipped, cases; unsigned timeout; time_t start; } progress;

static int run_case(const char *name, const test_case *c) {
    failures = 0;
    skipped  = NULL;
    snprintf(watchdog_text, sizeof watchdog_text,
             "FAILED  %s: no end after %u s\n%d passed, %d failed, %d skipped\n", name, progress.timeout,
             progress.passed, progress.failed + 1, progress.skipped);
    const int quick = test_quick;
    const clock_t start = clock();
    test_quick = quick || (brief && is_long(name));
    watch(progress.timeout);
    c->run();
    watch(0);
    test_quick = quick;
    const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    if (failures)     { progress.failed++;  printf("FAILED  %s: %d failed checks\n", name, failures); }
    else if (skipped) { progress.skipped++; printf("skipped %s: %s\n", name, skipped); }
    else {
        progress.passed++;
        printf("ok      [%3d/%d] %-72s %7.3f s, %3.0f s in all\n",
               progress.passed + progress.failed + progress.skipped, progress.cases, name, seconds,
               difftime(time(NULL), progress.start));
    }
    return !(progress.fail_fast && progress.failed);
}

static int is_number(const char *text) {
    char *end;
    strtoull(text, &end, 0);
    return *text >= '0' && *text <= '9' && !*end;
}

int main(int argc, char **argv) {
    int list = 0, hangs = 0, filters = 0;
    progress.timeout = 300;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--list")) list = 1;
        else if (!strcmp(argv[i], "--quick")) test_quick = 1;
        else if (!strcmp(argv[i], "--brief")) brief = 1;
        else if (!strcmp(argv[i], "--longest")) longest = 1;
        else if (!strcmp(argv[i], "--fail-fast")) progress.fail_fast = 1;
        else if (!strcmp(argv[i], "--hang")) hangs = 1;
        else if (!strcmp(argv[i], "--part") && i + 1 < argc
                 && sscanf(argv[i + 1], "%d/%d", &part, &parts) == 2 && part >= 1 && part <= parts) i++;
        else if (!strcmp(argv[i], "--timeout") && i + 1 < argc && is_number(argv[i + 1]))
            progress.timeout = (unsigned)strtoul(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc && is_number(argv[i + 1]))
            test_seed = strtoull(argv[++i], NULL, 0);
        else if (argv[i][0] == '-') { usage(); return !!strcmp(argv[i], "--help"); }
        else argv[1 + filters++] = argv[i];
    }
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    if (!long_cases_exist()) return 1;
    if (list) { for_each_case(hangs, filters, argv + 1, print_name); return 0; }
    progress.cases = for_each_case(hangs, filters, argv + 1, NULL);
    progress.start = time(NULL);
    printf("santa %d.%d.%d, %s, seed %llu%s: %d cases\n", SANTA_VERSION_MAJOR, SANTA_VERSION_MINOR,
           SANTA_VERSION_PATCH, santa_isa_name(santa_best_isa()), (unsigned long long)test_seed,
           test_quick ? ", quick" : brief ? ", brief" : longest ? ", longest" : "",
           progress.cases);
    for_each_case(hangs, filters, argv + 1, run_case);
    if (progress.cases == 0) printf("no case has such a name; --list shows them\n");
    printf("%d passed, %d failed, %d skipped\n", progress.passed, progress.failed, progress.skipped);
    return progress.failed || progress.passed + progress.skipped == 0;
}
