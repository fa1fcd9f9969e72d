/* What bench.c and compare.c have in common: threads, an arena of numbers, lists in options,
   the machine. Define _DEFAULT_SOURCE, and include santa.h and bench.h first. gcc or clang. */
#ifndef BENCH_PROGRAM_H
#define BENCH_PROGRAM_H

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_LIST = 16, MAX_THREADS = 256 };

static void usage(void);                             /* the program's own: options to stdout */
static void fail(const char *what) { fprintf(stderr, "\n%s\n", what); exit(1); }
/* What is wrong with the options. */
static void refuse(const char *why) { fprintf(stderr, "%s; see --help\n", why); exit(1); }

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* ------------------------------------------------------------ threads */

/* Threads that live as long as the program. They spin for some 0.1 ms after a job, then sleep:
   starting or waking a thread costs as much as a short call, and is not what is measured
   here. */
typedef struct worker {
    unsigned job;                      /* counts its jobs; a change is the signal. Atomic */
    char line[60];
} worker;
static struct pool {
    pthread_mutex_t lock;
    pthread_cond_t  wake;
    int64_t         workers;           /* beside the caller */
    int64_t         next, busy;        /* next task to take; workers not through with this job. Atomic */
    int64_t         count;
    santa_task      task;
    void           *context;
    worker          worker[MAX_THREADS];
} pool = { .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER };

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_tasks(void) {
    int64_t i;
    while ((i = __atomic_fetch_add(&pool.next, 1, __ATOMIC_RELAXED)) < pool.count)
        pool.task(pool.context, i);
}

static int has_no_job(const worker *w, unsigned seen) {
    return __atomic_load_n(&w->job, __ATOMIC_ACQUIRE) == seen;
}

static void *work(void *argument) {
    const worker *w = (const worker *)argument;
    for (unsigned seen = 0;; seen++) {
        for (int spins = 0; spins < 5000 && has_no_job(w, seen); spins++) relax();
        if (has_no_job(w, seen)) {
            pthread_mutex_lock(&pool.lock);
            while (has_no_job(w, seen)) pthread_cond_wait(&pool.wake, &pool.lock);
            pthread_mutex_unlock(&pool.lock);
        }
        take_tasks();
        __atomic_fetch_sub(&pool.busy, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* santa_parallel_for. No worker sees two jobs at once: the call ends when all that were woken
   are through with this one. */
static void run_tasks(void *user, int64_t count, santa_task task, void *context) {
    const int64_t helpers = count - 1 < pool.workers ? count - 1 : pool.workers;
    (void)user;
    pool.task = task;
    pool.context = context;
    pool.count = count;
    __atomic_store_n(&pool.next, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&pool.busy, helpers, __ATOMIC_RELAXED);
    pthread_mutex_lock(&pool.lock);
    for (int64_t i = 0; i < helpers; i++) __atomic_fetch_add(&pool.worker[i].job, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    take_tasks();
    for (int spins = 0; __atomic_load_n(&pool.busy, __ATOMIC_ACQUIRE) > 0; spins++)
        if (spins < 100000) relax();
        else sched_yield();
}

static void start_workers(int64_t workers) {
    for (; pool.workers < workers; pool.workers++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, &pool.worker[pool.workers])) fail("cannot start a thread");
        pthread_detach(thread);
    }
}


/* ------------------------------------------------------------ memory */

static int huge_pages;                               /* ask for 2 MB pages */

static void *allocate(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, (size_t)2 << 20, bytes)) fail("out of memory");
#ifdef MADV_HUGEPAGE
    if (huge_pages && madvise(p, bytes, MADV_HUGEPAGE)) fail("--huge-pages: the system refuses them");
#else
    if (huge_pages) fail("--huge-pages: this system has no madvise for them");
#endif
    return p;
}

/* K and V of a call: a window of the arena. */
typedef struct memory { char *data; size_t capacity, bytes, next; const element *type; } memory;
static memory arena;

static size_t last_level_cache(void) {
    long bytes = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return bytes > 0 ? (size_t)bytes : (size_t)32 << 20;
}

/* Sum of four 16-bit uniforms, scaled to variance 1. */
static float gauss(uint64_t *state) {
    uint64_t x = *state += 0x9E3779B97F4A7C15u, sum;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    sum = (x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);
    return ((float)sum - 131070.0f) * (1.0f / 37837.0f);
}

enum { FILL_ROWS = 4096 };
static void fill_part(void *context, int64_t part) {
    const element *e = (const element *)context;
    const size_t size = (size_t)bytes_of(e, (int64_t)FILL_ROWS * DIM), begin = size * (size_t)part;
    const size_t end = begin + size < arena.bytes ? begin + size : arena.bytes;
    uint64_t state = (uint64_t)part << 32;
    for (size_t at = begin; at + (size_t)e->bytes <= end; at += (size_t)e->bytes) {
        float x[DIM];
        for (int64_t i = 0; i < e->block; i++) x[i] = gauss(&state);
        e->encode(arena.data + at, x);
    }
}

static void fill_arena(const element *e, size_t wanted) {
    const size_t part = (size_t)bytes_of(e, (int64_t)FILL_ROWS * DIM);
    if (arena.type == e && arena.bytes >= wanted) return;
    fprintf(stderr, "\r\033[Kfilling %.1f GB with %s ...", (double)wanted * 1e-9, e->name);
    if (arena.capacity < wanted) {
        free(arena.data);
        arena.data = (char *)allocate(wanted);
        arena.capacity = wanted;
    }
    arena.bytes = wanted;
    arena.type = e;
    arena.next = 0;
    run_tasks(NULL, (int64_t)((wanted + part - 1) / part), fill_part, (void *)(uintptr_t)e);
}

