/* prefill_options.h - how each layer's prefill attends, by length of the prompt: the file, and
   the search that fills it.

   SampleAttention has an alpha for columns, one for slashes, and a number of slices. Which are
   fastest within a loss that one accepts differs from layer to layer and with the length. Given
   a measurement of time and loss, this finds them. C99 or C++11, libc and santa.h only; include
   santa.h first.

       prefill_search s = prefill_search_default(layers, ranges, 0.02);   // a loss of 2 %
       s.upto[0] = 4096;  s.upto[1] = 0;                     // lengths of the ranges, 0: any
       s.state_path = "prefill.state";  s.progress = stderr; // goes on where it was interrupted
       s.subject = prefill_hash(0, data, bytes);             // a state of other data is refused
       prefill_options_file f;
       if (prefill_search_run(&s, measure, user, &f, message, sizeof message)) puts(message);
       prefill_options_save("prefill.txt", &f, message, sizeof message);

       prefill_options_load("prefill.txt", &f, message, sizeof message);
       santa_options o = prefill_options_of(&f, layer, length);    // dense, or SANTA_SAMPLE_ATTENTION

   For each number of slices the search walks along the border of the settings whose loss is
   accepted, as loss falls with both alphas: about 2 measurements for each value of an alpha,
   not their product. Whatever the walk missed, what it returns was measured and has an accepted
   loss. */
#ifndef PREFILL_OPTIONS_H
#define PREFILL_OPTIONS_H

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PREFILL_MAX_LAYERS = 256, PREFILL_MAX_RANGES = 8, PREFILL_ALPHAS = 8, PREFILL_CHUNKS = 3 };

/* chunks 0: dense. */
typedef struct prefill_setting { double alpha_columns, alpha_slashes; int32_t chunks; } prefill_setting;

typedef struct prefill_options_file {
    int32_t layers, ranges, block;
    int64_t upto[PREFILL_MAX_RANGES];       /* tokens of a range's longest prompt, ascending; the last: 0 */
    prefill_setting setting[PREFILL_MAX_RANGES][PREFILL_MAX_LAYERS];
} prefill_options_file;

static inline int prefill_fail(char *message, size_t size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (size > 0) vsnprintf(message, size, format, args);
    va_end(args);
    return -1;
}

static inline santa_options prefill_options_from(const prefill_setting *x, int32_t block) {
    santa_options o;
    memset(&o, 0, sizeof o);
    if (x->chunks == 0) return o;
    o.method = SANTA_SAMPLE_ATTENTION;
    o.sample_attention.alpha_columns = x->alpha_columns;
    o.sample_attention.alpha_slashes = x->alpha_slashes;
    o.sample_attention.num_chunks = x->chunks;
    o.sample_attention.block_size = block;
    return o;
}

/* Of a layer below f->layers. */
static inline santa_options prefill_options_of(const prefill_options_file *f, int32_t layer,
                                               int64_t length) {
    int32_t range = 0;
    while (range + 1 < f->ranges && length > f->upto[range]) range++;
    return prefill_options_from(&f->setting[range][layer], f->block);
}

static inline int prefill_check_ranges(const int64_t *upto, int32_t ranges) {
    for (int32_t i = 0; i + 1 < ranges; i++)
        if (upto[i] < 1 || (i > 0 && upto[i] <= upto[i - 1])) return 0;
    return ranges >= 1 && ranges <= PREFILL_MAX_RANGES && upto[ranges - 1] == 0;
}

/* ------------------------------------------------------------ the file */

/* Text: sizes, for each range its length and a line for each layer, an end mark. */
static inline int prefill_options_save(const char *path, const prefill_options_file *f, char *message,
                                       size_t size) {
    FILE *file = fopen(path, "wb");
    if (!file) return prefill_fail(message, size, "cannot write %.200s: %s", path, strerror(errno));
    fprintf(file, "prefill_options 1 layers %d ranges %d block %d\n", (int)f->layers, (int)f->ranges,
            (int)f->block);
    for (int32_t range = 0; range < f->ranges; range++) {
        fprintf(file, "upto %lld\n", (long long)f->upto[range]);
        for (int32_t layer = 0; layer < f->layers; layer++) {
            const prefill_setting *x = &f->setting[range][layer];
            fprintf(file, "%d %.17g %.17g %d\n", (int)layer, x->alpha_columns, x->alpha_slashes,
                    (int)x->chunks);
        }
    }
    fprintf(file, "end\n");
    const int bad = ferror(file);
    if (fclose(file) != 0 || bad) return prefill_fail(message, size, "cannot write %.200s", path);
    return 0;
}

