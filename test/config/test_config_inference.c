/* SPDX-License-Identifier: Apache-2.0 */
/* Files of inference engines and of MII: which one a file is of, what its keys come to, what is
 * refused; and random files from the tables: what is valid is taken and is in the values, one
 * unknown key or one that needs PyTorch is refused by name. */
#include "common/check.h"
#include "config/config_values.h"
#include "config/option.h"

#include <deepspeed/config.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_config *load(ds_ctx *ctx, const char *text)
{
    const ds_config_params any = {.kind = DS_CONFIG_ANY};
    ds_config *config = NULL;
    CHECK_OK(ctx, ds_config_load_text(ctx, "ds.json", text, strlen(text), &any, &config));
    return config;
}

static void tells_what_a_file_is_of(void **state)
{
    static const struct {
        const char *text;
        ds_config_kind kind;
    } rows[] = {
        {"{\"dtype\": \"bf16\", \"max_out_tokens\": 77}", DS_CONFIG_INFERENCE},
        {"{\"tp\": {\"tp_size\": 1}}", DS_CONFIG_INFERENCE},
        {"{\"tp\": {\"tp_size\": 1}, \"manager\": {}}", DS_CONFIG_INFERENCE_V2},
        {"{\"model_name_or_path\": \"m\", \"replica_num\": 2}", DS_CONFIG_MII},
        {"{\"model_config\": {\"model_name_or_path\": \"m\"}}", DS_CONFIG_MII},
        {"{\"train_batch_size\": 1, \"zero_optimization\": {\"stage\": 3}}", DS_CONFIG_TRAINING},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        ds_config *config = load(*state, rows[i].text);
        assert_int_equal(ds_config_get_kind(config), rows[i].kind);
        CHECK_OK(*state, ds_config_resolve(config, 1, NULL));
        ds_config_destroy(&config);
    }
}

