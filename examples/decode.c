/* A toy decoder for small llama-like checkpoints that attends through santa.h: streams text,
   compares methods (see --help).
   Build: cc -O2 examples/decode.c -lm      (add -fopenmp for --threads) */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime, isatty, fileno under -std=c99 */
#endif
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "llama.h"
#define SAAP_ALLOC(size) LLAMA_ALLOC(size) /* where attention reads them */
#define SAAP_FREE(p)     LLAMA_FREE(p)
#include "saap.h"
#include "prefill_options.h"

#ifdef _WIN32
#include <io.h>
#define isatty _isatty
#define fileno _fileno
#else
#include <unistd.h>
#endif

/* ------------------------------------------------------------ command line */

typedef struct config {
    const char *model, *tokenizer, *prompt, *prompt_file, *buckets, *prefill_options;
    int64_t prompt_tokens, steps, compare_tokens, compare_seeds;
    int64_t method, samples, tile_size, scores, bernoulli_draws, probes, local;
    double  top_p, epsilon, delta, temperature;
    int64_t prefill, chunks, block, dense_layers, draft;
    double  alpha;
    int64_t seed, threads;
    uint64_t given;                             /* bit i: options[i] was on the command line */
} config;

typedef struct choice { const char *name; int64_t value; } choice;

static const choice methods[] = {
    { "dense", SANTA_DENSE }, { "iid", SANTA_IID },     { "strat", SANTA_STRAT }, { "sys", SANTA_SYS },
    { "prop", SANTA_PROP },   { "flash", SANTA_FLASH }, { "top-k", SANTA_TOP_K },  { "top-p", SANTA_TOP_P },
    { "vattention", SANTA_VATTENTION }, { "pps", SANTA_PPS }, { "saap", SANTA_SAAP }, { NULL, 0 },
};

static const choice score_methods[] = {
    { "exact", SANTA_SCORES_EXACT },                  { "bernoulli-iid", SANTA_SCORES_BERNOULLI_IID },
    { "bernoulli-strat", SANTA_SCORES_BERNOULLI_STRAT }, { "group-iid", SANTA_SCORES_GROUP_IID },
    { "group-strat", SANTA_SCORES_GROUP_STRAT },      { "copy", SANTA_SCORES_PROXY },
    { NULL, 0 },
};

static const choice blocks[] = { { "64", 64 }, { "128", 128 }, { NULL, 0 } };

static const choice prefills[] = {
    { "dense", SANTA_DENSE }, { "sample", SANTA_SAMPLE_ATTENTION }, { NULL, 0 },
};

typedef enum value_kind { FLAG, TEXT, INTEGER, NUMBER, CHOICE } value_kind;

typedef enum option_id {
    MODEL, TOKENIZER, PROMPT, PROMPT_FILE, PROMPT_TOKENS, STEPS, TEMPERATURE, SEED, THREADS,
    PREFILL, ALPHA, CHUNKS, BLOCK, DENSE_LAYERS, PREFILL_OPTIONS,
    METHOD, DRAFT, SAMPLES, TILE_SIZE, TOP_P, EPSILON, DELTA, BUCKETS, PROBES, LOCAL, SCORES,
    BERNOULLI_DRAWS,
    COMPARE, COMPARE_TOKENS, COMPARE_SEEDS, DEMO, HELP, OPTIONS
} option_id;

/* Ends of a range that are no values. */
typedef enum open_ends { NO_END, LOW_END, BOTH_ENDS } open_ends;

/* One table for parsing, range checks and --help. Numbers lie in [low, high], less the open
   ends. */
static const struct {
    const char *name;
    value_kind kind;
    size_t field;
    double low, high;
    open_ends open;
    const choice *choices;
    const char *help;
} options[OPTIONS] = {
#define TEXT_IN(field)                TEXT,    offsetof(config, field), 0, 0, NO_END, NULL
#define INTEGER_IN(field, low, high)  INTEGER, offsetof(config, field), low, high, NO_END, NULL
#define NUMBER_IN(field, low, high)   NUMBER,  offsetof(config, field), low, high, NO_END, NULL
#define ABOVE(field, low, high)       NUMBER,  offsetof(config, field), low, high, LOW_END, NULL
#define INSIDE(field, low, high)      NUMBER,  offsetof(config, field), low, high, BOTH_ENDS, NULL
#define CHOICE_IN(field, choices)     CHOICE,  offsetof(config, field), 0, 0, NO_END, choices
#define FLAG_ONLY                     FLAG, 0, 0, 0, NO_END, NULL
    { "model",           TEXT_IN(model),
      "FILE  checkpoint that llama.h reads  [examples/model/model.bin]" },
    { "tokenizer",       TEXT_IN(tokenizer),   "FILE  its tokenizer  [examples/model/tokenizer.bin]" },
    { "prompt",          TEXT_IN(prompt),      "TEXT  text to continue" },
    { "prompt-file",     TEXT_IN(prompt_file), "FILE  text to continue, from a file" },
    { "prompt-tokens",   INTEGER_IN(prompt_tokens, 1, INT32_MAX),
      "N  the prompt is the first N tokens of the text" },
    { "steps",           INTEGER_IN(steps, 1, INT32_MAX),
      "N  tokens to generate  [200, or what fits; 100 in --demo]" },
    { "temperature",     NUMBER_IN(temperature, 0, 100),
      "T  of the token sampler, 0 = greedy  [0.7]" },
    { "seed",            INTEGER_IN(seed, 0, 9007199254740991.0),
      "N  of the token sampler and of attention  [1; 3 in --demo]" },
    { "threads",         INTEGER_IN(threads, 1, 1024),        "N  needs a build with -fopenmp  [1]" },
    { "prefill",         CHOICE_IN(prefill, prefills),
      "attention of the prompt: exact, or SampleAttention for all of it at once" },
    { "alpha",           ABOVE(alpha, 0, 1),
      "A  of --prefill sample: mass that columns, and slashes, hold  [0.95]" },
    { "chunks",          INTEGER_IN(chunks, 1, 64),  "C  slices of query rows that it samples  [2]" },
    { "block",           CHOICE_IN(block, blocks),            "query rows and keys of a block" },
    { "dense-layers",    INTEGER_IN(dense_layers, 0, INT32_MAX),
      "N  first layers whose prefill stays dense  [1]" },
    { "prefill-options", TEXT_IN(prefill_options),
      "FILE  of prefill_tune: alphas and chunks of each layer and length" },
    { "method",          CHOICE_IN(method, methods),          "attention, behind the prefill" },
    { "draft",           INTEGER_IN(draft, 1, 64),
      "N  the method drafts N tokens, one exact call keeps or replaces them: text as likely as dense's" },
    { "samples",         INTEGER_IN(samples, 0, SANTA_MAX_SAMPLES),
      "S  draws a head, k of top-k; saap: for a group, 0 = none  [128; 64 in --demo]" },
    { "tile-size",       INTEGER_IN(tile_size, 8, 1 << 30),   "N  keys per tile of prop and flash  [256]" },
    { "top-p",           ABOVE(top_p, 0, 1),                  "P  mass that top-p keeps  [0.9]" },
    { "epsilon",         INSIDE(epsilon, 0, 1),               "E  vattention: relative error  [0.05]" },
    { "delta",           INSIDE(delta, 0, 1),                 "D  vattention: chance to miss it  [0.05]" },
    { "buckets",         TEXT_IN(buckets),
      "FILE  saap: router of examples/saap/train.py for this very model  [k-means of the prompt's "
      "keys: 32 buckets, by q . centroid]" },
    { "probes",          INTEGER_IN(probes, 0, 65536),
      "L  saap: buckets read whole  [a 32nd; without draws a 16th]" },
    { "local",           INTEGER_IN(local, 0, INT32_MAX),
      "N  saap: last keys always read  [64; without draws 2047]" },
    { "scores",          CHOICE_IN(scores, score_methods),    "how q . k is computed" },
    { "bernoulli-draws", INTEGER_IN(bernoulli_draws, 1, 65536), "B  draws of Bernoulli scores  [4]" },
    { "compare",         FLAG_ONLY,
      "no text, a table: methods against dense on the text behind the prompt" },
    { "compare-tokens",  INTEGER_IN(compare_tokens, 1, INT32_MAX),
      "N  tokens of text to compare on  [128]" },
    { "compare-seeds",   INTEGER_IN(compare_seeds, 1, 1 << 20),
      "N  runs to average, --seed first  [1; 4 in --demo]" },
    { "demo",            FLAG_ONLY, "dense and sampled text behind a prompt, then the method's table" },
    { "help",            FLAG_ONLY, "this" },
};

