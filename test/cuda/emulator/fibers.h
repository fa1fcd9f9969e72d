/* The threads of a CTA as fibers of one thread of the host, see cuda_runtime.h. */
#ifndef SANTA_EMULATOR_FIBERS_H
#define SANTA_EMULATOR_FIBERS_H
#include "numbers.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define EMULATED_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATED_ASAN 1
#endif
#endif
#ifdef EMULATED_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

/* A switch saves what the ABI wants kept, and swaps stacks. */
#if defined(EMULATED_UCONTEXT)
#include <ucontext.h>
#elif defined(__ELF__) && defined(__x86_64__)
#define EMULATED_SWITCH 1
asm(R"(
.text
.weak santa_emulated_switch
.type santa_emulated_switch, @function
santa_emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size santa_emulated_switch, .-santa_emulated_switch
)");
#elif defined(__ELF__) && defined(__aarch64__)
#define EMULATED_SWITCH 1
asm(R"(
.text
.weak santa_emulated_switch
.type santa_emulated_switch, %function
santa_emulated_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size santa_emulated_switch, .-santa_emulated_switch
)");
#else
#include <ucontext.h>
#endif
#ifdef EMULATED_SWITCH
extern "C" void santa_emulated_switch(void **save, void *load);
#endif

inline dim3 gridDim, blockDim, blockIdx;            /* of the running CTA */

