/* Which SampleAttention settings each layer's prefill should have, by length of the prompt: the
   fastest whose output is off by no more than what is accepted. Without arguments on three
   synthetic layers; with --model on what the layers of a model have in a text, for the
   decoder's --prefill-options. Build: cc -O2 examples/prefill_tune.c -lm */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#endif
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "llama.h"
#include "prefill_options.h"
#include "../bench/accuracy/tasks.h"

enum { MAX_RANGES = PREFILL_MAX_RANGES, TURNS = 2 };

typedef struct tuner {
    const char *model, *tokenizer, *text, *out, *state;
    double  loss;
    int64_t lengths[MAX_RANGES];
    int32_t ranges, layers;
    int64_t n, heads, kv_heads, dim;
    float  *q, *k, *v;          /* [layers, n, heads or kv_heads, dim] */
    float  *dense, *got;        /* [n, heads, dim] */
    santa_sample_audit *audit;  /* [heads] */
    int32_t dense_range, dense_layer;    /* what dense is of, or -1 */
    int     last_is_dense;      /* a model: of its last layer only keys and values are wanted */
} tuner;

/* ------------------------------------------------------------ time and loss */

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static santa_attention layer_attention(const tuner *t, int32_t range, int32_t layer, float *out) {
    const int64_t n = t->lengths[range];
    santa_attention a;
    memset(&a, 0, sizeof a);
    a.q = santa_view(t->q + layer * t->n * t->heads * t->dim, SANTA_F32, 1, n, t->heads, t->dim);
    a.k = santa_view(t->k + layer * t->n * t->kv_heads * t->dim, SANTA_F32, 1, n, t->kv_heads, t->dim);
    a.v = santa_view(t->v + layer * t->n * t->kv_heads * t->dim, SANTA_F32, 1, n, t->kv_heads, t->dim);
    a.out = santa_view(out, SANTA_F32, 1, n, t->heads, t->dim);
    a.causal = 1;
    return a;
}

/* Processor time of the best of some calls, or -1. */
static double attend(const tuner *t, int32_t range, int32_t layer, const santa_options *o, float *out) {
    const santa_attention a = layer_attention(t, range, layer, out);
    const size_t bytes = santa_workspace_size(&a, o);
    void *workspace = malloc(bytes);
    santa_status status = workspace ? SANTA_OK : SANTA_ERR_WORKSPACE_NULL;
    double best = 1e30;
    for (int turn = 0; turn < TURNS && status == SANTA_OK; turn++) {
        const double start = cpu_seconds();
        status = santa_decode(&a, o, workspace, bytes, NULL);
        const double seconds = cpu_seconds() - start;
        if (seconds < best) best = seconds;
    }
    free(workspace);
    if (status != SANTA_OK) fprintf(stderr, "\n%s\n", santa_status_string(status));
    return status == SANTA_OK ? best : -1.0;
}

/* prefill_measure. The loss is the error of a row's output against dense, relative, mean over
   rows. What runs dense after all is no choice, however fast it was this time. */
static int measure(void *user, int32_t range, int32_t layer, const santa_options *o, double *seconds,
                   double *loss) {
    tuner *t = (tuner *)user;
    const int64_t n = t->lengths[range], width = t->heads * t->dim;
    const santa_options dense = llama_dense();
    *seconds = *loss = 0.0;
    if (t->last_is_dense && layer + 1 == t->layers) return 0;
    if (o->method == SANTA_DENSE || t->dense_range != range || t->dense_layer != layer) {
        *seconds = attend(t, range, layer, &dense, t->dense);
        t->dense_range = range;
        t->dense_layer = layer;
    }
    if (o->method != SANTA_DENSE) {
        santa_options audited = *o;
        int sparse_heads = 0;
        audited.sample_attention.audit = t->audit;
        *seconds = attend(t, range, layer, &audited, t->got);
        for (int64_t h = 0; h < t->heads; h++) sparse_heads += !t->audit[h].is_dense;
        if (*seconds >= 0.0 && sparse_heads == 0) *seconds = 1e9;
        for (int64_t i = 0; i < n; i++)
            *loss += santa_relative_l2(t->got + i * width, t->dense + i * width, width) / (double)n;
    }
    return *seconds < 0.0 ? -1 : 0;
}

