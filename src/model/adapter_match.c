/* SPDX-License-Identifier: Apache-2.0 */
/* Which modules an adapter means, by PEFT's rules (tuners_utils.py: check_target_module_exists;
 * other.py: get_pattern_key and _set_trainable). Expressions are Python's, read by PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/adapter.h"

#include "base/buf.h"

#include <math.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERN_CEILING = 1 << 20 };

typedef struct matcher {
    const ds_adapter *adapter;
    const char *module;
    ds_status status; /* the first error */
} matcher;

/* Whether before + pattern + after matches the module, from its first letter on. whole: to its
 * last. *number_out: the group "idx", as a number; may be NULL. */
static bool search(matcher *m, const char *key, const char *before, const char *pattern,
                   const char *after, bool whole, int64_t *number_out)
{
    dsi_buf text = dsi_buf_make(PATTERN_CEILING);
    int error = 0;
    PCRE2_SIZE at = 0;
    bool found = false;
    if (m->status < 0) {
        return false;
    }
    dsi_buf_printf(&text, "%s%s%s", before, pattern, after);
    pcre2_code *code =
        text.failed ? NULL
                    : pcre2_compile((PCRE2_SPTR)dsi_buf_text(&text), text.size,
                                    PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_DOLLAR_ENDONLY |
                                        (whole ? PCRE2_ENDANCHORED : 0),
                                    &error, &at, NULL);
    pcre2_match_data *data = code != NULL ? pcre2_match_data_create_from_pattern(code, NULL) : NULL;
    if (data == NULL) {
        char why[160] = "no memory";
        (void)(code == NULL && error != 0 &&
               pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why));
        m->status = ds_fail(m->adapter->ctx, DS_ERR_FORMAT,
                            "adapter_config.json: \"%s\": the expression \"%.200s\": %s", key,
                            pattern, why);
    } else {
        const int n = pcre2_match(code, (PCRE2_SPTR)m->module, strlen(m->module), 0, 0, data, NULL);
        found = n > 0;
        if (n < 0 && n != PCRE2_ERROR_NOMATCH) {
            m->status = ds_fail(m->adapter->ctx, DS_ERR_LIMIT,
                                "adapter_config.json: \"%s\": the expression \"%.200s\" takes too "
                                "long on %s",
                                key, pattern, m->module);
        }
        PCRE2_UCHAR *number = NULL;
        PCRE2_SIZE size = 0;
        if (found && number_out != NULL &&
            pcre2_substring_get_byname(data, (PCRE2_SPTR) "idx", &number, &size) == 0) {
            *number_out = strtoll((const char *)number, NULL, 10);
            pcre2_substring_free(number);
        }
    }
    pcre2_match_data_free(data);
    pcre2_code_free(code);
    dsi_buf_free(&text);
    return found;
}

bool dsi_adapter_is_named(const char *module, const char *entry)
{
    const size_t n = strlen(module), k = strlen(entry);
    return strcmp(module, entry) == 0 ||
           (n > k && strcmp(module + n - k, entry) == 0 && module[n - k - 1] == '.');
}

static bool is_listed(const json_t *list, const char *module)
{
    for (size_t i = 0; i < json_array_size(list); ++i) {
        if (dsi_adapter_is_named(module, json_string_value(json_array_get(list, i)))) {
            return true;
        }
    }
    return false;
}

static const json_t *field(const matcher *m, const char *key)
{
    return json_object_get(m->adapter->config, key);
}

static bool is_excluded(matcher *m)
{
    const json_t *exclude = field(m, "exclude_modules");
    const json_t *saved = field(m, "modules_to_save");
    const char *pattern = json_string_value(exclude);
    bool out = pattern != NULL && pattern[0] != '\0'
                   ? search(m, "exclude_modules", "", pattern, "", true, NULL)
                   : is_listed(exclude, m->module);
    for (size_t i = 0; i < json_array_size(saved) && !out; ++i) {
        out = search(m, "modules_to_save", "(^|.*\\.)", json_string_value(json_array_get(saved, i)),
                     "($|\\..*)", false, NULL);
    }
    return out;
}

static bool is_layer_named(matcher *m, const char *pattern, int64_t *layer)
{
    return search(m, "layers_pattern", "(?:^|.*?\\.)", pattern, "\\.(?P<idx>\\d+)\\.", false,
                  layer);
}

/* Whether the layer's number is one of layers_to_transform. */
static bool is_in_layers(matcher *m)
{
    const json_t *layers = field(m, "layers_to_transform");
    const json_t *pattern = field(m, "layers_pattern");
    int64_t layer = -1;
    if (layers == NULL || json_is_null(layers) ||
        (json_is_array(layers) && json_array_size(layers) == 0)) {
        return true;
    }
    if (json_is_string(pattern) && json_string_length(pattern) > 0) {
        (void)is_layer_named(m, json_string_value(pattern), &layer);
    } else if (json_array_size(pattern) > 0) {
        for (size_t i = 0; i < json_array_size(pattern); ++i) {
            if (is_layer_named(m, json_string_value(json_array_get(pattern, i)), &layer)) {
                break;
            }
        }
    } else {
        (void)search(m, "layers_to_transform", "", ".*?\\.[^.]*\\.(?P<idx>\\d+)\\.", "", false,
                     &layer);
    }
    if (json_is_integer(layers)) {
        return layer >= 0 && json_integer_value(layers) == layer;
    }
    for (size_t i = 0; i < json_array_size(layers); ++i) {
        if (layer >= 0 && json_integer_value(json_array_get(layers, i)) == layer) {
            return true;
        }
    }
    return false;
}