namespace emulated {

typedef unsigned long long u64;
enum { WARP = 32, MOST_THREADS = 1024, BARRIERS = 16 };
enum { DECLARED_MOST = 48 << 10 };                  /* shared memory that need not be asked for */
#ifdef EMULATED_ASAN
enum { STACK = 512 << 10 };
#else
enum { STACK = 128 << 10 };
#endif
enum { STAGGER = 576 };                             /* stacks differ in the cache sets that they take */
enum { POISON = 0xff };                             /* NaN in every type */

/* ---------------------------------------------------------------------------------- cards */

/* Bytes of L2, and of shared memory that a CTA can have when it asks. */
struct card_type { const char *name; int major, minor, multiprocessors, l2, shared; };
inline const card_type cards[] = {
    {"sm_80",  8, 0,  108,  40 << 20, 163 << 10}, {"sm_86",   8, 6,  84,   6 << 20,  99 << 10},
    {"sm_89",  8, 9,  142,  96 << 20,  99 << 10}, {"sm_90",   9, 0, 132,  50 << 20, 227 << 10},
    {"sm_100", 10, 0, 148, 126 << 20, 227 << 10}, {"sm_120", 12, 0, 170, 128 << 20,  99 << 10},
};

/* --------------------------------------------------------------------------------- fibers */

struct fiber {
#ifdef EMULATED_SWITCH
    void *stack_pointer = nullptr;
#else
    ucontext_t context;
#endif
    char *low = nullptr;                            /* of its stack */
    size_t bytes = 0;
    void *fake = nullptr;                           /* ASan's */
};

/* What a thread waits for, in words for a report. */
struct place { const char *what; const char *file; int line; };

enum wait_kind { RUNS, MEETS, AT_BARRIER, POLLS, LEFT, AT_CLUSTER };

struct copy { char *to; const char *from; int bytes, zeros; };

struct thread : fiber {
    uint3 index;
    unsigned number, warp, lane;
    wait_kind state;
    place at;
    unsigned mask;                                  /* MEETS: who must come */
    int result;                                     /* of a barrier that votes */
    u64 phase;                                      /* of the cluster's barrier, that it waits for */
    /* cp.async: copies that are not done, and how many of them each closed group has */
    std::vector<copy> copies;
    std::vector<size_t> groups;
};

/* Lanes of a warp that execute one collective. */
typedef void (*finisher)(void **arguments, unsigned mask);
struct meeting {
    unsigned mask, arrived;
    finisher finish;
    place at;
    void *arguments[WARP];
};

struct warp_state {
    unsigned ready, left;                           /* bits of lanes */
    int meetings;
    meeting open[WARP];
};

struct barrier_state { unsigned arrived, any, all, count; place at; };

/* Bulk copies and the like, done when their mbarrier is waited for. */
struct behind { u64 *barrier; std::vector<copy> copies; long long bytes; int arrivals; };

/* A variable of shared memory: pages of its own, so that what is behind them faults. */
struct shared_slot { char *at; size_t bytes; u64 cta; };

/* What a CTA has of its own. In a cluster one runs until all of its threads wait for the
   others; then another one's takes its place, and its shared memory, which has the same
   addresses. */
enum { MOST_CTAS = 8 };
struct cta_state {
    unsigned left = 0, ready_warps = 0, fibers_made = 0, turn = 0;
    size_t declared = 0;
    u64 cta = 0, progress = 0;
    bool polling = false;
    barrier_state barriers[BARRIERS];
    std::vector<behind> deferred;
    thread *threads_of = nullptr;                   /* [MOST_THREADS] */
    warp_state *warps_of = nullptr;
    dim3 place;
};

struct state_type : cta_state {
    const card_type *card = nullptr;
    /* of the launch */
    std::string kernel;
    size_t dynamic = 0;
    const std::function<void()> *body = nullptr;
    bool failed = false;
    /* of the CTA */
    unsigned threads = 0, warps = 0;
    long long most_dynamic = 0;                     /* by cudaFuncSetAttribute */
    fiber host;
    thread *now = nullptr;
    /* of the cluster: its CTAs, the running one */
    unsigned ctas = 1, rank = 0;
    u64 arrived = 0, live = 0, phase = 0;           /* of its barrier: threads there, not left; passed */
    u64 last_cta = 0;
    cta_state others[MOST_CTAS];
    /* shared memory */
    char *window = nullptr, *window_next = nullptr, *dynamic_end = nullptr, *dynamic_at = nullptr;
    u64 dynamic_cta = 0;
    /* order of CTAs, warps and lanes */
    int order = 0;                                  /* 0: forward, 1: reverse, 2: shuffled */
    u64 random = 1;
    bool trace = false, quiet = false;
    std::string report;                             /* of the last failure */
};
inline state_type state;

enum { WINDOW = 16 << 20 };                         /* of shared memory's addresses */

/* -------------------------------------------------------------------------------- reports */

inline void switch_to(fiber *from, fiber *to, bool for_good = false) {
#ifdef EMULATED_ASAN
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, to->low, to->bytes);
#endif
#ifdef EMULATED_SWITCH
    (void)for_good;
    santa_emulated_switch(&from->stack_pointer, to->stack_pointer);
#else
    (void)for_good;
    swapcontext(&from->context, &to->context);
#endif
#ifdef EMULATED_ASAN
    const void *low;
    size_t bytes;
    __sanitizer_finish_switch_fiber(fake, &low, &bytes);
#endif
}

inline const char *base_name(const char *file) {
    const char *slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}

/* Says what a kernel did wrong; the launch fails, and its threads are left where they are. */
[[noreturn]] inline void give_up() {
    state.failed = true;
    thread *me = state.now;
    state.now = nullptr;
    state.fibers_made = 0;
    switch_to(me, &state.host, true);
    abort();
}

inline void say(const char *format, ...) {
    char text[400];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    state.report += text;
}

inline void report_head() {
    state.report.clear();
    say("emulator: %s, block (%u, %u, %u) of (%u, %u, %u)", state.kernel.c_str(), blockIdx.x, blockIdx.y,
        blockIdx.z, gridDim.x, gridDim.y, gridDim.z);
    if (state.now)
        say(", thread %u (warp %u, lane %u)", state.now->number, state.now->warp, state.now->lane);
}

inline void print_report() {
    fflush(stdout);
    if (!state.quiet) fputs(state.report.c_str(), stderr);
}

[[noreturn]] inline void fail(place at, const char *format, ...) {
    char text[300];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    report_head();
    say(": %s", text);
    if (at.file) say(" [%s:%d]", base_name(at.file), at.line);
    say("\n");
    print_report();
    give_up();
}

