/* One context over several processes by MPI, each with a range of the keys: the same rows are
   drawn or chosen and the same result comes out, on every rank, as of the whole context in one
   process.
   Build: mpicc -O2 -o sharded_mpi examples/sharded_mpi.c -lm     Run: mpirun -n 4 sharded_mpi
   What exchanges cost is measured, too: a rank's own work is the same call once more, with an
   all_gather that hands out what the ranks said the last time. --bench takes more rounds. */
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "data.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 32768, HEADS = 8, KV_HEADS = 2, D = 64, MOST_STEPS = 200, MOST_SAID = 1 << 26 };

static int steps = 5;

/* All that santa needs of a transport. */
static int all_gather(void *user, const void *mine, size_t bytes, void *all, void *stream) {
    (void)stream;
    return bytes > INT32_MAX
        || MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *(MPI_Comm *)user)
               != MPI_SUCCESS;
}

/* What all ranks said in a call, one exchange after the other. */
typedef struct talk {
    MPI_Comm world;
    char    *said;
    size_t   at;
    int      exchanges, ranks, replays;
    int64_t  told;                                         /* bytes that this rank said */
} talk;

static int remembered_gather(void *user, const void *mine, size_t bytes, void *all, void *stream) {
    talk *t = (talk *)user;
    const size_t sum = bytes * (size_t)t->ranks;
    if (t->at + sum > MOST_SAID) return 1;
    if (t->replays) memcpy(all, t->said + t->at, sum);
    else if (all_gather(&t->world, mine, bytes, all, stream)) return 1;
    else memcpy(t->said + t->at, all, sum);
    t->at += sum;
    t->exchanges++;
    t->told += (int64_t)bytes;
    return 0;
}

