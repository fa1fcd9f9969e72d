/* bench_cuda --prefill: as many query rows as keys, causal, bf16. Dense in TFLOP/s of the
   causal half, also with K and V in pages or of other types, an f32 q and few rows at the end
   of the keys, and SampleAttention, all stages, on heads whose mass lies in planted columns and
   one diagonal, as in prefill.h: so many columns that the share of blocks kept comes near what
   is asked. Include it in bench_cuda.cu. */

/* Planted keys' scores: log of their mass, but for a constant; pairs of features turn with the
   position, so that q . k is large at distance LAG. */
enum { HEIGHT = 20, LAG = 9 };

__device__ float gaussian(unsigned long long i) {
    unsigned long long x = (i + 1) * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    x ^= x >> 31;
    const float u = ((x >> 40) + 1) * (1.0f / 16777217.0f), v = (x & 0xffffff) * (1.0f / 16777216.0f);
    return sqrtf(-2.0f * logf(u)) * cospif(2.0f * v);
}
__device__ unsigned short to_bf16(float x) {
    const unsigned bits = __float_as_uint(x);
    return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* columns: of each 64 keys, whether they are one. */
__global__ void plant(unsigned short *q, unsigned short *k, int n, const unsigned char *columns) {
    const float size = sqrtf((float)DIM), of_lag = sqrtf(HEIGHT * size / (DIM / 2 - 1)),
                of_column = sqrtf((HEIGHT - logf(64.0f)) * size);
    const size_t count = (size_t)n * (HEADS + KV_HEADS) * (DIM / 2);
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        const int pair = (int)(i % (DIM / 2)), head = (int)(i / (DIM / 2) % (HEADS + KV_HEADS)),
                  j = (int)(i / (DIM / 2) / (HEADS + KV_HEADS));
        const bool is_q = head < HEADS, whole = !is_q && columns[j / 64];
        unsigned long long z = (unsigned long long)pair * 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        const double turn = (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0 * 3.14159265358979;
        const double angle = turn * (double)(is_q ? j : j + LAG);
        float x = 0.0f, y = 0.0f;
        if (pair == 0) {
            x = is_q || whole ? of_column : 0.0f;
            y = is_q ? gaussian(2 * i) : 0.0f;
        } else if (!whole) {
            x = 0.3f * gaussian(2 * i) + of_lag * (float)cos(angle);
            y = 0.3f * gaussian(2 * i + 1) + of_lag * (float)sin(angle);
        }
        unsigned short *to = is_q ? q + ((size_t)j * HEADS + head) * DIM
                                  : k + ((size_t)j * KV_HEADS + head - HEADS) * DIM;
        to[2 * pair] = to_bf16(x);
        to[2 * pair + 1] = to_bf16(y);
    }
}

struct prompt {
    unsigned short *q, *k, *v, *out;
    int *table;
    santa_sample_audit *audit;
    santa_attention a;
    void *workspace;
    size_t bytes;
    int n;
    cudaStream_t stream;

    prompt(int keys, cudaStream_t s, santa_dtype type = SANTA_BF16, int page = 0,
           santa_dtype q_type = SANTA_BF16, int q_len = 0)
        : table(nullptr), n(keys), stream(s) {
        if (!q_len) q_len = n;
        const size_t rows = (size_t)q_len * HEADS * DIM, of_kv = (size_t)n * KV_HEADS * DIM;
        const int q_number = q_type == SANTA_F32 ? 0 : 2, block = type == SANTA_Q8_0 ? 34
                                                                  : type == SANTA_Q4_0 ? 18 : 0;
        CUDA(cudaMalloc(&q, rows * 4)); CUDA(cudaMalloc(&out, rows * 2));
        CUDA(cudaMalloc(&k, of_kv * 2)); CUDA(cudaMalloc(&v, of_kv * 2));
        CUDA(cudaMalloc(&audit, HEADS * sizeof *audit));
        fill<<<2048, 256, 0, stream>>>((unsigned char *)q, rows, q_number, 3);
        const int number = type == SANTA_E4M3 ? 3 : 2;
        for (unsigned short *to : { k, v })
            if (block)
                fill_codes<<<2048, 256, 0, stream>>>((unsigned char *)to, of_kv / 32 * block, block, 1);
            else fill<<<2048, 256, 0, stream>>>((unsigned char *)to, of_kv, number, to == k ? 1 : 2);
        memset(&a, 0, sizeof a);
        a.q = santa_view(q, q_type, 1, q_len, HEADS, DIM);
        if (page) {
            table = shuffled_table(n / page);
            a.block_table = table;
            a.max_pages = n / page;
        }
        a.k = santa_view(k, type, page ? n / page : 1, page ? page : n, KV_HEADS, DIM);
        a.v = santa_view(v, type, page ? n / page : 1, page ? page : n, KV_HEADS, DIM);
        a.out = santa_view(out, SANTA_BF16, 1, q_len, HEADS, DIM);
        a.q.device = a.k.device = a.v.device = a.out.device = SANTA_CUDA;
        a.causal = 1;
        santa_options o = options(true);
        o.sample_attention.audit = audit;
        bytes = q_len == n ? santa_workspace_size(&a, &o) : 0;
        o = options(false);
        bytes = std::max(bytes, santa_workspace_size(&a, &o));
        CUDA(cudaMalloc(&workspace, bytes));
    }
    ~prompt() {
        for (void *p :
             {(void *)q, (void *)k, (void *)v, (void *)out, (void *)table, (void *)audit, workspace})
            CUDA(cudaFree(p));
    }

    santa_options options(bool sparse) const {
        santa_options o;
        memset(&o, 0, sizeof o);
        o.method = sparse ? SANTA_SAMPLE_ATTENTION : SANTA_DENSE;
        o.stream = stream;
        return o;
    }
    void call(bool sparse, bool audited = false) const {
        santa_options o = options(sparse);
        if (audited) o.sample_attention.audit = audit;
        const santa_status s = santa_decode(&a, &o, workspace, bytes, nullptr);
        if (s != SANTA_OK) {
            fprintf(stderr, "%s (%d)\n", santa_status_string(s), santa_cuda_error(s));
            exit(1);
        }
    }
    /* Mean over heads of the share of blocks kept. */
    double kept() const {
        santa_sample_audit host[HEADS];
        double sum = 0.0;
        call(true, true);
        CUDA(cudaMemcpyAsync(host, audit, sizeof host, cudaMemcpyDeviceToHost, stream));
        CUDA(cudaStreamSynchronize(stream));
        for (const santa_sample_audit &x : host) sum += x.kept_share / HEADS;
        return sum;
    }
    /* So many columns that the share kept is the largest up to `share`. */
    double set_share(double share) {
        const int blocks = n / 64;
        unsigned char *columns;
        double got = 1.0;
        CUDA(cudaMalloc(&columns, (size_t)blocks));
        const auto with = [&](int count) {
            std::vector<unsigned char> host((size_t)blocks, 0);
            unsigned long long x = 1;
            host[0] = 1;
            for (int have = 0; have < count;) {
                x = x * 6364136223846793005ull + 1442695040888963407ull;
                unsigned char &at = host[(x >> 33) % (unsigned)blocks];
                if (!at) { at = 1; have++; }
            }
            CUDA(cudaMemcpy(columns, host.data(), host.size(), cudaMemcpyHostToDevice));
            plant<<<2048, 256, 0, stream>>>(q, k, n, columns);
            return got = kept();
        };
        int low = 0, high = blocks / 4;
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (with(middle) > share) high = middle; else low = middle;
        }
        with(low);
        CUDA(cudaFree(columns));
        return got;
    }
};