static inline int prefill_parse(prefill_options_file *f, FILE *file) {
    int layers, ranges, block, number, chunks;
    char end[8];
    if (fscanf(file, "prefill_options 1 layers %d ranges %d block %d", &layers, &ranges, &block) != 3)
        return -1;
    if (layers < 1 || layers > PREFILL_MAX_LAYERS || ranges < 1 || ranges > PREFILL_MAX_RANGES
        || (block != 64 && block != 128)) return -1;
    f->layers = layers;
    f->ranges = ranges;
    f->block = block;
    for (int32_t range = 0; range < ranges; range++) {
        long long upto;
        if (fscanf(file, " upto %lld", &upto) != 1) return -1;
        f->upto[range] = upto;
        for (int32_t layer = 0; layer < layers; layer++) {
            prefill_setting *x = &f->setting[range][layer];
            if (fscanf(file, "%d %lf %lf %d", &number, &x->alpha_columns, &x->alpha_slashes, &chunks) != 4
                || number != layer || chunks < 0 || chunks > 64
                || (chunks > 0 && !(x->alpha_columns > 0.0 && x->alpha_columns <= 1.0
                                    && x->alpha_slashes > 0.0 && x->alpha_slashes <= 1.0))) return -1;
            x->chunks = chunks;
        }
    }
    return prefill_check_ranges(f->upto, f->ranges) && fscanf(file, "%7s", end) == 1 && !strcmp(end, "end")
               ? 0 : -1;
}

static inline int prefill_options_load(const char *path, prefill_options_file *f, char *message,
                                       size_t size) {
    memset(f, 0, sizeof *f);
    FILE *file = fopen(path, "rb");
    if (!file) return prefill_fail(message, size, "cannot open %.200s: %s", path, strerror(errno));
    const int status = prefill_parse(f, file), error = ferror(file) ? errno : 0;
    fclose(file);
    if (error) return prefill_fail(message, size, "cannot read %.200s: %s", path, strerror(error));
    return status == 0 ? 0
                       : prefill_fail(message, size, "%.200s is not a whole file of prefill options", path);
}

/* ------------------------------------------------------------ the search */

/* What a layer's prefill of a prompt of that range costs with these options: *seconds, and
   *loss, 0 for dense. Not 0 ends the search. */
typedef int (*prefill_measure)(void *user, int32_t range, int32_t layer, const santa_options *o,
                               double *seconds, double *loss);

typedef struct prefill_search {
    int32_t layers, ranges, block;
    int64_t upto[PREFILL_MAX_RANGES];
    double  loss;                           /* the largest accepted */
    double  gain;                           /* dense unless it is so many times slower */
    double  alpha[PREFILL_ALPHAS];          /* to try, ascending; 0 ends them */
    int32_t chunks[PREFILL_CHUNKS];         /* to try; 0 ends them */
    const char *state_path;                 /* file to resume from and to keep up to date, or NULL */
    uint64_t subject;                       /* what is measured, as prefill_hash makes it of lengths,
                                               model and text; the state file is for this alone */
    FILE   *progress;                       /* where a line is kept up to date, or NULL */
} prefill_search;

static inline prefill_search prefill_search_default(int32_t layers, int32_t ranges, double loss) {
    static const double alpha[PREFILL_ALPHAS] = { 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.0 };
    static const int32_t chunks[PREFILL_CHUNKS] = { 1, 2, 4 };
    prefill_search s;
    memset(&s, 0, sizeof s);
    s.layers = layers;
    s.ranges = ranges;
    s.block = 64;
    s.loss = loss;
    s.gain = 1.03;
    memcpy(s.alpha, alpha, sizeof alpha);
    memcpy(s.chunks, chunks, sizeof chunks);
    return s;
}

typedef struct prefill_measured {
    int32_t range, layer;
    prefill_setting setting;
    double  seconds, loss;
} prefill_measured;

/* All that was measured so far; the state file has the same lines. */
typedef struct prefill_memory {
    prefill_measured *data;
    int64_t count, capacity;
    FILE   *file;
} prefill_memory;

