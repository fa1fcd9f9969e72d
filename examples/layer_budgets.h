/* layer_budgets.h - how many draws each layer should get, found by trying: a search over
   per-layer budgets at a fixed total.

   Layers differ in how much they suffer from few draws. Given a reward (say, the share of
   answers that are right) as a function of the layers' budgets, this looks for the split of the
   total that gives the most. C99 or C++11, libc and libm only; the reward may be as noisy as it
   likes.

       layer_budgets_options o = layer_budgets_default(layers, total);
       o.state_path = "budgets.state";  o.progress = stderr;       // goes on where it was interrupted
       int64_t budget[32];
       layer_budgets_error e;
       if (layer_budgets_search(&o, reward, user, budget, &e)) puts(e.text);

   The method is REINFORCE as in appendix K of the SANTA paper, with three changes that spare
   most of its episodes:
   - the policy is a Gaussian over the logarithms of the budgets, not a multinomial draw: its
     width does not shrink as the total grows;
   - episodes come in pairs, theta + sigma z and theta - sigma z, on the same questions: the
     difference of the two is the advantage, no baseline has to be learned and the difficulty of
     the questions cancels;
   - steps are scaled by the running size of those differences, so that any unit of reward will
     do.
   The answer is the average of all thetas, later ones with more weight. Random numbers are a
   pure function of (seed, iteration, pair, layer): an interrupted search that is resumed ends
   where an uninterrupted one does. */
#ifndef LAYER_BUDGETS_H
#define LAYER_BUDGETS_H

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { LAYER_BUDGETS_MAX_LAYERS = 512 };

typedef struct layer_budgets_error { char text[300]; } layer_budgets_error;

/* What these budgets are worth, the more the better; NaN ends the search. Calls of one pair
   have the same episode number (0, 1, ...): take the same questions and the same random numbers
   for both. */
typedef double (*layer_budgets_reward)(void *user, const int64_t *budget, int32_t layers, int64_t episode);

typedef struct layer_budgets_options {
    int32_t  layers;
    int64_t  total;         /* draws of all layers together */
    int64_t  minimum;       /* of each layer, >= 1 */
    int64_t  iterations;    /* steps in all, those of an interrupted run included */
    int32_t  pairs;         /* of episodes, per step */
    double   width, rate;   /* of the first steps: spread of log budgets, step length in such spreads */
    uint64_t seed;
    const char *state_path; /* file to resume from and to keep up to date, or NULL */
    FILE    *progress;      /* where a line is kept up to date, or NULL */
} layer_budgets_options;

static inline layer_budgets_options layer_budgets_default(int32_t layers, int64_t total) {
    layer_budgets_options o;
    memset(&o, 0, sizeof o);
    o.layers = layers;
    o.total = total;
    o.minimum = 1;
    o.iterations = 60;
    o.pairs = 4;
    o.width = 0.6;
    o.rate = 0.6;
    o.seed = 1;
    return o;
}

/* Writes the message and returns -1, so that a caller can say "return
   layer_budgets_fail(...)". */
static inline int layer_budgets_fail(layer_budgets_error *e, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    return -1;
}

/* What is known after some steps: all that the state file holds. */
typedef struct layer_budgets_state {
    int64_t iteration;
    double  square;                             /* running mean square of a pair's difference */
    double  reward;                             /* running mean, to be shown */
    double  theta[LAYER_BUDGETS_MAX_LAYERS];    /* logarithms of the budgets, but for a constant */
    double  sum[LAYER_BUDGETS_MAX_LAYERS];      /* of step number times theta */
} layer_budgets_state;

/* Standard normal, a pure function of its arguments. */
static inline double layer_budgets_normal(uint64_t seed, int64_t iteration, int32_t pair, int32_t layer) {
    double u[2];
    for (int i = 0; i < 2; i++) {
        uint64_t z = seed;
        const uint64_t word[4] = { (uint64_t)iteration, (uint64_t)pair, (uint64_t)layer, (uint64_t)i };
        for (int w = 0; w < 4; w++) {                       /* splitmix64's finaliser over the words */
            z += 0x9E3779B97F4A7C15u + word[w];
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
            z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
            z ^= z >> 31;
        }
        u[i] = ((double)(z >> 11) + 0.5) / 9007199254740992.0;
    }
    return sqrt(-2.0 * log(u[0])) * cos(6.283185307179586 * u[1]);
}

/* Budgets in proportion to exp(theta), none below the minimum, that sum to the total
   exactly. */
