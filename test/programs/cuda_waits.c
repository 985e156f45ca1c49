/* SPDX-License-Identifier: Apache-2.0 */
/* Takes each wait out of the plans of engines, one at a time, and trains on the accelerator `cuda`
 * over the stand-ins of its driver and of NCCL: some order must give other bits than the plan as it
 * is.
 *
 *     cuda_waits [EVERY [N…]]     each EVERY-th wait, default 1, of plans N…, default all
 *     CUDA_WAITS_OF=TEXT          of those whose description has it ("all_gather")
 *     CUDA_WAITS_REDUNDANT=1      of those that are not needed: no order may give other bits
 *
 * Ranks are processes, in step: each makes an engine, takes the same wait out, trains, and says
 * whether what it has differs. Orders: each stream late in its turn (standin.h), which runs what
 * does not wait for it first; then some at random. What a wait is for is known apart from that:
 *
 *     implied    the order of queues does it too (common/plan_order.h)
 *     host's     so do waits of the host (exec_stream.c): for a collective's end, for the stream
 *                that one begins on, for all before it writes a micro-batch or decides on the norm
 *     needed     must be seen
 *
 * Fails when a needed wait is not seen, another is, or the plan as it is has two results. A line a
 * plan.
 */
#include "comm/shm.h"
#include "common/engine_hash.h"
#include "common/plan_order.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "common/standin_load.h"
#include "train/engine.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 2, BATCH = 2, SEQ = 8, VOCABULARY = 61, LATE = 8, RANDOM = 4, MOST_RANKS = 4 };

static const char gpt2[] =
    "{\"model_type\":\"gpt2\",\"vocab_size\":61,\"n_positions\":16,\"n_embd\":16,\"n_layer\":2,"
    "\"n_head\":2,\"resid_pdrop\":0.1,\"embd_pdrop\":0.1,\"attn_pdrop\":0.1}";
static const char llama[] =
    "{\"model_type\":\"llama\",\"vocab_size\":61,\"hidden_size\":16,\"intermediate_size\":40,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
    "\"max_position_embeddings\":16,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}";

typedef struct setting {
    const char *name, *model;
    ds_dtype dtype;
    uint32_t n_ranks, stage;
    bool states, params; /* on the host */
    uint32_t accumulation;
    ds_optimizer_kind optimizer;
    bool host, ahead; /* the processor updates what is there; before the norm is known */
} setting;

