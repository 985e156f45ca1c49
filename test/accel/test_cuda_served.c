/* SPDX-License-Identifier: Apache-2.0 */
/* Random models, requests and crowds on the accelerator `cuda` over the stand-in of libcuda: what
 * the processor serves `cuda` serves, T5 too. Log-probabilities are as near to those of the
 * processor in fp32 as its own in the same dtypes; a request has the same bits alone and in a
 * crowd, with preemption, guesses, a cache of prompts, adapters and searches beside it. No GPU is
 * asked. Usage: test_cuda_served [CASES [SEED]]
 *
 * labels: slow */
#include "common/parity.h"
#include "common/scratch.h"
#include "common/serve_crowd.h"
#include "common/served_models.h"
#include "common/standin_load.h"

#include <deepspeed/infer.h>
#include <deepspeed/serve.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    REQUESTS = 5, /* of texts, */
    SEARCHES = 1, /* of beams, */
    VECTORS = 2,  /* and of vectors */
    ASKED = REQUESTS + SEARCHES + VECTORS,
    IDS = 70,
    NEW = 8,
    TOP = DS_SERVE_MOST_TOP,
    WIDTH = 96, /* numbers of a vector that are compared */
    BEAMS = 3,
    EVENTS = 128,
    LONGEST = 96,
    PATH = 1024,
    TEXT = 2048
};

static standin_calls standin;
static int n_cases = 6;
static uint64_t first_seed = 1;
static bool says; /* a line a case */

/* A case: a model and how it is served. */
typedef struct drawn {
    const served_family *family;
    char folder[PATH], name[2 * TEXT];
    ds_model *model;
    bool pairs, drafts, embeds;
    ds_dtype dtype, cells, blocks;
    int64_t longest;
    ds_serve_params crowd;
} drawn;

typedef struct request {
    uint32_t ids[IDS];
    ds_serve_request r;
    ds_serve_bias bias;
    ds_beams beams;
    int adapter; /* 0: none */
} request;

/* What came of one. */
typedef struct result {
    uint32_t ids[NEW];
    int64_t n, n_prompt;
    float top[NEW][TOP], prompt[IDS][TOP]; /* log-probabilities, in descending order */
    float vector[WIDTH];
    uint32_t beams[BEAMS][NEW];
    double scores[BEAMS];
    ds_serve_finish finish;
} result;

/* ---- what is drawn ---- */

static uint32_t below(uint64_t *seed, uint32_t n)
{
    return crowd_below(seed, n);
}

static ds_dtype one_of(uint64_t *seed, const ds_dtype *types, uint32_t n)
{
    return types[below(seed, n)];
}

/* What a model has positions for, of so many. */
static int64_t at_most(const ds_model_info *info, int64_t n)
{
    return info->max_positions > 0 && info->max_positions < n ? info->max_positions : n;
}

static void draw_case(ds_ctx *ctx, uint64_t *seed, const char *scratch, drawn *d)
{
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    static const ds_dtype cells[] = {DS_DTYPE_NONE, DS_DTYPE_NONE, DS_DTYPE_F32,
                                     DS_DTYPE_BF16, DS_DTYPE_F16,  DS_DTYPE_I8};
    static const ds_dtype blocks[] = {DS_DTYPE_Q8_0, DS_DTYPE_Q4_0, DS_DTYPE_Q4_1, DS_DTYPE_Q5_0,
                                      DS_DTYPE_Q5_1, DS_DTYPE_Q4_K, DS_DTYPE_Q6_K};
    char path[PATH + 16];
    memset(d, 0, sizeof *d);
    d->family = served_draw(seed);
    served_folder(ctx, d->family, seed, scratch, d->folder, sizeof d->folder);
    (void)snprintf(path, sizeof path, "%s/config.json", d->folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &d->model));
    const ds_model_info *info = ds_model_get_info(d->model);
    d->pairs = info->pairs;
    d->longest = at_most(info, LONGEST);
    d->dtype = one_of(seed, dtypes, d->pairs ? 3 : 4);
    d->cells = one_of(seed, cells, 6);
    d->blocks = below(seed, 3) == 0 ? one_of(seed, blocks, 7) : DS_DTYPE_NONE;
    d->embeds = below(seed, 2) == 0;
    d->drafts = below(seed, 4) == 0 && !info->carries;
    const int64_t sequences = BEAMS + below(seed, 5);
    d->crowd = (ds_serve_params){.max_sequences = sequences,
                                 .max_batch_tokens = sequences + below(seed, 50),
                                 .kv_tokens = (d->pairs ? 512 : 384) + 64 * below(seed, 4),
                                 .no_prefix_cache = d->pairs || below(seed, 3) == 0,
                                 .max_draft = d->drafts ? 1 + below(seed, 3) : below(seed, 4),
                                 .prompt_rows = below(seed, 12)};
    if (info->carries && !d->crowd.no_prefix_cache) {
        d->crowd.state_snapshots = 1 + below(seed, 4);
    }
}

