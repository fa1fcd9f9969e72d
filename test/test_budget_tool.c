/* layer_budgets.h: finds a known optimum through noise, keeps its sums, resumes to the same
   end, refuses broken files. */
#if defined(__unix__) || defined(__APPLE__)
#define _DEFAULT_SOURCE                                       /* getpid under -std=c99 */
#include <unistd.h>
#define PROCESS ((long)getpid())
#else
#define PROCESS 0L
#endif
#include "harness.h"
#include "../examples/layer_budgets.h"
#include <stdlib.h>

enum { LAYERS = 6, TOTAL = 96 };

static const double weight[LAYERS] = {9.0, 1.0, 0.25, 4.0, 0.25, 1.0};

static double loss(const int64_t *budget) { /* least where budgets go like the weights' roots */
    double sum = 0.0;
    for (int i = 0; i < LAYERS; i++) sum += weight[i] / (double)budget[i];
    return sum;
}

typedef struct noisy { uint64_t seed; double signal, spread; int64_t calls, last; int pairs_ok; } noisy;

static double noisy_reward(void *user, const int64_t *budget, int32_t layers, int64_t episode) {
    noisy   *n = (noisy *)user;
    /* nothing in common within a pair */
    test_rng r = test_rng_make(n->seed * 1000003u + (uint64_t)n->calls);
    if (layers != LAYERS ||
        (n->calls % 2 == 1 ? episode != n->last : n->calls > 0 && episode != n->last + 1))
        n->pairs_ok = 0;
    n->calls++;
    n->last = episode;
    return n->spread * test_normal(&r) - n->signal * loss(budget);
}

static noisy noisy_make(uint64_t seed, double signal, double spread) {
    noisy n;
    memset(&n, 0, sizeof n);
    n.seed = seed;
    n.signal = signal;
    n.spread = spread;
    n.pairs_ok = 1;
    return n;
}

/* Mean of (loss found - least loss) / (loss of uniform budgets - least loss), and how many are
   worse than uniform. */
static double mean_regret(double signal, double spread, int seeds, int *worse) {
    static const int64_t best[LAYERS] = {36, 12, 6, 24, 6, 12}, uniform[LAYERS] = {16, 16, 16, 16, 16, 16};
    double sum = 0.0;
    *worse = 0;
    for (int seed = 0; seed < seeds; seed++) {
        layer_budgets_options o = layer_budgets_default(LAYERS, TOTAL);
        layer_budgets_error   e = {""};
        int64_t budget[LAYERS] = {0};
        noisy   n = noisy_make((uint64_t)seed, signal, spread);
        o.seed = (uint64_t)seed;
        if (!CHECK_MSG(layer_budgets_search(&o, noisy_reward, &n, budget, &e) == 0, "%s", e.text))
            return 1e300;
        CHECK(n.pairs_ok);
        CHECK_INT(n.calls, 2 * o.pairs * o.iterations);
        sum += (loss(budget) - loss(best)) / (loss(uniform) - loss(best));
        *worse += loss(budget) >= loss(uniform);
    }
    return sum / seeds;
}

static void finds_optimum(void) {
    const int seeds = test_quick ? 8 : 40;
    int worse;
    double regret = mean_regret(1.0, 0.0, seeds, &worse);
    CHECK_MSG(regret < 0.05 && worse == 0, "no noise: regret %.3f of uniform's, %d of %d worse", regret,
              worse, seeds);
    regret = mean_regret(1.0, 0.1, seeds, &worse);      /* losses: 0.97 uniform, 0.67 least */
    CHECK_MSG(regret < 0.5 && worse <= seeds / 10, "noise: regret %.3f of uniform's, %d of %d worse",
              regret, worse, seeds);
    regret = mean_regret(1e-6, 1e-9, seeds, &worse);    /* any unit of reward */
    CHECK_MSG(regret < 0.05 && worse == 0, "small unit: regret %.3f of uniform's, %d of %d worse", regret,
              worse, seeds);
    regret = mean_regret(0.0, 1.0, seeds, &worse);      /* the control: noise alone tells nothing */
    CHECK_MSG(regret > 0.9, "no signal, but regret %.3f of uniform's", regret);
    regret = mean_regret(-1.0, 0.1, seeds, &worse);     /* the control: the opposite reward leads away */
    CHECK_MSG(worse == seeds, "opposite reward, but %d of %d are better than uniform", seeds - worse,
              seeds);
}

