/* SPDX-License-Identifier: Apache-2.0 */
/* One run of the bit-identity matrix: trains a small model for a few steps and prints the hash of
 * all weights and optimizer states.
 *
 *     zero_row key=value …      see the table of keys below
 *
 * resume=1 saves half way and goes on from that with a new engine; resume=2 saves every step behind
 * training to the end, and then does the same. accel names the accelerator. transport=sim runs the
 * ranks as threads of this process; otherwise the process is one rank of the job that its
 * environment names. Rank 0 prints "hash …". Dropout and clipping are always active.
 */
#include "base/rng.h"
#include "comm/sim.h"
#include "common/engine_hash.h"
#include "common/small_run.h"
#include "train/engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOCO_BETA 0.8

enum { BATCH = 2, SEQ = 32, MAX_RANKS = 16 };

typedef struct row {
    char model[16], dtype[8], transport[8], optimizer[16], recompute[16], offload[16], save[512],
        accel[64];
    long pp, flat, tp, sp, ring, ep, hpz, qwz, qgz, loco, mics, ranks, stage, overlap, bucket,
        accumulation, threads, resume, persistence, steps, zenflow, early;
} row;

static int read_row(int argc, char **argv, row *r)
{
    const struct {
        const char *key;
        char *text;
        size_t room;
        long *number;
    } keys[] = {
        {"model", r->model, sizeof r->model, NULL},
        {"dtype", r->dtype, sizeof r->dtype, NULL},
        {"transport", r->transport, sizeof r->transport, NULL},
        {"optimizer", r->optimizer, sizeof r->optimizer,
         NULL}, /* adam, lamb (not with zenflow), onebitadam, onebitlamb, zerooneadam (stage 0) */
        {"recompute", r->recompute, sizeof r->recompute, NULL},
        {"offload", r->offload, sizeof r->offload, NULL},
        {"save", r->save, sizeof r->save, NULL},
        {"accel", r->accel, sizeof r->accel, NULL},
        {"ranks", NULL, 0, &r->ranks},
        {"pp", NULL, 0, &r->pp},
        {"flat", NULL, 0, &r->flat}, /* the same samples without a pipeline, on fewer ranks */
        {"tp", NULL, 0, &r->tp},
        {"sp", NULL, 0, &r->sp},
        {"ring", NULL, 0, &r->ring},
        {"ep", NULL, 0, &r->ep},
        {"mics", NULL, 0, &r->mics},
        {"hpz", NULL, 0, &r->hpz},
        {"qwz", NULL, 0, &r->qwz}, /* collectives of quantized blocks: parameters, gradients */
        {"qgz", NULL, 0, &r->qgz},
        {"loco", NULL, 0, &r->loco}, /* updates after which errors begin anew; 0: none */
        {"stage", NULL, 0, &r->stage},
        {"overlap", NULL, 0, &r->overlap},
        {"bucket", NULL, 0, &r->bucket},
        {"accumulation", NULL, 0, &r->accumulation},
        {"threads", NULL, 0, &r->threads},
        {"resume", NULL, 0, &r->resume},
        {"persistence", NULL, 0, &r->persistence},
        {"steps", NULL, 0, &r->steps},
        {"zenflow", NULL, 0, &r->zenflow},
        {"early", NULL, 0, &r->early}, /* nothing waits for all gradients */
    };
    *r = (row){.model = "gpt2",
               .dtype = "f32",
               .transport = "sim",
               .optimizer = "adam",
               .recompute = "none",
               .offload = "none",
               .ranks = 2,
               .bucket = 1000000000,
               .accumulation = 1,
               .threads = 1,
               .steps = 4};
    for (int i = 1; i < argc; ++i) {
        const char *equals = strchr(argv[i], '=');
        size_t k = 0;
        const size_t n_keys = sizeof keys / sizeof keys[0];
        while (equals != NULL && k < n_keys &&
               (strlen(keys[k].key) != (size_t)(equals - argv[i]) ||
                strncmp(argv[i], keys[k].key, strlen(keys[k].key)) != 0)) {
            ++k;
        }
        if (equals == NULL || k == n_keys) {
            (void)fprintf(stderr, "zero_row: unknown argument %s\n", argv[i]);
            return 2;
        }
        if (keys[k].text != NULL) {
            (void)snprintf(keys[k].text, keys[k].room, "%s", equals + 1);
        } else {
            *keys[k].number = strtol(equals + 1, NULL, 10);
        }
    }
    return 0;
}

