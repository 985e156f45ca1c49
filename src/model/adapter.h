/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of ds_adapter: PEFT's adapter_config.json, checked; everything else is read from it.
 *
 * adapter.c makes and opens, adapter_config.c checks the fields, adapter_match.c says which modules
 * are meant. Names of modules are Hugging Face's, a weight's without ".weight".
 */
#ifndef DSI_MODEL_ADAPTER_H
#define DSI_MODEL_ADAPTER_H

#include <deepspeed/adapter.h>
#include <jansson.h>

struct ds_adapter {
    ds_ctx *ctx;
    json_t *config; /* as dsi_adapter_check left it */
    char *folder;   /* with the weights; NULL: a fresh one */
    bool rslora, dora, pissa, gaussian, all_linear;
    int64_t rank; /* of layers that rank_pattern does not name */
    double alpha, dropout;
    bool any_task; /* its task_type says none */
    ds_task task;
    bool pairs;          /* of a model of sources and targets: SEQ_2_SEQ_LM */
    ds_packing packing;  /* of the model beside it */
    ds_adapter **frozen; /* that are active beside it, and its own */
    uint32_t n_frozen;
    ds_adapter **others; /* that are trained in the same run, each of tokens of its own */
    uint32_t n_others;
    uint32_t number; /* from 1 among the frozen, or among the others; 0: it is the first */
    bool trained;    /* it is one of the others */
    char *name;      /* of its folder, where several are trained; else NULL */
};

/* In front of the names of an adapter's cells: "frozen.2." of the second that is frozen,
 * "trained.1." of the first of the others, "" of the first. */
enum { DSI_ADAPTER_PREFIX_BYTES = 24 };
void dsi_adapter_cell_prefix(const ds_adapter *adapter, char prefix[DSI_ADAPTER_PREFIX_BYTES]);
/* A cell's name behind that prefix. */
const char *dsi_adapter_plain_name(const char *cell);
/* ERR_UNSUPPORTED where others are beside it, frozen or trained, which `what` does not know. */
ds_status dsi_adapter_check_alone(const ds_adapter *adapter, const char *what);

/* The adapters that are trained: the first, and the others. i below 1 + n_others. */
const ds_adapter *dsi_adapter_trained(const ds_adapter *adapter, uint32_t i);
/* Whether each token belongs to one of several, as the input `adapters` says. */
bool dsi_adapter_has_rows(const ds_adapter *adapter);
/* Whether one of those that are trained has the parameter (dsi_adapter_has). */
bool dsi_adapter_trains(const ds_adapter *adapter, const ds_cell_info *cell);

/* NONE without an adapter. */
ds_packing dsi_adapter_packing(const ds_adapter *adapter);

/* Where its weights are; NULL: it is fresh, or there is no adapter. */
const char *dsi_adapter_folder(const ds_adapter *adapter);

/* In front of the names of tensors in adapter_model.safetensors. */
#define DSI_ADAPTER_PREFIX "base_model.model."
#define DSI_ADAPTER_CONFIG "adapter_config.json"
/* Behind the name of a module: DoRA's lengths of rows. */
#define DSI_ADAPTER_MAGNITUDE ".lora_magnitude_vector"
#define DSI_ADAPTER_WEIGHTS   "adapter_model.safetensors"
/* Behind the name of an embedding: (rank,V) and (C,rank). */
#define DSI_ADAPTER_TABLE_A ".lora_embedding_A"
#define DSI_ADAPTER_TABLE_B ".lora_embedding_B"

/* Reads adapter->config into the fields. label: the file, for messages. Errors: ERR_FORMAT and
 * ERR_UNSUPPORTED name the field. */
ds_status dsi_adapter_check(ds_adapter *adapter, const char *label);

typedef struct dsi_adapter_layer {
    int64_t rank;
    double scale;
} dsi_adapter_layer;

/* Whether a module is one that gets A and B, and of which size. head: the output head, which
 * "all-linear" leaves out. Errors: ERR_FORMAT (an expression that is none), ERR_NOMEM. */
ds_status dsi_adapter_match(const ds_adapter *adapter, const char *module, bool head, bool *on_out,
                            dsi_adapter_layer *layer_out);
/* The same for a parameter of target_parameters, by its name in transformers' classes. */
ds_status dsi_adapter_match_parameter(const ds_adapter *adapter, const char *param, bool *on_out,
                                      dsi_adapter_layer *layer_out);
/* The i-th entry of target_parameters; NULL: there are no more. */
const char *dsi_adapter_parameter_at(const ds_adapter *adapter, size_t i);
/* Whether a name is the entry, or ends in it behind a dot. */
bool dsi_adapter_is_named(const char *name, const char *entry);
/* Whether a parameter is trained whole, being in a module of modules_to_save. */
bool dsi_adapter_saves(const ds_adapter *adapter, const char *param);
/* A parameter that only the adapter has, or that is trained whole: what its folder holds. */
bool dsi_adapter_has(const ds_adapter *adapter, const ds_cell_info *cell);
/* Whether rows of added tokens (ds_model_change) are in what its folder holds. a may be NULL.
 * Errors: ERR_UNSUPPORTED. */
ds_status dsi_adapter_check_vocab(const ds_adapter *a, const ds_model *model);
/* A model of sources and targets has adapters of its own, without those of its embedding: PEFT
 * would train a copy of it beside the ones that encoder and decoder read. */
ds_status dsi_adapter_check_pairs(const ds_adapter *a, const ds_model *model);
/* The entry of modules_to_save, or of a list of target_modules, that no module in `params` (names
 * of parameters) is named like; NULL: each has one. *container_out: a target is a module that holds
 * others. */
const char *dsi_adapter_unmatched(const ds_adapter *adapter, const char *const *params, uint32_t n,
                                  bool saved, bool *container_out);

/* One of the text of an adapter_config.json, without weights. label: for messages. */
ds_status dsi_adapter_parse(ds_ctx *ctx, const char *label, const char *text,
                            ds_adapter **adapter_out);

/* adapter_config.json to be written, as PEFT writes it: what was read, or all of PEFT's fields.
 * transposed: the adapted layers store (in,out). The caller frees *text_out. */
ds_status dsi_adapter_config_text(const ds_adapter *adapter, bool transposed, char **text_out);
/* The same as a folder holds it: of PiSSA that of plain LoRA of twice the rank. */
ds_status dsi_adapter_folder_text(const ds_adapter *adapter, bool transposed, char **text_out);

#endif
