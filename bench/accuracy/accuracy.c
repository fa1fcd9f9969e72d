/* What sampled attention costs in accuracy: a small long-context model reads long prompts with
   dense attention and answers with every method and budget; tables after those of the SANTA and
   vAttention papers. See --help, README.md beside it.
   Build: cc -O2 bench/accuracy/accuracy.c -o accuracy -lm -pthread

   Every body of text is read once; its queries, and all methods on each of them, continue from
   the same cache. The last token of a query is the first step of decoding, so that all tokens
   of an answer come from the method under test. One body is one task for a thread, and results
   are kept by body: they do not depend on the number of threads. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L                             /* clock_gettime, isatty, fileno, sysconf */
#endif
#define SANTA_IMPLEMENTATION
#include "../../santa.h"
#include "../../examples/llama.h"
#include "../../examples/layer_budgets.h"
#define SAAP_ALLOC(size) LLAMA_ALLOC(size) /* where attention reads them */
#define SAAP_FREE(p)     LLAMA_FREE(p)
#include "../../examples/saap.h"
#include "tasks.h"
#include <assert.h>
#include <pthread.h>
#include <unistd.h>

enum { TABLES = 8, MAX_THREADS = 256, MAX_VARIANTS = 512, MAX_ROUTERS = 2, MAX_BUCKETS = 1024,
       SENSITIVITY_SAMPLES = 64, SEARCH_BODIES = 8, SEARCH_QUESTIONS = 16, COVERAGE_DRAWS = 2,
       FLASH_DRAWS = 8, BAR_DRAWS = 64, BAR_SAMPLES = 128, TILE = 256, TILE_SAMPLES = 512,
       PROBE_PREFILLS = 4,               /* that table 8's look takes of each alpha, about */
       ENOUGH_BODIES = 8 };              /* fewer say too little for an interval */

static const int64_t budgets[] = { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048 };
static const int64_t variance_budgets[] = { 16, 32, 64, 128, 256, 512, 1024 };
static const double  epsilons[] = { 0.025, 0.05, 0.1, 0.2, 0.3 };
static const double  top_ps[] = { 0.5, 0.7, 0.8, 0.9, 0.95, 0.99 };

#define COUNT(array) ((int)(sizeof (array) / sizeof (array)[0]))

static const char *const table_text[TABLES + 1] = {
    "",
    "accuracy by task, method and budget",
    "vAttention: density, accuracy and error by epsilon; coverage",
    "Bernoulli scores: accuracy and features read; with SANTA",
    "same-state fidelity: variance, distinct keys, flash by tiles, effective keys",
    "layers: one layer at one draw; per-layer budgets",
    "a copy of K in 4 or 2 bits: accuracy and error against bytes",
    "SAAP, keys in buckets: accuracy and error against keys and bytes read",
    "sparse prefill, SampleAttention: accuracy by alpha; what is kept, and the error, by length",
};

#define BIT(i) (1u << (i))

/* The methods whose rows a table has beside dense's; of 0 the rows are of other things. */
static const unsigned table_methods[TABLES + 1] = {
    0,
    BIT(SANTA_IID) | BIT(SANTA_STRAT) | BIT(SANTA_SYS) | BIT(SANTA_PROP) | BIT(SANTA_FLASH)
        | BIT(SANTA_TOP_K) | BIT(SANTA_TOP_P),
    BIT(SANTA_VATTENTION),
    0, 0, 0,
    BIT(SANTA_SYS) | BIT(SANTA_TOP_K) | BIT(SANTA_VATTENTION) | BIT(SANTA_PPS),
    BIT(SANTA_SYS) | BIT(SANTA_TOP_K) | BIT(SANTA_PPS) | BIT(SANTA_SAAP),
    BIT(SANTA_SAMPLE_ATTENTION),
};

static const char *const method_names[] = {
#define METHOD_NAME(method, name, traits, capacity, needs, draw, phases) name,
    SANTA_METHOD_LIST(METHOD_NAME)
#undef METHOD_NAME
};

/* ------------------------------------------------------------ command line */

typedef struct config {
    const char *model, *csv, *state, *buckets, *prefill;
    int64_t bodies, length, queries, threads, seed, steps, samples;
    double alpha;                                           /* alone in table 8; 0: all */
    unsigned tables, tasks, methods;                        /* bit sets, bit 0: table 1 */
    unsigned given;                                         /* bit i: numbers[i] */
    int list, help;
} config;

/* table: the only one that reads the number, or 0. */
static const struct { const char *name; size_t field; long long low, high; int table; const char *help; }
numbers[] = {
    { "--bodies",  offsetof(config, bodies),  1, 1 << 20, 0, "N  texts to read  [24]" },
    { "--length",  offsetof(config, length),  512, 1 << 24, 0,
      "L  tokens of context: a text, a query and its answer  [8192]" },
    { "--queries", offsetof(config, queries), 1, 64, 0,
      "Q  per text and task, where there are as many; of TEXT one  [4]" },
    { "--threads", offsetof(config, threads), 1, MAX_THREADS, 0, "T  [all cores]" },
    { "--seed",    offsetof(config, seed),    0, 1 << 30, 0, "N  of the texts and of the draws  [1]" },
    { "--steps",   offsetof(config, steps),   1, 1 << 20, 5,
      "N  of the search for per-layer budgets in table 5  [40]" },
    { "--samples", offsetof(config, samples), 1, 1 << 16, 5,
      "S  draws per layer, on average, in that search  [4]" },
};

static const char *const table_names[TABLES] = { "1", "2", "3", "4", "5", "6", "7", "8" };

/* The names in the set with commas between them, at most `size` bytes. */
static const char *name_set(unsigned set, const char *const *names, int count, char *text, size_t size) {
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < count; i++)
        if ((set & BIT(i)) && n < size)
            n += (size_t)snprintf(text + n, size - n, "%s%s", n ? "," : "", names[i]);
    return text;
}

static void print_help(void) {
    char text[100];
    printf("accuracy: what sampled attention costs in accuracy\n\n"
           "  --tables LIST    of the tables below, as in 1,4  [1, or what the options below ask for]\n"
           "  --tasks LIST     of QA1,QA2,NIAH,FWE,TEXT  [all]\n"
           "  --methods LIST   rows to keep beside dense's; --method is the same  [all]\n");
    for (int i = 1; i <= TABLES; i++)
        if (table_methods[i])
            printf("                   table %d: %s%s\n", i,
                   name_set(table_methods[i], method_names, COUNT(method_names), text, sizeof text),
                   i == 1 ? "; dense alone" : "");
    printf("                   Without --tables, of each method the first table that has it.\n");
    for (int i = 0; i < COUNT(numbers); i++) printf("  %-9s %s\n", numbers[i].name, numbers[i].help);
    printf("  --model FILE     [bench/accuracy/longctx.bin]\n"
           "  --prefill KIND   of the text: dense, as in all tables but 8, or sample: table 8\n"
           "  --alpha A        of table 8 the rows of this alpha  [0.5, 0.8, 0.9 and 0.95]\n"
           "  --buckets LIST   of at most %d .saap files, for saap in table 7\n"
           "                   [bench/accuracy/longctx-c64.saap,bench/accuracy/longctx-c256.saap]\n"
           "  --csv FILE       all numbers, a line each\n"
           "  --state FILE     of the search in table 5: goes on where it was interrupted\n"
           "  --list           the rows that the tables would have, and their tasks\n\n",
           (int)MAX_ROUTERS);
    for (int i = 1; i <= TABLES; i++) printf("  table %d: %s\n", i, table_text[i]);
}

/* "a,c" among the names to the set {0, 2}. */
static int parse_set(const char *option, const char *text, const char *const *names, int count,
                     unsigned *set, llama_error *e) {
    *set = 0;
    for (const char *at = text; *at; ) {
        const size_t n = strcspn(at, ",");
        int i = 0;
        while (i < count && (strlen(names[i]) != n || strncmp(names[i], at, n) != 0)) i++;
        if (i == count)
            return llama_fail(e, "%s knows no '%.*s': --help lists what it knows", option, (int)n, at);
        *set |= BIT(i);
        at += n + (at[n] == ',');
    }
    return *set ? 0 : llama_fail(e, "%s wants a list", option);
}

static int parse_number(config *c, int i, const char *text, llama_error *e) {
    char *end = NULL;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    const int64_t stored = value;
    if (end == text || *end != 0 || errno != 0 || value < numbers[i].low || value > numbers[i].high)
        return llama_fail(e, "%s wants a number from %lld to %lld, not '%s'", numbers[i].name,
                          numbers[i].low, numbers[i].high, text);
    memcpy((char *)c + numbers[i].field, &stored, sizeof stored);
    c->given |= BIT(i);
    return 0;
}

static int parse_alpha(config *c, const char *text, llama_error *e) {
    char *end = NULL;
    c->alpha = strtod(text, &end);
    if (end == text || *end != 0 || !(c->alpha > 0.0 && c->alpha <= 1.0))
        return llama_fail(e, "--alpha wants a number above 0 and up to 1, not '%s'", text);
    return 0;
}

static int has_table(const config *c, int table) { return (c->tables & BIT(table - 1)) != 0; }

/* Which tables run where --tables is not given; whether they have what --prefill and --alpha
   ask for. */
static int check_prefill(config *c, llama_error *e) {
    const int dense = c->prefill && !strcmp(c->prefill, "dense"),
              sample = c->prefill && !strcmp(c->prefill, "sample");
    if (c->prefill && !dense && !sample)
        return llama_fail(e, "--prefill wants dense or sample, not '%s'", c->prefill);
    if (dense && c->alpha > 0.0) return llama_fail(e, "--alpha needs --prefill sample");
    if (!c->tables && (sample || c->alpha > 0.0)) c->tables = BIT(8 - 1);
    if (c->alpha > 0.0 && !has_table(c, 8)) return llama_fail(e, "--alpha is for table 8");
    if (sample && c->tables != BIT(8 - 1))
        return llama_fail(e, "--prefill sample is for table 8: in the others prefill is dense");
    return 0;
}

/* The same for --methods: each has its rows in one of the tables, each table has rows of
   one. */
static int check_methods(config *c, llama_error *e) {
    const unsigned named = c->methods & ~BIT(SANTA_DENSE);
    const int any_table = !c->tables;
    unsigned choosing = 0;
    char chosen[40], others[100];
    if (!c->methods) return 0;
    if (any_table && !named) c->tables = BIT(1 - 1);
    for (int m = 0; m < COUNT(method_names); m++) {
        unsigned tables = 0;
        for (int t = 1; t <= TABLES; t++)
            if (table_methods[t] & named & BIT(m)) tables |= BIT(t - 1);
        if (any_table) c->tables |= tables & (~tables + 1u);             /* the first of them */
        if (tables && !(tables & c->tables))
            return llama_fail(e, "--methods: %s is not in table %s, but in %s", method_names[m],
                              name_set(c->tables, table_names, TABLES, chosen, sizeof chosen),
                              name_set(tables, table_names, TABLES, others, sizeof others));
    }
    for (int t = 1; t <= TABLES; t++) if (table_methods[t]) choosing |= BIT(t - 1);
    for (int t = 1; t <= TABLES; t++) {
        if (!has_table(c, t) || (table_methods[t] & named) || (t == 1 && !named)) continue;
        if (!table_methods[t])
            return llama_fail(e, "--methods is for table %s, not for %d",
                              name_set(choosing, table_names, TABLES, chosen, sizeof chosen), t);
        if (!named)
            return llama_fail(e, "--methods dense is for table 1: the others have that row, too");
        return llama_fail(e, "--methods: table %d has none of these, but %s", t,
                          name_set(table_methods[t], method_names, COUNT(method_names), others,
                                   sizeof others));
    }
    return 0;
}

/* An option that would be ignored is an error. */
static int check_use(config *c, llama_error *e) {
    if (check_prefill(c, e) != 0 || check_methods(c, e) != 0) return -1;
    if (!c->tables) c->tables = BIT(1 - 1);
    if (!c->methods) c->methods = ~0u;
    if (c->prefill && c->tables & BIT(8 - 1) && !strcmp(c->prefill, "dense"))
        return llama_fail(e, "--prefill dense is not for table 8, whose rows are sparse");
    for (int i = 0; i < COUNT(numbers); i++) {
        if (!(c->given & BIT(i))) continue;
        if (numbers[i].table && !has_table(c, numbers[i].table))
            return llama_fail(e, "%s is for table %d", numbers[i].name, numbers[i].table);
        if (numbers[i].field == offsetof(config, queries) && c->tasks == BIT(TASKS_PLAIN))
            return llama_fail(e, "--queries is not for TEXT, of which a text has one");
    }
    if (c->state && !has_table(c, 5)) return llama_fail(e, "--state is for table 5");
    if (c->buckets && !(has_table(c, 7) && (c->methods & BIT(SANTA_SAAP))))
        return llama_fail(e, "--buckets is for saap in table 7");
    if (!c->buckets) c->buckets = "bench/accuracy/longctx-c64.saap,bench/accuracy/longctx-c256.saap";
    return 0;
}

static int parse_arguments(config *c, int argc, char **argv, llama_error *e) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        int n = 0;
        if (!strcmp(name, "--list")) { c->list = 1; continue; }
        if (!strcmp(name, "--help")) { c->help = 1; continue; }
        while (n < COUNT(numbers) && strcmp(name, numbers[n].name) != 0) n++;
        const int text = !strcmp(name, "--model") || !strcmp(name, "--csv") || !strcmp(name, "--state")
                      || !strcmp(name, "--buckets") || !strcmp(name, "--prefill");
        const int methods = !strcmp(name, "--methods") || !strcmp(name, "--method"),
                  alpha = !strcmp(name, "--alpha");
        const int list = !strcmp(name, "--tables") || !strcmp(name, "--tasks") || methods;
        if (n == COUNT(numbers) && !text && !list && !alpha)
            return llama_fail(e, "unknown option %s: --help lists them", name);
        if (!value) return llama_fail(e, "%s wants a value", name);
        i++;
        if (!strcmp(name, "--model")) c->model = value;
        else if (!strcmp(name, "--csv")) c->csv = value;
        else if (!strcmp(name, "--state")) c->state = value;
        else if (!strcmp(name, "--buckets")) c->buckets = value;
        else if (!strcmp(name, "--prefill")) c->prefill = value;
        else if (!strcmp(name, "--tables")) {
            if (parse_set(name, value, table_names, TABLES, &c->tables, e) != 0) return -1;
        } else if (!strcmp(name, "--tasks")) {
            if (parse_set(name, value, tasks_task_name, TASKS_COUNT, &c->tasks, e) != 0) return -1;
        } else if (methods) {
            if (parse_set(name, value, method_names, COUNT(method_names), &c->methods, e) != 0) return -1;
        } else if (alpha) {
            if (parse_alpha(c, value, e) != 0) return -1;
        } else if (parse_number(c, n, value, e) != 0) return -1;
    }
    return c->help ? 0 : check_use(c, e);
}

