/* gain.h - how many times as fast one call is as another, from times taken in turns: what the
   benchmarks print as a ratio, and when they print none. C99 or C++. */
#ifndef BENCH_GAIN_H
#define BENCH_GAIN_H

#include <stdlib.h>

static inline int gain_ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* How many times as fast one call is as another that was timed in turns with it. */
typedef struct gain {
    double best;                   /* by the least times: other work on the machine only adds to a time */
    double low, high;              /* 10 and 90 % of what single rounds say */
    double busy;                   /* p90 / p10 of the times, the larger of the two */
} gain;
enum { GAIN_ROUNDS = 256 };        /* of more the first */
#define TOO_BUSY 1.5               /* from there on no conclusion is drawn */

/* slow[i] and fast[i] are of the same round. */
static inline gain gain_of(const double *slow, const double *fast, int rounds) {
    double s[GAIN_ROUNDS], f[GAIN_ROUNDS], ratio[GAIN_ROUNDS];
    const int n = rounds < GAIN_ROUNDS ? rounds : GAIN_ROUNDS, tenth = n / 10;
    gain g = { 0.0, 0.0, 0.0, 0.0 };
    for (int i = 0; i < n; i++) {
        s[i] = slow[i];
        f[i] = fast[i];
        ratio[i] = slow[i] / fast[i];
    }
    if (n < 1) return g;
    qsort(s, (size_t)n, sizeof *s, gain_ascending);
    qsort(f, (size_t)n, sizeof *f, gain_ascending);
    qsort(ratio, (size_t)n, sizeof *ratio, gain_ascending);
    g.best = s[0] / f[0];
    g.low = ratio[tenth];
    g.high = ratio[n - 1 - tenth];
    g.busy = s[n - 1 - tenth] / s[tenth];
    if (f[n - 1 - tenth] / f[tenth] > g.busy) g.busy = f[n - 1 - tenth] / f[tenth];
    return g;
}

#endif
