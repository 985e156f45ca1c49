/* SPDX-License-Identifier: Apache-2.0 */
/* The matrices of experts, as PEFT's target_parameters name them: parameters of transformers'
 * classes, "model.layers.0.mlp.experts.gate_up_proj", whatever the names of the stored tensors are.
 * An adapter on one has A (E·rank,in), the rows of an expert side by side, and B (out,rank·E), the
 * columns of an expert E apart (peft/tuners/lora/layer.py, ParamWrapper). Used where the graph is
 * rewritten and where adapters are merged. */
#ifndef DSI_MODEL_ADAPTER_EXPERTS_H
#define DSI_MODEL_ADAPTER_EXPERTS_H

#include <deepspeed/adapter.h>
#include <stdbool.h>

enum { DSI_EXPERTS_NAME_BYTES = 1000, DSI_EXPERTS_END_BYTES = 32 };

/* In the order in which the classes have them. */
#define DSI_EXPERTS_FIRST "gate_up_proj"
#define DSI_EXPERTS_LAST  "down_proj"

typedef struct dsi_expert_matrix {
    char module[DSI_EXPERTS_NAME_BYTES]; /* "model.layers.0.mlp.experts" */
    const char *parameter;               /* "gate_up_proj" */
    int64_t part, parts; /* of the outputs of PEFT's parameter, in equal parts, these are */
} dsi_expert_matrix;

/* Whether a parameter of a model is one, by its name here. */
bool dsi_expert_matrix_of(const char *param, dsi_expert_matrix *out);

/* Behind the base of a cell's name, that of B (E,out,rank): ".lora_B.weight", or one for each part.
 * A's is ".lora_A.weight" (E,rank,in), which the parts share. */
void dsi_expert_b_end(const dsi_expert_matrix *matrix, char end[DSI_EXPERTS_END_BYTES]);

/* A cell of an adapter on experts, as PEFT's folder has it. */
typedef struct dsi_expert_stored {
    bool is_b;
    int64_t part, parts; /* of B: which rows of PEFT's tensor it has */
    ds_meta meta;        /* of PEFT's tensor: A (E·rank,in), B (out of all parts,rank·E) */
    char name[DSI_EXPERTS_NAME_BYTES + 48];
} dsi_expert_stored;

/* Whether a cell is one; of: the weight that it belongs to. */
bool dsi_expert_stored_of(const ds_cell_info *cell, const ds_cell_info *of, dsi_expert_stored *out);
/* Where element i of a cell of this shape stands in PEFT's tensor. */
int64_t dsi_expert_stored_at(const dsi_expert_stored *stored, ds_shape shape, int64_t i);

/* The module of a router's weight as the class calls it, in place of how it is stored, which is
 * never shorter; other modules stay as they are. */
void dsi_router_module(char *module);

/* In front of ".lora_A.weight": PEFT wraps a module once for each of its parameters, the first one
 * inside. Errors: those of expressions. */
ds_status dsi_expert_cells_of(const ds_adapter *adapter, const dsi_expert_matrix *matrix,
                              char base[DSI_EXPERTS_NAME_BYTES + 16]);

#endif
