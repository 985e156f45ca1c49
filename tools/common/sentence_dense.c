/* SPDX-License-Identifier: Apache-2.0 */
/* See sentence_dense.h. */
#include "common/sentence_dense.h"

#include "io/file.h"

#include <deepspeed/nn.h>
#include <deepspeed/safetensors.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, MOST_WIDTH = 1 << 20 };

static double identity(double x)
{
    return x;
}

static double rectified(double x)
{
    return x > 0.0 ? x : 0.0;
}

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double silu(double x)
{
    return x * sigmoid(x);
}

static double gelu(double x)
{
    return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
}

/* Classes of torch.nn as sentence-transformers names them; each with its own defaults. */
static const struct {
    const char *name;
    double (*f)(double);
} activations[DS_DENSE_FUNCTIONS] = {
    [DS_DENSE_TANH] = {"torch.nn.modules.activation.Tanh", tanh},
    [DS_DENSE_IDENTITY] = {"torch.nn.modules.linear.Identity", identity},
    [DS_DENSE_RELU] = {"torch.nn.modules.activation.ReLU", rectified},
    [DS_DENSE_SIGMOID] = {"torch.nn.modules.activation.Sigmoid", sigmoid},
    [DS_DENSE_SILU] = {"torch.nn.modules.activation.SiLU", silu},
    [DS_DENSE_GELU] = {"torch.nn.modules.activation.GELU", gelu},
};
enum { N_ACTIVATIONS = DS_DENSE_FUNCTIONS };

/* "torch.nn.Tanh" is the same class as "torch.nn.modules.activation.Tanh". */
static bool is_named(const char *full, const char *name)
{
    static const char package[] = "torch.nn.";
    const char *class = strrchr(full, '.') + 1;
    const size_t n = sizeof package - 1;
    return strcmp(full, name) == 0 ||
           (strncmp(name, package, n) == 0 && strcmp(name + n, class) == 0);
}

static ds_status bad(ds_ctx *ctx, const char *path, const char *key, const char *expected)
{
    return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s/config.json: %s is not built; expected %s", path,
                   key, expected);
}

static ds_status read_activation(ds_ctx *ctx, const char *path, const json_t *config,
                                 sentence_dense *d)
{
    const json_t *value = json_object_get(config, "activation_function");
    const char *name = json_string_value(value);
    d->activation = DS_DENSE_TANH; /* where the key is absent */
    if (value == NULL) {
        return DS_OK;
    }
    for (int i = 0; i < N_ACTIVATIONS && name != NULL; ++i) {
        if (is_named(activations[i].name, name)) {
            d->activation = i;
            return DS_OK;
        }
    }
    return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                   "%s/config.json: activation_function \"%s\" is not built; Tanh, Identity, ReLU, "
                   "Sigmoid, SiLU and GELU of torch.nn are",
                   path, name != NULL ? name : "?");
}

/* Absent or null, or the one vector of a text. */
static bool is_vector(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);
    const char *name = json_string_value(value);
    return value == NULL || json_is_null(value) ||
           (name != NULL && strcmp(name, "sentence_embedding") == 0);
}

static ds_status read_flag(ds_ctx *ctx, const char *path, const json_t *config, const char *key,
                           bool *flag_inout)
{
    const json_t *value = json_object_get(config, key);
    if (value != NULL && !json_is_boolean(value)) {
        return bad(ctx, path, key, "true or false");
    }
    *flag_inout = value != NULL ? json_is_true(value) : *flag_inout;
    return DS_OK;
}

static ds_status read_config(ds_ctx *ctx, const char *path, const json_t *config, bool *bias_out,
                             sentence_dense *d)
{
    static const char *const names[] = {"module_input_name", "module_output_name"};
    d->n_in = json_integer_value(json_object_get(config, "in_features"));
    d->n_out = json_integer_value(json_object_get(config, "out_features"));
    if (d->n_in < 1 || d->n_out < 1 || d->n_in > MOST_WIDTH || d->n_out > MOST_WIDTH) {
        return bad(ctx, path, "in_features or out_features", "numbers of 1 to 1048576");
    }
    for (int i = 0; i < 2; ++i) {
        if (!is_vector(config, names[i])) {
            return bad(ctx, path, names[i], "\"sentence_embedding\"");
        }
    }
    *bias_out = true;
    DS_TRY(read_flag(ctx, path, config, "bias", bias_out));
    DS_TRY(read_flag(ctx, path, config, "use_residual", &d->adds));
    return read_activation(ctx, path, config, d);
}

static ds_status read_tensor(ds_ctx *ctx, const ds_safetensors *st, const char *path,
                             const char *name, ds_shape shape, float **data_out)
{
    const ds_safetensor *t = ds_safetensors_find(st, name);
    if (t == NULL) {
        return ds_fail(ctx, DS_ERR_NOT_FOUND, "%s: the tensor %s is missing", path, name);
    }
    if (!ds_shape_equal(t->meta.shape, shape)) {
        return ds_fail(ctx, DS_ERR_SHAPE,
                       "%s: the tensor %s is not of the shape that config.json says", path, name);
    }
    *data_out = malloc((size_t)ds_shape_count(shape) * sizeof **data_out);
    return *data_out != NULL ? ds_safetensors_read(ctx, t, DS_DTYPE_F32, *data_out)
                             : ds_fail(ctx, DS_ERR_NOMEM, "no memory for %s of %s", name, path);
}

