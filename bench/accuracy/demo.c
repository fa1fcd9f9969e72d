/* The second half of `make demo`: a model reads 8k tokens and answers questions about them, and
   one layer's attention at 32k keys is timed, exactly and sampled.
   Build: cc -O2 bench/accuracy/demo.c -lm */
#define _POSIX_C_SOURCE 200809L
#define SANTA_IMPLEMENTATION
#include "../../santa.h"
#include "../../examples/llama.h"
#include "../bench.h"
#include "tasks.h"

enum { CONTEXT = 8192, DRAWS = 64, WAYS = 3, PER_TASK = 3, MOST_OUTPUT = TASKS_MAX_ANSWER };

static void fail(const char *what) { fprintf(stderr, "demo: %s\n", what); exit(1); }

static const struct { const char *name; santa_method method; santa_scores_method scores; } ways[WAYS] = {
    { "exact",             SANTA_DENSE, SANTA_SCORES_EXACT },
    { "sys, 64 draws",     SANTA_SYS,   SANTA_SCORES_EXACT },
    { "pps, 64, 4-bit K",  SANTA_PPS,   SANTA_SCORES_PROXY },
};

/* ------------------------------------------------------------ questions */

/* seconds: of a step, the least of all questions */
static struct { double right, asked, seconds, v_rows, k_rows, keys; } sum[WAYS];

static void print_tokens(const int32_t *token, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        char name[16];
        tasks_name(token[i], name);
        printf("%s%s", i ? " " : "", name);
    }
}

/* The question's last token is the first step; the answer ends with a full stop. */
static int32_t answer(llama_state *s, const tasks_query *q, int64_t position, int32_t *output) {
    llama_error e;
    int32_t token = q->prompt[q->prompt_length - 1], n = 0;
    while (n < tasks_limit(q) && n < MOST_OUTPUT) {
        if (llama_forward(s, token, position + n, 1, &e) != 0) fail(e.text);
        output[n++] = token = llama_argmax(s->logits, s->model->vocab_size);
        if (token == TASKS_STOP) break;
    }
    return n;
}

static void ask(llama_state *s, const tasks_query *q, int64_t body, uint64_t seed) {
    llama_error e;
    if (llama_prefill(s, q->prompt, q->prompt_length - 1, body, &e) != 0) fail(e.text);
    printf("  ");
    print_tokens(q->prompt, q->prompt_length);
    for (int w = 0; w < WAYS; w++) {
        int32_t output[MOST_OUTPUT];
        santa_options o = { 0 };
        o.method = ways[w].method;
        o.scores = ways[w].scores;
        o.num_samples = w ? DRAWS : 0;
        o.seed = seed;
        if (llama_state_options(s, &o, &e) != 0) fail(e.text);
        const int32_t n = answer(s, q, body + q->prompt_length - 1, output);
        const double grade = tasks_grade(q, output, n);
        if (w == 0) {
            printf("  ->  ");
            print_tokens(output, n);
            if (grade < 1.0) printf("  (wrong)");
        } else if (grade < 1.0) {
            printf("\n      %s says ", ways[w].name);
            print_tokens(output, n);
        }
        sum[w].right += grade;
        sum[w].asked += 1.0;
        const double seconds = s->attention_seconds / (double)n;
        if (sum[w].asked <= 1.0 || seconds < sum[w].seconds) sum[w].seconds = seconds;
        sum[w].v_rows += (double)s->stats.v_rows_read;
        sum[w].k_rows += (double)s->stats.k_rows_read;
        sum[w].keys += (double)s->stats.keys;
    }
    printf("\n");
    fflush(stdout);
}