/* What the threads of the CTA do, those that do the same in one line. */
inline void describe_threads() {
    static const char *const words[] = {"can run", "wait in", "wait at the barrier", "poll in",
                                        "have left", "wait for the cluster in"};
    for (unsigned from = 0; from < state.threads;) {
        const thread &x = state.threads_of[from];
        unsigned to = from + 1;
        for (; to < state.threads; to++) {
            const thread &y = state.threads_of[to];
            if (y.state != x.state || y.at.line != x.at.line || (x.state == MEETS && x.mask != y.mask))
                break;
        }
        say("    threads %u to %u %s", from, to - 1, words[x.state]);
        if (x.state == MEETS || x.state == AT_BARRIER || x.state == POLLS || x.state == AT_CLUSTER)
            say(" %s", x.at.what);
        if (x.state == MEETS) say(", mask %08x", x.mask);
        if (x.state != LEFT && x.state != RUNS) say(" [%s:%d]", base_name(x.at.file), x.at.line);
        say("\n");
        from = to;
    }
}

/* ------------------------------------------------------------------------------- schedule */

inline u64 next_random() {
    u64 z = state.random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* One of the bits; in a shuffled CTA those from its turn on come first. */
inline unsigned pick(unsigned bits) {
    if (state.order == 0) return (unsigned)__builtin_ctz(bits);
    if (state.order == 1) return 31u - (unsigned)__builtin_clz(bits);
    const unsigned r = state.turn & 31, turned = bits >> r | (r ? bits << (32 - r) : 0);
    return ((unsigned)__builtin_ctz(turned) + r) & 31;
}

/* The running thread stops here; the next one that can goes on. */
inline void __attribute__((noinline)) run_next() {
    thread *me = state.now, *next = nullptr;
    warp_state *w = &state.warps_of[me->warp];
    if (w->ready) next = &state.threads_of[me->warp * WARP + pick(w->ready)];
    else {
        state.ready_warps &= ~(1u << me->warp);
        if (!state.ready_warps) {
            static u64 seen;
            if (state.left == state.threads) {
                state.now = nullptr;
                switch_to(me, &state.host);
                return;
            }
            /* those that poll look again, until nothing has come of it */
            bool any = false;
            if (!state.polling || seen != state.progress)
                for (unsigned i = 0; i < state.threads; i++) {
                    thread &x = state.threads_of[i];
                    if (x.state != POLLS) continue;
                    any = true;
                    state.warps_of[x.warp].ready |= 1u << x.lane;
                    state.ready_warps |= 1u << x.warp;
                }
            seen = state.progress;
            state.polling = true;
            bool waits = false;                     /* for other CTAs, which the host lets run */
            for (unsigned i = 0; i < state.threads && !any && state.ctas > 1; i++)
                waits |= state.threads_of[i].state == AT_CLUSTER;
            if (waits) {
                state.now = nullptr;
                switch_to(me, &state.host);
                return;
            }
            if (!any) {
                report_head();
                say(": nobody can go on\n");
                describe_threads();
                print_report();
                give_up();
            }
        }
        const unsigned warp = pick(state.ready_warps);
        next = &state.threads_of[warp * WARP + pick(state.warps_of[warp].ready)];
    }
    state.now = next;
    if (next != me) switch_to(me, next);
    /* here again */
}

inline void wake(thread &x) {
    x.state = RUNS;
    state.warps_of[x.warp].ready |= 1u << x.lane;
    state.ready_warps |= 1u << x.warp;
    state.progress++;
    state.polling = false;
}

inline void stop(wait_kind why, place at) {
    thread &me = *state.now;
    me.state = why;
    me.at = at;
    state.warps_of[me.warp].ready &= ~(1u << me.lane);
    run_next();
    me.state = RUNS;
}

/* For a loop that waits until others have done something. */
inline void poll(place at) { stop(POLLS, at); }
inline void poll_succeeded() {
    state.progress++;
    state.polling = false;
}

/* The lanes of `mask` come to one place; the last of them calls `finish` with what all brought,
   which lies on their stacks, where it leaves the results. */
inline void __attribute__((noinline)) meet(unsigned mask, void *mine, finisher finish, place at) {
    thread &me = *state.now;
    warp_state &w = state.warps_of[me.warp];
    const unsigned bit = 1u << me.lane;
    if (!(mask & bit)) fail(at, "%s: the mask %08x is without the lane that calls", at.what, mask);
    if (mask & w.left)
        fail(at, "%s: the mask %08x has lanes that have left, %08x", at.what, mask, mask & w.left);
    meeting *m = nullptr;
    for (int i = 0; i < w.meetings; i++) {
        meeting &x = w.open[i];
        if (!(x.mask & mask)) continue;
        if (x.mask != mask || x.finish != finish || x.at.line != at.line) {
            report_head();
            say(": comes to %s, mask %08x [%s:%d], others wait elsewhere\n", at.what, mask,
                base_name(at.file), at.line);
            describe_threads();
            print_report();
            give_up();
        }
        m = &x;
        break;
    }
    if (!m) {
        m = &w.open[w.meetings++];
        m->mask = mask;
        m->arrived = 0;
        m->finish = finish;
        m->at = at;
    }
    m->arrived |= bit;
    m->arguments[me.lane] = mine;
    if (m->arrived != mask) {
        me.mask = mask;
        stop(MEETS, at);
        return;
    }
    finish(m->arguments, mask);
    for (unsigned rest = mask & ~bit; rest; rest &= rest - 1)
        state.threads_of[me.warp * WARP + (unsigned)__builtin_ctz(rest)].state = RUNS;
    w.ready |= mask;
    state.progress++;
    state.polling = false;
    *m = w.open[--w.meetings];
}

/* Barrier `id` of `count` threads of the CTA, or of all. */
inline int barrier(unsigned id, unsigned count, bool vote, int kind, place at) {
    thread &me = *state.now;
    barrier_state &b = state.barriers[id];
    if (count % WARP || count > state.threads)
        fail(at, "a barrier of %u threads of %u", count, state.threads);
    if (!b.arrived) {
        b.at = at;
        b.any = b.count = 0;
        b.all = 1;
    } else if (count == 0 && b.at.line != at.line)
        fail(at, "%s, but other threads wait at another one [%s:%d]", at.what, base_name(b.at.file),
             b.at.line);
    b.arrived++;
    b.any |= vote;
    b.all &= vote;
    b.count += vote;
    const int result = (int)(kind == 0 ? b.any : kind == 1 ? b.all : b.count);
    if (b.arrived < (count ? count : state.threads)) {
        me.mask = id;
        stop(AT_BARRIER, at);
        return me.result;
    }
    b.arrived = 0;
    for (unsigned i = 0; i < state.threads; i++) {
        thread &x = state.threads_of[i];
        if (x.state != AT_BARRIER || x.mask != id) continue;
        x.result = result;
        wake(x);
    }
    return result;
}

/* The cluster's barrier: all go on when all threads of its CTAs that have not left are
   there. */
inline void cluster_count() {
    if (!state.arrived || state.arrived < state.live) return;
    state.arrived = 0;
    state.phase++;
    for (unsigned i = 0; i < state.threads; i++)
        if (state.threads_of[i].state == AT_CLUSTER) wake(state.threads_of[i]);
}
inline void arrive_at_cluster() {
    state.now->phase = state.phase + 1;
    state.arrived++;
    cluster_count();
}
inline void wait_for_cluster(place at) {
    while (state.phase < state.now->phase) stop(AT_CLUSTER, at);
}

/* The running thread is done. */
inline void leave() {
    thread &me = *state.now;
    warp_state &w = state.warps_of[me.warp];
    const unsigned bit = 1u << me.lane;
    for (int i = 0; i < w.meetings; i++)
        if (w.open[i].mask & bit)
            fail(w.open[i].at, "left, while other lanes wait for it in %s, mask %08x", w.open[i].at.what,
                 w.open[i].mask);
    w.left |= bit;
    state.left++;
    state.live--;
    cluster_count();
    state.progress++;
    state.polling = false;
    me.copies.clear();
    me.groups.clear();
    stop(LEFT, {"", "", 0});
}

/* A fiber's life: a thread of each CTA. */
inline void run_fiber() {
#ifdef EMULATED_ASAN
    const void *low;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &low, &bytes);
    if (!state.host.low) { state.host.low = (char *)(uintptr_t)low; state.host.bytes = bytes; }
#endif
    for (;;) {
        (*state.body)();
        leave();
    }
}

