/* Writes queries and keys of training texts before and behind RoPE, for examples/saap/train.py;
   the format is in examples/saap/README.md. Texts are of tasks.h's training stream, never those
   that the accuracy tables ask about, with seeds that the model's own training did not use.
   Build: cc -O2 bench/accuracy/saap_dump.c -o saap_dump -lm

       saap_dump --texts 10 --seed 1 --out build/train-     build/train-0.dump ... build/train-9.dump
       saap_dump --texts 4 --seed 2 --out build/heldout-    other texts, to evaluate with

   Rows are some positions of the body (kind 0) and all decode steps of its questions with their
   right answers (kind 1), each question straight behind the body, as the accuracy program
   asks. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L                             /* clock_gettime */
#endif
#define SANTA_IMPLEMENTATION
#include "../../santa.h"
#include "../../examples/llama.h"
#include "tasks.h"

enum { HEADER = 64, VERSION = 1, HAS_LSE = 1,
       TEXT_EVERY = 4 /* of TEXT's 56 steps, or they would outnumber all others */ };

typedef struct config {
    const char *model, *out;
    int64_t texts, seed, length, rows;
    int     f32, help;
} config;

/* What is kept of a layer; the arrays of a dump's file in their order. */
typedef struct layer_rows { float *q_plain, *q, *k_plain, *k, *lse; } layer_rows;

typedef struct dump {
    const config *c;
    llama_model   model;
    llama_state   s;
    tasks_config  text;
    int32_t      *token;                /* [text.length] */
    tasks_query  *query;
    int32_t       queries;
    int64_t       rows, most_rows;
    int32_t      *position, *kind;      /* [most_rows] */
    int32_t      *row_at;               /* [text.length + TASKS_ROOM] the position's row now, or -1 */
    float        *score;                /* [text.length + TASKS_ROOM] */
    layer_rows   *layer;
    FILE         *file;
} dump;

/* ------------------------------------------------------------ rows */

/* Log of the sum of exp(scores) of all keys that the head sees. */
static float log_sum_exp(const dump *d, const float *q, const float *k, int64_t keys) {
    const int64_t n = d->model.head_dim;
    const float scale = 1.0f / sqrtf((float)n);
    float most = -HUGE_VALF;
    double sum = 0.0;
    for (int64_t j = 0; j < keys; j++) {
        d->score[j] = scale * llama_dot(q, k + j * d->model.kv_dim, n);
        if (d->score[j] > most) most = d->score[j];
    }
    for (int64_t j = 0; j < keys; j++) sum += (double)expf(d->score[j] - most);
    return most + (float)log(sum);
}

static void keep_rows(void *user, const llama_state *s, int32_t layer, int64_t position, int64_t n) {
    const dump *d = (const dump *)user;
    const llama_model *m = s->model;
    const layer_rows *to = &d->layer[layer];
    const size_t q_bytes = (size_t)m->q_dim * sizeof(float), kv_bytes = (size_t)m->kv_dim * sizeof(float);
    const float *cache = s->k_cache + (int64_t)layer * s->capacity * m->kv_dim;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = position + i, row = d->row_at[at];
        if (at < d->text.length) {
            memcpy(to->k_plain + at * m->kv_dim, s->k_plain + i * m->kv_dim, kv_bytes);
            memcpy(to->k + at * m->kv_dim, cache + at * m->kv_dim, kv_bytes);
        }
        if (row < 0) continue;
        memcpy(to->q_plain + row * m->q_dim, s->q_plain + i * m->q_dim, q_bytes);
        memcpy(to->q + row * m->q_dim, s->q + i * m->q_dim, q_bytes);
        for (int64_t h = 0; h < m->n_heads; h++)
            to->lse[row * m->n_heads + h] =
                log_sum_exp(d, s->q + i * m->q_dim + h * m->head_dim,
                            cache + h / (m->n_heads / m->n_kv_heads) * m->head_dim, at + 1);
    }
}

static void add_row(dump *d, int64_t position, int32_t kind) {
    d->row_at[position] = (int32_t)d->rows;
    d->position[d->rows] = (int32_t)position;
    d->kind[d->rows++] = kind;
}

static void no_rows(dump *d) {
    for (int64_t i = 0; i < d->text.length + TASKS_ROOM; i++) d->row_at[i] = -1;
}

/* Rows of the last three quarters of the body, each once. */
static void pick_context_rows(dump *d, uint64_t seed) {
    uint64_t random = tasks_mix(seed + 77);
    const int32_t first = d->text.length / 4, places = d->text.length - first;
    for (int64_t i = 0; i < d->c->rows;) {
        const int32_t at = first + tasks_below(&random, places);
        if (d->row_at[at] < 0) { add_row(d, at, 0); i++; }
    }
}