/* ------------------------------------------------------------ variants */

/* What sends queries to the buckets of a .saap file in table 7: its classifier, q . centroid,
   an order of buckets that no query changes, a random one for each layer and KV head, or what
   mass they really have, which takes all of K to know. */
enum route { NO_ROUTE, CLASSIFIER, INNER_PRODUCT, RANDOM_ORDER, ORACLE, ROUTES };

/* One row of a table: a way to attend while answering. */
typedef struct variant {
    int     table;                                          /* 0: dense, which every table has */
    char    method[32], budget[32];
    santa_options options;
    int     proxy_bits; /* of the copy of K, where the options want one */
    int     route, file; /* of SANTA_SAAP; NO_ROUTE: it needs none */
    int     sparse;     /* the text's prefill is not dense: alpha of the layers from dense_layers on */
    int     dense_layers, per_head, fallback;
    double  alpha;
    int     per_layer;  /* num_samples of each layer is layer_samples */
    int64_t layer_samples[LAYER_BUDGETS_MAX_LAYERS];
} variant;

/* What is summed over the queries of a body, for each variant and task. */
enum metric { SCORE, NLL, PREDICTED, QUERIES, KEYS, K_GROUP, K_HEAD, V_GROUP, V_HEAD, COPIED, ROWS, RESCUED,
              REDONE, FAR, VISITED, HEADS, L2, SQUARE, COSINE, TOP_1, MASS, MASSES,
              KEPT, PREFILLS, SECONDS, METRICS };
typedef struct cell { double sum[METRICS]; } cell;

/* Means with names, in order of appearance: the cells of the tables that are no table of
   variants. */
typedef struct entry { int table; char section[64], row[64], column[24]; double sum, count; } entry;
typedef struct measures { entry *data; int count, capacity; } measures;

typedef struct run {
    config c;
    tasks_config text;
    int32_t  queries_of[TASKS_COUNT];                       /* asked per body */
    llama_model model;
    saap_file files[MAX_ROUTERS];                           /* of table 7 */
    int      file_count;
    void    *random_order;                                  /* zeros and numbers for RANDOM_ORDER */
    variant *variants;
    int      variant_count;
    cell    *cells;                                         /* [bodies, variants, TASKS_COUNT] */
    measures *means;                                        /* [bodies] */
    pthread_mutex_t mutex;                                  /* of what follows */
    double   done, all, start;                              /* progress, in steps of decoding */
    double   prefill;                                       /* seconds, of all texts */
    int      shown, failed;
    llama_error error;
} run;

static int fail(run *r, const char *text) {
    pthread_mutex_lock(&r->mutex);
    if (!r->failed) memmove(r->error.text, text, strlen(text) + 1);
    r->failed = 1;
    pthread_mutex_unlock(&r->mutex);
    return -1;
}

static variant *add_variant(run *r, int table, const char *method, const char *budget, santa_options o) {
    variant *v = &r->variants[r->variant_count++];
    assert(r->variant_count <= MAX_VARIANTS);
    memset(v, 0, sizeof *v);
    v->table = table;
    snprintf(v->method, sizeof v->method, "%s", method);
    snprintf(v->budget, sizeof v->budget, "%s", budget);
    v->options = o;
    /* Each its own draws, also where two methods would return the same rows for the same seed
       (sys and prop). */
    v->options.seed =
        tasks_mix((uint64_t)r->c.seed * 8191u + (uint64_t)o.method * 64u + (uint64_t)o.scores);
    return v;
}

static santa_options with_samples(santa_method method, int64_t samples) {
    santa_options o = llama_dense();
    o.method = method;
    o.num_samples = samples;
    return o;
}

static void add_table_1(run *r) {
    char text[32];
    for (int m = SANTA_IID; m <= SANTA_TOP_K; m++)
        for (int i = 0; i < COUNT(budgets); i++) {
            snprintf(text, sizeof text, "%d", (int)budgets[i]);
            add_variant(r, 1, santa_method_name((santa_method)m), text,
                        with_samples((santa_method)m, budgets[i]));
        }
    for (int i = 0; i < COUNT(top_ps); i++) {
        santa_options o = with_samples(SANTA_TOP_P, 0);
        o.top_p = top_ps[i];
        snprintf(text, sizeof text, "p %g", top_ps[i]);
        add_variant(r, 1, santa_method_name(SANTA_TOP_P), text, o);
    }
}

/* Coverage varies these; the accuracy rows take the first of bound and delta. */
static santa_options vattention(int full, int heavy, double epsilon, double delta, santa_bound bound) {
    santa_options o = with_samples(SANTA_VATTENTION, 0);
    o.vattention.guarantee = full ? SANTA_GUARANTEE_FULL : SANTA_GUARANTEE_DENOMINATOR;
    o.vattention.heavy_tokens = heavy ? 0 : SANTA_NONE;
    o.vattention.epsilon = epsilon;
    o.vattention.delta = delta;
    o.vattention.bound = bound;
    return o;
}

static void add_table_2(run *r) {
    char method[32], budget[32];
    for (int full = 0; full < 2; full++)
        for (int heavy = 1; heavy >= 0; heavy--)
            for (int i = 0; i < COUNT(epsilons); i++) {
                snprintf(method, sizeof method, "%s, %s", full ? "full" : "denominator",
                         heavy ? "oracle" : "no heavy");
                snprintf(budget, sizeof budget, "eps %g", epsilons[i]);
                add_variant(r, 2, method, budget,
                            vattention(full, heavy, epsilons[i], 0.05, SANTA_BOUND_CLT));
            }
}

static void add_table_3(run *r) {
    static const struct { santa_scores_method scores; const char *name; } kinds[] = {
        { SANTA_SCORES_BERNOULLI_IID, "head, iid" }, { SANTA_SCORES_BERNOULLI_STRAT, "head, strat" },
        { SANTA_SCORES_GROUP_STRAT, "group, strat" },
    };
    char method[32], budget[32];
    for (int k = 0; k < COUNT(kinds); k++)
        for (int64_t b = 1; b <= 16; b *= 2) {
            santa_options o = llama_dense();
            o.scores = kinds[k].scores;
            o.bernoulli_draws = b;
            snprintf(budget, sizeof budget, "B %d", (int)b);
            add_variant(r, 3, kinds[k].name, budget, o);
        }
    for (int64_t b = 4; b <= 16; b *= 2)
        for (int64_t s = 32; s <= 512; s *= 4) {
            santa_options o = with_samples(SANTA_SYS, s);
            o.scores = SANTA_SCORES_GROUP_STRAT;
            o.bernoulli_draws = b;
            snprintf(method, sizeof method, "group, strat + sys");
            snprintf(budget, sizeof budget, "B %d, S %d", (int)b, (int)s);
            add_variant(r, 3, method, budget, o);
        }
}

/* Each method with exact scores, then from a copy. */
static void add_table_6(run *r) {
    static const santa_method method[] = { SANTA_SYS, SANTA_PPS, SANTA_TOP_K, SANTA_VATTENTION };
    static const int64_t samples[] = { 16, 64, 128, 512 };
    char name[32], budget[32];
    for (int k = 0; k < COUNT(method); k++)
        for (int bits = 0; bits <= 4; bits += 2)
            for (int i = 0; i < COUNT(samples); i++) {
                santa_options o = with_samples(method[k], samples[i]);
                snprintf(budget, sizeof budget, "%d", (int)samples[i]);
                if (method[k] == SANTA_VATTENTION) { /* as many: half of them heavy, half at random */
                    o.vattention.sink_tokens = 4;
                    o.vattention.local_tokens = 64;
                    o.vattention.heavy_tokens = samples[i] / 2;
                    o.vattention.base_samples = samples[i] / 2;
                    o.vattention.epsilon = o.vattention.delta = 0.999999;
                }
                snprintf(name, sizeof name, "%s%s", santa_method_name(method[k]),
                         bits == 0 ? "" : bits == 2 ? ", 2 bits" : ", 4 bits");
                if (bits) o.scores = SANTA_SCORES_PROXY;
                add_variant(r, 6, name, budget, o)->proxy_bits = bits;
            }
}

static santa_saap_options *add_routed(run *r, const char *name, const char *budget, int route, int file,
                                      int64_t probes, int64_t samples, int64_t window) {
    santa_options o = with_samples(SANTA_SAAP, samples);
    o.saap.num_probes = probes;
    o.saap.local_tokens = window;
    o.saap.sink_tokens = samples == SANTA_NONE ? 1 : 0;
    variant *v = add_variant(r, 7, name, budget, o);
    v->route = route;
    v->file = file;
    return &v->options.saap;
}

/* Buckets read whole, keys drawn, both, by the routers of one file. */
static void add_routers(run *r, int f) {
    static const int64_t probes[] = { 4, 16, 32, 64 }, samples[] = { 64, 128, 256, 512, 1024, 2048 };
    static const char *const names[ROUTES] = { "", "cl.", "i.p.", "random", "oracle" };
    const int buckets = (int)r->files[f].num_buckets;
    char name[32], budget[32];
    for (int route = CLASSIFIER; route <= (f == 0 ? ORACLE : INNER_PRODUCT); route++)
        for (int i = 0; i < COUNT(probes) && probes[i] < buckets; i++) {
            snprintf(name, sizeof name, "%s %d, whole", names[route], buckets);
            snprintf(budget, sizeof budget, "l %d", (int)probes[i]);
            add_routed(r, name, budget, route, f, probes[i], SANTA_NONE, 512);
        }
    for (int route = CLASSIFIER; route <= (f == 0 ? ORACLE : INNER_PRODUCT); route++)
        for (int wide = 0; wide <= (route == CLASSIFIER); wide++)
            for (int i = 1; i < COUNT(samples) && route != RANDOM_ORDER; i++) {
                snprintf(name, sizeof name, "%s %d, drawn%s", names[route], buckets, wide ? ", w 512" : "");
                snprintf(budget, sizeof budget, "%d", (int)samples[i]);
                add_routed(r, name, budget, route, f, SANTA_NONE, samples[i], wide ? 512 : 64);
            }
    for (int route = CLASSIFIER; route <= INNER_PRODUCT; route++)
        for (int k = 0; k < 4; k++)                         /* 1 / 64 .. 1 / 8 of the buckets */
            for (int i = 0; i < COUNT(samples) - 1; i++) {
                const int l = (buckets < 64 ? 1 : buckets / 64) << k;
                if (route == INNER_PRODUCT && i != k + 1) continue;
                snprintf(name, sizeof name, "%s %d, both", names[route], buckets);
                snprintf(budget, sizeof budget, "l %d, %d", l, (int)samples[i]);
                add_routed(r, name, budget, route, f, l, samples[i], 64);
            }
}

/* Of some of the buckets the copy of K alone, keys drawn from these and from the others. */
static void add_scans(run *r, int f) {
    static const int64_t samples[] = { 64, 128, 256, 512, 1024, 2048 };
    const int buckets = (int)r->files[f].num_buckets;
    char name[32], budget[32];
    for (int bits = 4; bits >= 2; bits -= 2)
        for (int part = bits == 4 ? 8 : 4; part >= (bits == 4 ? 2 : 4); part /= 2)
            for (int i = 0; i < COUNT(samples); i++) {
                snprintf(name, sizeof name, "cl. %d, copy, %d bits", buckets, bits);
                snprintf(budget, sizeof budget, "l %d, %d", buckets / part, (int)samples[i]);
                add_routed(r, name, budget, CLASSIFIER, f, buckets / part, samples[i], 64);
                variant *v = &r->variants[r->variant_count - 1];
                v->options.scores = SANTA_SCORES_PROXY;
                v->proxy_bits = bits;
            }
}

static void add_table_7(run *r) {
    static const struct { santa_method method; int bits; int64_t samples; } others[] = {
        { SANTA_SYS, 0, 128 }, { SANTA_PPS, 4, 16 }, { SANTA_PPS, 4, 128 }, { SANTA_PPS, 4, 512 },
        { SANTA_PPS, 2, 128 }, { SANTA_SYS, 2, 16 }, { SANTA_SYS, 2, 64 },  { SANTA_SYS, 2, 128 },
        { SANTA_SYS, 2, 512 }, { SANTA_TOP_K, 0, 512 },
    };
    static const int64_t windows[] = { 64, 512, 2047 };
    static const struct { char what; double value; } settings[] = {
        { 'u', 0.01 }, { 'u', 0.03 }, { 'u', 0.3 }, { 'w', 0 }, { 'w', 128 }, { 'w', 256 }, { 'w', 512 },
        { 's', 0 },    { 's', 1 },    { 's', 64 },
    };
    char name[32], budget[32];
    for (int i = 0; i < COUNT(others); i++) {
        santa_options o = with_samples(others[i].method, others[i].samples);
        snprintf(name, sizeof name, "%s%s", santa_method_name(others[i].method),
                 others[i].bits == 0 ? "" : others[i].bits == 2 ? ", 2 bits" : ", 4 bits");
        snprintf(budget, sizeof budget, "%d", (int)others[i].samples);
        if (others[i].bits) o.scores = SANTA_SCORES_PROXY;
        add_variant(r, 7, name, budget, o)->proxy_bits = others[i].bits;
    }
    for (int i = 0; i < COUNT(windows); i++) {
        snprintf(budget, sizeof budget, "w %d", (int)windows[i]);
        add_routed(r, "window alone", budget, NO_ROUTE, 0, SANTA_NONE, SANTA_NONE, windows[i]);
    }
    for (int64_t samples = 128; samples <= 2048; samples *= 2) {
        snprintf(budget, sizeof budget, "%d", (int)samples);
        add_routed(r, "uniform, drawn", budget, NO_ROUTE, 0, SANTA_NONE, samples, 64)->uniform_share = 1.0;
    }
    for (int f = 0; f < r->file_count; f++) add_routers(r, f);
    for (int f = 0; f < r->file_count; f++) add_scans(r, f);
    for (int both = 0; both < 2; both++)                    /* the defaults, one by one */
        for (int i = 0; i < COUNT(settings); i++) {
            const int64_t count = settings[i].value > 0.0 ? (int64_t)settings[i].value : SANTA_NONE;
            snprintf(name, sizeof name, "cl. %d, %s, %c %g", (int)r->files[0].num_buckets,
                     both ? "both" : "drawn", settings[i].what, settings[i].value);
            santa_saap_options *o = add_routed(r, name, both ? "l 2, 256" : "512", CLASSIFIER, 0,
                                               both ? 2 : SANTA_NONE, both ? 256 : 512, 64);
            if (settings[i].what == 'u') o->uniform_share = settings[i].value;
            else if (settings[i].what == 'w') o->local_tokens = count;
            else o->sink_tokens = count;
        }
}