static bool is_target(matcher *m, bool head)
{
    const json_t *targets = field(m, "target_modules");
    const char *pattern = json_string_value(targets);
    if (is_excluded(m)) {
        return false;
    }
    if (m->adapter->all_linear) {
        return !head;
    }
    if (pattern != NULL) {
        return search(m, "target_modules", "", pattern, "", true, NULL);
    }
    for (size_t i = 0; i < json_array_size(targets); ++i) { /* a whole name: of any layer */
        if (strcmp(json_string_value(json_array_get(targets, i)), m->module) == 0) {
            return true;
        }
    }
    return is_listed(targets, m->module) && is_in_layers(m);
}

/* The number of the first key that matches the end of the name; `usual` where none does. */
static double pattern_value(matcher *m, const char *key, double usual)
{
    const char *one;
    json_t *value;
    json_object_foreach(json_object_get(m->adapter->config, key), one, value)
    {
        if (search(m, key, "(.*\\.)?(", one, ")$", false, NULL)) {
            return json_number_value(value);
        }
    }
    return usual;
}

static ds_status give_layer(matcher *m, bool on, bool *on_out, dsi_adapter_layer *layer_out)
{
    const ds_adapter *a = m->adapter;
    const double rank = on ? pattern_value(m, "rank_pattern", (double)a->rank) : 1.0;
    const double alpha = on ? pattern_value(m, "alpha_pattern", a->alpha) : 0.0;
    *on_out = on;
    *layer_out = (dsi_adapter_layer){(int64_t)rank, alpha / (a->rslora ? sqrt(rank) : rank)};
    return m->status;
}

ds_status dsi_adapter_match(const ds_adapter *a, const char *module, bool head, bool *on_out,
                            dsi_adapter_layer *layer_out)
{
    matcher m = {a, module, DS_OK};
    return give_layer(&m, is_target(&m, head), on_out, layer_out);
}

ds_status dsi_adapter_match_parameter(const ds_adapter *a, const char *param, bool *on_out,
                                      dsi_adapter_layer *layer_out)
{
    matcher m = {a, param, DS_OK};
    return give_layer(&m, is_listed(field(&m, "target_parameters"), param), on_out, layer_out);
}

const char *dsi_adapter_parameter_at(const ds_adapter *a, size_t i)
{
    return json_string_value(json_array_get(json_object_get(a->config, "target_parameters"), i));
}

/* Whether a module that holds the parameter has a name with this end; no dot is needed in front. */
static bool is_in(const char *param, const char *entry)
{
    const size_t k = strlen(entry);
    for (const char *dot = strchr(param, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        const size_t n = (size_t)(dot - param);
        if (n >= k && strncmp(dot - k, entry, k) == 0) {
            return true;
        }
    }
    return false;
}

bool dsi_adapter_saves(const ds_adapter *a, const char *param)
{
    const json_t *saved = json_object_get(a->config, "modules_to_save");
    for (size_t i = 0; i < json_array_size(saved); ++i) {
        if (is_in(param, json_string_value(json_array_get(saved, i)))) {
            return true;
        }
    }
    return false;
}

/* Whether the parameter is of a module of this name, or (container) of one below it. */
static bool is_of(const char *param, const char *entry, bool container)
{
    const char *last = strrchr(param, '.');
    for (const char *dot = strchr(param, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        const size_t n = (size_t)(dot - param), k = strlen(entry);
        const bool named =
            n >= k && strncmp(dot - k, entry, k) == 0 && (n == k || param[n - k - 1] == '.');
        if (named && (dot != last) == container) {
            return true;
        }
    }
    return false;
}

const char *dsi_adapter_unmatched(const ds_adapter *a, const char *const *params, uint32_t n,
                                  bool saved, bool *container_out)
{
    const json_t *list = json_object_get(a->config, saved ? "modules_to_save" : "target_modules");
    *container_out = false;
    for (size_t i = 0; i < json_array_size(list); ++i) {
        const char *entry = json_string_value(json_array_get(list, i));
        bool found = false;
        for (uint32_t p = 0; p < n && !found; ++p) {
            found = saved ? is_in(params[p], entry) : is_of(params[p], entry, false);
            *container_out = !saved && is_of(params[p], entry, true);
            if (*container_out) {
                return entry;
            }
        }
        if (!found) {
            return entry;
        }
    }
    return NULL;
}