inline void make_fiber(fiber &f) {
#ifdef EMULATED_ASAN
    __asan_unpoison_memory_region(f.low, f.bytes);
#endif
    const unsigned i = (unsigned)((thread *)&f - state.threads_of);
#ifdef EMULATED_SWITCH
    char *top = f.low + f.bytes - 64 - (size_t)(i % 32 * STAGGER) / 64 * 64;
    top -= (uintptr_t)top % 64;
    void **at = (void **)top;
#ifdef __x86_64__
    *--at = nullptr;                                /* run_fiber returns never */
    *--at = (void *)run_fiber;
    at -= 6;
    for (int k = 0; k < 6; k++) at[k] = nullptr;
#else
    at -= 20;
    for (int k = 0; k < 20; k++) at[k] = nullptr;
    at[11] = (void *)run_fiber;                     /* x30 */
#endif
    f.stack_pointer = at;
#else
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.low;
    f.context.uc_stack.ss_size = f.bytes - i % 32 * STAGGER / 64 * 64;
    f.context.uc_link = nullptr;
    makecontext(&f.context, run_fiber, 0);
#endif
}

/* -------------------------------------------------------------------------- shared memory */

inline size_t page_bytes() {
    static const size_t n = (size_t)sysconf(_SC_PAGESIZE);
    return n;
}
inline size_t whole_pages(size_t n) { return (n + page_bytes() - 1) / page_bytes() * page_bytes(); }