static int has_draws(int64_t m) { return m != SANTA_DENSE && m != SANTA_TOP_P && m != SANTA_VATTENTION; }
static int has_tiles(int64_t m) { return m == SANTA_PROP || m == SANTA_FLASH; }
static int given(const config *c, option_id id) { return (int)(c->given >> id & 1); }

/* Words in lines of 80 columns, the first of which has `used` already; the others begin at
   `indent`. */
static void print_wrapped(FILE *f, int used, int indent, const char *text) {
    while (*text) {
        const int spaces = (int)strspn(text, " "), word = (int)strcspn(text + spaces, " ");
        if (used + spaces + word > 80) {
            fprintf(f, "\n%*s", indent, "");
            used = indent;
            text += spaces;
        } else {
            fprintf(f, "%.*s", spaces, text);
            used += spaces;
            text += spaces;
        }
        fprintf(f, "%.*s", word, text);
        used += word;
        text += word;
    }
    fprintf(f, "\n");
}

static void print_help(FILE *f) {
    enum { INDENT = 21 };
    fprintf(f, "decode: continues text with a small llama-like model, attention by santa.h\n\n");
    for (int i = 0; i < OPTIONS; i++) {
        char text[400];
        size_t n = (size_t)snprintf(text, sizeof text, "%s", options[i].help);
        for (const choice *c = options[i].choices; c && c->name && n < sizeof text; c++)
            n += (size_t)snprintf(text + n, sizeof text - n, c == options[i].choices ? ": [%s]" : ", %s",
                                  c->name);
        fprintf(f, "  --%-16s ", options[i].name);
        print_wrapped(f, INDENT, INDENT, text);
    }
    fprintf(f, "\n");
    print_wrapped(f, 0, 0, "With --compare, --method and --samples narrow the table; with --demo they "
                           "choose the second text, and --method the table.");
}

/* Edit distance, to guess what a misspelt option was meant to be. Names longer than the row are
   as far as can be. */