/* full2: two layers a kept input. */
static dsi_recompute make_recompute(const row *r)
{
    const bool full = strncmp(r->recompute, "full", 4) == 0;
    const bool selective = strcmp(r->recompute, "selective") == 0;
    return (dsi_recompute){.mode = full        ? DS_RECOMPUTE_FULL
                                   : selective ? DS_RECOMPUTE_SELECTIVE
                                               : DS_RECOMPUTE_NONE,
                           .interval = strcmp(r->recompute, "full2") == 0 ? 2 : 1};
}

/* states, half (of them), params (all, stage 3), host (all, in host memory); else none. Small
 * chunks, small parameters too, little reuse: as many transfers as there can be, some thousands.
 * Offload of parameters is for stage 3 or one rank. */
static dsi_offload_spec make_offload(const row *r)
{
    const int64_t scale = strcmp(r->model, "gpt2_124m") == 0 ? 200 : 1;
    const bool host = strcmp(r->offload, "host") == 0;
    const bool one_rank = r->ranks == 1;
    const bool all = (host || strcmp(r->offload, "params") == 0) && (r->stage == 3 || one_rank);
    dsi_offload_spec spec = {.states = host ? DSI_RESIDENCY_HOST : DSI_RESIDENCY_DISK,
                             .ratio = strcmp(r->offload, "half") == 0 ? 0.5 : 1.0,
                             .threshold = 64,
                             .how = {.chunk = 5000 * scale, .reuse = 30000 * scale},
                             .read_ahead = 100000 * scale,
                             .update_ahead = 80000 * scale,
                             .write_behind = 50000 * scale,
                             .defer = true,
                             .aio = ds_aio_params_default()};
    if (strcmp(r->offload, "none") == 0) {
        spec.states = DSI_RESIDENCY_DEVICE;
    }
    spec.params = all ? spec.states : DSI_RESIDENCY_DEVICE;
    (void)snprintf(spec.folders, sizeof spec.folders, "/tmp");
    return spec;
}

static bool offloads_params(const row *r)
{
    return strcmp(r->offload, "params") == 0 || strcmp(r->offload, "host") == 0;
}

/* Stages, where they divide the job; ZenFlow has none. */
static uint32_t pp_of(const row *r)
{
    return r->zenflow == 0 && r->pp > 1 && r->ranks % r->pp == 0 ? (uint32_t)r->pp : 1;
}

/* Ranks that share layers, likewise. */
static uint32_t tp_of(const row *r)
{
    const long left = r->ranks / (long)pp_of(r);
    return r->zenflow == 0 && r->tp > 1 && left % r->tp == 0 ? (uint32_t)r->tp : 1;
}

/* Ranks that share sequences, likewise; as many as divide the heads. */
static uint32_t sp_of(const row *r)
{
    const long left = r->ranks / (long)(pp_of(r) * tp_of(r));
    return r->zenflow == 0 && r->sp > 1 && left % r->sp == 0 ? (uint32_t)r->sp : 1;
}

/* Ranks that share experts, likewise. */
static uint32_t ep_of(const row *r)
{
    const long left = r->ranks / (long)(tp_of(r) * sp_of(r));
    const bool has_experts = strcmp(r->model, "mixtral8") == 0;
    return r->zenflow == 0 && has_experts && r->ep > 1 && left % r->ep == 0 ? (uint32_t)r->ep : 1;
}

/* Where there are such groups. */
static uint32_t group_of(const row *r, long size)
{
    const long n_zero = r->ranks / (long)(pp_of(r) * tp_of(r));
    const bool fits = size > 0 && n_zero % size == 0 && size % (long)(sp_of(r) * ep_of(r)) == 0;
    return r->stage == 3 && r->zenflow == 0 && fits ? (uint32_t)size : 0;
}