/* Alphas of table 8. */
static int alpha_count(const run *r) { return r->c.alpha > 0.0 ? 1 : 4; }
static double alpha_of(const run *r, int i) {
    static const double all[] = { 0.5, 0.8, 0.9, 0.95 };
    return r->c.alpha > 0.0 ? r->c.alpha : all[i];
}

/* The text's prefill is sparse, its questions and answers are exact. */
static void add_table_8(run *r) {
    static const struct { const char *name; int dense_layers, per_head, fallback; } kinds[] = {
        { "all layers", 0, 0, 0 }, { "layer 0 dense", 1, 0, 0 }, { "the same, per head", 1, 1, 0 },
        { "the same, defaults", 1, 0, 1 },
    };
    char budget[32];
    for (int k = 0; k < COUNT(kinds); k++)
        for (int i = 0; i < alpha_count(r); i++) {
            snprintf(budget, sizeof budget, "alpha %g", alpha_of(r, i));
            variant *v = add_variant(r, 8, kinds[k].name, budget, llama_dense());
            v->sparse = 1;
            v->alpha = alpha_of(r, i);
            v->dense_layers = kinds[k].dense_layers;
            v->per_head = kinds[k].per_head;
            v->fallback = kinds[k].fallback;
        }
}

static santa_options sparse_options(double alpha, int per_head, int fallback) {
    santa_options o = llama_dense();
    o.method = SANTA_SAMPLE_ATTENTION;
    o.sample_attention.alpha_columns = o.sample_attention.alpha_slashes = alpha;
    o.sample_attention.per_head = per_head;
    if (!fallback) o.sample_attention.dense_above = SANTA_NONE;
    return o;
}

static variant *add_per_layer(run *r, const char *method, const char *budget, const int64_t *samples) {
    variant *v = add_variant(r, 5, method, budget, with_samples(SANTA_SYS, 1));
    v->per_layer = 1;
    memcpy(v->layer_samples, samples, (size_t)r->model.n_layers * sizeof *samples);
    return v;
}

static void add_sensitivity(run *r) {
    int64_t samples[LAYER_BUDGETS_MAX_LAYERS];
    char method[32], budget[32];
    snprintf(budget, sizeof budget, "others %d", (int)SENSITIVITY_SAMPLES);
    for (int32_t one = -1; one < r->model.n_layers; one++) {
        for (int32_t i = 0; i < r->model.n_layers; i++) samples[i] = i == one ? 1 : SENSITIVITY_SAMPLES;
        snprintf(method, sizeof method, one < 0 ? "no layer at 1" : "layer %d at 1", (int)one);
        add_per_layer(r, method, budget, samples);
    }
}

/* ------------------------------------------------------------ measures */

static entry *find_entry(measures *m, int table, const char *section, const char *row, const char *column) {
    for (int i = 0; i < m->count; i++) {
        entry *x = &m->data[i];
        if (!strcmp(x->section, section) && !strcmp(x->row, row) && !strcmp(x->column, column)) return x;
    }
    if (m->count == m->capacity) {
        m->capacity = 2 * m->capacity + 256;
        m->data = (entry *)realloc(m->data, (size_t)m->capacity * sizeof *m->data);
        if (!m->data) { fprintf(stderr, "accuracy: out of memory\n"); exit(1); }
    }
    entry *x = &m->data[m->count++];
    memset(x, 0, sizeof *x);
    x->table = table;
    snprintf(x->section, sizeof x->section, "%s", section);
    snprintf(x->row, sizeof x->row, "%s", row);
    snprintf(x->column, sizeof x->column, "%s", column);
    return x;
}

static void add_measure(measures *m, int table, const char *section, const char *row, const char *column,
                        double value) {
    if (!isfinite(value)) return; /* a head whose exact output is 0 has no relative error */
    entry *x = find_entry(m, table, section, row, column);
    x->sum += value;
    x->count += 1.0;
}

static void merge_measures(measures *to, const measures *from) {
    for (int i = 0; i < from->count; i++) {
        const entry *x = &from->data[i];
        entry *y = find_entry(to, x->table, x->section, x->row, x->column);
        y->sum += x->sum;
        y->count += x->count;
    }
}

/* ------------------------------------------------------------ a body's buckets */

/* A text in a cache, with its queries. */
typedef struct body {
    run         *r;
    llama_state  s;
    int32_t     *token;
    tasks_query *query;
    int32_t      count;
    void        *index[MAX_ROUTERS];                        /* of its keys, by file */
    santa_buckets *routers[MAX_ROUTERS][ROUTES];            /* [n_layers]; they share their file's index */
    double      *norm;                                      /* [n_layers] sums of |k| before RoPE */
    float       *oracle[MAX_ROUTERS];                       /* [n_layers, n_kv_heads, num_buckets] */
    const variant *answers;                                 /* what decoding attends by, or NULL */
} body;

/* Probabilities of one head from its scores. */
static void softmax(const float *scores, int64_t n, float *p) {
    double max = -HUGE_VAL, sum = 0.0;
    for (int64_t i = 0; i < n; i++) if ((double)scores[i] > max) max = (double)scores[i];
    for (int64_t i = 0; i < n; i++) sum += exp((double)scores[i] - max);
    for (int64_t i = 0; i < n; i++) p[i] = (float)(exp((double)scores[i] - max) / sum);
}

/* What the tables measure beside their rows is the CPU's: it has all methods, and all memory is
   in its reach. */
static santa_attention on_cpu(santa_attention a) {
    a.q.device = a.k.device = a.v.device = a.out.device = SANTA_CPU;
    return a;
}

/* For ORACLE: the logs of what share of a's softmax the buckets of a layer have, mean over a
   group's heads, of the keys in front of the window. */
static int know_masses(body *b, const variant *v, santa_attention a, int32_t layer) {
    const santa_options o = llama_dense();
    const int64_t n = *a.seq_lens, kv_heads = a.k.shape[2], group = a.q.shape[2] / kv_heads,
                  far = n - v->options.saap.local_tokens;
    santa_buckets *x = &b->routers[v->file][ORACLE][layer];
    float *const share = b->oracle[v->file] + layer * kv_heads * x->num_buckets;
    a = on_cpu(a);
    a.buckets = x;
    const size_t bytes = santa_workspace_size(&a, &o);
    float *scores = (float *)malloc((size_t)((group + 1) * n) * sizeof *scores + bytes + 64);
    float *const p = scores ? scores + group * n : NULL;
    if (!scores) return fail(b->r, "no memory for scores");
    for (int64_t kv = 0; kv < kv_heads; kv++) {
        float *const f = share + kv * x->num_buckets;
        const santa_status status = santa_scores(&a, &o, 0, 0, kv, scores, n, p + n, bytes);
        if (status != SANTA_OK) { free(scores); return fail(b->r, santa_status_string(status)); }
        for (int64_t c = 0; c < x->num_buckets; c++) f[c] = 1e-30f;
        for (int64_t g = 0; g < group; g++) {
            softmax(scores + g * n, far, p);
            for (int64_t j = 0; j < far; j++) {
                const int64_t c = santa_buckets_find(&a, 0, kv, j);
                if (c >= 0) f[c] += p[j] / (float)group;
            }
        }
        for (int64_t c = 0; c < x->num_buckets; c++) f[c] = logf(f[c]);
    }
    free(scores);
    return 0;
}

/* Keys go into the buckets of every file, whatever the state attends by. */
static void assign_rows(void *user, const llama_state *s, int32_t layer, int64_t position, int64_t n) {
    body *b = (body *)user;
    const int64_t dim = s->model->head_dim;
    for (int f = 0; f < b->r->file_count; f++) {
        llama_state other = *s;
        other.buckets = b->routers[f][CLASSIFIER];
        const santa_status status = llama_assign(&other, layer, n, (int32_t)(position + n));
        if (status != SANTA_OK) fail(b->r, santa_status_string(status));
    }
    for (int64_t i = 0; i < n * s->model->n_kv_heads; i++)
        b->norm[layer] += sqrt((double)llama_dot(s->k_plain + i * dim, s->k_plain + i * dim, dim));
    if (!b->answers || b->answers->route != ORACLE) return;
    s->call->length = (int32_t)(position + n);
    (void)know_masses(b, b->answers, llama_decode_attention(s, layer), layer);
}

static int open_routers(body *b, run *r, llama_error *e) {
    const size_t layers = (size_t)r->model.n_layers, kv = (size_t)r->model.n_kv_heads;
    b->norm = (double *)calloc(layers, sizeof *b->norm);
    if (!b->norm) return llama_fail(e, "no memory for routers");
    for (int f = 0; f < r->file_count; f++) {
        for (int k = CLASSIFIER; k < ROUTES; k++) {
            b->routers[f][k] = (santa_buckets *)calloc(layers, sizeof *b->routers[f][k]);
            if (!b->routers[f][k]) return llama_fail(e, "no memory for routers");
        }
        for (size_t i = 0; i < layers; i++)
            saap_get_layer(&r->files[f], (int64_t)i, &b->routers[f][CLASSIFIER][i]);
        llama_state other = b->s;
        if (llama_state_route(&other, b->routers[f][CLASSIFIER], e) != 0) return -1;
        b->index[f] = other.index;
        memcpy(b->routers[f][CLASSIFIER], other.buckets, layers * sizeof *other.buckets);
        free(other.buckets);
        b->oracle[f] = (float *)LLAMA_ALLOC(layers * kv * MAX_BUCKETS * sizeof *b->oracle[f]);
        if (!b->oracle[f]) return llama_fail(e, "no memory for routers");
        for (size_t i = 0; i < layers; i++) {
            santa_buckets *x = &b->routers[f][INNER_PRODUCT][i], *y = &b->routers[f][RANDOM_ORDER][i],
                          *z = &b->routers[f][ORACLE][i];
            *x = *y = b->routers[f][CLASSIFIER][i];
            x->hidden = 0;
            y->hidden = 1;                                  /* w1, w2, b1 are zeros */
            y->w1 = y->w2 = r->random_order;
            y->b1 = (const float *)r->random_order;
            y->b2 = y->b1 + kv * MAX_BUCKETS + i * kv * MAX_BUCKETS;
            *z = *y;
            z->b2 = b->oracle[f] + i * kv * (size_t)z->num_buckets;
        }
    }
    b->s.rows = assign_rows;
    b->s.rows_user = b;
    return 0;
}

/* Behind the text: what its keys' norms are. */
static void scale_inner_products(body *b, int64_t keys) {
    for (int f = 0; f < b->r->file_count; f++)
        for (int32_t i = 0; i < b->r->model.n_layers; i++)
            b->routers[f][INNER_PRODUCT][i].key_norm =
                (float)(b->norm[i] / (double)(keys * b->r->model.n_kv_heads));
}

static void close_routers(body *b) {
    for (int f = 0; f < MAX_ROUTERS; f++) {
        LLAMA_FREE(b->index[f]);
        LLAMA_FREE(b->oracle[f]);
        for (int k = 0; k < ROUTES; k++) free(b->routers[f][k]);
    }
    free(b->norm);
}

/* The router of a row that has one, of one that needs none any; else NULL. */
static santa_buckets *routers_of(const body *b, const variant *v) {
    return v->options.method == SANTA_SAAP ? b->routers[v->file][v->route ? v->route : CLASSIFIER] : NULL;
}

/* ------------------------------------------------------------ probing */

/* Other attention on the very inputs that the dense step has, at the first step of a query: its
   error shows without the differences that earlier steps and layers have grown. */
typedef struct probe {
    run     *r;
    llama_state *s;
    struct body *text;
    int      on, rows;                                      /* rows: this query is one for tables 2 and 4 */
    int64_t  body;
    uint64_t query_seed;
    int32_t  task, length;                                  /* length: keys at the first step */
    float   *out;                                           /* [n_heads, head_dim] */
    void    *workspace;
    size_t   bytes;
    float   *scores, *p;                                    /* [group, length], [length] */
    float   *lse;                                           /* [2, n_heads]: exact, estimated */
    santa_audit *audit;                                     /* [n_heads] */
    santa_stats *stats;
} probe;

static uint64_t seed_of(const santa_options *o, uint64_t query_seed) {
    return tasks_mix(o->seed ^ query_seed);
}

/* Runs other options on the step's inputs, on the device that a names; the output is in
   p->out. */
static int attend_again(probe *p, const santa_attention *a, santa_options o, santa_stats *stats) {
    santa_attention b = *a;
    b.out.data = p->out;
    const santa_status status = b.q.device == SANTA_CPU
                                    ? santa_decode(&b, &o, p->workspace, p->bytes, stats)
                                    : LLAMA_DECODE(&b, &o, p->workspace, p->bytes, stats);
    return status == SANTA_OK ? 0 : fail(p->r, santa_status_string(status));
}

static const float *head_of(const santa_attention *a, const float *data, int64_t head) {
    return data + head * a->out.shape[3];
}

/* The copy of K that a row draws from, up to the step. */
static int with_copy(probe *p, santa_attention *a, const variant *v, int32_t layer) {
    llama_error e;
    p->s->proxy_bits = v->proxy_bits;
    if (llama_make_copies(p->s, &e) != 0) return fail(p->r, e.text);
    const santa_status status = llama_keep_copy(p->s, layer);
    const santa_attention copied = llama_decode_attention(p->s, layer);
    a->proxy = copied.proxy;
    a->proxy_bits = copied.proxy_bits;
    return status == SANTA_OK ? 0 : fail(p->r, santa_status_string(status));
}

