/* Predicted against measured: the step time of training configurations on this machine.
 *
 * usage: bench_plan [--profile FILE | --save FILE] [--steps N] [--only TEXT] [--classes]
 * [--predict] Alone, or as ranks of one host: `deepspeed --num_gpus 2 bench_plan …`. Without
 * --profile the machine is measured first (some half a minute), so that prediction and run see the
 * same machine;
 * --save writes that profile. Every configuration is planned, simulated, then run: one step to warm
 * up, N timed ones (default 3), of which the median counts. --classes compares where the time goes,
 * by class of operators. --predict stops before running. Prints one line a configuration and, at
 * the end, how many lie within 20 %.
 */
#include "base/clock.h"
#include "base/pool.h"
#include "common/plan_case.h"
#include "common/timing.h"
#include "cost/measure.h"

#include <deepspeed/comm.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 32, MOST_VOCAB = 50257 };

#define GPT2                                                                                       \
    "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"],\"vocab_size\":50257,"       \
    "\"n_positions\":1024,\"n_embd\":768,\"n_layer\":12,\"n_head\":12,\"resid_pdrop\":0.0,"        \
    "\"embd_pdrop\":0.0,\"attn_pdrop\":0.0,\"activation_function\":\"gelu_new\"}"
#define LLAMA                                                                                      \
    "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":32000,"     \
    "\"hidden_size\":512,\"intermediate_size\":1408,\"num_hidden_layers\":8,"                      \
    "\"num_attention_heads\":8,\"num_key_value_heads\":8,\"max_position_embeddings\":4096,"        \
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","                        \
    "\"tie_word_embeddings\":false}"

#define NONE      DS_RECOMPUTE_NONE
#define FULL      DS_RECOMPUTE_FULL
#define SELECTIVE DS_RECOMPUTE_SELECTIVE
#define BF16      DS_DTYPE_BF16
#define FP32      DS_DTYPE_F32

static const plan_case rows[] = {
    {"gpt2 bf16 4x1024", GPT2, BF16, 0, 0, 4, 1024, 1, NONE, true},
    {"gpt2 bf16 1x1024", GPT2, BF16, 0, 0, 1, 1024, 1, NONE, true},
    {"gpt2 bf16 8x256", GPT2, BF16, 0, 0, 8, 256, 1, NONE, true},
    {"gpt2 bf16 1x1024 a4", GPT2, BF16, 0, 0, 1, 1024, 4, NONE, true},
    {"gpt2 bf16 2x1024 full", GPT2, BF16, 0, 0, 2, 1024, 1, FULL, true},
    {"gpt2 bf16 2x1024 sel", GPT2, BF16, 0, 0, 2, 1024, 1, SELECTIVE, true},
    {"gpt2 fp32 1x1024", GPT2, FP32, 0, 0, 1, 1024, 1, NONE, true},
    {"gpt2 fp32 2x256 full", GPT2, FP32, 0, 0, 2, 256, 1, FULL, true},
    {"gpt2 bf16 2x1024 z1", GPT2, BF16, 1, 2, 2, 1024, 1, NONE, true},
    {"gpt2 bf16 2x1024 z2", GPT2, BF16, 2, 2, 2, 1024, 1, NONE, true},
    {"gpt2 bf16 2x1024 z3", GPT2, BF16, 3, 2, 2, 1024, 1, NONE, true},
    {"gpt2 bf16 1x512 z3 a2", GPT2, BF16, 3, 2, 1, 512, 2, NONE, true},
    {"gpt2 bf16 1x256 z2", GPT2, BF16, 2, 2, 1, 256, 1, NONE, false},
    {"gpt2 fp32 1x512 z2", GPT2, FP32, 2, 2, 1, 512, 1, NONE, true},
    {"llama bf16 4x512", LLAMA, BF16, 0, 0, 4, 512, 1, NONE, true},
    {"llama bf16 1x2048", LLAMA, BF16, 0, 0, 1, 2048, 1, NONE, true},
    {"llama bf16 1x4096 full", LLAMA, BF16, 0, 0, 1, 4096, 1, FULL, true},
    {"llama bf16 8x128", LLAMA, BF16, 0, 0, 8, 128, 1, NONE, true},
    {"llama fp32 1x1024", LLAMA, FP32, 0, 0, 1, 1024, 1, NONE, true},
    {"llama bf16 2x512 z1", LLAMA, BF16, 1, 2, 2, 512, 1, NONE, true},
    {"llama bf16 2x512 z3", LLAMA, BF16, 3, 2, 2, 512, 1, NONE, true},
    {"llama bf16 1x1024 z3", LLAMA, BF16, 3, 2, 1, 1024, 1, FULL, true},
};

typedef struct options {
    const char *profile, *save, *only;
    int steps;
    bool classes, predict;
} options;

typedef struct bench {
    ds_ctx *ctx;
    ds_comm *comm;
    uint32_t rank, size;
    options o;
    dsi_device device; /* of one rank */
    int n_rows, n_within;
} bench;

/* Seconds of the steps of a class, as run. */
typedef struct spent {
    double seconds[DS_PHASE_COUNT][DSI_CLASS_COUNT];
} spent;