static void comes_to_values(void **state)
{
    static const struct {
        const char *text;
        uint32_t ranks;
        ds_dtype dtype, quantize;
        int64_t max_length, max_sequences, max_batch_tokens, kv_size;
    } rows[] = {
        {"{}", 1, DS_DTYPE_F16, 0, 1024, 0, 0, 0},
        {"{\"dtype\": \"torch.float32\", \"max_tokens\": 9}", 1, DS_DTYPE_F32, 0, 9, 0, 0, 0},
        {"{\"dtype\": \"bfloat\"}", 1, DS_DTYPE_BF16, 0, 1024, 0, 0, 0},
        {"{\"dtype\": \"int8\"}", 1, DS_DTYPE_F16, DS_DTYPE_Q8_0, 1024, 0, 0, 0},
        {"{\"dtype\": \"int8\", \"quant\": {\"weight\": {\"num_bits\": 4, \"q_type\": "
         "\"asymmetric\"}}}",
         1, DS_DTYPE_F16, DS_DTYPE_Q4_1, 1024, 0, 0, 0},
        {"{\"dtype\": \"int8\", \"quant\": {\"weight\": {\"num_bits\": 5}}}", 1, DS_DTYPE_F16,
         DS_DTYPE_Q5_0, 1024, 0, 0, 0},
        {"{\"dtype\": \"int8\", \"quant\": {\"enabled\": false}}", 1, DS_DTYPE_F16, 0, 1024, 0, 0,
         0},
        {"{\"dtype\": \"fp16\", \"mp_size\": 2, \"ep_size\": 2}", 2, DS_DTYPE_F16, 0, 1024, 0, 0,
         0},
        {"{\"state_manager\": {}}", 1, 0, 0, 8192, 512, 768, 1000000000},
        {"{\"manager\": {\"max_context\": 5, \"memory_config\": {\"mode\": \"allocate\", \"size\": "
         "3}}, \"quantization\": {\"quantization_mode\": \"wf6af16\"}}",
         1, DS_DTYPE_F16, DS_DTYPE_Q6_K, 5, 512, 768, 3},
        {"{\"model_name_or_path\": \"m\", \"tensor_parallel\": 2, \"quantization_mode\": "
         "\"wf6af16\", \"max_length\": 6}",
         2, DS_DTYPE_F16, DS_DTYPE_Q6_K, 6, 512, 768, 1000000000},
        {"{\"model_config\": {\"model_name_or_path\": \"m\", \"inference_engine_config\": "
         "{\"state_manager\": {\"max_context\": 7, \"max_ragged_sequence_count\": 4}}}}",
         1, 0, 0, 7, 4, 768, 1000000000},
        /* what the file says, not the other place's default */
        {"{\"model_config\": {\"model_name_or_path\": \"m\"}, \"max_length\": 6, "
         "\"inference_engine_config\": {\"state_manager\": {\"max_context\": 9, "
         "\"max_ragged_sequence_count\": 4}}}",
         1, 0, 0, 6, 4, 768, 1000000000},
        {"{\"max_length\": 6, \"model_config\": {\"inference_engine_config\": "
         "{\"state_manager\": {\"max_context\": 9}}}}",
         1, 0, 0, 6, 512, 768, 1000000000},
        {"{\"dtype\": \"fp32\", \"tensor_parallel\": {\"enabled\": false}}", 1, DS_DTYPE_F32, 0,
         1024, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        ds_config *config = load(*state, rows[i].text);
        CHECK_OK(*state, ds_config_resolve(config, rows[i].ranks, NULL));
        const ds_config_inference *v = &dsi_config_values(config)->inference;
        assert_int_equal(v->dtype, rows[i].dtype);
        assert_int_equal(v->quantize, rows[i].quantize);
        assert_int_equal(v->max_length, rows[i].max_length);
        assert_int_equal(v->max_sequences, rows[i].max_sequences);
        assert_int_equal(v->max_batch_tokens, rows[i].max_batch_tokens);
        assert_int_equal(v->kv_size, rows[i].kv_size);
        ds_config_destroy(&config);
    }
}

static void refuses_by_name(void **state)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"{\"tp\": {\"tp_size\": 3}}",
         "tensor_parallel.tp_size: expected the number of ranks that are started, 2, found 3"},
        {"{\"tp\": {\"tp_size\": 2}, \"enable_cuda_graph\": true}",
         "enable_cuda_graph: expected false"},
        {"{\"tensor_parallel\": {\"enabled\": false}}",
         "tensor_parallel.enabled: expected the number of ranks that are started, 2, found 1"},
        {"{\"mp_size\": 2, \"tensor_parallel\": {\"tp_size\": 1}}",
         "mp_size: expected the value of tensor_parallel.tp_size, found 2"},
        {"{\"model_config\": {\"max_length\": 8}, \"max_length\": 9}",
         "model_config.max_length: expected the value of max_length, found 8"},
        {"{\"max_length\": 9, \"model_config\": {\"inference_engine_config\": "
         "{\"state_manager\": {\"max_context\": 8}}}}",
         "max_length: expected at most "
         "model_config.inference_engine_config.state_manager.max_context = 8, found 9"},
        {"{\"checkpoint_config\": {\"base_dir\": [1], \"checkpoint_dir\": \"x\"}}",
         "checkpoint_config.base_dir: expected a string, or null, found"},
        {"{\"ep_size\": 4}", "ep_size: expected 1, or the number of ranks"},
        {"{\"dtype\": \"int8\", \"quant\": {\"weight\": {\"num_bits\": 7}}}",
         "quant.weight.num_bits: expected 4, 5, 6 or 8, found 7"},
        {"{\"dtype\": \"int8\", \"quant\": {\"activation\": {\"enabled\": false}}}",
         "quant.activation.enabled: expected true"},
        {"{\"min_out_tokens\": 9, \"max_out_tokens\": 8}", "min_out_tokens: expected at most"},
        {"{\"dtype\": \"fp16\", \"mpu\": {}}", "mpu: not available"},
        {"{\"injection_policy\": {}, \"kernel_inject\": true}", "injection_policy: expected none"},
        {"{\"moe_experts\": [2, 4]}", "moe_experts: expected the same number for all layers"},
        {"{\"state_manager\": {\"max_ragged_sequence_count\": 900}}",
         "state_manager.max_ragged_sequence_count: expected at most"},
        {"{\"model_name_or_path\": \"m\", \"deployment_type\": \"aml\"}",
         "deployment_type: not available"},
        {"{\"model_name_or_path\": \"m\", \"replica_nun\": 2}",
         "replica_nun: unknown key; did you mean \"replica_num\"?"},
        {"{\"dtype\": \"fp16\", \"zero\": {\"stage\": 3, \"offload_param\": {\"device\": "
         "\"disk\"}}}",
         "zero.offload_param.device: expected"},
        {"{\"dtype\": \"fp16\", \"checkpoint\": {\"type\": \"Megatron\", \"checkpoints\": [], "
         "\"version\": 1}}",
         "checkpoint.type: expected"},
    };
    const ds_config_params any = {.kind = DS_CONFIG_ANY};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        ds_config *config = NULL;
        ds_status status = ds_config_load_text(*state, "ds.json", rows[i].text,
                                               strlen(rows[i].text), &any, &config);
        status = status < 0 ? status : ds_config_resolve(config, 2, NULL);
        assert_int_equal(status, DS_ERR_CONFIG);
        if (strstr(ds_ctx_error(*state), rows[i].message) == NULL) {
            fail_msg("%s: %s", rows[i].text, ds_ctx_error(*state));
        }
        ds_config_destroy(&config);
    }
}

