/* SPDX-License-Identifier: Apache-2.0 */
/* The fields of adapter_config.json (PEFT 0.21's LoraConfig): in force, without effect here, or
 * refused by name. See adapter.h.
 *
 * A field that is in no row comes from a newer version: where it holds anything but null, false,
 * "", [] or {} it is refused, since it might change what the weights mean. A file that is read is
 * written back with all of its fields.
 */
#include "model/adapter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Types of a value, to be or-ed. */
enum { NONE = 1, BOOL = 2, INT = 4, REAL = 8, TEXT = 16, TEXTS = 32, INTS = 64, NUMBERS = 128 };

/* Fields that are in force; what is not of these types is ERR_FORMAT. */
static const struct {
    const char *key;
    unsigned types;
    const char *expected;
} used[] = {
    {"peft_type", TEXT, "\"LORA\""},
    {"task_type", NONE | TEXT, "\"CAUSAL_LM\", \"SEQ_2_SEQ_LM\", \"SEQ_CLS\" or \"TOKEN_CLS\""},
    {"r", INT, "a whole number"},
    {"lora_alpha", INT | REAL, "a number"},
    {"lora_dropout", NONE | INT | REAL, "a number"},
    {"target_modules", NONE | TEXT | TEXTS, "a list of names, an expression, or \"all-linear\""},
    {"target_parameters", NONE | TEXTS, "a list of names"},
    {"exclude_modules", NONE | TEXT | TEXTS, "a list of names, or an expression"},
    {"modules_to_save", NONE | TEXTS, "a list of names"},
    {"rank_pattern", NONE | NUMBERS, "an object of numbers"},
    {"alpha_pattern", NONE | NUMBERS, "an object of numbers"},
    {"layers_to_transform", NONE | INT | INTS, "a whole number, or a list of them"},
    {"layers_pattern", NONE | TEXT | TEXTS, "a name, or a list of names"},
    {"use_rslora", NONE | BOOL, "true or false"},
    {"use_dora", NONE | BOOL, "true or false"},
    {"bias", NONE | TEXT, "\"none\""},
    {"init_lora_weights", NONE | BOOL | TEXT, "true, false or a name"},
};

/* Fields that change nothing of what is computed here, whatever they hold. */
static const char *const idle[] = {
    "auto_mapping", /* a class of transformers */
    "base_model_name_or_path",
    "corda_config", /* with init_lora_weights "corda" alone; likewise the next ones */
    "eva_config",
    "lora_ga_config",
    "loftq_config",
    "fan_in_fan_out", /* how the base stores its weights: known from the model */
    "inference_mode",
    "megatron_core", /* with megatron_config alone */
    "peft_version",
    "qalora_group_size", /* with use_qalora alone */
    "revision",
    "runtime_config",
};

/* Other kinds of LoRA, which PEFT makes of whatever is not null: of {} with its defaults. */
static const char *const variants[] = {"alora_invocation_tokens", "arrow_config", "kasa_config",
                                       "monteclora_config",       "use_bdlora",   "velora_config"};

static bool all_of(const json_t *value, unsigned type)
{
    const char *key;
    json_t *one;
    if (type == NUMBERS) {
        json_object_foreach((json_t *)(uintptr_t)value, key, one)
        {
            if (!json_is_number(one)) {
                return false;
            }
        }
        return json_is_object(value);
    }
    for (size_t i = 0; i < json_array_size(value); ++i) {
        one = json_array_get(value, i);
        if (type == TEXTS ? !json_is_string(one) : !json_is_integer(one)) {
            return false;
        }
    }
    return json_is_array(value);
}

static bool is_one_of(const json_t *value, unsigned types)
{
    return ((types & NONE) != 0 && (value == NULL || json_is_null(value))) ||
           ((types & BOOL) != 0 && json_is_boolean(value)) ||
           ((types & INT) != 0 && json_is_integer(value)) ||
           ((types & REAL) != 0 && json_is_real(value)) ||
           ((types & TEXT) != 0 && json_is_string(value)) ||
           ((types & TEXTS) != 0 && all_of(value, TEXTS)) ||
           ((types & INTS) != 0 && all_of(value, INTS)) ||
           ((types & NUMBERS) != 0 && all_of(value, NUMBERS));
}

