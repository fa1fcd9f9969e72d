/* The accuracy program on a model too small to know anything: it ends, its numbers do not
   depend on the threads, dense is dense, and what is wrong with files and options is said. The
   program is $SANTA_ACCURACY, else build/accuracy; where it is not built, or programs cannot be
   started, the cases are skipped. So is saap_dump, $SANTA_SAAP_DUMP, whose dumps of queries and
   keys are read again. */
#if defined(__unix__) || defined(__APPLE__)
#define _DEFAULT_SOURCE                                       /* popen, getpid under -std=c99 */
#define HAVE_POPEN 1
#include <sys/wait.h>
#include <unistd.h>
#endif
#include "harness.h"
#include "../bench/accuracy/tasks.h"
#include "../examples/saap.h"
#include <stdio.h>
#include <stdlib.h>

#ifdef HAVE_POPEN

enum { DIM = 16, HIDDEN = 24, LAYERS = 2, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 8, CONTEXT = 640,
       MOST = 1 << 20, BUCKETS = 8, BUCKETS_HIDDEN = 4 };

static char model_path[400], csv_path[400], buckets_path[400];
static char said[MOST], other[MOST];

static const char *program(void) {
    const char *given = getenv("SANTA_ACCURACY");
    return given ? given : "build/accuracy";
}

