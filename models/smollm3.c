/* SPDX-License-Identifier: Apache-2.0 */
/* SmolLM3: Llama with layers that have no rotary positions; those may have a window. */
#include "decoder.h"

#include <math.h>
#include <string.h>

/* head_dim is none of its fields, but its layers take it. */
static const ds_field fields[] = {
    DS_DECODER_COMMON(true),
    DS_DECODER_PAD(128004),
    DS_DECODER_SIZE("vocab_size", vocab_size, 128256),
    DS_DECODER_SIZE("hidden_size", hidden_size, 2048),
    DS_DECODER_SIZE("intermediate_size", intermediate_size, 11008),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 36),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 16),
    DS_DECODER_SIZE_OR_NULL("num_key_value_heads", n_kv_heads, 4),
    DS_DECODER_SIZE("head_dim", head_dim, DS_DECODER_NO_INT),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 32768),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_DECODER_REAL("rms_norm_eps", norm_eps, 1e-6, HUGE_VAL),
    DS_DECODER_SWITCH("attention_bias", o_bias, false),
    DS_DECODER_SWITCH("mlp_bias", mlp_bias, false),
    DS_DECODER_SWITCH("use_sliding_window", use_window, false),
    DS_DECODER_ANY_INT("sliding_window", DS_FIELD_INT | DS_FIELD_NULL, window, DS_DECODER_NO_INT),
    DS_DECODER_ANY_INT("no_rope_layer_interval", DS_FIELD_INT, interval, 4),
    DS_FIELD_CHECK("no_rope_layers", DS_FIELD_INTS | DS_FIELD_NULL), /* read by resolve() */
};

/* no_rope_layers has 1 where a layer does have rotary positions. */
static ds_status read_unrotated(const ds_reader *reader, ds_decoder_config *c)
{
    const json_t *rotated = json_object_get(reader->json, "no_rope_layers");
    const bool listed = json_is_array(rotated);
    if (listed && json_array_size(rotated) < (size_t)c->n_layers) {
        return ds_field_bad(reader, "no_rope_layers", "a list with an entry for each layer");
    }
    if (!listed && c->interval == 0) {
        return ds_field_bad(reader, "no_rope_layer_interval", "not 0 without no_rope_layers");
    }
    for (int64_t i = 0; i < c->n_layers; ++i) {
        c->unrotated[i] = listed ? json_number_value(json_array_get(rotated, (size_t)i)) == 0.0
                                 : (i + 1) % c->interval == 0;
    }
    return DS_OK;
}

/* use_sliding_window has a say only where layer_types is not there: as in transformers, whose masks
 * go by the types. */
static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    const bool typed = json_is_array(json_object_get(reader->json, "layer_types"));
    bool any = false;
    c->qkv_bias = c->o_bias;
    DS_TRY(read_unrotated(reader, c));
    for (int64_t i = 0; i < c->n_layers; ++i) {
        const char *type = ds_field_layer_type(reader, i);
        c->windowed[i] = type != NULL ? strcmp(type, "sliding_attention") == 0
                                      : c->use_window && c->window != DS_NO_INT && c->unrotated[i];
        any = any || c->windowed[i];
    }
    if (any && c->window < 1) {
        return ds_field_bad(reader, "sliding_window",
                            typed ? "at least 1 with sliding_attention in layer_types"
                                  : "at least 1, or null");
    }
    c->window = any ? c->window : 0;
    return DS_OK;
}

const ds_decoder_kind ds_kind_smollm3 = {.model_type = "smollm3",
                                         .fields = fields,
                                         .n_fields = DS_DECODER_N(fields),
                                         .activation = "silu",
                                         .rope = {.theta = 2000000.0},
                                         .typed = true,
                                         .resolve = resolve};