static bool is_empty(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* With the field's value, cut short. */
static ds_status refuse(const ds_adapter *a, ds_status status, const char *label, const char *key,
                        const char *why)
{
    char *value = json_dumps(json_object_get(a->config, key), JSON_ENCODE_ANY | JSON_COMPACT);
    ds_status made = ds_fail(a->ctx, status, "%s: \"%s\": %.120s: %s", label, key,
                             value != NULL ? value : "missing", why);
    free(value);
    return made;
}

static ds_status check_types(const ds_adapter *a, const char *label)
{
    char why[160];
    for (size_t i = 0; i < sizeof used / sizeof used[0]; ++i) {
        if (!is_one_of(json_object_get(a->config, used[i].key), used[i].types)) {
            (void)snprintf(why, sizeof why, "expected %s", used[i].expected);
            return refuse(a, DS_ERR_FORMAT, label, used[i].key, why);
        }
    }
    return DS_OK;
}

static ds_status check_others(const ds_adapter *a, const char *label)
{
    const char *key;
    json_t *value;
    json_object_foreach(a->config, key, value)
    {
        bool known = is_empty(value);
        for (size_t i = 0; i < sizeof variants / sizeof variants[0] && known; ++i) {
            known = json_is_null(value) || strcmp(key, variants[i]) != 0;
        }
        for (size_t i = 0; i < sizeof used / sizeof used[0] && !known; ++i) {
            known = strcmp(key, used[i].key) == 0;
        }
        for (size_t i = 0; i < sizeof idle / sizeof idle[0] && !known; ++i) {
            known = strcmp(key, idle[i]) == 0;
        }
        if (!known) {
            return refuse(a, DS_ERR_UNSUPPORTED, label, key,
                          "this field of PEFT is not available here, or not known");
        }
    }
    return DS_OK;
}

static const char *text_of(const ds_adapter *a, const char *key)
{
    const char *text = json_string_value(json_object_get(a->config, key));
    return text != NULL ? text : "";
}

/* How A and B begin is over when weights are read, unless PEFT changes the base with it. */
static ds_status check_init(ds_adapter *a, const char *label)
{
    const json_t *init = json_object_get(a->config, "init_lora_weights");
    const char *text = json_string_value(init);
    if (text == NULL) {
        return DS_OK;
    }
    a->gaussian = strcasecmp(text, "gaussian") == 0;
    a->pissa = strcmp(text, "pissa") == 0;
    return (a->pissa && a->folder == NULL) || a->gaussian || strcmp(text, "eva") == 0 ||
                   strcmp(text, "orthogonal") == 0
               ? DS_OK
               : refuse(a, DS_ERR_UNSUPPORTED, label, "init_lora_weights",
                        "PEFT changes the weights of the base when it loads such an adapter; write "
                        "it as one of plain LoRA (save_pretrained with "
                        "path_initial_model_for_weight_conversion)");
}

/* What PEFT does not do to parameters (lora/layer.py, ParamWrapper). */
static ds_status check_parameters(const ds_adapter *a, const char *label)
{
    const char *why = a->dropout > 0.0 ? "no lora_dropout"
                      : a->dora        ? "no use_dora"
                      : a->pissa       ? "no PiSSA"
                                       : NULL;
    char text[120];
    if (why == NULL || is_empty(json_object_get(a->config, "target_parameters"))) {
        return DS_OK;
    }
    (void)snprintf(text, sizeof text, "there is %s on parameters, as in PEFT; leave one of the two",
                   why);
    return refuse(a, DS_ERR_UNSUPPORTED, label, "target_parameters", text);
}

static ds_status check_values(ds_adapter *a, const char *label)
{
    const json_t *dropout = json_object_get(a->config, "lora_dropout");
    const json_t *targets = json_object_get(a->config, "target_modules");
    const char *task = text_of(a, "task_type");
    const char *bias = text_of(a, "bias");
    if (strcmp(text_of(a, "peft_type"), "LORA") != 0) {
        return refuse(a, DS_ERR_UNSUPPORTED, label, "peft_type", "adapters are LORA here");
    }
    a->any_task = task[0] == '\0';
    a->task = strcmp(task, "SEQ_CLS") == 0     ? DS_TASK_SEQUENCE_CLASSES
              : strcmp(task, "TOKEN_CLS") == 0 ? DS_TASK_TOKEN_CLASSES
                                               : DS_TASK_TOKENS;
    a->pairs = strcmp(task, "SEQ_2_SEQ_LM") == 0;
    if (!a->any_task && !a->pairs && a->task == DS_TASK_TOKENS && strcmp(task, "CAUSAL_LM") != 0) {
        return refuse(a, DS_ERR_UNSUPPORTED, label, "task_type",
                      "models are CAUSAL_LM here, T5 is SEQ_2_SEQ_LM, and encoders are SEQ_CLS or "
                      "TOKEN_CLS");
    }
    if (bias[0] != '\0' && strcmp(bias, "none") != 0) {
        return refuse(a, DS_ERR_UNSUPPORTED, label, "bias",
                      "biases of the base stay as they are here (\"none\")");
    }
    a->rank = json_integer_value(json_object_get(a->config, "r"));
    a->alpha = json_number_value(json_object_get(a->config, "lora_alpha"));
    a->dropout = json_is_number(dropout) ? json_number_value(dropout) : 0.0;
    a->rslora = json_is_true(json_object_get(a->config, "use_rslora"));
    a->dora = json_is_true(json_object_get(a->config, "use_dora"));
    a->all_linear =
        json_is_string(targets) && strcasecmp(json_string_value(targets), "all-linear") == 0;
    if (a->rank < 1 || a->rank > INT32_MAX) {
        return refuse(a, DS_ERR_FORMAT, label, "r", "expected 1 or more");
    }
    if (!isfinite(a->alpha)) {
        return refuse(a, DS_ERR_FORMAT, label, "lora_alpha", "expected a finite number");
    }
    if (!(a->dropout >= 0.0) || a->dropout >= 1.0) {
        return refuse(a, DS_ERR_FORMAT, label, "lora_dropout", "expected 0 or more, below 1");
    }
    if (is_empty(targets) && is_empty(json_object_get(a->config, "target_parameters"))) {
        return refuse(a, DS_ERR_FORMAT, label, "target_modules", "it names no module");
    }
    DS_TRY(check_init(a, label));
    return check_parameters(a, label);
}

static ds_status check_patterns(const ds_adapter *a, const char *label)
{
    const bool layers = !is_empty(json_object_get(a->config, "layers_to_transform")) ||
                        !is_empty(json_object_get(a->config, "layers_pattern"));
    const char *key;
    json_t *value;
    if (layers && json_is_string(json_object_get(a->config, "target_modules"))) {
        return refuse(a, DS_ERR_FORMAT, label, "target_modules",
                      "layers_to_transform and layers_pattern go with a list of names alone");
    }
    if (!is_empty(json_object_get(a->config, "layers_pattern")) &&
        is_empty(json_object_get(a->config, "layers_to_transform"))) {
        return refuse(a, DS_ERR_FORMAT, label, "layers_pattern",
                      "it goes with layers_to_transform alone");
    }
    json_object_foreach(json_object_get(a->config, "rank_pattern"), key, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 1 ||
            json_integer_value(value) > INT32_MAX) {
            return refuse(a, DS_ERR_FORMAT, label, "rank_pattern",
                          "expected whole numbers of 1 or more");
        }
    }
    return DS_OK;
}