#define F32  DS_DTYPE_F32
#define BF16 DS_DTYPE_BF16
static const setting settings[] = {
    {"zero0", gpt2, F32, 2, 0, false, false, 1, DS_OPTIMIZER_ADAM, false, false},
    {"zero1", llama, BF16, 2, 1, false, false, 1, DS_OPTIMIZER_ADAM, false, false},
    {"zero2", gpt2, BF16, 2, 2, false, false, 1, DS_OPTIMIZER_ADAM, false, false},
    {"zero3", llama, F32, 2, 3, false, false, 1, DS_OPTIMIZER_ADAM, false, false},
    {"zero3, three ranks", gpt2, BF16, 3, 3, false, false, 1, DS_OPTIMIZER_ADAM, false, false},
    {"zero2, three ranks, 2 micro-batches", llama, F32, 3, 2, false, false, 2, DS_OPTIMIZER_ADAM,
     false, false},
    {"zero3, 2 micro-batches", gpt2, F32, 2, 3, false, false, 2, DS_OPTIMIZER_ADAM, false, false},
    {"zero0, 2 micro-batches", llama, BF16, 2, 0, false, false, 2, DS_OPTIMIZER_ADAM, false, false},
    {"zero2, Muon", llama, F32, 2, 2, false, false, 1, DS_OPTIMIZER_MUON, false, false},
    {"one rank, states on the host", gpt2, F32, 1, 0, true, false, 1, DS_OPTIMIZER_ADAM, false,
     false},
    {"one rank, all on the host", llama, BF16, 1, 3, true, true, 1, DS_OPTIMIZER_ADAM, false,
     false},
    {"one rank, states on the host, 2 micro-batches", llama, F32, 1, 1, true, false, 2,
     DS_OPTIMIZER_LION, false, false},
    {"one rank, all on the host, 2 micro-batches", gpt2, BF16, 1, 3, true, true, 2,
     DS_OPTIMIZER_ADAM, false, false},
    {"zero1, states on the host", gpt2, BF16, 2, 1, true, false, 1, DS_OPTIMIZER_ADAM, false,
     false},
    {"zero2, states on the host", llama, F32, 2, 2, true, false, 1, DS_OPTIMIZER_ADAM, false,
     false},
    {"zero3, states on the host", gpt2, F32, 2, 3, true, false, 1, DS_OPTIMIZER_ADAM, false, false},
    {"zero3, all on the host", llama, BF16, 2, 3, true, true, 1, DS_OPTIMIZER_ADAM, false, false},
    {"zero3, three ranks, all on the host", gpt2, BF16, 3, 3, true, true, 1, DS_OPTIMIZER_ADAM,
     false, false},
    {"zero2, states on the host, 2 micro-batches", llama, BF16, 2, 2, true, false, 2,
     DS_OPTIMIZER_ADAM, false, false},
    {"zero3, LAMB, states on the host", gpt2, F32, 2, 3, true, false, 1, DS_OPTIMIZER_LAMB, false,
     false},
    {"one rank, updated on the host", gpt2, F32, 1, 0, true, false, 1, DS_OPTIMIZER_ADAM, true,
     false},
    {"one rank, all updated on the host", llama, BF16, 1, 3, true, true, 1, DS_OPTIMIZER_ADAM, true,
     false},
    {"zero1, updated on the host", llama, BF16, 2, 1, true, false, 2, DS_OPTIMIZER_ADAM, true,
     false},
    {"zero3, updated on the host", gpt2, F32, 2, 3, true, false, 1, DS_OPTIMIZER_LION, true, false},
    {"one rank, updated ahead of the norm", llama, BF16, 1, 3, true, false, 1, DS_OPTIMIZER_ADAM,
     true, true},
};

enum { SETTINGS = sizeof settings / sizeof settings[0] };

typedef enum use { NONE, NEEDED, IMPLIED, OF_HOST, USES } use;

typedef struct planned {
    use use;
    char what[256]; /* for the message */
} planned;

/* One rank's. */
typedef struct bench {
    const setting *c;
    ds_ctx *ctx;
    ds_model *model;
    const char *folder;
    standin_calls standin;
    uint64_t (*sent)(void); /* a sum over what the rank has sent */
    uint32_t rank, n_attempts;
    long job;
    uint64_t wanted;
    planned *steps; /* of the plan */
    uint32_t n_steps;
} bench;

static dsi_engine_spec make_spec(const bench *b)
{
    const setting *c = b->c;
    dsi_engine_spec spec = small_spec(c->dtype);
    spec.train.batch = BATCH;
    spec.train.seq_length = SEQ;
    spec.train.accumulation = c->accumulation;
    spec.train.optimizer = c->optimizer;
    spec.train.max_coeff = 10.0;
    spec.train.min_coeff = 0.01;
    if (c->optimizer == DS_OPTIMIZER_MUON) {
        spec.train.muon = (dsi_muon_spec){true, c->dtype};
        spec.muon_lr = 0.02;
        spec.muon_momentum = 0.95;
    }
    spec.zero = (dsi_zero_spec){.stage = c->stage,
                                .reduce_each = true,
                                .comm_dtype = c->dtype,
                                .reduce_bucket = 1000,
                                .gather_bucket = 1000,
                                .persistence_threshold = 0,
                                .model_persistence = INT64_MAX,
                                .max_live = 1000,
                                .max_reuse_distance = 1000};
    spec.overlap = true;
    spec.prefetch = 1000;
    spec.offload = small_away(b->folder, c->states ? DSI_RESIDENCY_HOST : DSI_RESIDENCY_DEVICE,
                              c->params ? DSI_RESIDENCY_HOST : DSI_RESIDENCY_DEVICE);
    spec.offload.how.host = c->host;
    spec.host_cores = 1.0;
    spec.train.speculative = c->ahead;
    spec.train.max_norm = c->ahead ? 1e6 : 0.1;
    return spec;
}