inline char *reserve(size_t bytes) {
    void *p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) { perror("emulator: mmap"); abort(); }
    return (char *)p;
}
inline void open_pages(void *at, size_t bytes, bool now = true) {
    if (mprotect(at, bytes, now ? PROT_READ | PROT_WRITE : PROT_NONE)) {
        perror("emulator: mprotect");
        abort();
    }
}

/* A place of that many bytes that ends at a page that cannot be touched. */
inline char *place_shared(size_t bytes, size_t align) {
    const size_t room = whole_pages(bytes + align);
    char *at = state.window_next;
    state.window_next += room + page_bytes();
    if (state.window_next > state.window + WINDOW / 2) {
        fprintf(stderr, "emulator: too many variables\n");
        abort();
    }
    open_pages(at, room);
    char *end = at + room;
    end -= bytes;
    end -= (uintptr_t)end % align;
#ifdef EMULATED_ASAN
    __asan_poison_memory_region(at, (size_t)(end - at));
    __asan_poison_memory_region(end + bytes, (size_t)(at + room - end - (long)bytes));
#endif
    return end;
}

inline void shared_limits(place at) {
    const size_t total = state.declared + state.dynamic;
    if (state.declared > DECLARED_MOST)
        fail(at, "%zu bytes of shared memory are declared, %d are the most", state.declared,
             (int)DECLARED_MOST);
    if (total > (size_t)state.card->shared)
        fail(at, "%zu bytes of shared memory, %d are the most on %s", total, state.card->shared,
             state.card->name);
    if (total > DECLARED_MOST && (long long)state.dynamic > state.most_dynamic)
        fail(at, "%zu bytes of dynamic shared memory were not asked for", state.dynamic);
}

/* All variables; what CTAs of a cluster that do not run have in them: the dynamic memory, then
   these. */
