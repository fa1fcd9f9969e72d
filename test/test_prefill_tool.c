/* prefill_options.h: finds the fastest setting within a loss, resumes to the same end, keeps
   what it found in a file, refuses broken files. */
#if defined(__unix__) || defined(__APPLE__)
#define _DEFAULT_SOURCE                                       /* getpid under -std=c99 */
#include <unistd.h>
#define PROCESS ((long)getpid())
#else
#define PROCESS 0L
#endif
#include "harness.h"
#include "../santa.h"
#include "../examples/prefill_options.h"
#include <math.h>
#include <stdlib.h>

enum { LAYERS = 3, RANGES = 2 };

static char path[400], message[400];

static void name_file(void) {
    const char *tmp = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/santa-prefill-%ld.txt", tmp && strlen(tmp) < 300 ? tmp : "/tmp",
             PROCESS);
    remove(path);
}

/* A made-up layer: time grows and loss falls with both alphas and with slices, in layers of
   their own ways; calls counts, fail_at ends. */
typedef struct made_up { int calls, fail_at; double wrong; } made_up;

static double time_of(int range, int layer, const santa_options *o) {
    const santa_sample_attention_options *x = &o->sample_attention;
    if (o->method == SANTA_DENSE) return 1.0 + range;
    return (1.0 + range) * (0.1 * (double)x->num_chunks
                            + (layer == 0 ? 0.3 * x->alpha_columns + 0.6 * x->alpha_slashes
                                          : 0.6 * x->alpha_columns + 0.3 * x->alpha_slashes)
                            + (layer == 2 ? 2.0 : 0.0));
}

static double loss_of(int range, int layer, const santa_options *o) {
    const santa_sample_attention_options *x = &o->sample_attention;
    if (o->method == SANTA_DENSE) return 0.0;
    return (1.0 - x->alpha_columns * (layer == 0 ? 0.9 : 1.0)) * (1.0 - 0.8 * x->alpha_slashes)
           / (double)(x->num_chunks + range);
}

static int measure(void *user, int32_t range, int32_t layer, const santa_options *o, double *seconds,
                   double *loss) {
    made_up *m = (made_up *)user;
    *seconds = time_of(range, layer, o) + m->wrong;
    *loss = loss_of(range, layer, o);
    CHECK(o->method == SANTA_DENSE || o->sample_attention.block_size == 64);
    return m->calls++ == m->fail_at ? -1 : 0;
}

static prefill_search search_of(double loss) {
    prefill_search s = prefill_search_default(LAYERS, RANGES, loss);
    s.upto[0] = 1000;
    return s;
}

/* The best of all settings, by trying each. */
static double best_of(const prefill_search *s, int range, int layer) {
    santa_options o;
    memset(&o, 0, sizeof o);
    double best = time_of(range, layer, &o);
    o.method = SANTA_SAMPLE_ATTENTION;
    for (int c = 0; c < PREFILL_ALPHAS && s->alpha[c] > 0.0; c++)
        for (int t = 0; t < PREFILL_ALPHAS && s->alpha[t] > 0.0; t++)
            for (int i = 0; i < PREFILL_CHUNKS; i++) {
                o.sample_attention.alpha_columns = s->alpha[c];
                o.sample_attention.alpha_slashes = s->alpha[t];
                o.sample_attention.num_chunks = s->chunks[i];
                if (loss_of(range, layer, &o) <= s->loss && time_of(range, layer, &o) < best)
                    best = time_of(range, layer, &o);
            }
    return best;
}