static dsi_engine_spec make_spec(const row *r)
{
    const ds_dtype dtype = strcmp(r->dtype, "bf16") == 0  ? DS_DTYPE_BF16
                           : strcmp(r->dtype, "f16") == 0 ? DS_DTYPE_F16
                                                          : DS_DTYPE_F32;
    dsi_engine_spec spec = small_spec(dtype);
    spec.train.batch = BATCH;
    spec.train.seq_length = SEQ;
    spec.train.accumulation = r->accumulation;
    spec.train.max_norm = r->early != 0 ? 0.0 : 0.1;
    spec.train.keep_nonfinite = r->early != 0 && dtype != DS_DTYPE_F16;
    if (strcmp(r->optimizer, "lamb") == 0 && r->zenflow == 0) {
        spec.train.optimizer = DS_OPTIMIZER_LAMB;
        spec.train.max_coeff = 10.0;
        spec.train.min_coeff = 0.01;
    }
    if (strcmp(r->optimizer, "muon") == 0 && r->zenflow == 0) {
        spec.train.optimizer = DS_OPTIMIZER_MUON;
        spec.train.muon =
            (dsi_muon_spec){true, dtype == DS_DTYPE_F32 ? DS_DTYPE_F32 : DS_DTYPE_BF16};
        spec.muon_lr = 0.02;
        spec.muon_momentum = 0.95;
    }
    if (strcmp(r->optimizer, "adafactor") == 0) {
        spec.train.optimizer = DS_OPTIMIZER_ADAFACTOR;
        spec.train.momentum = true;
        spec.train.adafactor = (dsi_adafactor_spec){.on = true,
                                                    .scales = true,
                                                    .eps = 1e-30,
                                                    .scale_eps = 1e-3,
                                                    .clip_threshold = 1.0,
                                                    .decay_rate = -0.8};
    }
    if (strcmp(r->optimizer, "schedulefree") == 0) {
        spec.train.optimizer = DS_OPTIMIZER_SCHEDULE_FREE;
        spec.train.schedule_free =
            (dsi_schedule_free_spec){.on = true, .warmup_steps = 2, .rate_power = 2.0};
    }
    if (strcmp(r->optimizer, "adamw8bit") == 0) {
        spec.train.optimizer = DS_OPTIMIZER_ADAMW_8BIT;
    }
    if (strstr(r->optimizer, "8bit") != NULL) {
        spec.train.adam_8bit = (dsi_adam_8bit_spec){
            .on = true, .min_size = 200, .cut = r->stage > 0 || r->tp > 1 || ep_of(r) > 1};
    }
    if (strncmp(r->optimizer, "ademamix", 8) == 0) {
        spec.train.optimizer = DS_OPTIMIZER_ADEMAMIX;
        spec.train.ademamix = (dsi_ademamix_spec){
            .on = true, .beta3 = 0.9999, .alpha = 5.0, .t_beta3 = 3, .t_alpha = 6};
        spec.bias_correction = true;
    }
    const bool zero_one = strcmp(r->optimizer, "zerooneadam") == 0;
    const bool onebit = strncmp(r->optimizer, "onebit", 6) == 0 || zero_one;
    if (onebit) {
        const bool lamb = strcmp(r->optimizer, "onebitlamb") == 0;
        spec.train.optimizer = zero_one ? DS_OPTIMIZER_ZERO_ONE_ADAM
                               : lamb   ? DS_OPTIMIZER_ONEBIT_LAMB
                                        : DS_OPTIMIZER_ONEBIT_ADAM;
        spec.train.decoupled_decay = true;
        spec.train.max_coeff = 10.0;
        spec.train.min_coeff = 0.01;
        spec.train.onebit = (dsi_onebit_spec){.on = true,
                                              .freeze_step = 2,
                                              .var_update_scaler = 1,
                                              .local_step_scaler = 1,
                                              .local_step_clipper = 4,
                                              .coeff_beta = 0.9,
                                              .factor_max = 4.0,
                                              .factor_min = 0.5,
                                              .factor_threshold = 0.1};
        spec.bias_correction = false;
    }
    spec.train.zenflow = (dsi_zenflow_spec){.on = r->zenflow != 0, /* chosen at 1 and 3 */
                                            .ratio = 0.2,
                                            .update_every = 2,
                                            .select_every = 3,
                                            .warm_up = 1,
                                            .overlap = r->zenflow == 2};
    spec.zero =
        (dsi_zero_spec){.pp = pp_of(r),
                        .tp = tp_of(r),
                        .sp = sp_of(r),
                        .ep = ep_of(r),
                        .stage = (uint32_t)r->stage,
                        .mics = group_of(r, r->mics),
                        .hpz = r->mics == 0 && !offloads_params(r) ? group_of(r, r->hpz) : 0,
                        .quantized = {.weights = r->qwz != 0,
                                      .gradients = r->qgz != 0,
                                      .errors = r->loco != 0,
                                      .beta = LOCO_BETA,
                                      .seeded = dtype == DS_DTYPE_F16},
                        .own_states = zero_one,
                        .reduce_each = !onebit, /* deterministic */
                        .comm_dtype = dtype,
                        .reduce_bucket = r->bucket,
                        .gather_bucket = r->bucket,
                        .persistence_threshold = r->persistence,
                        .model_persistence = INT64_MAX,
                        .max_live = r->bucket,
                        .max_reuse_distance = r->bucket};
    spec.train.sequence_form = (ds_sequence_form)r->ring; /* 0: by heads */
    spec.train.loco =
        (dsi_loco_spec){.on = r->loco != 0, .beta = LOCO_BETA, .reset_every = r->loco};
    spec.recompute = make_recompute(r);
    spec.offload = make_offload(r);
    spec.overlap = r->overlap != 0;
    spec.prefetch = r->bucket / 2;
    spec.save_behind = r->resume == 2;
    if (dtype == DS_DTYPE_F16) { /* the first step overflows */
        spec.loss_scale =
            dsi_loss_scale_dynamic(262144.0 * (double)r->accumulation, 100, 1.0, 1, false);
    }
    return spec;
}

