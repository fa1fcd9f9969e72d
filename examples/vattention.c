/* vAttention: ask for a relative error epsilon with probability 1 - delta, see what was read,
   count the misses.
   Build: cc -O2 examples/vattention.c -lm */
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "data.h"
#include <stdio.h>
#include <stdlib.h>

enum { N = 8192, HEADS = 8, KV_HEADS = 2, D = 64, RUNS = 100 };

static float q[HEADS * D], k[N * KV_HEADS * D], v[N * KV_HEADS * D];
static float out[HEADS * D], lse[HEADS], exact[HEADS * D], exact_lse[HEADS];

static void decode(const santa_attention *a, const santa_options *o) {
    const size_t bytes = santa_workspace_size(a, o);
    void *workspace = malloc(bytes);
    const santa_status status = santa_decode(a, o, workspace, bytes, NULL);
    free(workspace);
    if (status != SANTA_OK) { fprintf(stderr, "%s\n", santa_status_string(status)); exit(1); }
}

/* Share of the heads and runs whose error is above epsilon: of the denominator exp(lse), or of
   the output vector. */
static int measure(santa_attention *a, santa_guarantee guarantee, double epsilon, double delta) {
    santa_audit audit[HEADS];
    santa_options o = {0};
    o.method = SANTA_VATTENTION;
    o.seed = 1;
    o.vattention.guarantee = guarantee;
    o.vattention.epsilon = epsilon;
    o.vattention.delta = delta;
    o.vattention.audit = audit; /* heavy == NULL: the heaviest 2.5 % of keys from an exact oracle */
    int misses = 0;
    double density = 0.0;
    for (int run = 0; run < RUNS; run++) {
        o.offset = santa_offset(0, run);        /* other draws in every run */
        decode(a, &o);
        for (int h = 0; h < HEADS; h++) {
            const double error = guarantee == SANTA_GUARANTEE_DENOMINATOR
                ? fabs(exp((double)lse[h] - (double)exact_lse[h]) - 1.0)
                : santa_relative_l2(out + h * D, exact + h * D, D);
            misses += error > epsilon;
            density += audit[h].density / (RUNS * HEADS);
        }
    }
    const double trials = RUNS * HEADS, rate = misses / trials,
                 slack = 3.0 * sqrt(delta * (1.0 - delta) / trials);
    printf("%-11s  epsilon %.2f  delta %.2f: missed in %4.1f %% of %d, %4.1f %% of the keys read\n",
           guarantee == SANTA_GUARANTEE_FULL ? "output" : "denominator", epsilon, delta, 100.0 * rate,
           RUNS * HEADS, 100.0 * density);
    const santa_audit *x = &audit[0];
    printf(
        "  head 0: %d keys = %d fixed + %d residual; %d base samples gave sigma %.3g, D %.3g, budget %d\n",
        (int)x->num_keys, (int)x->num_fixed, (int)x->num_residual, (int)x->num_base, x->sigma,
        x->denominator, (int)x->budget);
    return rate <= delta + slack;
}

int main(int argc, char **argv) {
    data_arguments(argc, argv,
                   "vAttention: asks for a relative error with a probability, prints what was read\n"
                   "and how often the error was missed.");
    data_sequence(q, k, v, N, HEADS, KV_HEADS, D, 1);
    santa_attention a = {0};
    a.q = santa_view(q, SANTA_F32, 1, 1, HEADS, D);
    a.k = santa_view(k, SANTA_F32, 1, N, KV_HEADS, D);
    a.v = santa_view(v, SANTA_F32, 1, N, KV_HEADS, D);
    a.out = santa_view(exact, SANTA_F32, 1, 1, HEADS, D);
    a.lse = exact_lse;
    santa_options dense = {0};
    decode(&a, &dense);

    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, D);
    a.lse = lse;
    int kept = 1;
    kept &= measure(&a, SANTA_GUARANTEE_DENOMINATOR, 0.05, 0.10);
    kept &= measure(&a, SANTA_GUARANTEE_DENOMINATOR, 0.01, 0.10);
    kept &= measure(&a, SANTA_GUARANTEE_FULL, 0.20, 0.10);
    printf("%s\n", kept ? "misses within delta in all three" : "MORE MISSES THAN delta ALLOWS");
    return kept ? 0 : 1;
}