static void finds_the_best(void) {
    static prefill_options_file f;
    static const double losses[] = {0.0, 0.01, 0.03, 0.1, 0.3, 1.0};
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
        const prefill_search s = search_of(losses[i]);
        made_up m = {0, -1, 0.0};
        const int status = prefill_search_run(&s, measure, &m, &f, message, sizeof message);
        if (!CHECK_MSG(status == 0, "%s", message)) return;
        /* a border, not all 7 x 7 x 3 */
        CHECK_MSG(m.calls <= RANGES * LAYERS * (1 + 3 * 14), "%d measurements", m.calls);
        for (int range = 0; range < RANGES; range++)
            for (int layer = 0; layer < LAYERS; layer++) {
                const santa_options o = prefill_options_of(&f, layer, range ? 5000 : 1000);
                CHECK(loss_of(range, layer, &o) <= losses[i]);
                CHECK_NEAR(time_of(range, layer, &o), best_of(&s, range, layer), 1e-12, 0);
                const int is_dense = f.setting[range][layer].chunks == 0;
                if (layer == 2 || losses[i] <= 0.0) CHECK(is_dense);
                else if (losses[i] >= 0.1) CHECK(!is_dense);
            }
    }
}

static void resumes(void) {
    static prefill_options_file want, got;
    prefill_search s = search_of(0.05);
    made_up whole = {0, -1, 0.0};
    s.alpha[1] = 1.0 / 3.0;                                   /* kept to the last bit */
    s.subject = prefill_hash(0, "a text", 6);
    name_file();
    CHECK(prefill_search_run(&s, measure, &whole, &want, message, sizeof message) == 0);
    s.state_path = path;
    for (int cut = 0; cut < whole.calls; cut += 7) {
        made_up m = {0, cut, 0.0};
        remove(path);
        CHECK(prefill_search_run(&s, measure, &m, &got, message, sizeof message) != 0
              && strstr(message, "failed"));
        FILE *f = fopen(path, "ab");                          /* a line that was not written to its end */
        if (CHECK(f != NULL)) { fprintf(f, "1 2 0.5 0."); fclose(f); }
        m.fail_at = -1;
        m.calls = 0;
        CHECK_MSG(prefill_search_run(&s, measure, &m, &got, message, sizeof message) == 0, "%s", message);
        CHECK_INT(m.calls, whole.calls - cut);
        CHECK(memcmp(&want, &got, sizeof want) == 0);
    }
    made_up none = {0, -1, 0.0};
    CHECK(prefill_search_run(&s, measure, &none, &got, message, sizeof message) == 0);
    CHECK_INT(none.calls, 0);
    prefill_search other = s;
    other.upto[0] = 999;
    CHECK(prefill_search_run(&other, measure, &none, &got, message, sizeof message) != 0
          && strstr(message, "another search"));
    other = s;
    other.subject = 1;
    CHECK(prefill_search_run(&other, measure, &none, &got, message, sizeof message) != 0
          && strstr(message, "another search"));
    other = s;                                                /* another loss wants other settings only */
    other.loss = 0.2;
    CHECK(prefill_search_run(&other, measure, &none, &got, message, sizeof message) == 0);
    CHECK(none.calls > 0 && memcmp(&want, &got, sizeof want) != 0);
    FILE *f = fopen(path, "ab");
    if (CHECK(f != NULL)) { fprintf(f, "0 0 0.5 0.5 1 nan 0\n"); fclose(f); }
    CHECK(prefill_search_run(&s, measure, &none, &got, message, sizeof message) != 0
          && strstr(message, "damaged"));
    remove(path);
}

