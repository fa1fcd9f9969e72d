/* llama.h - loader, tokenizer, forward pass and sampler for small llama-like models; attention
   is santa.h's.

   A toy for examples and benches: plain C, one sequence, f32. Reads llama2.c's fp32
   checkpoints, versions 0 and 1, and the versioned format of bench/accuracy/README.md (f16 and
   bf16 weights, any head_dim, RoPE theta). Include santa.h first.

       llama_model m;  llama_tokenizer t;  llama_state s;  llama_error e;
       if (llama_load(&m, "model.bin", &e) || llama_load_tokenizer(&t, "tokenizer.bin",
       m.vocab_size, &e)
           || llama_state_init(&s, &m, 512, &e)) puts(e.text); // each returns 0, or -1 and a text

       llama_prefill(&s, prompt, count - 1, 0, &e);            // all but the last, which gives logits;
                                                               // dense, see llama_prefill_options

       santa_options o = {0};  o.method = SANTA_SYS;  o.num_samples = 64;
       llama_state_options(&s, &o, &e);                        // how llama_forward attends, from now on
       santa_options dense = llama_dense();
       llama_layer_options(&s, 0, &dense, &e);                 // but for the first layer
       token = prompt[count - 1];
       for (pos = count - 1; pos < 512; pos++) {
           llama_forward(&s, token, pos, 1, &e);               // s.logits
           token = llama_sample(s.logits, m.vocab_size, 0.7, &random);
       }

   The cache is what lies before the position of the call, so going back is to call with an
   earlier position: a prompt is prefilled once and continued many times.

   For attention on another device, define the LLAMA_ macros below first: decode_cuda.cu. */
#ifndef LLAMA_H
#define LLAMA_H

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef LLAMA_DEVICE
#define LLAMA_DEVICE      SANTA_CPU    /* where attention runs */
#define LLAMA_ALLOC(size) malloc(size) /* memory that it and the CPU reach: all that santa_decode touches */
#define LLAMA_FREE(p)     free(p)
#define LLAMA_DECODE      santa_decode /* returns when the output is there */
#endif

enum { LLAMA_BOS = 1, LLAMA_EOS = 2, LLAMA_BYTE = 3 };      /* byte b is token LLAMA_BYTE + b          */
enum { LLAMA_HEADER = 64 };                                 /* bytes of the versioned format's header  */
enum { LLAMA_HEADER_1 = 256 };                              /* of llama2.c's version 1                 */

typedef struct llama_error { char text[400]; } llama_error;

/* Writes the message and returns -1, so that a caller can say "return llama_fail(...)". */
static inline int llama_fail(llama_error *e, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    return -1;
}

/* Wall-clock seconds (processor seconds where C has no better clock to offer). */
static inline double llama_seconds(void) {
#if defined(CLOCK_MONOTONIC) && !defined(_WIN32)
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#else
    return (double)clock() / (double)CLOCKS_PER_SEC;
#endif
}

/* The files are little-endian whatever the machine is. */
static inline uint32_t llama_u32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline int32_t llama_i32(const unsigned char *p) {
    const uint32_t u = llama_u32(p);
    int32_t i;
    memcpy(&i, &u, 4);
    return i;
}