static void probe_variants(probe *p, const santa_attention *a, int32_t layer) {
    const int64_t heads = a->q.shape[2], dim = a->q.shape[3];
    char row[64], column[24];
    for (int i = 1; i < p->r->variant_count; i++) {
        const variant *v = &p->r->variants[i];
        cell *c = &p->r->cells[(p->body * p->r->variant_count + i) * TASKS_COUNT + p->task];
        santa_options o = v->options;
        santa_attention b = *a;
        o.seed = seed_of(&v->options, p->query_seed);
        o.offset = santa_offset(layer, p->length - 1);
        if (v->per_layer) o.num_samples = v->layer_samples[layer];
        if (o.scores == SANTA_SCORES_PROXY && with_copy(p, &b, v, layer) != 0) return;
        santa_buckets *routers = routers_of(p->text, v);
        if (routers) b.buckets = &routers[layer];
        if (v->route == ORACLE && know_masses(p->text, v, b, layer) != 0) return;
        o.saap.measure_mass = routers != NULL;
        if (attend_again(p, &b, o, p->stats) != 0) return;
        if (routers) {
            c->sum[MASS] += p->stats->covered_mass;
            c->sum[MASSES] += 1.0;
        }
        snprintf(row, sizeof row, "%.30s, %.30s", v->method, v->budget);
        snprintf(column, sizeof column, "layer %d", (int)layer);
        for (int64_t h = 0; h < heads; h++) {
            const float *got = head_of(a, p->out, h), *want = head_of(a, (const float *)a->out.data, h);
            const double l2 = santa_relative_l2(got, want, dim), cosine = santa_cosine(got, want, dim);
            if (!isfinite(l2) || !isfinite(cosine)) continue;
            if (v->table == 7)
                add_measure(&p->r->means[p->body], 7, "relative L2 by layer", row, column, l2);
            c->sum[L2] += l2;
            c->sum[SQUARE] += l2 * l2;
            c->sum[COSINE] += cosine;
            c->sum[HEADS] += 1.0;
        }
    }
}

/* One draw of all heads: p->lse has the exact and the estimated sums, p->audit the budgets.
   Heads that took every key are exact and prove nothing. */
static void add_coverage(const probe *p, const santa_attention *a, const char *section, const char *row,
                         double epsilon, double delta, int full, measures *m) {
    const int64_t heads = a->q.shape[2], dim = a->q.shape[3];
    for (int64_t h = 0; h < heads; h++) {
        const double l2 =
            santa_relative_l2(head_of(a, p->out, h), head_of(a, (const float *)a->out.data, h), dim);
        const double off = fabs(exp((double)p->lse[heads + h] - (double)p->lse[h]) - 1.0);
        const double allowed = epsilon + 1e-5;              /* rounding of two f32 sums */
        add_measure(m, 2, section, row, "density %", 100.0 * p->audit[h].density);
        add_measure(m, 2, section, row, "all keys %", p->audit[h].exact ? 100.0 : 0.0);
        if (p->audit[h].exact) continue;
        add_measure(m, 2, section, row, "budget", (double)p->audit[h].budget);
        add_measure(m, 2, section, row, "wanted %", 100.0 * (1.0 - delta));
        add_measure(m, 2, section, row, "within %", (full ? l2 : off) <= allowed ? 100.0 : 0.0);
        add_measure(m, 2, section, row, "output error", l2);
    }
}

/* Table 2: does the (epsilon, delta) promise hold on real rows? */
static void probe_coverage(probe *p, santa_attention a, int32_t layer, measures *m) {
    static const double deltas[] = { 0.05, 0.2 };
    const char *const section = "coverage of (epsilon, delta) on real rows";
    santa_options o = llama_dense();
    a.lse = p->lse;
    if (attend_again(p, &a, o, NULL) != 0) return;
    a.lse = p->lse + a.q.shape[2];
    for (int i = 0; i < 2 * 2 * 2 * 2 * 3; i++) {
        const int full = i / 24, heavy = i / 12 % 2, hoeffding = i / 6 % 2;
        const double delta = deltas[i / 3 % 2], epsilon = epsilons[1 + i % 3];
        char row[64];
        snprintf(row, sizeof row, "%s, %s, %s, delta %.2f, eps %.2f", full ? "full" : "denominator",
                 heavy ? "oracle" : "no heavy", hoeffding ? "Hoeffding" : "CLT", delta, epsilon);
        for (int draw = 0; draw < COVERAGE_DRAWS; draw++) {
            o = vattention(full, heavy, epsilon, delta,
                           hoeffding ? SANTA_BOUND_HOEFFDING : SANTA_BOUND_CLT);
            o.vattention.audit = p->audit;
            o.seed = tasks_mix(p->query_seed + (uint64_t)(i * COVERAGE_DRAWS + draw));
            o.offset = santa_offset(layer, 0);
            if (attend_again(p, &a, o, NULL) != 0) return;
            add_coverage(p, &a, section, row, epsilon, delta, full, m);
        }
    }
}

static int by_mass(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* How many tiles, the heaviest first, hold 90 % of the mass. */
static int tiles_for_90(const float *p, int64_t n, double *mass) {
    int tiles = 0, used = 0;
    double sum = 0.0;
    for (int64_t begin = 0; begin < n; begin += TILE) {
        mass[tiles] = 0.0;
        for (int64_t j = begin; j < llama_min(begin + TILE, n); j++) mass[tiles] += (double)p[j];
        tiles++;
    }
    qsort(mass, (size_t)tiles, sizeof *mass, by_mass);
    while (used < tiles && sum < 0.9) sum += mass[used++];
    return used;
}

typedef santa_status (*variance_function)(const float *p, int64_t n, const float *v, int64_t stride,
                                          int64_t dv, int64_t num_samples, double *variance,
                                          void *workspace, size_t workspace_bytes);

/* Table 4, what follows from one head's probabilities alone. */
static void probe_head(probe *p, const santa_attention *a, int32_t layer, int64_t head, measures *m) {
    static const variance_function variance_of[] = { santa_variance_iid, santa_variance_strat,
                                                     santa_variance_sys };
    static const santa_method method[] = { SANTA_IID, SANTA_STRAT, SANTA_SYS };
    const int64_t n = p->length, dim = a->v.shape[3], group = a->q.shape[2] / a->v.shape[2];
    const float *const v = (const float *)a->v.data + head / group * a->v.stride[2];
    const char *const task = tasks_task_name[p->task];
    char section[64], row[64], column[24];
    snprintf(section, sizeof section, "variance (trace) by S, %s", task);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < COUNT(variance_budgets); i++) {
            double variance = 0.0;
            const santa_status status = variance_of[k](p->p, n, v, a->v.stride[1], dim, variance_budgets[i],
                                                       &variance, p->workspace, p->bytes);
            if (status != SANTA_OK) { fail(p->r, santa_status_string(status)); return; }
            snprintf(column, sizeof column, "%d", (int)variance_budgets[i]);
            add_measure(m, 4, section, santa_method_name(method[k]), column, variance);
        }
    for (int k = 0; k < 3; k++)
        for (int64_t s = 32; s <= 256; s *= 2) {
            double rows = 0.0;
            if (santa_expected_distinct(method[k], p->p, n, s, &rows) != SANTA_OK) continue;
            snprintf(column, sizeof column, "%d", (int)s);
            snprintf(row, sizeof row, "%s, %s", task, santa_method_name(method[k]));
            add_measure(m, 4, "distinct keys by S", row, column, rows);
        }
    snprintf(section, sizeof section, "effective number of attended keys, %s", task);
    snprintf(row, sizeof row, "layer %d", (int)layer);
    snprintf(column, sizeof column, "head %d", (int)head);
    add_measure(m, 4, section, row, column, santa_effective_keys(p->p, n));
}

/* Squared error of methods without a closed form, by draws; top-k's is its bias and needs
   one. */
static void probe_squares(probe *p, const santa_attention *a, int32_t layer, measures *m) {
    static const santa_method method[] = { SANTA_FLASH, SANTA_TOP_K };
    const int64_t heads = a->q.shape[2], dim = a->q.shape[3];
    char section[64], column[24];
    snprintf(section, sizeof section, "variance (trace) by S, %s", tasks_task_name[p->task]);
    for (int k = 0; k < COUNT(method); k++)
        for (int i = 0; i < COUNT(variance_budgets); i++)
            for (int draw = 0; draw < (method[k] == SANTA_FLASH ? FLASH_DRAWS : 1); draw++) {
                santa_options o = with_samples(method[k], variance_budgets[i]);
                o.seed = tasks_mix(p->query_seed + (uint64_t)(1000 + draw));
                o.offset = santa_offset(layer, 1);
                if (attend_again(p, a, o, NULL) != 0) return;
                snprintf(column, sizeof column, "%d", (int)variance_budgets[i]);
                for (int64_t h = 0; h < heads; h++) {
                    const float *got = head_of(a, p->out, h),
                                *want = head_of(a, (const float *)a->out.data, h);
                    double square = 0.0;
                    for (int64_t c = 0; c < dim; c++)
                        square += ((double)got[c] - (double)want[c]) * ((double)got[c] - (double)want[c]);
                    add_measure(m, 4, section, k == 0 ? "flash" : "top-k (bias squared)", column, square);
                }
            }
}

/* Of flash at the usual tile size, by the number of tiles that hold 90 % of a head's mass. */
static void add_by_tiles(measures *m, const char *task, int tiles, double l2, double cosine) {
    static const struct { const char *name; int most; } class_of[] = {
        { "1 tile", 1 }, { "2 tiles", 2 }, { "3-4 tiles", 4 }, { "5-8 tiles", 8 },
        { "9 tiles or more", INT32_MAX },
    };
    char section[64], row[64];
    int found = 0;
    snprintf(section, sizeof section, "flash by tiles with 90 %% of the mass, S = %d", (int)TILE_SAMPLES);
    while (tiles > class_of[found].most) found++;
    for (int i = 0; i < COUNT(class_of); i++) {
        snprintf(row, sizeof row, "%s, %s", task, class_of[i].name);
        add_measure(m, 4, section, row, "% of heads", i == found ? 100.0 : 0.0);
        if (i != found) continue;
        add_measure(m, 4, section, row, "relative L2", l2);
        add_measure(m, 4, section, row, "cosine", cosine);
    }
}

/* flash at one budget by tile size. */
static void probe_tiles(probe *p, const santa_attention *a, int32_t layer, const int *tiles, measures *m) {
    static const int64_t sizes[] = { 32, 64, TILE };
    const int64_t heads = a->q.shape[2], dim = a->q.shape[3];
    const char *const task = tasks_task_name[p->task];
    char row[64], section[64];
    snprintf(section, sizeof section, "flash by tile size, S = %d", (int)TILE_SAMPLES);
    for (int i = 0; i < COUNT(sizes); i++) {
        santa_options o = with_samples(SANTA_FLASH, TILE_SAMPLES);
        o.tile_size = sizes[i];
        o.seed = p->query_seed;
        o.offset = santa_offset(layer, 2);
        if (attend_again(p, a, o, NULL) != 0) return;
        snprintf(row, sizeof row, "%s, tile %d", task, (int)sizes[i]);
        for (int64_t h = 0; h < heads; h++) {
            const float *got = head_of(a, p->out, h), *want = head_of(a, (const float *)a->out.data, h);
            const double l2 = santa_relative_l2(got, want, dim), cosine = santa_cosine(got, want, dim);
            add_measure(m, 4, section, row, "relative L2", l2);
            add_measure(m, 4, section, row, "cosine", cosine);
            if (sizes[i] == TILE) add_by_tiles(m, task, tiles[h], l2, cosine);
        }
    }
}

static void probe_rows(probe *p, const santa_attention *a, int32_t layer, measures *m) {
    enum { MAX_HEADS = 256 };
    int tiles[MAX_HEADS];
    const santa_options dense = llama_dense();
    const int64_t n = p->length, kv_heads = a->k.shape[2], group = a->q.shape[2] / kv_heads;
    double *mass = (double *)malloc((size_t)(n / TILE + 1) * sizeof *mass);
    if (!mass || a->q.shape[2] > MAX_HEADS) {
        fail(p->r, "no memory, or too many heads");
        free(mass);
        return;
    }
    for (int64_t kv = 0; kv < kv_heads; kv++) {
        const santa_status status = santa_scores(a, &dense, 0, 0, kv, p->scores, n, p->workspace, p->bytes);
        if (status != SANTA_OK) { fail(p->r, santa_status_string(status)); break; }
        for (int64_t g = 0; g < group; g++) {
            softmax(p->scores + g * n, n, p->p);
            tiles[kv * group + g] = tiles_for_90(p->p, n, mass);
            probe_head(p, a, layer, kv * group + g, m);
        }
    }
    free(mass);
    probe_squares(p, a, layer, m);
    probe_tiles(p, a, layer, tiles, m);
}

/* How far the scores of a copy are off, by layer and head. */
static void probe_copies(probe *p, const santa_attention *a, int32_t layer, measures *m) {
    const int64_t n = p->length, kv_heads = a->k.shape[2], group = a->q.shape[2] / kv_heads;
    float *copied = (float *)malloc((size_t)(group * n) * sizeof *copied);
    if (!copied) { fail(p->r, "no memory for scores"); return; }
    for (int bits = 4; bits >= 2; bits -= 2) {
        const santa_options exact = llama_dense();
        santa_options o = with_samples(SANTA_PPS, 1);
        santa_attention b = *a;
        variant v;
        char section[64], row[32], column[24];
        o.scores = SANTA_SCORES_PROXY;
        v.proxy_bits = bits;
        if (with_copy(p, &b, &v, layer) != 0) break;
        snprintf(section, sizeof section, "variance of the log weight, %d bits", bits);
        snprintf(row, sizeof row, "layer %d", (int)layer);
        for (int64_t kv = 0; kv < kv_heads; kv++) {
            santa_status s = santa_scores(a, &exact, 0, 0, kv, p->scores, n, p->workspace, p->bytes);
            if (s == SANTA_OK) s = santa_scores(&b, &o, 0, 0, kv, copied, n, p->workspace, p->bytes);
            if (s != SANTA_OK) { fail(p->r, santa_status_string(s)); break; }
            for (int64_t g = 0; g < group; g++) {
                double mean = 0.0, square = 0.0;
                softmax(p->scores + g * n, n, p->p);
                for (int64_t j = 0; j < n; j++) {
                    const double off = (double)p->scores[g * n + j] - (double)copied[g * n + j];
                    mean += (double)p->p[j] * off;
                    square += (double)p->p[j] * off * off;
                }
                snprintf(column, sizeof column, "head %d", (int)(kv * group + g));
                add_measure(m, 6, section, row, column, square - mean * mean);
            }
        }
    }
    free(copied);
}

/* Table 6: std_error of draws from a copy against the error that they have over many seeds, and
   the bias of the ratio, of the heads whose error is 1 % of their output or more. Of the others
   how large a bar is. */
