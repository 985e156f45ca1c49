/* SPDX-License-Identifier: Apache-2.0 */
/* The accelerator `cuda` over the stand-in of libcuda (standin/): its device memory faults when the
 * host touches it, its streams run late and in random order, its graphs are ordered by their nodes'
 * dependencies alone. Training has one result in every ZeRO stage, wherever cells live, with
 * captured phases and without, in every order; and the processor's losses within the tolerance of
 * products summed in another order. No GPU is asked. With
 * DS_CUDA_ALL=1 each model in fp32 and bf16. labels: slow */
#include "accel/accel.h"
#include "common/bad_token.h"
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "common/standin_load.h"

#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 2 };

static ds_ctx *ctx;
static char *folder;
static standin_calls standin;

static const char gpt2[] =
    "{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":64,\"n_embd\":16,\"n_layer\":2,"
    "\"n_head\":2,\"resid_pdrop\":0.1,\"embd_pdrop\":0.1,\"attn_pdrop\":0.1}";
static const char llama[] =
    "{\"model_type\":\"llama\",\"vocab_size\":211,\"hidden_size\":16,\"intermediate_size\":40,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
    "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}";

/* A bias at the output: its logits are an operator's of their own. */
static const char gptj[] =
    "{\"model_type\":\"gptj\",\"vocab_size\":211,\"n_positions\":64,\"n_embd\":16,\"n_layer\":2,"
    "\"n_head\":2,\"rotary_dim\":4,\"n_inner\":40,\"attn_pdrop\":0.0,\"embd_pdrop\":0.0,"
    "\"resid_pdrop\":0.0,\"layer_norm_epsilon\":1e-5,\"activation_function\":\"gelu_new\","
    "\"tie_word_embeddings\":false}";

/* Caps on scores and on logits. */
static const char gemma2[] =
    "{\"model_type\":\"gemma2\",\"vocab_size\":211,\"hidden_size\":16,\"intermediate_size\":40,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":8,"
    "\"query_pre_attn_scalar\":8,\"attn_logit_softcapping\":2.0,\"final_logit_softcapping\":3.0,"
    "\"sliding_window\":7,\"layer_types\":[\"sliding_attention\",\"full_attention\"],"
    "\"hidden_activation\":\"gelu_pytorch_tanh\",\"max_position_embeddings\":64,"
    "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true}";

/* The gated delta rule and a short convolution, then attention; experts. */
static const char qwen3_next[] =
    "{\"model_type\":\"qwen3_next\",\"vocab_size\":211,\"hidden_size\":16,"
    "\"intermediate_size\":40,\"num_hidden_layers\":2,\"layer_types\":[\"linear_attention\","
    "\"full_attention\"],\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":8,"
    "\"linear_conv_kernel_dim\":3,\"linear_key_head_dim\":10,\"linear_num_key_heads\":2,"
    "\"linear_num_value_heads\":4,\"linear_value_head_dim\":6,\"mlp_only_layers\":[1],"
    "\"decoder_sparse_step\":1,\"moe_intermediate_size\":16,\"norm_topk_prob\":true,"
    "\"num_experts\":4,\"num_experts_per_tok\":2,\"shared_expert_intermediate_size\":24,"
    "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"rope_parameters\":"
    "{\"partial_rotary_factor\":0.5,\"rope_theta\":10000.0,\"rope_type\":\"default\"},"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}";

/* With the loss of balance over experts. */
static const char mixtral[] =
    "{\"model_type\":\"mixtral\",\"vocab_size\":211,\"hidden_size\":16,\"intermediate_size\":24,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
    "\"num_local_experts\":4,\"num_experts_per_tok\":2,\"output_router_logits\":true,"
    "\"router_aux_loss_coef\":0.02,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,"
    "\"tie_word_embeddings\":false}";

static dsi_accel_choice choose(const char *text)
{
    dsi_accel_choice choice;
    CHECK_OK(ctx, dsi_accel_choose(ctx, text, &choice));
    return choice;
}