static inline float llama_f32(const unsigned char *p) {
    const uint32_t u = llama_u32(p);
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* ------------------------------------------------------------ model */

typedef struct llama_model {
    int32_t dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len, head_dim;
    int32_t q_dim, kv_dim;                  /* head_dim times heads */
    float   rope_theta, norm_epsilon;
    float  *data;                           /* all tensors, in file order */
    float  *embedding;                      /* [vocab_size, dim] */
    float  *att_norm, *wq, *wk, *wv, *wo;   /* [n_layers, ..., inputs] */
    float  *ffn_norm, *w1, *w2, *w3;
    float  *norm;                           /* [dim] */
    float  *classifier;                     /* [vocab_size, dim] */
} llama_model;

/* a * b * c of positive numbers, or 0 where sixteen such tensors of floats would not fit in the
   address range. */
static inline size_t llama_count(int32_t a, int32_t b, int32_t c) {
    const size_t max = SIZE_MAX / sizeof(float) / 16, x = (size_t)a, y = (size_t)b, z = (size_t)c;
    return y > max / x || z > max / (x * y) ? 0 : x * y * z;
}

/* Is the file, from its position, exactly this long: 0 yes, -1 shorter, 1 longer. Steps of 1 GB
   with a read at each step's end: that needs no 64-bit ftell, which C lacks, and ends soon
   whatever a damaged header claims. */
static inline int llama_compare_length(FILE *f, uint64_t bytes) {
    while (bytes > 0) {
        const uint64_t step = bytes < 1u << 30 ? bytes : 1u << 30;
        if (fseek(f, (long)step - 1, SEEK_CUR) != 0 || fgetc(f) == EOF) return -1;
        bytes -= step;
    }
    return fgetc(f) == EOF ? 0 : 1;
}

/* What of a file is not a number of the model. */
typedef struct llama_format {
    int         header;         /* bytes before the tensors */
    santa_dtype type;           /* of every tensor */
    int         shared;         /* the classifier is the embedding */
    int         rope_tables;    /* cos and sin lie in the file; they are skipped */
    int         norms_first;    /* the tensors in the order of llama2.c's version 1 */
} llama_format;

/* Of llama2.c, seven integers. */
static inline void llama_parse_sizes(llama_model *m, const unsigned char *header) {
    int32_t *const field[7] = { &m->dim, &m->hidden_dim, &m->n_layers, &m->n_heads, &m->n_kv_heads,
                                &m->vocab_size, &m->seq_len };
    for (int i = 0; i < 7; i++) *field[i] = llama_i32(header + 4 * i);
    if (m->dim > 0 && m->n_heads > 0 && m->dim % m->n_heads == 0) m->head_dim = m->dim / m->n_heads;
    m->rope_theta = 10000.0f;
    m->norm_epsilon = 1e-5f;
}

/* Its version 1: magic, version, the integers, a byte that says if the classifier is the
   embedding. */
static inline int llama_parse_llama2_1(llama_model *m, llama_format *format, const unsigned char *header,
                                       const char *path, llama_error *e) {
    const int version = (int)llama_i32(header + 4), shared = header[36];
    if (version == 2)
        return llama_fail(e, "%s: a quantised checkpoint (llama2.c, version 2): only those in fp32 are "
                          "read, versions 0 and 1", path);
    if (version != 1)
        return llama_fail(e, "%s: a llama2.c checkpoint of version %d: versions 0 and 1 are read", path,
                          version);
    if (shared > 1) return llama_fail(e, "%s: its header is damaged: %d is no yes or no", path, shared);
    llama_parse_sizes(m, header + 8);
    format->header = LLAMA_HEADER_1;
    format->shared = shared;
    format->norms_first = 1;
    return 0;
}

/* Its version 0: nothing but the integers; the vocabulary's sign says if the classifier is the
   embedding. */
static inline void llama_parse_llama2_0(llama_model *m, llama_format *format, const unsigned char *header) {
    llama_parse_sizes(m, header);
    format->header = 7 * 4;
    format->shared = m->vocab_size > 0;
    format->rope_tables = 1;
    if (m->vocab_size < 0 && m->vocab_size > INT32_MIN) m->vocab_size = -m->vocab_size;
}

/* The versioned header of bench/accuracy/README.md, behind its magic. */
static inline int llama_parse_versioned(llama_model *m, llama_format *format, const unsigned char *header,
                                        const char *path, llama_error *e) {
    int32_t *const field[8] = { &m->dim, &m->hidden_dim, &m->n_layers, &m->n_heads, &m->n_kv_heads,
                                &m->head_dim,
                                &m->vocab_size, &m->seq_len };
    const uint32_t version = llama_u32(header + 8), bytes = llama_u32(header + 12),
                   type = llama_u32(header + 48), flags = llama_u32(header + 60);
    if (version != 1 || bytes != LLAMA_HEADER)
        return llama_fail(e, "%s: version %u with a header of %u bytes: only version 1 with %d is known",
                          path, (unsigned)version, (unsigned)bytes, (int)LLAMA_HEADER);
    if (type > 2)
        return llama_fail(e, "%s: tensor type %u is none of f32, f16, bf16 (0, 1, 2)", path,
                          (unsigned)type);
    if (flags > 1) return llama_fail(e, "%s: unknown flags %u", path, (unsigned)flags);
    for (int i = 0; i < 8; i++) *field[i] = llama_i32(header + 16 + 4 * i);
    m->rope_theta = llama_f32(header + 52);
    m->norm_epsilon = llama_f32(header + 56);
    if (!(m->rope_theta >= 1.0f && m->rope_theta < 1e30f)
        || !(m->norm_epsilon > 0.0f && m->norm_epsilon < 1.0f))
        return llama_fail(e, "%s: RoPE theta %g or norm epsilon %g makes no sense", path,
                          (double)m->rope_theta, (double)m->norm_epsilon);
    format->header = LLAMA_HEADER;
    format->type = type == 0 ? SANTA_F32 : type == 1 ? SANTA_F16 : SANTA_BF16;
    format->shared = (int)(flags & 1u);
    return 0;
}

static inline int llama_read_header(llama_model *m, llama_format *format, FILE *f, const char *path,
                                    llama_error *e) {
    enum { OLD = 7 * 4, NUMBERS_1 = 37 };                     /* bytes of version 1's that mean something */
    unsigned char header[LLAMA_HEADER];
    const size_t bytes = fread(header, 1, LLAMA_HEADER, f);
    if (ferror(f)) return llama_fail(e, "cannot read %s: %s", path, strerror(errno));
    if (bytes >= 8 && memcmp(header, "SANTA-LM", 8) == 0) {
        if (bytes < LLAMA_HEADER)
            return llama_fail(e, "%s: cut short in its header of %d bytes", path, (int)LLAMA_HEADER);
        if (llama_parse_versioned(m, format, header, path, e) != 0) return -1;
    } else if (bytes >= 4 && memcmp(header, "24ka", 4) == 0) { /* "ak42", as a number */
        if (bytes < NUMBERS_1)
            return llama_fail(e, "%s: cut short in its header of %d bytes", path, (int)LLAMA_HEADER_1);
        if (llama_parse_llama2_1(m, format, header, path, e) != 0) return -1;
    } else {
        if (bytes < OLD)
            return llama_fail(e, "%s: not a llama2.c checkpoint: shorter than its header of %d bytes", path,
                              (int)OLD);
        llama_parse_llama2_0(m, format, header);
    }
    if (m->dim < 1 || m->hidden_dim < 1 || m->n_layers < 1 || m->n_heads < 1 || m->n_kv_heads < 1
        || m->vocab_size < 3 || m->seq_len < 1)
        return llama_fail(e,
                          "%s: not a model: header says dim %d, hidden %d, layers %d, heads %d, "
                          "KV heads %d, vocabulary %d, context %d",
                          path, (int)m->dim, (int)m->hidden_dim, (int)m->n_layers, (int)m->n_heads,
                          (int)m->n_kv_heads, (int)m->vocab_size, (int)m->seq_len);
    if (m->n_heads % m->n_kv_heads != 0)
        return llama_fail(e, "%s: %d heads are not a multiple of %d KV heads", path, (int)m->n_heads,
                          (int)m->n_kv_heads);
    if (m->head_dim == 0)
        return llama_fail(e, "%s: dim %d is not a multiple of %d heads", path, (int)m->dim,
                          (int)m->n_heads);
    if (m->head_dim < 0 || m->head_dim % 2 != 0 || m->head_dim > INT32_MAX / m->n_heads)
        return llama_fail(e,
                          "%s: head_dim %d is negative, odd (RoPE turns pairs) or too large for %d heads",
                          path, (int)m->head_dim, (int)m->n_heads);
    m->q_dim = m->head_dim * m->n_heads;
    m->kv_dim = m->head_dim * m->n_kv_heads;
    return 0;
}

/* count numbers of the file's type, at the end of data's memory, become floats from its start
   on. */
static inline void llama_widen(float *data, size_t count, santa_dtype type) {
    const size_t size = type == SANTA_F32 ? 4 : 2;
    const unsigned char *from = (const unsigned char *)data + count * (sizeof(float) - size);
    for (size_t i = 0; i < count; i++) {
        const unsigned char *p = from + size * i;
        if (type == SANTA_F32) { data[i] = llama_f32(p); continue; }
        const uint16_t half = (uint16_t)(p[0] | p[1] << 8);
        data[i] = type == SANTA_F16 ? santa_f16_to_f32(half) : santa_bf16_to_f32(half);
    }
}

static inline int llama_read_model(llama_model *m, FILE *f, const char *path, llama_error *e) {
    llama_format format = { 0, SANTA_F32, 0, 0, 0 };
    if (llama_read_header(m, &format, f, path, e) != 0) return -1;
    const int32_t layers = m->n_layers, dim = m->dim;
    float *rope_tables = NULL, *classifier = NULL;
    const struct { float **tensor; int32_t a, b, c; int present; } layout[] = {
        { &m->embedding, m->vocab_size, dim, 1, 1 },
        { &m->att_norm, layers, dim, 1, 1 },     { &m->wq, layers, m->q_dim, dim, 1 },
        { &m->wk, layers, m->kv_dim, dim, 1 },   { &m->wv, layers, m->kv_dim, dim, 1 },
        { &m->wo, layers, dim, m->q_dim, 1 },
        { &m->ffn_norm, layers, dim, 1, 1 },     { &m->w1, layers, m->hidden_dim, dim, 1 },
        { &m->w2, layers, dim, m->hidden_dim, 1 },  { &m->w3, layers, m->hidden_dim, dim, 1 },
        { &m->norm, dim, 1, 1, 1 },
        { &rope_tables, m->seq_len, m->head_dim, 1, format.rope_tables },
        { &classifier, m->vocab_size, dim, 1, !format.shared },
    };
    static const unsigned char in_order[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 },
                               norms_first[] = { 1, 6, 10, 0, 2, 3, 4, 5, 7, 8, 9, 11, 12 };
    const unsigned char *const order = format.norms_first ? norms_first : in_order;
    const size_t tensors = sizeof layout / sizeof layout[0], size = format.type == SANTA_F32 ? 4 : 2;
    size_t floats = 0;
    for (size_t i = 0; i < tensors; i++) {
        const size_t count = llama_count(layout[i].a, layout[i].b, layout[i].c);
        if (count == 0) return llama_fail(e, "%s: sizes in the header overflow the address range", path);
        if (layout[i].present) floats += count;
    }
    /* Length first: a header that lies must not make us ask for memory that no weight will
       fill. */
    if (fseek(f, format.header, SEEK_SET) != 0)
        return llama_fail(e, "cannot read %s: %s", path, strerror(errno));
    const int length = llama_compare_length(f, (uint64_t)floats * size);
    if (length != 0)
        return llama_fail(e, "%s: the file is %s than the %llu bytes its header asks for", path,
                          length < 0 ? "shorter" : "longer",
                          (unsigned long long)floats * size + (unsigned long long)format.header);
    m->data = (float *)malloc(floats * sizeof(float));
    if (!m->data) return llama_fail(e, "%s: no memory for %llu weights", path, (unsigned long long)floats);
    char *const tail = (char *)m->data + floats * (sizeof(float) - size);
    if (fseek(f, format.header, SEEK_SET) != 0 || fread(tail, size, floats, f) != floats)
        return llama_fail(e, "%s: cannot read the weights: %s", path, strerror(errno));
    llama_widen(m->data, floats, format.type);

    float *at = m->data;
    for (size_t i = 0; i < tensors; i++) {
        const size_t t = order[i];
        if (!layout[t].present) continue;
        *layout[t].tensor = at;
        at += llama_count(layout[t].a, layout[t].b, layout[t].c);
    }
    m->classifier = format.shared ? m->embedding : classifier;
    return 0;
}

static inline void llama_free(llama_model *m) {
    free(m->data);
    memset(m, 0, sizeof *m);
}

static inline int llama_load(llama_model *m, const char *path, llama_error *e) {
    memset(m, 0, sizeof *m);
    FILE *f = fopen(path, "rb");
    if (!f) return llama_fail(e, "cannot open %s: %s", path, strerror(errno));
    const int status = llama_read_model(m, f, path, e);
    fclose(f);
    if (status != 0) llama_free(m);
    return status;
}

/* The whole file, with a 0 behind it; free() it. NULL and a text on failure. */
static inline char *llama_read_file(const char *path, size_t *size, llama_error *e) {
    enum { FIRST = 1 << 16, LIMIT = 1 << 28 };
    FILE *f = fopen(path, "rb");
    if (!f) { llama_fail(e, "cannot open %s: %s", path, strerror(errno)); return NULL; }
    size_t capacity = FIRST, used = 0;
    char *data = (char *)malloc(capacity);
    while (data) {
        used += fread(data + used, 1, capacity - 1 - used, f);
        if (used < capacity - 1 || capacity >= LIMIT) break;
        char *more = (char *)realloc(data, capacity *= 2);
        if (!more) free(data);
        data = more;
    }
    if (!data) llama_fail(e, "%s: no memory to read it", path);
    else if (ferror(f)) llama_fail(e, "cannot read %s: %s", path, strerror(errno));
    else if (used >= LIMIT - 1) llama_fail(e, "%s: larger than %d MB", path, LIMIT >> 20);
    else { fclose(f); data[used] = 0; *size = used; return data; }
    free(data);
    fclose(f);
    return NULL;
}

/* ------------------------------------------------------------ tokenizer */

typedef struct llama_piece { const char *text; int32_t length; float score; } llama_piece;

typedef struct llama_tokenizer {
    char        *file;                /* the pieces' texts lie in here                             */
    llama_piece *piece;               /* [vocab_size]                                              */
    int32_t      vocab_size;
    int32_t     *table;               /* hash table of text -> token, -1 = free; length mask + 1   */
    uint32_t     mask;
    char         byte[256];
} llama_tokenizer;

/* Token whose text is a followed by b, or -1. With insert >= 0 that token is entered, unless
   the text is there. */
static inline int32_t llama_lookup(const llama_tokenizer *t, llama_piece a, llama_piece b, int32_t insert) {
    uint32_t hash = 2166136261u;                                                            /* FNV-1a */
    for (int32_t i = 0; i < a.length; i++) hash = (hash ^ (unsigned char)a.text[i]) * 16777619u;
    for (int32_t i = 0; i < b.length; i++) hash = (hash ^ (unsigned char)b.text[i]) * 16777619u;
    for (uint32_t slot = hash & t->mask;; slot = (slot + 1) & t->mask) {
        const int32_t id = t->table[slot];
        if (id < 0) return t->table[slot] = insert;
        const llama_piece p = t->piece[id];
        if (p.length == a.length + b.length && memcmp(p.text, a.text, (size_t)a.length) == 0
            && memcmp(p.text + a.length, b.text, (size_t)b.length) == 0) return id;
    }
}

static inline void llama_free_tokenizer(llama_tokenizer *t) {
    free(t->file);
    free(t->piece);
    free(t->table);
    memset(t, 0, sizeof *t);
}

static inline int llama_parse_tokenizer(llama_tokenizer *t, size_t size, const char *path, llama_error *e) {
    const unsigned char *at = (const unsigned char *)t->file, *end = at + size;
    const int32_t max_length = size < 4 ? 0 : llama_i32(at);
    if (max_length < 1 || max_length > 1 << 16)
        return llama_fail(e, "%s: not a llama2.c tokenizer: longest token is said to have %d bytes", path,
                          (int)max_length);
    at += 4;
    if ((uint64_t)(end - at) < (uint64_t)t->vocab_size * 8)
        return llama_fail(e, "%s: too short for the model's %d tokens", path, (int)t->vocab_size);
    uint32_t slots = 1;
    while (slots < 2u * (uint32_t)t->vocab_size) slots *= 2;
    t->mask = slots - 1;
    t->piece = (llama_piece *)malloc((size_t)t->vocab_size * sizeof *t->piece);
    t->table = (int32_t *)malloc(slots * sizeof *t->table);
    if (!t->piece || !t->table)
        return llama_fail(e, "%s: no memory for %d tokens", path, (int)t->vocab_size);
    for (uint32_t i = 0; i < slots; i++) t->table[i] = -1;
    const llama_piece nothing = { "", 0, 0.0f };
    for (int32_t i = 0; i < t->vocab_size; i++) {
        if (end - at < 8)
            return llama_fail(e, "%s: ends in token %d of the model's %d", path, (int)i,
                              (int)t->vocab_size);
        const llama_piece p = { (const char *)at + 8, llama_i32(at + 4), llama_f32(at) };
        at += 8;
        if (p.length < 0 || p.length > max_length || !isfinite(p.score))
            return llama_fail(e, "%s: token %d is damaged (length %d)", path, (int)i, (int)p.length);
        if (p.length > end - at)
            return llama_fail(e, "%s: ends in token %d of the model's %d", path, (int)i,
                              (int)t->vocab_size);
        at += p.length;
        t->piece[i] = p;
        llama_lookup(t, p, nothing, i);
    }
    if (at != end)
        return llama_fail(e, "%s: has more than the model's %d tokens", path, (int)t->vocab_size);
    return 0;
}

static inline int llama_load_tokenizer(llama_tokenizer *t, const char *path, int32_t vocab_size,
                                       llama_error *e) {
    size_t size;
    memset(t, 0, sizeof *t);
    t->vocab_size = vocab_size;
    for (int i = 0; i < 256; i++) { const unsigned char b = (unsigned char)i; memcpy(&t->byte[i], &b, 1); }
    t->file = llama_read_file(path, &size, e);
    const int status = t->file ? llama_parse_tokenizer(t, size, path, e) : -1;
    if (status != 0) llama_free_tokenizer(t);
    return status;
}

/* What to print for a token: its text, not ended by a 0. The space that encoding put in front
   of the text is taken away again behind BOS, and <0xHH> is that byte. */
static inline llama_piece llama_decode_token(const llama_tokenizer *t, int32_t previous, int32_t token) {
    llama_piece p = t->piece[token];
    if (previous == LLAMA_BOS && p.length > 0 && p.text[0] == ' ') { p.text++; p.length--; }
    if (p.length == 6 && memcmp(p.text, "<0x", 3) == 0 && p.text[5] == '>') {
        const char *digits = "0123456789ABCDEF";
        const char *high = (const char *)memchr(digits, p.text[3], 16);
        const char *low = (const char *)memchr(digits, p.text[4], 16);
        if (high && low) { p.text = &t->byte[(high - digits) * 16 + (low - digits)]; p.length = 1; }
    }
    return p;
}

/* Byte-pair encoding merges the best-scored pair of neighbours, leftmost first, until no pair
   is a token. A heap of candidates makes that n log n; an entry whose tokens have changed
   meanwhile is thrown away when it comes up. */
typedef struct llama_pair { float score; int32_t left, a, b, merged; } llama_pair;

static inline int llama_pair_before(const llama_pair *x, const llama_pair *y) {
    return x->score > y->score || (x->score == y->score && x->left < y->left);
}

static inline void llama_heap_push(llama_pair *heap, size_t *size, llama_pair p) {
    size_t i = (*size)++;
    for (; i > 0 && llama_pair_before(&p, &heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = p;
}

static inline llama_pair llama_heap_pop(llama_pair *heap, size_t *size) {
    const llama_pair top = heap[0], last = heap[--*size];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *size; i = child) {
        if (child + 1 < *size && llama_pair_before(&heap[child + 1], &heap[child])) child++;
        if (!llama_pair_before(&heap[child], &last)) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return top;
}

/* token[i] of the list next[]; the candidate of i and its neighbour, if their texts together
   are a token, is pushed. */
static inline void llama_push_pair(const llama_tokenizer *t, const int32_t *token, const int32_t *next,
                                   int32_t i, llama_pair *heap, size_t *size) {
    if (i < 0 || next[i] < 0) return;
    const int32_t a = token[i], b = token[next[i]], merged = llama_lookup(t, t->piece[a], t->piece[b], -1);
    const llama_pair p = { merged < 0 ? 0.0f : t->piece[merged].score, i, a, b, merged };
    if (merged >= 0) llama_heap_push(heap, size, p);
}

/* Tokens of a text as sentencepiece makes them: BOS, a space in front, characters (or bytes),
   merges. free() them; NULL and a text on failure. */
static inline int32_t *llama_encode(const llama_tokenizer *t, const char *text, size_t length,
                                    size_t *count, llama_error *e) {
    const size_t most = length + 2; /* BOS, the space, at most one token a byte */
    int32_t *token = NULL, *link = NULL;
    llama_pair *heap = NULL;
    if (length < (1u << 28)) {
        token = (int32_t *)malloc(most * sizeof *token);
        link = (int32_t *)malloc(most * 2 * sizeof *link);
        heap = (llama_pair *)malloc(most * 3 * sizeof *heap);   /* one a pair at first, two more a merge */
    }
    if (!token || !link || !heap) {
        llama_fail(e, "no memory to encode a prompt of %llu bytes", (unsigned long long)length);
        goto fail;
    }
    {
        int32_t n = 0, *next = link, *previous = link + most;
        const llama_piece nothing = { "", 0, 0.0f };
        token[n++] = LLAMA_BOS;
        for (size_t i = 0, step; i < length; i += step) {
            llama_piece p = { text + i, 1, 0.0f };
            step = 0;
            if (n == 1 && i == 0) p.text = " "; /* step 0: the text's first byte is still to come */
            else {
                for (step = 1; step < 4 && i + step < length && (text[i + step] & 0xC0) == 0x80; step++) {}
                p.length = (int32_t)step;
            }
            const int32_t id = llama_lookup(t, p, nothing, -1);
            if (id >= 0) token[n++] = id;
            else for (int32_t b = 0; b < p.length; b++) {
                const int32_t fallback = LLAMA_BYTE + (unsigned char)p.text[b];
                if (fallback >= t->vocab_size) {
                    llama_fail(e, "the tokenizer has no token for a byte of the prompt");
                    goto fail;
                }
                token[n++] = fallback;
            }
        }
        for (int32_t i = 0; i < n; i++) { previous[i] = i - 1; next[i] = i + 1 < n ? i + 1 : -1; }
        size_t size = 0;
        for (int32_t i = 1; i < n; i++) llama_push_pair(t, token, next, i, heap, &size);
        while (size > 0) {
            const llama_pair p = llama_heap_pop(heap, &size);
            if (token[p.left] != p.a || next[p.left] < 0 || token[next[p.left]] != p.b) continue;
            const int32_t gone = next[p.left];
            token[p.left] = p.merged;
            token[gone] = -1;
            next[p.left] = next[gone];
            if (next[gone] >= 0) previous[next[gone]] = p.left;
            if (previous[p.left] > 0) llama_push_pair(t, token, next, previous[p.left], heap, &size);
            llama_push_pair(t, token, next, p.left, heap, &size);
        }
        *count = 0;
        for (int32_t i = 0; i < n; i++) if (token[i] >= 0) token[(*count)++] = token[i];
    }
    free(link);
    free(heap);
    return token;
fail:
    free(token);
    free(link);
    free(heap);
    return NULL;
}

/* ------------------------------------------------------------ matrix products */

#if defined(__x86_64__) && defined(__GNUC__) && !defined(SANTA_NO_SIMD)
/* no -mavx2 needed; taken where santa.h takes its own */
#define LLAMA_AVX2   __attribute__((target("avx2,fma")))
#endif
#if defined(__GNUC__)
#define LLAMA_INLINE static inline __attribute__((always_inline))
#else
#define LLAMA_INLINE static inline
#endif
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define LLAMA_UNROLL _Pragma("GCC unroll 4") /* gcc -O2 keeps sums in registers only if told to */
#else
#define LLAMA_UNROLL
#endif

enum { LLAMA_PANEL = 16, LLAMA_ROWS = 4, LLAMA_DEPTH = 256 };

static inline int64_t llama_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* Eight sums side by side, so that gcc and clang use vector registers at -O2. */
LLAMA_INLINE float llama_dot(const float *a, const float *b, int64_t n) {
    float lane[8] = { 0 }, sum = 0.0f;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++) lane[l] += a[i + l] * b[i + l];
    for (; i < n; i++) sum += a[i] * b[i];
    return sum
           + (((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7])));
}

/* sums[r][c] += x[r] . column c of panel, for LLAMA_ROWS rows of x; panel is [depth,
   LLAMA_PANEL]. */
LLAMA_INLINE void llama_tile(float *sums, const float *const *x, const float *panel, int64_t depth) {
    float acc[LLAMA_ROWS][LLAMA_PANEL];
    memcpy(acc, sums, sizeof acc);
    for (int64_t k = 0; k < depth; k++)
        LLAMA_UNROLL
        for (int r = 0; r < LLAMA_ROWS; r++)
            for (int c = 0; c < LLAMA_PANEL; c++) acc[r][c] += x[r][k] * panel[k * LLAMA_PANEL + c];
    memcpy(sums, acc, sizeof acc);
}

/* One product, Y[n, rows] = X[n, columns] W[rows, columns]^T, cut by rows of W into parts. */
typedef struct llama_product {
    float       *y;
    const float *w, *x;
    int64_t      n, rows, columns, parts;
    int          avx2;
} llama_product;

/* Rows [begin, end) of W with one row of X: each row of W is read once, in order. */
LLAMA_INLINE void llama_vector_part(const llama_product *p, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) p->y[r] = llama_dot(p->w + r * p->columns, p->x, p->columns);
}