inline std::deque<shared_slot> slots;
inline shared_slot &make_slot(size_t bytes, size_t align) {
    slots.push_back({place_shared(bytes, align), bytes, 0});
    return slots.back();
}
struct kept_memory { u64 cta = 0; std::vector<char> bytes; };
inline std::deque<kept_memory> kept[MOST_CTAS];     /* which never move */
inline kept_memory &kept_of(unsigned rank, size_t i) {
    while (kept[rank].size() <= i) kept[rank].emplace_back();
    return kept[rank][i];
}

/* SHARED: the variable of this line. */
template <typename T, int line> T &declared() {
    static shared_slot &slot = make_slot(sizeof(T), alignof(T) < 16 ? 16 : alignof(T));
    if (slot.cta != state.cta) {
        slot.cta = state.cta;
        memset(slot.at, POISON, slot.bytes);
        state.declared += slot.bytes;
        shared_limits({"", "santa_cuda.cu", line});
    }
    return *(T *)slot.at;
}

/* DYNAMIC_SHARED; poisoned at the start of the CTA. */
template <typename T> T *dynamic_shared() { return (T *)state.dynamic_at; }

inline unsigned shared_address(const void *p, place at) {
    const size_t offset = (size_t)((const char *)p - state.window);
    if (offset >= WINDOW) fail(at, "%p is not in shared memory", p);
    return (unsigned)offset;
}
inline char *shared_pointer(unsigned address) { return state.window + address; }

/* The same place of another CTA's shared memory. */
inline char *of_other(char *at, unsigned rank, place from) {
    if (rank >= state.ctas) fail(from, "CTA %u of a cluster of %u", rank, state.ctas);
    if (rank == state.rank) return at;
    const u64 cta = state.others[rank].cta;
    for (size_t i = 0; i < slots.size(); i++) {
        const size_t offset = (size_t)(at - slots[i].at);
        if (offset >= slots[i].bytes) continue;
        kept_memory &x = kept_of(rank, i + 1);
        if (x.cta != cta) fail(from, "CTA %u of the cluster has no such variable yet", rank);
        return x.bytes.data() + offset;
    }
    const size_t offset = (size_t)(at - state.dynamic_at);
    if (offset >= state.dynamic) fail(from, "%p is not in shared memory", (void *)at);
    return kept_of(rank, 0).bytes.data() + offset;
}

/* The dynamic memory, and what must not be written behind it. */
inline size_t kept_bytes() {
#ifdef EMULATED_ASAN
    return state.dynamic;
#else
    return (size_t)(state.dynamic_end - state.dynamic_at);
#endif
}

/* CTA `rank` of the cluster takes the place of the one that is there. */
inline void change_cta(unsigned rank) {
    if (rank == state.rank) return;
    kept_of(state.rank, 0).bytes.assign(state.dynamic_at, state.dynamic_at + kept_bytes());
    for (size_t i = 0; i < slots.size(); i++) {
        kept_memory &x = kept_of(state.rank, i + 1);
        x.cta = slots[i].cta;
        if (x.cta == state.cta) x.bytes.assign(slots[i].at, slots[i].at + slots[i].bytes);
    }
    std::swap((cta_state &)state, state.others[state.rank]);
    std::swap((cta_state &)state, state.others[rank]);
    state.rank = rank;
    blockIdx = state.place;
    const kept_memory &own = kept_of(rank, 0);
    if (own.bytes.size() == kept_bytes() && !own.bytes.empty())
        memcpy(state.dynamic_at, own.bytes.data(), own.bytes.size());
    for (size_t i = 0; i < slots.size(); i++) {
        const kept_memory &x = kept_of(rank, i + 1);
        const bool there = x.cta == state.cta && x.bytes.size() == slots[i].bytes;
        slots[i].cta = there ? state.cta : 0;
        if (there) memcpy(slots[i].at, x.bytes.data(), x.bytes.size());
    }
}

/* --------------------------------------------------------------------------------- launch */