/* ---- what there is ------------------------------------------------------------------------- */

static void it_is_found_and_says_what_there_is(void **state)
{
    char text[2048];
    uint32_t n = 0;
    const ds_accel *accel = NULL;
    ds_accel_device *device = NULL;
    (void)state;
    const dsi_accel_module *modules = dsi_accel_modules(&n);
    assert_true(n == 1 && strcmp(modules[0].name, "cuda") == 0);
    CHECK_OK(ctx, dsi_accel_probe(ctx, &modules[0], text, sizeof text, &accel));
    assert_non_null(strstr(text, "driver: CUDA 13.0, driver 580.65.06\n"));
    assert_non_null(strstr(text, "kernels ahead of time: the host layer (CUDA 13.0)\n"
                                 "custom operators: compiled at first use by NVRTC 13.0, "));
    assert_non_null(strstr(text, "products: cuBLASLt 13.0.0\ncollectives: NCCL 2.28.9\n"
                                 "disks: cuFile 1.14\n"));
    assert_non_null(strstr(text,
                           "device 0: stand-in on the processor, 1.0 GiB, sm_90, 0.8 GiB free, "
                           "SM 1980 MHz, memory 2619 MHz, 35 °C\n"));
    const dsi_accel_choice any = choose("auto");
    char said[DSI_ACCEL_TEXT];
    dsi_accel_say(&any, said);
    assert_string_equal(said, "cuda (auto)");
    dsi_accel_choice of_ranks = any; /* its devices carry out collectives */
    dsi_accel_for_ranks(&of_ranks, 2);
    assert_string_equal(of_ranks.name, "cuda");
    assert_ptr_equal(choose("cuda:device=0,graphs=0").accel, accel);
    const char *const bad[][2] = {
        {"device=x", "device=x: expected a whole number from 0 to 1023"},
        {"graphs=2", "graphs=2: expected a whole number from 0 to 1"},
        {"graphs", "graphs=: expected"},
        {"seed=1", "there is no option \"seed\"; expected device=N or graphs=0"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        CHECK_FAILS(ctx, accel->open(ctx, bad[i][0], &device), DS_ERR_ARG, bad[i][1]);
    }
    CHECK_FAILS(ctx, accel->open(ctx, "device=1", &device), DS_ERR_NOT_FOUND,
                "there is no device 1; there are 1, from 0 on");
    assert_null(device);
    standin.set("least=7");
    CHECK_FAILS(ctx, accel->open(ctx, "", &device), DS_ERR_UNSUPPORTED,
                "device 0 has compute capability 7.0; the kernels need 8.0");
    CHECK_FAILS(ctx, dsi_accel_probe(ctx, &modules[0], NULL, 0, &accel), DS_ERR_UNSUPPORTED, "7.0");
    assert_ptr_equal(choose("auto").accel, &dsi_accel_cpu);
    standin.set("least=9");
}

/* Whether a process that reads the byte lives. */
static bool survives(const volatile unsigned char *at)
{
    int code = 0;
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)signal(SIGSEGV, SIG_DFL);
        _exit(*at == 255 ? 1 : 0);
    }
    assert_true(child > 0 && waitpid(child, &code, 0) == child);
    return WIFEXITED(code);
}

static void memory_is_the_devices(void **state)
{
    const ds_accel *cuda = choose("cuda").accel;
    ds_accel_device *device = NULL;
    void *memory = NULL;
    unsigned char seen[300];
    (void)state;
    CHECK_OK(ctx, cuda->open(ctx, "", &device));
    CHECK_FAILS(ctx, cuda->memory->alloc(device, ctx, (size_t)1 << 31, "a test", &memory),
                DS_ERR_NOMEM,
                "no 2048.0 MiB for a test: 1024.0 of 1024.0 MiB of device 0 are free");
    CHECK_OK(ctx, cuda->memory->alloc(device, ctx, 10000, "a test", &memory));
    memset(seen, 7, sizeof seen);
    CHECK_OK(ctx, cuda->memory->copy(device, seen, (unsigned char *)memory + 33, sizeof seen));
    for (size_t i = 0; i < sizeof seen; ++i) {
        assert_int_equal(seen[i], 0);
    }
    assert_true(survives(seen));
    assert_false(survives(memory));
    assert_false(survives((unsigned char *)memory + 9999));
    cuda->memory->release(device, memory, 10000);
    cuda->close(&device);
}