static void add_bars(const santa_attention *a, const char *row, const float *outs,
                     const float *bars, measures *m) {
    const int64_t heads = a->q.shape[2], dim = a->q.shape[3];
    char section[64];
    snprintf(section, sizeof section, "std_error and bias over %d seeds, S = %d", BAR_DRAWS, BAR_SAMPLES);
    for (int64_t h = 0; h < heads; h++) {
        const float *const want = head_of(a, (const float *)a->out.data, h);
        double squares = 0.0, bar = 0.0, bias = 0.0, norm = 0.0, spread, ratio;
        int within = 0, none = 0;
        for (int draw = 0; draw < BAR_DRAWS; draw++) {
            const float said = bars[draw * heads + h];
            double square = 0.0;
            for (int64_t c = 0; c < dim; c++) {
                const double off = (double)outs[(draw * heads + h) * dim + c] - (double)want[c];
                square += off * off;
            }
            squares += square / BAR_DRAWS;
            if (!isfinite(said)) { none++; continue; }
            bar += (double)said * (double)said;
            within += square <= 4.0 * (double)said * (double)said;
        }
        for (int64_t c = 0; c < dim; c++) {
            double mean = 0.0;
            for (int draw = 0; draw < BAR_DRAWS; draw++)
                mean += ((double)outs[(draw * heads + h) * dim + c] - (double)want[c]) / BAR_DRAWS;
            bias += mean * mean;
            norm += (double)want[c] * (double)want[c];
        }
        add_measure(m, 6, section, row, "no bar %", 100.0 * none / BAR_DRAWS);
        if (none == BAR_DRAWS) continue;
        add_measure(m, 6, section, row, "heads %", squares < 1e-4 * norm ? 0.0 : 100.0);
        if (squares < 1e-4 * norm) {
            add_measure(m, 6, section, row, "others' bar", sqrt(bar / (BAR_DRAWS - none) / norm));
            continue;
        }
        spread = (squares - bias) * BAR_DRAWS / (BAR_DRAWS - 1);
        ratio = sqrt(bar / (BAR_DRAWS - none) / squares);
        add_measure(m, 6, section, row, "bar / error", ratio);
        add_measure(m, 6, section, row, ".9 to 1.3 %", ratio >= 0.9 && ratio <= 1.3 ? 100.0 : 0.0);
        add_measure(m, 6, section, row, "in 2 bars %", 100.0 * within / (BAR_DRAWS - none));
        add_measure(m, 6, section, row, "bias^2 %", 100.0 * (bias - spread / BAR_DRAWS) / squares);
    }
}

static void probe_bars(probe *p, const santa_attention *a, int32_t layer, measures *m) {
    static const santa_method method[] = { SANTA_PPS, SANTA_SYS };
    const int64_t heads = a->q.shape[2], dim = a->q.shape[3];
    float *outs = (float *)malloc((size_t)(BAR_DRAWS * heads * (dim + 1)) * sizeof *outs);
    float *const bars = outs ? outs + BAR_DRAWS * heads * dim : NULL;
    if (!outs) { fail(p->r, "no memory for results"); return; }
    for (int k = 0; k < COUNT(method) * 2; k++) {
        santa_options o = with_samples(method[k / 2], BAR_SAMPLES);
        santa_attention b = *a;
        variant v;
        char row[32];
        o.scores = SANTA_SCORES_PROXY;
        v.proxy_bits = k % 2 ? 2 : 4;
        if (with_copy(p, &b, &v, layer) != 0) break;
        for (int draw = 0; draw < BAR_DRAWS; draw++) {
            b.std_error = bars + draw * heads;
            o.seed = tasks_mix(p->query_seed + (uint64_t)(2000 + draw));
            o.offset = santa_offset(layer, 3);
            if (attend_again(p, &b, o, NULL) != 0) { free(outs); return; }
            memcpy(outs + draw * heads * dim, p->out, (size_t)(heads * dim) * sizeof *outs);
        }
        snprintf(row, sizeof row, "%s, %d bits", santa_method_name(method[k / 2]), v.proxy_bits);
        add_bars(a, row, outs, bars, m);
    }
    free(outs);
}

static void tap(void *user, const santa_attention *a, int32_t layer) {
    probe *p = (probe *)user;
    const santa_attention cpu = on_cpu(*a);
    if (!p->on || *a->seq_lens != p->length || p->r->failed) return;
    measures *m = &p->r->means[p->body];
    probe_variants(p, a, layer);
    if (p->rows && (p->r->c.tables & 1u << 1)) probe_coverage(p, cpu, layer, m);
    if (p->rows && (p->r->c.tables & 1u << 3)) probe_rows(p, &cpu, layer, m);
    if (p->r->c.tables & 1u << 5) probe_copies(p, &cpu, layer, m);
    if (p->rows && (p->r->c.tables & 1u << 5)) probe_bars(p, &cpu, layer, m);
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Buffers for what the tables ask: the sizes are those of the largest user. */
static int open_probe(probe *p, run *r, body *text, int64_t number) {
    llama_state *s = &text->s;
    const llama_model *m = &r->model;
    const santa_attention a = llama_decode_attention(s, 0), cpu = on_cpu(a);
    const santa_options coverage = vattention(1, 1, 0.1, 0.1, SANTA_BOUND_CLT);
    const size_t capacity = (size_t)s->capacity, heads = (size_t)m->n_heads;
    memset(p, 0, sizeof *p);
    p->r = r;
    p->s = s;
    p->text = text;
    p->body = number;
    for (int i = 0; i < r->variant_count; i++) {
        santa_attention b = a;
        santa_options o = r->variants[i].options;
        b.proxy_bits = r->variants[i].proxy_bits;
        b.buckets = routers_of(text, &r->variants[i]);
        o.saap.measure_mass = b.buckets != NULL;
        p->bytes = larger(p->bytes, santa_workspace_size(&b, &o));
    }
    p->bytes = larger(p->bytes, santa_workspace_size(&cpu, &coverage));
    p->bytes = larger(p->bytes, santa_variance_workspace_size(s->capacity, m->head_dim));
    for (int64_t tile = 32; tile <= TILE; tile *= 2) {
        santa_options o = with_samples(SANTA_FLASH, variance_budgets[COUNT(variance_budgets) - 1]);
        o.tile_size = tile;
        p->bytes = larger(p->bytes, santa_workspace_size(&cpu, &o));
    }
    p->workspace = LLAMA_ALLOC(p->bytes);
    p->out = (float *)LLAMA_ALLOC((size_t)m->q_dim * sizeof(float));
    p->lse = (float *)LLAMA_ALLOC(2 * heads * sizeof(float));
    p->audit = (santa_audit *)LLAMA_ALLOC(heads * sizeof(santa_audit));
    p->stats = (santa_stats *)LLAMA_ALLOC(sizeof *p->stats);
    p->scores = (float *)malloc(heads / (size_t)m->n_kv_heads * capacity * sizeof(float));
    p->p = (float *)malloc(capacity * sizeof(float));
    s->tap = tap;
    s->tap_user = p;
    return p->workspace && p->out && p->lse && p->audit && p->stats && p->scores && p->p
               ? 0
               : fail(r, "no memory for probes");
}

static void close_probe(probe *p) {
    LLAMA_FREE(p->workspace);
    LLAMA_FREE(p->out);
    LLAMA_FREE(p->lse);
    LLAMA_FREE(p->audit);
    LLAMA_FREE(p->stats);
    free(p->scores);
    free(p->p);
}

/* ------------------------------------------------------------ evaluation */

static double log_likelihood(const float *logits, int32_t n, int32_t token) {
    double max = -HUGE_VAL, sum = 0.0;
    for (int32_t i = 0; i < n; i++) if ((double)logits[i] > max) max = (double)logits[i];
    for (int32_t i = 0; i < n; i++) sum += exp((double)logits[i] - max);
    return (double)logits[token] - max - log(sum);
}

static int set_options(body *b, const variant *v, uint64_t query_seed, llama_error *e) {
    llama_state *s = &b->s;
    santa_options o = v->options;
    o.seed = seed_of(&v->options, query_seed);
    s->proxy_bits = v->proxy_bits;
    s->buckets = routers_of(b, v);
    if (llama_state_options(s, &o, e) != 0) return -1;
    for (int32_t layer = 0; v->per_layer && layer < s->model->n_layers; layer++) {
        o.num_samples = v->layer_samples[layer];
        if (llama_layer_options(s, layer, &o, e) != 0) return -1;
    }
    return 0;
}

/* Bytes of a key in the copy of K. */
static double copy_row(const llama_state *s) {
    const size_t bytes = s->proxy_bytes[s->proxy_bits == 2];
    return (double)bytes / (double)(s->capacity / SANTA_BLOCK * SANTA_BLOCK * s->model->n_kv_heads);
}

/* Bytes of the numbers that a row's router multiplies a query of one KV head with. */
static double router_bytes(const run *r, const variant *v) {
    const saap_file *f = &r->files[v->file];
    const double c = (double)f->num_buckets, n = (double)f->hidden, d = (double)f->head_dim;
    const double size = f->dtype == SANTA_F32 ? 4.0 : 2.0;
    return v->route == CLASSIFIER ? size * n * (d + c) + 4.0 * (n + c)
         : v->route == INNER_PRODUCT ? size * c * d : 0.0;
}

/* Answers a query whose prompt, but for its last token, is in the cache up to position. Adds to
   the cell; *first is the first token of the answer. */
static int answer(body *b, const variant *v, const tasks_query *q, int64_t position, uint64_t query_seed,
                  cell *c, int32_t *first, llama_error *e) {
    enum { MAX_OUTPUT = TASKS_MAX_ANSWER + 8 };
    llama_state *s = &b->s;
    int32_t output[MAX_OUTPUT], token = q->prompt[q->prompt_length - 1], length = 0;
    if (set_options(b, v, query_seed, e) != 0) return -1;
    while (length < tasks_limit(q) && length < MAX_OUTPUT) {
        b->answers = v;
        const int status = llama_forward(s, token, position + length, 1, e);
        b->answers = NULL;
        if (status != 0) return -1;
        output[length] = token = llama_argmax(s->logits, s->model->vocab_size);
        if (q->task == TASKS_PLAIN) { /* the text goes on as it is, whatever was predicted */
            token = q->answer[length];
            c->sum[NLL] -= log_likelihood(s->logits, s->model->vocab_size, token);
            c->sum[PREDICTED] += 1.0;
        }
        length++;
        if (q->task != TASKS_PLAIN && token == TASKS_STOP) break;
    }
    *first = output[0];
    c->sum[SCORE] += tasks_grade(q, output, length);
    c->sum[QUERIES] += 1.0;
    c->sum[KEYS] += (double)s->stats.keys;
    c->sum[K_GROUP] += (double)s->stats.k_features_read;
    c->sum[K_HEAD] += (double)s->stats.k_features_head;
    c->sum[V_GROUP] += (double)s->stats.v_rows_read;
    c->sum[V_HEAD] += (double)s->stats.v_rows_head;
    c->sum[COPIED] += (double)s->stats.proxy_rows_read * copy_row(s);
    c->sum[ROWS] += (double)s->stats.rows;
    c->sum[RESCUED] += (double)s->stats.rescued_rows;
    c->sum[REDONE] += (double)s->stats.redone_rows;
    c->sum[FAR] += (double)s->stats.far_rows;
    c->sum[VISITED] += (double)s->stats.visited_rows;
    c->sum[COPIED] += 4.0 * (double)s->stats.visited_rows   /* where the index says that they are */
                    + (double)s->stats.rows / (double)s->model->n_heads * (double)s->model->n_kv_heads
                          * router_bytes(b->r, v);
    return 0;
}

/* ------------------------------------------------------------ progress */

static double steps_of(const tasks_query *q) { return (double)q->answer_length + (q->task != TASKS_PLAIN); }
/* measured; for the bar only */
static double steps_of_prefill(const run *r) { return 0.4 * (double)r->text.length; }

static void progress(run *r, double steps, double prefill_seconds) {
    enum { WIDTH = 40 };
    pthread_mutex_lock(&r->mutex);
    r->done += steps;
    r->prefill += prefill_seconds;
    const double share = fmin(1.0, r->done / r->all);
    const int percent = (int)(100.0 * share), terminal = isatty(fileno(stderr));
    if (percent > r->shown && (terminal || percent / 10 > r->shown / 10)) {
        const int bar = percent * WIDTH / 100,
                  left = (int)((llama_seconds() - r->start) * (1.0 / share - 1.0));
        fprintf(stderr, "%s[%.*s%*s] %3d %%, %d:%02d left  %s", terminal ? "\r" : "", bar,
                "########################################", WIDTH - bar, "", percent, left / 60, left % 60,
                terminal ? "" : "\n");
        if (terminal && percent == 100) fprintf(stderr, "\r%70s\r", "");
        fflush(stderr);
        r->shown = percent;
    }
    pthread_mutex_unlock(&r->mutex);
}

/* task(context, i) for all i < count on the threads asked for. */
typedef struct pool { run *r; int64_t next, count; santa_task task; void *context; } pool;

static void *pool_thread(void *argument) {
    pool *p = (pool *)argument;
    for (;;) {
        pthread_mutex_lock(&p->r->mutex);
        const int64_t i = p->r->failed ? p->count : p->next++;
        pthread_mutex_unlock(&p->r->mutex);
        if (i >= p->count) return NULL;
        p->task(p->context, i);
    }
}

static void parallel(run *r, int64_t count, santa_task task, void *context) {
    pthread_t thread[MAX_THREADS];
    pool p = { r, 0, count, task, context };
    int64_t started = 0;
    while (started < llama_min(r->c.threads, count) - 1
           && pthread_create(&thread[started], NULL, pool_thread, &p) == 0) started++;
    pool_thread(&p);
    while (started > 0) pthread_join(thread[--started], NULL);
}

/* ------------------------------------------------------------ sparse prefill */

/* Sparse attention on the very inputs that the dense prefill has, for the first so many
   rows. */
typedef struct sparse_probe {
    run      *r;
    measures *m;
    int64_t   length;
    float    *dense, *out, *mass;                           /* [length, q_dim], the same, [length, heads] */
    santa_sample_audit *audit;                              /* [n_heads] */
    void     *workspace;
    size_t    bytes;
    double    seconds, dense_seconds;                       /* of the last call, and of the dense one */
} sparse_probe;

/* Processor time of this thread. */
static double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int sparse_attend(sparse_probe *x, const santa_attention *a, const santa_options *o) {
    const size_t bytes = santa_workspace_size(a, o);
    if (bytes > x->bytes) {
        free(x->workspace);
        x->workspace = malloc(bytes);
        x->bytes = x->workspace ? bytes : 0;
        if (!x->workspace) return fail(x->r, "no memory for a workspace");
    }
    const double start = thread_seconds();
    const santa_status status = santa_decode(a, o, x->workspace, x->bytes, NULL);
    x->seconds = thread_seconds() - start;
    return status == SANTA_OK ? 0 : fail(x->r, santa_status_string(status));
}

/* Mean over a head's rows of |got - want| / |want|, and with rms the root of the mean
   square. */
static double head_error(const sparse_probe *x, int64_t n, int64_t heads, int64_t h, int64_t dim, int rms) {
    double sum = 0.0, square = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const size_t at = (size_t)((i * heads + h) * dim);
        const double e = santa_relative_l2(x->out + at, x->dense + at, dim);
        sum += e;
        square += e * e;
    }
    return rms ? sqrt(square / (double)n) : sum / (double)n;
}