static void die(const bench *b, const char *what)
{
    (void)fprintf(stderr, "bench_plan: %s: %s\n", what, ds_ctx_error(b->ctx));
    ds_comm_abort(b->comm, what);
    exit(1);
}

/* ---- measurement ---- */

static void add_step(void *user, const dsi_step *step, const dsi_exec_times *times)
{
    spent *s = user;
    const ds_kernel_sig sig = {.op = step->op, .attrs = step->attrs};
    s->seconds[step->phase][dsi_work_of(&sig, 0.0, 0.0).op_class] += times->end - times->begin;
}

static void fill_batch(const plan_case *r, int32_t **data, uint64_t seed, uint32_t vocab)
{
    const int64_t n = r->batch * r->seq_length;
    for (int64_t i = 0; i < n; ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        data[0][i] = (int32_t)((seed >> 33) % vocab);
        data[2][i] = (int32_t)(i % r->seq_length);
        data[3][i] = 0;
    }
    for (int64_t i = 0; i < n; ++i) {
        data[1][i] = (i + 1) % r->seq_length == 0 ? -100 : data[0][i + 1];
    }
}

static double one_step(const bench *b, ds_engine *engine, const plan_case *r, const ds_batch *batch)
{
    const double start = dsi_clock_seconds();
    ds_status status = DS_OK;
    for (int64_t i = 0; i < r->accumulation && status == DS_OK; ++i) {
        status = ds_engine_forward(engine, batch);
        status = status == DS_OK ? ds_engine_backward(engine) : status;
        status = status == DS_OK ? ds_engine_step(engine) : status;
    }
    if (status < 0) {
        die(b, r->name);
    }
    return dsi_clock_seconds() - start;
}

/* Median seconds of a step; with classes also the mean of each class. */
static double measure(const bench *b, const plan_case *r, const ds_model *model, spent *classes)
{
    static const char *const names[4] = {"input_ids", "targets", "positions", "first"};
    const dsi_engine_spec spec = plan_case_spec(r, b->size);
    const ds_engine_params params = {
        .model = model, .seq_length = r->seq_length, .comm = b->size > 1 ? b->comm : NULL};
    const size_t bytes = (size_t)(r->batch * r->seq_length) * sizeof(int32_t);
    int32_t *data[4];
    ds_named_tensor tensors[4];
    double seconds[MOST_STEPS];
    ds_engine *engine = NULL;
    if (dsi_engine_create(b->ctx, &params, &spec, &engine) < 0) {
        die(b, r->name);
    }
    for (int i = 0; i < 4; ++i) {
        data[i] = bench_alloc(bytes);
        tensors[i] = (ds_named_tensor){
            names[i], {data[i], {DS_DTYPE_I32, ds_shape_2d(r->batch, r->seq_length)}}};
    }
    const ds_batch batch = {tensors, 4};
    const uint32_t vocab = (uint32_t)ds_model_get_info(model)->vocab_size;
    for (int i = -1; i < b->o.steps; ++i) {
        fill_batch(r, data, (uint64_t)(i + 2) * 1000 + b->rank, vocab);
        if (i == 0 && classes != NULL) {
            dsi_exec_set_trace(engine->exec, add_step, classes);
        }
        const double s = one_step(b, engine, r, &batch);
        seconds[i < 0 ? 0 : i] = s;
    }
    ds_engine_destroy(&engine);
    for (int i = 0; i < 4; ++i) {
        free(data[i]);
    }
    return bench_median(seconds, (size_t)b->o.steps);
}

/* ---- output ---- */

static void print_classes(const bench *b, const dsi_timeline *t, const spent *classes)
{
    static const char *const phases[] = {"forward", "backward", "norm", "update"};
    for (int p = 0; p < DS_PHASE_COUNT; ++p) {
        for (int c = 0; c < DSI_CLASS_COUNT; ++c) {
            double predicted = 0.0;
            for (uint32_t i = 0; i < t->n_rows; ++i) {
                const dsi_sim_row *at = &t->rows[i];
                const bool comm = at->stream == DSI_STREAM_COMM;
                const bool same = comm ? c == DSI_CLASS_COMM
                                       : strcmp(at->name, dsi_op_class_name((dsi_op_class)c)) == 0;
                predicted += same && (int)at->phase == p ? comm ? at->exposed : at->seconds : 0.0;
            }
            const double measured = classes->seconds[p][c] / b->o.steps;
            if (predicted > 1e-3 || measured > 1e-3) {
                (void)printf("    %-9s %-20s predicted %9.2f ms, measured %9.2f ms, ratio %5.2f\n",
                             phases[p], dsi_op_class_name((dsi_op_class)c), 1e3 * predicted,
                             1e3 * measured, predicted / measured);
            }
        }
    }
}