static void sums_and_minima(void) {
    test_rng r = test_rng_make(1);
    for (int trial = 0; trial < (test_quick ? 200 : 5000); trial++) {
        const int32_t layers = (int32_t)(1 + test_below(&r, trial % 10 ? 40 : LAYER_BUDGETS_MAX_LAYERS));
        const int64_t minimum = 1 + test_below(&r, 9);
        layer_budgets_options o =
            layer_budgets_default(layers, layers * minimum + test_below(&r, trial % 3 ? 50 : 1000000));
        double  theta[LAYER_BUDGETS_MAX_LAYERS];
        int64_t budget[LAYER_BUDGETS_MAX_LAYERS], sum = 0;
        const double width = trial % 4 ? 1.0 : 300.0;
        o.minimum = minimum;
        for (int32_t i = 0; i < layers; i++) theta[i] = width * test_normal(&r);
        layer_budgets_round(&o, theta, budget);
        for (int32_t i = 0; i < layers; i++) {
            sum += budget[i];
            CHECK(budget[i] >= minimum);
        }
        CHECK_INT(sum, o.total);
    }
}

static char state_path[400];

static void name_state(void) {
    const char *tmp = getenv("TMPDIR");
    snprintf(state_path, sizeof state_path, "%s/santa-budgets-%ld.state",
             tmp && strlen(tmp) < 300 ? tmp : "/tmp", PROCESS);
    remove(state_path);
}

static void resumes(void) {
    static const int64_t cuts[] = {1, 2, 17, 29};
    layer_budgets_options o = layer_budgets_default(LAYERS, TOTAL);
    layer_budgets_error   e = {""};
    layer_budgets_state   whole, resumed;
    int64_t want[LAYERS], got[LAYERS];
    noisy   n = noisy_make(3, 1.0, 0.1);
    name_state();
    o.iterations = 30;
    o.state_path = state_path;
    if (!CHECK_MSG(layer_budgets_search(&o, noisy_reward, &n, want, &e) == 0, "%s", e.text)) return;
    CHECK(layer_budgets_load(&o, &whole, &e) == 0);
    CHECK(layer_budgets_search(&o, noisy_reward, &n, got, &e) == 0);          /* nothing is left to do */
    CHECK_INT(n.calls, 2 * o.pairs * o.iterations);
    CHECK(memcmp(got, want, sizeof want) == 0);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        remove(state_path);
        n = noisy_make(3, 1.0, 0.1);
        o.iterations = cuts[i];
        CHECK(layer_budgets_search(&o, noisy_reward, &n, got, &e) == 0);
        o.iterations = 30;
        CHECK(layer_budgets_search(&o, noisy_reward, &n, got, &e) == 0);
        CHECK_INT(n.calls, 2 * o.pairs * o.iterations);
        CHECK(memcmp(got, want, sizeof want) == 0);
        CHECK(layer_budgets_load(&o, &resumed, &e) == 0);
        CHECK(memcmp(&resumed, &whole, sizeof whole) == 0);
    }
    remove(state_path);
}

static void write_state(const char *data, size_t size) {
    FILE *f = fopen(state_path, "wb");
    const size_t written = f ? fwrite(data, 1, size, f) : 0;
    const int    closed  = f && fclose(f) == 0;
    CHECK_MSG(closed && written == size, "cannot write %s", state_path);
}