/* The sparse call without its last kernel: what finds the blocks to read. */
static cudaGraphExec_t capture_search(timer &t, const prompt &x) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t nodes[16];
    size_t count = 16;
    CUDA(cudaStreamBeginCapture(t.stream, cudaStreamCaptureModeGlobal));
    x.call(true);
    CUDA(cudaStreamEndCapture(t.stream, &graph));
    CUDA(cudaGraphGetNodes(graph, nodes, &count));
    CUDA(cudaGraphDestroyNode(nodes[count - 1]));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

static void bench_prefill(timer &t, bool quick, FILE *csv) {
    if (csv) fprintf(csv, "method,n,ms,tflops,kept_share,stages_1_2_ms,dense_over_method\n");
    printf("\nprefill, bf16, causal, n rows and keys, %d/%d heads, head_dim %d\n", HEADS, KV_HEADS, DIM);
    for (int n : { 8192, 32768, 131072 }) {
        const int runs = n == 8192 ? 40 : n == 32768 ? 12 : quick ? 2 : 4;
        prompt x(n, t.stream);
        const double flops = 2.0 * DIM * HEADS * (double)n * (double)(n + 1);
        const double alone = t.median([&] { x.call(false); }, runs);
        printf("  dense   n %6d  %9.3f ms  %6.0f TFLOP/s\n", n, alone * 1e-3, flops / alone * 1e-6);
        if (csv) fprintf(csv, "dense,%d,%.4f,%.1f,1,0,1\n", n, alone * 1e-3, flops / alone * 1e-6);
        const struct {
            const char *name; santa_dtype type; int page; santa_dtype q_type; int rows;
        } others[] = {
            { "pages of 16", SANTA_BF16, 16, SANTA_BF16, n },
            { "pages of 64", SANTA_BF16, 64, SANTA_BF16, n },
            { "e4m3", SANTA_E4M3, 0, SANTA_BF16, n },
            { "e4m3 in pages of 16", SANTA_E4M3, 16, SANTA_BF16, n },
            { "64 rows", SANTA_BF16, 0, SANTA_BF16, 64 },
            { "512 rows", SANTA_BF16, 0, SANTA_BF16, 512 },
            { "512 rows of e4m3", SANTA_E4M3, 0, SANTA_BF16, 512 },
            { "q8_0", SANTA_Q8_0, 0, SANTA_BF16, n },
            { "q4_0", SANTA_Q4_0, 0, SANTA_BF16, n },
            { "an f32 q", SANTA_BF16, 0, SANTA_F32, n },
            { "q8_0 with an f32 q", SANTA_Q8_0, 0, SANTA_F32, n },
        };
        for (const auto &other : others) {
            const prompt y(n, t.stream, other.type, other.page, other.q_type, other.rows);
            const double rows = other.rows, pairs = rows * n - rows * (rows - 1.0) / 2.0,
                         flops = 4.0 * DIM * HEADS * pairs;
            const double time = t.median([&] { y.call(false); }, runs);
            printf("  dense   n %6d  %9.3f ms  %6.0f TFLOP/s, %s\n", n, time * 1e-3, flops / time * 1e-6,
                   other.name);
            if (csv)
                fprintf(csv, "dense %s,%d,%.4f,%.1f,1,0,%.4f\n", other.name, n, time * 1e-3,
                        flops / time * 1e-6, alone / time);
        }
        for (double share : { 0.10, 0.05 }) {
            const double kept = x.set_share(share);
            const std::vector<cudaGraphExec_t> calls = { t.capture([&] { x.call(false); }),
                                                         t.capture([&] { x.call(true); }),
                                                         capture_search(t, x) };
            const auto times = t.in_turns(calls, runs);
            const double dense = t.middle(times[0]), sparse = t.middle(times[1]),
                         before = t.middle(times[2]);
            double busy = 0.0;
            const gain over_dense = ratio(times[0], times[1], &busy);
            printf("  sparse  n %6d  %9.3f ms ", n, sparse * 1e-3);
            print_ratio(over_dense, "dense's rate");
            printf(", kept %5.2f %%;\n    stages 1 and 2 %7.3f ms, %4.1f %% of dense; "
                   "stage 3 %4.2f x kept share x dense\n",
                   100.0 * kept, before * 1e-3, 100.0 * before / dense, (sparse - before) / (kept * dense));
            print_verdict(busy);
            if (csv)
                fprintf(csv, "sparse,%d,%.4f,,%.4f,%.4f,%s\n", n, sparse * 1e-3, kept, before * 1e-3,
                        csv_ratio(over_dense));
            for (const cudaGraphExec_t g : calls) CUDA(cudaGraphExecDestroy(g));
            fflush(stdout);
        }
    }
}