static inline void layer_budgets_round(const layer_budgets_options *o, const double *theta,
                                       int64_t *budget) {
    const double spare = (double)(o->total - o->minimum * o->layers);
    double max = theta[0], sum = 0.0, share = 0.0;
    int64_t given = 0;
    for (int32_t i = 1; i < o->layers; i++) if (theta[i] > max) max = theta[i];
    for (int32_t i = 0; i < o->layers; i++) sum += exp(theta[i] - max);
    for (int32_t i = 0; i < o->layers; i++) { /* rounded cumulative shares: no remainder to hand out */
        share += exp(theta[i] - max) / sum;
        const int64_t upto = i + 1 < o->layers ? (int64_t)floor(share * spare + 0.5) : (int64_t)spare;
        budget[i] = o->minimum + upto - given;
        given = upto;
    }
}

static inline int layer_budgets_check(const layer_budgets_options *o, layer_budgets_error *e) {
    if (o->layers < 1 || o->layers > LAYER_BUDGETS_MAX_LAYERS)
        return layer_budgets_fail(e, "layers must be 1 to %d, not %d", (int)LAYER_BUDGETS_MAX_LAYERS,
                                  (int)o->layers);
    if (o->minimum < 1 || o->total > INT64_C(1) << 40 || o->minimum > o->total / o->layers)
        return layer_budgets_fail(e, "a total of %lld does not give %d layers at least %lld >= 1 each",
                                  (long long)o->total, (int)o->layers, (long long)o->minimum);
    if (o->iterations < 1 || o->pairs < 1)
        return layer_budgets_fail(e, "iterations and pairs must be at least 1");
    if (!(o->width > 0.0 && o->width < 10.0) || !(o->rate > 0.0 && o->rate < 10.0))
        return layer_budgets_fail(e, "width and rate must lie between 0 and 10");
    return 0;
}

/* The state file is text: what the search is, how far it is, theta and sum of each layer, an
   end mark. */
static inline void layer_budgets_describe(const layer_budgets_options *o, char *line, size_t size) {
    snprintf(line, size,
             "layer_budgets 1 layers %d total %lld minimum %lld pairs %d width %.17g rate %.17g seed %llu",
             (int)o->layers, (long long)o->total, (long long)o->minimum, (int)o->pairs, o->width, o->rate,
             (unsigned long long)o->seed);
}

static inline int layer_budgets_save(const layer_budgets_options *o, const layer_budgets_state *s,
                                     layer_budgets_error *e) {
    char line[300], path[1024];
    if (snprintf(path, sizeof path, "%s.new", o->state_path) >= (int)sizeof path)
        return layer_budgets_fail(e, "the state file's name is too long");
    FILE *f = fopen(path, "wb");
    if (!f) return layer_budgets_fail(e, "cannot write %.200s: %s", path, strerror(errno));
    layer_budgets_describe(o, line, sizeof line);
    fprintf(f, "%s\niteration %lld square %.17g reward %.17g\n", line, (long long)s->iteration, s->square,
            s->reward);
    for (int32_t i = 0; i < o->layers; i++) fprintf(f, "%.17g %.17g\n", s->theta[i], s->sum[i]);
    fprintf(f, "end\n");
    const int bad = ferror(f);
    if (fclose(f) != 0 || bad) return layer_budgets_fail(e, "cannot write %.200s", path);
#ifdef _WIN32
    remove(o->state_path);                                  /* rename does not replace a file there */
#endif
    if (rename(path, o->state_path) != 0)
        return layer_budgets_fail(e, "cannot rename %.200s: %s", path, strerror(errno));
    return 0;
}

static inline int layer_budgets_parse(const layer_budgets_options *o, layer_budgets_state *s, FILE *f,
                                      layer_budgets_error *e) {
    char line[300], want[300], end[8];
    long long iteration = -1;
    layer_budgets_describe(o, want, sizeof want);
    if (!fgets(line, sizeof line, f) || strncmp(line, "layer_budgets ", 14) != 0)
        return layer_budgets_fail(e, "%.200s is not a state file of layer_budgets", o->state_path);
    line[strcspn(line, "\r\n")] = 0;
    if (strcmp(line, want) != 0)
        return layer_budgets_fail(e, "%.60s is of another search: %.190s", o->state_path, line);
    int good = fscanf(f, " iteration %lld square %lf reward %lf", &iteration, &s->square, &s->reward) == 3;
    /* thetas beyond it are no search's, and overflow soon */
    const double most = 1e9, steps = (double)iteration;
    for (int32_t i = 0; i < o->layers && good; i++)
        good = fscanf(f, "%lf %lf", &s->theta[i], &s->sum[i]) == 2 && fabs(s->theta[i]) <= most
               && fabs(s->sum[i]) <= most * steps * (steps + 1.0) / 2.0;
    if (!good || iteration < 0 || !isfinite(s->reward) || !(s->square >= 0.0 && isfinite(s->square))
        || fscanf(f, "%7s", end) != 1 || strcmp(end, "end") != 0)
        return layer_budgets_fail(e, "%.200s is damaged or cut short: delete it to start anew",
                                  o->state_path);
    s->iteration = iteration;
    if (s->iteration > o->iterations)
        return layer_budgets_fail(e, "%.200s has %lld iterations, more than the %lld asked for",
                                  o->state_path, iteration, (long long)o->iterations);
    return 0;
}