static ds_batch feed(int32_t at, ds_named_tensor tensors[4], int32_t data[4][BATCH * SEQ])
{
    static const char *const names[4] = {"input_ids", "targets", "positions", "first"};
    for (int i = 0; i < 4; ++i) {
        const ds_meta meta = {DS_DTYPE_I32, {.n_dims = 2, .dims = {BATCH, SEQ}}};
        tensors[i] = (ds_named_tensor){names[i], {data[i], meta}};
    }
    for (int32_t i = 0; i < BATCH * SEQ; ++i) {
        data[0][i] = (i * 37 + at * 11) % VOCABULARY;
        data[1][i] = (i * 37 + at * 11 + 37) % VOCABULARY;
        data[2][i] = i % SEQ;
        data[3][i] = 0;
    }
    return (ds_batch){tensors, 4};
}

/* Adds the norm of the gradient: without clipping no weight shows that it is wrong. (What ranks
 * send is part of the result for a like reason: a wrong largest magnitude may be near enough for
 * the sum of squares.) */
static uint64_t with_norm(uint64_t hash, double norm)
{
    uint64_t bits = 0;
    memcpy(&bits, &norm, sizeof bits);
    return (hash ^ bits) * 0x100000001b3U;
}

static ds_status run_steps(bench *b, ds_engine *engine, uint64_t *hash_out)
{
    ds_named_tensor tensors[4];
    int32_t data[4][BATCH * SEQ];
    uint64_t norms = 0;
    const uint64_t sent = b->sent();
    int32_t at = (int32_t)b->rank;
    const uint32_t n = b->c->ahead ? STEPS + 1 : STEPS; /* undone, accepted, and seen by a step */
    for (uint32_t step = 0; step < n; ++step) {
        for (uint32_t micro = 0; micro < b->c->accumulation; ++micro, at += MOST_RANKS) {
            const ds_batch batch = feed(at, tensors, data);
            DS_TRY(ds_engine_forward(engine, &batch));
            DS_TRY(ds_engine_backward(engine));
            if (b->c->ahead && step == 0) { /* too late for what is ahead, which is undone */
                DS_TRY(ds_engine_set_lr(engine, 2e-3));
            }
            DS_TRY(ds_engine_step(engine));
        }
        norms = with_norm(norms, ds_engine_grad_norm(engine));
    }
    DS_TRY(engine_hash(b->ctx, engine, hash_out));
    *hash_out ^= norms ^ (b->sent() - sent);
    return DS_OK;
}

/* ---- what a wait is for ---------------------------------------------------------------------- */

static void find_uses(bench *b, ds_engine *engine)
{
    dsi_plan *plan = engine->train_plan;
    plan_order order = plan_order_make(plan, true);
    order.judged = dsi_engine_judges_between(engine) ? engine->own.phases.norm : DS_NONE;
    const uint32_t n = plan->n_steps;
    b->n_steps = plan->n_steps;
    b->steps = plan_order_must(calloc(plan->n_steps + 1, sizeof *b->steps));
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        dsi_step *step = &plan->steps[s];
        const uint32_t n_waits = step->n_waits;
        b->steps[s].use = n_waits == 0 ? NONE : IMPLIED;
        if (n_waits == 0) {
            continue;
        }
        step->n_waits = 0;
        order.host = false;
        if (plan_order_is_racy(&order)) {
            order.host = true;
            b->steps[s].use = plan_order_is_racy(&order) ? NEEDED : OF_HOST;
            const dsi_step *first = &plan->steps[order.racy.before % n];
            const dsi_step *then = &plan->steps[order.racy.behind % n];
            (void)snprintf(b->steps[s].what, sizeof b->steps[s].what,
                           "%s of %s (%s): %s (%s) before %s (%s)%s",
                           step->kind == DSI_STEP_WAIT ? "end" : "begin", step->op->name,
                           step->scope, first->op->name, first->scope, then->op->name, then->scope,
                           order.racy.behind >= n ? " of the next" : "");
        }
        step->n_waits = n_waits;
    }
    plan_order_free(&order);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static ds_status train(bench *b, ds_comm *comm, uint32_t without, uint64_t *hash_out)
{
    dsi_engine_spec spec = make_spec(b);
    ds_engine *engine = NULL;
    const ds_engine_params params = {.model = b->model, .seq_length = SEQ, .seed = 5, .comm = comm};
    DS_TRY(dsi_accel_choose(b->ctx, "cuda:graphs=0", &spec.accel));
    DS_TRY(dsi_engine_create(b->ctx, &params, &spec, &engine));
    if (without != DS_NONE) {
        engine->train_plan->steps[without].n_waits = 0;
    } else if (b->steps == NULL) {
        find_uses(b, engine);
    }
    const ds_status status = run_steps(b, engine, hash_out);
    ds_engine_destroy(&engine);
    return status;
}