static void sparse_measure(sparse_probe *x, const santa_attention *a, int32_t layer, double alpha) {
    const int64_t n = a->q.shape[1], heads = a->q.shape[2], dim = a->out.shape[3];
    char length[24], row[64], all[64], first_dense[64], section[64];
    santa_options o = sparse_options(alpha, 1, 0);
    o.sample_attention.audit = x->audit;
    snprintf(length, sizeof length, "%d", (int)n);
    snprintf(row, sizeof row, "alpha %g, layer %d", alpha, (int)layer);
    snprintf(all, sizeof all, "alpha %g, all layers", alpha);
    snprintf(first_dense, sizeof first_dense, "alpha %g, layer 0 dense", alpha);
    snprintf(section, sizeof section, "per head at %d tokens", (int)n);
    for (int pass = 0; pass < 2; pass++) {                  /* a group's heads together, then each alone */
        const char *const time =
            pass ? "time, % of dense, each head its own" : "time, % of dense, union of a group";
        o.sample_attention.per_head = pass;
        o.sample_attention.row_mass = NULL;
        if (sparse_attend(x, a, &o) != 0) return;
        const double part = 100.0 * x->seconds / x->dense_seconds;
        add_measure(x->m, 8, time, row, length, part);
        add_measure(x->m, 8, time, all, length, part);
        add_measure(x->m, 8, time, first_dense, length, layer > 0 ? part : 100.0);
        o.sample_attention.row_mass = x->mass;
        if (pass && sparse_attend(x, a, &o) != 0) return;
        for (int64_t h = 0; h < heads; h++) {
            const santa_sample_audit *u = &x->audit[h];
            const char *const kept =
                pass ? "blocks kept, %, each head its own" : "blocks kept, %, union of a group";
            add_measure(x->m, 8, kept, row, length, 100.0 * u->kept_share);
            add_measure(x->m, 8, kept, all, length, 100.0 * u->kept_share);
            add_measure(x->m, 8, kept, first_dense, length, layer > 0 ? 100.0 * u->kept_share : 100.0);
            if (!pass) continue;
            double mean = 0.0;
            for (int64_t i = 0; i < n; i++) mean += (double)x->mass[i * heads + h] / (double)n;
            const struct { const char *name; double value; } column[] = {
                { "sampled", u->sampled_mass }, { "1 % of them", u->sampled_low }, { "all rows", mean },
                { "worst 1 %", u->low_mass }, { "CRA", u->cra },
                { "rel.L2", head_error(x, n, heads, h, dim, 0) },
                { "rms", head_error(x, n, heads, h, dim, 1) }, { "cost", u->cost },
            };
            for (int i = 0; i < COUNT(column); i++) {
                add_measure(x->m, 8, section, row, column[i].name, column[i].value);
                add_measure(x->m, 8, section, all, column[i].name, column[i].value);
            }
        }
    }
}

/* At a quarter, a half and all of the text: its first rows see none of the others. */
static void sparse_rows(void *user, const llama_state *s, int32_t layer, int64_t position, int64_t n) {
    sparse_probe *x = (sparse_probe *)user;
    const santa_options dense = llama_dense();
    for (int64_t rows = n / 4; position == 0 && rows <= n; rows *= 2) {
        if (rows == n / 4 * 4) rows = n;
        const int32_t length = (int32_t)rows;
        santa_attention a = llama_attention(s, layer, 0, rows, &length, SANTA_CPU);
        a.causal = 1;
        a.out.data = x->dense;
        if (rows < SANTA_BLOCK || sparse_attend(x, &a, &dense) != 0) return;
        x->dense_seconds = x->seconds;
        a.out.data = x->out;
        for (int i = 0; i < alpha_count(x->r) && !x->r->failed; i++)
            sparse_measure(x, &a, layer, alpha_of(x->r, i));
    }
}

/* A dense prefill of the text, looked at. */
static int probe_sparse(body *b, run *r, int64_t number, llama_error *e) {
    const llama_model *m = &r->model;
    const size_t n = (size_t)r->text.length, heads = (size_t)m->n_heads;
    sparse_probe x;
    memset(&x, 0, sizeof x);
    x.r = r;
    x.m = &r->means[number];
    x.dense = (float *)malloc(n * (size_t)m->q_dim * sizeof *x.dense);
    x.out = (float *)malloc(n * (size_t)m->q_dim * sizeof *x.out);
    x.mass = (float *)malloc(n * heads * sizeof *x.mass);
    x.audit = (santa_sample_audit *)malloc(heads * sizeof *x.audit);
    int status =
        x.dense && x.out && x.mass && x.audit ? 0 : llama_fail(e, "no memory for a look at prefill");
    const llama_rows rows = b->s.rows;
    void *const user = b->s.rows_user;
    b->s.rows = sparse_rows;
    b->s.rows_user = &x;
    if (status == 0) status = llama_prefill(&b->s, b->token, r->text.length, 0, e);
    b->s.rows = rows;
    b->s.rows_user = user;
    free(x.dense);
    free(x.out);
    free(x.mass);
    free(x.audit);
    free(x.workspace);
    return status;
}

/* ------------------------------------------------------------ a body */

static void close_body(body *b) {
    b->s.buckets = NULL;                                    /* one of ours */
    close_routers(b);
    llama_state_free(&b->s);
    free(b->token);
    free(b->query);
}

static int open_body(body *b, run *r, uint64_t seed, llama_error *e) {
    tasks_error te;
    memset(b, 0, sizeof *b);
    b->r = r;
    b->count = tasks_query_count(&r->text);
    b->token = (int32_t *)malloc((size_t)r->text.length * sizeof *b->token);
    b->query = (tasks_query *)malloc((size_t)b->count * sizeof *b->query);
    if (!b->token || !b->query)
        return llama_fail(e, "no memory for a text of %d tokens", (int)r->text.length);
    if (tasks_make(&r->text, seed, b->token, b->query, &te) != 0) return llama_fail(e, "%s", te.text);
    if (llama_state_init(&b->s, &r->model, r->text.length + TASKS_ROOM, e) != 0) return -1;
    if (r->file_count && open_routers(b, r, e) != 0) return -1;
    if (llama_prefill(&b->s, b->token, r->text.length, 0, e) != 0) return -1;
    scale_inner_products(b, r->text.length);
    return 0;
}

/* The query's prompt but its last token; returns that one's position, or -1. */
static int64_t ask(body *b, const run *r, const tasks_query *q, llama_error *e) {
    if (llama_prefill(&b->s, q->prompt, q->prompt_length - 1, r->text.length, e) != 0) return -1;
    return r->text.length + q->prompt_length - 1;
}

static int run_query(run *r, body *b, probe *p, int64_t body_index, int64_t query, llama_error *e) {
    const tasks_query *q = &b->query[query];
    const uint64_t query_seed = tasks_mix((uint64_t)body_index * 4096u + (uint64_t)query);
    const int64_t position = ask(b, r, q, e);
    int32_t dense_first = -1, first = -1;
    if (position < 0) return -1;
    p->task = q->task;
    p->length = (int32_t)position + 1;
    p->query_seed = query_seed;
    for (int i = 0; i < r->variant_count && !r->failed; i++) {
        if (r->variants[i].sparse) continue;
        cell *c = &r->cells[(body_index * r->variant_count + i) * TASKS_COUNT + q->task];
        p->on = i == 0;
        if (answer(b, &r->variants[i], q, position, query_seed, c, &first, e) != 0) return -1;
        if (i == 0) dense_first = first;
        c->sum[TOP_1] += first == dense_first;
        progress(r, steps_of(q), 0.0);
    }
    return 0;
}

/* The queries that are asked: the first ones of each task. */
static int is_asked(const run *r, const body *b, int32_t query, int32_t *asked) {
    const int32_t task = b->query[query].task;
    return asked[task]++ < r->queries_of[task];
}

/* The text again, its prefill the variant's (NULL: dense), and its time. */
static int prefill_again(run *r, body *b, const variant *v, double *seconds, double *kept, llama_error *e) {
    const int32_t layers = r->model.n_layers, heads = r->model.n_heads;
    const santa_options dense = llama_dense();
    int counted = 0;
    *kept = 0.0;
    for (int32_t i = 0; v && i < layers; i++) {
        const santa_options sparse = sparse_options(v->alpha, v->per_head, v->fallback),
                            o = i < v->dense_layers ? dense : sparse;
        if (llama_prefill_options(&b->s, i, &o, e) != 0) return -1;
    }
    const double start = thread_seconds();
    if (llama_prefill(&b->s, b->token, r->text.length, 0, e) != 0) return -1;
    *seconds = thread_seconds() - start;
    for (int32_t i = 0; v && i < layers; i++) {
        if (llama_prefill_options(&b->s, i, &dense, e) != 0) return -1;
        if (i < v->dense_layers || i + 1 == layers) continue; /* of the last one no rows are wanted */
        for (int32_t h = 0; h < heads; h++, counted++) *kept += b->s.audit[i * heads + h].kept_share;
    }
    if (counted) *kept /= counted;
    return 0;
}

/* Table 8 of a body: the answers behind each sparse prefill. first: dense's, by query. */
static int run_sparse(run *r, body *b, int64_t number, llama_error *e) {
    int32_t dense_first[TASKS_MAX_QUERIES] = { 0 }, asked[TASKS_COUNT];
    double seconds, kept;
    b->s.tap = NULL;
    if (llama_state_chunk(&b->s, r->text.length, e) != 0 || probe_sparse(b, r, number, e) != 0) return -1;
    progress(r, PROBE_PREFILLS * alpha_count(r) * steps_of_prefill(r), 0.0);
    for (int i = 0; i < r->variant_count && !r->failed; i++) {
        const variant *v = &r->variants[i];
        if (i > 0 && !v->sparse) continue;
        if (prefill_again(r, b, i > 0 ? v : NULL, &seconds, &kept, e) != 0) return -1;
        memset(asked, 0, sizeof asked);
        for (int32_t query = 0; query < b->count; query++) {
            const tasks_query *q = &b->query[query];
            cell *c = &r->cells[(number * r->variant_count + i) * TASKS_COUNT + q->task], unused;
            int32_t first = -1;
            if (!is_asked(r, b, query, asked)) continue;
            const int64_t position = ask(b, r, q, e);
            memset(&unused, 0, sizeof unused);
            if (position < 0
                || answer(b, v, q, position, (uint64_t)query, i > 0 ? c : &unused, &first, e) != 0)
                return -1;
            if (i == 0) dense_first[query] = first;
            else c->sum[TOP_1] += first == dense_first[query];
            c->sum[KEPT] += i > 0 ? kept : 1.0;
            c->sum[SECONDS] += seconds;
            c->sum[PREFILLS] += 1.0;
            progress(r, steps_of(q), 0.0);
        }
        progress(r, steps_of_prefill(r), 0.0);
    }
    return 0;
}

static void body_task(void *context, int64_t i) {
    run *r = (run *)context;
    llama_error e = { "" };
    body b;
    probe p;
    int32_t asked[TASKS_COUNT] = { 0 };
    memset(&p, 0, sizeof p);
    const double start = llama_seconds();
    int status = open_body(&b, r, (uint64_t)(r->c.seed * 1000003 + i), &e);
    progress(r, steps_of_prefill(r), llama_seconds() - start);
    if (status == 0 && open_probe(&p, r, &b, i) == 0)
        for (int32_t query = 0; query < b.count && status == 0; query++) {
            if (!is_asked(r, &b, query, asked)) continue;
            p.rows = asked[b.query[query].task] == 1;
            status = run_query(r, &b, &p, i, query, &e);
        }
    if (status == 0 && !r->failed && (r->c.tables & 1u << 7)) status = run_sparse(r, &b, i, &e);
    close_probe(&p);
    close_body(&b);
    if (status != 0) fail(r, e.text);
}

/* ------------------------------------------------------------ per-layer budgets */

/* The search of table 5: its texts are not those of the tables. */
typedef struct search {
    run    *r;
    body    bodies[SEARCH_BODIES];
    variant trial;
    int64_t episode;
    double  score[SEARCH_QUESTIONS];
} search;

static void search_open_task(void *context, int64_t i) {
    search *x = (search *)context;
    llama_error e = { "" };
    const uint64_t seed = (UINT64_C(1) << 40) + (uint64_t)(x->r->c.seed * 1000003 + i);
    if (open_body(&x->bodies[i], x->r, seed, &e) != 0) fail(x->r, e.text);
}

/* One of the tasks in use. */
static int32_t random_task(const run *r, uint64_t *random) {
    int32_t used[TASKS_COUNT], count = 0;
    for (int32_t t = 0; t < TASKS_COUNT; t++) if (r->queries_of[t]) used[count++] = t;
    return used[tasks_below(random, count)];
}

/* Every SEARCH_BODIES-th question of the episode: a task, then one of its queries. */
static void search_body_task(void *context, int64_t i) {
    search *x = (search *)context;
    body *b = &x->bodies[i];
    llama_error e = { "" };
    for (int64_t question = i; question < SEARCH_QUESTIONS; question += SEARCH_BODIES) {
        uint64_t random = tasks_mix((uint64_t)x->episode * SEARCH_QUESTIONS + (uint64_t)question);
        const int32_t task = random_task(x->r, &random);
        int32_t begin = 0, count = 0, first;
        cell c;
        memset(&c, 0, sizeof c);
        while (begin < b->count && b->query[begin].task != task) begin++;
        while (begin + count < b->count && b->query[begin + count].task == task) count++;
        const tasks_query *q = &b->query[begin + tasks_below(&random, count)];
        const int64_t position = ask(b, x->r, q, &e);
        if (position < 0 || answer(b, &x->trial, q, position, random, &c, &first, &e) != 0) {
            fail(x->r, e.text);
            return;
        }
        x->score[question] = c.sum[SCORE];
    }
}

static double search_reward(void *user, const int64_t *budget, int32_t layers, int64_t episode) {
    search *x = (search *)user;
    double sum = 0.0;
    memcpy(x->trial.layer_samples, budget, (size_t)layers * sizeof *budget);
    x->episode = episode;
    parallel(x->r, SEARCH_BODIES, search_body_task, x);
    for (int i = 0; i < SEARCH_QUESTIONS; i++) sum += x->score[i];
    return x->r->failed ? (double)NAN : sum / SEARCH_QUESTIONS;
}