/* A file that is not there is a search not begun. */
static inline int layer_budgets_load(const layer_budgets_options *o, layer_budgets_state *s,
                                     layer_budgets_error *e) {
    memset(s, 0, sizeof *s);
    FILE *f = o->state_path ? fopen(o->state_path, "rb") : NULL;
    if (!f && o->state_path && errno != ENOENT)
        return layer_budgets_fail(e, "cannot read %.200s: %s", o->state_path, strerror(errno));
    if (!f) return 0;
    const int status = layer_budgets_parse(o, s, f, e);
    fclose(f);
    return status;
}

/* The average of the thetas so far, later ones with more weight. */
static inline void layer_budgets_average(const layer_budgets_options *o, const layer_budgets_state *s,
                                         int64_t *budget) {
    double mean[LAYER_BUDGETS_MAX_LAYERS] = { 0 };
    const double n = (double)s->iteration, weight = n * (n + 1.0) / 2.0;
    for (int32_t i = 0; i < o->layers; i++) mean[i] = weight > 0.0 ? s->sum[i] / weight : 0.0;
    layer_budgets_round(o, mean, budget);
}

static inline void layer_budgets_show(const layer_budgets_options *o, const layer_budgets_state *s) {
    int64_t budget[LAYER_BUDGETS_MAX_LAYERS];
    layer_budgets_average(o, s, budget);
    fprintf(o->progress, "\rstep %lld/%lld, reward %.4f, budgets", (long long)s->iteration,
            (long long)o->iterations, s->reward);
    for (int32_t i = 0; i < o->layers && i < 8; i++) fprintf(o->progress, " %lld", (long long)budget[i]);
    fprintf(o->progress, o->layers > 8 ? " ...  " : "  ");
    if (s->iteration == o->iterations) fprintf(o->progress, "\n");
    fflush(o->progress);
}

/* One step: pairs of episodes around theta, which then moves along the mean of difference times
   direction. */
static inline int layer_budgets_step(const layer_budgets_options *o, layer_budgets_state *s,
                                     layer_budgets_reward reward, void *user, layer_budgets_error *e) {
    double move[LAYER_BUDGETS_MAX_LAYERS] = { 0 }, try_theta[LAYER_BUDGETS_MAX_LAYERS], square = 0.0,
           sum = 0.0;
    int64_t budget[LAYER_BUDGETS_MAX_LAYERS];
    const double cool = 1.0 / sqrt(1.0 + (double)s->iteration / 16.0), width = o->width * cool;
    for (int32_t pair = 0; pair < o->pairs; pair++) {
        double value[2];
        for (int half = 0; half < 2; half++) {
            for (int32_t i = 0; i < o->layers; i++) {
                const double z = layer_budgets_normal(o->seed, s->iteration, pair, i);
                try_theta[i] = s->theta[i] + (half ? -width : width) * z;
            }
            layer_budgets_round(o, try_theta, budget);
            value[half] = reward(user, budget, o->layers, s->iteration * o->pairs + pair);
            if (!isfinite(value[half])) return layer_budgets_fail(e, "the reward is not a finite number");
            sum += value[half];
        }
        const double difference = value[0] - value[1];
        square += difference * difference / (double)o->pairs;
        for (int32_t i = 0; i < o->layers; i++)
            move[i] += difference * layer_budgets_normal(o->seed, s->iteration, pair, i) / (double)o->pairs;
    }
    const double keep = s->iteration > 0 ? 0.8 : 0.0, mean = sum / (2.0 * (double)o->pairs);
    s->square = keep * s->square + (1.0 - keep) * square;
    s->reward = keep * s->reward + (1.0 - keep) * mean;
    s->iteration++;
    const double step = s->square > 0.0 ? o->rate * width / sqrt(s->square) : 0.0;
    for (int32_t i = 0; i < o->layers; i++) {
        s->theta[i] += step * move[i];
        s->sum[i] += (double)s->iteration * s->theta[i];
    }
    return 0;
}

/* budget[layers] gets the best split found. 0, or -1 and a text. */
static inline int layer_budgets_search(const layer_budgets_options *o, layer_budgets_reward reward,
                                       void *user, int64_t *budget, layer_budgets_error *e) {
    layer_budgets_state s;
    if (layer_budgets_check(o, e) != 0 || layer_budgets_load(o, &s, e) != 0) return -1;
    while (s.iteration < o->iterations) {
        if (layer_budgets_step(o, &s, reward, user, e) != 0) return -1;
        if (o->state_path && layer_budgets_save(o, &s, e) != 0) return -1;
        if (o->progress) layer_budgets_show(o, &s);
    }
    layer_budgets_average(o, &s, budget);
    return 0;
}

#endif /* LAYER_BUDGETS_H */
