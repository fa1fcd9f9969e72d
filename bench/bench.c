/* CPU benchmark: exact and sampled decode attention against a plain C loop and the machine's read bandwidth, in one run.
     cc -O2 bench/bench.c -o bench_cpu -lm -pthread && ./bench_cpu [--quick] [--csv FILE] [--threads T] [--type f32|f16|bf16]
   One decode step, batch 1, 32 query heads, 8 KV heads, head_dim 128, Gaussian data, sampled budgets of 128. Every timed call
   works on another of several K/V buffers, together larger than the last-level cache, so that nothing is read twice. */
#define _POSIX_C_SOURCE 200809L
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { HEADS = 32, KV_HEADS = 8, DIM = 128, SAMPLES = 128, MAX_RUNS = 64, MAX_THREADS = 64 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *xmalloc(size_t bytes) {
    void *p = malloc(bytes);
    if (!p) { fprintf(stderr, "out of memory (%zu bytes)\n", bytes); exit(1); }
    return p;
}

/* Gaussian by the sum of four 16-bit uniforms; good enough to fill a cache. */
static float gauss(uint64_t *state) {
    uint64_t x = *state += 0x9E3779B97F4A7C15u, sum;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    sum = (x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);
    return ((float)sum - 131070.0f) * (1.0f / 37837.0f);
}

static void fill(void *p, santa_dtype t, int64_t n, uint64_t seed) {
    int64_t i;
    for (i = 0; i < n; i++) {
        float f = gauss(&seed);
        if (t == SANTA_F32) ((float *)p)[i] = f;
        else ((uint16_t *)p)[i] = t == SANTA_F16 ? santa_f32_to_f16(f) : santa_f32_to_bf16(f);
    }
}

/* Threads for this call only; creation costs some 20 us, nothing against the sizes below. */
typedef struct { santa_task task; void *context; int64_t i; } job;
static void *run_job(void *p) { job *j = (job *)p; j->task(j->context, j->i); return NULL; }
static void spread(void *user, int64_t count, santa_task task, void *context) {
    pthread_t thread[MAX_THREADS];
    job jobs[MAX_THREADS];
    int64_t i;
    (void)user;
    for (i = 0; i < count; i++) { jobs[i].task = task; jobs[i].context = context; jobs[i].i = i; }
    for (i = 1; i < count; i++) if (pthread_create(&thread[i], NULL, run_job, &jobs[i])) { perror("pthread_create"); exit(1); }
    task(context, 0);
    for (i = 1; i < count; i++) pthread_join(thread[i], NULL);
}

/* What a K or V pass costs at best: sum the buffer with eight accumulators, the memory's order. */
typedef struct { const char *data; size_t bytes; int64_t parts; uint64_t sum[MAX_THREADS * 8]; } reader;
static void read_part(void *context, int64_t i) {
    reader *r = (reader *)context;
    size_t words = r->bytes / 8 / (size_t)r->parts & ~(size_t)31, k;
    const uint64_t *p = (const uint64_t *)(const void *)r->data + words * (size_t)i;
    uint64_t s[8] = {0};
    int l;
    for (k = 0; k < words; k += 8) for (l = 0; l < 8; l++) s[l] += p[k + (size_t)l];
    for (l = 1; l < 8; l++) s[0] += s[l];
    r->sum[i * 8] = s[0];
}

/* What one writes first: three loops per head, softmax in between. */
static void plain_c(const float *q, const float *k, const float *v, float *out, float *p, int64_t n) {
    int64_t h, j, c;
    for (h = 0; h < HEADS; h++) {
        const float *kh = k + h / (HEADS / KV_HEADS) * DIM, *vh = v + h / (HEADS / KV_HEADS) * DIM;
        float max = -1e30f, sum = 0.0f;
        for (j = 0; j < n; j++) {
            float s = 0.0f;
            for (c = 0; c < DIM; c++) s += q[h * DIM + c] * kh[j * KV_HEADS * DIM + c];
            p[j] = s * 0.08838834764f;
            if (p[j] > max) max = p[j];
        }
        for (j = 0; j < n; j++) sum += p[j] = expf(p[j] - max);
        for (c = 0; c < DIM; c++) out[h * DIM + c] = 0.0f;
        for (j = 0; j < n; j++)
            for (c = 0; c < DIM; c++) out[h * DIM + c] += p[j] / sum * vh[j * KV_HEADS * DIM + c];
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

typedef struct { double median, low, high; } timing;
static timing summary(double *t, int runs) {
    timing r;
    qsort(t, (size_t)runs, sizeof *t, by_value);
    r.median = t[runs / 2];
    r.low = t[runs / 10];
    r.high = t[runs - 1 - runs / 10];
    return r;
}

typedef struct { const char *name; santa_method method; santa_scores_method scores; } entry;
static const entry entries[] = {
    { "dense", SANTA_DENSE, SANTA_SCORES_EXACT },     { "sys", SANTA_SYS, SANTA_SCORES_EXACT },
    { "iid", SANTA_IID, SANTA_SCORES_EXACT },         { "strat", SANTA_STRAT, SANTA_SCORES_EXACT },
    { "prop", SANTA_PROP, SANTA_SCORES_EXACT },       { "flash", SANTA_FLASH, SANTA_SCORES_EXACT },
    { "top-k", SANTA_TOP_K, SANTA_SCORES_EXACT },     { "vattention", SANTA_VATTENTION, SANTA_SCORES_EXACT },
};

static double read_bandwidth(const char *buffer, size_t bytes, int64_t threads, int runs) {
    static reader r;
    double t[MAX_RUNS];
    int i;
    r.data = buffer; r.bytes = bytes; r.parts = threads;
    for (i = 0; i < runs; i++) {
        double start = now();
        spread(NULL, threads, read_part, &r);
        t[i] = now() - start;
    }
    return (double)bytes / summary(t, runs).median;
}

static const char *const type_name[] = { "f32", "f16", "bf16" };

static void bench(santa_dtype type, int hnd, int64_t n, int64_t threads, int runs, int quick, FILE *csv, double bandwidth) {
    const int64_t size = type == SANTA_F32 ? 4 : 2, elements = n * KV_HEADS * DIM;
    int copies = 1 + (int)(((int64_t)96 << 20) / (2 * elements * size)), i, m;
    char *kv = (char *)xmalloc((size_t)(2 * elements * size) * (size_t)copies);
    float *q = (float *)xmalloc(HEADS * DIM * sizeof *q), *out = (float *)xmalloc(HEADS * DIM * sizeof *out);
    double dense = 0.0;
    santa_attention a = {0};
    fprintf(stderr, "\r%-60s\rfilling %s n=%lld ...", "", type_name[type], (long long)n);
    fill(kv, type, 2 * elements, 1);
    for (i = 1; i < copies; i++) memcpy(kv + 2 * elements * size * i, kv, (size_t)(2 * elements * size));
    fill(q, SANTA_F32, HEADS * DIM, 2);
    a.q = santa_view(q, SANTA_F32, 1, 1, HEADS, DIM);
    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, DIM);
    for (m = -1; m < (int)(sizeof entries / sizeof *entries); m++) {
        santa_options o = {0};
        santa_stats stats = {0};
        double t[MAX_RUNS], bytes;
        timing r;
        void *workspace = NULL;
        size_t workspace_bytes = 0;
        const char *name = m < 0 ? "plain C" : entries[m].name;
        if (m < 0 && (type != SANTA_F32 || hnd)) continue;
        if (quick && m > 1 && entries[m].method != SANTA_PROP && entries[m].method != SANTA_VATTENTION) continue;
        fprintf(stderr, "\r%-60s\r%s %s n=%lld %s ...", "", type_name[type], hnd ? "HND" : "NHD", (long long)n, name);
        if (m >= 0) {
            o.method = entries[m].method;
            o.scores = entries[m].scores;
            o.num_samples = SAMPLES;
            o.num_threads = threads;
            o.parallel_for = spread;
        }
        for (i = -1; i < (m < 0 ? 3 : runs); i++) {
            const char *k = kv + 2 * elements * size * ((i + 1) % copies), *v = k + elements * size;
            double start;
            if (m < 0 && !workspace) workspace = xmalloc((size_t)n * sizeof(float));
            a.k = hnd ? santa_view_hnd(k, type, 1, n, KV_HEADS, DIM) : santa_view(k, type, 1, n, KV_HEADS, DIM);
            a.v = hnd ? santa_view_hnd(v, type, 1, n, KV_HEADS, DIM) : santa_view(v, type, 1, n, KV_HEADS, DIM);
            if (m >= 0 && !workspace) { workspace_bytes = santa_workspace_size(&a, &o); workspace = xmalloc(workspace_bytes); }
            o.offset = (uint64_t)(i + 1);
            start = now();
            if (m < 0) {
                plain_c(q, (const float *)(const void *)k, (const float *)(const void *)v, out, (float *)workspace, n);
            } else {
                santa_status s = santa_decode(&a, &o, workspace, workspace_bytes, &stats);
                if (s != SANTA_OK) { fprintf(stderr, "%s\n", santa_status_string(s)); exit(1); }
            }
            if (i >= 0) t[i] = now() - start;                         /* run -1 warms up */
        }
        r = summary(t, m < 0 ? 3 : runs);
        if (m == 0) dense = r.median;
        bytes = m < 0 ? (double)(2 * elements * size) : (double)((stats.k_rows_read + stats.v_rows_read) * DIM * size);
        fprintf(stderr, "\r%-60s\r", "");
        printf("%-10s %-4s %s %8lld %2lld  %9.3f (%.3f .. %.3f)  %8.1f  %6.2f  %5.1f%%  ", name, type_name[type], hnd ? "HND" : "NHD",
               (long long)n, (long long)(m < 0 ? 1 : threads), r.median * 1e3, r.low * 1e3, r.high * 1e3, bytes / 1e6,
               bytes / r.median / 1e9, 100.0 * bytes / r.median / bandwidth);
        if (m < 0) printf("      -\n");
        else printf("%6.2fx\n", dense / r.median);
        fflush(stdout);
        if (csv)
            fprintf(csv, "%s,%s,%s,%lld,%lld,%d,%.6f,%.6f,%.6f,%.0f,%.3f,%.3f,%.3f\n", name, type_name[type], hnd ? "HND" : "NHD",
                    (long long)n, (long long)(m < 0 ? 1 : threads), SAMPLES, r.median * 1e3, r.low * 1e3, r.high * 1e3, bytes,
                    bytes / r.median / 1e9, bandwidth / 1e9, m < 0 ? 0.0 : dense / r.median);
        free(workspace);
    }
    free(kv); free(q); free(out);
}

static void machine(FILE *f) {
    char line[256] = "unknown CPU", *p;
    FILE *info = fopen("/proc/cpuinfo", "r");
    while (info && fgets(line, sizeof line, info)) if (!strncmp(line, "model name", 10)) break;
    if (info) fclose(info);
    line[strcspn(line, "\n")] = 0;
    p = strchr(line, ':');
#ifdef __VERSION__
    fprintf(f, "# cpu %s; compiler %s; SIMD path %s\n", p ? p + 2 : line, __VERSION__,
            santa_best_isa() == SANTA_ISA_AVX2 ? "AVX2+FMA+F16C" : "scalar");
#endif
}

int main(int argc, char **argv) {
    static const int64_t sizes[] = { 4096, 32768, 131072 };
    int quick = 0, i, j, layout, only = -1;
    int64_t threads = 1;
    FILE *csv = NULL;
    size_t bytes = (size_t)256 << 20;
    char *buffer;
    double bandwidth;
    for (i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--quick")) quick = 1;
        else if (!strcmp(argv[i], "--csv") && *next) { if (!(csv = fopen(argv[++i], "w"))) { perror(argv[i]); return 1; } }
        else if (!strcmp(argv[i], "--threads") && *next) threads = strtol(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--type") && *next) { for (j = 0, i++; j < 3; j++) if (!strcmp(argv[i], type_name[j])) only = j; }
        else { fprintf(stderr, "usage: %s [--quick] [--csv FILE] [--threads T] [--type f32|f16|bf16]\n", argv[0]); return 1; }
    }
    if (threads < 1 || threads > MAX_THREADS) { fprintf(stderr, "--threads wants 1 .. %d\n", MAX_THREADS); return 1; }
    buffer = (char *)xmalloc(bytes);
    memset(buffer, 1, bytes);
    bandwidth = read_bandwidth(buffer, bytes, threads, quick ? 7 : 21);
    free(buffer);
    machine(stdout);
    printf("# read bandwidth, %lld thread(s): %.1f GB/s; 32 query heads, 8 KV heads, head_dim 128, num_samples %d, cold caches\n",
           (long long)threads, bandwidth / 1e9, SAMPLES);
    printf("# MB = bytes of K and V the method needs, GB/s = that over time, %% = share of the read bandwidth, x = dense / method\n");
    printf("method     type layout      n  T    median ms (10 %% .. 90 %%)         MB    GB/s  of read  dense/x\n");
    if (csv) fprintf(csv, "method,type,layout,n,threads,num_samples,median_ms,low_ms,high_ms,bytes,gb_per_s,read_gb_per_s,dense_over_method\n");
    for (j = 0; j < 3; j++) {
        if ((only >= 0 && j != only) || (quick && only < 0 && j == 2)) continue;
        for (layout = 0; layout < (quick ? 1 : 2); layout++)
            for (i = 0; i < (quick ? 2 : 3); i++)
                bench((santa_dtype)j, layout, sizes[i], threads, quick ? 7 : sizes[i] > 100000 ? 11 : 21, quick, csv, bandwidth);
    }
    if (csv) fclose(csv);
    return 0;
}
