/* SPDX-License-Identifier: Apache-2.0 */
/* torch_autocast as the mixed precision that there is: bf16 or fp16 with fp32 master weights.
 * Called by config_rules.c, before what looks at the precision. */
#include "config/config_eval.h"

#include <string.h>

/* Of torch.amp.GradScaler; it begins at 2^16, as fp16 does. */
enum { SCALER_WINDOW = 2000, SCALER_HYSTERESIS = 1 };

/* The type, by default bf16; F32: neither of the two, which is an error then. */
static ds_dtype type_of(dsi_eval *eval)
{
    const char *text = dsi_item_text(eval, "torch_autocast.dtype");
    ds_dtype dtype = DS_DTYPE_BF16;
    if (text != NULL &&
        (!dsi_dtype_parse(text, &dtype) || (dtype != DS_DTYPE_BF16 && dtype != DS_DTYPE_F16))) {
        dsi_item_error(eval, dsi_item_find(eval, "torch_autocast.dtype"),
                       "expected bfloat16 or float16, found \"%s\"", text);
        return DS_DTYPE_F32;
    }
    return dtype;
}

/* A class is named by the path that imports it: words with dots between. */
static bool is_path(const char *name)
{
    size_t words = 0;
    for (const char *at = name;; ++at, ++words) {
        const size_t n =
            strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
        if (n == 0 || (*at >= '0' && *at <= '9')) {
            return false;
        }
        at += n;
        if (*at != '.') {
            return *at == '\0' && words > 0;
        }
    }
}

static const dsi_node *safe_modules(const dsi_eval *eval)
{
    const dsi_item *item = dsi_item_find(eval, "torch_autocast.lower_precision_safe_modules");
    return item != NULL ? item->node : NULL;
}

bool dsi_config_autocast_travels(const dsi_eval *eval)
{
    const dsi_node *list = safe_modules(eval);
    bool linear = list == NULL || !dsi_item_true(eval, "torch_autocast.enabled");
    for (const dsi_node *node = list != NULL ? list->first : NULL; node != NULL;
         node = node->next) {
        linear = linear || strcmp(node->as.text, "torch.nn.Linear") == 0 ||
                 strcmp(node->as.text, "torch.nn.modules.linear.Linear") == 0;
    }
    return linear;
}

static void check_modules(dsi_eval *eval)
{
    const dsi_node *list = safe_modules(eval);
    for (const dsi_node *node = list != NULL ? list->first : NULL; node != NULL;
         node = node->next) {
        if (!is_path(node->as.text)) {
            dsi_item_error(eval, dsi_item_find(eval, "torch_autocast.lower_precision_safe_modules"),
                           "expected classes by the path that imports them, as torch.nn.Linear, "
                           "found \"%.80s\"",
                           node->as.text);
        }
    }
}

static void excludes(dsi_eval *eval, const char *path)
{
    if (dsi_item_true(eval, path)) {
        dsi_item_error(
            eval, dsi_item_find(eval, path),
            "expected false with torch_autocast.enabled, found true; change one of them");
    }
}

void dsi_config_autocast(dsi_eval *eval)
{
    ds_config_values *v = eval->values;
    if (!dsi_item_true(eval, "torch_autocast.enabled")) {
        return;
    }
    const ds_dtype dtype = type_of(eval);
    check_modules(eval);
    excludes(eval, "zero_optimization.zero_quantized_weights");
    if (dtype == DS_DTYPE_F32) {
        return;
    }
    if (dtype == DS_DTYPE_BF16 ? v->fp16.enabled : v->bf16.enabled) {
        dsi_item_error(eval, dsi_item_find(eval, "torch_autocast.dtype"),
                       "expected the type that %s.enabled asks for; change one of them",
                       v->fp16.enabled ? "fp16" : "bf16");
        return;
    }
    if (dtype == DS_DTYPE_F16 && !v->fp16.enabled) {
        v->fp16.loss_scale = 0.0;
        v->fp16.loss_scale_window = SCALER_WINDOW;
        v->fp16.hysteresis = SCALER_HYSTERESIS;
        v->fp16.consecutive_hysteresis = false;
    }
    v->fp16.enabled = dtype == DS_DTYPE_F16;
    v->bf16.enabled = dtype == DS_DTYPE_BF16;
}
