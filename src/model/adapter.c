/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters: made from numbers, or opened from PEFT's folder. See adapter.h. */
#include "model/adapter.h"

#include "base/buf.h"
#include "base/reserved.h"
#include "io/file.h"
#include "io/json_load.h"

#include <stdlib.h>
#include <string.h>

enum { CONFIG_CEILING = 16 << 20 };

static ds_status no_memory(ds_ctx *ctx)
{
    return ds_fail(ctx, DS_ERR_NOMEM, "no memory for an adapter");
}

static ds_status make(ds_ctx *ctx, ds_adapter **adapter_out)
{
    ds_adapter *a = calloc(1, sizeof *a);
    if (a == NULL) {
        return no_memory(ctx);
    }
    a->ctx = ctx;
    *adapter_out = a;
    return DS_OK;
}

void ds_adapter_destroy(ds_adapter **adapter)
{
    ds_adapter *a = adapter != NULL ? *adapter : NULL;
    if (a == NULL) {
        return;
    }
    for (uint32_t i = 0; i < a->n_frozen; ++i) {
        ds_adapter_destroy(&a->frozen[i]);
    }
    for (uint32_t i = 0; i < a->n_others; ++i) {
        ds_adapter_destroy(&a->others[i]);
    }
    free(a->frozen);
    free(a->others);
    free(a->name);
    json_decref(a->config);
    free(a->folder);
    free(a);
    *adapter = NULL;
}

const char *dsi_adapter_folder(const ds_adapter *adapter)
{
    return adapter != NULL ? adapter->folder : NULL;
}

ds_packing dsi_adapter_packing(const ds_adapter *adapter)
{
    return adapter != NULL ? adapter->packing : DS_PACKING_NONE;
}

ds_status ds_adapter_pack_base(ds_adapter *adapter, ds_packing format)
{
    if (format < DS_PACKING_NONE || format >= DS_PACKING_COUNT) {
        return ds_fail(adapter->ctx, DS_ERR_ARG, "ds_adapter_pack_base: %d is no ds_packing",
                       (int)format);
    }
    if (format != DS_PACKING_NONE && adapter->pissa) {
        return ds_fail(adapter->ctx, DS_ERR_UNSUPPORTED,
                       "PiSSA beside a model in few bits (%s): what it takes out of the weights "
                       "would be packed otherwise than what is left; train another method",
                       ds_packing_name(format));
    }
    adapter->packing = format;
    return DS_OK;
}

static json_t *names(const char *const *items, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; ++i) {
        (void)json_array_append_new(list, json_string(items[i]));
    }
    return list;
}

/* Of matrices of experts, "experts.down_proj", and of routers, "mlp.gate.weight", which are
 * parameters and no modules for PEFT. */
static bool is_parameter(const char *target)
{
    const char *dot = strrchr(target, '.');
    if (dot != NULL && strcmp(dot, ".weight") == 0) {
        return true;
    }
    const ptrdiff_t n = dot != NULL ? dot - target : 0;
    static const char scope[] = "experts";
    const ptrdiff_t k = (ptrdiff_t)sizeof scope - 1;
    return n >= k && strncmp(dot - k, scope, (size_t)k) == 0 && (n == k || dot[-k - 1] == '.');
}

/* The targets that are parameters, or those that are not. */
static json_t *targets_of(const ds_adapter_params *p, bool parameters)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->n_targets; ++i) {
        if (is_parameter(p->targets[i]) == parameters) {
            (void)json_array_append_new(list, json_string(p->targets[i]));
        }
    }
    if (parameters && json_array_size(list) == 0) {
        json_decref(list);
        return json_null();
    }
    return list;
}

/* PEFT adds both names of heads for classes, whichever the model has. */
static json_t *saved_of(const ds_adapter_params *p)
{
    json_t *list = names(p->modules_to_save, p->n_modules_to_save);
    if (p->task != DS_TASK_TOKENS) {
        (void)json_array_append_new(list, json_string("classifier"));
        (void)json_array_append_new(list, json_string("score"));
    }
    if (json_array_size(list) == 0) {
        json_decref(list);
        return json_null();
    }
    return list;
}

/* All of PEFT's fields that mean something here; the others are null when they are written. */
static json_t *config_of(const ds_adapter_params *p)
{
    json_t *c = json_object();
    const double alpha = p->alpha > 0.0 ? p->alpha : 2.0 * (double)p->rank;
    const bool whole = alpha == (double)(int64_t)alpha;
    (void)json_object_set_new(c, "peft_type", json_string("LORA"));
    (void)json_object_set_new(c, "task_type",
                              json_string(p->task == DS_TASK_SEQUENCE_CLASSES ? "SEQ_CLS"
                                          : p->task == DS_TASK_TOKEN_CLASSES  ? "TOKEN_CLS"
                                          : p->pairs                          ? "SEQ_2_SEQ_LM"
                                                                              : "CAUSAL_LM"));
    (void)json_object_set_new(c, "base_model_name_or_path",
                              p->base != NULL ? json_string(p->base) : json_null());
    (void)json_object_set_new(c, "r", json_integer(p->rank));
    (void)json_object_set_new(c, "lora_alpha",
                              whole ? json_integer((int64_t)alpha) : json_real(alpha));
    (void)json_object_set_new(c, "lora_dropout", json_real(p->dropout));
    (void)json_object_set_new(c, "target_modules",
                              p->n_targets > 0 ? targets_of(p, false) : json_string("all-linear"));
    (void)json_object_set_new(c, "target_parameters", targets_of(p, true));
    (void)json_object_set_new(c, "modules_to_save", saved_of(p));
    (void)json_object_set_new(c, "use_rslora", json_boolean(p->method == DS_ADAPTER_RSLORA));
    (void)json_object_set_new(c, "use_dora", json_boolean(p->method == DS_ADAPTER_DORA));
    (void)json_object_set_new(c, "bias", json_string("none"));
    (void)json_object_set_new(c, "init_lora_weights",
                              p->method == DS_ADAPTER_PISSA ? json_string("pissa") : json_true());
    return c;
}