/* Whether some rank has *differs. */
static ds_status any_rank(ds_comm *comm, bool *differs)
{
    float one = *differs ? 1.0f : 0.0f;
    float all = 0.0f;
    const dsi_comm_part part = {.in = &one, .out = &all, .count = 1};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_REDUCE,
                                .dtype = DS_DTYPE_F32,
                                .reduction = DSI_REDUCE_MAX,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "whether bits differ"};
    DS_TRY(dsi_comm_run(comm, &call));
    *differs = all > 0.0f;
    return DS_OK;
}

/* Whether the run without this wait, in this order, is other than the plan as it is; a run that
 * fails is. Every rank gets the same answer. */
static bool differs(bench *b, uint32_t without, const char *order)
{
    char job[64];
    ds_comm *comm = NULL;
    uint64_t hash = 0;
    ds_status status = DS_OK;
    (void)snprintf(job, sizeof job, "cuda_waits-%ld-%u", b->job, b->n_attempts++);
    const dsi_shm_params params = {
        .rank = b->rank, .size = b->c->n_ranks, .job = job, .timeout = 60.0};
    b->standin.set(order);
    if (b->c->n_ranks > 1) {
        status = dsi_comm_shm_open(b->ctx, &params, &comm);
    }
    status = status < 0 ? status : train(b, comm, without, &hash);
    b->wanted = status >= 0 && b->wanted == 0 ? hash : b->wanted;
    bool found = status < 0 || hash != b->wanted;
    if (comm != NULL && status >= 0) {
        status = any_rank(comm, &found);
    }
    if (status < 0) {
        if (without == DS_NONE) {
            (void)fprintf(stderr, "cuda_waits: %s: %s\n", b->c->name, ds_ctx_error(b->ctx));
        }
        if (comm != NULL) {
            ds_comm_abort(comm, "a run without one of its waits");
        }
    }
    dsi_comm_destroy(&comm);
    return found || status < 0;
}

static bool is_seen(bench *b, uint32_t s)
{
    char order[64];
    for (unsigned i = 1; i <= LATE + RANDOM; ++i) {
        const unsigned turn = i <= LATE ? 4096u : 64u << (2 * (i % 4));
        (void)snprintf(order, sizeof order, "seed=%u,turn=%u,late=%u", i, turn, i <= LATE ? i : 0);
        if (differs(b, s, order)) {
            return true;
        }
    }
    return false;
}