/* Ids of the rows of one micro-batch: a function of the global sample. */
static void make_batch(int64_t vocab, int64_t first_sample, int32_t *ids, int32_t *targets,
                       int32_t *positions, int32_t *first)
{
    for (int64_t b = 0; b < BATCH; ++b) {
        for (int64_t t = 0; t < SEQ; ++t) {
            const uint64_t at = (uint64_t)((first_sample + b) * (SEQ + 1) + t);
            ids[b * SEQ + t] = (int32_t)dsi_rng_below(3, 1, at, (uint64_t)vocab);
            targets[b * SEQ + t] = (int32_t)dsi_rng_below(3, 1, at + 1, (uint64_t)vocab);
            positions[b * SEQ + t] = (int32_t)t;
            first[b * SEQ + t] = 0;
        }
    }
}

/* The micro-batches of a step. */
typedef struct feeder {
    const row *r;
    int64_t vocab, step, rank, n, micro;
    int32_t data[4][BATCH * SEQ];
    ds_named_tensor tensors[4];
} feeder;

static ds_status feed(void *user, ds_batch *batch_out)
{
    static const char *const names[4] = {"input_ids", "targets", "positions", "first"};
    feeder *f = user;
    for (int i = 0; i < 4; ++i) {
        const ds_meta meta = {DS_DTYPE_I32, {.n_dims = 2, .dims = {BATCH, SEQ}}};
        f->tensors[i] = (ds_named_tensor){names[i], {f->data[i], meta}};
    }
    const int64_t at = f->step * f->r->accumulation + f->micro++;
    make_batch(f->vocab, (at * f->n + f->rank) * BATCH, f->data[0], f->data[1], f->data[2],
               f->data[3]);
    *batch_out = (ds_batch){f->tensors, 4};
    return DS_OK;
}

static ds_status one_step(const row *r, ds_engine *engine, ds_comm *comm, int64_t vocab,
                          double *loss)
{
    const uint32_t same = tp_of(r) * sp_of(r); /* neighbours that have the same samples */
    const uint32_t n = ds_comm_size(comm) / pp_of(r) / same;
    feeder f = {.r = r,
                .vocab = vocab,
                .step = (int64_t)ds_engine_global_steps(engine),
                .rank = ds_comm_rank(comm) / same % n,
                .n = n};
    if (pp_of(r) > 1) {
        DS_TRY(ds_engine_train_batch(engine, feed, &f, NULL));
    }
    for (long micro = 0; pp_of(r) == 1 && micro < r->accumulation; ++micro) {
        ds_batch batch = {0};
        DS_TRY(feed(&f, &batch));
        DS_TRY(ds_engine_forward(engine, &batch));
        DS_TRY(ds_engine_backward(engine));
        DS_TRY(ds_engine_step(engine));
    }
    *loss = ds_engine_loss(engine);
    return DS_OK;
}

typedef struct rank_job {
    const row *r;
    ds_ctx *ctx;
    ds_comm *comm;
    ds_status status;
} rank_job;

