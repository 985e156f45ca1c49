/* SPDX-License-Identifier: Apache-2.0 */
/* What quantization_config says of matrices in four and eight bits: see int4.h. */
#include "ckpt/int4.h"

#include "ckpt/byte_weight.h"
#include "ckpt/quantized_config.h"

static ds_status check_bits(const dsi_quantized_config *c)
{
    const json_t *bits = json_object_get(c->own, "bits");
    bits = bits != NULL ? bits : json_object_get(c->own, "w_bit");
    return json_integer_value(bits) == 4 ? DS_OK
                                         : dsi_quantized_refuse(c, "bits", "4 alone is read");
}

/* Another size of groups; -1: a row is one. */
static ds_status add_size(const dsi_quantized_config *c, const json_t *size, dsi_int4_form *out)
{
    const json_int_t n = json_integer_value(size);
    uint32_t i = 0;
    if (!json_is_integer(size) || (n != -1 && (n < 1 || n > INT32_MAX))) {
        return dsi_quantized_refuse(c, "group_size", "expected inputs of a group, or -1");
    }
    while (i < out->n_sizes && out->sizes[i] != (n < 0 ? 0 : n)) {
        ++i;
    }
    if (i == DSI_INT4_MOST_SIZES) {
        return dsi_quantized_refuse(c, "config_groups", "groups of so many sizes are not read");
    }
    out->sizes[i] = n < 0 ? 0 : n;
    out->n_sizes = i == out->n_sizes ? i + 1 : out->n_sizes;
    return DS_OK;
}

/* Of GPTQ and AWQ: "group_size", or AutoAWQ's "q_group_size". */
static ds_status read_size(const dsi_quantized_config *c, dsi_int4_form *out)
{
    const json_t *size = json_object_get(c->own, "group_size");
    size = size != NULL ? size : json_object_get(c->own, "q_group_size");
    return size == NULL ? DS_OK : add_size(c, size, out);
}

static ds_status read_gptq(const dsi_quantized_config *c, dsi_int4_form *out)
{
    const bool second = dsi_quantized_is(c->own, "checkpoint_format", "gptq", "gptq_v2");
    if (!second && !dsi_quantized_is(c->own, "checkpoint_format", "gptq", "gptq")) {
        return dsi_quantized_refuse(c, "checkpoint_format",
                                    "\"gptq\" and \"gptq_v2\" alone are read");
    }
    if (!dsi_quantized_is(c->own, "pack_dtype", "int32", "int32")) {
        return dsi_quantized_refuse(c, "pack_dtype", "\"int32\" alone is read");
    }
    if (json_object_size(json_object_get(c->own, "dynamic")) > 0) {
        return dsi_quantized_refuse(c, "dynamic", "layers of different kinds are not read");
    }
    out->layout = second ? DSI_INT4_GPTQ_V2 : DSI_INT4_GPTQ;
    DS_TRY(read_size(c, out));
    return check_bits(c);
}

static ds_status read_awq(const dsi_quantized_config *c, dsi_int4_form *out)
{
    if (!dsi_quantized_is(c->own, "version", "gemm", "gemm") &&
        !dsi_quantized_is(c->own, "version", "gemm", "GEMM")) {
        return dsi_quantized_refuse(c, "version", "\"gemm\" alone is read");
    }
    const json_t *zeros = json_object_get(c->own, "zero_point");
    if (zeros != NULL && !json_is_true(zeros)) {
        return dsi_quantized_refuse(c, "zero_point", "true alone is read");
    }
    out->layout = DSI_INT4_AWQ;
    DS_TRY(read_size(c, out));
    return check_bits(c);
}

static json_int_t bits_of(const json_t *group)
{
    return json_integer_value(json_object_get(json_object_get(group, "weights"), "num_bits"));
}