inline void on_fault(int number, siginfo_t *info, void *) {
    if (!state.now) {
        fprintf(stderr, "emulator: the host touched %p, which is device memory or none\n", info->si_addr);
        signal(number, SIG_DFL);
        return;
    }
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
    const char *const p = (const char *)info->si_addr;
    const bool shared = p >= state.window && p < state.window + WINDOW;
    fail({"", nullptr, 0}, "touched %p, %s", info->si_addr,
         shared ? "beside its shared memory" : "which is no memory of the device");
}

inline void make_threads(cta_state &cta) {
    if (cta.threads_of) return;
    cta.threads_of = new thread[MOST_THREADS];
    cta.warps_of = new warp_state[WARP]();
    char *stacks = reserve((size_t)MOST_THREADS * (STACK + page_bytes()));
    for (unsigned i = 0; i < MOST_THREADS; i++, stacks += STACK + page_bytes()) {
        thread &x = cta.threads_of[i];
        x.low = stacks + page_bytes();
        x.bytes = STACK;
        open_pages(x.low, x.bytes);
    }
}

inline void start() {
    if (state.window) return;
    make_threads(state);
    state.window = reserve(WINDOW);
    state.window_next = state.window + page_bytes();
    state.dynamic_end = state.window + WINDOW - page_bytes();
    open_pages(state.dynamic_end - (256 << 10), 256 << 10);
    const char *order = getenv("SANTA_EMULATED_ORDER");
    if (order) {
        state.order = !strncmp(order, "reverse", 7) ? 1 : !strncmp(order, "shuffle", 7) ? 2 : 0;
        if (strchr(order, ':')) state.random = strtoull(strchr(order, ':') + 1, nullptr, 0);
    }
    state.trace = getenv("SANTA_EMULATED_TRACE") != nullptr;
    static char other_stack[64 << 10];
    stack_t s = {};
    s.ss_sp = other_stack;
    s.ss_size = sizeof other_stack;
#ifndef EMULATED_ASAN
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaltstack(&s, nullptr);
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
#endif
}

inline void begin_cta(dim3 at) {
    make_threads(state);
    blockIdx = state.place = at;
    state.cta = ++state.last_cta;
    state.declared = 0;
    state.left = 0;
    state.progress = 0;
    state.polling = false;
    state.deferred.clear();
    state.turn = state.order == 2 ? (unsigned)next_random() : 0;
    memset(state.barriers, 0, sizeof state.barriers);
#ifdef EMULATED_ASAN
    memset(state.dynamic_at, POISON, state.dynamic);
#else
    memset(state.dynamic_at, POISON, (size_t)(state.dynamic_end - state.dynamic_at));
#endif
    state.ready_warps = 0;
    for (unsigned i = 0; i < state.threads; i++) {
        thread &x = state.threads_of[i];
        x.number = i;
        x.warp = i / WARP;
        x.lane = i % WARP;
        x.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
        x.state = RUNS;
        x.copies.clear();
        x.groups.clear();
        if (i >= state.fibers_made) make_fiber(x);
    }
    if (state.fibers_made < state.threads) state.fibers_made = state.threads;
    for (unsigned i = 0; i < state.warps; i++) {
        warp_state &w = state.warps_of[i];
        const unsigned lanes = state.threads - i * WARP;
        w.ready = lanes >= WARP ? 0xffffffffu : (1u << lanes) - 1;
        w.left = ~w.ready;
        w.meetings = 0;
        state.ready_warps |= 1u << i;
    }
}

/* Until all threads have left or wait for other CTAs; false if it failed. */
inline bool resume_cta() {
    for (unsigned i = 0; i < state.threads; i++)
        if (state.threads_of[i].state == AT_CLUSTER && state.threads_of[i].phase <= state.phase)
            wake(state.threads_of[i]);
    if (!state.ready_warps) return true;
    state.progress++;
    const unsigned warp = pick(state.ready_warps);
    state.now = &state.threads_of[warp * WARP + pick(state.warps_of[warp].ready)];
    switch_to(&state.host, state.now);
    return !state.failed;
}