/* ---- training ------------------------------------------------------------------------------ */

typedef struct result {
    uint64_t hash;
    double losses[STEPS];
} result;

typedef struct row {
    const char *accel;
    uint32_t stage;
    dsi_residency states, params;
    bool host, ahead; /* the processor updates them where they are; before the norm is known */
} row;

static void take_optimizer(dsi_engine_spec *spec, ds_optimizer_kind kind, ds_dtype dtype)
{
    spec->train.optimizer = kind;
    if (kind == DS_OPTIMIZER_LAMB) {
        spec->train.max_coeff = 10.0;
        spec->train.min_coeff = 0.01;
    }
    if (kind == DS_OPTIMIZER_ADEMAMIX) {
        spec->train.ademamix =
            (dsi_ademamix_spec){.on = true, .beta3 = 0.9999, .alpha = 5.0, .t_alpha = 3};
    }
    if (kind == DS_OPTIMIZER_SCHEDULE_FREE) {
        spec->train.schedule_free =
            (dsi_schedule_free_spec){.on = true, .warmup_steps = 2, .rate_power = 2.0};
    }
    if (kind == DS_OPTIMIZER_MUON) {
        spec->train.muon = (dsi_muon_spec){true, dtype};
        spec->muon_lr = 0.02;
        spec->muon_momentum = 0.95;
    }
}

static result train(const ds_model *model, ds_dtype dtype, ds_optimizer_kind kind, const row *r)
{
    result got = {0};
    ds_engine *engine = NULL;
    small_batch room;
    dsi_engine_spec spec = small_spec(dtype);
    const ds_engine_params params = {.model = model, .seq_length = SMALL_SEQ, .seed = 5};
    spec.accel = choose(r->accel);
    spec.train.max_norm = 0.1;
    take_optimizer(&spec, kind, dtype);
    spec.zero = (dsi_zero_spec){.stage = r->stage,
                                .reduce_each = true,
                                .comm_dtype = dtype,
                                .reduce_bucket = 1000,
                                .gather_bucket = 1000,
                                .persistence_threshold = 0,
                                .model_persistence = INT64_MAX,
                                .max_live = 1000,
                                .max_reuse_distance = 1000};
    spec.overlap = r->stage > 0;
    spec.offload = small_away(folder, r->states, r->params);
    spec.offload.how.host = r->host;
    spec.host_cores = 1.0;
    spec.train.speculative = r->ahead;
    CHECK_OK(ctx, dsi_engine_create(ctx, &params, &spec, &engine));
    for (int32_t step = 0; step < STEPS; ++step) {
        const ds_batch batch = small_feed(step, &room);
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
        got.losses[step] = ds_engine_loss(engine);
    }
    CHECK_OK(ctx, engine_hash(ctx, engine, &got.hash));
    ds_engine_destroy(&engine);
    return got;
}