/* Rows [begin, end) of W, at most LLAMA_PANEL of them, with all rows of X: a block of W is
   turned to a panel that stays in the first cache while X passes by. */
LLAMA_INLINE void llama_panel_part(const llama_product *p, int64_t begin, int64_t end) {
    float panel[LLAMA_DEPTH * LLAMA_PANEL];
    for (int64_t k0 = 0; k0 < p->columns; k0 += LLAMA_DEPTH) {
        const int64_t depth = llama_min(p->columns - k0, LLAMA_DEPTH);
        memset(panel, 0, sizeof panel);
        for (int64_t c = 0; c < end - begin; c++)
            for (int64_t k = 0; k < depth; k++)
                panel[k * LLAMA_PANEL + c] = p->w[(begin + c) * p->columns + k0 + k];
        for (int64_t i = 0; i < p->n; i += LLAMA_ROWS) {
            const float *x[LLAMA_ROWS];
            float sums[LLAMA_ROWS * LLAMA_PANEL] = { 0 };
            const int64_t count = llama_min(p->n - i, LLAMA_ROWS);
            for (int64_t r = 0; r < LLAMA_ROWS; r++)
                x[r] = p->x + (r < count ? i + r : i) * p->columns + k0;
            llama_tile(sums, x, panel, depth);
            for (int64_t r = 0; r < count; r++) {
                float *y = p->y + (i + r) * p->rows + begin;
                for (int64_t c = 0; c < end - begin; c++)
                    y[c] = sums[r * LLAMA_PANEL + c] + (k0 > 0 ? y[c] : 0.0f);
            }
        }
    }
}