static void questions(void) {
    llama_model m;
    llama_state s;
    llama_error e;
    tasks_error te;
    const tasks_config c = tasks_default(CONTEXT, TASKS_EVALUATION);
    int32_t *body = malloc((size_t)c.length * sizeof *body);
    tasks_query *query = malloc((size_t)tasks_query_count(&c) * sizeof *query);
    int asked[TASKS_COUNT] = { 0 };
    if (!body || !query) fail("out of memory");
    if (tasks_make(&c, 1000, body, query, &te) != 0) fail(te.text);
    if (llama_load(&m, "bench/accuracy/longctx.bin", &e) != 0) fail(e.text);
    if (llama_state_init(&s, &m, c.length + TASKS_ROOM, &e) != 0) fail(e.text);
    printf("\n=== Long texts: a model of 3.8 M weights reads %d tokens, then answers\n", (int)c.length);
    fflush(stdout);
    const double start = llama_seconds();
    if (llama_prefill(&s, body, c.length, 0, &e) != 0) fail(e.text);
    printf("read in %.1f s, exactly; questions, and what exact attention answers:\n\n",
           llama_seconds() - start);
    for (int i = 0; i < tasks_query_count(&c); i++) {
        const tasks_query *q = query + i;
        if (q->task != TASKS_PLAIN && asked[q->task]++ < PER_TASK) ask(&s, q, c.length, (uint64_t)i);
    }
    printf("\n%-18s %12s %14s %14s %14s\n", "attention", "right", "us a step", "rows of K read",
           "rows of V read");
    for (int w = 0; w < WAYS; w++)
        printf("%-18s %9.1f/%.0f %14.0f %12.1f %% %12.1f %%\n", ways[w].name, sum[w].right, sum[w].asked,
               sum[w].seconds * 1e6, 100.0 * sum[w].k_rows / sum[w].keys,
               100.0 * sum[w].v_rows / sum[w].keys);
    llama_state_free(&s);
    llama_free(&m);
    free(body);
    free(query);
}

/* ------------------------------------------------------------ time */

enum { KEYS = 32768, HEADS = 32, KV_HEADS = 8, ROUNDS = 25 };

/* A few pseudo-random bits an element are enough: f16 between 1/4 and 1/2, either sign. */
static uint16_t *random_halves(int64_t count, uint64_t seed) {
    uint16_t *p = malloc((size_t)count * sizeof *p);
    if (!p) fail("out of memory");
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        p[i] = (uint16_t)(0x3400 | (seed >> 48 & 0x83ff));
    }
    return p;
}

static void times(void) {
    static double t[WAYS][ROUNDS];
    static float q[HEADS * DIM], out[HEADS * DIM];
    const int64_t numbers = (int64_t)KEYS * KV_HEADS * DIM;
    uint16_t *k = random_halves(numbers, 1), *v = random_halves(numbers, 2);
    santa_attention a = { 0 };
    uint64_t seed = 3;
    for (int i = 0; i < HEADS * DIM; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        q[i] = (float)(int32_t)(seed >> 32) * 0x1p-30f;
    }
    a.q   = santa_view(q, SANTA_F32, 1, 1, HEADS, DIM);
    a.k   = santa_view(k, SANTA_F16, 1, KEYS, KV_HEADS, DIM);
    a.v   = santa_view(v, SANTA_F16, 1, KEYS, KV_HEADS, DIM);
    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, DIM);
    a.proxy = malloc(santa_proxy_size(&a));
    if (!a.proxy) fail("out of memory");
    printf("\n=== Where it pays: a layer's step at %d keys, f16, %d heads on %d, one thread\n\n",
           KEYS, HEADS, KV_HEADS);
    fflush(stdout);
    if (santa_proxy_encode(&a, 0, KEYS, NULL) != SANTA_OK) fail("the copy of K");
    for (int round = -1; round < ROUNDS; round++)
        for (int w = 0; w < WAYS; w++) {
            santa_options o = { 0 };
            o.method = ways[w].method;
            o.scores = ways[w].scores;
            o.num_samples = w ? DRAWS : 0;
            o.offset = (uint64_t)(round + 1);
            const size_t bytes = santa_workspace_size(&a, &o);
            void *workspace = malloc(bytes);
            const double start = now();
            const santa_status status = santa_decode(&a, &o, workspace, bytes, NULL);
            if (round >= 0) t[w][round] = now() - start;
            free(workspace);
            if (status != SANTA_OK) fail(santa_status_string(status));
        }
    printf("%-18s %9s   %s\n", "attention", "least ms", "times as fast (10 .. 90 % of 25 rounds)");
    for (int w = 0; w < WAYS; w++) {
        double least = t[w][0];
        for (int i = 1; i < ROUNDS; i++) if (t[w][i] < least) least = t[w][i];
        const gain g = gain_of(t[0], t[w], ROUNDS);
        printf("%-18s %9.2f   ", ways[w].name, least * 1e3);
        if (w == 0) printf("1\n");
        else if (g.busy > TOO_BUSY) printf("no verdict (machine too busy: p90/p10 = %.2f)\n", g.busy);
        else printf("%.2f (%.2f .. %.2f)\n", g.best, g.low, g.high);
    }
    free(a.proxy);
    free(v);
    free(k);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        const int help = !strcmp(argv[1], "--help");
        fprintf(help ? stdout : stderr, "demo    no options: questions about long texts, then times\n");
        return !help;
    }
    questions();
    times();
    return 0;
}