static void draw_requests(uint64_t *seed, const drawn *d, request *a)
{
    const uint32_t vocab = (uint32_t)ds_model_get_info(d->model)->vocab_size;
    const uint32_t room = d->longest < IDS + NEW ? (uint32_t)d->longest - NEW : IDS;
    memset(a, 0, ASKED * sizeof *a);
    for (int k = 0; k < ASKED; ++k) {
        request *q = &a[k];
        const size_t n = 1 + below(seed, room);
        const size_t same = k > 0 && below(seed, 2) == 0 ? a[k - 1].r.n : 0; /* as the last one */
        for (size_t i = 0; i < n; ++i) {
            q->ids[i] = i < same ? a[k - 1].ids[i] : below(seed, vocab);
        }
        q->r = (ds_serve_request){.ids = q->ids,
                                  .n = n,
                                  .max_new_tokens = 1 + below(seed, NEW),
                                  .logprobs = true,
                                  .n_top = TOP};
        q->adapter = d->family->adapters[0] != NULL ? (int)below(seed, 1 + SERVED_ADAPTERS) : 0;
        if (k >= REQUESTS) {
            q->beams = (ds_beams){.n = BEAMS, .length_penalty = 1.0};
            q->r.logprobs = false;
            q->r.n_top = 0;
            q->r.beams = &q->beams;
            continue;
        }
        q->bias = (ds_serve_bias){below(seed, vocab), 2.0f};
        q->r.bias = &q->bias;
        q->r.n_bias = below(seed, 3) == 0;
        q->r.repetition = below(seed, 3) == 0 ? 1.3 : 0.0;
        q->r.sampling = (ds_sampling){.temperature = below(seed, 3) == 0 ? 0.9 : 0.0,
                                      .top_p = 1.0,
                                      .seed = below(seed, 1000)};
        q->r.prompt_logprobs = !d->pairs && below(seed, 2) == 0;
        q->r.n_prompt_top = q->r.prompt_logprobs ? TOP : 0;
    }
}

/* ---- what runs ---- */

/* On an accelerator, in its types or (exact) those of fp32; NULL: refused, the context says why. */
static ds_server *serve(ds_ctx *ctx, const drawn *d, bool exact, const char *accelerator,
                        bool crowd)
{
    ds_server *server = NULL;
    static const ds_serve_params alone = {.max_sequences = BEAMS + 1,
                                          .max_batch_tokens = 40,
                                          .kv_tokens = 1024,
                                          .no_prefix_cache = true};
    ds_serve_params params = crowd ? d->crowd : alone;
    params.source = (ds_generator_params){.model = d->model,
                                          .weights = d->folder,
                                          .max_length = d->longest,
                                          .dtype = exact ? DS_DTYPE_F32 : d->dtype,
                                          .quantize = d->blocks,
                                          .accelerator = accelerator};
    const ds_generator_params draft = {.model = d->model,
                                       .weights = d->folder,
                                       .dtype = DS_DTYPE_BF16,
                                       .accelerator = accelerator};
    params.draft = crowd && d->drafts ? &draft : NULL;
    params.kv_type = exact ? DS_DTYPE_NONE : d->cells;
    params.embeddings = d->embeds || d->pairs;
    params.adapters = d->family->adapters[0] != NULL ? SERVED_ADAPTERS : 0;
    params.adapter_rank = params.adapters > 0 ? 8 : 0;
    return ds_serve_create(ctx, &params, &server) < 0 ? NULL : server;
}

static void begin(ds_ctx *ctx, ds_server *server, const request *q, int k, const uint64_t *of,
                  uint64_t *uid)
{
    ds_serve_request r = q->r;
    r.adapter = of[q->adapter];
    if (k < REQUESTS + SEARCHES) {
        CHECK_OK(ctx, ds_serve_submit(server, &r, uid));
    } else {
        CHECK_OK(ctx, ds_serve_embed(server, q->ids, r.n, k % 2 ? DS_POOL_MEAN : DS_POOL_LAST,
                                     r.adapter, uid));
    }
}