static inline int prefill_remember(prefill_memory *m, const prefill_measured *x) {
    if (m->count == m->capacity) {
        m->capacity = m->capacity ? 2 * m->capacity : 256;
        prefill_measured *more = (prefill_measured *)realloc(m->data, (size_t)m->capacity * sizeof *more);
        if (!more) return -1;
        m->data = more;
    }
    m->data[m->count++] = *x;
    return 0;
}

/* Of data behind that of `hash`, which is 0 for none. FNV-1a. */
static inline uint64_t prefill_hash(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *p = (const unsigned char *)data;
    if (!hash) hash = UINT64_C(0xCBF29CE484222325);
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ p[i]) * UINT64_C(0x100000001B3);
    return hash;
}

static inline void prefill_describe(const prefill_search *s, char *line, size_t size) {
    size_t at = (size_t)snprintf(line, size, "prefill_search 1 layers %d block %d upto", (int)s->layers,
                                 (int)s->block);
    for (int32_t i = 0; i < s->ranges && at < size; i++)
        at += (size_t)snprintf(line + at, size - at, " %lld", (long long)s->upto[i]);
    if (at < size) snprintf(line + at, size - at, " of %016llx", (unsigned long long)s->subject);
}

/* A line that was cut short ends the file; the search writes it again. */
static inline int prefill_resume(const prefill_search *s, prefill_memory *m, char *message, size_t size) {
    char line[300], want[300];
    long good = 0;                                      /* up to where lines are whole */
    prefill_describe(s, want, sizeof want);
    m->file = fopen(s->state_path, "rb");
    if (!m->file && errno != ENOENT)
        return prefill_fail(message, size, "cannot read %.200s: %s", s->state_path, strerror(errno));
    if (m->file) {
        const int is_read = fgets(line, sizeof line, m->file) != NULL;
        if (ferror(m->file))
            return prefill_fail(message, size, "cannot read %.200s: %s", s->state_path, strerror(errno));
        if (!is_read || strncmp(line, "prefill_search ", 15) != 0)
            return prefill_fail(message, size, "%.200s is not a state file of prefill_search",
                                s->state_path);
        line[strcspn(line, "\r\n")] = 0;
        if (strcmp(line, want) != 0)
            return prefill_fail(message, size, "%.60s is of another search: %.150s", s->state_path, line);
        good = ftell(m->file);
        while (fgets(line, sizeof line, m->file)) {
            prefill_measured x;
            int range, layer, chunks;
            memset(&x, 0, sizeof x);
            if (!strchr(line, '\n')) break;
            if (sscanf(line, "%d %d %lf %lf %d %lf %lf", &range, &layer, &x.setting.alpha_columns,
                       &x.setting.alpha_slashes, &chunks, &x.seconds, &x.loss) != 7
                || !(x.seconds >= 0.0 && x.seconds < 1e30) || !(x.loss >= 0.0 && x.loss < 1e30))
                return prefill_fail(message, size, "%.200s is damaged: delete it to start anew",
                                    s->state_path);
            x.range = range;
            x.layer = layer;
            x.setting.chunks = chunks;
            if (prefill_remember(m, &x) != 0) return prefill_fail(message, size, "no memory");
            good = ftell(m->file);
        }
        fclose(m->file);
        m->file = NULL;
    }
    m->file = fopen(s->state_path, good ? "rb+" : "wb");
    if (!m->file || fseek(m->file, good, SEEK_SET) != 0)
        return prefill_fail(message, size, "cannot write %.200s: %s", s->state_path, strerror(errno));
    if (!good) fprintf(m->file, "%s\n", want);
    return 0;
}

static inline int prefill_same(const prefill_setting *a, const prefill_setting *b) {
    const double c = a->alpha_columns - b->alpha_columns, d = a->alpha_slashes - b->alpha_slashes;
    return a->chunks == b->chunks && c < 1e-9 && c > -1e-9 && d < 1e-9 && d > -1e-9;
}