/* All steps but the prompt's before its last token, which no method under test sees. */
static int ask(dump *d, const tasks_query *q, llama_error *e) {
    int32_t token[TASKS_MAX_PROMPT + TASKS_MAX_ANSWER];
    const int stop = q->task != TASKS_PLAIN;
    const int32_t n = q->prompt_length + q->answer_length - !stop;
    memcpy(token, q->prompt, (size_t)q->prompt_length * sizeof *token);
    memcpy(token + q->prompt_length, q->answer, (size_t)(n - q->prompt_length) * sizeof *token);
    no_rows(d);
    for (int32_t i = q->prompt_length - 1; i < n; i += stop ? 1 : TEXT_EVERY)
        add_row(d, d->text.length + i, 1);
    return llama_prefill(&d->s, token, n, d->text.length, e);
}

/* ------------------------------------------------------------ file */

static void put_u32(unsigned char *p, uint32_t x) {
    for (int i = 0; i < 4; i++) p[i] = (unsigned char)(x >> 8 * i);
}

static void write_i32(dump *d, const int32_t *x) {
    for (int64_t i = 0; i < d->rows; i++) {
        unsigned char b[4];
        put_u32(b, (uint32_t)x[i]);
        fwrite(b, 1, sizeof b, d->file);
    }
}

static void write_floats(dump *d, const float *x, int64_t n, int f32) {
    for (int64_t i = 0; i < n; i++) {
        unsigned char b[4];
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        put_u32(b, f32 ? u : santa_f32_to_f16(x[i]));
        fwrite(b, 1, f32 ? 4 : 2, d->file);
    }
}

static int write_dump(dump *d, const char *path, llama_error *e) {
    const llama_model *m = &d->model;
    const uint32_t field[10] = { VERSION, (uint32_t)m->n_layers, (uint32_t)m->n_heads,
                                 (uint32_t)m->n_kv_heads, (uint32_t)m->head_dim, d->c->f32 ? 0u : 1u,
                                 HAS_LSE, (uint32_t)d->text.length, (uint32_t)d->rows,
                                 0 /* the usual scale */ };
    unsigned char header[HEADER] = "SAAPDUMP";
    for (int i = 0; i < 10; i++) put_u32(header + 8 + 4 * i, field[i]);
    d->file = fopen(path, "wb");
    if (!d->file) return llama_fail(e, "cannot write %s: %s", path, strerror(errno));
    fwrite(header, 1, sizeof header, d->file);
    write_i32(d, d->position);
    write_i32(d, d->kind);
    for (int32_t i = 0; i < m->n_layers; i++) {
        const layer_rows *l = &d->layer[i];
        write_floats(d, l->q_plain, d->rows * m->q_dim, d->c->f32);
        write_floats(d, l->q, d->rows * m->q_dim, d->c->f32);
        write_floats(d, l->k_plain, (int64_t)d->text.length * m->kv_dim, d->c->f32);
        write_floats(d, l->k, (int64_t)d->text.length * m->kv_dim, d->c->f32);
        write_floats(d, l->lse, d->rows * m->n_heads, 1);
    }
    const int broken = ferror(d->file) != 0;
    return fclose(d->file) != 0 || broken ? llama_fail(e, "cannot write %s", path) : 0;
}

/* ------------------------------------------------------------ program */

static float *floats(int64_t rows, int64_t columns) {
    return (float *)malloc((size_t)rows * (size_t)columns * sizeof(float));
}

static int open_dump(dump *d, llama_error *e) {
    if (llama_load(&d->model, d->c->model, e) != 0) return -1;
    const llama_model *m = &d->model;
    if (m->vocab_size != TASKS_VOCAB)
        return llama_fail(e, "%s was not trained on the texts of tasks.h", d->c->model);
    d->text = tasks_default((int32_t)d->c->length, TASKS_TRAINING);
    if (d->c->rows > d->text.length / 2)
        return llama_fail(e, "--rows %d is more than half of a text's %d tokens: --rows or --length",
                          (int)d->c->rows, (int)d->text.length);
    const int64_t positions = d->text.length + TASKS_ROOM;
    d->queries = tasks_query_count(&d->text);
    d->most_rows = d->c->rows + (int64_t)d->queries * TASKS_MAX_ANSWER;
    d->token = (int32_t *)malloc((size_t)d->text.length * sizeof *d->token);
    d->query = (tasks_query *)malloc((size_t)d->queries * sizeof *d->query);
    d->position = (int32_t *)malloc((size_t)d->most_rows * sizeof *d->position);
    d->kind = (int32_t *)malloc((size_t)d->most_rows * sizeof *d->kind);
    d->row_at = (int32_t *)malloc((size_t)positions * sizeof *d->row_at);
    d->score = floats(positions, 1);
    d->layer = (layer_rows *)calloc((size_t)m->n_layers, sizeof *d->layer);
    int whole = d->token && d->query && d->position && d->kind && d->row_at && d->score && d->layer;
    for (int32_t i = 0; i < m->n_layers && whole; i++) {
        layer_rows *l = &d->layer[i];
        l->q_plain = floats(d->most_rows, m->q_dim);
        l->q = floats(d->most_rows, m->q_dim);
        l->k_plain = floats(d->text.length, m->kv_dim);
        l->k = floats(d->text.length, m->kv_dim);
        l->lse = floats(d->most_rows, m->n_heads);
        whole = l->q_plain && l->q && l->k_plain && l->k && l->lse;
    }
    if (!whole) return llama_fail(e, "no memory for the rows of a text");
    if (llama_state_init(&d->s, m, positions, e) != 0) return -1;
    d->s.rows = keep_rows;
    d->s.rows_user = d;
    return 0;
}