static void take(const ds_serve_event *e, int64_t width, result *got)
{
    assert_int_not_equal(e->finish, DS_SERVE_ERROR);
    got->finish = e->finish;
    if (e->finish == DS_SERVE_VECTOR) {
        memcpy(got->vector, e->vector,
               (size_t)(width < WIDTH ? width : WIDTH) * sizeof *got->vector);
    } else if (e->finish == DS_SERVE_BEAMS) {
        for (int64_t i = 0; i < e->n_beams; ++i) {
            memcpy(got->beams[i], e->beams[i].ids, (size_t)e->beams[i].n * sizeof *e->beams[i].ids);
            got->scores[i] = e->beams[i].score;
        }
    } else {
        assert_true(got->n < NEW);
        got->ids[got->n] = e->id;
        memcpy(got->top[got->n++], e->top_logprobs, sizeof e->top_logprobs);
        got->n_prompt = e->prompt != NULL ? e->n_prompt : got->n_prompt;
        for (int64_t i = 1; e->prompt != NULL && i < e->n_prompt; ++i) {
            memcpy(got->prompt[i], e->prompt[i].top_logprobs, sizeof got->prompt[i]);
        }
    }
}

/* All requests one after the other, or some steps apart. */
static void run(ds_ctx *ctx, ds_server *server, const drawn *d, const request *a, bool together,
                result *got)
{
    ds_serve_event events[EVENTS];
    ds_serve_stats stats;
    uint64_t uids[ASKED] = {0};
    uint64_t of[1 + SERVED_ADAPTERS] = {0};
    const int n_asked = ASKED - (d->embeds || d->pairs ? 0 : VECTORS);
    for (int i = 0; i < SERVED_ADAPTERS && d->family->adapters[i] != NULL; ++i) {
        char folder[PATH];
        golden_path(folder, sizeof folder, "%s", d->family->adapters[i]);
        CHECK_OK(ctx, ds_serve_adapter_load(server, folder, &of[1 + i]));
    }
    memset(got, 0, ASKED * sizeof *got);
    int begun = 0;
    do {
        size_t n = 0;
        ds_serve_get_stats(server, &stats);
        if (begun < n_asked && (together || stats.n_running + stats.n_waiting == 0)) {
            begin(ctx, server, &a[begun], begun, of, &uids[begun]);
            ++begun;
        }
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
        for (size_t e = 0; e < n; ++e) {
            int k = 0;
            while (uids[k] != events[e].uid) {
                assert_true(++k < ASKED);
            }
            take(&events[e], stats.width, &got[k]);
        }
        ds_serve_get_stats(server, &stats);
    } while (begun < n_asked || stats.n_running + stats.n_waiting > 0);
    assert_int_equal(stats.n_free_blocks, stats.n_blocks);
}

/* ---- what is compared ---- */

/* Of log-probabilities where the ids before are the same, and of vectors. */
static void measure(const result *a, const result *b, served_distance *texts,
                    served_distance *vectors)
{
    for (int k = 0; k < ASKED; ++k) {
        served_add(vectors, a[k].vector, b[k].vector, a[k].finish == DS_SERVE_VECTOR ? WIDTH : 0);
        assert_int_equal(a[k].n_prompt, b[k].n_prompt);
        served_add(texts, a[k].prompt[0], b[k].prompt[0], a[k].n_prompt * TOP);
        for (int64_t i = 0; i < a[k].n && i < b[k].n; ++i) {
            served_add(texts, a[k].top[i], b[k].top[i], TOP);
            if (a[k].ids[i] != b[k].ids[i]) {
                break;
            }
        }
    }
}

/* How large log-probabilities are, at least 1. */
static double size_of(const result *a)
{
    static const float zeros[NEW * TOP];
    served_distance size = {0};
    for (int k = 0; k < REQUESTS; ++k) {
        served_add(&size, a[k].top[0], zeros, a[k].n * TOP);
    }
    return fmax(1.0, served_root(&size));
}

/* In fp32 greedy ids are those of the processor, but where two are as likely. */
static void expect_ids(const drawn *d, const request *a, const result *cpu, const result *cuda)
{
    for (int k = 0; k < REQUESTS; ++k) {
        const bool plain =
            a[k].r.n_bias == 0 && a[k].r.repetition == 0.0 && a[k].r.sampling.temperature == 0.0;
        for (int64_t i = 0; plain && i < cpu[k].n; ++i) {
            if (cpu[k].ids[i] != cuda[k].ids[i]) {
                if (cpu[k].top[i][0] - cpu[k].top[i][1] > 1e-3f) {
                    fail_msg("%s: request %d: id %lld is %u, on cpu %u", d->name, k, (long long)i,
                             cuda[k].ids[i], cpu[k].ids[i]);
                }
                break;
            }
        }
    }
}

static void expect_same(const drawn *d, const result *alone, const result *crowd)
{
    for (int k = 0; k < ASKED; ++k) {
        if (memcmp(&alone[k], &crowd[k], sizeof *alone) != 0) {
            fail_msg("%s: request %d has other bits in a crowd", d->name, k);
        }
    }
}