/* ------------------------------------------------------------ layers */

static int make_room(tuner *t) {
    const size_t rows = (size_t)(t->n * t->dim), all = rows * (size_t)t->layers;
    t->q = (float *)malloc(all * (size_t)t->heads * sizeof *t->q);
    t->k = (float *)malloc(all * (size_t)t->kv_heads * sizeof *t->k);
    t->v = (float *)malloc(all * (size_t)t->kv_heads * sizeof *t->v);
    t->dense = (float *)malloc(rows * (size_t)t->heads * sizeof *t->dense);
    t->got = (float *)malloc(rows * (size_t)t->heads * sizeof *t->got);
    t->audit = (santa_sample_audit *)malloc((size_t)t->heads * sizeof *t->audit);
    t->dense_range = t->dense_layer = -1;
    return t->audit && t->q && t->k && t->v && t->dense && t->got ? 0 : -1;
}

static float uniform(uint64_t *state) { return (float)llama_uniform(state) * 2.0f - 1.0f; }

/* Layer 0 looks at the first 64 keys and 64 others, layer 1 at the last some, layer 2
   everywhere. */
static int make_layers(tuner *t) {
    enum { N = 2048, HEADS = 4, KV_HEADS = 1, D = 32, LAYERS = 3 };
    uint64_t random = 1;
    t->n = N;
    t->heads = HEADS;
    t->kv_heads = KV_HEADS;
    t->dim = D;
    t->layers = LAYERS;
    if (t->ranges == 0) {
        t->lengths[t->ranges++] = N / 2;
        t->lengths[t->ranges++] = N;
    }
    if (make_room(t) != 0) return -1;
    for (int layer = 0; layer < LAYERS; layer++)
        for (int64_t j = 0; j < N; j++)
            for (int64_t h = 0; h <= HEADS; h++) {           /* the last one is the key */
                const int64_t row = layer * N + j;
                float *x = h < HEADS ? t->q + (row * HEADS + h) * D : t->k + row * D;
                for (int i = 0; i < D; i++) {
                    const double angle = 0.5 * (double)j * exp(-0.2 * (double)(i / 2));
                    x[i] = 0.3f * uniform(&random);
                    if (layer == 1) x[i] += 2.4f * (float)(i % 2 ? sin(angle) : cos(angle));
                }
                if (layer == 0) x[0] = h < HEADS || j / 64 == 0 || j / 64 == 5 ? 8.0f : 0.0f;
            }
    for (int64_t i = 0; i < LAYERS * N * KV_HEADS * D; i++) t->v[i] = uniform(&random);
    return 0;
}

static void keep(void *user, const llama_state *s, int32_t layer, int64_t position, int64_t n) {
    tuner *t = (tuner *)user;
    const size_t size = (size_t)n * (size_t)t->dim * sizeof(float);
    const int64_t row = layer * t->n + position, from = (layer * s->capacity + position) * s->model->kv_dim;
    memcpy(t->q + row * t->heads * t->dim, s->q, size * (size_t)t->heads);
    memcpy(t->k + row * t->kv_heads * t->dim, s->k_cache + from, size * (size_t)t->kv_heads);
    memcpy(t->v + row * t->kv_heads * t->dim, s->v_cache + from, size * (size_t)t->kv_heads);
}

/* The text's tokens; for the model of bench/accuracy a text of its tasks. free() them. */
static int32_t *read_tokens(const tuner *t, const llama_model *m, size_t *count, llama_error *e) {
    if (m->vocab_size == TASKS_VOCAB && !t->text) {
        const tasks_config c = tasks_default((int32_t)t->n + TASKS_ROOM, TASKS_TRAINING);
        tasks_error why;
        tasks_query *query = (tasks_query *)malloc((size_t)tasks_query_count(&c) * sizeof *query);
        int32_t *token = (int32_t *)malloc((size_t)c.length * sizeof *token);
        *count = (size_t)c.length;
        const int made = query && token && tasks_make(&c, UINT64_C(1) << 41, token, query, &why) == 0;
        free(query);
        if (made) return token;
        free(token);
        llama_fail(e, "no text of %d tokens", (int)c.length);
        return NULL;
    }
    llama_tokenizer tokenizer;
    size_t length;
    char *text = llama_read_file(t->text ? t->text : "examples/model/heldout.txt", &length, e);
    if (!text) return NULL;
    int32_t *token = NULL;
    if (llama_load_tokenizer(&tokenizer, t->tokenizer, m->vocab_size, e) == 0) {
        token = llama_encode(&tokenizer, text, length, count, e);
        llama_free_tokenizer(&tokenizer);
    }
    free(text);
    return token;
}