/* What a CTA has left behind. */
inline bool end_cta() {
    for (const behind &x : state.deferred)
        if (x.bytes) {
            report_head();
            say(": a bulk copy that nobody waited for\n");
            print_report();
            return !(state.failed = true);
        }
#ifndef EMULATED_ASAN
    for (const char *p = state.dynamic_at + state.dynamic; p < state.dynamic_end; p++)
        if (*p != (char)POISON) {
            report_head();
            say(": wrote %ld bytes behind its dynamic shared memory\n",
                (long)(p - state.dynamic_at) - (long)state.dynamic + 1);
            print_report();
            return !(state.failed = true);
        }
#endif
    return true;
}

inline bool run_ctas(dim3 first) {
    state.arrived = state.phase = 0;
    state.live = (u64)state.threads * state.ctas;
    for (unsigned r = 0; r < state.ctas; r++) {
        change_cta(r);
        begin_cta(dim3(first.x + r, first.y, first.z));
    }
    for (unsigned done = 0; done < state.ctas;) {
        const u64 phase = state.phase, live = state.live;
        for (unsigned r = 0; r < state.ctas; r++) {
            change_cta(r);
            if (state.left == state.threads) continue;
            if (!resume_cta()) return false;
            if (state.left < state.threads) continue;
            if (!end_cta()) return false;
            done++;
        }
        if (phase == state.phase && live == state.live && done < state.ctas) {
            report_head();
            say(": the cluster's CTAs wait for each other\n");
            describe_threads();
            print_report();
            return !(state.failed = true);
        }
    }
    return true;
}

/* Runs the CTAs of a cluster, which are neighbours from `first` on; false if one failed: then
   all have new threads next time. */
inline bool run_cluster(dim3 first) {
    if (run_ctas(first)) return true;
    state.fibers_made = 0;
    for (cta_state &cta : state.others) cta.fibers_made = 0;
    return false;
}

inline bool run_grid(const char *kernel, dim3 grid, dim3 block, size_t dynamic, long long most_dynamic,
                     const std::function<void()> &body, unsigned ctas) {
    timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    state.kernel = kernel;
    gridDim = grid;
    blockDim = block;
    state.dynamic = dynamic;
    state.most_dynamic = most_dynamic;
    state.body = &body;
    state.failed = false;
    state.threads = block.x * block.y * block.z;
    state.warps = (state.threads + WARP - 1) / WARP;
    state.dynamic_at = state.dynamic_end - dynamic;
    state.dynamic_at -= (uintptr_t)state.dynamic_at % 1024;
#ifdef EMULATED_ASAN
    __asan_poison_memory_region(state.dynamic_end - (256 << 10), 256 << 10);
    __asan_unpoison_memory_region(state.dynamic_at, dynamic);
#endif
    const u64 count = (u64)grid.x * grid.y * grid.z / ctas;
    state.ctas = ctas;
    std::vector<unsigned> shuffled;
    if (state.order == 2) {
        for (u64 i = 0; i < count; i++) shuffled.push_back((unsigned)i);
        for (u64 i = count; i > 1; i--) std::swap(shuffled[i - 1], shuffled[next_random() % i]);
    }
    for (u64 i = 0; i < count && !state.failed; i++) {
        const u64 k = (state.order == 0 ? i : state.order == 1 ? count - 1 - i : shuffled[i]) * ctas;
        run_cluster(
            dim3((unsigned)(k % grid.x), (unsigned)(k / grid.x % grid.y), (unsigned)(k / grid.x / grid.y)));
    }
    if (state.trace) {
        clock_gettime(CLOCK_MONOTONIC, &t1);
        fprintf(stderr, "emulator: %s <<<(%u, %u, %u), %u, %zu>>> %.3f ms\n", kernel, grid.x, grid.y,
                grid.z, state.threads, dynamic,
                1e3 * (double)(t1.tv_sec - t0.tv_sec) + 1e-6 * (double)(t1.tv_nsec - t0.tv_nsec));
    }
    return !state.failed;
}

}  /* namespace emulated */
#endif
