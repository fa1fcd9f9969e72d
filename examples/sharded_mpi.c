/* One context over several processes by MPI, each with a range of the keys: the same rows are drawn or
   chosen and the same result comes out, on every rank, as of the whole context in one process.
   Build: mpicc -O2 -o sharded_mpi examples/sharded_mpi.c -lm     Run: mpirun -n 4 sharded_mpi */
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "data.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 32768, HEADS = 8, KV_HEADS = 2, D = 64, STEPS = 20 };

static int64_t exchanges, told;                            /* calls, and bytes that this rank said */

/* All that santa needs of a transport. */
static int all_gather(void *user, const void *mine, size_t bytes, void *all, void *stream) {
    (void)stream;
    exchanges++;
    told += (int64_t)bytes;
    return bytes > INT32_MAX
        || MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *(MPI_Comm *)user)
               != MPI_SUCCESS;
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

/* The keys begin .. end - 1 of a context of N; seconds of the fastest of STEPS calls. */
static double attend(float *q, float *k, float *v, int64_t begin, int64_t end, const santa_options *o,
                     float *out, santa_stats *stats) {
    const int32_t len = (int32_t)(end - begin), context = N;
    const int64_t rows = len ? len : 1;                   /* a range may be empty, a tensor may not */
    double best = 1e9;
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
    for (int step = 0; step < STEPS; step++) {
        const double from = MPI_Wtime();
        const santa_status s = santa_decode(&a, o, workspace, bytes, stats);
        if (s != SANTA_OK) fail(santa_status_string(s));
        if (MPI_Wtime() - from < best) best = MPI_Wtime() - from;
    }
    free(workspace);
    return best;
}

int main(int argc, char **argv) {
    static const santa_method methods[] = {SANTA_DENSE, SANTA_SYS,   SANTA_FLASH,     SANTA_PPS,
                                           SANTA_TOP_K, SANTA_TOP_P, SANTA_VATTENTION};
    MPI_Comm world = MPI_COMM_WORLD;
    int rank, ranks, good = 1;
    data_arguments(argc, argv, "One context over the processes of an MPI job: mpirun -n 4 sharded_mpi");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &ranks);

    /* All of it in each process, so that it can be compared; a real one has its range only. */
    float *q = floats(HEADS * D), *k = floats((int64_t)N * KV_HEADS * D),
          *v = floats((int64_t)N * KV_HEADS * D), *whole = floats(HEADS * D), *spread = floats(HEADS * D);
    data_sequence(q, k, v, N, HEADS, KV_HEADS, D, 1);
    const int64_t begin = (int64_t)N * rank / ranks, end = (int64_t)N * (rank + 1) / ranks;

    if (rank == 0)
        printf("%d keys over %d ranks, %d query heads\n"
               "method       one process   one rank's keys   over ranks   output off by   rows read here   "
               "exchanges\n",
               N, ranks, HEADS);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        santa_options o, alone;
        santa_stats stats;
        memset(&o, 0, sizeof o);
        o.method = methods[i];
        o.seed = 7;
        if (o.method == SANTA_VATTENTION) o.vattention.epsilon = 0.2;
        alone = o;
        o.ranks.count = ranks;
        o.ranks.rank = rank;
        o.ranks.all_gather = all_gather;
        o.ranks.user = &world;

        float *my_k = k + begin * KV_HEADS * D, *my_v = v + begin * KV_HEADS * D;
        MPI_Barrier(world);
        exchanges = told = 0;
        const double shared = attend(q, my_k, my_v, begin, end, &o, spread, &stats);
        MPI_Barrier(world);
        const double own = attend(q, my_k, my_v, begin, end, &alone, whole, NULL);
        if (rank == 0) {
            const double one = attend(q, k, v, 0, N, &alone, whole, NULL);
            const double off = santa_relative_l2(spread, whole, HEADS * D);
            printf("%-10s %10.3f ms %14.3f ms %9.3f ms %15.1e %16d %6d of %d kB\n",
                   santa_method_name(o.method), 1e3 * one, 1e3 * own, 1e3 * shared, off,
                   (int)stats.v_rows_head, (int)(exchanges / STEPS), (int)((told / STEPS + 512) / 1024));
            good &= off < 1e-5;
        }
        /* the others wait here, without a share of the processor */
        MPI_Barrier(world);
    }
    MPI_Bcast(&good, 1, MPI_INT, 0, world);
    if (rank == 0) printf("%s\n", good ? "as it should be" : "WRONG");
    free(q); free(k); free(v); free(whole); free(spread);
    MPI_Finalize();
    return good ? 0 : 1;
}
