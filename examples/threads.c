/* Several cores: the library hands tasks to your own thread pool, here a small one of POSIX
   threads.
   Build: cc -O2 examples/threads.c -lm      (older systems than glibc 2.34 also want -pthread) */
#define SANTA_IMPLEMENTATION
#include "../santa.h"
#include "data.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, N = 8192, HEADS = 16, KV_HEADS = 4, D = 64, WORKERS = 3 };

typedef struct pool {
    pthread_mutex_t lock;
    pthread_cond_t  wake, done;
    santa_task      task;
    void           *context;
    int64_t         next, count, unfinished;    /* tasks next .. count - 1 are still to be taken */
    int             stop, helped;               /* helped: tasks that were run by a worker       */
} pool;

/* Takes tasks until there is none. Called, and returns, with the lock held. */
static void run_tasks(pool *p, int is_worker) {
    while (p->next < p->count) {
        const int64_t i = p->next++;
        p->helped += is_worker;
        pthread_mutex_unlock(&p->lock);
        p->task(p->context, i);
        pthread_mutex_lock(&p->lock);
        if (--p->unfinished == 0) pthread_cond_signal(&p->done);
    }
}

static void *worker(void *argument) {
    pool *p = (pool *)argument;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        run_tasks(p, 1);
        if (!p->stop) pthread_cond_wait(&p->wake, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* santa_options.parallel_for: runs task(context, 0 .. count - 1) and returns when all are
   done. */
static void pool_run(void *user, int64_t count, santa_task task, void *context) {
    pool *p = (pool *)user;
    pthread_mutex_lock(&p->lock);
    p->task = task;
    p->context = context;
    p->next = 0;
    p->count = p->unfinished = count;
    pthread_cond_broadcast(&p->wake);
    run_tasks(p, 0);
    while (p->unfinished > 0) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static float q[BATCH * HEADS * D], k[BATCH * N * KV_HEADS * D], v[BATCH * N * KV_HEADS * D];
static float out[BATCH * HEADS * D], first[BATCH * HEADS * D];

int main(int argc, char **argv) {
    data_arguments(argc, argv,
                   "One call on several threads of a pool: the same bits for each number of them.");
    pool p = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, NULL,
               0, 0, 0, 0, 0 };
    pthread_t thread[WORKERS];
    for (int i = 0; i < WORKERS; i++) if (pthread_create(&thread[i], NULL, worker, &p) != 0) return 1;
    for (int b = 0; b < BATCH; b++)
        data_sequence(q + b * HEADS * D, k + b * N * KV_HEADS * D, v + b * N * KV_HEADS * D, N, HEADS,
                      KV_HEADS, D, (uint64_t)b + 1);
    santa_attention a = {0};
    a.q = santa_view(q, SANTA_F32, BATCH, 1, HEADS, D);
    a.k = santa_view(k, SANTA_F32, BATCH, N, KV_HEADS, D);
    a.v = santa_view(v, SANTA_F32, BATCH, N, KV_HEADS, D);
    a.out = santa_view(out, SANTA_F32, BATCH, 1, HEADS, D);
    santa_options o = {0};
    o.method = SANTA_SYS;
    o.parallel_for = pool_run;
    o.parallel_user = &p;
    int wrong = 0;
    for (o.num_threads = 1; o.num_threads <= 4; o.num_threads *= 2) {
        /* for these threads: where they do not share keys each needs its own part */
        const size_t bytes = santa_workspace_size(&a, &o);
        void *workspace = malloc(bytes);
        const santa_status status = santa_decode(&a, &o, workspace, bytes, NULL);
        free(workspace);
        if (status != SANTA_OK) { fprintf(stderr, "%s\n", santa_status_string(status)); wrong = 1; break; }
        if (o.num_threads == 1) memcpy(first, out, sizeof out);
        const int same = memcmp(first, out, sizeof out) == 0;
        printf("%d threads, %7d bytes of workspace: %s\n", (int)o.num_threads, (int)bytes,
               same ? "same bits" : "DIFFERENT");
        wrong += !same;
        memset(out, 0, sizeof out);
    }
    printf("%d tasks were run by the pool's own threads\n", p.helped);
    pthread_mutex_lock(&p.lock);
    p.stop = 1;
    pthread_cond_broadcast(&p.wake);
    pthread_mutex_unlock(&p.lock);
    for (int i = 0; i < WORKERS; i++) pthread_join(thread[i], NULL);
    return wrong ? 1 : 0;
}
