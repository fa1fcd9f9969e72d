/* bench --prefill: attention of as many query rows as there are keys, causal. Exact, and
   SampleAttention on heads whose mass lies in planted columns and slashes; beside them the
   machine's own rate for f32 products, in the same rounds. Include santa.h, bench.h and
   program.h first. */
#ifndef BENCH_PREFILL_H
#define BENCH_PREFILL_H
#include "products.h"

/* ------------------------------------------------------------ planted heads */

/* Mass of equal size in some blocks of keys, the first among them, and at some distances. */
enum { BLOCK = 64, MOST_PLANTED = 512 };
typedef struct plant {
    int columns, lags;
    int64_t column[MOST_PLANTED], lag[MOST_PLANTED];    /* numbers of blocks; keys */
    double  share;                                      /* of the blocks, as predicted */
} plant;

static int is_column(const plant *p, int64_t block) {
    int found = 0;
    for (int i = 0; i < p->columns; i++) found |= p->column[i] == block;
    return found;
}

/* The fewest entries that hold .95 of the mass. */
static void choose(const double *mass, int64_t n, char *kept) {
    double total = 0.0, held = 0.0;
    memset(kept, 0, (size_t)n);
    for (int64_t i = 0; i < n; i++) total += mass[i];
    while (held < 0.95 * total) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++) if (!kept[i] && (best < 0 || mass[i] > mass[best])) best = i;
        kept[best] = 1;
        held += mass[best];
    }
}

/* Share of the causal blocks that SampleAttention keeps of such heads with the defaults, two
   slices of one block of rows, the second at the end. */
static double share_of(const plant *p, int64_t n) {
    const int64_t blocks = (n + BLOCK - 1) / BLOCK;
    double *mass = (double *)calloc((size_t)(2 * blocks), sizeof *mass);
    char *set = (char *)allocate((size_t)(2 * blocks));
    int64_t kept = 0;
    for (int slice = 1; slice <= 2; slice++)
        for (int64_t row = slice * n / 2 - BLOCK; row < slice * n / 2; row++) {
            double seen = 0.0;
            for (int pass = 0; pass < 2; pass++) {
                for (int i = 0; i < p->columns * BLOCK; i++) {
                    const int64_t j = p->column[i / BLOCK] * BLOCK + i % BLOCK;
                    if (j > row) continue;
                    if (!pass) { seen += 1.0 / BLOCK; continue; }
                    mass[j / BLOCK] += 1.0 / BLOCK / seen;
                    mass[blocks + (row - j) / BLOCK] += 1.0 / BLOCK / seen;
                }
                for (int i = 0; i < p->lags; i++) {
                    const int64_t j = row - p->lag[i];
                    if (j < 0) continue;
                    if (is_column(p, j / BLOCK)) continue;
                    if (!pass) { seen += 1.0; continue; }
                    mass[j / BLOCK] += 1.0 / seen;
                    mass[blocks + p->lag[i] / BLOCK] += 1.0 / seen;
                }
            }
        }
    choose(mass, blocks, set);
    choose(mass + blocks, blocks, set + blocks);
    for (int64_t r = 0; r < blocks; r++)
        for (int64_t b = 0; b <= r; b++)
            kept += b == 0 || b == r || set[b] || set[blocks + r - b] || set[blocks + r - b - 1];
    free(mass);
    free(set);
    return (double)kept / (double)(blocks * (blocks + 1) / 2);
}

/* Columns are added, at places in no order, as long as the blocks kept come closer to the
   share. */
static plant plant_of(int64_t n, double share) {
    enum { TRIES = 200 };
    const int64_t blocks = (n + BLOCK - 1) / BLOCK;
    uint64_t x = 1;
    plant p;
    memset(&p, 0, sizeof p);
    p.columns = 1;
    p.lags = 1;
    p.lag[0] = 9;
    p.share = share_of(&p, n);
    for (int i = 0; i < TRIES && p.columns < MOST_PLANTED; i++) {
        plant more = p;
        x = x * 6364136223846793005u + 1442695040888963407u;
        more.column[more.columns++] = (int64_t)((x >> 33) % (uint64_t)blocks);
        if (is_column(&p, more.column[p.columns])) continue;
        more.share = share_of(&more, n);
        if (fabs(more.share - share) < fabs(p.share - share)) p = more;
    }
    return p;
}