static void compare(const drawn *d, const request *a, const result *exact, const result *cpu,
                    const result *cuda)
{
    served_distance off[2] = {{0}};
    served_distance off_cpu[2] = {{0}};
    const bool coarse = d->blocks != DS_DTYPE_NONE || d->cells == DS_DTYPE_I8;
    const bool fine = d->dtype == DS_DTYPE_F32 && !coarse &&
                      (d->cells == DS_DTYPE_NONE || d->cells == DS_DTYPE_F32);
    measure(exact, cuda, &off[0], &off[1]);
    measure(exact, cpu, &off_cpu[0], &off_cpu[1]);
    for (int i = 0; i < 2; ++i) {
        const double floor = (coarse ? 1e-3 : 1e-5) * size_of(exact); /* codes may be others */
        if (!(served_root(&off[i]) <= 1.5 * served_root(&off_cpu[i]) + floor)) { /* NaN, too */
            fail_msg("%s: %s of cuda are off by %.3g, of cpu by %.3g", d->name,
                     i == 0 ? "log-probabilities" : "vectors", served_root(&off[i]),
                     served_root(&off_cpu[i]));
        }
    }
    if (says) {
        print_message("%s: off by %.3g %.3g, on cpu by %.3g %.3g\n", d->name, served_root(&off[0]),
                      served_root(&off[1]), served_root(&off_cpu[0]), served_root(&off_cpu[1]));
    }
    if (fine) {
        expect_ids(d, a, cpu, cuda);
    }
}

/* What it is, in a line. */
static void name_case(drawn *d, uint64_t seed)
{
    const char *which = d->family->name != NULL     ? d->family->name
                        : d->family->folder != NULL ? d->family->folder
                                                    : ds_model_config_text(d->model);
    (void)snprintf(d->name, sizeof d->name,
                   "seed %llu: %s in %s, cells %s, blocks %s, %s%lld sequences, %lld tokens, %lld "
                   "positions, %lld guesses%s",
                   (unsigned long long)seed, which, ds_dtype_name(d->dtype),
                   ds_dtype_name(d->cells), ds_dtype_name(d->blocks), d->embeds ? "vectors, " : "",
                   (long long)d->crowd.max_sequences, (long long)d->crowd.max_batch_tokens,
                   (long long)d->crowd.kv_tokens, (long long)d->crowd.max_draft,
                   d->drafts ? " of a model" : "");
}

/* What a server made of the requests; false: it is refused. */
static bool results(ds_ctx *ctx, const drawn *d, const request *a, bool exact,
                    const char *accelerator, bool crowd, result *got)
{
    ds_server *server = serve(ctx, d, exact, accelerator, crowd);
    if (server == NULL) {
        return false;
    }
    run(ctx, server, d, a, crowd, got);
    ds_serve_destroy(&server);
    return true;
}

static void check_case(ds_ctx *ctx, uint64_t seed)
{
    static result got[4][ASKED];
    static request a[ASKED];
    drawn d;
    uint64_t state = seed * 0x9E3779B97F4A7C15u;
    char options[64];
    char *scratch = scratch_make();
    draw_case(ctx, &state, scratch, &d);
    draw_requests(&state, &d, a);
    (void)snprintf(options, sizeof options, "seed=%u,turn=%u", 1 + below(&state, 1000),
                   1 + below(&state, 100));
    standin.set(options);
    name_case(&d, seed);
    while (!results(ctx, &d, a, true, "cpu", false, got[0]) ||
           !results(ctx, &d, a, false, "cpu", false, got[1])) {
        if (d.blocks == DS_DTYPE_NONE) {
            fail_msg("%s: cpu: %s", d.name, ds_ctx_error(ctx));
        }
        d.blocks = DS_DTYPE_NONE;
        name_case(&d, seed);
    }
    for (int crowd = 0; crowd < 2; ++crowd) {
        if (!results(ctx, &d, a, false, "cuda", crowd != 0, got[2 + crowd])) {
            fail_msg("%s: cuda refuses: %s", d.name, ds_ctx_error(ctx));
        }
    }
    compare(&d, a, got[0], got[1], got[2]);
    expect_same(&d, got[2], got[3]);
    ds_model_destroy(&d.model);
    scratch_remove(scratch);
}

static void what_cpu_serves_cuda_serves(void **state)
{
    for (int i = 0; i < n_cases; ++i) {
        check_case(*state, first_seed + (uint64_t)i);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_cpu_serves_cuda_serves)};
    says = argc > 1;
    n_cases = argc > 1 ? atoi(argv[1]) : n_cases;
    first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : first_seed;
    return standin_load(DS_BINARY_DIR, &standin)
               ? cmocka_run_group_tests(tests, check_set_up, check_tear_down)
               : 1;
}