ds_status dsi_adapter_check(ds_adapter *a, const char *label)
{
    if (!json_is_object(a->config)) {
        return ds_fail(a->ctx, DS_ERR_FORMAT, "%s must hold an object", label);
    }
    if (json_object_get(a->config, "peft_type") == NULL) {
        return ds_fail(a->ctx, DS_ERR_FORMAT, "%s: \"peft_type\" is missing: is it PEFT's?", label);
    }
    if (strcmp(text_of(a, "peft_type"), "LORA") == 0) {
        DS_TRY(check_types(a, label));
    }
    DS_TRY(check_values(a, label));
    DS_TRY(check_patterns(a, label));
    return check_others(a, label);
}

/* scale·B·A stays as it is where A and B are of twice the rank. */
static void double_rank(json_t *c, bool rslora)
{
    const double alpha = json_number_value(json_object_get(c, "lora_alpha"));
    (void)json_object_set_new(c, "r",
                              json_integer(2 * json_integer_value(json_object_get(c, "r"))));
    (void)json_object_set_new(c, "lora_alpha", json_real(alpha * (rslora ? sqrt(2.0) : 2.0)));
    (void)json_object_set_new(c, "init_lora_weights", json_true());
}

ds_status dsi_adapter_folder_text(const ds_adapter *a, bool transposed, char **text_out)
{
    ds_adapter plain = *a;
    plain.config = json_deep_copy(a->config);
    if (a->pissa) {
        double_rank(plain.config, a->rslora);
    }
    const ds_status status = dsi_adapter_config_text(&plain, transposed, text_out);
    json_decref(plain.config);
    return status;
}

ds_status dsi_adapter_config_text(const ds_adapter *a, bool transposed, char **text_out)
{
    json_t *c = json_deep_copy(a->config);
    (void)json_object_set_new(c, "inference_mode", json_true());
    (void)json_object_set_new(c, "fan_in_fan_out", json_boolean(transposed));
    *text_out = json_dumps(c, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    json_decref(c);
    return *text_out != NULL ? DS_OK
                             : ds_fail(a->ctx, DS_ERR_NOMEM, "no memory to save an adapter");
}