static ds_status read_weights(ds_ctx *ctx, const ds_safetensors *st, const char *path, bool bias,
                              sentence_dense *d)
{
    const ds_shape matrix = ds_shape_2d(d->n_out, d->n_in);
    const bool projects = d->adds && d->n_in != d->n_out;
    const size_t n = 1 + (bias ? 1u : 0u) + (projects ? 1u : 0u);
    DS_TRY(read_tensor(ctx, st, path, "linear.weight", matrix, &d->weight));
    if (bias) {
        DS_TRY(read_tensor(ctx, st, path, "linear.bias", ds_shape_1d(d->n_out), &d->bias));
    }
    if (projects) {
        DS_TRY(read_tensor(ctx, st, path, "residual.weight", matrix, &d->residual));
    }
    return ds_safetensors_count(st) == n
               ? DS_OK
               : ds_fail(ctx, DS_ERR_FORMAT,
                         "%s has %zu tensors, of which config.json explains %zu", path,
                         ds_safetensors_count(st), n);
}

ds_status sentence_dense_open(ds_ctx *ctx, const char *folder, const char *path,
                              sentence_dense *dense_out)
{
    char whole[PATH_BYTES];
    char name[PATH_BYTES + 16];
    json_error_t error;
    sentence_dense d = {0};
    ds_safetensors *st = NULL;
    bool bias = true;
    (void)snprintf(whole, sizeof whole, "%s/%s", folder, path);
    (void)snprintf(name, sizeof name, "%s/config.json", whole);
    json_t *config = json_load_file(name, 0, &error);
    ds_status status = config != NULL ? read_config(ctx, path, config, &bias, &d)
                                      : ds_fail(ctx, DS_ERR_FORMAT, "%s: %s", name, error.text);
    json_decref(config);
    status = status < 0 ? status : ds_safetensors_open_folder(ctx, whole, &st);
    status = status < 0 ? status : read_weights(ctx, st, whole, bias, &d);
    ds_safetensors_close(&st);
    if (status < 0) {
        sentence_dense_close(&d);
        return status;
    }
    *dense_out = d;
    return DS_OK;
}

void sentence_dense_close(sentence_dense *dense)
{
    free(dense->weight);
    free(dense->bias);
    free(dense->residual);
    *dense = (sentence_dense){0};
}

/* ---- trained and written ---- */

bool sentence_dense_tensor(const sentence_dense *d, int i, sentence_tensor *out)
{
    const sentence_tensor all[SENTENCE_DENSE_TENSORS] = {
        {"linear.weight", d->weight, d->n_out, d->n_in},
        {"linear.bias", d->bias, d->n_out, 0},
        {"residual.weight", d->residual, d->n_out, d->n_in}};
    for (int k = 0; k < SENTENCE_DENSE_TENSORS; ++k) {
        if (all[k].data != NULL && i-- == 0) {
            *out = all[k];
            return true;
        }
    }
    return false;
}

json_t *sentence_dense_config(const sentence_dense *d)
{
    return json_pack("{s:I, s:I, s:b, s:s, s:b}", "in_features", (json_int_t)d->n_in,
                     "out_features", (json_int_t)d->n_out, "bias", d->bias != NULL,
                     "activation_function", activations[d->activation].name, "use_residual",
                     d->adds);
}

ds_status sentence_dense_like(ds_ctx *ctx, const json_t *config, sentence_dense *dense_out)
{
    sentence_dense d = {0};
    bool bias = true;
    DS_TRY(read_config(ctx, "the module Dense of the checkpoint", config, &bias, &d));
    const size_t n = (size_t)(d.n_out * d.n_in);
    const bool projects = d.adds && d.n_in != d.n_out;
    d.weight = calloc(n, sizeof *d.weight);
    d.bias = bias ? calloc((size_t)d.n_out, sizeof *d.bias) : NULL;
    d.residual = projects ? calloc(n, sizeof *d.residual) : NULL;
    if (d.weight == NULL || (bias && d.bias == NULL) || (projects && d.residual == NULL)) {
        sentence_dense_close(&d);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a module Dense");
    }
    *dense_out = d;
    return DS_OK;
}

ds_status sentence_dense_write(ds_ctx *ctx, const char *folder, const sentence_dense *d)
{
    static const ds_text_pair format = {"format", "pt"};
    const ds_safetensors_params params = {.metadata = &format, .n_metadata = 1};
    ds_tensor_source sources[SENTENCE_DENSE_TENSORS];
    sentence_tensor t;
    char path[PATH_BYTES];
    int n = 0;
    for (; sentence_dense_tensor(d, n, &t); ++n) {
        const ds_shape shape = t.columns > 0 ? ds_shape_2d(t.rows, t.columns) : ds_shape_1d(t.rows);
        sources[n] = (ds_tensor_source){
            .name = t.name, .meta = {DS_DTYPE_F32, shape}, .stored = DS_DTYPE_F32, .data = t.data};
    }
    json_t *config = sentence_dense_config(d);
    char *text = json_dumps(config, JSON_INDENT(2));
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    ds_status status = text != NULL ? dsi_file_replace(ctx, path, text, strlen(text))
                                    : ds_fail(ctx, DS_ERR_NOMEM, "no memory for %s", path);
    free(text);
    json_decref(config);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    return status < 0 ? status : ds_safetensors_write(ctx, path, sources, (size_t)n, &params);
}

/* ---- at work ---- */

static double product(const float *row, const float *x, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        sum += (double)row[i] * (double)x[i];
    }
    return sum;
}

void sentence_dense_run(const sentence_dense *d, const float *x, float *out)
{
    for (int64_t i = 0; i < d->n_out; ++i) {
        const double z = product(d->weight + i * d->n_in, x, d->n_in) +
                         (d->bias != NULL ? (double)d->bias[i] : 0.0);
        const double rest = !d->adds              ? 0.0
                            : d->residual != NULL ? product(d->residual + i * d->n_in, x, d->n_in)
                                                  : (double)x[i];
        out[i] = (float)(activations[d->activation].f(z) + rest);
    }
}