static ds_status check_group(const dsi_quantized_config *c, const json_t *group, json_int_t bits)
{
    const json_t *weights = json_object_get(group, "weights");
    const char *both[2] = {"input_activations", "output_activations"};
    for (int i = 0; i < 2; ++i) {
        const json_t *value = json_object_get(group, both[i]);
        if (value != NULL && !json_is_null(value)) {
            return dsi_quantized_refuse(c, both[i], "weights alone are read in few bits");
        }
    }
    if (bits_of(group) != bits || !dsi_quantized_is(weights, "type", "int", "int")) {
        return dsi_quantized_refuse(c, "num_bits", "whole numbers of 4, or of 8, alone are read");
    }
    DS_TRY(dsi_quantized_check_order(c, weights));
    return dsi_quantized_is(group, "format", "pack-quantized", "pack-quantized")
               ? DS_OK
               : dsi_quantized_refuse(c, "format", "\"pack-quantized\" alone is read");
}

/* Of a config group: what a scale is of, and whether there are zero points. */
static ds_status read_strategy(const dsi_quantized_config *c, const json_t *group,
                               dsi_int4_form *out)
{
    const json_t *weights = json_object_get(group, "weights");
    const json_t *size = json_object_get(weights, "group_size");
    const json_t *symmetric = json_object_get(weights, "symmetric");
    const json_int_t n = json_integer_value(size);
    const char *absent = size == NULL || json_is_null(size) ? "tensor"
                         : n > 0                            ? "group"
                                                            : "channel";
    const bool by_group = dsi_quantized_is(weights, "strategy", absent, "group");
    if (!by_group && !dsi_quantized_is(weights, "strategy", absent, "channel") &&
        !dsi_quantized_is(weights, "strategy", absent, "tensor")) {
        return dsi_quantized_refuse(c, "strategy",
                                    "\"tensor\", \"channel\" and \"group\" alone are read");
    }
    if (by_group ? n < 1 : n > 0) {
        return dsi_quantized_refuse(c, "group_size", "above 0 with strategy \"group\" alone");
    }
    if (symmetric != NULL && !json_is_boolean(symmetric)) {
        return dsi_quantized_refuse(c, "symmetric", "expected true or false");
    }
    const bool first = out->n_sizes == 0;
    const int zeros = json_is_false(symmetric) ? DSI_INT4_ZEROS : DSI_INT4_NO_ZEROS;
    out->zeros = first || (int)out->zeros == zeros ? zeros : DSI_INT4_ZEROS_ANY;
    json_t *whole = json_integer(-1);
    const ds_status status = add_size(c, by_group ? size : whole, out);
    json_decref(whole);
    return status;
}

static ds_status read_packed(const dsi_quantized_config *c, dsi_int4_form *out)
{
    json_t *groups = json_object_get(c->own, "config_groups");
    const char *name = NULL;
    json_t *group = NULL;
    bool eights = true;
    if (!dsi_quantized_is(c->own, "format", "", "pack-quantized")) {
        return dsi_quantized_refuse(
            c, "format",
            "\"pack-quantized\", \"float-quantized\", \"int-quantized\" and "
            "\"naive-quantized\" alone are read");
    }
    DS_TRY(dsi_quantized_check_groups(c));
    json_object_foreach(groups, name, group)
    {
        eights = eights && bits_of(group) == 8;
    }
    json_object_foreach(groups, name, group)
    {
        DS_TRY(check_group(c, group, eights ? 8 : 4));
        DS_TRY(read_strategy(c, group, out));
    }
    out->layout = eights ? DSI_INT4_PACKED8 : DSI_INT4_PACKED;
    return DS_OK;
}

ds_status dsi_int4_form_of(ds_ctx *ctx, const ds_safetensors *st, dsi_int4_form *form_out)
{
    dsi_quantized_config c;
    dsi_quantized_config_load(ctx, st, &c);
    *form_out = (dsi_int4_form){.layout = DSI_INT4_NONE};
    ds_status status = DS_OK;
    if (dsi_quantized_is(c.own, "quant_method", "", "gptq")) {
        status = read_gptq(&c, form_out);
    } else if (dsi_quantized_is(c.own, "quant_method", "", "awq")) {
        status = read_awq(&c, form_out);
    } else if (dsi_quantized_is(c.own, "quant_method", "", "compressed-tensors") &&
               !dsi_byte_is_format(c.own)) {
        status = read_packed(&c, form_out);
    }
    json_decref(c.root);
    return status;
}