ds_status ds_adapter_create(ds_ctx *ctx, const ds_adapter_params *params, ds_adapter **adapter_out)
{
    ds_adapter *a = NULL;
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_adapter_params", params));
    if (params->method < DS_ADAPTER_LORA || params->method > DS_ADAPTER_PISSA) {
        return ds_fail(ctx, DS_ERR_ARG, "ds_adapter_params: there is no method %d",
                       (int)params->method);
    }
    if (params->rank < 1 || params->alpha < 0.0 || !(params->dropout >= 0.0) ||
        params->dropout >= 1.0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_adapter_params: rank %lld, alpha %g, dropout %g: expected a rank of 1 "
                       "or more, an alpha of 0 or more, a dropout from 0 to below 1",
                       (long long)params->rank, params->alpha, params->dropout);
    }
    DS_TRY(make(ctx, &a));
    a->config = config_of(params);
    const ds_status status = dsi_adapter_check(a, "ds_adapter_params");
    if (status < 0) {
        ds_adapter_destroy(&a);
        return status;
    }
    *adapter_out = a;
    return DS_OK;
}

ds_status dsi_adapter_parse(ds_ctx *ctx, const char *label, const char *text,
                            ds_adapter **adapter_out)
{
    ds_adapter *a = NULL;
    DS_TRY(make(ctx, &a));
    ds_status status = dsi_json_load(ctx, label, text, strlen(text), 0, DS_ERR_FORMAT, &a->config);
    status = status < 0 ? status : dsi_adapter_check(a, label);
    if (status < 0) {
        ds_adapter_destroy(&a);
        return status;
    }
    *adapter_out = a;
    return DS_OK;
}

static ds_status read_config(ds_adapter *a, const char *path)
{
    dsi_buf text = dsi_buf_make(CONFIG_CEILING);
    ds_status status = dsi_buf_read_file(a->ctx, path, &text);
    if (status == DS_OK) {
        status = dsi_json_load(a->ctx, path, dsi_buf_text(&text), text.size, 0, DS_ERR_FORMAT,
                               &a->config);
    }
    dsi_buf_free(&text);
    return status < 0 ? status : dsi_adapter_check(a, path);
}

ds_status ds_adapter_open(ds_ctx *ctx, const char *folder, ds_adapter **adapter_out)
{
    ds_adapter *a = NULL;
    DS_TRY(make(ctx, &a));
    char *path = dsi_path_join(folder, DSI_ADAPTER_CONFIG);
    a->folder = strdup(folder);
    ds_status status = path != NULL && a->folder != NULL ? read_config(a, path) : no_memory(ctx);
    free(path);
    if (status < 0) {
        ds_adapter_destroy(&a);
        return status;
    }
    *adapter_out = a;
    return DS_OK;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A list of names in an order of its own, since PEFT keeps them as a set; others as they are. */
static json_t *sorted(const json_t *value)
{
    const size_t n = json_array_size(value);
    const char **items = calloc(n + 1, sizeof *items);
    json_t *list = json_array();
    for (size_t i = 0; i < n && items != NULL; ++i) {
        items[i] = json_string_value(json_array_get(value, i));
        if (items[i] == NULL) {
            free(items);
            json_decref(list);
            return json_copy((json_t *)(uintptr_t)value);
        }
    }
    if (items != NULL) {
        qsort(items, n, sizeof *items, compare_texts);
    }
    for (size_t i = 0; i < n && items != NULL; ++i) {
        (void)json_array_append_new(list, json_string(items[i]));
    }
    free(items);
    return list;
}

ds_status ds_adapter_print(const ds_adapter *a, char **text_out)
{
    dsi_buf text = dsi_buf_make(CONFIG_CEILING);
    static const char *const keys[] = {"target_modules",  "target_parameters",  "exclude_modules",
                                       "modules_to_save", "rank_pattern",       "alpha_pattern",
                                       "layers_pattern",  "layers_to_transform"};
    dsi_buf_printf(&text, "%s%s: rank %lld, alpha %g, dropout %g",
                   a->dora    ? "DoRA, "
                   : a->pissa ? "PiSSA, "
                              : "",
                   a->rslora ? "rsLoRA" : "LoRA", (long long)a->rank, a->alpha, a->dropout);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i) {
        const json_t *value = json_object_get(a->config, keys[i]);
        json_t *shown = json_is_array(value) ? sorted(value) : json_deep_copy(value);
        char *one = value != NULL && !json_is_null(value)
                        ? json_dumps(shown, JSON_ENCODE_ANY | JSON_SORT_KEYS)
                        : NULL;
        json_decref(shown);
        if (one != NULL && strcmp(one, "{}") != 0 && strcmp(one, "[]") != 0) {
            dsi_buf_printf(&text, ", %s %s", keys[i], one);
        }
        free(one);
    }
    *text_out = text.failed ? NULL : strdup(dsi_buf_text(&text));
    dsi_buf_free(&text);
    return *text_out != NULL ? DS_OK : no_memory(a->ctx);
}