LLAMA_INLINE void llama_product_body(const llama_product *p, int64_t part) {
    const int64_t panels = (p->rows + LLAMA_PANEL - 1) / LLAMA_PANEL;
    for (int64_t i = panels * part / p->parts; i < panels * (part + 1) / p->parts; i++) {
        const int64_t begin = i * LLAMA_PANEL, end = llama_min(begin + LLAMA_PANEL, p->rows);
        if (p->n == 1) llama_vector_part(p, begin, end);
        else llama_panel_part(p, begin, end);
    }
}

#ifdef LLAMA_AVX2
LLAMA_AVX2 static void llama_product_avx2(const llama_product *p, int64_t part) {
    llama_product_body(p, part);
}
#endif

static void llama_product_task(void *context, int64_t part) {
    const llama_product *p = (const llama_product *)context;
#ifdef LLAMA_AVX2
    if (p->avx2) { llama_product_avx2(p, part); return; }
#endif
    llama_product_body(p, part);
}

/* ------------------------------------------------------------ forward */

enum { LLAMA_CHUNK = 256 };                   /* tokens that a prefill takes through the layers at once */

/* What one call of santa_decode takes and gives beside tensors. */
typedef struct llama_call { santa_stats stats; int32_t length; } llama_call;

/* Called behind every attention of llama_forward, with its inputs and its output. */
typedef void (*llama_tap)(void *user, const santa_attention *a, int32_t layer);