static void one_result(const char *config, ds_dtype dtype, ds_optimizer_kind kind, uint32_t every,
                       double tolerance)
{
    static const row rows[] = {
        {"cuda", 0, DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_DEVICE, false, false},
        {"cuda:graphs=0", 0, DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_DEVICE, false, false},
        {"cuda", 1, DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_DEVICE, false, false},
        {"cuda", 2, DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_DEVICE, false, false},
        {"cuda:graphs=0", 3, DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_DEVICE, false, false},
        {"cuda", 0, DSI_RESIDENCY_HOST, DSI_RESIDENCY_DEVICE, false, false},
        {"cuda:graphs=0", 1, DSI_RESIDENCY_HOST, DSI_RESIDENCY_DEVICE, false, false},
        {"cuda", 3, DSI_RESIDENCY_HOST, DSI_RESIDENCY_HOST, false, false},
        {"cuda:graphs=0", 3, DSI_RESIDENCY_HOST, DSI_RESIDENCY_HOST, false, false},
        {"cuda", 0, DSI_RESIDENCY_HOST, DSI_RESIDENCY_DEVICE, true, false},
        {"cuda:graphs=0", 1, DSI_RESIDENCY_HOST, DSI_RESIDENCY_DEVICE, true, false},
        {"cuda", 2, DSI_RESIDENCY_HOST, DSI_RESIDENCY_DEVICE, true, false},
        {"cuda", 3, DSI_RESIDENCY_HOST, DSI_RESIDENCY_HOST, true, false},
        {"cuda", 3, DSI_RESIDENCY_HOST, DSI_RESIDENCY_DEVICE, true, true},
    };
    ds_model *model = small_model(ctx, folder, config);
    const row on_cpu = {
        .accel = "cpu", .states = DSI_RESIDENCY_DEVICE, .params = DSI_RESIDENCY_DEVICE};
    const result wanted = train(model, dtype, kind, &on_cpu);
    result first = {0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i += every) {
        char order[64];
        (void)snprintf(order, sizeof order, "seed=%zu,turn=%u", i + 1, 16u << (2 * (i % 5)));
        standin.set(order);
        const result got = train(model, dtype, kind, &rows[i]);
        first = i == 0 ? got : first;
        if (got.hash != first.hash || memcmp(got.losses, first.losses, sizeof got.losses) != 0) {
            fail_msg("row %zu of %s: not the bits of row 0", i, ds_dtype_name(dtype));
        }
        for (int s = 0; s < STEPS; ++s) {
            if (!(fabs(got.losses[s] - wanted.losses[s]) <= tolerance)) {
                fail_msg("row %zu, step %d: loss %.9g, on cpu %.9g", i, s, got.losses[s],
                         wanted.losses[s]);
            }
        }
    }
    ds_model_destroy(&model);
}

static void stages_and_residencies_have_one_result(void **state)
{
    (void)state;
    one_result(gpt2, DS_DTYPE_F32, DS_OPTIMIZER_ADAM, 1, 2e-4);
    one_result(llama, DS_DTYPE_BF16, DS_OPTIMIZER_ADAM, 1, 2e-2);
    if (getenv("DS_CUDA_ALL") != NULL) {
        one_result(llama, DS_DTYPE_F32, DS_OPTIMIZER_ADAM, 1, 2e-4);
        one_result(gpt2, DS_DTYPE_BF16, DS_OPTIMIZER_ADAM, 1, 2e-2);
    }
}

/* Logits with a bias, and capped ones: whole, of the parameters' dtype. */
static void logits_of_their_own_have_one_result(void **state)
{
    const uint32_t every = getenv("DS_CUDA_ALL") != NULL ? 1 : 4;
    (void)state;
    one_result(gptj, DS_DTYPE_F32, DS_OPTIMIZER_ADAM, every, 2e-4);
    one_result(gemma2, DS_DTYPE_BF16, DS_OPTIMIZER_ADAM, every, 2e-2);
    if (getenv("DS_CUDA_ALL") != NULL) {
        one_result(gptj, DS_DTYPE_BF16, DS_OPTIMIZER_ADAM, every, 2e-2);
        one_result(gemma2, DS_DTYPE_F32, DS_OPTIMIZER_ADAM, every, 2e-4);
    }
}