static int distance(const char *a, const char *b) {
    enum { ROW = 32 };
    int row[ROW];
    const int n = (int)strlen(b);
    if (n >= ROW) return ROW;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; *a; a++, i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (*a != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

static int unknown_option(const char *argument, llama_error *e) {
    int best = 0;
    for (int i = 1; i < OPTIONS; i++)
        if (distance(argument, options[i].name) < distance(argument, options[best].name)) best = i;
    if (distance(argument, options[best].name) <= 2)
        return llama_fail(e, "unknown option --%s: did you mean --%s?", argument, options[best].name);
    return llama_fail(e, "unknown option --%s: --help lists them", argument);
}

static int parse_value(config *c, option_id id, const char *text, llama_error *e) {
    void *field = (char *)c + options[id].field;
    char *end = NULL;
    double value = 0.0;
    errno = 0;
    switch (options[id].kind) {
    case TEXT:
        memcpy(field, &text, sizeof text);
        return 0;
    case CHOICE: {
        char names[200];
        size_t n = 0;
        for (const choice *x = options[id].choices; x->name; x++) {
            if (strcmp(x->name, text) == 0) { memcpy(field, &x->value, sizeof x->value); return 0; }
            if (n < sizeof names) n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "",
                                                            x->name);
        }
        return llama_fail(e, "--%s has no choice %.80s, but %s", options[id].name, text, names);
    }
    case INTEGER: {
        const long long integer = strtoll(text, &end, 10);
        const int64_t stored = integer;
        value = (double)integer;
        memcpy(field, &stored, sizeof stored);
        break;
    }
    case NUMBER:
        value = strtod(text, &end);
        memcpy(field, &value, sizeof value);
        break;
    case FLAG:
        break;
    }
    const int integer = options[id].kind == INTEGER;
    if (!end || end == text || *end != 0)
        return llama_fail(e, "--%s wants %s, not '%s'", options[id].name,
                          integer ? "an integer" : "a number", text);
    const double low = options[id].low, high = options[id].high;
    const open_ends ends = options[id].open;
    if ((integer && errno != 0) || !(value >= low && value <= high) || (ends != NO_END && value <= low)
        || (ends == BOTH_ENDS && value >= high))
        return llama_fail(e, "--%s wants a value %s %.16g %s %.16g, not %s", options[id].name,
                          ends == BOTH_ENDS ? "strictly between" : ends == LOW_END ? "above" : "between",
                          low, ends == LOW_END ? "and up to" : "and", high, text);
    return 0;
}

/* An option that would be ignored is an error. */
static int check_use(const config *c, llama_error *e) {
    const int table = given(c, COMPARE) || given(c, DEMO),
              every_method = given(c, COMPARE) && !given(c, METHOD);
    const int method = every_method ? -1 : (int)c->method;
    const struct { option_id id; int useful; const char *when; } rules[] = {
        { PROMPT_FILE,     !given(c, PROMPT), "cannot stand beside --prompt" },
        { DRAFT,           !table && method != SANTA_DENSE && c->prefill == SANTA_DENSE,
          "needs a --method other than dense, and neither a table nor --prefill sample" },
        { COMPARE,         !given(c, DEMO), "is a part of --demo" },
        { STEPS,           !given(c, COMPARE), "has no meaning for --compare: see --compare-tokens" },
        { TEMPERATURE,     !given(c, COMPARE), "has no meaning for --compare: it compares distributions" },
        { COMPARE_TOKENS,  table, "needs --compare or --demo" },
        { COMPARE_SEEDS,   table, "needs --compare or --demo" },
        { SAMPLES,         every_method || has_draws(c->method),
          "needs a method with a fixed number of draws" },
        { TILE_SIZE,       every_method || has_tiles(c->method), "needs --method prop or flash" },
        { TOP_P,           method == SANTA_TOP_P, "needs --method top-p" },
        { EPSILON,         method == SANTA_VATTENTION, "needs --method vattention" },
        { DELTA,           method == SANTA_VATTENTION, "needs --method vattention" },
        { ALPHA,           c->prefill == SANTA_SAMPLE_ATTENTION && !given(c, PREFILL_OPTIONS),
          "needs --prefill sample, without --prefill-options" },
        { CHUNKS,          c->prefill == SANTA_SAMPLE_ATTENTION && !given(c, PREFILL_OPTIONS),
          "needs --prefill sample, without --prefill-options" },
        { DENSE_LAYERS,    c->prefill == SANTA_SAMPLE_ATTENTION && !given(c, PREFILL_OPTIONS),
          "needs --prefill sample, without --prefill-options" },
        { BLOCK,           c->prefill == SANTA_SAMPLE_ATTENTION && !given(c, PREFILL_OPTIONS),
          "needs --prefill sample, without --prefill-options" },
        { PREFILL_OPTIONS, c->prefill == SANTA_SAMPLE_ATTENTION, "needs --prefill sample" },
        { BUCKETS,         method == SANTA_SAAP, "needs --method saap" },
        { PROBES,          method == SANTA_SAAP, "needs --method saap" },
        { LOCAL,           method == SANTA_SAAP, "needs --method saap" },
        { BERNOULLI_DRAWS, c->scores != SANTA_SCORES_EXACT && c->scores != SANTA_SCORES_PROXY,
          "needs --scores bernoulli-... or group-..." },
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (given(c, rules[i].id) && !rules[i].useful)
            return llama_fail(e, "--%s %s", options[rules[i].id].name, rules[i].when);
    if (given(c, SAMPLES) && c->samples == 0 && method != SANTA_SAAP)
        return llama_fail(e, "--samples 0 needs --method saap: the others have nothing but draws");
    const int small_tile
        = method == SANTA_FLASH && (c->tile_size == 8 || c->tile_size == 16 || c->tile_size == 32);
    if (given(c, TILE_SIZE) && c->tile_size % 64 && !small_tile)
        return llama_fail(e, "--tile-size wants a multiple of 64, of flash also 8, 16 or 32, not %d",
                          (int)c->tile_size);
    if (c->scores == SANTA_SCORES_PROXY && !every_method
        && !(santa_method_traits((santa_method)c->method) & SANTA_PROXIES))
        return llama_fail(e, "--scores copy is not for --method %s",
                          santa_method_name((santa_method)c->method));
    if (table && method == SANTA_DENSE && c->scores == SANTA_SCORES_EXACT)
        return llama_fail(e, "--method dense is what the others are compared with: name another one");
    if (given(c, COMPARE) && !given(c, PROMPT) && !given(c, PROMPT_FILE))
        return llama_fail(e, "--compare needs a text: --prompt or --prompt-file");
#ifndef _OPENMP
    if (c->threads > 1) return llama_fail(e, "--threads %d needs a build with -fopenmp", (int)c->threads);
#endif
    return 0;
}

static int parse_arguments(config *c, int argc, char **argv, llama_error *e) {
    for (int i = 1; i < argc; i++) {
        int id = 0;
        if (strncmp(argv[i], "--", 2) != 0)
            return llama_fail(e, "%s is not an option: --help lists them", argv[i]);
        while (id < OPTIONS && strcmp(argv[i] + 2, options[id].name) != 0) id++;
        if (id == OPTIONS) return unknown_option(argv[i] + 2, e);
        if (given(c, (option_id)id)) return llama_fail(e, "%s is given twice", argv[i]);
        c->given |= (uint64_t)1 << id;
        if (options[id].kind == FLAG) continue;
        if (i + 1 >= argc) return llama_fail(e, "%s wants a value", argv[i]);
        if (parse_value(c, (option_id)id, argv[++i], e) != 0) return -1;
    }
    if (given(c, DEMO)) {
        if (!given(c, PROMPT) && !given(c, PROMPT_FILE)) {
            c->prompt_file = "examples/model/heldout.txt";
            if (!given(c, MODEL) && !given(c, PROMPT_TOKENS)) {      /* the end of a verse */
                c->prompt_tokens = 1636;
                c->given |= 1u << PROMPT_TOKENS;
            }
        }
        if (!given(c, STEPS)) { c->steps = 100; c->given |= 1u << STEPS; }
        if (!given(c, SEED)) c->seed = 3;
        if (!given(c, METHOD)) c->method = SANTA_SYS;
        if (!given(c, SAMPLES)) c->samples = 64;
        if (!given(c, COMPARE_SEEDS)) c->compare_seeds = 4;
    }
    return given(c, HELP) ? 0 : check_use(c, e);
}

/* A count of the command line, where 0 is none, as santa.h has it. */
static int64_t count_of(const config *c, option_id id, int64_t value) {
    return given(c, id) && value == 0 ? SANTA_NONE : value;
}

static santa_options attention_options(const config *c) {
    santa_options o = llama_dense();
    o.method = (santa_method)c->method;
    o.num_samples = count_of(c, SAMPLES, c->samples);
    o.saap.num_probes = count_of(c, PROBES, c->probes);
    o.saap.local_tokens = count_of(c, LOCAL, c->local);
    o.top_p = c->top_p;
    o.tile_size = c->tile_size;
    o.scores = (santa_scores_method)c->scores;
    o.bernoulli_draws = c->bernoulli_draws;
    o.vattention.epsilon = c->epsilon;
    o.vattention.delta = c->delta;
    o.seed = (uint64_t)c->seed;
    o.num_threads = c->threads;
    santa_clear_unused_options(&o);                  /* check_use has refused what was given in vain */
    return o;
}

/* ------------------------------------------------------------ the session */

typedef struct session {
    llama_model     model;
    llama_tokenizer tokenizer;
    llama_state     state;
    saap_file       buckets;
    float   *keys;      /* [n_layers][prompt - 1][kv_dim] before RoPE, or NULL */
    float   *centroids; /* [n_layers][n_kv_heads][BUCKETS_OF_PROMPT][head_dim] of them */
    FILE    *info;      /* lines that are not the model's text: stderr beside plain text */
    int      wrap;      /* the model's text in lines of 80 columns */
    char    *text;      /* the text of --prompt-file, or NULL */
    int32_t *token;     /* the whole text's tokens, BOS first */
    int64_t  prompt;    /* the prompt is token[0 .. prompt) */
    int64_t  steps;     /* tokens to generate behind it */
    int64_t  compared;  /* tokens of the text behind the prompt, for the table */
    double   prefill_seconds, buckets_seconds;
} session;

enum { BUCKETS_OF_PROMPT = 32 };        /* --probes is a 32nd or a 16th of them: one or two */

/* "prefill 12/345" on a line of the terminal, cleared at the end; nothing where stderr is a
   file. */
static void progress(int64_t done, int64_t all) {
    if (!isatty(fileno(stderr))) return;
    if (done < all) fprintf(stderr, "\rprefill %d/%d", (int)done, (int)all);
    else fprintf(stderr, "\r%30s\r", "");
    fflush(stderr);
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Where the prompt ends and how many tokens follow it, so that all fits in the model's context.
   What the command line leaves open shrinks to fit: behind a prompt of known length to what is
   left, else to half of the context or text. */
static int plan(session *s, const config *c, int64_t tokens, llama_error *e) {
    /* the last token is only predicted and takes no position */
    const int64_t places = (int64_t)s->model.seq_len + 1;
    const int table = given(c, COMPARE) || given(c, DEMO), text = !given(c, COMPARE);
    const int known = given(c, PROMPT_TOKENS) || !table; /* else the prompt is as long as the rest allows */
    if (given(c, PROMPT_TOKENS) && c->prompt_tokens > tokens)
        return llama_fail(e, "--prompt-tokens %d: the text has %d tokens", (int)c->prompt_tokens,
                          (int)tokens);
    s->prompt = given(c, PROMPT_TOKENS) ? c->prompt_tokens : tokens;
    s->steps = text ? c->steps : 0;
    s->compared = table ? c->compare_tokens : 0;
    if (!given(c, STEPS)) s->steps = smaller(s->steps, known ? places - s->prompt : places / 2);
    if (!given(c, COMPARE_TOKENS)) {
        const int64_t most = smaller(places, tokens);
        s->compared = smaller(s->compared, known ? most - s->prompt : most / 2);
    }
    const int64_t room = larger(s->steps, s->compared);
    if (!known) s->prompt = smaller(tokens - s->compared, places - room);

    const int64_t prompt = larger(s->prompt, 1), more = larger(room, 1);
    if (prompt + more > places)
        return llama_fail(e,
                          "a prompt of %d tokens and %d more do not fit in the model's context of %d: see "
                          "--prompt-tokens, --steps",
                          (int)prompt, (int)more, (int)places - 1);
    if (table && (s->compared < 1 || s->prompt < 1 || s->prompt + s->compared > tokens))
        return llama_fail(e, "a text of %d tokens is too short for a prompt and some more to compare",
                          (int)tokens);
    if (given(c, DEMO) && !given(c, PROMPT_TOKENS)) { /* end at a line's end, if there is one nearby */
        for (int64_t n = s->prompt; n > 1 && n > s->prompt - 400; n--) {
            const llama_piece p = llama_decode_token(&s->tokenizer, s->token[n - 2], s->token[n - 1]);
            if (p.length > 0 && p.text[p.length - 1] == '\n') { s->prompt = n; break; }
        }
    }
    return 0;
}

/* Keys go into buckets from here on. */
static int open_buckets(session *s, const config *c, llama_error *e) {
    const llama_model *m = &s->model;
    saap_file *f = &s->buckets;
    if (saap_load(c->buckets, f, e->text, sizeof e->text) != 0) return -1;
    if (saap_check_model(f, m->n_layers, m->n_kv_heads, m->n_heads / m->n_kv_heads, m->head_dim, e->text,
                         sizeof e->text) != 0) {
        const size_t used = strlen(e->text);
        snprintf(e->text + used, sizeof e->text - used, " of %s", c->model);
        return -1;
    }
    santa_buckets *router = (santa_buckets *)malloc((size_t)m->n_layers * sizeof *router);
    if (!router) return llama_fail(e, "no memory for %s", c->buckets);
    for (int32_t i = 0; i < m->n_layers; i++) saap_get_layer(f, i, &router[i]);
    const int status = llama_state_route(&s->state, router, e);
    free(router);
    fprintf(s->info, "buckets  %s: %d for each KV head, %s\n", c->buckets, (int)f->num_buckets,
            f->hidden ? "a classifier" : "by q . centroid");
    return status;
}

static void keep_keys(void *user, const llama_state *state, int32_t layer, int64_t position, int64_t n) {
    const session *s = (const session *)user;
    const int64_t kv_dim = s->model.kv_dim;
    memcpy(s->keys + (layer * (s->prompt - 1) + position) * kv_dim, state->k_plain,
           (size_t)(n * kv_dim) * sizeof *s->keys);
}

/* Room for the prompt's keys, which a prefill enters from here on. */
static int collect_keys(session *s, llama_error *e) {
    const llama_model *m = &s->model;
    const size_t rows = (size_t)(s->prompt - 1) * (size_t)m->n_layers;
    if (s->prompt - 2 < BUCKETS_OF_PROMPT)
        return llama_fail(e, "--method saap without --buckets wants a prompt of %d tokens or more, not %d: "
                             "a key for each of %d buckets, and its first and last token",
                          (int)BUCKETS_OF_PROMPT + 2, (int)s->prompt, (int)BUCKETS_OF_PROMPT);
    s->keys = (float *)LLAMA_ALLOC(rows * (size_t)m->kv_dim * sizeof *s->keys);
    s->centroids = (float *)LLAMA_ALLOC((size_t)m->n_layers * (size_t)m->kv_dim * BUCKETS_OF_PROMPT
                                        * sizeof *s->centroids);
    if (!s->keys || !s->centroids) return llama_fail(e, "no memory for the prompt's keys");
    s->state.rows = keep_keys;
    s->state.rows_user = s;
    return 0;
}

/* Centroids of a layer's KV heads. The first key is left out, as train.py does: it is a sink,
   which is read anyway. */
static int find_centroids(session *s, const config *c, int32_t layer, santa_buckets *router,
                          llama_error *e) {
    const llama_model *m = &s->model;
    const int64_t n = s->prompt - 2, dim = m->head_dim, kv_dim = m->kv_dim;
    const float *const keys = s->keys + (layer * (s->prompt - 1) + 1) * kv_dim;
    float *const centroids = s->centroids + layer * kv_dim * BUCKETS_OF_PROMPT;
    const size_t bytes = santa_kmeans_workspace_size(n, dim, BUCKETS_OF_PROMPT);
    void *workspace = malloc(bytes + 1);                    /* 0 bytes: santa_kmeans says why */
    santa_status status = SANTA_OK;
    double norm = 0.0;
    if (!workspace) return llama_fail(e, "no memory for k-means");
    for (int64_t head = 0; head < m->n_kv_heads && status == SANTA_OK; head++)
        status = santa_kmeans(keys + head * dim, n, kv_dim, dim, BUCKETS_OF_PROMPT, 0, (uint64_t)c->seed,
                              centroids + head * BUCKETS_OF_PROMPT * dim, NULL, workspace, bytes);
    free(workspace);
    if (status != SANTA_OK) return llama_fail(e, "k-means: %s", santa_status_string(status));
    for (int64_t i = 0; i < n * m->n_kv_heads; i++)
        norm += sqrt((double)llama_dot(keys + i * dim, keys + i * dim, dim));
    router->num_buckets = BUCKETS_OF_PROMPT;
    router->dtype = SANTA_F32;
    router->centroids = centroids;
    router->key_norm = (float)(norm / (double)(n * m->n_kv_heads));
    return 0;
}

/* Behind the prefill: buckets of the prompt's own keys, and all of its keys in them. */
static int make_buckets(session *s, const config *c, llama_error *e) {
    const llama_model *m = &s->model;
    const double start = llama_seconds();
    const int64_t keys = s->prompt - 1;
    santa_buckets *router = (santa_buckets *)calloc((size_t)m->n_layers, sizeof *router);
    int status = router ? 0 : llama_fail(e, "no memory for buckets of keys");
    s->state.rows = NULL;
    for (int32_t i = 0; i < m->n_layers && status == 0; i++)
        status = find_centroids(s, c, i, &router[i], e);
    if (status == 0) status = llama_state_route(&s->state, router, e);
    free(router);
    for (int32_t i = 0; i < m->n_layers && status == 0; i++) {
        llama_state with_keys = s->state;
        with_keys.k_plain = s->keys + i * keys * m->kv_dim;
        const santa_status why = llama_assign(&with_keys, i, keys, (int32_t)keys);
        if (why != SANTA_OK) status = llama_fail(e, "buckets: %s", santa_status_string(why));
    }
    s->buckets_seconds = llama_seconds() - start;
    if (status == 0)
        fprintf(s->info, "buckets  %d for each KV head, by q . centroid: k-means of the prompt, %.2f s\n",
                (int)BUCKETS_OF_PROMPT, s->buckets_seconds);
    return status;
}

static int open_session(session *s, const config *c, llama_error *e) {
    const char *text = c->prompt ? c->prompt : "";
    size_t length = strlen(text), tokens = 0;
    s->info = given(c, COMPARE) || given(c, DEMO) ? stdout : stderr;
    s->wrap = given(c, DEMO);
    if (llama_load(&s->model, c->model, e) != 0) {
        const size_t used = strlen(e->text);
        if (!given(c, MODEL))
            snprintf(e->text + used, sizeof e->text - used,
                     " (start in the repository's root, or give --model)");
        return -1;
    }
    if (llama_load_tokenizer(&s->tokenizer, c->tokenizer, s->model.vocab_size, e) != 0) return -1;
    if (c->prompt_file) {
        text = s->text = llama_read_file(c->prompt_file, &length, e);
        if (!text) return -1;
    }
    s->token = llama_encode(&s->tokenizer, text, length, &tokens, e);
    if (!s->token || plan(s, c, (int64_t)tokens, e) != 0) return -1;
    if (llama_state_init(&s->state, &s->model, s->prompt + larger(s->steps, s->compared) - 1, e) != 0)
        return -1;
    s->state.threads = (int)c->threads;

    const llama_model *m = &s->model;
    fprintf(s->info, "model    %s: dim %d, %d layers, %d heads on %d KV heads,\n"
            "         head_dim %d, context %d, vocabulary %d\n", c->model, (int)m->dim, (int)m->n_layers,
            (int)m->n_heads, (int)m->n_kv_heads, (int)m->head_dim, (int)m->seq_len, (int)m->vocab_size);
    if (c->buckets && open_buckets(s, c, e) != 0) return -1;
    if (c->method == SANTA_SAAP && !c->buckets && collect_keys(s, e) != 0) return -1;
    if (c->prompt_file)
        fprintf(s->info, "prompt   the first %d tokens of %s\n", (int)s->prompt, c->prompt_file);
    return 0;
}

static void close_session(session *s) {
    llama_free(&s->model);
    llama_free_tokenizer(&s->tokenizer);
    llama_state_free(&s->state);
    saap_free(&s->buckets);
    LLAMA_FREE(s->keys);
    LLAMA_FREE(s->centroids);
    free(s->text);
    free(s->token);
}

static const char *choice_name(const choice *list, int64_t value) {
    while (list->name && list->value != value) list++;
    return list->name ? list->name : "?";
}

/* How the prompt is attended to, layer by layer. */
static int plan_prefill(session *s, const config *c, llama_error *e) {
    prefill_options_file f;
    if (c->prefill == SANTA_DENSE) return 0;
    if (llama_state_chunk(&s->state, larger(s->prompt - 1, 1), e) != 0) return -1;
    if (c->prefill_options) {
        if (prefill_options_load(c->prefill_options, &f, e->text, sizeof e->text) != 0) return -1;
        if (f.layers != s->model.n_layers)
            return llama_fail(e, "%.200s: of %d layers, the model has %d", c->prefill_options,
                              (int)f.layers, (int)s->model.n_layers);
    }
    int status = 0;
    for (int32_t layer = 0; layer < s->model.n_layers && status == 0; layer++) {
        santa_options o = { 0 };
        if (c->prefill_options) o = prefill_options_of(&f, layer, s->prompt - 1);
        else if (layer >= c->dense_layers) {
            o.method = SANTA_SAMPLE_ATTENTION;
            o.sample_attention.alpha_columns = o.sample_attention.alpha_slashes = c->alpha;
            o.sample_attention.num_chunks = c->chunks;
            o.sample_attention.block_size = c->block;
        }
        status = llama_prefill_options(&s->state, layer, &o, e);
    }
    return status;
}

/* What share of the keys the layers' heads read, the last layer left out: its queries are not
   wanted. */
static void print_kept(const session *s) {
    const llama_model *m = &s->model;
    fprintf(s->info, "         blocks of keys kept, by layer:");
    for (int32_t layer = 0; layer + 1 < m->n_layers; layer++) {
        double kept = 0.0;
        if (s->state.prefill[layer].method == SANTA_DENSE) { fprintf(s->info, " all"); continue; }
        for (int32_t h = 0; h < m->n_heads; h++)
            kept += s->state.audit[layer * m->n_heads + h].kept_share / (double)m->n_heads;
        fprintf(s->info, " %.0f %%", 100.0 * kept);
    }
    fprintf(s->info, ";\n         of the last one keys and values only\n");
}

/* Attention over all of the prompt but its last token, which is the first step of decoding. */
static int prefill(session *s, const config *c, llama_error *e) {
    const int64_t all = s->prompt - 1;
    if (plan_prefill(s, c, e) != 0) return -1;
    const double start = llama_seconds();
    for (int64_t done = 0, step; done < all; done += step) {
        step = smaller(s->state.chunk, all - done);
        if (llama_prefill(&s->state, s->token + done, step, done, e) != 0) return -1;
        progress(done + step, all);
    }
    s->prefill_seconds = llama_seconds() - start;
    fprintf(s->info, "prefill  %d tokens, %s, %.2f s\n", (int)all, choice_name(prefills, c->prefill),
            s->prefill_seconds);
    if (c->prefill != SANTA_DENSE && all > 0) print_kept(s);
    if (s->keys && make_buckets(s, c, e) != 0) return -1;
    fflush(s->info);
    return 0;
}

/* ------------------------------------------------------------ text */

static double percent(double part, double whole) { return whole > 0.0 ? 100.0 * part / whole : 0.0; }

/* Words in lines of 80 columns behind a margin. A word is held back until it is whole. */
typedef struct wrapped { const char *margin; int column, length; char word[80]; } wrapped;

static void end_word(wrapped *w) {
    const int margin = (int)strlen(w->margin);
    int from = 0;
    if (w->column > margin && w->column + w->length > 80) {
        printf("\n");
        w->column = 0;
        from = w->word[0] == ' ';
    }
    if (w->column == 0 && w->length > from) { printf("%s", w->margin); w->column = margin; }
    fwrite(w->word + from, 1, (size_t)(w->length - from), stdout);
    w->column += w->length - from;
    w->length = 0;
}

static void wrap(wrapped *w, char c) {
    if (c == '\n') {
        end_word(w);
        printf("\n");
        w->column = 0;
        return;
    }
    if (c == ' ' || w->length == (int)sizeof w->word) end_word(w);
    w->word[w->length++] = c;
}

/* Raw bytes: a character may come in several tokens. Control bytes stay out of the terminal. */
static void print_piece(wrapped *w, llama_piece p) {
    const unsigned char first = p.length > 0 ? (unsigned char)p.text[0] : 0;
    if (p.length == 1 && first < 32 && first != '\n' && first != '\t') return;
    if (w) for (int32_t i = 0; i < p.length; i++) wrap(w, p.text[i]);
    else fwrite(p.text, 1, (size_t)p.length, stdout);
    fflush(stdout);
}

/* Continues the prompt, which must be in the cache, and streams the text. generated: [steps],
   *count of them used. */
static int generate(session *s, const config *c, const santa_options *o, int32_t *generated, int64_t *count,
                    llama_error *e) {
    llama_state *state = &s->state;
    wrapped  lines = { "", 0, 0, "" };
    uint64_t random = (uint64_t)c->seed;
    int32_t token = s->token[s->prompt - 1];
    if (llama_state_options(state, o, e) != 0) return -1;
    double first = 0.0;
    const double start = llama_seconds();
    for (*count = 0; *count < s->steps; ++*count) {
        if (llama_forward(state, token, s->prompt - 1 + *count, 1, e) != 0) return -1;
        const int32_t next = llama_sample(state->logits, s->model.vocab_size, c->temperature, &random);
        if (next < 0) return llama_fail(e, "the model's logits are not finite: %s is damaged", c->model);
        if (*count == 0) {
            first = s->prefill_seconds + llama_seconds() - start;
            if (o->method == SANTA_SAAP) first += s->buckets_seconds;
        }
        if (next == LLAMA_BOS || next == LLAMA_EOS) break;
        print_piece(s->wrap ? &lines : NULL, llama_decode_token(&s->tokenizer, token, next));
        generated[*count] = token = next;
    }
    const double seconds = llama_seconds() - start;
    end_word(&lines);
    printf("\n");
    fflush(stdout);
    fprintf(s->info,
            "[%d tokens, the first after %.2f s, %.0f tokens/s, attention %.0f %% of the time,\n"
            " %.1f %% of V rows and %.1f %% of K read",
            (int)*count, first, (double)*count / seconds, percent(state->attention_seconds, seconds),
            percent((double)state->stats.v_rows_read, (double)state->stats.keys),
            percent((double)state->stats.k_features_read, (double)state->stats.keys * s->model.head_dim));
    if (o->method == SANTA_SAAP)
        fprintf(s->info, ", %.1f %% of %.0f far keys",
                percent((double)state->stats.visited_rows, (double)state->stats.far_rows),
                (double)state->stats.far_rows * s->model.n_heads
                    / (double)larger(1, state->stats.rows * s->model.n_kv_heads));
    fprintf(s->info, "]\n");
    return 0;
}

/* The same by drafts (speculative decoding): the method drafts c->draft tokens, one exact call
   for all of their rows says which stay, and gives one more. The text is as dense's. */
static int speculate(session *s, const config *c, const santa_options *o, int32_t *generated,
                     int64_t *count, llama_error *e) {
    llama_state *state = &s->state;
    const int32_t vocab = s->model.vocab_size;
    const size_t rows = 2 * (size_t)c->draft + 1;
    wrapped  lines = { "", 0, 0, "" };
    uint64_t random = (uint64_t)c->seed;
    int64_t drafted = 0, kept = 0, checks = 0, i;
    int32_t token[65], last = s->token[s->prompt - 1];
    int is_done = 0;
    float *draft = (float *)malloc(rows * (size_t)vocab * sizeof *draft), *exact;
    if (!draft) return llama_fail(e, "no memory for %d rows of logits", (int)rows);
    exact = draft + c->draft * vocab;
    int status = llama_state_chunk(state, larger(c->draft + 1, state->chunk), e);
    if (status == 0) status = llama_state_options(state, o, e);
    for (*count = 0; *count < s->steps && !is_done && status == 0;) {
        const int64_t position = s->prompt - 1 + *count, n = smaller(c->draft, s->steps - *count - 1);
        token[0] = last;
        for (i = 0; i < n && status == 0; i++) {
            status = llama_forward(state, token[i], position + i, 1, e);
            if (status != 0) break;
            memcpy(draft + i * vocab, state->logits, (size_t)vocab * sizeof *draft);
            token[i + 1] = llama_sample(state->logits, vocab, c->temperature, &random);
            if (token[i + 1] < 0) status = llama_fail(e, "the model's logits are not finite");
        }
        if (status == 0) status = llama_verify(state, token, n + 1, position, exact, e);
        checks++;
        for (i = 0; i <= n && !is_done && status == 0; i++) {
            int is_kept = 0;
            if (i < n) {
                is_kept = llama_accept(exact + i * vocab, draft + i * vocab, vocab, c->temperature, &random,
                                       &token[i + 1]);
                drafted++;
                kept += is_kept;
            } else token[i + 1] = llama_sample(exact + i * vocab, vocab, c->temperature, &random);
            if (token[i + 1] < 0) { status = llama_fail(e, "the model's logits are not finite"); break; }
            is_done = token[i + 1] == LLAMA_BOS || token[i + 1] == LLAMA_EOS;
            if (is_done) break;
            print_piece(s->wrap ? &lines : NULL, llama_decode_token(&s->tokenizer, last, token[i + 1]));
            generated[(*count)++] = last = token[i + 1];
            if (!is_kept) break;
        }
    }
    free(draft);
    if (status != 0) return status;
    end_word(&lines);
    printf("\n");
    fflush(stdout);
    fprintf(s->info,
            "[%d tokens by %d exact calls: %d of %d drafted ones kept, %.1f %%, %.2f tokens a call;\n"
            " the drafts read %.1f %% of V rows and %.1f %% of K]\n",
            (int)*count, (int)checks, (int)kept, (int)drafted, percent((double)kept, (double)drafted),
            (double)*count / (double)larger(checks, 1),
            percent((double)state->stats.v_rows_read, (double)state->stats.keys),
            percent((double)state->stats.k_features_read, (double)state->stats.keys * s->model.head_dim));
    return 0;
}

static int run_text(session *s, const config *c, llama_error *e) {
    const santa_options o = attention_options(c);
    int64_t count;
    int32_t *generated = (int32_t *)malloc((size_t)s->steps * sizeof *generated);
    int status = generated ? prefill(s, c, e) : llama_fail(e, "no memory for %d tokens", (int)s->steps);
    if (status == 0) {
        if (c->prompt) printf("%s", c->prompt);
        status = (given(c, DRAFT) ? speculate : generate)(s, c, &o, generated, &count, e);
    }
    free(generated);
    return status;
}

/* ------------------------------------------------------------ table */

/* Sums over the tokens measured. */
typedef struct row { double kl, agree, nll, v_rows, keys, seconds, attention_seconds, tokens; } row;

/* Teacher-forced: the text's own tokens behind the prompt are fed, each prediction is compared
   with dense's of the same position. Cache entries behind the prompt are written anew by every
   method, as in real decoding. dense: [compared][vocab_size] log-probabilities, written if this
   row is the baseline. Adds to *r. */
static int measure(session *s, const santa_options *o, double *dense, int baseline, row *r,
                   llama_error *e) {
    const int32_t vocab = s->model.vocab_size;
    llama_state *state = &s->state;
    double *log_p = (double *)malloc((size_t)vocab * sizeof *log_p);
    if (!log_p) return llama_fail(e, "no memory for %d probabilities", (int)vocab);
    int status = llama_state_options(state, o, e);
    for (int64_t i = 0; i < s->compared && status == 0; i++) {
        const double start = llama_seconds();
        status = llama_forward(state, s->token[s->prompt - 1 + i], s->prompt - 1 + i, 1, e);
        r->seconds += llama_seconds() - start;
        if (status != 0) break;
        llama_log_softmax(state->logits, vocab, log_p);
        double *d = dense + i * vocab;
        if (baseline) memcpy(d, log_p, (size_t)vocab * sizeof *log_p);
        int32_t top = 0;
        for (int32_t t = 0; t < vocab; t++) {
            r->kl += exp(d[t]) * (d[t] - log_p[t]);
            if (d[t] > d[top]) top = t;
        }
        r->agree += top == llama_argmax(state->logits, vocab);
        r->nll -= log_p[s->token[s->prompt + i]];
    }
    free(log_p);
    if (status != 0) return status;
    if (!isfinite(r->nll) || !isfinite(r->kl))
        return llama_fail(e, "the model's logits are not finite: are the weights damaged?");
    r->v_rows += (double)state->stats.v_rows_read;
    r->keys += (double)state->stats.keys;
    r->attention_seconds += state->attention_seconds;
    r->tokens += (double)s->compared;
    return 0;
}

static void print_row(const char *name, const char *draws, const row *r) {
    printf("%-10s %6s  %9.5f  %12.1f  %9.3f  %13.1f  %8.0f\n", name, draws, r->kl / r->tokens,
           percent(r->agree, r->tokens), r->nll / r->tokens, percent(r->v_rows, r->keys),
           r->tokens / r->seconds);
    fflush(stdout);
}

static int run_table(session *s, const config *c, llama_error *e) {
    const santa_method all[] = { SANTA_IID, SANTA_STRAT, SANTA_SYS, SANTA_PROP, SANTA_FLASH, SANTA_TOP_K };
    const int64_t all_samples[] = { 8, 16, 32, 64, 128 };
    const int narrow = given(c, DEMO) || given(c, METHOD),
              one_budget = given(c, COMPARE) && given(c, SAMPLES);
    const int budgets = has_draws(c->method);
    const int method_count = narrow ? 1 : (int)(sizeof all / sizeof all[0]);
    const int sample_count =
        one_budget || (narrow && !budgets) ? 1 : (int)(sizeof all_samples / sizeof all_samples[0]);
    double best_rate = 0.0;
    char best_name[64] = "";
    int status = 0;
    row baseline;
    memset(&baseline, 0, sizeof baseline);

    const uint64_t count = (uint64_t)s->compared * (uint64_t)s->model.vocab_size;
    double *dense =
        count <= SIZE_MAX / sizeof *dense ? (double *)malloc((size_t)count * sizeof *dense) : NULL;
    if (!dense) return llama_fail(e, "no memory for %d predictions", (int)s->compared);
    santa_options o = { 0 };
    o.num_threads = c->threads;
    printf("\nThe text's next %d tokens, fed as they are, against dense; mean of %d seed%s:\n\n",
           (int)s->compared, (int)c->compare_seeds, c->compare_seeds > 1 ? "s" : "");
    printf("method      draws   KL, nats  top-1 same %%  NLL, nats  V rows read %%  tokens/s\n");
    for (int64_t run = 0; run < c->compare_seeds && status == 0; run++) /* timed as long as the others */
        status = measure(s, &o, dense, 1, &baseline, e);
    if (status == 0) print_row("dense", "-", &baseline);
    for (int i = 0; i < method_count && status == 0; i++)
        for (int j = 0; j < sample_count && status == 0; j++) {
            config one = *c;
            char draws[32] = "-";
            if (!narrow) one.method = all[i];
            if (!one_budget) one.samples = all_samples[j];
            if (!narrow || budgets) snprintf(draws, sizeof draws, "%d", (int)one.samples);
            o = attention_options(&one);
            const santa_status why = llama_check(&s->state, &o);
            /* has none */
            if (!narrow && why == SANTA_ERR_PROXY_METHOD) break;
            row r;
            memset(&r, 0, sizeof r);
            for (int64_t run = 0; run < c->compare_seeds && status == 0; run++, one.seed++) {
                o = attention_options(&one);
                status = measure(s, &o, dense, 0, &r, e);
            }
            if (status != 0) break;
            const char *name = choice_name(methods, one.method);
            print_row(name, draws, &r);
            if (r.agree >= 0.95 * r.tokens && r.tokens / r.seconds > best_rate) {
                best_rate = r.tokens / r.seconds;
                snprintf(best_name, sizeof best_name, "%s %s", name, draws);
            }
        }
    free(dense);
    if (status != 0) return status;
    if (c->scores != SANTA_SCORES_EXACT)
        printf("\nAll rows but the first: scores %s.\n", choice_name(score_methods, c->scores));
    printf("\nAttention is %.0f %% of a token's time with dense; the rest is the same for all.\n",
           percent(baseline.attention_seconds, baseline.seconds));
    if (given(c, DEMO)) return 0;                 /* too few keys for a verdict on time: others follow */
    const double speedup = best_rate * baseline.seconds / baseline.tokens;
    if (best_rate <= 0.0)
        printf("No row has dense's best token in 95 %% of the places.\n");
    else if (speedup < 1.05)
        printf("No row that has dense's best token in 95 %% of the places is clearly faster than\n"
               "dense: with at most %d keys sampling does not pay (see >>when in santa.h).\n",
               (int)(s->prompt + s->compared - 1));
    else
        printf("Of the rows with dense's best token in 95 %% of the places, the fastest (%s)\n"
               "makes %.2f times dense's tokens per second.\n", best_name, speedup);
    return 0;
}

/* ------------------------------------------------------------ demo */

/* The prompt's last lines. Tokens keep every byte of the text, so their lengths tell where the
   prompt ends in it; those of a tokenizer whose bytes have other names may not. */
static void print_prompt_end(const session *s, const char *text, int lines) {
    const int64_t length = (int64_t)strlen(text);
    int64_t end = 0, begin;
    for (int64_t i = 1; i < s->prompt; i++)
        end += llama_decode_token(&s->tokenizer, s->token[i - 1], s->token[i]).length;
    if (end > length) end = length;
    for (begin = end; begin > 0; begin--)
        if (text[begin - 1] == '\n' && begin < end && --lines == 0) break;
    printf("         it ends:\n\n");
    wrapped lines_of = { "  | ", 0, 0, "" };
    for (int64_t i = begin; i < end; i++) wrap(&lines_of, text[i]);
    end_word(&lines_of);
    if (end > 0 && text[end - 1] != '\n') printf("\n");
    printf("\n");
}

static int run_demo(session *s, const config *c, llama_error *e) {
    santa_options dense = { 0 }, sampled = attention_options(c);
    dense.num_threads = c->threads;
    int64_t count[2] = { 0, 0 }, same = 0;
    int32_t *generated = (int32_t *)malloc(2 * (size_t)s->steps * sizeof *generated);
    if (!generated) return llama_fail(e, "no memory for %d tokens", (int)s->steps);
    print_prompt_end(s, s->text ? s->text : c->prompt, 4);
    int status = prefill(s, c, e);
    for (int run = 0; run < 2 && status == 0; run++) {
        char draws[64] = "";
        if (run == 1 && has_draws(c->method))
            snprintf(draws, sizeof draws, ", %d draws a head", (int)c->samples);
        printf("\n--- %s%s: continued at temperature %g, seed %lld\n\n",
               run == 0 ? "dense" : choice_name(methods, c->method), draws, c->temperature,
               (long long)c->seed);
        status = generate(s, c, run == 0 ? &dense : &sampled, generated + run * s->steps, &count[run], e);
    }
    if (status == 0) {
        while (same < count[0] && same < count[1] && generated[same] == generated[s->steps + same]) same++;
        printf("\nBoth texts use the same random number for the same step: ");
        if (same == count[0] && same == count[1]) printf("all tokens are equal.\n");
        else printf("the first %d tokens\nare equal, then each goes on from its own words.\n", (int)same);
        status = run_table(s, c, e);
    }
    free(generated);
    return status;
}

int main(int argc, char **argv) {
    config c;
    session s;
    llama_error error = { "" };
    memset(&c, 0, sizeof c);
    memset(&s, 0, sizeof s);
    c.model = "examples/model/model.bin";
    c.tokenizer = "examples/model/tokenizer.bin";
    c.steps = 200;
    c.dense_layers = 1;
    c.temperature = 0.7;
    c.seed = 1;
    c.threads = 1;
    c.compare_tokens = 128;
    c.compare_seeds = 1;
    int status = parse_arguments(&c, argc, argv, &error);
    if (status == 0 && given(&c, HELP)) { print_help(stdout); return 0; }
    if (status == 0) status = open_session(&s, &c, &error);
    if (status == 0 && given(&c, DEMO)) status = run_demo(&s, &c, &error);
    else if (status == 0 && given(&c, COMPARE))
        status = prefill(&s, &c, &error) != 0 ? -1 : run_table(&s, &c, &error);
    else if (status == 0) status = run_text(&s, &c, &error);
    close_session(&s);
    if (status == 0 && (fflush(stdout) != 0 || ferror(stdout)))
        status = llama_fail(&error, "cannot write the output");
    if (status != 0) fprintf(stderr, "decode: %s\n", error.text);
    return status == 0 ? 0 : 1;
}