/* Measured now, or before. */
static inline int prefill_look(const prefill_search *s, prefill_memory *m, prefill_measure measure,
                               void *user, prefill_measured *x, char *message, size_t size) {
    for (int64_t i = 0; i < m->count; i++)
        if (m->data[i].range == x->range && m->data[i].layer == x->layer
            && prefill_same(&m->data[i].setting, &x->setting)) {
            *x = m->data[i];
            return 0;
        }
    const santa_options o = prefill_options_from(&x->setting, s->block);
    if (measure(user, x->range, x->layer, &o, &x->seconds, &x->loss) != 0)
        return prefill_fail(message, size, "range %d, layer %d: the measurement failed", (int)x->range,
                            (int)x->layer);
    if (!(x->seconds >= 0.0) || !(x->loss >= 0.0))
        return prefill_fail(message, size, "range %d, layer %d: a time or loss that is no number",
                            (int)x->range, (int)x->layer);
    if (prefill_remember(m, x) != 0) return prefill_fail(message, size, "no memory");
    if (m->file) {
        fprintf(m->file, "%d %d %.17g %.17g %d %.9g %.9g\n", (int)x->range, (int)x->layer,
                x->setting.alpha_columns, x->setting.alpha_slashes, (int)x->setting.chunks, x->seconds,
                x->loss);
        if (fflush(m->file) != 0) return prefill_fail(message, size, "cannot write %.200s", s->state_path);
    }
    if (s->progress) {
        fprintf(s->progress, "\rrange %d/%d, layer %d/%d, %lld measured  ", (int)x->range + 1,
                (int)s->ranges, (int)x->layer + 1, (int)s->layers, (long long)m->count);
        fflush(s->progress);
    }
    return 0;
}

/* The best of a layer: dense if nothing else is faster by s->gain. */
static inline int prefill_search_layer(const prefill_search *s, prefill_memory *m, prefill_measure measure,
                                       void *user, int32_t range, int32_t layer, prefill_measured *best,
                                       char *message, size_t size) {
    int alphas = 0;
    memset(best, 0, sizeof *best);
    best->range = range;
    best->layer = layer;
    while (alphas < PREFILL_ALPHAS && s->alpha[alphas] > 0.0) alphas++;
    if (prefill_look(s, m, measure, user, best, message, size) != 0) return -1;
    const double dense = best->seconds;
    for (int i = 0; i < PREFILL_CHUNKS && s->chunks[i] > 0; i++) {
        int columns = 0, slashes = alphas - 1;
        while (columns < alphas && slashes >= 0) {
            prefill_measured x = *best;
            x.setting.alpha_columns = s->alpha[columns];
            x.setting.alpha_slashes = s->alpha[slashes];
            x.setting.chunks = s->chunks[i];
            if (prefill_look(s, m, measure, user, &x, message, size) != 0) return -1;
            if (x.loss > s->loss) { columns++; continue; }
            if (x.seconds < best->seconds && x.seconds * s->gain < dense) *best = x;
            slashes--;
        }
    }
    return 0;
}

/* f gets the best setting of each range and layer. 0, or -1 and a message. */
static inline int prefill_search_run(const prefill_search *s, prefill_measure measure, void *user,
                                     prefill_options_file *f, char *message, size_t size) {
    prefill_memory m;
    int status = 0;
    memset(&m, 0, sizeof m);
    memset(f, 0, sizeof *f);
    if (s->layers < 1 || s->layers > PREFILL_MAX_LAYERS || !prefill_check_ranges(s->upto, s->ranges))
        return prefill_fail(message, size,
                            "layers must be 1 to %d, ranges 1 to %d, ascending, the last one 0",
                            (int)PREFILL_MAX_LAYERS, (int)PREFILL_MAX_RANGES);
    if (!(s->loss >= 0.0)) return prefill_fail(message, size, "a loss below 0 is none");
    f->layers = s->layers;
    f->ranges = s->ranges;
    f->block = s->block;
    memcpy(f->upto, s->upto, sizeof f->upto);
    if (s->state_path) status = prefill_resume(s, &m, message, size);
    for (int32_t range = 0; range < s->ranges && status == 0; range++)
        for (int32_t layer = 0; layer < s->layers && status == 0; layer++) {
            prefill_measured best;
            status = prefill_search_layer(s, &m, measure, user, range, layer, &best, message, size);
            f->setting[range][layer] = best.setting;
        }
    if (s->progress) fprintf(s->progress, "\n");
    if (m.file && fclose(m.file) != 0 && status == 0)
        status = prefill_fail(message, size, "cannot write %.200s", s->state_path);
    free(m.data);
    return status;
}

#endif /* PREFILL_OPTIONS_H */
