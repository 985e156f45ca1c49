/* SPDX-License-Identifier: Apache-2.0 */
/* What stands behind the last layer of an encoder, by the trace's task: the head for masked tokens,
 * one for classes of documents or tokens, or nothing. */
#include "decoder.h"

static ds_value dense(ds_nn *nn, const ds_decoder_config *c, const char *name, ds_value x,
                      int64_t n_out, bool bias, ds_dtype dtype)
{
    return ds_nn_linear(
        nn, name, x,
        &(ds_linear_params){
            .n_out = n_out, .bias = bias, .init_std = c->initializer_range, .out_dtype = dtype});
}

/* A layer and a norm (Devlin et al. 2018, A.2). */
static ds_value transform(ds_nn *nn, const ds_decoder_config *c, ds_value x)
{
    x = dense(nn, c, c->names->head_dense, x, c->hidden_size, c->head_bias, DS_DTYPE_NONE);
    return ds_nn_layer_norm(nn, c->names->head_norm, ds_nn_activation(nn, x, c->head_activation),
                            c->norm_eps, c->norm == DS_NORM_LAYER);
}

/* Behind the transform the embedding as projection. */
static void masked_tokens(ds_nn *nn, const ds_decoder_config *c, ds_value x, ds_value embedding)
{
    const ds_decoder_names *names = c->names;
    x = transform(nn, c, x);
    if (!c->tied &&
        names->head_bias != NULL) { /* stored beside the projection's own, and added to nothing */
        (void)ds_nn_param_at(nn, names->head_bias, ds_shape_1d(c->vocab_size),
                             (ds_init){.kind = DS_INIT_ZEROS}, true);
    }
    ds_model_head(nn, x,
                  &(ds_head_params){.embedding = c->tied ? embedding : DS_NONE,
                                    .name = names->head,
                                    .vocab_size = c->vocab_size,
                                    .init_std = c->initializer_range,
                                    .extra = DS_NONE,
                                    .bias = c->tied ? names->head_bias : names->untied_bias,
                                    .unshifted = true});
}

/* Of each token, f32 (B,T,classes). A document's are read at its first token: rows may hold several
 * documents, so what transformers takes of one token is made of all. */
static ds_value class_logits(ds_nn *nn, const ds_decoder_config *c, ds_value x)
{
    const ds_trace *t = ds_nn_trace(nn);
    const bool whole = t->task == DS_TASK_SEQUENCE_CLASSES;
    if (c->names->pooler == NULL) {
        x = transform(nn, c, x);
    } else if (whole) {
        x = c->head_drops_first ? ds_nn_dropout(nn, x, c->head_dropout) : x;
        x = ds_nn_tanh(nn, dense(nn, c, c->names->pooler, x, c->hidden_size, true, DS_DTYPE_NONE));
    }
    return dense(nn, c, whole ? c->names->classifier : c->names->token_classifier,
                 ds_nn_dropout(nn, x, c->head_dropout), t->n_classes, true, DS_DTYPE_F32);
}

void ds_encoder_head(ds_nn *nn, const ds_decoder_config *c, ds_value x, ds_value embedding)
{
    const ds_trace *t = ds_nn_trace(nn);
    if (t->task == DS_TASK_TOKENS) {
        masked_tokens(nn, c, x, embedding);
        return;
    }
    if (t->task == DS_TASK_HIDDEN) {
        if (t->mode != DS_TRACE_GENERATE) {
            ds_nn_fail(nn, DS_ERR_UNSUPPORTED, "the task \"hidden\" has no loss to train with");
            return;
        }
        ds_nn_output(nn, "hidden", ds_nn_cast(nn, x, DS_DTYPE_F32));
        return;
    }
    if (t->task == DS_TASK_CONTRAST) {
        ds_model_contrast(nn, x);
        return;
    }
    const uint32_t problem = t->task_params != NULL ? t->task_params->problem : DS_PROBLEM_CLASSES;
    const bool learns = t->mode != DS_TRACE_GENERATE;
    if (t->n_classes < (learns && problem == DS_PROBLEM_CLASSES ? 2u : 1u)) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "the number of classes is %u; expected 2 or more, or 1 of regression or of many "
                   "labels",
                   t->n_classes);
        return;
    }
    if (c->head_means && t->task == DS_TASK_SEQUENCE_CLASSES) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "config.json: \"classifier_pooling\" is \"mean\": classes of the mean of a "
                   "document's tokens are not built; set it to \"cls\"");
        return;
    }
    const ds_value logits = class_logits(nn, c, x);
    if (t->mode == DS_TRACE_GENERATE) {
        ds_nn_output(nn, "logits", logits);
        return;
    }
    if (problem != DS_PROBLEM_CLASSES) {
        ds_model_values_loss(nn, logits);
        return;
    }
    (void)ds_nn_cross_entropy(
        nn, logits, ds_nn_input(nn, "labels", DS_DTYPE_I32, ds_shape_2d(t->batch, t->seq_length)));
}
