/* Choosing num_samples: double it until the estimated relative error of the output is below
   what you accept. Four combs instead of one make the estimate honest for any V, at a small
   price in error: the last column shows one comb.
   Build: cc -O2 examples/budget.c -lm */
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "data.h"
#include <stdio.h>
#include <stdlib.h>

enum { N = 16384, HEADS = 8, KV_HEADS = 2, D = 64 };

static float q[HEADS * D], k[N * KV_HEADS * D], v[N * KV_HEADS * D], out[HEADS * D], exact[HEADS * D],
    std_error[HEADS];

static santa_stats decode(santa_attention *a, const santa_options *o) {
    santa_stats stats;
    const size_t bytes = santa_workspace_size(a, o);
    void *workspace = malloc(bytes);
    const santa_status status = santa_decode(a, o, workspace, bytes, &stats);
    free(workspace);
    if (status != SANTA_OK) { fprintf(stderr, "%s\n", santa_status_string(status)); exit(1); }
    return stats;
}

static double norm(const float *x, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

int main(int argc, char **argv) {
    data_arguments(argc, argv,
                   "Doubles num_samples until the estimated relative error of the output is below\n"
                   "what is accepted; four combs against one.");
    const double target = 0.05;
    data_sequence(q, k, v, N, HEADS, KV_HEADS, D, 1);

    santa_attention a = {0};
    a.q = santa_view(q, SANTA_F32, 1, 1, HEADS, D);
    a.k = santa_view(k, SANTA_F32, 1, N, KV_HEADS, D);
    a.v = santa_view(v, SANTA_F32, 1, N, KV_HEADS, D);
    a.out = santa_view(exact, SANTA_F32, 1, 1, HEADS, D);
    santa_options o = {0};
    decode(&a, &o);                                 /* the exact output: only to check the estimate here */

    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, D);
    a.std_error = std_error; /* per head: sqrt(E |out - exact|^2), from the draws alone */
    o.method = SANTA_SYS;
    o.seed = 1;
    double estimated = 1.0, error = 1.0;
    int honest = 1;
    printf("draws   estimated error   true error   V rows read   true error of one comb\n");
    for (o.num_samples = 16; o.num_samples <= N && estimated > target; o.num_samples *= 2) {
        o.num_combs = 1;
        decode(&a, &o);
        const double one_comb = santa_relative_l2(out, exact, HEADS * D);
        o.num_combs = 4;
        const santa_stats stats = decode(&a, &o);
        estimated = norm(std_error, HEADS) / norm(out, HEADS * D);
        error = santa_relative_l2(out, exact, HEADS * D);
        honest = honest && error < 1.5 * estimated && estimated < 3.0 * error;
        printf("%5d   %13.2f %%   %8.2f %%   %9.2f %%   %20.2f %%\n", (int)o.num_samples, 100.0 * estimated,
               100.0 * error, 100.0 * (double)stats.v_rows_read / (double)stats.keys, 100.0 * one_comb);
    }
    printf("%d draws a head: an error of %.1f %% was asked for, %.1f %% expected, and it is %.1f %%\n",
           (int)(o.num_samples / 2), 100.0 * target, 100.0 * estimated, 100.0 * error);
    return estimated <= target && error < 1.5 * target && honest ? 0 : 1;
}