/* A rank that fails ends the job: the others would wait for it in their exchange. */
static void fail(const char *why) {
    fprintf(stderr, "%s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static float *floats(int64_t n) {
    float *p = (float *)malloc((size_t)n * sizeof *p);
    if (!p) fail("out of memory");
    return p;
}

/* The keys begin .. end - 1 of a context of N. Seconds of each call; with t also of own work,
   in turns. */
static void attend(float *q, float *k, float *v, int64_t begin, int64_t end, const santa_options *o,
                   talk *t, float *out, santa_stats *stats, double *seconds, double *own) {
    const int32_t len = (int32_t)(end - begin), context = N;
    const int64_t rows = len ? len : 1;                   /* a range may be empty, a tensor may not */
    santa_attention a;
    memset(&a, 0, sizeof a);
    a.q = santa_view(q, SANTA_F32, 1, 1, HEADS, D);
    a.k = santa_view(k, SANTA_F32, 1, rows, KV_HEADS, D);
    a.v = santa_view(v, SANTA_F32, 1, rows, KV_HEADS, D);
    a.out = santa_view(out, SANTA_F32, 1, 1, HEADS, D);
    a.seq_lens = &len;
    a.first_key = begin;
    a.context_lens = &context;
    a.causal = 1;
    const size_t bytes = santa_workspace_size(&a, o);
    void *workspace = malloc(bytes);
    if (!workspace) fail("out of memory");
    for (int turn = -2; turn < (t ? 2 : 1) * steps; turn++) {          /* the first two warm up */
        if (t) {
            t->replays = turn & 1;
            t->exchanges = 0;
            t->at = 0;
            t->told = 0;
            MPI_Barrier(t->world);
        }
        const double from = MPI_Wtime();
        const santa_status s = santa_decode(&a, o, workspace, bytes, stats);
        const double took = MPI_Wtime() - from;
        if (s != SANTA_OK) fail(santa_status_string(s));
        if (turn >= 0) (t && turn & 1 ? own : seconds)[t ? turn / 2 : turn] = took;
    }
    free(workspace);
}

static int compare(const void *x, const void *y) {
    return (*(const double *)x > *(const double *)y) - (*(const double *)x < *(const double *)y);
}

static double part(double *x, double share) {
    qsort(x, (size_t)steps, sizeof *x, compare);
    return x[(int)(share * (double)(steps - 1) + 0.5)];
}

int main(int argc, char **argv) {
    static const santa_method methods[] = {SANTA_DENSE, SANTA_SYS,   SANTA_FLASH,     SANTA_PPS,
                                           SANTA_TOP_K, SANTA_TOP_P, SANTA_VATTENTION};
    static double one[MOST_STEPS], mine[2][MOST_STEPS], slowest[2][MOST_STEPS], sum[MOST_STEPS];
    static double ratio[MOST_STEPS];
    int good = 1;
    talk t;
    memset(&t, 0, sizeof t);
    if (argc == 2 && !strcmp(argv[1], "--bench")) steps = MOST_STEPS;
    else data_arguments(argc, argv,
                        "One context over the processes of an MPI job: mpirun -n 4 sharded_mpi\n"
                        "--bench: 200 rounds instead of 5. Else:");
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_dup(MPI_COMM_WORLD, &t.world);
    MPI_Comm_rank(t.world, &rank);
    MPI_Comm_size(t.world, &t.ranks);
    t.said = (char *)malloc(MOST_SAID);
    if (!t.said) fail("out of memory");

    /* All of it in each process, so that it can be compared; a real one has its range only. */
    float *q = floats(HEADS * D), *k = floats((int64_t)N * KV_HEADS * D),
          *v = floats((int64_t)N * KV_HEADS * D), *whole = floats(HEADS * D), *spread = floats(HEADS * D);
    data_sequence(q, k, v, N, HEADS, KV_HEADS, D, 1);
    const int64_t begin = (int64_t)N * rank / t.ranks, end = (int64_t)N * (rank + 1) / t.ranks;

    if (rank == 0)
        printf("%d keys over %d ranks, %d query heads. Milliseconds, the fastest tenth of %d rounds ends\n"
               "with them: one process; own work of a rank, on average and of the slowest; a step over\n"
               "ranks, and as a multiple of the slowest's own work; quartiles of the rounds' multiples\n"
               "method     one process    own  slowest    step  multiple  quartiles    off by    rows"
               "  exchanges\n",
               N, t.ranks, HEADS, steps);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        santa_options o, alone;
        santa_stats stats;
        memset(&o, 0, sizeof o);
        o.method = methods[i];
        o.seed = 7;
        if (o.method == SANTA_VATTENTION) o.vattention.epsilon = 0.2;
        alone = o;
        o.ranks.count = t.ranks;
        o.ranks.rank = rank;
        o.ranks.all_gather = remembered_gather;
        o.ranks.user = &t;

        attend(q, k + begin * KV_HEADS * D, v + begin * KV_HEADS * D, begin, end, &o, &t, spread, &stats,
               mine[0], mine[1]);
        for (int x = 0; x < 2; x++)
            MPI_Reduce(mine[x], slowest[x], steps, MPI_DOUBLE, MPI_MAX, 0, t.world);
        MPI_Reduce(mine[1], sum, steps, MPI_DOUBLE, MPI_SUM, 0, t.world);
        if (rank == 0) {
            attend(q, k, v, 0, N, &alone, NULL, whole, NULL, one, NULL);
            const double off = santa_relative_l2(spread, whole, HEADS * D);
            for (int x = 0; x < steps; x++) ratio[x] = slowest[0][x] / slowest[1][x];
            const double slow = part(slowest[1], 0.1), step = part(slowest[0], 0.1);
            printf("%-10s %11.3f %6.3f %8.3f %7.3f %9.2f  %.2f %5.2f %9.1e %7d %2d of %d kB\n",
                   santa_method_name(o.method), 1e3 * part(one, 0.1), 1e3 * part(sum, 0.1) / t.ranks,
                   1e3 * slow, 1e3 * step, step / slow, part(ratio, 0.25), part(ratio, 0.75), off,
                   (int)stats.v_rows_head, t.exchanges, (int)((t.told + 512) / 1024));
            good &= off < 1e-5;
        }
        /* the others wait here, without a share of the processor */
        MPI_Barrier(t.world);
    }
    MPI_Bcast(&good, 1, MPI_INT, 0, t.world);
    if (rank == 0) printf("%s\n", good ? "as it should be" : "WRONG");
    free(q); free(k); free(v); free(whole); free(spread); free(t.said);
    MPI_Finalize();
    return good ? 0 : 1;
}