static void close_dump(dump *d) {
    for (int32_t i = 0; d->layer && i < d->model.n_layers; i++) {
        free(d->layer[i].q_plain);
        free(d->layer[i].q);
        free(d->layer[i].k_plain);
        free(d->layer[i].k);
        free(d->layer[i].lse);
    }
    free(d->layer);
    free(d->token);
    free(d->query);
    free(d->position);
    free(d->kind);
    free(d->row_at);
    free(d->score);
    llama_state_free(&d->s);
    llama_free(&d->model);
}

static int dump_text(dump *d, int64_t i, llama_error *e) {
    /* The model's training had seeds from 1 << 44 on. */
    const uint64_t seed = (UINT64_C(3) << 60) + (uint64_t)d->c->seed * 1000003u + (uint64_t)i;
    const double start = llama_seconds();
    tasks_error te;
    char path[1024];
    d->rows = 0;
    no_rows(d);
    if (tasks_make(&d->text, seed, d->token, d->query, &te) != 0) return llama_fail(e, "%s", te.text);
    pick_context_rows(d, seed);
    if (llama_prefill(&d->s, d->token, d->text.length, 0, e) != 0) return -1;
    for (int32_t q = 0; q < d->queries; q++) if (ask(d, &d->query[q], e) != 0) return -1;
    if (snprintf(path, sizeof path, "%s%d.dump", d->c->out, (int)i) >= (int)sizeof path)
        return llama_fail(e, "--out is too long");
    if (write_dump(d, path, e) != 0) return -1;
    printf("%s: %d keys, %d rows, %d of them of questions, %.1f s\n", path, (int)d->text.length,
           (int)d->rows, (int)(d->rows - d->c->rows), llama_seconds() - start);
    fflush(stdout);
    return 0;
}

static int parse_number(const char *name, const char *text, int64_t low, int64_t high, int64_t *value,
                        llama_error *e) {
    char *end = NULL;
    errno = 0;
    *value = strtoll(text, &end, 10);
    if (end == text || *end != 0 || errno != 0 || *value < low || *value > high)
        return llama_fail(e, "%s wants a number from %lld to %lld, not '%s'", name, (long long)low,
                          (long long)high, text);
    return 0;
}

static int parse_arguments(config *c, int argc, char **argv, llama_error *e) {
    const struct { const char *name; int64_t *value, low, high; } numbers[] = {
        { "--texts", &c->texts, 1, 1 << 20 },    { "--seed", &c->seed, 0, 1 << 30 },
        { "--length", &c->length, 512, 1 << 24 }, { "--rows", &c->rows, 0, 1 << 20 },
    };
    const int count = (int)(sizeof numbers / sizeof numbers[0]);
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        int n = 0;
        if (!strcmp(name, "--help")) { c->help = 1; continue; }
        if (!strcmp(name, "--f32")) { c->f32 = 1; continue; }
        while (n < count && strcmp(name, numbers[n].name) != 0) n++;
        if (n == count && strcmp(name, "--model") != 0 && strcmp(name, "--out") != 0)
            return llama_fail(e, "unknown option %s: --help lists them", name);
        if (!value) return llama_fail(e, "%s wants a value", name);
        i++;
        if (!strcmp(name, "--model")) c->model = value;
        else if (!strcmp(name, "--out")) c->out = value;
        else if (parse_number(name, value, numbers[n].low, numbers[n].high, numbers[n].value, e) != 0)
            return -1;
    }
    return 0;
}

int main(int argc, char **argv) {
    config c = { "bench/accuracy/longctx.bin", "build/saap-", 10, 1, 8192, 384, 0, 0 };
    llama_error e = { "" };
    dump d;
    memset(&d, 0, sizeof d);
    d.c = &c;
    int status = parse_arguments(&c, argc, argv, &e);
    if (status == 0 && c.help) {
        printf("saap_dump: queries and keys of training texts, for examples/saap/train.py\n\n"
               "  --texts N     [10]\n"
               "  --seed N      of the texts: others are other texts  [1]\n"
               "  --length L    tokens of context: a text, a question and its answer  [8192]\n"
               "  --rows N      of the text, beside those of its questions  [384]\n"
               "  --f32         numbers of 32 bits, not 16\n"
               "  --out PREFIX  files PREFIX0.dump, PREFIX1.dump, ...  [build/saap-]\n"
               "  --model FILE  [bench/accuracy/longctx.bin]\n");
        return 0;
    }
    if (status == 0) status = open_dump(&d, &e);
    for (int64_t i = 0; i < c.texts && status == 0; i++) status = dump_text(&d, i, &e);
    close_dump(&d);
    if (status != 0) fprintf(stderr, "%s\n", e.text);
    return status != 0;
}