/* Exit code of a command; said is what it printed. */
static int listen_to(const char *command) {
    fflush(NULL);
    FILE *f = popen(command, "r");
    const size_t n = f ? fread(said, 1, sizeof said - 1, f) : 0;
    said[n] = 0;
    const int status = f ? pclose(f) : -1;
    return status >= 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* That of the program with these arguments behind --model. */
static int run(const char *arguments) {
    char command[2000];
    snprintf(command, sizeof command, "\"%s\" --model \"%s\" %s 2>&1", program(), model_path, arguments);
    return listen_to(command);
}

static void write_u32(FILE *f, uint32_t x) {
    for (int i = 0; i < 4; i++) fputc((int)(x >> 8 * i & 255u), f);
}

static void write_model(int32_t vocab, long cut) {
    const int32_t sizes[8] = {DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, vocab, CONTEXT};
    const int64_t q_dim = HEADS * HEAD_DIM, kv_dim = KV_HEADS * HEAD_DIM;
    const int64_t tensors[11] = {vocab * DIM, LAYERS * DIM, LAYERS * q_dim * DIM, LAYERS * kv_dim * DIM,
                                 LAYERS * kv_dim * DIM, LAYERS * q_dim * DIM, LAYERS * DIM,
                                 LAYERS * HIDDEN * DIM,
                                 LAYERS * HIDDEN * DIM, LAYERS * HIDDEN * DIM, DIM};
    const float    constants[2] = {10000.0f, 1e-5f};
    uint32_t bits[2];
    test_rng r = test_rng_make(9);
    FILE    *f = fopen(model_path, "wb");
    if (!CHECK(f != NULL)) return;
    memcpy(bits, constants, sizeof bits);
    fwrite("SANTA-LM", 1, 8, f);
    write_u32(f, 1);
    write_u32(f, 64);
    for (int i = 0; i < 8; i++) write_u32(f, (uint32_t)sizes[i]);
    write_u32(f, 1);
    write_u32(f, bits[0]);
    write_u32(f, bits[1]);
    write_u32(f, 1);
    for (int t = 0; t < 11; t++)
        for (int64_t i = 0; i < tensors[t] && ftell(f) < cut; i++) {
            const uint16_t half =
                santa_f32_to_f16(t == 1 || t == 6 || t == 10 ? 1.0f : 0.4f * (float)test_normal(&r));
            fputc(half & 255, f);
            fputc(half >> 8, f);
        }
    CHECK(fclose(f) == 0);
}

/* Random routers. */
static void write_buckets(int32_t head_dim) {
    const int32_t header[9] = {1, LAYERS, KV_HEADS, HEADS / KV_HEADS, head_dim, BUCKETS, BUCKETS_HIDDEN};
    const int32_t sizes[5] = {BUCKETS * head_dim, BUCKETS_HIDDEN * head_dim, BUCKETS_HIDDEN,
                              BUCKETS * BUCKETS_HIDDEN, BUCKETS};
    static unsigned char data[1 << 16];
    size_t size = SAAP_HEADER;
    test_rng r = test_rng_make(10);
    memset(data, 0, sizeof data);
    memcpy(data, "SAAP", 4);
    for (size_t i = 0; i < 9; i++)
        for (int k = 0; k < 4; k++) data[4 + 4 * i + (size_t)k] = (unsigned char)(header[i] >> 8 * k & 255);
    for (int a = 0; a < LAYERS * 5; a++) {
        for (int32_t i = 0; i < KV_HEADS * sizes[a % 5]; i++, size += 4) {
            const float x = (float)test_normal(&r);
            uint32_t    u;
            memcpy(&u, &x, 4);
            for (size_t k = 0; k < 4; k++) data[size + k] = (unsigned char)(u >> 8 * k & 255);
        }
        size = (size + SAAP_ALIGN - 1) / SAAP_ALIGN * SAAP_ALIGN;
    }
    const uint64_t hash = saap_hash(saap_hash(UINT64_C(0xCBF29CE484222325), data, SAAP_HASHED),
                                    data + SAAP_HEADER, size - SAAP_HEADER);
    for (size_t k = 0; k < 8; k++) data[SAAP_HASHED + k] = (unsigned char)(hash >> 8 * k & 255);
    FILE *f = fopen(buckets_path, "wb");
    if (CHECK(f != NULL)) CHECK(fwrite(data, 1, size, f) == size && fclose(f) == 0);
}

static int set_up(void) {
    const char *tmp = getenv("TMPDIR");
    if (access(program(), X_OK) != 0) { test_skip("the accuracy program is not built"); return 0; }
    if (!tmp || strlen(tmp) > 300) tmp = "/tmp";
    snprintf(model_path, sizeof model_path, "%s/santa-accuracy-%ld.bin", tmp, (long)getpid());
    snprintf(csv_path, sizeof csv_path, "%s/santa-accuracy-%ld.csv", tmp, (long)getpid());
    snprintf(buckets_path, sizeof buckets_path, "%s/santa-accuracy-%ld.saap", tmp, (long)getpid());
    write_model(TASKS_VOCAB, MOST);
    return 1;
}

static void tear_down(void) {
    remove(model_path);
    remove(csv_path);
    remove(buckets_path);
}

/* Lines of times are left out. */
static size_t read_csv(char *to) {
    FILE *f = fopen(csv_path, "rb");
    size_t n = f ? fread(to, 1, MOST - 1, f) : 0;
    if (f) fclose(f);
    to[n] = 0;
    for (char *line = to; line < to + n;) {
        const char *end = strchr(line, '\n');
        const size_t size = end ? (size_t)(end - line) + 1 : (size_t)(to + n - line);
        if (strncmp(line, "8,\"time", 7) != 0) { line += size; continue; }
        memmove(line, line + size, (size_t)(to + n - line) - size + 1);
        n -= size;
    }
    return n;
}

static const char *value_behind(const char *key) {
    const char *at = strstr(other, key);
    return CHECK_MSG(at != NULL, "no line %s", key) ? at + strlen(key) : "nan";
}

/* All tables, small; the same numbers on one thread and on three. */
static void tables(void) {
    char arguments[1000];
    if (!set_up()) return;
    for (int threads = 1; threads <= (test_quick ? 1 : 3); threads += 2) {
        snprintf(arguments, sizeof arguments,
                 "--tables 1,2,3,4,5 --bodies 2 --queries 1 --length 512 --steps 2 --threads %d "
                 "--csv \"%s\"",
                 threads, csv_path);
        const int code = run(arguments);
        if (!CHECK_MSG(code == 0, "exit code %d; it said: %.500s", code, said)) { tear_down(); return; }
        CHECK(read_csv(threads == 1 ? other : said) > 10000);
    }
    CHECK_MSG(test_quick || strcmp(said, other) == 0, "three threads give other numbers than one");
    CHECK_NEAR(atof(value_behind("1,\"all\",\"dense\",\"-\",v_rows_group_percent,")), 100.0, 0, 0);
    CHECK_NEAR(atof(value_behind("1,\"all\",\"dense\",\"-\",top1_same_percent,")), 100.0, 0, 0);
    CHECK_NEAR(atof(value_behind("1,\"all\",\"dense\",\"-\",against_dense_points,")), 0.0, 0, 0);
    /* two texts are too few for an interval */
    CHECK(strstr(other, "\"dense\",\"-\",against_dense_points,0,,\n") != NULL);
    /* all keys */
    CHECK_NEAR(atof(value_behind("1,\"all\",\"top-k\",\"2048\",relative_l2,")), 0.0, 1e-5, 0);
    CHECK(atof(value_behind("1,\"all\",\"sys\",\"8\",relative_l2,"))
          > 2.0 * atof(value_behind("1,\"all\",\"sys\",\"512\",relative_l2,")));
    CHECK(atof(value_behind("1,\"all\",\"sys\",\"8\",v_rows_head_percent,")) <= 100.0 * 8.0 / 384.0);
    /* Closed forms: iid's variance falls like 1 / S. */
    CHECK_NEAR(atof(value_behind("4,\"variance (trace) by S, QA1\",\"iid\",\"16\",mean,")),
               64.0 * atof(value_behind("4,\"variance (trace) by S, QA1\",\"iid\",\"1024\",mean,")), 0,
               1e-4);
    tear_down();
}

/* Table 7 on one thread and on three; each way to read all keys is exact. */
static void routed(void) {
    char arguments[1000];
    if (!set_up()) return;
    write_buckets(HEAD_DIM);
    for (int threads = 1; threads <= (test_quick ? 1 : 3); threads += 2) {
        snprintf(arguments, sizeof arguments,
                 "--tables 7 --buckets \"%s\" --bodies 2 --queries 1 --length 640 --threads %d "
                 "--csv \"%s\"",
                 buckets_path, threads, csv_path);
        const int code = run(arguments);
        if (!CHECK_MSG(code == 0, "exit code %d; it said: %.500s", code, said)) { tear_down(); return; }
        CHECK(read_csv(threads == 1 ? other : said) > 10000);
    }
    CHECK_MSG(test_quick || strcmp(said, other) == 0, "three threads give other numbers than one");
    CHECK_NEAR(atof(value_behind("7,\"all\",\"cl. 8, drawn\",\"1024\",relative_l2,")), 0.0, 1e-5, 0);
    CHECK_NEAR(atof(value_behind("7,\"all\",\"cl. 8, drawn\",\"1024\",covered_mass_percent,")), 100.0, 1e-3,
               0);
    CHECK_NEAR(atof(value_behind("7,\"all\",\"cl. 8, both\",\"l 8, 64\",relative_l2,")), 0.0, 1e-5, 0);
    CHECK_NEAR(atof(value_behind("7,\"all\",\"cl. 8, both\",\"l 8, 64\",selectivity_percent,")), 100.0, 0,
               0);
    CHECK_NEAR(atof(value_behind("7,\"all\",\"window alone\",\"w 2047\",relative_l2,")), 0.0, 1e-5, 0);
    CHECK_NEAR(atof(value_behind("7,\"all\",\"window alone\",\"w 64\",selectivity_percent,")), 0.0, 0, 0);
    CHECK(atof(value_behind("7,\"all\",\"window alone\",\"w 64\",relative_l2,"))
          > atof(value_behind("7,\"all\",\"uniform, drawn\",\"256\",relative_l2,")));
    CHECK(atof(value_behind("7,\"all\",\"uniform, drawn\",\"256\",relative_l2,")) > 1e-3);
    CHECK(atof(value_behind("7,\"all\",\"cl. 8, drawn\",\"256\",bytes_percent,"))
          > atof(value_behind("7,\"all\",\"cl. 8, drawn\",\"256\",v_rows_group_percent,")));
    tear_down();
}

static double kept_by(const char *begin, const char *alpha) {
    char key[120];
    snprintf(key, sizeof key, "%s%s, all layers\",\"512\",mean,", begin, alpha);
    return atof(value_behind(key));
}

/* Table 8 on one thread and on three; what a text's prefill keeps and loses goes with alpha. */
static void sparse(void) {
    char arguments[1000];
    if (!set_up()) return;
    for (int threads = 1; threads <= 3; threads += 2) {
        snprintf(arguments, sizeof arguments,
                 "--tables 8 --bodies 2 --queries 1 --length 640 --threads %d --csv \"%s\"", threads,
                 csv_path);
        const int code = run(arguments);
        if (!CHECK_MSG(code == 0, "exit code %d; it said: %.500s", code, said)) { tear_down(); return; }
        CHECK(read_csv(threads == 1 ? other : said) > 10000);
    }
    CHECK_MSG(strcmp(said, other) == 0, "three threads give other numbers than one");
    CHECK_NEAR(atof(value_behind("8,\"all\",\"dense\",\"-\",blocks_kept_percent,")), 100.0, 0, 0);
    CHECK(strstr(other, "\"time, %") == NULL);
    static const char *const own = "8,\"blocks kept, %, each head its own\",\"alpha ";
    const double half = kept_by(own, "0.5"), most = kept_by(own, "0.95"),
                 joined = kept_by("8,\"blocks kept, %, union of a group\",\"alpha ", "0.5");
    CHECK_MSG(half < most && half < joined && most <= 100.0, "kept: %g, %g, union %g", half, most, joined);
    CHECK(atof(value_behind("8,\"per head at 512 tokens\",\"alpha 0.9, all layers\",\"sampled\",mean,"))
          >= 0.9);
    CHECK(atof(value_behind("8,\"per head at 512 tokens\",\"alpha 0.5, layer 0\",\"rel.L2\",mean,"))
          > atof(value_behind("8,\"per head at 512 tokens\",\"alpha 0.95, layer 0\",\"rel.L2\",mean,")));
    tear_down();
}

/* Rows of a table that --list shows. */
static int listed(int table) {
    char line[16];
    int rows = 0;
    snprintf(line, sizeof line, "\n    %d  ", table);
    for (const char *at = said; (at = strstr(at, line)) != NULL; at++) rows++;
    return rows;
}

/* --methods keeps the rows of the tables that have it and splits each table into its methods;
   without --tables the first one that has it runs. */
static void chosen_methods(void) {
    static const struct { const char *method, *tables; } has[] = {
        {"iid", "1"}, {"strat", "1"}, {"sys", "167"}, {"prop", "1"}, {"flash", "1"}, {"top-k", "167"},
        {"top-p", "1"}, {"vattention", "26"}, {"pps", "67"}, {"saap", "7"}, {"sample-attention", "8"},
    };
    char arguments[1000], files[500];
    int all[9], sum[9] = {0};
    if (!set_up()) return;
    write_buckets(HEAD_DIM);
    snprintf(files, sizeof files, "--length 512 --list --buckets \"%s\"", buckets_path);
    snprintf(arguments, sizeof arguments, "--tables 1,2,6,7,8 %s", files);
    CHECK_MSG(run(arguments) == 0, "%s", said);
    for (int t = 1; t <= 8; t++) all[t] = listed(t);
    for (size_t m = 0; m < sizeof has / sizeof has[0]; m++) {
        const char *const buckets = strcmp(has[m].method, "saap") == 0 ? files : "--length 512 --list";
        for (int t = 1; t <= 8; t++) {
            snprintf(arguments, sizeof arguments, "--tables %d --methods %s %s", t, has[m].method,
                     t == 7 ? buckets : "--length 512 --list");
            const int code = run(arguments), in = strchr(has[m].tables, '0' + t) != NULL;
            CHECK_MSG(code == !in, "%s: exit code %d: %.300s", arguments, code, said);
            if (code == 0) sum[t] += listed(t);
        }
        snprintf(arguments, sizeof arguments, "--method %s %s", has[m].method, buckets);
        CHECK_MSG(run(arguments) == 0 && listed(has[m].tables[0] - '0') > 0, "%s: %.300s", arguments, said);
    }
    for (int t = 1; t <= 8; t++) CHECK_INT(sum[t], all[t]);
    CHECK(all[1] > 0 && all[7] > 0 && all[8] > 0 && all[3] == 0);
    CHECK(run("--methods dense --length 512 --list") == 0 && listed(0) == 1 && listed(1) == 0);
    snprintf(arguments, sizeof arguments, "--methods pps,saap %s", files);
    CHECK(run(arguments) == 0 && listed(6) > 0 && listed(7) > listed(6));

    /* What is measured is the chosen rows and no others. */
    snprintf(arguments, sizeof arguments, "--methods pps --bodies 1 --queries 1 --length 512 --csv \"%s\"",
             csv_path);
    CHECK_MSG(run(arguments) == 0, "%s", said);
    CHECK(read_csv(other) > 1000 && strstr(other, "6,\"all\",\"pps, 2 bits\",\"16\""));
    CHECK(!strstr(other, "\"sys\"") && !strstr(other, "1,\"all\""));
    snprintf(arguments, sizeof arguments,
             "--prefill sample --alpha .3 --bodies 1 --queries 1 --length 512 --csv \"%s\"", csv_path);
    CHECK_MSG(run(arguments) == 0, "%s", said);
    CHECK(read_csv(other) > 1000 && strstr(other, "8,\"all\",\"layer 0 dense\",\"alpha 0.3\""));
    CHECK(strstr(other, "\"alpha 0.3, all layers\"") && !strstr(other, "alpha 0.5"));
    tear_down();
}

static void refused(const char *arguments, const char *why) {
    const int code = run(arguments);
    CHECK_MSG(code == 1 && strstr(said, why), "%s: exit code %d, no '%s'; it said: %.300s", arguments, code,
              why, said);
}

static void refusals(void) {
    if (!set_up()) return;
    refused("--no-such", "unknown option --no-such");
    refused("--bodies", "wants a value");
    refused("--bodies 0", "--bodies wants a number");
    refused("--bodies 1x", "--bodies wants a number");
    refused("--tables 1,9", "knows no '9'");
    refused("--tasks QA3", "knows no 'QA3'");
    refused("--tables ''", "wants a list");
    refused("--methods topk", "knows no 'topk'");
    refused("--state x", "table 5");
    refused("--steps 3", "--steps is for table 5");
    refused("--samples 3 --tables 2", "--samples is for table 5");
    refused("--tasks TEXT --queries 3", "--queries is not for TEXT");
    refused("--buckets x", "table 7");
    refused("--buckets x --tables 7 --methods sys", "--buckets is for saap in table 7");
    refused("--methods sys --tables 2", "sys is not in table 2, but in 1,6,7");
    refused("--method saap --tables 1,6", "saap is not in table 1,6, but in 7");
    refused("--methods sys --tables 1,2", "table 2 has none of these, but vattention");
    refused("--methods sys --tables 1,5", "--methods is for table 1,2,6,7,8, not for 5");
    refused("--methods dense --tables 2", "--methods dense is for table 1");
    refused("--prefill sys", "--prefill wants dense or sample");
    refused("--prefill sample --tables 1,8", "--prefill sample is for table 8");
    refused("--prefill sample --methods sys", "sys is not in table 8, but in 1,6,7");
    refused("--prefill dense --tables 8", "--prefill dense is not for table 8");
    refused("--prefill dense --alpha 0.5", "--alpha needs --prefill sample");
    refused("--alpha 0.5 --tables 1", "--alpha is for table 8");
    refused("--alpha 0", "--alpha wants a number above 0");
    refused("--alpha 1.1", "--alpha wants a number above 0");
    refused("--alpha x", "--alpha wants a number above 0");
    refused("--length 512 --tables 7 --buckets no-such.saap", "cannot open no-such.saap");
    refused("--length 512 --tables 7 --buckets ''", "wants a list of files");
    refused("--length 512 --tables 7", "buckets of another model");
    refused("--length 1024", "trained up to 640");
    refused("--model no-such-file.bin", "no-such-file.bin");
    refused("--length 512 --csv no-such-directory/x.csv", "cannot write");
    write_model(TASKS_VOCAB + 1, MOST);
    refused("--length 512", "vocabulary");
    write_model(TASKS_VOCAB, 2000);
    refused("--length 512", "shorter");
    write_model(TASKS_VOCAB, MOST);
    CHECK_INT(run("--length 512 --list"), 0);
    CHECK(strstr(said, "top-p") != NULL);
    CHECK_INT(run("--help"), 0);
    tear_down();
}


/* ------------------------------------------------------------ saap_dump */

enum { DUMP_LENGTH = 512 - TASKS_ROOM, DUMP_CONTEXT_ROWS = 20, Q = HEADS * HEAD_DIM,
       KV = KV_HEADS * HEAD_DIM };

static const char *dump_program(void) {
    const char *given = getenv("SANTA_SAAP_DUMP");
    return given ? given : "build/saap_dump";
}

static uint32_t read_u32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static float read_f32(const unsigned char *p, size_t i) {
    const uint32_t u = read_u32(p + 4 * i);
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Largest difference of the row behind RoPE to the turned row before it. */
static double turned_by(const unsigned char *plain, const unsigned char *turned, size_t row, size_t width,
                        double position) {
    double worst = 0.0;
    for (size_t i = row * width; i < (row + 1) * width; i += 2) {
        const double angle = position * pow(10000.0, -(double)(i % HEAD_DIM) / HEAD_DIM);
        const double a = (double)read_f32(plain, i), b = (double)read_f32(plain, i + 1);
        const double x = a * cos(angle) - b * sin(angle), y = a * sin(angle) + b * cos(angle);
        const double off =
            fabs(x - (double)read_f32(turned, i)) + fabs(y - (double)read_f32(turned, i + 1));
        if (!(off <= worst)) worst = off;
    }
    return worst;
}

static double log_sum_exp(const unsigned char *q, const unsigned char *k, size_t row, size_t head,
                          size_t keys) {
    double sum = 0.0;
    for (size_t j = 0; j < keys; j++) {
        double score = 0.0;
        for (size_t i = 0; i < HEAD_DIM; i++)
            score += (double)read_f32(q, row * Q + head * HEAD_DIM + i)
                     * (double)read_f32(k, j * KV + head / (HEADS / KV_HEADS) * HEAD_DIM + i);
        sum += exp(score / sqrt((double)HEAD_DIM));
    }
    return log(sum);
}

/* Rows, positions and numbers of a dump in f32. */
static void check_dump(const unsigned char *p, size_t size) {
    static const uint32_t want[8] = {1, LAYERS, HEADS, KV_HEADS, HEAD_DIM, 0, 1, DUMP_LENGTH};
    if (!CHECK(size > 64 && memcmp(p, "SAAPDUMP", 8) == 0)) return;
    for (size_t i = 0; i < 8; i++) CHECK_INT(read_u32(p + 8 + 4 * i), want[i]);
    const size_t rows = read_u32(p + 40), layer = 4 * (2 * rows * Q + 2 * DUMP_LENGTH * KV + rows * HEADS);
    if (!CHECK_INT(size, 64 + 8 * rows + LAYERS * layer)) return;
    size_t questions = 0;
    double worst_turn = 0.0, worst_lse = 0.0, least_more = 1e300, most_more = 0.0;
    for (size_t r = 0; r < rows; r++) {
        const uint32_t position = read_u32(p + 64 + 4 * r), kind = read_u32(p + 64 + 4 * (rows + r));
        questions += kind == 1;
        CHECK(kind <= 1 && (kind == 0) == (r < DUMP_CONTEXT_ROWS));
        CHECK(kind == 1 ? position > DUMP_LENGTH && position < DUMP_LENGTH + TASKS_ROOM
                        : position >= DUMP_LENGTH / 4 && position < DUMP_LENGTH);
        for (size_t i = 0; i < LAYERS; i++) {
            const unsigned char *q_plain = p + 64 + 8 * rows + i * layer, *q = q_plain + 4 * rows * Q;
            const unsigned char *k = q + 4 * (rows * Q + DUMP_LENGTH * KV), *lse = k + 4 * DUMP_LENGTH * KV;
            const double turn = turned_by(q_plain, q, r, Q, position);
            if (!(turn <= worst_turn)) worst_turn = turn;
            for (size_t h = 0; h < HEADS; h++) {
                const size_t keys = kind == 0 ? position + 1u : (size_t)DUMP_LENGTH;
                const double more = (double)read_f32(lse, r * HEADS + h) - log_sum_exp(q, k, r, h, keys);
                if (kind == 0 && !(fabs(more) <= worst_lse)) worst_lse = fabs(more);
                if (kind == 1 && !(more >= least_more)) least_more = more;
                if (kind == 1 && more > most_more) most_more = more;
            }
        }
    }
    for (size_t i = 0; i < LAYERS; i++) {
        const unsigned char *plain = p + 64 + 8 * rows + i * layer + 8 * rows * Q;
        for (size_t j = 0; j < DUMP_LENGTH; j++) {
            const double turn = turned_by(plain, plain + 4 * DUMP_LENGTH * KV, j, KV, (double)j);
            if (!(turn <= worst_turn)) worst_turn = turn;
        }
    }
    CHECK(questions > 0);
    CHECK_MSG(worst_turn < 1e-4, "rows behind RoPE are off by %g", worst_turn);
    CHECK_MSG(worst_lse < 1e-4, "lse of a row of the text is off by %g", worst_lse);
    /* A question's own tokens are keys, too. */
    CHECK_MSG(least_more > -1e-4 && most_more > 1e-2,
              "lse of a question's rows: %g to %g more than of the text's keys", least_more, most_more);
}

static int dump(const char *arguments) {
    char command[2000];
    snprintf(command, sizeof command, "\"%s\" --model \"%s\" --out \"%s.\" %s 2>&1", dump_program(),
             model_path, csv_path, arguments);
    return listen_to(command);
}

/* The dump's bytes, in a buffer of MOST; the file is removed. */
static size_t take_dump(int number, char *to) {
    char path[500];
    snprintf(path, sizeof path, "%s.%d.dump", csv_path, number);
    FILE *f = fopen(path, "rb");
    const size_t n = f ? fread(to, 1, MOST, f) : 0;
    if (f) fclose(f);
    remove(path);
    return n;
}

static void dumps(void) {
    static char first[MOST], second[MOST];
    if (access(dump_program(), X_OK) != 0) SKIP("saap_dump is not built");
    if (!set_up()) return;
    CHECK_MSG(dump("--texts 2 --seed 3 --length 512 --rows 20 --f32") == 0, "%s", said);
    const size_t n = take_dump(0, first), m = take_dump(1, second);
    check_dump((const unsigned char *)first, n);
    check_dump((const unsigned char *)second, m);
    CHECK(n != m || memcmp(first, second, n) != 0);
    CHECK_MSG(dump("--texts 1 --seed 3 --length 512 --rows 20 --f32") == 0, "%s", said);
    CHECK(take_dump(0, second) == n && memcmp(first, second, n) == 0);
    CHECK_MSG(dump("--texts 1 --seed 4 --length 512 --rows 20 --f32") == 0, "%s", said);
    CHECK(take_dump(0, second) > 64 && memcmp(first, second, n) != 0);
    CHECK_MSG(dump("--texts 1 --seed 3 --length 512 --rows 20") == 0, "%s", said);
    const size_t half = take_dump(0, second);
    CHECK(half > n / 2 && half < n);
    CHECK(dump("--texts") == 1 && strstr(said, "wants a value"));
    CHECK(dump("--texts 0") == 1 && strstr(said, "from 1"));
    CHECK(dump("--text 1") == 1 && strstr(said, "unknown option"));
    CHECK(dump("--length 512 --rows 300") == 1 && strstr(said, "--rows 300"));
    CHECK(dump("--length 1024") == 1 && strstr(said, "context"));
    tear_down();
}

#else
static void no_popen(void) { SKIP("needs popen"); }
#define tables   no_popen
#define refusals no_popen
#define routed   no_popen
#define sparse   no_popen
#define chosen_methods no_popen
#define dumps    no_popen
#endif

const test_case suite_accuracy[] = {
    {"all tables, on one thread and on three", tables},
    {"keys in buckets, on one thread and on three", routed},
    {"sparse prefill, on one thread and on three", sparse},
    {"methods and alphas chosen", chosen_methods},
    {"wrong files and options", refusals},
    {"dumps of queries and keys", dumps},
    {0, 0}
};