static ds_status train(const row *r, ds_ctx *ctx, ds_comm *comm, const ds_model *model)
{
    dsi_engine_spec spec = make_spec(r);
    const ds_engine_params params = {.model = model, .seq_length = SEQ, .seed = 5, .comm = comm};
    const int64_t vocab = ds_model_get_info(model)->vocab_size;
    ds_engine *engine = NULL;
    ds_status status = DS_OK;
    uint64_t hash = 0;
    double loss = 0.0;
    DS_TRY(dsi_accel_choose(ctx, r->accel, &spec.accel));
    DS_TRY(dsi_engine_create(ctx, &params, &spec, &engine));
    for (long step = 0; step < r->steps && r->resume == 2; ++step) {
        DS_TRY_GOTO(status, ds_engine_save_checkpoint(engine, r->save, NULL, NULL), done);
        DS_TRY_GOTO(status, one_step(r, engine, comm, vocab, &loss), done);
    }
    for (long step = r->resume == 2 ? r->steps / 2 : 0; step < r->steps; ++step) {
        if (r->resume != 0 && step == r->steps / 2) {
            char tag[64];
            (void)snprintf(tag, sizeof tag, "global_step%ld", step);
            if (r->resume == 1) {
                DS_TRY_GOTO(status, ds_engine_save_checkpoint(engine, r->save, NULL, NULL), done);
            }
            ds_engine_destroy(&engine); /* waits for what is written */
            DS_TRY_GOTO(status, dsi_engine_create(ctx, &params, &spec, &engine), done);
            DS_TRY_GOTO(status, ds_engine_load_checkpoint(engine, r->save, tag, NULL), done);
        }
        DS_TRY_GOTO(status, one_step(r, engine, comm, vocab, &loss), done);
    }
    DS_TRY_GOTO(status, engine_hash(ctx, engine, &hash), done);
    if (ds_comm_rank(comm) == 0) {
        (void)printf("hash %016llx  loss %.9g  norm %.9g  skipped %llu  parameters %llu\n",
                     (unsigned long long)hash, loss, ds_engine_grad_norm(engine),
                     (unsigned long long)ds_engine_skipped_steps(engine),
                     (unsigned long long)ds_engine_n_parameters(engine));
    }
done:
    ds_engine_destroy(&engine);
    return status;
}

static void *run_rank(void *arg)
{
    rank_job *job = arg;
    ds_model *model = NULL;
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/test/programs/zero_%s.json", DS_SOURCE_DIR,
                   job->r->model);
    job->status = ds_model_from_config(job->ctx, path, &model);
    if (job->status >= 0) {
        job->status = train(job->r, job->ctx, job->comm, model);
    }
    if (job->status < 0) {
        (void)fprintf(stderr, "zero_row: rank %u: %s\n", ds_comm_rank(job->comm),
                      ds_ctx_error(job->ctx));
        ds_comm_abort(job->comm, ds_ctx_error(job->ctx));
    }
    ds_model_destroy(&model);
    return NULL;
}

static ds_status make_ctx(const row *r, ds_ctx **ctx_out)
{
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = (uint32_t)r->threads};
    return ds_ctx_create(&params, ctx_out);
}

static int run_simulated(const row *r)
{
    rank_job jobs[MAX_RANKS];
    ds_ctx *ctxs[MAX_RANKS] = {NULL};
    dsi_comm *comms[MAX_RANKS] = {NULL};
    pthread_t threads[MAX_RANKS];
    const uint32_t n = (uint32_t)r->ranks;
    int code = 0;
    for (uint32_t i = 0; i < n; ++i) {
        if (make_ctx(r, &ctxs[i]) < 0) {
            return 1;
        }
    }
    const dsi_comm_sim_options options = {.seed = 1, .reorder = true};
    if (dsi_comm_sim_create(ctxs, n, &options, comms) < 0) {
        return 1;
    }
    for (uint32_t i = 0; i < n; ++i) {
        jobs[i] = (rank_job){.r = r, .ctx = ctxs[i], .comm = comms[i]};
        if (pthread_create(&threads[i], NULL, run_rank, &jobs[i]) != 0) {
            return 1;
        }
    }
    for (uint32_t i = 0; i < n; ++i) {
        (void)pthread_join(threads[i], NULL);
        code |= jobs[i].status < 0 ? 1 : 0;
        dsi_comm_destroy(&comms[i]);
    }
    for (uint32_t i = 0; i < n; ++i) {
        ds_ctx_destroy(&ctxs[i]);
    }
    return code;
}

static int run_process(const row *r)
{
    rank_job job = {.r = r};
    dsi_comm_world world;
    if (make_ctx(r, &job.ctx) < 0) {
        return 1;
    }
    job.status = dsi_comm_world_read(job.ctx, &world);
    if (job.status >= 0) {
        world.transport = r->transport;
        world.timeout = 60.0;
        job.status = dsi_comm_open(job.ctx, &world, &job.comm);
    }
    if (job.status < 0) {
        (void)fprintf(stderr, "zero_row: %s\n", ds_ctx_error(job.ctx));
    } else {
        (void)run_rank(&job);
    }
    dsi_comm_destroy(&job.comm);
    ds_ctx_destroy(&job.ctx);
    return job.status < 0 ? 1 : 0;
}

int main(int argc, char **argv)
{
    row r;
    const int bad = read_row(argc, argv, &r);
    if (bad != 0 || r.ranks < 1 || r.ranks > MAX_RANKS) {
        return 2;
    }
    if (r.flat != 0) {
        r.ranks /= (long)pp_of(&r);
        r.pp = 1;
    }
    return strcmp(r.transport, "sim") == 0 ? run_simulated(&r) : run_process(&r);
}