static void broken_state(void) {
    static char data[4096], changed[4096];
    static const char *const garbage[] = {"", "\n", "layer_budgets", "layer_budgets 2 layers 6\n",
                                          "\0\0\0\0", "end\n"};
    layer_budgets_options o = layer_budgets_default(LAYERS, TOTAL);
    layer_budgets_error   e = {""};
    int64_t budget[LAYERS];
    noisy   n = noisy_make(3, 1.0, 0.1);
    name_state();
    o.iterations = 3;
    o.state_path = state_path;
    if (!CHECK_MSG(layer_budgets_search(&o, noisy_reward, &n, budget, &e) == 0, "%s", e.text)) return;
    FILE *f = fopen(state_path, "rb");
    const size_t size = f ? fread(data, 1, sizeof data, f) : 0;
    if (f) fclose(f);
    CHECK(size > 100 && size < sizeof data);
    for (size_t cut = 0; cut + 1 < size; cut++) {             /* without its last line's end it is whole */
        write_state(data, cut);
        CHECK_MSG(layer_budgets_search(&o, noisy_reward, &n, budget, &e) != 0 && strstr(e.text, "budgets"),
                  "cut to %lu bytes: accepted", (unsigned long)cut);
    }
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        write_state(garbage[i], strlen(garbage[i]));
        CHECK_MSG(layer_budgets_search(&o, noisy_reward, &n, budget, &e) != 0, "garbage %d: accepted",
                  (int)i);
    }
    for (int what = 0; what < 2; what++) {                    /* a number that is none: theta, square */
        memcpy(changed, data, size);
        char *at = strchr(changed, '\n') + 1;
        at = what ? strstr(at, "square ") + 7 : strchr(at, '\n') + 1;
        memcpy(at, "nan", 3);
        for (at += 3; *at != ' ' && *at != '\n'; at++) *at = ' ';
        write_state(changed, size);
        CHECK_MSG(layer_budgets_search(&o, noisy_reward, &n, budget, &e) != 0 && strstr(e.text, "damaged"),
                  "NaN accepted");
    }
    write_state(data, size);
    layer_budgets_options other = o;
    other.total++;
    CHECK(layer_budgets_search(&other, noisy_reward, &n, budget, &e) != 0 &&
          strstr(e.text, "another search"));
    other = o;
    other.seed++;
    CHECK(layer_budgets_search(&other, noisy_reward, &n, budget, &e) != 0 &&
          strstr(e.text, "another search"));
    other = o;
    other.iterations = 2;
    CHECK(layer_budgets_search(&other, noisy_reward, &n, budget, &e) != 0 && strstr(e.text, "more than"));
    CHECK(layer_budgets_search(&o, noisy_reward, &n, budget, &e) == 0);
    remove(state_path);
    o.state_path = "no-such-directory/budgets.state";
    CHECK(layer_budgets_search(&o, noisy_reward, &n, budget, &e) != 0 && strstr(e.text, "cannot write"));
}

static double no_number(void *user, const int64_t *budget, int32_t layers, int64_t episode) {
    (void)user;
    (void)budget;
    (void)layers;
    return episode == 5 ? (double)test_nan() : 0.5;
}

static void bad_options(void) {
    const layer_budgets_options good = layer_budgets_default(LAYERS, TOTAL);
    layer_budgets_options bad[10];
    layer_budgets_error   e = {""};
    int64_t budget[LAYERS];
    noisy   n = noisy_make(1, 1.0, 0.0);
    for (int i = 0; i < 10; i++) bad[i] = good;
    bad[0].layers = 0;
    bad[1].layers = LAYER_BUDGETS_MAX_LAYERS + 1;
    bad[2].total = LAYERS - 1;
    bad[3].minimum = TOTAL / LAYERS + 1;
    bad[4].minimum = 0;
    bad[5].iterations = 0;
    bad[6].pairs = 0;
    bad[7].width = 0.0;
    bad[8].rate = -1.0;
    bad[9].width = (double)test_nan();
    for (int i = 0; i < 10; i++)
        CHECK_MSG(layer_budgets_search(&bad[i], noisy_reward, &n, budget, &e) != 0,
                  "bad options %d: accepted", i);
    CHECK_INT(n.calls, 0);
    CHECK(layer_budgets_search(&good, no_number, NULL, budget, &e) != 0 && strstr(e.text, "finite"));
}

const test_case suite_budget_tool[] = {
    {"finds a known optimum through noise", finds_optimum},
    {"sums and minima", sums_and_minima},
    {"resumes to the same end", resumes},
    {"broken state files", broken_state},
    {"bad options and rewards", bad_options},
    {0, 0}
};