/* Called in front of every attention, of llama_prefill too: n rows from position on lie in the
   state's q_plain, k_plain (before RoPE), q and the layer's cache (behind it). */
struct llama_state;
typedef void (*llama_rows)(void *user, const struct llama_state *s, int32_t layer, int64_t position,
                           int64_t n);

static inline santa_options llama_dense(void) {
    santa_options o;
    memset(&o, 0, sizeof o);
    return o;
}

typedef struct llama_state {
    const llama_model *model;
    int64_t  capacity;                   /* positions that the cache can hold */
    int64_t  chunk;                      /* tokens that llama_prefill takes at once: LLAMA_CHUNK, or what
                                            llama_state_chunk says */
    float   *k_cache, *v_cache;          /* [n_layers, capacity, n_kv_heads, head_dim] */
    float   *logits;                     /* [vocab_size] */
    float   *buffer;                     /* the allocation behind these */
    float   *x, *normed;                 /* [chunk, dim] */
    float   *q, *attended;               /* [chunk, q_dim] */
    float   *q_plain, *k_plain;          /* [chunk, q_dim and kv_dim] before RoPE */
    float   *gate, *up;                  /* [chunk, hidden_dim] */
    float   *turn;                       /* [chunk, head_dim] cos and sin of the position, by pairs */
    float   *rows_buffer;                /* the allocation behind those */
    llama_call *call;
    santa_options *options;              /* [n_layers] how llama_forward attends */
    santa_options *prefill;              /* [n_layers] how llama_prefill does */
    santa_sample_audit *audit;           /* [n_layers, n_heads] of the last chunk of a sparse prefill */
    void    *workspace;                  /* of llama_forward */
    void    *prefill_workspace;
    size_t   workspace_bytes, prefill_bytes;
    int      threads;                    /* with OpenMP or parallel_for */
    santa_parallel_for parallel_for;     /* or NULL */
    void    *parallel_user;
    llama_tap tap;                       /* or NULL */
    void    *tap_user;
    llama_rows rows;                     /* or NULL */
    void    *rows_user;
    santa_stats stats;                   /* sums over llama_forward's calls since llama_state_options */
    double   attention_seconds;          /* time in santa_decode since then */
    int      avx2;
    int      proxy_bits;                 /* of the copy of K for SANTA_SCORES_PROXY: 4 or 2, 0 = 4 */
    void    *proxy[2];                   /* copies in 4 and 2 bits, of all layers; made when wanted */
    size_t   proxy_bytes[2];             /* of a layer */
    int64_t *encoded[2];                 /* [n_layers] keys from 0 on that they have */
    santa_buckets *buckets;              /* [n_layers] or NULL, see llama_state_route */
    void    *index;                      /* of all layers */
} llama_state;

static inline void llama_state_free(llama_state *s) {
    LLAMA_FREE(s->buffer);
    LLAMA_FREE(s->rows_buffer);
    LLAMA_FREE(s->call);
    LLAMA_FREE(s->workspace);
    for (int i = 0; i < 2; i++) {
        LLAMA_FREE(s->proxy[i]);
        free(s->encoded[i]);
    }
    LLAMA_FREE(s->index);
    free(s->buckets);
    free(s->options);
    free(s->prefill);
    free(s->audit);
    free(s->prefill_workspace);
    memset(s, 0, sizeof *s);
}

/* The one place that describes our cache to santa.h: n query rows from row on, the last of them
   at position length - 1. */
static inline santa_attention llama_attention(const llama_state *s, int32_t layer, int64_t row, int64_t n,
                                              const int32_t *length, santa_device device) {
    const llama_model *m = s->model;
    const size_t offset = (size_t)layer * (size_t)s->capacity * (size_t)m->kv_dim;
    santa_attention a;
    memset(&a, 0, sizeof a);
    a.q   = santa_view(s->q + row * m->q_dim, SANTA_F32, 1, n, m->n_heads, m->head_dim);
    a.k   = santa_view(s->k_cache + offset, SANTA_F32, 1, s->capacity, m->n_kv_heads, m->head_dim);
    a.v   = santa_view(s->v_cache + offset, SANTA_F32, 1, s->capacity, m->n_kv_heads, m->head_dim);
    a.out = santa_view(s->attended + row * m->q_dim, SANTA_F32, 1, n, m->n_heads, m->head_dim);
    a.q.device = a.k.device = a.v.device = a.out.device = device;
    a.seq_lens = length;
    a.causal = n > 1;
    return a;
}

static inline santa_attention llama_decode_attention(const llama_state *s, int32_t layer) {
    santa_attention a = llama_attention(s, layer, 0, 1, &s->call->length, LLAMA_DEVICE);
    const int i = s->proxy_bits == 2;
    a.proxy_bits = s->proxy_bits;
    if (s->proxy[i]) a.proxy = (char *)s->proxy[i] + (size_t)layer * s->proxy_bytes[i];
    if (s->buckets) a.buckets = &s->buckets[layer];
    return a;
}

/* Keys go into buckets from now on, for SANTA_SAAP: call it before the first token. router:
   [n_layers] centroids and classifiers, whose arrays stay yours. */
static inline int llama_state_route(llama_state *s, const santa_buckets *router, llama_error *e) {
    const size_t layers = (size_t)s->model->n_layers;
    s->buckets = (santa_buckets *)calloc(layers, sizeof *s->buckets);
    if (!s->buckets) return llama_fail(e, "no memory for buckets of keys");
    memcpy(s->buckets, router, layers * sizeof *s->buckets);
    const santa_attention a = llama_decode_attention(s, 0);
    const size_t bytes = santa_buckets_size(&a);
    if (bytes == 0) return llama_fail(e, "these are no buckets for the model");
    s->index = LLAMA_ALLOC(layers * bytes);
    if (!s->index) return llama_fail(e, "no memory for buckets of keys");
    for (size_t layer = 0; layer < layers; layer++) {
        s->buckets[layer].index = (char *)s->index + layer * bytes;
        s->buckets[layer].q = a.q;
        s->buckets[layer].q.data = s->q_plain;
    }
    return 0;
}