/* What the layers have in a dense prefill of the text. */
static int capture_layers(tuner *t, llama_error *e) {
    llama_model m;
    llama_state s;
    size_t count = 0;
    memset(&s, 0, sizeof s);
    if (llama_load(&m, t->model, e) != 0) return -1;
    if (t->ranges == 0) {
        t->lengths[t->ranges++] = m.seq_len / 4;
        t->lengths[t->ranges++] = m.seq_len - TASKS_ROOM;
    }
    t->n = t->lengths[t->ranges - 1];
    t->heads = m.n_heads;
    t->kv_heads = m.n_kv_heads;
    t->dim = m.head_dim;
    t->layers = m.n_layers;
    t->last_is_dense = 1;
    int32_t *token = read_tokens(t, &m, &count, e);
    int status = token ? 0 : -1;
    if (status == 0 && (int64_t)count < t->n)
        status = llama_fail(e, "the text has %d tokens, fewer than %lld", (int)count, (long long)t->n);
    if (status == 0 && make_room(t) != 0) status = llama_fail(e, "no memory for the layers");
    if (status == 0) status = llama_state_init(&s, &m, t->n, e);
    s.rows = keep;
    s.rows_user = t;
    if (status == 0) status = llama_prefill(&s, token, t->n, 0, e);
    llama_state_free(&s);
    llama_free(&m);
    free(token);
    return status;
}

/* Of lengths, model and text, by what the layers have. */
static uint64_t hash_of(const tuner *t) {
    const size_t all = (size_t)(t->layers * t->n * t->dim) * sizeof *t->q;
    uint64_t hash = prefill_hash(0, t->lengths, sizeof t->lengths);
    hash = prefill_hash(hash, t->q, all * (size_t)t->heads);
    hash = prefill_hash(hash, t->k, all * (size_t)t->kv_heads);
    return prefill_hash(hash, t->v, all * (size_t)t->kv_heads);
}

/* ------------------------------------------------------------ the program */

static int help(void) {
    fprintf(stdout,
            "prefill_tune: the fastest SampleAttention settings of each layer and length\n"
            "within a loss\n\n"
            "  --loss L          error of the output against dense, relative, mean of\n"
            "                    rows  [0.05]\n"
            "  --model FILE      a model's layers instead of synthetic ones\n"
            "  --tokenizer FILE  [examples/model/tokenizer.bin]\n"
            "  --text FILE       that it reads  [examples/model/heldout.txt, or for\n"
            "                    bench/accuracy/longctx.bin a text of its tasks]\n"
            "  --lengths LIST    of prompts, ascending; each ends a range\n"
            "  --state FILE      what was measured: goes on where it was interrupted\n"
            "  --out FILE        for the decoder's --prefill-options\n");
    return 0;
}

