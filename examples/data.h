/* data.h - what the examples share: keys, values and queries that look a little like a language
   model's, and --help. */
#ifndef DATA_H
#define DATA_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* For programs without options: --help says what the program shows, anything else is an
   error. */
static inline void data_arguments(int argc, char **argv, const char *shows) {
    if (argc < 2) return;
    const int help = argc == 2 && !strcmp(argv[1], "--help");
    fprintf(help ? stdout : stderr, "%s\nNo options.\n", shows);
    exit(help ? 0 : 1);
}

/* Standard normal: the sum of twelve uniform numbers of a 64-bit linear generator, less its
   mean. */
static inline float data_normal(uint64_t *random) {
    double sum = -6.0;
    for (int i = 0; i < 12; i++) {
        *random = *random * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(*random >> 32) / 4294967296.0;
    }
    return (float)sum;
}

/* One sequence: q [heads, d], k and v [n, kv_heads, d]. Scores q . k / sqrt(d) are noise of
   spread 1, but for each head three keys stand out, with about log n: each then has the weight
   of half the noise. So has the first key, the "sink", for every head, and a little more. V has
   a mean. */
static inline void data_sequence(float *q, float *k, float *v, int64_t n, int64_t heads, int64_t kv_heads,
                                 int64_t d, uint64_t seed) {
    uint64_t random = seed;
    const int64_t group = heads / kv_heads;
    for (int64_t i = 0; i < heads * d; i++) q[i] = data_normal(&random);
    for (int64_t i = 0; i < n * kv_heads * d; i++) k[i] = data_normal(&random);
    for (int64_t i = 0; i < n * kv_heads * d; i++) v[i] = data_normal(&random) + 0.5f;
    for (int64_t head = 0; head < heads; head++)
        for (int64_t peak = 0; peak < 4; peak++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            const int64_t j = peak == 0 ? 0 : (int64_t)((random >> 32) % (uint64_t)n);
            float *key = k + (j * kv_heads + head / group) * d;
            const float score = logf((float)n) + (peak == 0 ? 1.0f : 0.0f), pull = score / sqrtf((float)d);
            for (int64_t i = 0; i < d; i++) key[i] += pull * q[head * d + i];       /* q . q is about d */
        }
}

#endif /* DATA_H */