/* The last n rows of k_plain, of positions up to length - 1, into buckets. They say how many
   keys there are: a length would have to lie where the device reaches it. */
static inline santa_status llama_assign(const llama_state *s, int32_t layer, int64_t n, int32_t length) {
    const llama_model *m = s->model;
    santa_attention a = llama_attention(s, layer, 0, n, NULL, LLAMA_DEVICE);
    santa_tensor keys = santa_view(s->k_plain, SANTA_F32, 1, n, m->n_kv_heads, m->head_dim);
    santa_options o = llama_dense();
    keys.device = LLAMA_DEVICE;
    a.buckets = &s->buckets[layer];
    o.num_threads = s->parallel_for ? s->threads : 1;
    o.parallel_for = s->parallel_for;
    o.parallel_user = s->parallel_user;
    return santa_buckets_assign(&a, &keys, length - n, &o);
}

/* The copies of K in s->proxy_bits, still empty. */
static inline int llama_make_copies(llama_state *s, llama_error *e) {
    const int i = s->proxy_bits == 2;
    const santa_attention a = llama_decode_attention(s, 0);
    if (s->proxy[i]) return 0;
    s->proxy_bytes[i] = santa_proxy_size(&a);
    s->encoded[i] = (int64_t *)calloc((size_t)s->model->n_layers, sizeof *s->encoded[i]);
    s->proxy[i] = LLAMA_ALLOC((size_t)s->model->n_layers * s->proxy_bytes[i] + 64);
    return s->proxy[i] && s->encoded[i] ? 0 : llama_fail(e, "no memory for a copy of K");
}

/* Brings a layer's copy up to the call's length. */
static inline santa_status llama_keep_copy(llama_state *s, int32_t layer) {
    const santa_attention a = llama_decode_attention(s, layer);
    int64_t *encoded = &s->encoded[s->proxy_bits == 2][layer];
    if (*encoded >= s->call->length) return SANTA_OK;
    const santa_status status = santa_proxy_encode(&a, *encoded, s->call->length, NULL);
    if (status == SANTA_OK) *encoded = s->call->length;
    return status;
}

/* llama_prefill takes so many tokens, at most the capacity, through the layers at once from now
   on: sparse prefill chooses what to read once for all rows of a call, and wants a prompt's
   all. */
static inline int llama_state_chunk(llama_state *s, int64_t tokens, llama_error *e) {
    const llama_model *m = s->model;
    const size_t rows = (size_t)(tokens < s->capacity ? tokens : s->capacity), dim = (size_t)m->dim,
                 q_dim = (size_t)m->q_dim, kv_dim = (size_t)m->kv_dim, hidden = (size_t)m->hidden_dim;
    const size_t one = 2 * dim + 3 * q_dim + kv_dim + 2 * hidden + (size_t)m->head_dim;
    if (tokens < 1) return llama_fail(e, "a chunk of %lld tokens", (long long)tokens);
    float *at = NULL;
    if (rows <= SIZE_MAX / sizeof(float) / one) at = (float *)LLAMA_ALLOC(rows * one * sizeof(float));
    if (!at) return llama_fail(e, "no memory for %lld tokens at once", (long long)rows);
    LLAMA_FREE(s->rows_buffer);
    s->rows_buffer = at;
    s->chunk = (int64_t)rows;
    s->x = at;        at += rows * dim;
    s->normed = at;   at += rows * dim;
    s->q = at;        at += rows * q_dim;
    s->attended = at; at += rows * q_dim;
    s->q_plain = at;  at += rows * q_dim;
    s->k_plain = at;  at += rows * kv_dim;
    s->gate = at;     at += rows * hidden;
    s->up = at;       at += rows * hidden;
    s->turn = at;
    for (int32_t i = 0; s->buckets && i < m->n_layers; i++) s->buckets[i].q.data = s->q_plain;
    return 0;
}

/* capacity: positions to hold, 1 .. seq_len of the model. Attention is dense until
   llama_state_options. */
static inline int llama_state_init(llama_state *s, const llama_model *m, int64_t capacity, llama_error *e) {
    memset(s, 0, sizeof *s);
    s->model = m;
    s->threads = 1;
    s->avx2 = santa_isa_supported(SANTA_ISA_AVX2);
    if (capacity < 1 || capacity > m->seq_len)
        return llama_fail(e, "%lld positions do not fit in the model's context of %d", (long long)capacity,
                          (int)m->seq_len);
    s->capacity = capacity;
    const size_t layers = (size_t)m->n_layers,
                 cache = llama_count(m->n_layers, (int32_t)capacity, m->kv_dim);
    if (cache != 0) s->buffer = (float *)LLAMA_ALLOC((2 * cache + (size_t)m->vocab_size) * sizeof(float));
    s->call = (llama_call *)LLAMA_ALLOC(sizeof *s->call);
    s->options = (santa_options *)calloc(layers, sizeof *s->options);
    s->prefill = (santa_options *)calloc(layers, sizeof *s->prefill);
    s->audit = (santa_sample_audit *)calloc(layers * (size_t)m->n_heads, sizeof *s->audit);
    if (!s->buffer || !s->call || !s->options || !s->prefill || !s->audit)
        return llama_fail(e, "no memory for a KV cache of %lld positions", (long long)capacity);
    s->call->length = 1;
    s->k_cache = s->buffer;
    s->v_cache = s->k_cache + cache;
    s->logits = s->v_cache + cache;
    return llama_state_chunk(s, LLAMA_CHUNK, e);
}

/* SANTA_OK, or why these options cannot be had. */
static inline santa_status llama_check(const llama_state *s, const santa_options *o) {
    const santa_attention a = llama_decode_attention(s, 0);
    return santa_check(&a, o);
}

/* llama_forward attends with these options in this layer from now on; it sets their offset
   itself. */
static inline int llama_layer_options(llama_state *s, int32_t layer, const santa_options *o,
                                      llama_error *e) {
    if (layer < 0 || layer >= s->model->n_layers)
        return llama_fail(e, "layer %d: the model has %d", (int)layer, (int)s->model->n_layers);
    if (o->scores == SANTA_SCORES_PROXY && llama_make_copies(s, e) != 0) return -1;
    const santa_attention a = llama_decode_attention(s, layer);
    const santa_status status = santa_check(&a, o);
    if (status != SANTA_OK) return llama_fail(e, "attention: %s", santa_status_string(status));
    const size_t bytes = santa_workspace_size(&a, o); /* a function of shapes: the same at every length */
    if (bytes > s->workspace_bytes || !s->workspace) {
        LLAMA_FREE(s->workspace);
        s->workspace_bytes = 0;
        s->workspace = LLAMA_ALLOC(bytes);
        if (!s->workspace)
            return llama_fail(e, "no memory for %llu bytes of workspace", (unsigned long long)bytes);
        s->workspace_bytes = bytes;
    }
    s->options[layer] = *o;
    return 0;
}

/* The same for all layers; the cache stays, counters start at zero. */
static inline int llama_state_options(llama_state *s, const santa_options *o, llama_error *e) {
    for (int32_t layer = 0; layer < s->model->n_layers; layer++)
        if (llama_layer_options(s, layer, o, e) != 0) return -1;
    memset(&s->stats, 0, sizeof s->stats);
    s->attention_seconds = 0.0;
    return 0;
}

/* task(context, i) for all i < count, on the threads that there are. */
static inline void llama_parallel(const llama_state *s, int64_t count, santa_task task, void *context) {
    if (s->parallel_for && s->threads > 1 && count > 1) {
        s->parallel_for(s->parallel_user, count, task, context);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic) num_threads(s->threads) if (s->threads > 1 && count > 1)
#endif
    for (int64_t i = 0; i < count; i++) task(context, i);
}