static void run_row(bench *b, const plan_case *r)
{
    ds_model *model = NULL;
    plan_prediction prediction;
    spent classes = {0};
    if (plan_case_model(b->ctx, r->model, &model) < 0 ||
        plan_case_predict(b->ctx, r, model, &b->device, b->size, &prediction) < 0) {
        die(b, r->name);
    }
    const dsi_timeline *t = prediction.timeline;
    const double predicted = t->step.seconds;
    if (b->o.predict) {
        (void)printf("%-24s predicted %8.3f s\n", r->name, predicted);
    } else {
        const double measured = measure(b, r, model, b->o.classes ? &classes : NULL);
        const double ratio = predicted / measured;
        b->n_rows += 1;
        b->n_within += fabs(ratio - 1.0) <= 0.2 ? 1 : 0;
        if (b->rank == 0) {
            (void)printf("%-24s %u ranks, %u threads: predicted %8.3f s, measured %8.3f s, "
                         "predicted/measured %.3f\n",
                         r->name, b->size, ds_ctx_n_threads(b->ctx), predicted, measured, ratio);
        }
    }
    if (b->o.classes && b->rank == 0) {
        print_classes(b, t, &classes);
    }
    plan_case_free(&prediction);
    ds_model_destroy(&model);
}

/* ---- the profile ---- */

static void save(const bench *b, const dsi_device *device)
{
    dsi_buf text = dsi_buf_make(1 << 20);
    dsi_device_print(device, &text);
    FILE *file = fopen(b->o.save, "w");
    if (file == NULL || fputs(dsi_buf_text(&text), file) < 0 || fclose(file) != 0) {
        die(b, "cannot write the profile");
    }
    dsi_buf_free(&text);
}

static void find_profile(bench *b)
{
    dsi_device device;
    if (b->o.profile != NULL) {
        if (dsi_device_load(b->ctx, b->o.profile, &device) < 0) {
            die(b, "profile");
        }
    } else {
        const dsi_measure_spec spec = {
            .name = "this-machine", .comm = b->size > 1 ? b->comm : NULL, .seconds = 0.06};
        if (dsi_measure(b->ctx, &spec, &device) < 0) {
            die(b, "measuring");
        }
    }
    if (b->rank == 0) {
        (void)printf("profile %s: %.3f TFLOP/s bf16, %.3f f32, memory %.1f GB/s\n", device.name,
                     1e-12 * device.peak[DSI_PEAK_BF16], 1e-12 * device.peak[DSI_PEAK_F32],
                     1e-9 * device.memory_bandwidth);
        if (b->o.save != NULL) {
            save(b, &device);
        }
    }
    b->device = dsi_device_of_rank(&device, b->size);
}

static options read_options(int argc, char **argv)
{
    options o = {.steps = 3};
    for (int i = 1; i < argc; ++i) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--classes") == 0) {
            o.classes = true;
        } else if (strcmp(argv[i], "--predict") == 0) {
            o.predict = true;
        } else if (strcmp(argv[i], "--profile") == 0) {
            o.profile = value;
            ++i;
        } else if (strcmp(argv[i], "--save") == 0) {
            o.save = value;
            ++i;
        } else if (strcmp(argv[i], "--only") == 0) {
            o.only = value;
            ++i;
        } else if (strcmp(argv[i], "--steps") == 0) {
            o.steps = atoi(value);
            ++i;
        } else {
            (void)fprintf(stderr, "bench_plan: unknown flag %s; see the head of bench_plan.c\n",
                          argv[i]);
            exit(2);
        }
    }
    o.steps = o.steps < 1 ? 1 : o.steps > MOST_STEPS ? MOST_STEPS : o.steps;
    return o;
}

static ds_ctx *open_context(void)
{
    ds_ctx_params params = ds_ctx_params_default();
    const char *size = getenv("LOCAL_WORLD_SIZE");
    const uint32_t ranks = size != NULL && atoi(size) > 0 ? (uint32_t)atoi(size) : 1;
    const uint32_t cores = dsi_pool_n_cores();
    ds_ctx *ctx = NULL;
    params.level = DS_LOG_WARN;
    params.n_threads = getenv("DS_THREADS") != NULL ? (uint32_t)atoi(getenv("DS_THREADS"))
                       : cores / ranks > 0          ? cores / ranks
                                                    : 1;
    if (ds_ctx_create(&params, &ctx) < 0) {
        (void)fprintf(stderr, "bench_plan: no context\n");
        exit(1);
    }
    return ctx;
}

int main(int argc, char **argv)
{
    bench b = {.o = read_options(argc, argv), .ctx = open_context()};
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (ds_comm_open(b.ctx, &b.comm) < 0) {
        die(&b, "communicator");
    }
    b.rank = ds_comm_rank(b.comm);
    b.size = ds_comm_size(b.comm);
    find_profile(&b);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        const bool wanted = b.o.only == NULL || strstr(rows[i].name, b.o.only) != NULL;
        if (wanted && (rows[i].ranks == 0 || rows[i].ranks == b.size)) {
            run_row(&b, &rows[i]);
        }
    }
    if (b.rank == 0 && b.n_rows > 0) {
        (void)printf("within 20 %%: %d of %d\n", b.n_within, b.n_rows);
    }
    ds_comm_close(&b.comm);
    ds_ctx_destroy(&b.ctx);
    return 0;
}