static void file_round_trip(void) {
    static prefill_options_file want, got;
    static char data[4096];
    test_rng r = test_rng_make(2);
    name_file();
    memset(&want, 0, sizeof want);
    want.layers = 5;
    want.ranges = 3;
    want.block = 128;
    want.upto[0] = 100;
    want.upto[1] = 2000;
    for (int range = 0; range < 3; range++)
        for (int layer = 0; layer < 5; layer++)
            if (layer != range) {
                const prefill_setting x = {0.05 * (double)(1 + test_below(&r, 20)),
                                           0.05 * (double)(1 + test_below(&r, 20)), 1 + layer};
                want.setting[range][layer] = x;
            }
    if (!CHECK_MSG(prefill_options_save(path, &want, message, sizeof message) == 0, "%s", message)) return;
    CHECK_MSG(prefill_options_load(path, &got, message, sizeof message) == 0, "%s", message);
    for (int range = 0; range < 3; range++)
        for (int layer = 0; layer < 5; layer++) {
            const int64_t length[3] = {100, 101, 1 << 20};
            const santa_options o = prefill_options_of(&got, layer, length[range]);
            CHECK_INT(o.method, layer == range ? SANTA_DENSE : SANTA_SAMPLE_ATTENTION);
            CHECK_NEAR(o.sample_attention.alpha_columns, want.setting[range][layer].alpha_columns, 0, 0);
            CHECK_NEAR(o.sample_attention.alpha_slashes, want.setting[range][layer].alpha_slashes, 0, 0);
            CHECK_INT(o.sample_attention.num_chunks, layer == range ? 0 : 1 + layer);
            CHECK_INT(o.sample_attention.block_size, layer == range ? 0 : 128);
        }
    FILE *f = fopen(path, "rb");
    const size_t size = f ? fread(data, 1, sizeof data, f) : 0;
    if (f) fclose(f);
    CHECK(size > 100 && size < sizeof data);
    for (size_t cut = 0; cut + 1 < size; cut++) {
        f = fopen(path, "wb");
        CHECK(f && fwrite(data, 1, cut, f) == cut);
        if (f) fclose(f);
        const int status = prefill_options_load(path, &got, message, sizeof message);
        CHECK_MSG(status != 0 && strstr(message, "whole"),
                  "cut to %d bytes: accepted", (int)cut);
    }
    const prefill_options_file good = want;
    for (int i = 0; i < 8; i++) {
        want = good;
        if (i == 0) want.layers = 0;
        if (i == 1) want.block = 96;
        if (i == 2) want.upto[1] = 100;
        if (i == 3) want.upto[2] = 5000;
        if (i == 4) want.setting[1][0].alpha_columns = 1.5;
        if (i == 5) want.setting[1][0].alpha_slashes = 0.0;
        if (i == 6) want.setting[1][0].alpha_slashes = (double)test_nan();
        if (i == 7) want.setting[1][0].chunks = 65;
        CHECK(prefill_options_save(path, &want, message, sizeof message) == 0);
        CHECK_MSG(prefill_options_load(path, &got, message, sizeof message) != 0, "bad file %d: accepted",
                  i);
    }
    remove(path);
    CHECK(prefill_options_load(path, &got, message, sizeof message) != 0 && strstr(message, "cannot open"));
    CHECK(prefill_options_save("no-such-directory/x.txt", &good, message, sizeof message) != 0
          && strstr(message, "cannot write"));
}

static void bad_searches(void) {
    static prefill_options_file f;
    made_up m = {0, -1, 0.0};
    for (int i = 0; i < 6; i++) {
        prefill_search s = search_of(0.1);
        if (i == 0) s.layers = 0;
        if (i == 1) s.layers = PREFILL_MAX_LAYERS + 1;
        if (i == 2) s.ranges = PREFILL_MAX_RANGES + 1;
        if (i == 3) s.upto[0] = 0;
        if (i == 4) s.upto[1] = 5;
        if (i == 5) s.loss = (double)test_nan();
        CHECK_MSG(prefill_search_run(&s, measure, &m, &f, message, sizeof message) != 0, "search %d", i);
    }
    CHECK_INT(m.calls, 0);
    const prefill_search good = search_of(0.1);
    m.wrong = (double)test_nan();
    CHECK(prefill_search_run(&good, measure, &m, &f, message, sizeof message) != 0
          && strstr(message, "no number"));
}

const test_case suite_prefill_tool[] = {
    {"finds the fastest within a loss", finds_the_best},
    {"resumes to the same end", resumes},
    {"files of options, whole and broken", file_round_trip},
    {"bad searches", bad_searches},
    {0, 0}
};