static const char *next_window(size_t bytes) {
    if (arena.next + bytes > arena.bytes) arena.next = 0;
    arena.next += bytes;
    return arena.data + arena.next - bytes;
}

/* ------------------------------------------------------------ options */

typedef struct isa_name { const char *name; santa_isa isa; } isa_name;
static const isa_name isas[] = {
    { "auto", SANTA_ISA_AUTO },
#define ISA(id, name, platform) { #name, SANTA_ISA_##id },
    SANTA_ISA_LIST(ISA)
#undef ISA
};
enum { ISAS = sizeof isas / sizeof *isas };

/* Every table of names has entries that begin with the name. */
static const char *name_at(const void *table, size_t entry_size, int i) {
    const char *name;
    memcpy(&name, (const char *)table + entry_size * (size_t)i, sizeof name);
    return name;
}

static void print_names(const char *option, const void *table, size_t entry_size, int entries) {
    enum { INDENT = 18 };
    int column = printf("  %-16s", option);
    for (int i = 0; i < entries; i++) {
        const char *name = name_at(table, entry_size, i);
        if (column + (int)strlen(name) > 79) column = printf("\n%*s", INDENT, "") - 1;
        column += printf("%s%s", name, i + 1 < entries ? "," : "\n");
    }
}

static int equal_names(const char *a, const char *b, size_t length) {
    for (size_t i = 0; i < length; i++) if ((a[i] | 32) != (b[i] | 32)) return 0; /* ASCII, any case */
    return strlen(b) == length;
}

/* The one that is named, if this CPU has it. */
static const isa_name *isa_in(const char *name) {
    for (int i = 0; i < ISAS; i++)
        if (equal_names(name, isas[i].name, strlen(name))) {
            if (!santa_isa_supported(isas[i].isa)) refuse("this CPU has no such --isa");
            return isas + i;
        }
    refuse("unknown --isa");
    return NULL;
}

/* Bits of the entries named in a comma-separated list. */
static unsigned names_in(const char *list, const void *table, size_t entry_size, int entries) {
    unsigned found = 0;
    for (const char *p = list; *p; p += *p == ',') {
        const size_t length = strcspn(p, ",");
        int i = 0;
        while (i < entries && !equal_names(p, name_at(table, entry_size, i), length)) i++;
        if (i == entries) {
            fprintf(stderr, "unknown: %.*s\n", (int)length, p);
            refuse("not a list of its names");
        }
        found |= 1u << i;
        p += length;
        if (*p && !p[1]) refuse("a list ends with a comma");
    }
    return found;
}
#define NAMES_IN(list, table, entries) names_in(list, table, sizeof *(table), entries)

static int ascending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Numbers in [1, most], with k and M for 1024 and 1024^2; ascending. */
static int numbers_in(const char *list, int64_t most, int64_t *numbers) {
    int count = 0;
    for (const char *p = list; *p;) {
        char *end;
        const int64_t x = strtoll(p, &end, 10);
        const int64_t unit = (*end | 32) == 'k' ? 1024 : (*end | 32) == 'm' ? 1024 * 1024 : 1;
        if (unit > 1) end++;
        if (end == p || x < 1 || x > most / unit || (*end && *end != ',') || count == MAX_LIST) {
            fprintf(stderr, "%s: not a list of numbers from 1 to %lld\n", list, (long long)most);
            refuse("at most 16 of them, k and M stand for 1024 and 1024^2");
        }
        numbers[count++] = x * unit;
        if (*end && !end[1]) refuse("a list ends with a comma");
        p = end + (*end == ',');
    }
    qsort(numbers, (size_t)count, sizeof *numbers, ascending);
    return count;
}

/* ------------------------------------------------------------ the machine */

/* What /proc/cpuinfo says of the first CPU under that name. */
static void cpu_says(const char *what, char *value, size_t bytes) {
    char line[256];
    FILE *info = fopen("/proc/cpuinfo", "r");
    snprintf(value, bytes, "unknown");
    while (info && fgets(line, sizeof line, info)) {
        const char *is = strchr(line, ':');
        if (!is || strncmp(line, what, strlen(what)) || !strchr("\t :", line[strlen(what)])) continue;
        snprintf(value, bytes, "%.*s", (int)strcspn(is + 2, "\n"), is + 2);
        break;
    }
    if (info) fclose(info);
}

static void print_machine(santa_isa isa) {
    char name[128], family[16], model[16];
    cpu_says("model name", name, sizeof name);      /* may hide the generation: hence the numbers */
    cpu_says("cpu family", family, sizeof family);
    cpu_says("model\t", model, sizeof model);
    printf("# CPU %s, family %s, model %s, %ld processors, last-level cache %zu MB;\n# compiler %s; "
           "instruction set %s%s\n",
           name, family, model, sysconf(_SC_NPROCESSORS_ONLN), last_level_cache() >> 20, __VERSION__,
           santa_isa_name(isa == SANTA_ISA_AUTO ? santa_best_isa() : isa),
           huge_pages ? "; 2 MB pages asked for" : "");
}

#endif