/* Adds uniform budgets and those found, of the same total, to table 5. */
static int add_searched(run *r) {
    const int32_t layers = r->model.n_layers;
    layer_budgets_options o = layer_budgets_default(layers, r->c.samples * layers);
    layer_budgets_error error = { "" };
    int64_t budget[LAYER_BUDGETS_MAX_LAYERS];
    char text[32];
    size_t used = 0;
    search *x = (search *)calloc(1, sizeof *x);
    if (!x) return fail(r, "no memory for the search");
    x->r = r;
    x->trial.options = with_samples(SANTA_SYS, 1);
    x->trial.per_layer = 1;
    o.seed = (uint64_t)r->c.seed;
    o.iterations = r->c.steps;
    o.state_path = r->c.state;
    o.progress = isatty(fileno(stderr)) ? stderr : NULL;
    parallel(r, SEARCH_BODIES, search_open_task, x);
    int status = r->failed ? -1 : layer_budgets_search(&o, search_reward, x, budget, &error);
    if (status != 0) fail(r, error.text);
    for (int i = 0; i < SEARCH_BODIES; i++) close_body(&x->bodies[i]);
    free(x);
    if (status != 0) return -1;
    for (int32_t i = 0; i < layers && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, i ? "/%d" : "%d", (int)budget[i]);
    add_per_layer(r, "budgets found", text, budget);
    for (int32_t i = 0; i < layers; i++) budget[i] = r->c.samples;
    snprintf(text, sizeof text, "%d each", (int)r->c.samples);
    add_per_layer(r, "uniform budgets", text, budget);
    return 0;
}

/* ------------------------------------------------------------ report */

static void emit(FILE *csv, int table, const char *section, const char *row, const char *column,
                 const char *metric, double value, double low, double high) {
    if (!csv) return;
    fprintf(csv, "%d,\"%s\",\"%s\",\"%s\",%s,%.6g,", table, section, row, column, metric, value);
    if (isnan(low)) fprintf(csv, ",\n");                    /* no interval */
    else fprintf(csv, "%.6g,%.6g\n", low, high);
}

static cell total(const run *r, int v, int task) {           /* task < 0: all */
    cell sum;
    memset(&sum, 0, sizeof sum);
    for (int64_t b = 0; b < r->c.bodies; b++)
        for (int t = 0; t < TASKS_COUNT; t++)
            for (int m = 0; m < METRICS && (task < 0 || task == t); m++)
                sum.sum[m] += r->cells[(b * r->variant_count + v) * TASKS_COUNT + t].sum[m];
    return sum;
}

static double grade_of(const run *r, int64_t index, int v, int task) {
    const cell *c = &r->cells[(index * r->variant_count + v) * TASKS_COUNT + task];
    return c->sum[SCORE] / c->sum[QUERIES];
}

static tasks_interval accuracy(const run *r, int v, int task, double *score) {
    /* parts of an answer, each right or wrong */
    static const int64_t graded[TASKS_COUNT] = { 1, 1, 4, 3, TASKS_MAX_ANSWER };
    for (int64_t b = 0; b < r->c.bodies; b++) score[b] = grade_of(r, b, v, task);
    return tasks_confidence(score, r->c.bodies, r->queries_of[task] * graded[task]);
}

/* Grade minus dense's on the same queries, mean of the tasks in the set: much of the spread is
   common to both. */
static tasks_interval difference(const run *r, int v, unsigned tasks) {
    tasks_interval d = { 0.0, 0.0, 0.0 };
    const double n = (double)r->c.bodies;
    double sum = 0.0, square = 0.0;
    for (int64_t b = 0; b < r->c.bodies; b++) {
        double value = 0.0, count = 0.0;
        for (int t = 0; t < TASKS_COUNT; t++) {
            if (!r->queries_of[t] || !(tasks >> t & 1u)) continue;
            value += grade_of(r, b, v, t) - grade_of(r, b, 0, t);
            count += 1.0;
        }
        sum += value / count;
        square += value / count * (value / count);
    }
    d.mean = sum / n;
    const double variance = n > 1.0 ? fmax(0.0, (square - sum * d.mean) / (n - 1.0)) : 1.0;
    const double half = tasks_student(r->c.bodies - 1) * sqrt(variance / n);
    d.low = fmax(-1.0, d.mean - half);
    d.high = fmin(1.0, d.mean + half);
    return d;
}

static double ratio(double a, double b) { return b > 0.0 ? a / b : 0.0; }

typedef struct share {
    double v_group, v_head, k_group, k_head, bytes, rescued, redone, selected, mass, l2, rms, cosine, top_1,
        nll, kept, seconds;
} share;

static share shares(const run *r, const cell *c, int dense) {
    const double group = (double)(r->model.n_heads / r->model.n_kv_heads), dim = (double)r->model.head_dim;
    share s;
    s.v_group = 100.0 * ratio(c->sum[V_GROUP], c->sum[KEYS]);
    s.v_head  = 100.0 * ratio(c->sum[V_HEAD], c->sum[KEYS] * group);
    s.k_group = 100.0 * ratio(c->sum[K_GROUP], c->sum[KEYS] * dim);
    s.k_head  = 100.0 * ratio(c->sum[K_HEAD], c->sum[KEYS] * dim * group);
    s.bytes   = 100.0 * ratio(2.0 * c->sum[K_GROUP] + 2.0 * dim * c->sum[V_GROUP] + c->sum[COPIED],
                              4.0 * dim * c->sum[KEYS]);    /* of K and V in 16 bits */
    s.rescued = 100.0 * ratio(c->sum[RESCUED], c->sum[ROWS]);
    s.redone  = 100.0 * ratio(c->sum[REDONE], c->sum[ROWS]);
    s.selected = 100.0 * ratio(c->sum[VISITED], c->sum[FAR]);
    s.mass    = 100.0 * ratio(c->sum[MASS], c->sum[MASSES]);
    s.rms     = sqrt(ratio(c->sum[SQUARE], c->sum[HEADS]));
    s.l2      = ratio(c->sum[L2], c->sum[HEADS]);
    s.cosine  = dense ? 1.0 : ratio(c->sum[COSINE], c->sum[HEADS]);
    s.top_1   = 100.0 * ratio(c->sum[TOP_1], c->sum[QUERIES]);
    s.kept    = 100.0 * ratio(c->sum[KEPT], c->sum[PREFILLS]);
    s.seconds = ratio(c->sum[SECONDS], c->sum[PREFILLS]);
    s.nll     = ratio(c->sum[NLL], c->sum[PREDICTED]);
    return s;
}

static void emit_shares(FILE *csv, const variant *v, int table, const char *task, const share *s) {
    if (table == 8) {                                       /* decoding is dense there */
        emit(csv, table, task, v->method, v->budget, "blocks_kept_percent", s->kept, s->kept, s->kept);
        emit(csv, table, task, v->method, v->budget, "top1_same_percent", s->top_1, s->top_1, s->top_1);
        return;
    }
    const struct { const char *name; double value; } metric[] = {
        { "v_rows_group_percent", s->v_group }, { "v_rows_head_percent", s->v_head },
        { "k_features_group_percent", s->k_group }, { "k_features_head_percent", s->k_head },
        { "bytes_percent", s->bytes }, { "rescued_percent", s->rescued }, { "redone_percent", s->redone },
        { "relative_l2", s->l2 }, { "relative_l2_rms", s->rms }, { "cosine", s->cosine },
        { "top1_same_percent", s->top_1 }, { "selectivity_percent", s->selected },
        { "covered_mass_percent", s->mass },
    };
    for (int i = 0; i < COUNT(metric) - 2 * (v->options.method != SANTA_SAAP); i++)
        emit(csv, table, task, v->method, v->budget, metric[i].name, metric[i].value, metric[i].value,
             metric[i].value);
}

/* 95 % interval in per cent; below ENOUGH_BODIES the mean alone. */
static void print_interval(const run *r, const tasks_interval *x) {
    if (r->c.bodies < ENOUGH_BODIES) printf(" %5.1f     ", 100.0 * x->mean);
    else printf(" %5.1f\xC2\xB1%-4.1f", 100.0 * x->mean, 50.0 * (x->high - x->low));
}

static void emit_interval(const run *r, FILE *csv, int table, const char *task, const variant *v,
                          const char *metric, const tasks_interval *x) {
    const int enough = r->c.bodies >= ENOUGH_BODIES;
    emit(csv, table, task, v->method, v->budget, metric, 100.0 * x->mean,
         enough ? 100.0 * x->low : (double)NAN, enough ? 100.0 * x->high : (double)NAN);
}

/* What a variant answered. */
static int print_grades(const run *r, int i, int table, FILE *csv) {
    const variant *v = &r->variants[i];
    double *score = (double *)malloc((size_t)r->c.bodies * sizeof *score);
    if (!score) return -1;
    printf("%-22s %-11s", v->method, v->budget);
    for (int t = 0; t < TASKS_COUNT; t++) {
        if (!r->queries_of[t]) continue;
        const tasks_interval a = accuracy(r, i, t, score);
        const cell c = total(r, i, t);
        const share s = shares(r, &c, i == 0);
        print_interval(r, &a);
        emit_interval(r, csv, table, tasks_task_name[t], v, "accuracy_percent", &a);
        const tasks_interval d = difference(r, i, 1u << t);
        emit_interval(r, csv, table, tasks_task_name[t], v, "against_dense_points", &d);
        emit_shares(csv, v, table, tasks_task_name[t], &s);
        if (t == TASKS_PLAIN) emit(csv, table, "TEXT", v->method, v->budget, "nats", s.nll, s.nll, s.nll);
    }
    const cell c = total(r, i, -1);
    const share s = shares(r, &c, i == 0);
    const tasks_interval d = difference(r, i, ~0u);
    emit_interval(r, csv, table, "all", v, "against_dense_points", &d);
    print_interval(r, &d);
    printf("\n");
    emit_shares(csv, v, table, "all", &s);
    free(score);
    return 0;
}

/* What it read, and how far its outputs are off. */
static void print_shares(const run *r, int i, int table) {
    const variant *v = &r->variants[i];
    const cell c = total(r, i, -1);
    const share s = shares(r, &c, i == 0);
    if (table == 8) {
        printf("%-22s %-11s %7.1f %8.2f %6.1f", v->method, v->budget, s.kept, s.seconds, s.top_1);
        if (r->queries_of[TASKS_PLAIN]) printf(" %6.3f", s.nll);
        printf("\n");
        return;
    }
    printf("%-22s %-11s %6.2f %6.2f", v->method, v->budget, s.v_group, s.v_head);
    if (table == 3) printf(" %6.1f %6.1f", s.k_group, s.k_head);
    if (table == 6) printf(" %6.1f %6.1f %6.1f", s.bytes, s.rescued, s.redone);
    if (table == 7) printf(" %6.2f", s.bytes);
    if (table == 7 && v->options.method == SANTA_SAAP) printf(" %6.2f %6.1f", s.selected, s.mass);
    else if (table == 7) printf(" %6s %6s", "-", "-");
    printf("  %7.4f %7.4f %6.1f", s.l2, s.cosine, s.top_1);
    if (r->queries_of[TASKS_PLAIN]) printf(" %6.3f", s.nll);
    printf("\n");
}

static int is_of_table(const run *r, int i, int table) { return i == 0 || r->variants[i].table == table; }

/* Two tables, of 100 columns each. */
static int print_variants(const run *r, int table, FILE *csv) {
    printf("%-22s %-11s", "method", "budget");
    for (int t = 0; t < TASKS_COUNT; t++) if (r->queries_of[t]) printf(" %5s     ", tasks_task_name[t]);
    printf(" vs dense\n");
    for (int i = 0; i < r->variant_count; i++)
        if (is_of_table(r, i, table) && print_grades(r, i, table, csv) != 0) return -1;
    printf("\n%-22s %-11s", "method", "budget");
    printf(table == 8 ? "   kept%%  seconds" : " V/grp%% V/head");
    if (table == 3) printf("  K/grp K/head");
    if (table == 6) printf(" bytes%% rescue   redo");
    if (table == 7) printf(" bytes%% select   mass");
    printf("%s  top-1%s\n", table == 8 ? "" : "   rel.L2  cosine",
           r->queries_of[TASKS_PLAIN] ? "   nats" : "");
    for (int i = 0; i < r->variant_count; i++) if (is_of_table(r, i, table)) print_shares(r, i, table);
    return 0;
}

/* Least-squares slope of log value against log column over a row. */
static void print_slope(const measures *m, const entry *first) {
    double n = 0.0, x = 0.0, y = 0.0, xx = 0.0, xy = 0.0;
    for (int i = 0; i < m->count; i++) {
        const entry *e = &m->data[i];
        if (strcmp(e->section, first->section) != 0 || strcmp(e->row, first->row) != 0 || !(e->sum > 0.0))
            continue;
        const double a = log(atof(e->column)), b = log(e->sum / e->count);
        n += 1.0;
        x += a;
        y += b;
        xx += a * a;
        xy += a * b;
    }
    if (n > 1.0) printf(" %10.2f", (n * xy - x * y) / (n * xx - x * x));
}

/* A section as a matrix, its columns in order of first appearance. */
static void print_section(const measures *m, int first, FILE *csv) {
    const entry *f = &m->data[first];
    const int slopes = strncmp(f->section, "variance", 8) == 0 && f->table != 6;
    const char *column[64];
    int columns = 0;
    for (int i = first; i < m->count; i++) {
        int k = 0;
        if (strcmp(m->data[i].section, f->section) != 0) continue;
        while (k < columns && strcmp(column[k], m->data[i].column) != 0) k++;
        if (k == columns && columns < COUNT(column)) column[columns++] = m->data[i].column;
    }
    const int own_line = columns > 4;                       /* for the name of a row: 100 columns */
    printf("\n%s\n%-*s", f->section, own_line ? 0 : 52, "");
    for (int k = 0; k < columns; k++) printf(" %11s", column[k]);
    printf(slopes ? "      slope\n" : "\n");
    for (int i = first; i < m->count; i++) {
        const entry *e = &m->data[i];
        if (strcmp(e->section, f->section) != 0 || strcmp(e->column, column[0]) != 0) continue;
        printf(own_line ? "  %s\n" : "%-52s", e->row);
        for (int k = 0; k < columns; k++) {
            int j = first;
            while (j < m->count
                   && (strcmp(m->data[j].section, f->section) != 0 || strcmp(m->data[j].row, e->row) != 0
                       || strcmp(m->data[j].column, column[k]) != 0))
                j++;
            if (j == m->count) { printf(" %11s", "-"); continue; }
            const double value = m->data[j].sum / m->data[j].count;
            printf(" %11.4g", value);
            emit(csv, f->table, f->section, e->row, column[k], "mean", value, value, value);
        }
        if (slopes) print_slope(m, e);
        printf("\n");
    }
}