static int rank_main(bench *b, uint32_t every)
{
    static const char *const orders[] = {"seed=1,turn=256", "seed=2,turn=4096,late=2",
                                         "seed=3,turn=64,late=3", "seed=4,turn=4096,late=4"};
    const char *of = getenv("CUDA_WAITS_OF");
    const bool redundant = getenv("CUDA_WAITS_REDUNDANT") != NULL;
    uint32_t counts[USES] = {0};
    uint32_t at = 0;
    uint32_t tried = 0;
    uint32_t seen = 0;
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; ++i) {
        if (differs(b, DS_NONE, orders[i])) {
            (void)fprintf(stderr, "cuda_waits: %s: other bits in order %s\n", b->c->name,
                          orders[i]);
            return 1;
        }
    }
    for (uint32_t s = 0; s < b->n_steps; ++s) {
        counts[b->steps[s].use] += 1;
        if (b->steps[s].use == NONE || (b->steps[s].use == NEEDED) == redundant ||
            (of != NULL && strstr(b->steps[s].what, of) == NULL) || at++ % every != 0) {
            continue;
        }
        const bool found = is_seen(b, s) || (!redundant && is_seen(b, s)); /* on a busy machine */
        tried += 1;
        seen += found ? 1 : 0;
        if (found == redundant && b->rank == 0) {
            (void)printf("%s: %s that it has not waited: step %u, %s\n", b->c->name,
                         found ? "an order shows" : "no order shows", s, b->steps[s].what);
        }
    }
    if (b->rank == 0) {
        (void)printf("%s: %u rank%s: waits %u implied by queues, %u the host's, %u needed: %u "
                     "taken out%s, %u seen\n",
                     b->c->name, b->c->n_ranks, b->c->n_ranks > 1 ? "s" : "", counts[IMPLIED],
                     counts[OF_HOST], counts[NEEDED], tried, redundant ? " of the others" : "",
                     seen);
    }
    return (redundant || tried > 0) && seen == (redundant ? 0 : tried) ? 0 : 1;
}

/* What a run without one of its waits logs is not read. */
static void drop_line(void *user, ds_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

static int run_rank(bench *b, uint32_t every)
{
    const ds_ctx_params params = {.log = drop_line, .level = DS_LOG_ERROR, .n_threads = 1};
    char name[32];
    if (ds_ctx_create(&params, &b->ctx) < 0) {
        return 1;
    }
    (void)snprintf(name, sizeof name, "config%u.json", b->rank);
    const char *path = scratch_path(b->folder, name);
    scratch_write(path, b->c->model, strlen(b->c->model));
    int code = ds_model_from_config(b->ctx, path, &b->model) < 0 ? 1 : rank_main(b, every);
    ds_model_destroy(&b->model);
    ds_ctx_destroy(&b->ctx);
    free(b->steps);
    return code;
}

static int run_setting(uint32_t number, uint32_t every, const char *folder, standin_calls standin)
{
    void *sent = dlsym(RTLD_DEFAULT, "standin_nccl_sent");
    pid_t ids[MOST_RANKS];
    int bad = sent == NULL ? 1 : 0;
    const setting *c = &settings[number];
    for (uint32_t r = 0; r < c->n_ranks && bad == 0; ++r) {
        bench b = {.c = c,
                   .folder = folder,
                   .standin = standin,
                   .rank = r,
                   .job = (long)getpid() * 100 + (long)number};
        memcpy(&b.sent, &sent, sizeof b.sent);
        (void)fflush(stdout);
        ids[r] = fork();
        if (ids[r] == 0) {
            const int code = run_rank(&b, every);
            (void)fflush(stdout);
            _exit(code);
        }
    }
    for (uint32_t r = 0; r < c->n_ranks && sent != NULL; ++r) {
        int code = 0;
        bad += ids[r] < 0 || waitpid(ids[r], &code, 0) != ids[r] || code != 0;
    }
    return bad;
}

int main(int argc, char **argv)
{
    const uint32_t every = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;
    standin_calls standin = {NULL, NULL, NULL};
    int bad = 0;
    if (every == 0 || !standin_load(DS_BINARY_DIR, &standin)) {
        return 1;
    }
    char *folder = scratch_make();
    for (int i = 2; i < argc || (argc <= 2 && i < SETTINGS + 2); ++i) {
        const unsigned long n = argc > 2 ? strtoul(argv[i], NULL, 10) : (unsigned long)i - 2;
        bad += n < SETTINGS ? run_setting((uint32_t)n, every, folder, standin) : 1;
    }
    scratch_remove(folder);
    return bad == 0 ? 0 : 1;
}