static void places_weights(void **state)
{
    ds_config *config = load(*state, "{\"dtype\": \"fp16\", \"zero\": {\"stage\": 3, "
                                     "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": "
                                     "\"/disk\", \"max_in_cpu\": 5}}}");
    CHECK_OK(*state, ds_config_resolve(config, 1, NULL));
    const char *path = NULL;
    int64_t most = 0;
    assert_non_null(dsi_config_away(config));
    CHECK_OK(*state, ds_config_get_text(dsi_config_away(config),
                                        "zero_optimization.offload_param.nvme_path", &path));
    CHECK_OK(*state, ds_config_get_int(dsi_config_away(config),
                                       "zero_optimization.offload_param.max_in_cpu", &most));
    assert_string_equal(path, "/disk");
    assert_int_equal(most, 5);
    ds_config_destroy(&config);
    config = load(*state, "{\"dtype\": \"fp16\", \"zero\": {\"stage\": 3}}");
    CHECK_OK(*state, ds_config_resolve(config, 1, NULL));
    assert_null(dsi_config_away(config));
    ds_config_destroy(&config);
}

/* ---- random files ---------------------------------------------------------------------------- */

typedef struct maker {
    uint64_t seed;
    char text[16384];
    size_t n;
    /* whole numbers with a field that were written: where they must be */
    struct {
        size_t field;
        int64_t value;
    } wants[64];
    size_t n_wants;
    const char *refused; /* a key that must be named; NULL: the file is valid */
} maker;

static uint64_t draw(maker *m, uint64_t n)
{
    m->seed = m->seed * 6364136223846793005u + 1442695040888963407u;
    return (m->seed >> 33) % n;
}

static void put(maker *m, const char *format, ...) DS_PRINTF(2, 3);
static void put(maker *m, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    m->n += (size_t)vsnprintf(m->text + m->n, sizeof m->text - m->n, format, args);
    va_end(args);
    assert_true(m->n < sizeof m->text);
}