/* Y[n, rows] = X[n, columns] W[rows, columns]^T. */
static inline void llama_matmul(const llama_state *s, float *y, const float *w, const float *x, int64_t n,
                                int64_t rows, int64_t columns) {
    llama_product p = { y, w, x, n, rows, columns, 1, s->avx2 };
    if (n * rows * columns > 1 << 18) p.parts = s->threads;
    llama_parallel(s, p.parts, llama_product_task, &p);
}

static inline void llama_rmsnorm(const llama_model *m, float *y, const float *x, const float *weight,
                                 int64_t n) {
    const int64_t dim = m->dim;
    for (; n > 0; n--, x += dim, y += dim) {
        const float scale = 1.0f / sqrtf(llama_dot(x, x, dim) / (float)dim + m->norm_epsilon);
        for (int64_t i = 0; i < dim; i++) y[i] = x[i] * scale * weight[i];
    }
}

/* y = n rows of x, width numbers each, turned by their positions' angles. */
static inline void llama_rope(const llama_state *s, float *y, const float *x, int64_t n, int64_t width) {
    const int64_t head_dim = s->model->head_dim;
    for (int64_t r = 0; r < n; r++, x += width, y += width) {
        const float *turn = s->turn + r * head_dim;
        for (int64_t i = 0; i < width; i += 2) {
            const float c = turn[i % head_dim], d = turn[i % head_dim + 1], a = x[i], b = x[i + 1];
            y[i] = a * c - b * d;
            y[i + 1] = a * d + b * c;
        }
    }
}

static inline void llama_set_turn(llama_state *s, int64_t position, int64_t n) {
    const int64_t head_dim = s->model->head_dim;
    for (int64_t i = 0; i < head_dim; i += 2) {
        const double frequency = pow((double)s->model->rope_theta, -(double)i / (double)head_dim);
        for (int64_t r = 0; r < n; r++) {
            s->turn[r * head_dim + i] = (float)cos((double)(position + r) * frequency);
            s->turn[r * head_dim + i + 1] = (float)sin((double)(position + r) * frequency);
        }
    }
}

/* Attention of one query row with the layer's options, counted. */
static inline santa_status llama_attend_sampled(llama_state *s, int32_t layer, int64_t position) {
    santa_options *o = &s->options[layer];
    const santa_stats *one = &s->call->stats;
    s->call->length = (int32_t)position + 1;
    o->offset = santa_offset(layer, position); /* other draws in every layer and at every step */
    const santa_attention a = llama_decode_attention(s, layer);
    const double start = llama_seconds();
    santa_status status = o->scores == SANTA_SCORES_PROXY ? llama_keep_copy(s, layer) : SANTA_OK;
    if (status == SANTA_OK) status = LLAMA_DECODE(&a, o, s->workspace, s->workspace_bytes, &s->call->stats);
    s->attention_seconds += llama_seconds() - start;
    if (status != SANTA_OK) return status;
    if (s->tap) s->tap(s->tap_user, &a, layer);
    s->stats.keys += one->keys;
    s->stats.k_rows_read += one->k_rows_read;
    s->stats.k_features_read += one->k_features_read;
    s->stats.k_features_head += one->k_features_head;
    s->stats.v_rows_read += one->v_rows_read;
    s->stats.v_rows_head += one->v_rows_head;
    s->stats.draws += one->draws;
    s->stats.proxy_rows_read += one->proxy_rows_read;
    s->stats.rescued_rows += one->rescued_rows;
    s->stats.redone_rows += one->redone_rows;
    s->stats.far_rows += one->far_rows;
    s->stats.visited_rows += one->visited_rows;
    s->stats.rows += one->rows;
    return SANTA_OK;
}

/* Attention of a chunk's rows with the layer's options of prefill; always on the CPU. */
static inline santa_status llama_attend_prefill(llama_state *s, int32_t layer, int64_t position,
                                                int64_t n) {
    const int32_t length = (int32_t)(position + n);
    santa_attention a = llama_attention(s, layer, 0, n, &length, SANTA_CPU);
    santa_options o = s->prefill[layer];
    a.causal = 1;
    o.num_threads = s->threads;
    o.parallel_for = s->parallel_for;
    o.parallel_user = s->parallel_user;
    if (o.method == SANTA_SAMPLE_ATTENTION)
        o.sample_attention.audit = s->audit + (int64_t)layer * s->model->n_heads;
    const size_t bytes = santa_workspace_size(&a, &o);
    if (bytes > s->prefill_bytes) {
        free(s->prefill_workspace);
        s->prefill_workspace = malloc(bytes);
        s->prefill_bytes = s->prefill_workspace ? bytes : 0;
    }
    return santa_decode(&a, &o, s->prefill_workspace, s->prefill_bytes, NULL);
}

/* llama_prefill attends with these options in this layer from now on: dense, or
   SANTA_SAMPLE_ATTENTION, whose audits are in s->audit then. */
static inline int llama_prefill_options(llama_state *s, int32_t layer, const santa_options *o,
                                        llama_error *e) {
    if (layer < 0 || layer >= s->model->n_layers)
        return llama_fail(e, "layer %d: the model has %d", (int)layer, (int)s->model->n_layers);
    if (o->method != SANTA_DENSE && o->method != SANTA_SAMPLE_ATTENTION)
        return llama_fail(e, "prefill is dense or sample-attention, not %s", santa_method_name(o->method));
    santa_attention a = llama_attention(s, layer, 0, s->chunk, &s->call->length, SANTA_CPU);
    a.causal = 1;
    const santa_status status = santa_check(&a, o);
    if (status != SANTA_OK) return llama_fail(e, "prefill: %s", santa_status_string(status));
    s->prefill[layer] = *o;
    return 0;
}

/* n <= s->chunk tokens at position .. through all layers: enters their keys and values in the
   cache and leaves their last hidden states in s->x. A prefill ends with the last layer's keys
   and values: what follows there is wanted of a prompt's last token only, which llama_forward
   takes. A check goes on to the end, with the attention of a prefill. */