/* Do the sections agree, or with kind what stands before their comma (the task stands behind
   it)? */
static int same_section(const entry *a, const entry *b, int kind) {
    const size_t n = strcspn(a->section, ",");
    return kind ? n == strcspn(b->section, ",") && strncmp(a->section, b->section, n) == 0
                : !strcmp(a->section, b->section);
}

static int is_first(const measures *m, int i, int kind) {
    int j = 0;
    while (!same_section(&m->data[j], &m->data[i], kind)) j++;
    return j == i;
}

static void print_measures(const run *r, int table, FILE *csv) {
    measures all = { NULL, 0, 0 };
    for (int64_t b = 0; b < r->c.bodies; b++) merge_measures(&all, &r->means[b]);
    for (int i = 0; i < all.count; i++) {
        if (all.data[i].table != table || !is_first(&all, i, 1)) continue;
        for (int j = i; j < all.count; j++)                 /* one kind of section after the other */
            if (same_section(&all.data[i], &all.data[j], 1) && is_first(&all, j, 0))
                print_section(&all, j, csv);
    }
    free(all.data);
}

static int report(const run *r, FILE *csv) {
    if (csv) fprintf(csv, "table,section,method,budget,metric,value,low,high\n");
    for (int table = 1; table <= TABLES; table++) {
        if (!(r->c.tables >> (table - 1) & 1u)) continue;
        printf("\nTable %d: %s\n", table, table_text[table]);
        if (table != 4 && print_variants(r, table, csv) != 0) return -1;
        print_measures(r, table, csv);
    }
    printf("\nAccuracy in %%");
    if (r->c.bodies < ENOUGH_BODIES)
        printf("; fewer than %d texts: no intervals", ENOUGH_BODIES);
    else
        printf(" \xC2\xB1 half its 95 %% interval (queries of one text are not independent)");
    printf(";\nvs dense: points to dense on the same queries, mean of the tasks; nats: of a word of TEXT;\n"
           "V: distinct rows read, per group of heads and per head, %% of dense; rel.L2, cosine: output\n"
           "of a head against dense at the same state, the first step of each answer, mean of heads,\n"
           "layers and queries; top-1: the first token is dense's, %%.\n");
    if (r->c.tables & 1u << 7)
        printf("Table 8: the text's prefill is sparse in all layers, or in all but the first (2 slices,\n"
               "blocks of 64, alpha of columns and slashes, the union of a group's heads if not per head;\n"
               "no head runs dense but with defaults); what follows is exact. "
               "kept: blocks of keys read in\n"
               "the sparse layers; seconds: of a prefill, processor time. On the inputs of the dense\n"
               "prefill, means over heads: share of the softmax that sampled and all rows keep, of the\n"
               "worst 1 %% and of the worst row (CRA); error of the rows' outputs.\n");
    if (r->c.tables & 1u << 6)
        printf("Table 7: cl.: classifier, i.p.: q . centroid, with so many buckets; whole: l buckets as\n"
               "published (window 512, 1 sink); drawn: so many keys for a group (window 64, 4 sinks); "
               "both: l\n"
               "buckets, and keys of the others drawn; w: window, u: uniform share, s: sinks. "
               "Bytes: K, V, a\n"
               "copy, 4 of the index for a key, the router's weights once a step and KV head, "
               "%% of K and V\n"
               "in 16 bits; select: far keys read, %%; mass: share of the softmax in the keys read, %%.\n");
    return 0;
}

static void print_header(const run *r, int argc, char **argv) {
    char line[256] = "", date[32] = "";
    const time_t seconds = time(NULL);
    FILE *info = fopen("/proc/cpuinfo", "r");
    while (info && fgets(line, sizeof line, info) && strncmp(line, "model name", 10) != 0) line[0] = 0;
    if (info) fclose(info);
    line[strcspn(line, "\n")] = 0;
    const char *colon = strchr(line, ':');
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&seconds));
    printf("#");
    for (int i = 0; i < argc; i++) printf(" %s", argv[i]);
    printf("\n# %s; cpu %s, %d threads; attention on the %s\n", date, colon ? colon + 2 : "unknown",
           (int)r->c.threads, LLAMA_DEVICE == SANTA_CPU ? "CPU" : "GPU");
    printf("# %s: %d layers, %d heads on %d KV heads, head_dim %d; texts: %d of %d tokens;\n"
           "# queries a text:",
           r->c.model, (int)r->model.n_layers, (int)r->model.n_heads, (int)r->model.n_kv_heads,
           (int)r->model.head_dim, (int)r->c.bodies, (int)r->text.length);
    for (int t = 0; t < TASKS_COUNT; t++)
        if (r->queries_of[t]) printf(" %s %d", tasks_task_name[t], (int)r->queries_of[t]);
    printf("\n");
    fflush(stdout);
}

/* ------------------------------------------------------------ main */

/* Rows of methods that --methods does not name go. */
static void keep_chosen(run *r) {
    int kept = 1;                                           /* dense's */
    for (int i = 1; i < r->variant_count; i++) {
        const variant *v = &r->variants[i];
        const santa_method method = v->sparse ? SANTA_SAMPLE_ATTENTION : v->options.method;
        if (r->c.methods & BIT(method)) r->variants[kept++] = *v;
    }
    r->variant_count = kept;
}

/* Rows that this device does not have are left out, by name. */
static int drop_unavailable(run *r, llama_error *e) {
    llama_state s;
    int kept = 0, status = llama_state_init(&s, &r->model, r->text.length + TASKS_ROOM, e);
    const char *last = "";
    int routed = 0;
    for (int i = 0; i < r->variant_count && status == 0; i++) {
        s.proxy_bits = r->variants[i].proxy_bits;
        if (s.proxy_bits && llama_make_copies(&s, e) != 0) status = -1;
        if (r->variants[i].options.method == SANTA_SAAP && !s.buckets) {
            santa_buckets router[LAYER_BUDGETS_MAX_LAYERS];
            for (int32_t k = 0; k < r->model.n_layers; k++) saap_get_layer(&r->files[0], k, &router[k]);
            const int32_t token = TASKS_BOS;                /* begins the index, which a GPU may not have */
            if (llama_state_route(&s, router, e) != 0
                || (LLAMA_DEVICE == SANTA_CPU && llama_prefill(&s, &token, 1, 0, e) != 0))
                status = -1;
        }
        if (status != 0) break;
        const santa_status why = llama_check(&s, &r->variants[i].options);
        routed |= why == SANTA_OK && r->variants[i].options.method == SANTA_SAAP;
        if (why == SANTA_OK) r->variants[kept++] = r->variants[i];
        else if (why != SANTA_ERR_BACKEND_SCORES)
            status = llama_fail(e, "%s: %s", r->variants[i].method, santa_status_string(why));
        else if (strcmp(last, r->variants[i].method) != 0)
            fprintf(stderr, "left out: %s: %s\n", last = r->variants[i].method, santa_status_string(why));
    }
    r->variant_count = kept;
    if (!routed) r->file_count = 0;                         /* no buckets on this device */
    llama_state_free(&s);
    return status;
}

/* The .saap files of the list. */
static int load_routers(run *r, llama_error *e) {
    const llama_model *m = &r->model;
    const size_t row = (size_t)m->n_kv_heads * MAX_BUCKETS;
    float *order = (float *)LLAMA_ALLOC(row * (size_t)(1 + m->n_layers) * sizeof *order);
    r->random_order = order;
    if (!order) return llama_fail(e, "no memory for routers");
    memset(order, 0, row * sizeof *order);
    for (size_t i = 0; i < row * (size_t)m->n_layers; i++)
        order[row + i] = (float)(tasks_mix((uint64_t)i + 1) >> 40) / 16777216.0f;
    for (const char *at = r->c.buckets; *at; ) {
        const size_t n = strcspn(at, ",");
        char path[1024];
        saap_file *f = &r->files[r->file_count];
        if (r->file_count == MAX_ROUTERS || n >= sizeof path)
            return llama_fail(e, "--buckets wants at most %d files", (int)MAX_ROUTERS);
        memcpy(path, at, n);
        path[n] = 0;
        if (saap_load(path, f, e->text, sizeof e->text) != 0) return -1;
        r->file_count++;
        if (saap_check_model(f, m->n_layers, m->n_kv_heads, m->n_heads / m->n_kv_heads, m->head_dim,
                             e->text, sizeof e->text) != 0) return -1;
        if (f->hidden == 0 || f->num_buckets > MAX_BUCKETS)
            return llama_fail(e, "%s: table 7 wants a classifier of at most %d buckets", path,
                              (int)MAX_BUCKETS);
        at += n + (at[n] == ',');
    }
    return r->file_count ? 0 : llama_fail(e, "--buckets wants a list of files");
}

static int prepare(run *r, llama_error *e) {
    if (llama_load(&r->model, r->c.model, e) != 0) return -1;
    if (r->model.vocab_size != TASKS_VOCAB)
        return llama_fail(
            e, "%s: a vocabulary of %d, but the tasks have %d tokens: it was not trained on them",
            r->c.model, (int)r->model.vocab_size, (int)TASKS_VOCAB);
    if (r->c.length > r->model.seq_len)
        return llama_fail(e, "--length %d: %s was trained up to %d", (int)r->c.length, r->c.model,
                          (int)r->model.seq_len);
    if (r->model.n_layers > LAYER_BUDGETS_MAX_LAYERS || r->model.n_layers > MAX_VARIANTS / 4)
        return llama_fail(e, "%s: %d layers are too many", r->c.model, (int)r->model.n_layers);
    r->text = tasks_default((int32_t)r->c.length, TASKS_EVALUATION);
    const int32_t available[TASKS_COUNT] = { r->text.facts, r->text.chains, r->text.keys, r->text.families,
                                             r->text.passages / TASKS_PIECES };
    for (int t = 0; t < TASKS_COUNT; t++)
        if (r->c.tasks >> t & 1u)
            r->queries_of[t] = (int32_t)llama_min(t == TASKS_PLAIN ? 1 : r->c.queries, available[t]);
    add_variant(r, 0, "dense", "-", llama_dense());
    if (r->c.tables & 1u << 0) add_table_1(r);
    if (r->c.tables & 1u << 1) add_table_2(r);
    if (r->c.tables & 1u << 2) add_table_3(r);
    if (r->c.tables & 1u << 4) add_sensitivity(r);
    if (r->c.tables & 1u << 5) add_table_6(r);
    if (r->c.tables & 1u << 6) {
        if ((r->c.methods & BIT(SANTA_SAAP)) && load_routers(r, e) != 0) return -1;
        add_table_7(r);
    }
    if (r->c.tables & 1u << 7) add_table_8(r);
    keep_chosen(r);
    return drop_unavailable(r, e);
}

static int evaluate(run *r, llama_error *e) {
    static const double length[TASKS_COUNT] = { 2, 3, 5, 4, TASKS_MAX_ANSWER };
    double steps = 0.0;
    if ((r->c.tables & 1u << 4) && add_searched(r) != 0) return llama_fail(e, "%s", r->error.text);
    r->cells = (cell *)calloc((size_t)(r->c.bodies * r->variant_count * TASKS_COUNT), sizeof *r->cells);
    r->means = (measures *)calloc((size_t)r->c.bodies, sizeof *r->means);
    if (!r->cells || !r->means) return llama_fail(e, "no memory for the results");
    for (int t = 0; t < TASKS_COUNT; t++) steps += length[t] * r->queries_of[t] * r->variant_count;
    double prefills = 1.0;
    for (int i = 0; i < r->variant_count; i++) prefills += r->variants[i].sparse;
    if (r->c.tables & 1u << 7) prefills += 1.0 + PROBE_PREFILLS * alpha_count(r);
    r->all = (double)r->c.bodies * (steps + prefills * steps_of_prefill(r));
    r->start = llama_seconds();
    parallel(r, r->c.bodies, body_task, r);
    return r->failed ? llama_fail(e, "%s", r->error.text) : 0;
}

static void print_list(const run *r) {
    printf("tasks:");
    for (int t = 0; t < TASKS_COUNT; t++) printf(" %s", tasks_task_name[t]);
    printf("\ntable  method                 budget\n");
    for (int i = 0; i < r->variant_count; i++)
        printf("%5d  %-22s %s\n", r->variants[i].table, r->variants[i].method, r->variants[i].budget);
}

int main(int argc, char **argv) {
    static run r;
    llama_error e = { "" };
    FILE *csv = NULL;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_mutex_init(&r.mutex, NULL);
    r.c.model = "bench/accuracy/longctx.bin";
    r.c.bodies = 24;
    r.c.length = 8192;
    r.c.queries = 4;
    r.c.threads = cores < 1 ? 1 : llama_min(cores, MAX_THREADS);
    r.c.seed = 1;
    r.c.steps = 40;
    r.c.samples = 4;
    r.c.tasks = ~0u;
    r.variants = (variant *)calloc(MAX_VARIANTS, sizeof *r.variants);
    int status = r.variants ? parse_arguments(&r.c, argc, argv, &e) : llama_fail(&e, "out of memory");
    if (status == 0 && r.c.help) { print_help(); return 0; }
    if (status == 0) status = prepare(&r, &e);
    if (status == 0 && r.c.list) { print_list(&r); return 0; }
    if (status == 0 && r.c.csv && !(csv = fopen(r.c.csv, "w")))
        status = llama_fail(&e, "cannot write %s: %s", r.c.csv, strerror(errno));
    if (status == 0) {
        print_header(&r, argc, argv);
        status = evaluate(&r, &e);
    }
    if (status == 0) {
        const double seconds = llama_seconds() - r.start;
        if (report(&r, csv) != 0) status = llama_fail(&e, "no memory for the report");
        printf("# %.0f s; dense prefill of a text: %.1f s on one thread\n", seconds,
               r.prefill / (double)r.c.bodies);
    }
    if (csv && (ferror(csv) != 0 || fclose(csv) != 0)) status = llama_fail(&e, "cannot write %s", r.c.csv);
    for (int64_t b = 0; r.means && b < r.c.bodies; b++) free(r.means[b].data);
    free(r.means);
    free(r.cells);
    free(r.variants);
    for (int i = 0; i < MAX_ROUTERS; i++) saap_free(&r.files[i]);
    LLAMA_FREE(r.random_order);
    llama_free(&r.model);
    if (status == 0 && (fflush(stdout) != 0 || ferror(stdout)))
        status = llama_fail(&e, "cannot write the output");
    if (status != 0) fprintf(stderr, "accuracy: %s\n", e.text);
    return status == 0 ? 0 : 1;
}