/* Keys that a rule ties to another, and what holds for all. */
static bool special(maker *m, const char *key)
{
    static const struct {
        const char *key, *value;
    } rows[] = {{"min_out_tokens", "2"},  {"max_ragged_sequence_count", "8"},
                {"tp_size", "1"},         {"mp_size", "1"},
                {"tensor_parallel", "1"}, {"ep_size", "1"},
                {"moe_experts", "[4]"},   {"num_bits", "8"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        if (strcmp(rows[i].key, key) == 0) {
            put(m, "%s", rows[i].value);
            return true;
        }
    }
    return false;
}

static bool is_left_out(const char *key)
{
    return dsi_choice_index("injection_policy|injection_policy_tuple|checkpoint_dir|max_length",
                            key, false) >= 0;
}

static void put_object(maker *m, const dsi_section *section);

static void put_whole(maker *m, const dsi_option *row)
{
    const int64_t least = row->has_min ? (int64_t)row->min : 0;
    const int64_t most = row->has_max ? (int64_t)row->max : least + 4096;
    const bool limits = dsi_choice_index("max_tracked_sequences|max_ragged_batch_size", row->key,
                                         false) >= 0; /* 512 sequences, where none are said */
    const int64_t from = limits                    ? 512
                         : least < 16 && most > 32 ? 16
                                                   : least; /* above what special() gives */
    const int64_t value = from + (int64_t)draw(m, (uint64_t)(most - from) + 1);
    put(m, "%" PRId64, value);
    if (row->field != 0) {
        m->wants[m->n_wants].field = row->field - 1;
        m->wants[m->n_wants++].value = value;
    }
}

static void put_value(maker *m, const dsi_option *row)
{
    char choice[64];
    int n = 0;
    if (row->type != DSI_OPT_SECTION && special(m, row->key)) {
        return;
    }
    switch (row->type) {
    case DSI_OPT_BOOL:
        put(m, "%s",
            row->force == DSI_NOT_BUILT || strcmp(row->key, "enabled") == 0 ? row->def
            : draw(m, 2) == 0                                               ? "true"
                                                                            : "false");
        break;
    case DSI_OPT_INT:
        put_whole(m, row);
        break;
    case DSI_OPT_ENUM:
        while (row->force != DSI_NOT_BUILT &&
               dsi_choice_at(row->choices, n, choice, sizeof choice)) {
            ++n;
        }
        (void)dsi_choice_at(row->choices, n == 0 ? 0 : (int)draw(m, (uint64_t)n), choice,
                            sizeof choice);
        put(m, "\"%s\"", choice);
        break;
    case DSI_OPT_TEXT:
        put(m, "\"t%" PRIu64 "\"", draw(m, 100));
        break;
    case DSI_OPT_TEXTS:
        put(m, "[\"a.bin\", \"b.bin\"]");
        break;
    case DSI_OPT_SECTION:
        if (row->section == &dsi_section_zero) {
            put(m, "{\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}}");
        } else {
            put_object(m, row->section);
        }
        break;
    default:
        put(m, "%s", row->def != NULL ? row->def : "1");
    }
}

/* Keys of MII's model: at the top, or in model_config. */
static bool is_elsewhere(const dsi_section *section, const dsi_option *row, bool inner)
{
    const dsi_section *model = NULL;
    bool of_model = false;
    for (uint32_t i = 0; section == &dsi_section_mii && i < section->n_rows; ++i) {
        model =
            strcmp(section->rows[i].key, "model_config") == 0 ? section->rows[i].section : model;
    }
    for (uint32_t i = 0; model != NULL && i < model->n_rows; ++i) {
        of_model = of_model || strcmp(model->rows[i].key, row->key) == 0;
    }
    return inner ? of_model : model != NULL && row->section == model;
}

static void put_object(maker *m, const dsi_section *section)
{
    const bool inner = draw(m, 2) == 0;
    bool first = true;
    put(m, "{");
    for (uint32_t i = 0; i < section->n_rows; ++i) {
        const dsi_option *row = &section->rows[i];
        if (is_left_out(row->key) || is_elsewhere(section, row, inner) ||
            ((row->flags & DSI_OPT_REQUIRED) == 0 && draw(m, 3) != 0)) {
            continue;
        }
        char name[64];
        const bool other = row->aliases != NULL && draw(m, 3) == 0 &&
                           dsi_choice_at(row->aliases, 0, name, sizeof name);
        put(m, "%s\"%s\": ", first ? "" : ", ", other ? name : row->key);
        put_value(m, row);
        first = false;
    }
    if (m->refused != NULL && draw(m, 2) == 0) {
        put(m, "%s\"%s\": 1", first ? "" : ", ", m->refused);
    }
    put(m, "}");
}

static const dsi_section *const roots[] = {&dsi_section_inference, &dsi_section_inference_v2,
                                           &dsi_section_mii};

static void takes_random_files(void **state)
{
    enum { FILES = 3000 };
    size_t n_valid = 0;
    size_t n_refused = 0;
    for (uint64_t seed = 0; seed < FILES; ++seed) {
        const int kind = (int)(seed % 3);
        maker m = {.seed = seed * 7919 + 13, .refused = seed % 4 == 0 ? "strange_key" : NULL};
        put_object(&m, roots[kind]);
        const ds_config_params params = {.kind = (ds_config_kind)(DS_CONFIG_INFERENCE + kind)};
        const bool valid = strstr(m.text, "strange_key") == NULL;
        ds_config *config = NULL;
        ds_status status = ds_config_load_text(*state, "ds.json", m.text, m.n, &params, &config);
        status = status < 0 ? status : ds_config_resolve(config, 1, NULL);
        if ((status >= 0) != valid ||
            (!valid && strstr(ds_ctx_error(*state), "strange_key: unknown key") == NULL)) {
            fail_msg("%s: %s", m.text, status < 0 ? ds_ctx_error(*state) : "taken");
        }
        for (size_t i = 0; valid && i < m.n_wants; ++i) {
            int64_t got = 0;
            memcpy(&got, (const char *)dsi_config_values(config) + m.wants[i].field, sizeof got);
            assert_int_equal(got, m.wants[i].value);
        }
        n_valid += valid ? 1 : 0;
        n_refused += valid ? 0 : 1;
        ds_config_destroy(&config);
    }
    assert_true(n_valid > FILES / 2 && n_refused > FILES / 16);
}

/* Each key does something, or says why not. */
static void no_key_is_only_checked(const dsi_section *section)
{
    for (uint32_t i = 0; i < section->n_rows; ++i) {
        const dsi_option *row = &section->rows[i];
        if (row->force != DSI_IN_FORCE && (row->force == DSI_PART || row->note == NULL)) {
            fail_msg("%s.%s is neither in force nor says why not", section->path, row->key);
        }
        if (row->section != NULL && row->section != &dsi_section_zero) {
            no_key_is_only_checked(row->section);
        }
    }
}

static void leaves_no_key_out(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof roots / sizeof roots[0]; ++i) {
        no_key_is_only_checked(roots[i]);
    }
}

int main(void)
{
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(tells_what_a_file_is_of, ctx),
        cmocka_unit_test_prestate(comes_to_values, ctx),
        cmocka_unit_test_prestate(refuses_by_name, ctx),
        cmocka_unit_test_prestate(places_weights, ctx),
        cmocka_unit_test_prestate(takes_random_files, ctx),
        cmocka_unit_test_prestate(leaves_no_key_out, ctx),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