static int parse(tuner *t, int argc, char **argv, llama_error *e) {
    for (int i = 1; i < argc; i++) {
        const struct { const char *name; const char **value; } texts[] = {
            { "--model", &t->model }, { "--tokenizer", &t->tokenizer }, { "--text", &t->text },
            { "--state", &t->state }, { "--out", &t->out },
        };
        const char *name = argv[i], *value = i + 1 < argc ? argv[++i] : NULL;
        size_t n = 0;
        while (n < sizeof texts / sizeof *texts && strcmp(name, texts[n].name) != 0) n++;
        const int is_text = n < sizeof texts / sizeof *texts, is_loss = !strcmp(name, "--loss");
        if (!is_text && !is_loss && strcmp(name, "--lengths") != 0)
            return llama_fail(e, "unknown option %s: --help lists them", name);
        if (!value) return llama_fail(e, "%s wants a value", name);
        char *end = NULL;
        if (is_text) *texts[n].value = value;
        else if (is_loss) {
            t->loss = strtod(value, &end);
            if (end == value || *end || !(t->loss >= 0.0 && t->loss <= 1.0))
                return llama_fail(e, "--loss wants a value between 0 and 1, not %s", value);
        } else {
            t->ranges = 0;
            for (const char *at = value; *at; at = end + (*end == ',')) {
                const long long x = strtoll(at, &end, 10);
                if (end == at || (*end && *end != ',') || t->ranges == MAX_RANGES || x < 64 || x > 1 << 24
                    || (t->ranges > 0 && x <= t->lengths[t->ranges - 1])) { t->ranges = 0; break; }
                t->lengths[t->ranges++] = x;
            }
            if (t->ranges == 0)
                return llama_fail(e, "--lengths wants up to %d lengths from 64 to %d, ascending, not %s",
                                  MAX_RANGES, 1 << 24, value);
        }
    }
    if (!t->model && (t->text || t->ranges || t->tokenizer))
        return llama_fail(e, "--text, --lengths and --tokenizer want a --model");
    if (!t->tokenizer) t->tokenizer = "examples/model/tokenizer.bin";
    FILE *f = t->out ? fopen(t->out, "ab") : NULL;   /* before minutes of measuring */
    if (t->out && !f) return llama_fail(e, "cannot write %s", t->out);
    if (f) fclose(f);
    return 0;
}

/* What was chosen, measured again. Returns 0 if every loss is accepted. */
static int report(tuner *t, const prefill_options_file *f, double *gain) {
    double dense_sum = 0.0, sum = 0.0;
    int bad = 0;
    for (int32_t range = 0; range < f->ranges; range++)
        for (int32_t layer = 0; layer < f->layers; layer++) {
            const prefill_setting *x = &f->setting[range][layer];
            const santa_options o = prefill_options_from(x, f->block), exact = llama_dense();
            double dense, seconds, loss = 0.0;
            if (measure(t, range, layer, &exact, &dense, &loss) != 0) return -1;
            seconds = dense;
            if (x->chunks && measure(t, range, layer, &o, &seconds, &loss) != 0) return -1;
            bad |= loss > t->loss;
            dense_sum += dense;
            sum += seconds;
            printf("%6lld tokens, layer %d: ", (long long)t->lengths[range], (int)layer);
            if (!x->chunks) { printf("dense\n"); continue; }
            printf("alpha %.2f columns, %.2f slashes, %d slice%s: %5.2f times as fast, loss %.4f\n",
                   x->alpha_columns, x->alpha_slashes, (int)x->chunks, x->chunks == 1 ? "" : "s",
                   dense / seconds, loss);
        }
    *gain = dense_sum / sum;
    printf("all layers: %.2f times as fast as dense\n", *gain);
    return bad ? -1 : 0;
}

int main(int argc, char **argv) {
    static tuner t;
    static prefill_options_file f;
    llama_error e = { "" };
    double gain = 0.0;
    t.loss = 0.05;
    if (argc == 2 && !strcmp(argv[1], "--help")) return help();
    if (parse(&t, argc, argv, &e) != 0) {
        fprintf(stderr, "prefill_tune: %s\n", e.text);
        return 1;
    }
    int status = t.model ? capture_layers(&t, &e) : make_layers(&t);
    if (status == 0) {
        prefill_search s = prefill_search_default(t.layers, t.ranges, t.loss);
        for (int32_t i = 0; i + 1 < t.ranges; i++) s.upto[i] = t.lengths[i];
        s.state_path = t.state;
        if (t.state) s.subject = hash_of(&t);
        s.progress = t.model ? stderr : NULL;
        status = prefill_search_run(&s, measure, &t, &f, e.text, sizeof e.text);
    }
    if (status == 0) status = report(&t, &f, &gain);
    if (status == 0 && t.out) status = prefill_options_save(t.out, &f, e.text, sizeof e.text);
    /* of the synthetic ones the third has nothing to leave out; a loss of your own may allow
       less */
    if (status == 0 && argc == 1 && (gain < 1.0 || f.setting[1][0].chunks == 0 || f.setting[1][2].chunks))
        status = llama_fail(&e, "the search found what it should not");
    if (status != 0) fprintf(stderr, "prefill_tune: %s\n", e.text[0] ? e.text : "failed");
    free(t.q);
    free(t.k);
    free(t.v);
    free(t.dense);
    free(t.got);
    free(t.audit);
    return status == 0 ? 0 : 1;
}