/* ------------------------------------------------------------ the data */

/* Scores of planted keys: log of their mass, but for a constant. The feature pairs after the
   first turn with the position, so that q . k is large at the planted distances. Keys of
   columns have nothing else: their scores are equal. */
enum { HEIGHT = 20 };
typedef struct prompt {
    const plant *p;
    const element *type;
    santa_dtype q_type;
    int64_t n, d, heads, kv_heads;
    char *q, *k, *v, *out;
} prompt;

static void put(char *to, int64_t at, const float *x, int64_t d, const element *e) {
    for (int64_t i = 0; i < d; i += e->block) e->encode(to + bytes_of(e, at + i), x + i);
}

/* Of no order: equidistant ones would have the same angles again at other distances. */
static double frequency(int64_t pair) {
    uint64_t x = (uint64_t)(pair + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (double)((x ^ (x >> 31)) >> 11) / 9007199254740992.0 * 3.14159265358979;
}

enum { ROWS_OF_PART = 512 };
static void fill_prompt_part(void *context, int64_t part) {
    const prompt *x = (const prompt *)context;
    const element *of_q = x->q_type == SANTA_BF16 ? element_named("bf16") : element_named("f32");
    const int64_t d = x->d, pairs = d / 2 - 1;
    const double size = sqrt((double)d), of_lag = sqrt(HEIGHT * size / (double)pairs);
    const float of_column = (float)sqrt((HEIGHT - log(BLOCK)) * size);
    uint64_t noise = (uint64_t)part << 32;
    float f[1024];
    for (int64_t j = part * ROWS_OF_PART; j < x->n && j < (part + 1) * ROWS_OF_PART; j++) {
        const int whole = is_column(x->p, j / BLOCK);
        for (int64_t h = 0; h < x->kv_heads; h++) {
            for (int64_t i = 0; i < d; i++) f[i] = gauss(&noise);
            put(x->v, (j * x->kv_heads + h) * d, f, d, x->type);
            f[0] = whole ? of_column : 0.0f;
            f[1] = 0.0f;
            for (int64_t i = 0; i < pairs; i++) {
                double c = 0.0, s = 0.0;
                for (int l = 0; l < x->p->lags && !whole; l++) {
                    c += cos(frequency(i) * (double)(j + x->p->lag[l]));
                    s += sin(frequency(i) * (double)(j + x->p->lag[l]));
                }
                f[2 + 2 * i] = whole ? 0.0f : 0.3f * gauss(&noise) + (float)(of_lag * c);
                f[3 + 2 * i] = whole ? 0.0f : 0.3f * gauss(&noise) + (float)(of_lag * s);
            }
            put(x->k, (j * x->kv_heads + h) * d, f, d, x->type);
        }
        for (int64_t h = 0; h < x->heads; h++) {
            f[0] = of_column;
            f[1] = gauss(&noise);
            for (int64_t i = 0; i < pairs; i++) {
                f[2 + 2 * i] = 0.3f * gauss(&noise) + (float)(of_lag * cos(frequency(i) * (double)j));
                f[3 + 2 * i] = 0.3f * gauss(&noise) + (float)(of_lag * sin(frequency(i) * (double)j));
            }
            put(x->q, (j * x->heads + h) * d, f, d, of_q);
        }
    }
}

static santa_attention attention_of(const prompt *x) {
    santa_attention a;
    memset(&a, 0, sizeof a);
    a.q = santa_view(x->q, x->q_type, 1, x->n, x->heads, x->d);
    a.k = santa_view(x->k, x->type->dtype, 1, x->n, x->kv_heads, x->d);
    a.v = santa_view(x->v, x->type->dtype, 1, x->n, x->kv_heads, x->d);
    a.out = santa_view(x->out, x->q_type, 1, x->n, x->heads, x->d);
    a.causal = 1;
    return a;
}

static void make_prompt(prompt *x) {
    const size_t rows = (size_t)(x->n * x->heads * x->d) * sizeof(float),
                 keys = (size_t)bytes_of(x->type, x->n * x->kv_heads * x->d);
    x->q_type = x->type->dtype == SANTA_BF16 ? SANTA_BF16 : SANTA_F32;
    x->q = (char *)allocate(rows);
    x->out = (char *)allocate(rows);
    x->k = (char *)allocate(keys);
    x->v = (char *)allocate(keys);
    run_tasks(NULL, (x->n + ROWS_OF_PART - 1) / ROWS_OF_PART, fill_prompt_part, x);
}

static void free_prompt(prompt *x) { free(x->q); free(x->k); free(x->v); free(x->out); }

/* ------------------------------------------------------------ a cell */

enum { PREFILL_ROWS = 4, MOST_TURNS = 41, PREFILL_TURNS = 3, SPARSE_SHARES = 2 };
static const double sparse_shares[SPARSE_SHARES] = { 0.10, 0.05 };

/* Times are processor time over the number of threads: on a machine that does other things,
   too, a long call is interrupted more often than a short one, which would spoil all ratios. */
typedef struct prefill_row {
    char   name[24];
    double t[MOST_TURNS], low, median, high, wall, operations;
    int    turns;
    santa_sample_audit audit;                           /* means over heads */
} prefill_row;

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The times are in order then. */
static void sort_turns(prefill_row *r) {
    qsort(r->t, (size_t)r->turns, sizeof *r->t, by_value);
    r->low = r->t[0];
    r->median = r->t[r->turns / 2];
    r->high = r->t[r->turns - 1 - r->turns / 10];
}

static void decode_once(const prompt *x, santa_options *o, void *workspace, size_t bytes,
                        prefill_row *r) {
    const santa_attention a = attention_of(x);
    santa_sample_audit audit[MOST_HEADS];
    o->sample_attention.audit = o->method == SANTA_SAMPLE_ATTENTION ? audit : NULL;
    const santa_status s = santa_decode(&a, o, workspace, bytes, NULL);
    if (s != SANTA_OK) fail(santa_status_string(s));
    memset(&r->audit, 0, sizeof r->audit);
    for (int64_t h = 0; h < x->heads && o->sample_attention.audit; h++) {
        r->audit.kept_share += audit[h].kept_share / (double)x->heads;
        r->audit.cost += audit[h].cost / (double)x->heads;
        r->audit.sampled_mass += audit[h].sampled_mass / (double)x->heads;
        r->audit.is_dense |= audit[h].is_dense;
    }
}

static void prefill_header(void) {
    printf("\n%-13s %-4s %4s %7s %5s %2s  %9s  %-29s %8s %9s %8s %6s %5s %6s\n", "method", "type", "d", "n",
           "heads", "T", "ms, least", "(median, 90 %; wall)", "GFLOP/s", "% product", "dense/x", "kept %",
           "cost", "mass");
}

/* One line of a cell: product and dense have a rate, sparse what its audit says. */
static void print_prefill_row(const prompt *x, int64_t threads, const prefill_row *rows, int i, FILE *csv) {
    const prefill_row *r = rows + i;
    const int has_rate = i < 2;
    const double gflops = has_rate ? r->operations / r->low * 1e-9 : 0.0,
                 share = has_rate ? gflops / (rows[0].operations / rows[0].low * 1e-9) : 0.0,
                 gain = i > 0 ? rows[1].low / r->low : 0.0;
    char spread[48];
    snprintf(spread, sizeof spread, "(%.1f, %.1f; %.1f)", r->median * 1e3, r->high * 1e3, r->wall * 1e3);
    printf("%-13s %-4s %4lld %7lld %2lld/%-2lld %2lld  %9.2f  %-29s", r->name, x->type->name,
           (long long)x->d, (long long)x->n, (long long)x->heads, (long long)x->kv_heads,
           (long long)threads, r->low * 1e3, spread);
    if (has_rate) printf(" %8.1f %9.1f\n", gflops, 100.0 * share);
    else
        printf(" %8s %9s %8.2f %6.2f %5.3f %6.3f%s\n", "-", "-", gain, 100.0 * r->audit.kept_share,
               r->audit.cost, r->audit.sampled_mass, r->audit.is_dense ? " ran dense" : "");
    if (!csv) return;
    fprintf(csv, "%s,%s,%lld,%lld,%lld,%lld,%lld,%.4f,%.4f,%.4f,%.4f,%d,%.2f,%.4f,%.3f,%.4f,%.4f,%.4f\n",
            r->name, x->type->name, (long long)x->d, (long long)x->n, (long long)x->heads,
            (long long)x->kv_heads, (long long)threads, r->low * 1e3, r->median * 1e3, r->high * 1e3,
            r->wall * 1e3, r->turns, gflops, share, gain, r->audit.kept_share, r->audit.cost,
            r->audit.sampled_mass);
}

static void print_prefill(const prompt *x, int64_t threads, const prefill_row *rows, int count, FILE *csv) {
    static int started;
    if (csv && !started++)
        fprintf(csv, "method,type,head_dim,n,heads,kv_heads,threads,least_ms,median_ms,high_ms,"
                     "least_wall_ms,turns,gflops,share_of_product,dense_over_method,kept_share,cost,"
                     "sampled_mass\n");
    for (int i = 0; i < count; i++) print_prefill_row(x, threads, rows, i, csv);
    fflush(stdout);
}

/* The product, dense and sparse take turns for so many seconds. */
static void prefill_cell(const element *e, int64_t n, int64_t d, int64_t heads, int64_t kv_heads,
                         int64_t threads, santa_isa isa, double seconds, FILE *csv) {
    static prefill_row rows[PREFILL_ROWS];
    plant plants[SPARSE_SHARES];
    prompt prompts[SPARSE_SHARES];
    santa_options dense, sparse;
    const products x = products_make(isa, e->dtype, 2e9, threads);     /* some 20 ms */
    size_t bytes = 0;
    memset(rows, 0, sizeof rows);
    memset(&dense, 0, sizeof dense);
    dense.isa = isa;
    dense.num_threads = threads;
    dense.parallel_for = threads > 1 ? run_tasks : NULL;
    sparse = dense;
    sparse.method = SANTA_SAMPLE_ATTENTION;
    for (int i = 0; i < SPARSE_SHARES; i++) {
        const prompt one = { plants + i, e, SANTA_F32, n, d, heads, kv_heads, NULL, NULL, NULL, NULL };
        plants[i] = plant_of(n, sparse_shares[i]);
        prompts[i] = one;
        make_prompt(prompts + i);
        snprintf(rows[2 + i].name, sizeof rows->name, "sparse %.0f %%", 100.0 * sparse_shares[i]);
    }
    const int count = plants[1].share < plants[0].share ? PREFILL_ROWS : PREFILL_ROWS - 1;
    const santa_attention a = attention_of(prompts);
    sparse.sample_attention.audit = &rows[2].audit;  /* as in the calls: it makes short ones sparse, too */
    bytes = santa_workspace_size(&a, &sparse);
    if (santa_workspace_size(&a, &dense) > bytes) bytes = santa_workspace_size(&a, &dense);
    void *workspace = allocate(bytes);
    snprintf(rows[0].name, sizeof rows->name, "product");
    snprintf(rows[1].name, sizeof rows->name, "dense");
    rows[0].operations = x.what.operations * (double)(x.repeat * threads);
    rows[1].operations = 2.0 * (double)d * (double)heads * (double)n * (double)(n + 1);    /* causal half */
    const double start = now();
    for (int turn = -1; turn < PREFILL_TURNS || (turn < MOST_TURNS && now() - start < seconds); turn++)
        for (int i = 0; i < count; i++) {
            prefill_row *r = rows + i;
            const double begin = now(), cpu = cpu_seconds();
            if (i == 0) on_threads(threads, product_task, (void *)(uintptr_t)&x);
            else decode_once(prompts + (i < 2 ? 0 : i - 2), i < 2 ? &dense : &sparse, workspace, bytes, r);
            if (turn < 0) continue;
            const double wall = now() - begin;
            r->t[r->turns++] = (cpu_seconds() - cpu) / (double)threads;
            if (r->turns == 1 || wall < r->wall) r->wall = wall;
        }
    for (int i = 0; i < count; i++) sort_turns(rows + i);
    fprintf(stderr, "\r\033[K");
    print_prefill(prompts, threads, rows, count, csv);
    for (int i = 0; i < SPARSE_SHARES; i++) free_prompt(prompts + i);
    free(x.tiles);
    free(workspace);
}

#endif