typedef enum llama_pass { LLAMA_STEP, LLAMA_PREFILL, LLAMA_CHECK } llama_pass;
static inline int llama_layers(llama_state *s, const int32_t *token, int64_t n, int64_t position,
                               llama_pass pass, llama_error *e) {
    const llama_model *m = s->model;
    const int64_t dim = m->dim, q_dim = m->q_dim, kv_dim = m->kv_dim, hidden = m->hidden_dim;
    if (position < 0 || position + n > s->capacity)
        return llama_fail(e, "position %lld is outside the cache of %lld",
                          (long long)(position < 0 ? position : position + n - 1), (long long)s->capacity);
    for (int64_t r = 0; r < n; r++) {
        if (token[r] < 0 || token[r] >= m->vocab_size)
            return llama_fail(e, "token %d is not in the vocabulary", (int)token[r]);
        memcpy(s->x + r * dim, m->embedding + token[r] * dim, (size_t)dim * sizeof(float));
    }
    llama_set_turn(s, position, n);
    for (int32_t layer = 0; layer < m->n_layers; layer++) {
        float *k = s->k_cache + (layer * s->capacity + position) * kv_dim;
        float *v = s->v_cache + (layer * s->capacity + position) * kv_dim;
        const int is_last = pass == LLAMA_PREFILL && layer + 1 == m->n_layers;
        llama_rmsnorm(m, s->normed, s->x, m->att_norm + layer * dim, n);
        if (!is_last || s->rows)
            llama_matmul(s, s->q_plain, m->wq + layer * q_dim * dim, s->normed, n, q_dim, dim);
        llama_matmul(s, s->k_plain, m->wk + layer * kv_dim * dim, s->normed, n, kv_dim, dim);
        llama_matmul(s, v, m->wv + layer * kv_dim * dim, s->normed, n, kv_dim, dim);
        if (!is_last || s->rows) llama_rope(s, s->q, s->q_plain, n, q_dim);
        llama_rope(s, k, s->k_plain, n, kv_dim);
        if (s->rows) s->rows(s->rows_user, s, layer, position, n);
        for (int i = 0; i < 2; i++)                         /* what lies behind is another text now */
            if (s->encoded[i]) s->encoded[i][layer] = llama_min(s->encoded[i][layer], position);
        santa_status status =
            s->buckets ? llama_assign(s, layer, n, (int32_t)(position + n)) : SANTA_OK;
        if (status == SANTA_OK && !is_last)
            status = pass == LLAMA_STEP ? llama_attend_sampled(s, layer, position)
                                        : llama_attend_prefill(s, layer, position, n);
        if (status != SANTA_OK) return llama_fail(e, "attention: %s", santa_status_string(status));
        if (is_last) break;
        llama_matmul(s, s->normed, m->wo + layer * dim * q_dim, s->attended, n, dim, q_dim);
        for (int64_t i = 0; i < n * dim; i++) s->x[i] += s->normed[i];
        llama_rmsnorm(m, s->normed, s->x, m->ffn_norm + layer * dim, n);
        llama_matmul(s, s->gate, m->w1 + layer * hidden * dim, s->normed, n, hidden, dim);
        llama_matmul(s, s->up, m->w3 + layer * hidden * dim, s->normed, n, hidden, dim);
        /* SwiGLU */
        for (int64_t i = 0; i < n * hidden; i++) s->gate[i] *= s->up[i] / (1.0f + expf(-s->gate[i]));
        llama_matmul(s, s->normed, m->w2 + layer * dim * hidden, s->gate, n, dim, hidden);
        for (int64_t i = 0; i < n * dim; i++) s->x[i] += s->normed[i];
    }
    return 0;
}

/* count tokens at position .., by chunks: enters their keys and values in the cache, over what
   may be there. Gives no logits: leave the last token of a prompt to llama_forward. */
static inline int llama_prefill(llama_state *s, const int32_t *token, int64_t count, int64_t position,
                                llama_error *e) {
    for (int64_t i = 0; i < count; i += s->chunk) {
        const int64_t n = llama_min(count - i, s->chunk);
        if (llama_layers(s, token + i, n, position + i, LLAMA_PREFILL, e) != 0) return -1;
    }
    return 0;
}

/* One token at one position: enters its keys and values in the cache (over what may be there)
   and, if want_logits, leaves the next token's logits in s->logits. */
static inline int llama_forward(llama_state *s, int32_t token, int64_t position, int want_logits,
                                llama_error *e) {
    const llama_model *m = s->model;
    if (!s->workspace) {                                    /* dense, as nothing else was asked for */
        const santa_options dense = llama_dense();
        if (llama_state_options(s, &dense, e) != 0) return -1;
    }
    if (llama_layers(s, &token, 1, position, LLAMA_STEP, e) != 0) return -1;
    if (want_logits) {
        llama_rmsnorm(m, s->x, s->x, m->norm, 1);
        llama_matmul(s, s->logits, m->classifier, s->x, 1, m->vocab_size, m->dim);
    }
    return 0;
}

/* n <= s->chunk tokens at position .. in one pass, with the attention of a prefill: their keys
   and values, over what may be there, and logits[n][vocab_size] of what follows each. It checks
   tokens that were drafted. */
static inline int llama_verify(llama_state *s, const int32_t *token, int64_t n, int64_t position,
                               float *logits, llama_error *e) {
    const llama_model *m = s->model;
    if (n > s->chunk)
        return llama_fail(e, "%lld tokens at once: there is room for %lld", (long long)n,
                          (long long)s->chunk);
    if (llama_layers(s, token, n, position, LLAMA_CHECK, e) != 0) return -1;
    llama_rmsnorm(m, s->x, s->x, m->norm, n);
    llama_matmul(s, logits, m->classifier, s->x, n, m->vocab_size, m->dim);
    return 0;
}

/* ------------------------------------------------------------ sampler */

/* log_p[n] = log softmax of logits[n], in double; NaN everywhere if a logit is NaN or +inf. */
static inline void llama_log_softmax(const float *logits, int64_t n, double *log_p) {
    double max = -HUGE_VAL, sum = 0.0;
    for (int64_t i = 0; i < n; i++) if (!((double)logits[i] <= max)) max = (double)logits[i];
    for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - max);
    const double lse = max + log(sum);
    for (int64_t i = 0; i < n; i++) log_p[i] = (double)logits[i] - lse;
}

static inline int32_t llama_argmax(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) if (logits[i] > logits[best]) best = i;
    return best;
}

/* Splitmix64; uniform in [0, 1). Apart from attention's own random numbers, which santa.h keys
   by itself. */
static inline double llama_uniform(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

/* A token from softmax(logits / temperature), the best one at temperature 0; -1 when the logits
   are not finite. One uniform number a call at any temperature, so that runs of one seed use
   the same number at the same step. */
static inline int32_t llama_sample(const float *logits, int32_t n, double temperature, uint64_t *random) {
    const double u = llama_uniform(random);
    const int32_t best = llama_argmax(logits, n);
    double sum = 0.0, mass = 0.0;
    for (int32_t i = 0; i < n; i++) if (!isfinite(logits[i])) return -1;
    if (temperature == 0.0) return best;
    for (int32_t i = 0; i < n; i++) sum += exp((double)(logits[i] - logits[best]) / temperature);
    for (int32_t i = 0; i < n; i++) {
        mass += exp((double)(logits[i] - logits[best]) / temperature);
        if (mass > u * sum) return i;
    }
    return best;
}

/* Speculative sampling: a token that was drawn by the draft's logits is kept, or another one
   takes its place, such that the result is distributed by the exact logits. Whether it was
   kept; *token is -1 where logits are not finite. temperature 0: kept if it is the exact ones'
   best. */
static inline int llama_accept(const float *exact, const float *draft, int32_t n, double temperature,
                               uint64_t *random, int32_t *token) {
    const double u = llama_uniform(random), other = llama_uniform(random);
    const int32_t best = llama_argmax(exact, n), best_draft = llama_argmax(draft, n), drafted = *token;
    double sum = 0.0, sum_draft = 0.0, left = 0.0, mass = 0.0;
    for (int32_t i = 0; i < n; i++)
        if (!isfinite(exact[i]) || !isfinite(draft[i])) { *token = -1; return 0; }
    if (temperature == 0.0) { *token = best; return best == drafted; }
    for (int32_t i = 0; i < n; i++) {
        sum += exp((double)(exact[i] - exact[best]) / temperature);
        sum_draft += exp((double)(draft[i] - draft[best_draft]) / temperature);
    }
#define LLAMA_P(logits, best, sum, i) (exp((double)(logits[i] - logits[best]) / temperature) / sum)
    if (u * LLAMA_P(draft, best_draft, sum_draft, drafted) < LLAMA_P(exact, best, sum, drafted)) return 1;
    for (int32_t i = 0; i < n; i++)
        left += fmax(LLAMA_P(exact, best, sum, i) - LLAMA_P(draft, best_draft, sum_draft, i), 0.0);
    for (int32_t i = 0; i < n; i++) {
        mass += fmax(LLAMA_P(exact, best, sum, i) - LLAMA_P(draft, best_draft, sum_draft, i), 0.0);
        if (mass > other * left) { *token = i; return 0; }
    }
#undef LLAMA_P
    *token = best;
    return 0;
}

#endif /* LLAMA_H */