/* Rows 0, 4, 8: nothing; ZeRO 3; ZeRO 3 with all on the host. */
static void other_optimizers_have_one_result(void **state)
{
    const uint32_t every = getenv("DS_CUDA_ALL") != NULL ? 1 : 4;
    (void)state;
    one_result(gpt2, DS_DTYPE_F32, DS_OPTIMIZER_LAMB, every, 2e-4);
    one_result(llama, DS_DTYPE_BF16, DS_OPTIMIZER_MUON, every, 2e-2);
    one_result(gpt2, DS_DTYPE_BF16, DS_OPTIMIZER_ADEMAMIX, every, 2e-2);
    if (getenv("DS_CUDA_ALL") != NULL) {
        one_result(llama, DS_DTYPE_BF16, DS_OPTIMIZER_LAMB, every, 2e-2);
        one_result(gpt2, DS_DTYPE_F32, DS_OPTIMIZER_MUON, every, 2e-4);
    }
}

static void recurrences_have_one_result(void **state)
{
    const uint32_t every = getenv("DS_CUDA_ALL") != NULL ? 1 : 4;
    (void)state;
    one_result(qwen3_next, DS_DTYPE_F32, DS_OPTIMIZER_ADAM, every, 2e-4);
}

/* Routing, products of experts and the loss of balance; of Muon also products of a batch. */
static void experts_have_one_result(void **state)
{
    const uint32_t every = getenv("DS_CUDA_ALL") != NULL ? 1 : 4;
    (void)state;
    one_result(mixtral, DS_DTYPE_F32, DS_OPTIMIZER_ADAM, every, 2e-4);
    one_result(mixtral, DS_DTYPE_BF16, DS_OPTIMIZER_MUON, every, 2e-2);
}

/* ---- refusals ------------------------------------------------------------------------------ */

static void an_id_without_a_row_is_named_by_its_step(void **state)
{
    ds_model *model = small_model(ctx, folder, gpt2);
    ds_engine *engine = NULL;
    small_batch room;
    double loss = 0.0;
    dsi_engine_spec spec = small_spec(DS_DTYPE_F32);
    const ds_engine_params params = {.model = model, .seq_length = SMALL_SEQ, .seed = 5};
    (void)state;
    spec.accel = choose("cuda");
    CHECK_OK(ctx, dsi_engine_create(ctx, &params, &spec, &engine));
    ds_batch batch = small_feed(0, &room);
    CHECK_OK(ctx, ds_engine_eval_batch(engine, &batch, &loss, NULL));
    room.data[0][5] = SMALL_VOCABULARY;
    ds_status status = ds_engine_eval_batch(engine, &batch, NULL, NULL);
    batch = small_feed(0, &room);
    status = status < 0 ? status : ds_engine_eval_batch(engine, &batch, NULL, NULL);
    assert_int_equal(status, DS_ERR_ARG);
    assert_non_null(strstr(ds_ctx_error(ctx), "(embedding/cuda"));
    assert_non_null(strstr(ds_ctx_error(ctx), "element 5 is 211, expected 0 to 210"));
    double again = 0.0;
    CHECK_OK(ctx, ds_engine_eval_batch(engine, &batch, &again, NULL));
    assert_true(again == loss);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

static void a_bad_token_is_never_trained_on(void **state)
{
    static const char *const orders[] = {"cuda:graphs=0", "cuda"};
    const bool all = getenv("DS_CUDA_ALL") != NULL;
    (void)state;
    for (int i = 0; i < 32; ++i) {
        const bool speculative = i / 8 % 2 == 1;
        char what[20];
        dsi_engine_spec spec = small_spec(DS_DTYPE_BF16);
        if (!all && i % 26 != 1) {
            continue;
        }
        spec.accel = choose(orders[i / 16]);
        spec.train.max_norm = 0.1;
        spec.host_cores = 1.0;
        if (speculative) {
            spec.offload = small_away(folder, DSI_RESIDENCY_HOST, DSI_RESIDENCY_DEVICE);
            spec.offload.how.host = true;
        }
        spec.train.speculative = speculative;
        spec.train.accumulation = 1 + i / 2 % 2;
        spec.train.keep_nonfinite = i / 4 % 2 == 1;
        (void)snprintf(what, sizeof what, "row %d", i);
        bad_token_check(ctx, folder, &spec, i % 2 == 1, what);
    }
}

static void (*set_nvml)(const char *options);

/* A step that fails on a device that was opened as `before` has it. */
static void fail_a_step(const char *before, const char *within)
{
    ds_model *model = small_model(ctx, folder, gpt2);
    ds_engine *engine = NULL;
    small_batch room;
    dsi_engine_spec spec = small_spec(DS_DTYPE_F32);
    const ds_engine_params params = {.model = model, .seq_length = SMALL_SEQ, .seed = 5};
    void *symbol = dlsym(RTLD_DEFAULT, "standin_nvml_set");
    memcpy(&set_nvml, &symbol, sizeof symbol);
    assert_non_null(set_nvml);
    set_nvml(before);
    (void)setenv("DS_NVML_STANDIN", before, 1); /* where NVML is not initialized yet */
    spec.accel = choose("cuda");
    CHECK_OK(ctx, dsi_engine_create(ctx, &params, &spec, &engine));
    (void)unsetenv("DS_NVML_STANDIN");
    const ds_batch batch = small_feed(0, &room);
    set_nvml(within);
    standin.set("broken=1");
    const ds_status status = ds_engine_eval_batch(engine, &batch, NULL, NULL);
    standin.set("");
    set_nvml("");
    assert_int_equal(status, DS_ERR_DEVICE);
    assert_non_null(strstr(ds_ctx_error(ctx), "(CUDA_ERROR_ECC_UNCORRECTABLE, 214)"));
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

/* The driver names a call; NVML what happened to the device. */
static void a_failed_step_says_what_the_device_reports(void **state)
{
    (void)state;
    fail_a_step("ecc=1", "xid=48,ecc=3");
    assert_non_null(strstr(ds_ctx_error(ctx), "; device 0: Xid 48, an ECC error of two bits: run"));
    assert_non_null(
        strstr(ds_ctx_error(ctx), "; device 0: 2 ECC errors that were not corrected since"));
    fail_a_step("", "xid=79"); /* a device without ECC, which has no events of it */
    assert_non_null(strstr(ds_ctx_error(ctx), "; device 0: Xid 79, the device has fallen off"));
}

/* Heads wider than attention.cu has registers for. */
static void what_has_no_kernel_is_refused_by_name(void **state)
{
    static const char wide[] =
        "{\"model_type\":\"llama\",\"vocab_size\":211,\"hidden_size\":16,"
        "\"intermediate_size\":40,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
        "\"num_key_value_heads\":1,\"head_dim\":258,\"max_position_embeddings\":64,"
        "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false}";
    ds_model *model = small_model(ctx, folder, wide);
    ds_engine *engine = NULL;
    dsi_engine_spec spec = small_spec(DS_DTYPE_F32);
    const ds_engine_params params = {.model = model, .seq_length = SMALL_SEQ, .seed = 5};
    (void)state;
    spec.accel = choose("cuda");
    CHECK_FAILS(ctx, dsi_engine_create(ctx, &params, &spec, &engine), DS_ERR_UNSUPPORTED,
                "no kernel of attention");
    ds_model_destroy(&model);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_found_and_says_what_there_is),
        cmocka_unit_test(memory_is_the_devices),
        cmocka_unit_test(stages_and_residencies_have_one_result),
        cmocka_unit_test(logits_of_their_own_have_one_result),
        cmocka_unit_test(other_optimizers_have_one_result),
        cmocka_unit_test(recurrences_have_one_result),
        cmocka_unit_test(experts_have_one_result),
        cmocka_unit_test(an_id_without_a_row_is_named_by_its_step),
        cmocka_unit_test(a_bad_token_is_never_trained_on),
        cmocka_unit_test(a_failed_step_says_what_the_device_reports),
        cmocka_unit_test(what_has_no_kernel_is_refused_by_name),
    };
    if (!standin_load(DS_BINARY_DIR, &standin)) {
        return 1;
    }
    ctx = check_ctx(2);
    folder = scratch_make();
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return failed;
}
